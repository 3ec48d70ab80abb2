//! Congestion: packets marked by switches, the notifications that answer them, and the rate that they leave.
//!
//! A packet that a switch marked (ECN: congestion experienced) is answered by a congestion notification packet (CNP) to its
//! sender. See "Congestion management" of the RoCEv2 annex of the standard. A queue pair that gets one lowers its rate
//! ([`reaction`]), or its window follows the measured round trip ([`DelayWindow`](super::delay_window::DelayWindow)), as
//! [`CongestionControl`] says. A rate limits all that may be long, requests and READ responses: [`pacer`]. Acknowledgements and
//! notifications are never held back.

mod pacer;
mod reaction;

use pacer::Pacer;
use reaction::ReactionPoint;

use crate::time::{Duration, Instant};
use crate::wire::{BthFields, BthOpcode, DEFAULT_PKEY, Psn, TxQueue};

use super::congestion_control::{CongestionControl, Dcqcn};
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
    /// Since the first notification, while it limits the rate. In a box, as most queue pairs never get one.
    reaction: Option<Box<ReactionPoint>>,
    pacer: Pacer,
    /// Bytes that the engine had sent when [`room`](Self::room) was called.
    sent_before: u64,
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
    pub(super) fn notified(&mut self, control: &CongestionControl, now: Instant) {
        self.received += 1;
        // compliance.md [ECN-CNP-RATE]: A congestion notification lowers the rate of its queue pair.
        if let CongestionControl::Notifications(settings) = control {
            let reaction = self.reaction.get_or_insert_with(|| Box::new(ReactionPoint::new(settings, now)));
            reaction.notified(settings, now);
            self.follow(settings);
        }
    }

    /// The pacer follows the reaction point, which ends when its rate is no limit.
    fn follow(&mut self, settings: &Dcqcn) {
        let rate = self.reaction.as_ref().and_then(|reaction| reaction.rate(settings));
        self.pacer.set_rate(rate.map(|bits| bits / 8));
        if rate.is_none() {
            self.reaction = None;
        }
    }

    /// Sets the rate, in bytes per second, or none: that of a window below one packet.
    pub(super) fn set_rate(&mut self, rate: Option<u64>) {
        self.pacer.set_rate(rate);
    }

    /// The rate in bits per second, if it is limited.
    pub(super) fn rate(&self) -> Option<u64> {
        self.pacer.rate().map(|bytes| bytes * 8)
    }

    /// Whether the rate is limited.
    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.pacer.rate().is_some()
    }

    /// Packets of `mtu` bytes that may be sent now; `None` is no limit. `sent_bytes` are those of the engine so far.
    pub(super) fn room(
        &mut self,
        control: &CongestionControl,
        now: Instant,
        mtu: u32,
        sent_bytes: u64,
    ) -> Option<usize> {
        self.sent_before = sent_bytes;
        if let (CongestionControl::Notifications(settings), Some(reaction)) = (control, &mut self.reaction) {
            reaction.advance(settings, now);
            self.follow(settings);
        }
        self.pacer.room(now, mtu)
    }

    /// Records what was sent of that, by the bytes of the engine.
    pub(super) fn sent(&mut self, control: &CongestionControl, now: Instant, sent_bytes: u64) {
        let bytes = sent_bytes.wrapping_sub(self.sent_before);
        if let (CongestionControl::Notifications(settings), Some(reaction)) = (control, &mut self.reaction) {
            reaction.sent(settings, now, bytes);
        }
        self.pacer.sent(now, bytes);
    }

    /// Something waits for the rate. Returns when it may be sent; `None` is now.
    pub(super) fn wait(&mut self, now: Instant) -> Option<Instant> {
        self.pacer.wait(now)
    }

    /// When what waits for the rate may be sent.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.pacer.deadline()
    }

    /// Ends a wait whose time has come. Returns whether there was one.
    pub(super) fn resume(&mut self, now: Instant) -> bool {
        self.pacer.resume(now)
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
