//! The engine: all queue pairs of one lcore, driven from outside.

mod destroyed;
mod keep_alive;
mod objects;
mod post;
mod prefetch;
mod refuse;

pub use refuse::RequestRefusal;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::mem::{KeyDomain, KeyTable};
use crate::time::Instant;
use crate::wire::{DropCounters, DropReason, PortId, RocePacket, Transport, TxQueue};

use super::ah::AhTable;
use super::context::{Context, Emitter, TxOutcome};
use super::cq::CqTable;
use super::multicast::MulticastTable;
use super::qp::Qp;
use super::srq::SrqTable;
use super::table::QpTable;
use super::timer::TimerHeap;
use super::tx_scheduler::TxScheduler;
use super::{AsyncEvent, EngineConfig, QpState, Qpn, TransportStats};
use destroyed::DestroyedQps;

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
/// Input and commands write no packets; they note what is owed, and `transmit` writes it. So all packets of a received
/// burst are answered together: call `transmit` after each burst and after posting. `now` must not go back.
///
/// Packets, completions and timers of a queue pair are handled here only: an engine has one owner. Others may read its
/// counters.
#[derive(Debug)]
pub struct Engine {
    qps: QpTable,
    /// Queue pairs that are destroyed and still owe something.
    destroyed: DestroyedQps,
    groups: MulticastTable,
    cx: Context,
}

impl Engine {
    /// An engine without queue pairs.
    pub fn new(config: EngineConfig) -> Engine {
        let config = config.bounded();
        let stats = Arc::<TransportStats>::default();
        let mut timers = TimerHeap::default();
        let qps = QpTable::new(config.worker, config.max_qp, config.seed);
        timers.grow(qps.slots(), 0);
        Engine {
            qps,
            destroyed: DestroyedQps::default(),
            groups: MulticastTable::default(),
            cx: Context {
                keys: KeyTable::new(config.seed, KeyDomain::Local),
                cqs: CqTable::new(config.max_cq, config.max_cqe),
                srqs: SrqTable::new(config.max_srq),
                ahs: AhTable::new(config.max_ah),
                timers,
                events: VecDeque::new(),
                error_packets: VecDeque::new(),
                scheduler: TxScheduler::default(),
                emitter: Emitter::new(Arc::clone(&stats)),
                stats,
                drops: Arc::default(),
                config,
            },
        }
    }

    /// The settings, as brought into range.
    pub fn config(&self) -> &EngineConfig {
        &self.cx.config
    }

    /// What the engine counts; to be read from anywhere.
    pub fn stats(&self) -> &Arc<TransportStats> {
        &self.cx.stats
    }

    /// Packets dropped, by reason; to be read from anywhere.
    pub fn drops(&self) -> &Arc<DropCounters> {
        &self.cx.drops
    }

    /// Takes in one packet that came by `port` and whose destination queue pair, or multicast group, is this engine's to
    /// serve. Its ICRC is verified here. What cannot be used is counted in [`drops`](Engine::drops).
    ///
    /// The caller has made sure that the packet was sent to one of its addresses; that a connection's packets come from
    /// its peer is checked here.
    #[inline]
    pub fn receive(&mut self, now: Instant, port: PortId, packet: &RocePacket<'_>) {
        if let Err(reason) = self.admit(now, port, packet) {
            self.cx.drop(reason);
        }
    }

    #[inline]
    fn admit(&mut self, now: Instant, port: PortId, packet: &RocePacket<'_>) -> Result<(), DropReason> {
        let cx = &mut self.cx;
        let qpn = Qpn::new(packet.dest_qp());
        if qpn == Qpn::MULTICAST {
            return self.admit_multicast(port, packet);
        }
        let qp = addressed(&mut self.qps, qpn, port, packet)?;
        let transport = packet.transport();
        let response = packet.info().response;
        cx.stats.rcvd_pkts.inc();
        cx.stats.rcvd_bytes.add(packet.frame().len() as u64);
        if packet.is_congestion_marked() {
            qp.congestion_experienced(cx, now);
        }
        match transport {
            Transport::Cnp => {
                cx.stats.cnps_rcvd.inc();
                qp.congestion.notified();
            }
            Transport::Rc if response => qp.handle_response(cx, now, packet),
            Transport::Rc => qp.handle_request(cx, packet),
            Transport::Uc => qp.handle_unreliable(cx, packet),
            Transport::Ud => return qp.handle_datagram(cx, packet),
        }
        Ok(())
    }

