//! The engine: all queue pairs of one lcore, driven from outside.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::mem::{KeyDomain, KeyTable};
use crate::time::Instant;
use crate::wire::{DropCounters, DropReason, MacAddr, PortId, RocePacket, Transport, TxQueue};

use super::context::{Context, Emitter, Turn};
use super::cq::CqTable;
use super::qp::Qp;
use super::table::QpTable;
use super::timer::TimerHeap;
use super::{
    CqError, CqId, EngineConfig, PostError, QpError, QpEvent, QpInfo, QpInit, QpState, QpTransition, Qpn, RecvWr,
    SendWr, TransportStats, WorkCompletion,
};

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
    cx: Context,
}

impl Engine {
    /// An engine without queue pairs.
    pub fn new(config: EngineConfig) -> Engine {
        let config = config.bounded();
        let stats = Arc::<TransportStats>::default();
        let mut timers = TimerHeap::default();
        let qps = QpTable::new(config.worker, config.max_qp);
        timers.grow(qps.slots());
        Engine {
            qps,
            cx: Context {
                keys: KeyTable::new(config.seed, KeyDomain::Local),
                invalidatable: BTreeSet::new(),
                cqs: CqTable::new(config.max_cq, config.max_cqe),
                timers,
                events: VecDeque::new(),
                active: VecDeque::new(),
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

    /// The regions and protection domains of this engine's queue pairs.
    pub fn keys(&self) -> &KeyTable {
        &self.cx.keys
    }

    /// To register and deregister regions.
    pub fn keys_mut(&mut self) -> &mut KeyTable {
        &mut self.cx.keys
    }

    /// Allows a peer to invalidate the region behind `key` with a SEND, once; without this such a SEND is refused. The
    /// region is then no longer registered. False when there is no such region.
    pub fn allow_invalidate(&mut self, key: u32) -> bool {
        let known = self.cx.keys.region(key).is_some();
        if known {
            self.cx.invalidatable.insert(key);
        }
        known
    }

    /// What the engine counts; to be read from anywhere.
    pub fn stats(&self) -> &Arc<TransportStats> {
        &self.cx.stats
    }

    /// Packets dropped, by reason; to be read from anywhere.
    pub fn drops(&self) -> &Arc<DropCounters> {
        &self.cx.drops
    }

    /// Makes a completion queue of `depth` entries.
    ///
    /// A queue that overflows takes the queue pair that completes to it into error, so make it as deep as all work
    /// requests that may complete to it.
    ///
    /// # Errors
    /// [`CqError::TooMany`], [`CqError::Depth`].
    pub fn create_cq(&mut self, depth: usize) -> Result<CqId, CqError> {
        self.cx.cqs.create(depth)
    }

    /// Removes a completion queue, with the completions in it.
    ///
    /// # Errors
    /// [`CqError::InUse`] while queue pairs complete to it, [`CqError::Unknown`].
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), CqError> {
        self.cx.cqs.destroy(cq)
    }

    /// Changes the depth of a completion queue.
    ///
    /// # Errors
    /// [`CqError::Occupied`] when more completions wait than `depth`; [`CqError::Depth`], [`CqError::Unknown`].
    pub fn resize_cq(&mut self, cq: CqId, depth: usize) -> Result<(), CqError> {
        self.cx.cqs.resize(cq, depth)
    }

    /// Moves up to `max` completions, the oldest first, to the end of `out`. Returns how many.
    pub fn poll_cq(&mut self, cq: CqId, out: &mut Vec<WorkCompletion>, max: usize) -> usize {
        self.cx.cqs.poll(cq, out, max)
    }

    /// Takes the oldest completion.
    pub fn poll_cq_one(&mut self, cq: CqId) -> Option<WorkCompletion> {
        self.cx.cqs.poll_one(cq)
    }

    /// A completion queue that holds completions; another one with each call, if there are several.
    pub fn poll_ready(&mut self) -> Option<CqId> {
        self.cx.cqs.poll_ready()
    }

    /// Makes a queue pair in state RESET.
    ///
    /// # Errors
    /// [`QpError::TooMany`], [`QpError::Limit`], [`QpError::UnknownCq`], [`QpError::UnknownPd`].
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, QpError> {
        init.caps().check(&self.cx.config)?;
        let qpn = self.qps.vacancy().ok_or(QpError::TooMany(self.cx.config.max_qp))?;
        if !self.cx.cqs.attach(init.send_cq) {
            return Err(QpError::UnknownCq);
        }
        if !self.cx.cqs.attach(init.recv_cq) {
            self.cx.cqs.detach(init.send_cq);
            return Err(QpError::UnknownCq);
        }
        if !self.cx.keys.hold_pd(init.pd) {
            self.cx.cqs.detach(init.send_cq);
            self.cx.cqs.detach(init.recv_cq);
            return Err(QpError::UnknownPd);
        }
        self.qps.insert(Box::new(Qp::new(qpn, init)));
        // Whatever the data path keeps per queue pair gets its room here.
        self.cx.timers.grow(self.qps.slots());
        self.cx.active.reserve(self.qps.len().saturating_sub(self.cx.active.len()));
        Ok(qpn)
    }

    /// Removes a queue pair. Its outstanding work is forgotten; completions already made stay.
    ///
    /// # Errors
    /// [`QpError::Unknown`].
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), QpError> {
        let qp = self.qps.remove(qpn).ok_or(QpError::Unknown(qpn))?;
        self.cx.cqs.detach(qp.common.send_cq);
        self.cx.cqs.detach(qp.common.recv_cq);
        self.cx.keys.release_pd(qp.common.pd);
        self.cx.timers.remove(u32::from(qpn.slot()));
        self.cx.active.retain(|&slot| slot != qpn.slot());
        Ok(())
    }

    /// Changes the state of a queue pair.
    ///
    /// # Errors
    /// [`QpError::Transition`] when the state diagram has no such way, [`QpError::Limit`] for an attribute out of
    /// range, [`QpError::Unknown`]. The queue pair is unchanged then.
    pub fn modify_qp(&mut self, _now: Instant, qpn: Qpn, transition: QpTransition) -> Result<(), QpError> {
        self.qps.get_mut(qpn).ok_or(QpError::Unknown(qpn))?.modify(&mut self.cx, transition)
    }

    /// What there is to know about a queue pair.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpInfo> {
        self.qps.get(qpn).map(Qp::info)
    }

