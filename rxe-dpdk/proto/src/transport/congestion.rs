//! Congestion: what switches say by marking packets, and what the two ends tell each other about it.
//!
//! A packet that a switch marked (ECN: congestion experienced) is answered by a congestion notification packet (CNP) to
//! its sender. See "Congestion management" of the RoCEv2 annex of the standard. Notifications received are counted per
//! queue pair. Nothing slows down for them: a rate limit would belong here, asked by the requester before each packet
//! and by the responder before each READ response.

use crate::time::{Duration, Instant};
use crate::wire::{BthFields, BthOpcode, DEFAULT_PKEY, Psn, TxQueue};

use super::context::Context;
use super::link::Link;

/// What a queue pair knows of congestion on its path.
#[derive(Debug, Default)]
pub(super) struct Congestion {
    /// A notification is owed.
    owed: bool,
    /// No notification before this.
    quiet_until: Option<Instant>,
    received: u64,
    sent: u64,
}

impl Congestion {
    /// A marked packet came. Whether a notification is owed.
    pub(super) fn marked(&mut self, now: Instant, interval: Duration) -> bool {
        // [ECN-CNP]
        if self.quiet_until.is_none_or(|until| until <= now) {
            self.quiet_until = Some(now + interval);
            self.owed = true;
        }
        self.owed
    }

    /// A notification came.
    pub(super) fn notified(&mut self) {
        // [ECN-CNP-NOT-OBEYED]
        self.received += 1;
    }

    /// Notifications received and sent.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.received, self.sent)
    }

    /// Whether a notification is owed.
    #[inline]
    pub(super) fn cnp_due(&self) -> bool {
        self.owed
    }

    /// Writes the notification if one is owed. `None` when `tx` has no room, else whether one was written.
    #[inline]
    pub(super) fn notify(&mut self, link: &Link, cx: &mut Context, tx: &mut impl TxQueue) -> Option<bool> {
        if !self.owed {
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
        let mut packet = cx.emitter.begin(tx, &link.template, fields, 0)?;
        packet.congestion(false, true);
        packet.finish();
        self.owed = false;
        self.sent += 1;
        cx.stats.cnps_sent.inc();
        Some(true)
    }
}
