//! Congestion: packets marked by switches, the notifications that answer them, and the rate that they leave.
//!
//! A packet that a switch marked (ECN: congestion experienced) is answered by a congestion notification packet (CNP) to its
//! sender ([`Notifier`]). See "Congestion management" of the RoCEv2 annex of the standard. A queue pair that gets one lowers its
//! rate ([`ReactionPoint`]), which its packets are spread to ([`Pacer`]); what that means for it is its
//! [`SendPolicy`](super::send_policy::SendPolicy).

mod pacer;
mod reaction;

pub(super) use pacer::Pacer;
pub(super) use reaction::ReactionPoint;

use crate::time::{Duration, Instant};
use crate::wire::{BthFields, BthOpcode, DEFAULT_PKEY, Psn, TxQueue};

use super::context::{Context, begin_packet};
use super::link::Link;

/// The congestion notifications that a queue pair owes its peer.
#[derive(Debug, Default)]
pub(super) struct Notifier {
    is_due: bool,
    /// No further notification before this time.
    quiet_until: Option<Instant>,
    sent: u64,
}

impl Notifier {
    /// Records a marked packet. Returns whether a notification is due.
    pub(super) fn marked(&mut self, now: Instant, interval: Duration) -> bool {
        // compliance.md [ECN-CNP]: A marked packet of a connection, request or response, is answered by a congestion
        // notification, at most one per queue pair and interval.
        if self.quiet_until.is_none_or(|until| until <= now) {
            self.quiet_until = Some(now + interval);
            self.is_due = true;
        }
        self.is_due
    }

    /// Notifications sent.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether a notification is due.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Writes the notification if one is due. `None` when `tx` has no room, else whether one was written.
    #[inline]
    pub(super) fn notify(&mut self, link: &Link, cx: &mut Context, tx: &mut impl TxQueue) -> Option<bool> {
        if !self.is_due {
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
        self.is_due = false;
        self.sent += 1;
        cx.stats.cnps_sent.inc();
        Some(true)
    }
}
