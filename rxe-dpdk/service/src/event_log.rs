//! A rate limit for log lines that peers can cause: however many peers connect and disconnect, the log stays readable.

use std::borrow::Cow;

use rxe_proto::{Duration, Instant};

/// The interval over which lines are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// Most lines per window.
const LIMIT: u32 = 20;

/// Admits 20 lines per second. When lines are admitted again, logs how many were withheld.
#[derive(Debug)]
pub struct EventLog {
    subject: Cow<'static, str>,
    since: Option<Instant>,
    lines: u32,
    withheld: u64,
}

impl EventLog {
    /// A limit for lines about `subject`, a plural: "events of connections".
    pub fn new(subject: impl Into<Cow<'static, str>>) -> EventLog {
        EventLog { subject: subject.into(), since: None, lines: 0, withheld: 0 }
    }

    /// Whether a line may be written now. The caller writes one line per `true`; a `false` counts as one withheld line.
    pub fn admits(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_since(since) >= WINDOW) {
            self.since = Some(now);
            self.lines = 0;
            let withheld = std::mem::take(&mut self.withheld);
            if withheld > 0 {
                // A warning, because withheld lines may have been warnings.
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
    fn lines_beyond_the_limit_are_withheld_and_counted() {
        let mut log = EventLog::new("events of a test");
        let start = Instant::from_nanos(5);
        assert_eq!((0..100).filter(|_| log.admits(start)).count(), LIMIT as usize);
        assert_eq!(log.withheld, 100 - u64::from(LIMIT));
        assert!(!log.admits(start + WINDOW / 2));
        assert!(log.admits(start + WINDOW));
        assert_eq!(log.withheld, 0);
    }
}
