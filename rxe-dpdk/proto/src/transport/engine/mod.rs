//! The engine: all queue pairs of one lcore, driven by its caller.

mod catch_up;
mod destroyed;
mod keep_alive;
mod modify;
mod objects;
mod post;
mod prefetch;
mod receive;
mod refuse;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::mem::{KeyDomain, KeyLayout, KeyTable};
use crate::time::Instant;
use crate::wire::{DropCounters, PortId, TxQueue};

use super::ah::AhTable;
use super::context::Context;
use super::cq::CqTable;
use super::long_limit::LongLimit;
use super::multicast::MulticastTable;
use super::qp::Qp;
use super::send_policy::{Left, Turn};
use super::srq::SrqTable;
use super::table::QpTable;
use super::timer::TimerHeap;
use super::tx_scheduler::{Next, Quanta, TxScheduler};
use super::{AsyncEvent, EngineConfig, Latencies, TransportStats};
use catch_up::CatchUp;
use destroyed::DestroyedQps;
pub use post::RecvSource;

/// All queue pairs, completion queues and keys of one lcore. It does no IO and knows no clock.
///
/// Four kinds of methods:
///
/// * set-up: `create_*`, `modify_qp`, `destroy_*`, [`keys_mut`](Engine::keys_mut), and queries;
/// * input: [`receive`](Engine::receive) for every packet, [`handle_timeout`](Engine::handle_timeout) when
///   [`next_timeout`](Engine::next_timeout) has come;
/// * commands: [`post_send`](Engine::post_send), [`post_recv`](Engine::post_recv);
/// * output: [`transmit`](Engine::transmit), [`poll_cq`](Engine::poll_cq), [`poll_event`](Engine::poll_event).
///
/// Input and commands write no packets; they record pending replies and requests, and `transmit` writes them. So all
/// packets of a received burst are answered together: call `transmit` after each burst and after posting. `now` must
/// not go back.
///
/// An engine has one owner, which makes all calls. Other threads may read its counters.
#[derive(Debug)]
pub struct Engine {
    qps: QpTable,
    /// Destroyed queue pairs with pending replies.
    destroyed: DestroyedQps,
    groups: MulticastTable,
    catch_up: CatchUp,
    cx: Context,
}

impl Engine {
    /// An engine without queue pairs.
    pub fn new(config: EngineConfig) -> Engine {
        let config = config.bounded();
        let keys = match config.key_layout {
            KeyLayout::Random => KeyTable::new(config.seed, KeyDomain::Local),
            KeyLayout::ConsumerByte => KeyTable::with_consumer_byte(config.seed),
        };
        let stats = Arc::<TransportStats>::default();
        let mut timers = TimerHeap::default();
        let qps = QpTable::new(config.worker, config.max_qp, config.seed);
        timers.grow(qps.slots(), 0);
        Engine {
            qps,
            destroyed: DestroyedQps::default(),
            groups: MulticastTable::default(),
            catch_up: CatchUp::default(),
            cx: Context {
                keys: keys.with_room(config.max_mr as usize),
                cqs: CqTable::new(config.max_cq, config.max_cqe),
                srqs: SrqTable::new(config.max_srq),
                ahs: AhTable::new(config.max_ah),
                timers,
                events: VecDeque::new(),
                error_packets: VecDeque::new(),
                scheduler: TxScheduler::default(),
                now: Instant::ZERO,
                latencies: Arc::default(),
                bursts: 0,
                stats,
                drops: Arc::default(),
                config,
            },
        }
    }

    /// The settings, clamped to their valid ranges.
    pub fn config(&self) -> &EngineConfig {
        &self.cx.config
    }

    /// Changes [`EngineConfig::window`], for the next packets of all queue pairs, within its range, but to no less than
    /// twice [`EngineConfig::ack_every`]: of the packets in flight there is always one that requested an ACK. A queue pair whose
    /// window was full goes on when an ACK arrives.
    pub fn set_window(&mut self, window: u32) {
        self.cx.config.window = window.max(2 * self.cx.config.ack_every).min(EngineConfig::MAX_WINDOW);
    }

    /// Counters, readable from any thread.
    pub fn stats(&self) -> &Arc<TransportStats> {
        &self.cx.stats
    }

    /// Times of operations on queue pairs without [others](Self::set_latencies); readable from any thread.
    pub fn latencies(&self) -> &Arc<Latencies> {
        &self.cx.latencies
    }

    /// Packets dropped, by reason; readable from any thread.
    pub fn drops(&self) -> &Arc<DropCounters> {
        &self.cx.drops
    }

