//! When a queue pair may send.
//!
//! Four things hold a queue pair back that is ready to send: the window of packets that may be outstanding, the rate that
//! congestion control has left, the limit of long messages beside short ones, and its turn. [`SendPolicy`] decides on all of
//! them: it is asked before a turn how much may be written, is told afterwards what was, and is told what was answered. What the
//! peer and the program decide is not its business: credits, the wait after an RNR NAK, `max_rd_atomic` and fences belong to the
//! [requester](super::requester), which also knows what is outstanding.
//!
//! Whenever sending stops, the last packet written asks for an answer: a turn that the policy cuts short says so
//! ([`Grant::asks_last`], [`LongBudget`]), the last packet of a window and of a message always asks.

use std::num::NonZeroU32;

use crate::time::Instant;
use crate::wire::PortId;

use super::EngineConfig;
use super::congestion::{Pacer, ReactionPoint};
use super::congestion_control::{CongestionControl, Dcqcn};
use super::delay_window::DelayWindow;
use super::long_limit::{LongBudget, LongLimit, Mix, Outstanding};
use super::tx_scheduler::{Quanta, TxScheduler};

/// A turn of a queue pair on its port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) now: Instant,
    /// How messages are mixed on the port.
    pub(super) mix: Mix,
    pub(super) quanta: Quanta,
}

/// What may be written in a turn, of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) now: Instant,
    pub(super) packets: u32,
    /// The last of these packets asks for an answer: sending stops there.
    pub(super) asks_last: bool,
    /// Packets that may be outstanding.
    pub(super) window: u32,
    /// Packets after which an answer is asked for.
    pub(super) ack_every: u32,
    /// For long messages, where they are limited.
    pub(super) long: Option<LongBudget>,
    /// The send queue is being drained (SQD).
    pub(super) draining: bool,
}

/// What is left to send after a turn. The greater one of two is that of both.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Left {
    /// Nothing until something happens.
    Nothing,
    /// Something at a later time, for which the timer is armed.
    Later,
    /// Something, in another turn.
    More,
    /// Something that the port has refused.
    Refused,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct SendPolicy {
    /// The window of delay-based control, and its packets; without it as many as there can be.
    delay: Option<Box<DelayWindow>>,
    delay_packets: Option<NonZeroU32>,
    /// The rate that congestion control has left. In a box, as most queue pairs never get one.
    pace: Option<Box<Pace>>,
    notifications: u32,
    /// The queue pair's part of the sums of its port's limit, and that port.
    share: Outstanding,
    share_port: PortId,
    /// Long requests wait for the limit.
    is_held: bool,
    /// Retries of the requester that are known, modulo 2^32.
    retries: u32,
}

/// A rate of congestion control.
#[derive(Debug, Default)]
struct Pace {
    pacer: Pacer,
    /// Since the first notification, while its rate is a limit.
    reaction: Option<ReactionPoint>,
    /// What the engine had sent, in bytes, before what counts for the rate in this turn.
    sent_before: u64,
}

impl Pace {
    /// The pacer follows the reaction point, which ends when its rate is no limit.
    fn follow_reaction(&mut self, settings: &Dcqcn, now: Instant) {
        let rate = self.reaction.as_ref().and_then(|reaction| reaction.rate(settings));
        self.pacer.set_rate(now, rate.map(|bits| bits / 8));
        if rate.is_none() {
            self.reaction = None;
        }
    }
}

impl SendPolicy {
    /// For a reliable connection that starts.
    pub(super) fn start(&mut self, config: &EngineConfig) {
        if let CongestionControl::Delay(_) = config.congestion {
            self.set_window(DelayWindow::new());
        }
    }

    fn set_window(&mut self, window: DelayWindow) {
        self.delay_packets = NonZeroU32::new(window.packets());
        self.delay = Some(Box::new(window));
    }

    /// Packets that may be outstanding.
    #[inline]
    pub(super) fn window(&self, config: &EngineConfig) -> u32 {
        self.delay_packets.map_or(config.window, |packets| packets.get().min(config.window))
    }

    /// What may be written in a turn if the rate leaves `room` packets; `None` is all.
    #[inline]
    pub(super) fn grant(&self, config: &EngineConfig, turn: &Turn, room: Option<u32>, draining: bool) -> Grant {
        let quantum = turn.quanta.requests;
        let (packets, asks_last) = match room {
            Some(room) => (room.min(quantum), room <= quantum),
            None => (quantum, false),
        };
        let (window, ack_every) = match self.delay_packets {
            // At most half of the window, which may become half as long before the answer comes.
            Some(packets) => (self.window(config), config.ack_every.min(packets.get().div_ceil(2))),
            None => (config.window, config.ack_every),
        };
        Grant { now: turn.now, packets, asks_last, window, ack_every, long: None, draining }
    }
}

/// The rate.
impl SendPolicy {
    /// A congestion notification has come. `round_trip` is the mean of the requester, in nanoseconds, or 0.
    pub(super) fn notified(&mut self, control: &CongestionControl, now: Instant, round_trip: u64) {
        self.notifications = self.notifications.saturating_add(1);
        // compliance.md [ECN-CNP-RATE]: A congestion notification lowers the rate of its queue pair.
        if let CongestionControl::Notifications(settings) = control {
            let pace = self.pace.get_or_insert_default();
            let reaction = pace.reaction.get_or_insert_with(|| ReactionPoint::new(settings, now));
            reaction.notified(settings, now, round_trip);
            pace.follow_reaction(settings, now);
        }
    }

