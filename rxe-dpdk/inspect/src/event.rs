//! Events of a running target.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// An event, with its time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// In UTC, as in the target's log: `2026-01-31T23:59:59.123456Z`.
    pub time: String,
    /// The kind of event, with its details.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Kinds of events, with their details.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum EventKind {
    /// Both sides have confirmed a connection of the connection manager.
    Connected {
        /// The queue pair and its peer.
        #[serde(flatten)]
        qp: EventQp,
    },
    /// A connection is over, or was not established.
    Disconnected {
        /// The queue pair and its peer.
        #[serde(flatten)]
        qp: EventQp,
        /// Why, in words.
        reason: String,
        /// Time since the connection was requested.
        after_ms: u64,
    },
    /// A queue pair went to the error state.
    QpError {
        /// The queue pair and its peer.
        #[serde(flatten)]
        qp: EventQp,
        /// Name of the cause.
        cause: String,
        /// The cause in words.
        text: String,
    },
    /// The link of a port came up or went down.
    Link {
        /// The port, from 0.
        port: u32,
        /// True for up, false for down.
        up: bool,
        /// Why it is down.
        reason: Option<String>,
    },
    /// A port has got an address.
    AddressAdded {
        /// The port, from 0.
        port: u32,
        /// The address with its prefix length.
        address: String,
    },
    /// A port has lost an address.
    AddressRemoved {
        /// The port, from 0.
        port: u32,
        /// The address with its prefix length.
        address: String,
    },
    /// Another station uses an address of ours. At most one event in ten seconds for each address.
    AddressConflict {
        /// The port, from 0.
        port: u32,
        /// The address.
        address: String,
        /// The station's Ethernet address.
        mac: String,
        /// Number of frames since the start in which other stations claimed the address.
        frames: u64,
    },
    /// A capture was started.
    CaptureStarted {
        /// Path of the file.
        file: PathBuf,
    },
    /// A capture has ended.
    CaptureStopped {
        /// Path of the file, or of the last one.
        file: PathBuf,
        /// Frames written.
        frames: u64,
        /// Why it ended.
        reason: String,
    },
    /// A fault rule was added.
    FaultAdded {
        /// Number of the rule.
        id: u32,
        /// The rule in words.
        rule: String,
    },
    /// A fault rule was removed.
    FaultRemoved {
        /// Number of the rule.
        id: u32,
        /// The rule in words.
        rule: String,
    },
    /// Events are missing here: the reader took them too slowly, or there were too many at once.
    Lost {
        /// Number of missing events.
        events: u64,
    },
}

/// A queue pair in an event.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EventQp {
    /// Queue pair number.
    pub lqpn: u32,
    /// Name of the service that has the queue pair.
    pub service: Option<String>,
    /// The peer's address, with its port if the peer requested the connection.
    pub peer: Option<String>,
    /// The peer's queue pair.
    pub rqpn: Option<u32>,
}

/// A time in UTC with microseconds.
#[must_use]
pub fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // The calendar repeats after 400 years, which begin on 1 March: leap days are at the end of a year then.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year + u64::from(month >= 10), if month < 10 { month + 3 } else { month - 9 });
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn events_have_the_documented_form() {
        let qp =
            EventQp { lqpn: 17, service: Some("rping".to_owned()), peer: Some("10.0.0.2:5".to_owned()), rqpn: None };
        let kind = EventKind::Disconnected { qp, reason: "the peer disconnected".to_owned(), after_ms: 3 };
        let event = Event { time: "2026-01-31T23:59:59.123456Z".to_owned(), kind };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(
            text,
            r#"{"time":"2026-01-31T23:59:59.123456Z","type":"disconnected","lqpn":17,"service":"rping","peer":"10.0.0.2:5","#
                .to_owned()
                + r#""rqpn":null,"reason":"the peer disconnected","after_ms":3}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }

    #[test]
    fn times_are_dates_in_utc() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::new(seconds, 123_456_789));
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (951_868_800, "2000-03-01T00:00:00"),
            (1_704_067_199, "2023-12-31T23:59:59"),
            (1_735_603_200, "2024-12-31T00:00:00"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            assert_eq!(at(seconds), format!("{expected}.123456Z"));
        }
    }
}