    /// Writes pending replies, READ responses and requests, for each port: one quantum per queue pair, round robin,
    /// until none is left, `tx` takes no more, or the [quantum of a call](EngineConfig::transmit_quantum) is used up.
    /// Replies of destroyed queue pairs come first. Returns the number of packets written;
    /// [`wants_transmit`](Engine::wants_transmit) tells whether there are more.
    pub fn transmit(&mut self, now: Instant, tx: &mut impl TxQueue) -> usize {
        self.cx.bursts += 1;
        self.cx.now = now;
        self.catch_up.turned(now, self.cx.stats.rcvd_pkts.get());
        let mut written = if self.destroyed.is_empty() { 0 } else { self.transmit_destroyed(now, tx) };
        for port in 0..self.cx.scheduler.ports() {
            written += self.transmit_by(port, now, tx);
        }
        written
    }

    fn transmit_by(&mut self, port: usize, now: Instant, tx: &mut impl TxQueue) -> usize {
        let quantum = self.cx.config.transmit_quantum as usize;
        let mix = self.cx.scheduler.mix(port, now);
        let mut interrupted = self.cx.scheduler.resume(port);
        let mut written = 0;
        while written < quantum {
            let (slot, quanta) = match interrupted.take() {
                Some(turn) => turn,
                None => match self.cx.scheduler.dequeue(port) {
                    // Its turn comes with its replies.
                    Some(Next::Held(slot)) if !self.qps.in_slot(slot).is_some_and(Qp::end_hold) => continue,
                    Some(Next::Scheduled(slot) | Next::Held(slot)) => (slot, Quanta::of(&self.cx.config)),
                    None => break,
                },
            };
            let Some(qp) = self.qps.in_slot(slot) else { continue };
            let mut turn = Turn { now, mix, quanta };
            let (frames, left) = qp.transmit(&mut self.cx, &mut turn, tx);
            written += frames;
            match left {
                Left::Nothing | Left::Later => qp.set_inactive(),
                Left::More => self.cx.scheduler.requeue(port, slot),
                Left::Refused => {
                    self.cx.stats.transmit_stalls.inc();
                    self.cx.scheduler.interrupt(port, slot, turn.quanta);
                    break;
                }
            }
        }
        written
    }

    /// Bytes of long messages of reliable connections that are outstanding on a port: those of SENDs and WRITEs, and those of
    /// responses to READs. What a timeout has declared lost is not.
    pub fn long_outstanding(&self, port: PortId) -> [u64; 2] {
        let outstanding = self.cx.scheduler.limit(port).map(LongLimit::outstanding).unwrap_or_default();
        [outstanding.out, outstanding.in_]
    }

    /// Whether [`transmit`](Engine::transmit) has something to write.
    pub fn wants_transmit(&self) -> bool {
        !self.cx.scheduler.is_empty() || !self.destroyed.is_empty()
    }

    /// The deadline for the next call of [`handle_timeout`](Engine::handle_timeout). May be early, never late.
    pub fn next_timeout(&self) -> Option<Instant> {
        let timer = self.cx.timers.peek().map(|(at, _)| at);
        match (timer, self.cx.scheduler.held_until()) {
            (Some(timer), Some(held)) => Some(timer.min(held)),
            (timer, held) => timer.or(held),
        }
    }

    /// Handles every deadline up to `now`. Call it after what has arrived was [received](Engine::receive), and `transmit`
    /// afterwards. When `now` has jumped since then, as the CPU was taken away, what is due waits for the next turns while these
    /// still receive packets: [`next_timeout`](Engine::next_timeout) remains due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.cx.now = now;
        let config = &self.cx.config;
        if config.early_retransmission
            && self.catch_up.postpones(now, self.cx.stats.rcvd_pkts.get(), config.min_timeout / 2)
        {
            return;
        }
        self.cx.scheduler.expire_limits(now);
        while let Some((at, slot)) = self.cx.timers.peek() {
            if at > now {
                break;
            }
            let qp = u16::try_from(slot).ok().and_then(|slot| self.qps.in_slot(slot));
            match qp.and_then(|qp| qp.deadline().map(|deadline| (qp, deadline))) {
                Some((_, deadline)) if deadline > now => self.cx.timers.set(slot, deadline),
                Some((qp, _)) => {
                    self.cx.timers.remove(slot);
                    qp.handle_timeout(&mut self.cx, now);
                    qp.arm_timer(&mut self.cx);
                }
                None => self.cx.timers.remove(slot),
            }
        }
    }

    /// Dequeues the oldest event.
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.cx.events.pop_front()
    }
}
