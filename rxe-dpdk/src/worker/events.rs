//! What happens to connections, for the log: one line each that a person understands, and not more of them than a log
//! can take, however many peers come and go.

use rxe_proto::{Duration, Instant};

/// Over how long lines are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// How many lines one window takes.
const LIMIT: u32 = 20;

/// Lets so many lines through, and says how many it did not.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    since: Option<Instant>,
    lines: u32,
    withheld: u64,
}

impl EventLog {
    /// Whether a line may be written now.
    pub(crate) fn admits(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_since(since) >= WINDOW) {
            self.since = Some(now);
            self.lines = 0;
            let withheld = std::mem::take(&mut self.withheld);
            if withheld > 0 {
                tracing::info!("{withheld} more events of connections came too fast to be logged");
            }
        }
        self.lines += 1;
        let admitted = self.lines <= LIMIT;
        self.withheld += u64::from(!admitted);
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let mut log = EventLog::default();
        let start = Instant::from_nanos(5);
        assert_eq!((0..100).filter(|_| log.admits(start)).count(), LIMIT as usize);
        assert_eq!(log.withheld, 100 - u64::from(LIMIT));
        assert!(!log.admits(start + WINDOW / 2));
        assert!(log.admits(start + WINDOW));
        assert_eq!(log.withheld, 0);
    }
}
