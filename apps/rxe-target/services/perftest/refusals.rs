//! Why clients are refused, and what to do: the texts of the log's lines.
//!
//! With `--reversed` a client takes the role of perftest's server: it waits for the target's messages, whose size and number
//! it does not say. It exchanges the same records as without.

use rxe_proto::Duration;
use rxe_proto::verbs::{QpError, QpErrorCause};

/// For a client with `--reversed`.
const INSTEAD: &str = "the target begins no test: without --reversed, ib_read_bw and the option -b of the others measure data \
                       from the target";

/// The queue pairs of the client's address are as many as may be.
pub fn too_many_queue_pairs(limit: usize) -> String {
    format!("its address has {limit} queue pairs of tests on this lcore: raise queue-pairs of [service.perftest]")
}

/// The device has no queue pair for the client.
pub fn no_queue_pair(error: QpError) -> String {
    match error {
        QpError::TooMany(_) => format!("{error} on this lcore: raise queue-pairs of [limits], or use more lcores"),
        QpError::Limit { .. } => format!("{error} on this lcore: use more lcores"),
        _ => error.to_string(),
    }
}

/// Why a queue pair of a test went to error, where a setting helps. `length` is that of the memory for messages.
pub fn beyond_memory(cause: QpErrorCause, length: usize) -> Option<String> {
    matches!(cause, QpErrorCause::RemoteKey | QpErrorCause::ReceiveTooSmall)
        .then(|| format!("it goes beyond the {length} bytes for messages: raise max-message of [service.perftest]"))
}

/// ib_write_lat answers no WRITE that the memory for messages allows.
pub fn write_lat_beyond_memory(length: usize) -> String {
    format!(
        "it answers no WRITE of up to {length} bytes, as ib_write_lat with longer messages, or with -c UC and a size that is \
         no power of two: raise max-message of [service.perftest], or set write-lat-size to its -s"
    )
}

/// The peer's adapter refuses the WRITEs that look for the size of ib_write_lat's messages. `first` is the first one's length.
pub fn unknown_write_lat_size(first: usize) -> String {
    format!(
        "its messages are longer than {first} bytes, and their length is no power of two: set write-lat-size of \
         [service.perftest] to its -s"
    )
}

/// The peer's adapter refuses the first WRITE, so the client is not ib_write_lat.
pub fn not_write_lat(silence: Duration) -> String {
    let silence = silence.as_millis();
    format!(
        "it was silent for {silence} ms, as ib_write_lat is, but takes no WRITE: if it is slow, raise write-lat-after of \
         [service.perftest]; with --reversed it waits for the target, but {INSTEAD}"
    )
}

/// A client whose test consists of SENDs, which has sent nothing for the time `silence`.
pub fn reversed_sends(silence: Duration) -> String {
    let silence = silence.as_millis();
    format!("it sends nothing for {silence} ms since its test began, as with --reversed, but {INSTEAD}")
}

/// A client that reports results, or ends, and has sent no packet to its queue pairs.
pub fn reversed() -> String {
    format!("its test ends before a packet came, as with --reversed, but {INSTEAD}")
}

/// ib_write_lat that has written once and waits for an answer.
pub fn reversed_write_lat() -> String {
    "it has written one message and waits, as ib_write_lat --reversed: use it without --reversed".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_setting() {
        assert_eq!(
            too_many_queue_pairs(1024),
            "its address has 1024 queue pairs of tests on this lcore: raise queue-pairs of [service.perftest]"
        );
        let depth = QpError::Limit { name: "completion queue depth", value: 1_048_800, limit: 1_048_576 };
        assert_eq!(
            no_queue_pair(depth),
            "completion queue depth is 1048800, the limit is 1048576 on this lcore: use more lcores"
        );
        assert_eq!(
            no_queue_pair(QpError::TooMany(16384)),
            "no more queue pairs: the limit is 16384 on this lcore: raise queue-pairs of [limits], or use more lcores"
        );
        for cause in [QpErrorCause::RemoteKey, QpErrorCause::ReceiveTooSmall] {
            let why = "it goes beyond the 8388608 bytes for messages: raise max-message of [service.perftest]";
            assert_eq!(beyond_memory(cause, 8 << 20).as_deref(), Some(why));
        }
        assert_eq!(beyond_memory(QpErrorCause::RetryExceeded, 8 << 20), None);
        assert_eq!(
            write_lat_beyond_memory(8 << 20),
            "it answers no WRITE of up to 8388608 bytes, as ib_write_lat with longer messages, or with -c UC and a size that \
             is no power of two: raise max-message of [service.perftest], or set write-lat-size to its -s"
        );
        assert_eq!(
            unknown_write_lat_size(4096),
            "its messages are longer than 4096 bytes, and their length is no power of two: set write-lat-size of \
             [service.perftest] to its -s"
        );
    }

    #[test]
    fn refusals_of_reversed_tests_name_what_to_use() {
        let instead = "the target begins no test: without --reversed, ib_read_bw and the option -b of the others measure \
                       data from the target";
        let five = Duration::from_secs(5);
        assert_eq!(
            not_write_lat(five),
            format!(
                "it was silent for 5000 ms, as ib_write_lat is, but takes no WRITE: if it is slow, raise write-lat-after of \
                 [service.perftest]; with --reversed it waits for the target, but {instead}"
            )
        );
        assert_eq!(
            reversed_sends(five),
            format!("it sends nothing for 5000 ms since its test began, as with --reversed, but {instead}")
        );
        assert_eq!(reversed(), format!("its test ends before a packet came, as with --reversed, but {instead}"));
        assert_eq!(
            reversed_write_lat(),
            "it has written one message and waits, as ib_write_lat --reversed: use it without --reversed"
        );
    }
}
