//! What happens to peers, for the log: one line each that a person understands, and not more of them than a log can
//! take, however many peers come and go.

use std::borrow::Cow;

use rxe_proto::{Duration, Instant};

/// Over how long lines are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// How many lines one window takes.
const LIMIT: u32 = 20;

/// Lets 20 lines a second through, and says how many it did not, when the next one may be written.
#[derive(Debug)]
pub struct EventLog {
    /// What the lines are about.
    subject: Cow<'static, str>,
    since: Option<Instant>,
    lines: u32,
    withheld: u64,
}

impl EventLog {
    /// Of lines about `subject`, in the plural: "events of connections".
    pub fn new(subject: impl Into<Cow<'static, str>>) -> EventLog {
        EventLog { subject: subject.into(), since: None, lines: 0, withheld: 0 }
    }

    /// Whether a line may be written now. Who asks writes one, or counts that it did not.
    pub fn admits(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_since(since) >= WINDOW) {
            self.since = Some(now);
            self.lines = 0;
            let withheld = std::mem::take(&mut self.withheld);
            if withheld > 0 {
                // A warning, as what was withheld may have been one.
                tracing::warn!("{withheld} more {} came too fast to be logged", self.subject);
            }
        }
        self.lines = self.lines.saturating_add(1);
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
        let mut log = EventLog::new("events of a test");
        let start = Instant::from_nanos(5);
        assert_eq!((0..100).filter(|_| log.admits(start)).count(), LIMIT as usize);
        assert_eq!(log.withheld, 100 - u64::from(LIMIT));
        assert!(!log.admits(start + WINDOW / 2));
        assert!(log.admits(start + WINDOW));
        assert_eq!(log.withheld, 0);
    }
}