    /// A datagram to a group: every queue pair that is attached gets a copy.
    #[cold]
    fn admit_multicast(&mut self, port: PortId, packet: &RocePacket<'_>) -> Result<(), DropReason> {
        if packet.transport() != Transport::Ud {
            return Err(DropReason::QpWrongTransport);
        }
        let members = self.groups.members(port, packet.dst_gid());
        if members.is_empty() {
            return Err(DropReason::QpnUnknown);
        }
        check_integrity(packet)?;
        let cx = &mut self.cx;
        cx.stats.rcvd_pkts.inc();
        cx.stats.rcvd_bytes.add(packet.frame().len() as u64);
        cx.stats.multicast_rcvd.inc();
        // [UD-MULTICAST]
        for &qpn in members {
            if let Some(qp) = self.qps.get_mut(qpn)
                && qp.state.receives()
                && let Err(reason) = qp.handle_datagram(cx, packet)
            {
                cx.drop(reason);
            }
        }
        Ok(())
    }

    /// Writes what is owed: replies, READ responses and requests, a quantum for each queue pair in turn, until nothing
    /// is left, `tx` takes no more, or the [quantum of a call](EngineConfig::transmit_quantum) is written; all that for each
    /// port. Destroyed queue pairs that owe something have a turn before the others. Returns how many packets were written;
    /// [`wants_transmit`](Engine::wants_transmit) says whether there is more.
    pub fn transmit(&mut self, now: Instant, tx: &mut impl TxQueue) -> usize {
        let mut written = if self.destroyed.is_empty() { 0 } else { self.transmit_destroyed(now, tx) };
        for port in 0..self.cx.scheduler.ports() {
            written += self.transmit_by(port, now, tx);
        }
        written
    }

    fn transmit_by(&mut self, port: usize, now: Instant, tx: &mut impl TxQueue) -> usize {
        let quantum = self.cx.config.transmit_quantum as usize;
        let mut written = 0;
        while written < quantum
            && let Some(slot) = self.cx.scheduler.dequeue(port)
        {
            let Some(qp) = self.qps.in_slot(slot) else { continue };
            let (frames, outcome) = qp.transmit(&mut self.cx, now, tx);
            written += frames;
            match outcome {
                TxOutcome::Done => qp.set_inactive(),
                TxOutcome::Quantum => self.cx.scheduler.requeue(port, slot),
                TxOutcome::Backpressure => {
                    self.cx.stats.transmit_stalls.inc();
                    self.cx.scheduler.requeue_front(port, slot);
                    break;
                }
            }
        }
        written
    }

    /// Whether [`transmit`](Engine::transmit) has something to write.
    pub fn wants_transmit(&self) -> bool {
        !self.cx.scheduler.is_empty() || !self.destroyed.is_empty()
    }

    /// When to call [`handle_timeout`](Engine::handle_timeout) at the latest. May be early, never late.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.cx.timers.peek().map(|(at, _)| at)
    }

    /// Acts upon every deadline up to `now`. Call `transmit` afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
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

    /// Takes the oldest event.
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.cx.events.pop_front()
    }
}

/// The queue pair that `packet` is for, if that may take it.
#[inline(always)]
fn addressed<'q>(
    qps: &'q mut QpTable,
    qpn: Qpn,
    port: PortId,
    packet: &RocePacket<'_>,
) -> Result<&'q mut Qp, DropReason> {
    let qp = qps.get_mut(qpn).ok_or(DropReason::QpnUnknown)?;
    if let Some(detection) = qp.detection {
        check_integrity(packet)?;
        qp.detect_from(port, packet, detection)?;
    }
    let transport = packet.transport();
    // [PKT-QP-TYPE]
    if transport != qp.common.qp_type.transport() && transport != Transport::Cnp {
        return Err(DropReason::QpWrongTransport);
    }
    // [QP-STATE-SERVE]
    let open = if packet.info().response { qp.state.sends() } else { qp.state.receives() };
    if !open {
        let in_error = qp.state == QpState::Error;
        return Err(if in_error { DropReason::QpInError } else { DropReason::QpWrongState });
    }
    let from_peer = match &qp.link {
        Some(link) => link.leads_here(port, packet),
        // [UD-RSP-ANYBODY]
        // A datagram may come from anywhere.
        None => qp.common.port == Some(port),
    };
    if !from_peer {
        return Err(DropReason::QpWrongAddress);
    }
    check_integrity(packet)?;
    Ok(qp)
}

/// Partition and ICRC. The top bit of a P_Key tells full members from limited ones; either may talk to a full member.
#[inline(always)]
fn check_integrity(packet: &RocePacket<'_>) -> Result<(), DropReason> {
    // [PKT-PKEY]
    if packet.bth().pkey() & 0x7FFF != 0x7FFF {
        Err(DropReason::PkeyMismatch)
    } else if !packet.icrc_ok() {
        // [PKT-ICRC-CHECK]
        Err(DropReason::IcrcMismatch)
    } else {
        Ok(())
    }
}