    /// Every queue pair, in no particular order.
    pub fn qps(&self) -> impl Iterator<Item = QpInfo> + '_ {
        self.qps.iter().map(Qp::info)
    }

    /// How many queue pairs there are.
    pub fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// Changes the next hop of a connection, as when a neighbour's Ethernet address has changed.
    ///
    /// # Errors
    /// [`QpError::Unknown`], [`QpError::NoPath`] before RTR.
    pub fn set_path(&mut self, qpn: Qpn, dst_mac: MacAddr) -> Result<(), QpError> {
        let qp = self.qps.get_mut(qpn).ok_or(QpError::Unknown(qpn))?;
        qp.link.as_mut().ok_or(QpError::NoPath)?.set_dst_mac(dst_mac);
        Ok(())
    }

    /// The connection manager knows that communication is established:
    /// [`QpEvent::CommunicationEstablished`] need not be raised any more.
    pub fn established(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.established = true;
        }
    }

    /// Posts a work request to the send queue. In the error state it completes at once, as flushed.
    ///
    /// # Errors
    /// See [`PostError`]; nothing is posted then. Bad local keys show up as a completion later.
    pub fn post_send(&mut self, _now: Instant, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.qps.get_mut(qpn).ok_or(PostError::Unknown(qpn))?.post_send(&mut self.cx, wr)
    }

    /// Posts a receive. In the error state it completes at once, as flushed.
    ///
    /// # Errors
    /// See [`PostError`]; nothing is posted then. Bad local keys show up as a completion later.
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.qps.get_mut(qpn).ok_or(PostError::Unknown(qpn))?.post_recv(&mut self.cx, wr)
    }

    /// Takes in one packet that came by `port` and whose destination queue pair is this engine's to serve. Its ICRC is
    /// verified here; `headroom` bytes in front of the frame are initialised (see
    /// [`icrc_ok`](RocePacket::icrc_ok)). What cannot be used is counted in [`drops`](Engine::drops).
    #[inline]
    pub fn receive(&mut self, now: Instant, port: PortId, packet: &RocePacket<'_>, headroom: usize) {
        if let Err(reason) = self.admit(now, port, packet, headroom) {
            self.cx.drop(reason);
        }
    }

    #[inline]
    fn admit(
        &mut self,
        now: Instant,
        port: PortId,
        packet: &RocePacket<'_>,
        headroom: usize,
    ) -> Result<(), DropReason> {
        let cx = &mut self.cx;
        let qp = self.qps.get_mut(Qpn::new(packet.dest_qp())).ok_or(DropReason::QpnUnknown)?;
        if packet.transport() != Transport::Rc {
            return Err(DropReason::QpWrongTransport);
        }
        let response = packet.info().response;
        let open = if response { qp.state.sends() } else { qp.state.receives() };
        if !open {
            let in_error = qp.state == QpState::Error;
            return Err(if in_error { DropReason::QpInError } else { DropReason::QpWrongState });
        }
        if !qp.link.as_ref().is_some_and(|link| link.leads_here(port, packet)) {
            return Err(DropReason::QpWrongAddress);
        }
        // The top bit of a P_Key tells full members from limited ones; either may talk to a full member.
        if packet.bth().pkey() & 0x7FFF != 0x7FFF {
            return Err(DropReason::PkeyMismatch);
        }
        if !packet.icrc_ok(headroom) {
            return Err(DropReason::IcrcMismatch);
        }
        cx.stats.rcvd_pkts.inc();
        cx.stats.rcvd_bytes.add(packet.frame().len() as u64);
        if response {
            qp.handle_response(cx, now, packet);
        } else {
            qp.handle_request(cx, packet);
        }
        Ok(())
    }

    /// Writes what is owed: replies, READ responses and requests, a quantum for each queue pair in turn, until nothing
    /// is left or `tx` takes no more. Returns how many packets were written.
    pub fn transmit(&mut self, now: Instant, tx: &mut impl TxQueue) -> usize {
        let mut written = 0;
        // Queue pairs refused in a row: another one may use another port, until all were refused.
        let mut refused = 0;
        while refused < self.cx.active.len() {
            let Some(slot) = self.cx.active.pop_front() else { break };
            let Some(qp) = self.qps.in_slot(slot) else { continue };
            let (frames, turn) = qp.transmit(&mut self.cx, now, tx);
            written += frames;
            match turn {
                Turn::Idle => {
                    qp.set_inactive();
                    refused = 0;
                }
                Turn::More => {
                    self.cx.active.push_back(slot);
                    refused = 0;
                }
                Turn::Refused => {
                    self.cx.stats.transmit_stalls.inc();
                    self.cx.active.push_back(slot);
                    refused += 1;
                }
            }
        }
        written
    }

    /// Whether [`transmit`](Engine::transmit) has something to write.
    pub fn wants_transmit(&self) -> bool {
        !self.cx.active.is_empty()
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
            match qp.and_then(|qp| qp.requester.deadline.map(|deadline| (qp, deadline))) {
                Some((_, deadline)) if deadline > now => self.cx.timers.set(slot, deadline),
                Some((qp, _)) => {
                    self.cx.timers.remove(slot);
                    qp.handle_timeout(&mut self.cx, now);
                    qp.watch(&mut self.cx);
                }
                None => self.cx.timers.remove(slot),
            }
        }
    }

    /// Takes the oldest event.
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.cx.events.pop_front()
    }
}
