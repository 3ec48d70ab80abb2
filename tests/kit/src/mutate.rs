//! Mutations of inputs, the same ones in each run: for parsers and state machines that must survive any bytes.
//!
//! `RXE_SEED=N` chooses other mutations, `RXE_NIGHTLY=1` makes 25 times as many.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::rng::Rng;

/// Longest mutated input.
const LONGEST: usize = 16_384;

/// Runs `check` on `count` mutations of `inputs`. The first input that it panics on is saved, and the file named.
///
/// # Panics
///
/// When `check` panics.
pub fn check_mutations(name: &str, inputs: &[&[u8]], count: u64, check: impl Fn(&[u8])) {
    let count = count * if env::var_os("RXE_NIGHTLY").is_some_and(|value| !value.is_empty()) { 25 } else { 1 };
    println!("{name}: {count} mutations of {} inputs, RXE_SEED={}", inputs.len(), seed());
    let mut rng = Rng(seed());
    for number in 0..count {
        check_input(&format!("{name}-{number}"), &mutate(&mut rng, inputs, LONGEST), &check);
    }
}

/// Runs `check` on an input, which is saved if it panics.
///
/// # Panics
///
/// When `check` panics.
pub fn check_input(name: &str, input: &[u8], check: impl Fn(&[u8])) {
    if catch_unwind(AssertUnwindSafe(|| check(input))).is_err() {
        let path = env::temp_dir().join(format!("rxe-{name}"));
        std::fs::write(&path, input).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        panic!("{name} fails with RXE_SEED={}: its input is in {}", seed(), path.display());
    }
}

/// `RXE_SEED`, or the seed of every usual run.
fn seed() -> u64 {
    match env::var("RXE_SEED") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("RXE_SEED={text}: expected a number")),
        Err(_) => 1,
    }
}

/// A number below `n`; 0 if there is none.
fn below(rng: &mut Rng, n: usize) -> usize {
    if n == 0 { 0 } else { rng.below(n as u64) as usize }
}

/// Values at the edges of fields.
const EDGES: [u64; 12] = [0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x7FFF_FFFF, 0x8000_0000, 0xFF_FFFF, u64::MAX / 2, u64::MAX];

/// One of `inputs`, changed in up to eight places, with at most `longest` bytes; or random bytes, which targets that read
/// programs understand.
fn mutate(rng: &mut Rng, inputs: &[&[u8]], longest: usize) -> Vec<u8> {
    if below(rng, 4) == 0 {
        return (0..below(rng, longest.min(512))).map(|_| rng.next() as u8).collect();
    }
    let mut out = inputs[below(rng, inputs.len())].to_vec();
    for _ in 0..1 << below(rng, 4) {
        change(rng, inputs, &mut out);
        out.truncate(longest);
    }
    out
}

fn change(rng: &mut Rng, inputs: &[&[u8]], out: &mut Vec<u8>) {
    let at = below(rng, out.len());
    match below(rng, 9) {
        0 if !out.is_empty() => out[at] ^= 1 << below(rng, 8),
        1 if !out.is_empty() => out[at] = rng.next() as u8,
        2 => overwrite(rng, out, at),
        3 if !out.is_empty() => out[at] = out[at].wrapping_add(below(rng, 9) as u8).wrapping_sub(4),
        4 => {
            let len = below(rng, out.len() - at + 1).min(1 << below(rng, 9));
            out.drain(at..at + len);
        }
        5 => {
            let (len, byte) = (1 << below(rng, 9), rng.next() as u8);
            out.splice(at..at, std::iter::repeat_n(byte, len));
        }
        6 => {
            let from = piece(rng, out).to_vec();
            out.splice(at..at, from);
        }
        7 => {
            // The rest comes from another input.
            let other = inputs[below(rng, inputs.len())];
            out.truncate(at);
            out.extend_from_slice(&other[below(rng, other.len())..]);
        }
        8 => {
            let other = inputs[below(rng, inputs.len())];
            let other = piece(rng, other).to_vec();
            out.splice(at..at, other);
        }
        _ => out.push(rng.next() as u8),
    }
}

/// A value of one, two, four or eight bytes, in either byte order.
fn overwrite(rng: &mut Rng, out: &mut [u8], at: usize) {
    let width = 1 << below(rng, 4);
    let value = EDGES[below(rng, EDGES.len())];
    let mut bytes = value.to_le_bytes();
    if below(rng, 2) == 0 {
        bytes[..width].reverse();
    }
    for (to, from) in out.iter_mut().skip(at).zip(&bytes[..width]) {
        *to = *from;
    }
}

/// Some bytes of `from`.
fn piece<'a>(rng: &mut Rng, from: &'a [u8]) -> &'a [u8] {
    let start = below(rng, from.len());
    let len = below(rng, from.len() - start + 1).min(1 << below(rng, 10));
    &from[start..start + len]
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn some(seed: u64) -> Vec<Vec<u8>> {
        let mut rng = Rng(seed);
        (0..200).map(|_| mutate(&mut rng, &[b"first input", b"", b"another one"], 20)).collect()
    }

    #[test]
    fn mutations_differ_and_repeat() {
        let inputs = some(1);
        assert_eq!(inputs, some(1));
        assert_ne!(inputs, some(2));
        assert!(inputs.iter().all(|input| input.len() <= 20));
        let distinct: std::collections::BTreeSet<_> = inputs.iter().collect();
        assert!(distinct.len() > 150, "{}", distinct.len());
    }

    #[test]
    fn an_input_that_fails_is_saved() {
        let failed = RefCell::new(Vec::new());
        let check = |input: &[u8]| {
            if input.first().is_some_and(|byte| *byte != b'a') {
                *failed.borrow_mut() = input.to_vec();
                panic!("the check fails");
            }
        };
        let name = format!("mutate-{}", std::process::id());
        let caught = catch_unwind(AssertUnwindSafe(|| check_mutations(&name, &[b"aa"], 1000, check)));
        let text = *caught.expect_err("some input fails").downcast::<String>().expect("a sentence");
        let (_, path) = text.split_once(" is in ").expect("a path");
        assert_eq!(std::fs::read(path).expect("the input"), *failed.borrow());
        std::fs::remove_file(path).expect("removed");
    }
}
