//! Programs under test that fail at times for a reason of their own.

/// Runs at most.
const ATTEMPTS: usize = 5;

/// Runs something until it does not have to run `again`, for a reason that has nothing to do with what is tested. Returns its last
/// result.
pub fn retry<T>(mut run: impl FnMut() -> T, again: impl Fn(&T) -> bool) -> T {
    let mut result = run();
    for _ in 1..ATTEMPTS {
        if !again(&result) {
            break;
        }
        result = run();
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_result_counts_and_there_is_an_end() {
        let mut runs = 0;
        let mut run = |again_until: usize| {
            runs = 0;
            retry(
                || {
                    runs += 1;
                    runs
                },
                |&result| result < again_until,
            )
        };
        assert_eq!([run(0), run(3), run(100)], [1, 3, ATTEMPTS]);
    }
}
