//! The header in front of a frame in a recorder's ring.

use rxe_proto::Instant;
use rxe_proto::transport::TransportStats;
use rxe_proto::wire::{DropReason, PortId};

use crate::worker::injector::Direction;
use Direction::{Rx, Tx};

/// Bytes of a header.
pub const HEADER_LEN: usize = 32;

/// In place of a reason: the frame was not dropped.
const NOT_DROPPED: u8 = u8::MAX;

const _: () = assert!(DropReason::COUNT <= NOT_DROPPED as usize);

/// Transport counters that are noted when a received frame changed them.
macro_rules! notes {
    ($($name:ident)*) => {
        const NOTES: &[&str] = &[$(stringify!($name)),*];

        /// The present values of these counters.
        pub fn note_counts(stats: &TransportStats) -> NoteCounts {
            [$(stats.$name.get()),*]
        }
    };
}

notes! {
    duplicate_request out_of_seq_request rcvd_rnr_err rcvd_seq_err retry_rnr_exceeded_err completer_retry_err link_downed
    read_replays atomic_replays flush_replays replays_abandoned implied_naks read_gaps ghost_responses bare_acks
    fatal_naks_rcvd receive_queue_empty ecn_marked cnps_rcvd uc_messages_lost
}

/// One value for each note.
pub type NoteCounts = [u64; NOTES.len()];

const _: () = assert!(NOTES.len() <= u32::BITS as usize);

/// A frame's outcome: the counters that it changed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Outcome {
    /// The reason, if it was dropped.
    pub dropped: Option<DropReason>,
    /// One bit for each of `NOTES`.
    pub notes: u32,
}

impl Outcome {
    /// Dropped, and no counter of the transport changed.
    pub fn dropped(reason: DropReason) -> Outcome {
        Outcome { dropped: Some(reason), notes: 0 }
    }
}

/// A frame's header in the ring.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// When it was received, or offered to the port.
    pub at: Instant,
    /// Bytes of the frame on the wire.
    pub len: u32,
    /// Bytes of the frame that follow this header.
    pub kept: u32,
    /// Port of the frame.
    pub port: PortId,
    /// Whether the frame was received or sent.
    pub direction: Direction,
    /// The counters that it changed.
    pub outcome: Outcome,
    /// Frames directly before this one that the ring had no room for.
    pub lost: u32,
}

impl Header {
    /// The header in the ring's format.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&self.at.as_nanos().to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.kept.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.port.0.to_le_bytes());
        bytes[18] = u8::from(matches!(self.direction, Tx));
        bytes[19] = self.outcome.dropped.map_or(NOT_DROPPED, |reason| reason as u8);
        bytes[20..24].copy_from_slice(&self.outcome.notes.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.lost.to_le_bytes());
        bytes
    }

    /// Reads a header from the ring.
    pub fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Header {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Header {
            at: Instant::from_nanos(u64::from(word(4)) << 32 | u64::from(word(0))),
            len: word(8),
            kept: word(12),
            port: PortId(u16::from_le_bytes([bytes[16], bytes[17]])),
            direction: if bytes[18] == 1 { Tx } else { Rx },
            outcome: Outcome { dropped: DropReason::ALL.get(usize::from(bytes[19])).copied(), notes: word(20) },
            lost: word(24),
        }
    }

    /// Replaces `text` by a description of the outcome; it is empty for most frames.
    pub fn comment(&self, text: &mut String) {
        text.clear();
        let mut append = |what: &str, name: &str, meaning: &str| {
            if !text.is_empty() {
                text.push_str("; ");
            }
            text.push_str(&format!("{what}: {name} ({})", meaning.trim_end_matches('.')));
        };
        if let Some(reason) = self.outcome.dropped {
            append("dropped", reason.name(), reason.describe());
        }
        for (_, name) in NOTES.iter().enumerate().filter(|(bit, _)| self.outcome.notes >> bit & 1 == 1) {
            let meaning = TransportStats::DESCRIPTIONS.iter().find(|(of, _)| of == name).map_or("", |(_, text)| text);
            append("note", name, meaning);
        }
        if self.lost > 0 {
            let meaning = "the file could not be written fast enough";
            append("not captured", &format!("{} before this one", self.lost), meaning);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_ring() {
        let header = Header {
            at: Instant::from_nanos(0x0102_0304_0506_0708),
            len: 1500,
            kept: 64,
            port: PortId(0x1234),
            direction: Tx,
            outcome: Outcome { dropped: Some(DropReason::Injected), notes: 1 << 19 },
            lost: 9,
        };
        for header in [header, Header { direction: Rx, outcome: Outcome::default(), lost: 0, ..header }] {
            assert_eq!(format!("{:?}", Header::from_bytes(&header.to_bytes())), format!("{header:?}"));
        }
    }

    #[test]
    fn comments_describe_the_outcome() {
        let mut header = Header {
            at: Instant::ZERO,
            len: 64,
            kept: 64,
            port: PortId(0),
            direction: Rx,
            outcome: Outcome::default(),
            lost: 0,
        };
        let mut text = "old".to_owned();
        header.comment(&mut text);
        assert_eq!(text, "");
        header.outcome = Outcome { dropped: Some(DropReason::PsnOutOfSequence), notes: 0b11 };
        header.lost = 3;
        header.comment(&mut text);
        assert_eq!(
            text,
            "dropped: psn_out_of_sequence (Beyond the expected PSN: something before it was lost); note: \
             duplicate_request (Requests received again); note: out_of_seq_request (Requests beyond the expected PSN: \
             one per gap, as answered by a sequence NAK); not captured: 3 before this one (the file could not be written \
             fast enough)"
        );
    }

    #[test]
    fn every_note_is_a_counter_with_a_meaning() {
        for name in NOTES {
            assert!(TransportStats::DESCRIPTIONS.iter().any(|(of, text)| of == name && !text.is_empty()), "{name}");
        }
    }
}