    /// Notifications that have come.
    pub(super) fn notifications(&self) -> u64 {
        self.notifications.into()
    }

    /// The rate in bits per second, if there is one.
    pub(super) fn rate(&self) -> Option<u64> {
        self.pace.as_ref()?.pacer.rate().map(|bytes| bytes * 8)
    }

    /// Whether there is a rate.
    #[inline]
    pub(super) fn is_paced(&self) -> bool {
        self.pace.as_ref().is_some_and(|pace| pace.pacer.rate().is_some())
    }

    /// Packets of `mtu` bytes that the rate leaves for a turn; `None` is all. `sent_bytes` are those of the engine so far, `round_trip`
    /// is the mean of the requester, in nanoseconds, or 0.
    pub(super) fn room(
        &mut self,
        control: &CongestionControl,
        now: Instant,
        mtu: u32,
        sent_bytes: u64,
        round_trip: u64,
    ) -> Option<u32> {
        let pace = self.pace.as_mut()?;
        pace.sent_before = sent_bytes;
        if let (CongestionControl::Notifications(settings), Some(reaction)) = (control, &mut pace.reaction) {
            reaction.advance(settings, now, round_trip);
            pace.follow_reaction(settings, now);
        }
        pace.pacer.room(now, mtu)
    }

    /// Whether the rate is that of responses to READs and atomics, too, and not of requests alone.
    pub(super) fn paces_responses(&self) -> bool {
        // What the peer's round trips tell is about requests.
        self.delay.is_none()
    }

    /// Replies were written in this turn, among them `control_bytes` of acknowledgements and notifications, which never wait and
    /// do not count. `sent_bytes` are those of the engine so far.
    pub(super) fn replied(&mut self, sent_bytes: u64, control_bytes: u64) {
        let paces_responses = self.paces_responses();
        if let Some(pace) = &mut self.pace {
            pace.sent_before = if paces_responses { pace.sent_before.wrapping_add(control_bytes) } else { sent_bytes };
        }
    }

    /// The turn is over. Returns when what is left may be sent, if it has to wait.
    pub(super) fn sent(
        &mut self,
        control: &CongestionControl,
        now: Instant,
        sent_bytes: u64,
        left: Left,
    ) -> Option<Instant> {
        let pace = self.pace.as_mut()?;
        let bytes = sent_bytes.wrapping_sub(pace.sent_before);
        if let (CongestionControl::Notifications(settings), Some(reaction)) = (control, &mut pace.reaction) {
            reaction.sent(settings, now, bytes);
        }
        pace.pacer.sent(now, bytes);
        if matches!(left, Left::Later | Left::More) { pace.pacer.wait(now) } else { None }
    }

    /// When what waits for the rate may be sent.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.pace.as_ref()?.pacer.deadline()
    }

    /// Ends a wait whose time has come. Returns whether there was one.
    pub(super) fn resume(&mut self, now: Instant) -> bool {
        self.pace.as_mut().is_some_and(|pace| pace.pacer.resume(now))
    }

    /// Whether it wants to know of answers although no long messages are limited.
    #[inline]
    pub(super) fn follows_answers(&self) -> bool {
        self.delay_packets.is_some() || !self.share.is_none()
    }

    /// The peer has answered, or its time is over: `sample` is a measured round trip in nanoseconds, `retries` how often the
    /// requester has gone back so far.
    pub(super) fn answered(
        &mut self,
        config: &EngineConfig,
        now: Instant,
        sample: Option<u64>,
        retries: u64,
        mtu: u32,
    ) {
        let lost = std::mem::replace(&mut self.retries, retries as u32) != retries as u32;
        let (Some(delay), CongestionControl::Delay(settings)) = (&mut self.delay, &config.congestion) else { return };
        if let Some(sample) = sample {
            delay.measured(settings, now, sample, config.window);
        }
        if lost {
            delay.lost(now);
        }
        self.delay_packets = NonZeroU32::new(delay.packets());
        let rate = delay.rate(mtu);
        if rate.is_some() || self.pace.is_some() {
            self.pace.get_or_insert_default().pacer.set_rate(now, rate);
        }
    }
}

/// The limit of long messages.
impl SendPolicy {
    /// What may be written of long messages, where `limit` is in force. `unasked`: packets are outstanding behind the last one
    /// that asks.
    pub(super) fn long_budget(&self, limit: &LongLimit, mtu: u32, unasked: bool) -> LongBudget {
        let budget = limit.budget(mtu);
        LongBudget { out: budget.out.max(unasked.into()), ..budget }
    }

    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.is_held
    }

    pub(super) fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Whether long messages were outstanding when the sums were settled last.
    pub(super) fn has_share(&self) -> bool {
        !self.share.is_none()
    }

    /// The port whose limit has the share.
    #[inline]
    pub(super) fn share_port(&self) -> PortId {
        self.share_port
    }

    /// `outstanding` is outstanding of long messages now, by this port.
    pub(super) fn settle(&mut self, scheduler: &mut TxScheduler, port: PortId, now: Instant, outstanding: Outstanding) {
        if port != self.share_port {
            scheduler.settle(self.share_port, now, self.share, Outstanding::default());
            (self.share, self.share_port) = (Outstanding::default(), port);
        }
        if outstanding != self.share {
            scheduler.settle(port, now, self.share, outstanding);
            self.share = outstanding;
        }
    }
}
