//! Congestion notification: packets marked by switches, and the notifications that answer them.
//!
//! A packet that a switch marked (ECN: congestion experienced) is answered by a congestion notification packet (CNP) to
//! its sender. See "Congestion management" of the RoCEv2 annex of the standard. Notifications received are counted per
//! queue pair; they do not reduce the rate. A rate limiter would belong here, called by the requester before each
//! packet and by the responder before each READ response.

use crate::time::{Duration, Instant};
use crate::wire::{BthFields, BthOpcode, DEFAULT_PKEY, Psn, TxQueue};

use super::context::{Context, begin_packet};
use super::link::Link;

/// Congestion state of a queue pair.
#[derive(Debug, Default)]
pub(super) struct Congestion {
    /// A notification is due.
    due: bool,
    /// No further notification before this time.
    quiet_until: Option<Instant>,
    received: u64,
    sent: u64,
}

impl Congestion {
    /// Records a marked packet. Returns whether a notification is due.
    pub(super) fn marked(&mut self, now: Instant, interval: Duration) -> bool {
        // compliance.md [ECN-CNP]: A marked packet of a connection, request or response, is answered by a congestion
        // notification, at most one per queue pair and interval.
        if self.quiet_until.is_none_or(|until| until <= now) {
            self.quiet_until = Some(now + interval);
            self.due = true;
        }
        self.due
    }

    /// Records a received notification.
    pub(super) fn notified(&mut self) {
        // compliance.md [ECN-CNP-NOT-OBEYED]: Congestion notifications are counted per queue pair.
        self.received += 1;
    }

    /// Notifications received and sent.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.received, self.sent)
    }

    /// Whether a notification is due.
    #[inline]
    pub(super) fn cnp_due(&self) -> bool {
        self.due
    }

    /// Writes the notification if one is due. `None` when `tx` has no room, else whether one was written.
    #[inline]
    pub(super) fn notify(&mut self, link: &Link, cx: &mut Context, tx: &mut impl TxQueue) -> Option<bool> {
        if !self.due {
            return Some(false);
        }
        let fields = BthFields {
            opcode: BthOpcode::CNP,
            dest_qp: link.dest_qpn.get(),
            psn: Psn::new(0),
            solicited: false,
            ack_req: false,
            pkey: DEFAULT_PKEY,
        };
        let mut packet = begin_packet(tx, &cx.stats, &link.template, fields, 0)?;
        packet.congestion(false, true);
        packet.finish();
        self.due = false;
        self.sent += 1;
        cx.stats.cnps_sent.inc();
        Some(true)
    }
}
