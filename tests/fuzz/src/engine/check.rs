//! The conditions that must hold after each packet, after each transmission and at the end.

use std::ops::Range;

use rxe_proto::Duration;
use rxe_proto::mem::Access;
use rxe_proto::transport::{AsyncEvent, QpInfo, QpState, QpType, Qpn, RequestRefusal, WcStatus, WorkCompletion};
use rxe_proto::wire::{Frame, NakCode, Opcode, PathMtu, RocePacket, Syndrome, Transport, classify};

use super::env::{Env, FIRST_PEER, PORT, path_from_peer};
use super::memory::{FOREIGN, SECRET};
use super::work::{RECV, received_shared};

/// Bytes of one value in a row that show that a response leaks memory: more than a peer's packets write by chance.
const LEAK: usize = 16;

impl Env {
    /// The engine receives a frame. Checks what it changes.
    pub fn receive(&mut self, frame: &[u8], refusal: Option<RequestRefusal>) {
        let Ok(Frame::Roce(packet)) = classify(frame) else { return };
        self.engine.prefetch(frame);
        let index = self.slots.iter().position(|slot| slot.qpn.get() == packet.dest_qp());
        let before = index.and_then(|index| self.engine.query_qp(self.slots[index].qpn));
        let allowed = self.allowed(&packet, index, before.as_ref());
        let refused = refusal.is_some_and(|how| self.engine.refuse_request(self.now, PORT, &packet, |_| Some(how)));
        if refused {
            self.bytes.check(&[], || format!("refused {packet}"));
        } else {
            self.engine.receive(self.now, PORT, &packet);
            self.bytes.check(&allowed, || format!("{packet} on {before:?}"));
        }
        if let (Some(index), Some(before)) = (index, before) {
            if packet.info().response && packet.opcode() != Opcode::Acknowledge {
                self.slots[index].work.responded();
            }
            self.received(&packet, index, &before);
        }
        self.settle();
    }

    /// The bytes that a packet may change.
    fn allowed(&self, packet: &RocePacket<'_>, index: Option<usize>, info: Option<&QpInfo>) -> Vec<Range<usize>> {
        if !packet.icrc_ok() || packet.bth().pkey() & 0x7FFF != 0x7FFF {
            return Vec::new();
        }
        if packet.dest_qp() == Qpn::MULTICAST.get() && packet.transport() == Transport::Ud {
            // A queue pair whose peer was detected may be a member, too.
            let is_datagram = |index: &usize| self.engine.qp_type(self.slots[*index].qpn) == Some(QpType::Ud);
            let all = (0..self.slots.len()).filter(is_datagram);
            return all.flat_map(|index| self.receives(index)).collect();
        }
        let (Some(index), Some(info)) = (index, info) else { return Vec::new() };
        let slot = &self.slots[index];
        let from_peer = packet.src_gid() == path_from_peer(self.setup, false).src;
        if !from_peer && info.qp_type != QpType::Ud && packet.transport() != Transport::Ud {
            return Vec::new();
        }
        if packet.info().response {
            let outstanding = slot.work.sends.iter().filter(|posted| posted.returns_data() && info.state.sends());
            return outstanding.flat_map(|posted| self.bytes.local(&posted.sges, info.pd)).collect();
        }
        let in_sequence = packet.transport() != Transport::Rc || packet.psn() == info.expected_psn;
        if !info.state.receives() || !in_sequence {
            return Vec::new();
        }
        let len = packet.payload().len();
        let remote = |rkey, va, len, need| {
            let granted = info.access.contains(need);
            let range = self.bytes.remote(rkey, info.pd, slot.qpn.get(), va, len, need);
            if granted { vec![range] } else { Vec::new() }
        };
        use Opcode::*;
        match (packet.opcode(), packet.reth(), packet.atomic_eth()) {
            (WriteFirst | WriteOnly | WriteOnlyImm, Some(reth), _) => {
                remote(reth.rkey(), reth.va(), len.min(reth.dma_len() as usize), Access::REMOTE_WRITE)
            }
            (WriteMiddle | WriteLast | WriteLastImm, ..) => {
                slot.write.map_or(Vec::new(), |(rkey, va)| remote(rkey, va, len, Access::REMOTE_WRITE))
            }
            (AtomicWrite, Some(reth), _) => remote(reth.rkey(), reth.va(), 8, Access::REMOTE_WRITE),
            (CompareSwap | FetchAdd, _, Some(eth)) => remote(eth.rkey(), eth.va(), 8, Access::REMOTE_ATOMIC),
            (ReadRequest | Flush | CongestionNotification, ..) => Vec::new(),
            _ => self.receives(index),
        }
    }

    /// The buffers of the receive that the next message takes: the oldest one, or any of the shared ones.
    fn receives(&self, index: usize) -> Vec<Range<usize>> {
        let slot = &self.slots[index];
        let pd = self.bytes.pd(slot.kind.pd);
        let own = slot.work.recvs.iter().take(if slot.kind.lossy { usize::MAX } else { 1 });
        let info = self.engine.query_qp(slot.qpn);
        let shared = self.shared.iter().filter(|_| info.as_ref().is_some_and(|info| info.srq.is_some()));
        own.chain(shared).flat_map(|posted| self.bytes.local(&posted.sges, pd)).collect()
    }

    /// Follows the WRITE in progress, and checks that an executed one wrote its payload.
    fn received(&mut self, packet: &RocePacket<'_>, index: usize, before: &QpInfo) {
        let after = self.engine.query_qp(before.qpn).expect("the queue pair");
        assert!(before.state == after.state || after.state == QpState::Error, "{packet}: {before:?}, {after:?}");
        let executed = after.expected_psn != before.expected_psn && !packet.info().response;
        if packet.transport() == Transport::Rc && executed {
            assert_eq!(packet.psn(), before.expected_psn, "{packet} was executed");
        }
        if !executed || after.state == QpState::Error {
            return;
        }
        use Opcode::*;
        let at = match packet.opcode() {
            WriteFirst | WriteOnly | WriteOnlyImm => packet.reth().map(|reth| (reth.rkey(), reth.va())),
            WriteMiddle | WriteLast | WriteLastImm => self.slots[index].write,
            _ => None,
        };
        let payload = packet.payload();
        if let (Some((rkey, va)), Transport::Rc) = (at, packet.transport()) {
            let need = Access::REMOTE_WRITE;
            let range = self.bytes.remote(rkey, before.pd, before.qpn.get(), va, payload.len(), need);
            assert_eq!(self.bytes.read(range), payload, "{packet} was executed");
        }
        let next = |(rkey, va): (u32, u64)| (rkey, va.wrapping_add(payload.len() as u64));
        self.slots[index].write = at.map(next).filter(|_| !packet.info().position.is_end());
    }

    /// Dequeues completions and events, and takes over the keys that are valid now.
    pub fn settle(&mut self) {
        self.bytes.check(&[], || "not a packet".to_owned());
        self.poll(0, usize::MAX);
        while let Some(event) = self.engine.poll_event() {
            if let AsyncEvent::QpError { qpn, .. } = event
                && let Some(index) = self.slots.iter().position(|slot| slot.qpn == qpn)
            {
                if let Some(text) = self.engine.take_error_packet(qpn) {
                    assert!(!text.contains("rkey") && !text.contains('\n'), "{text}");
                }
                // It may have been reset since.
                let state = self.state(index);
                assert!(!state.sends() || state == QpState::Rts, "{state} after {event:?}");
            }
        }
        while self.engine.poll_cq_event().is_some() {}
        self.bytes.refresh(self.engine.keys());
    }

    /// Polls one of the two completion queues.
    pub fn poll(&mut self, cq: usize, most: usize) {
        let mut completions = Vec::new();
        self.engine.poll_cq(self.cqs[cq], &mut completions, most);
        for wc in completions {
            self.completed(&wc);
        }
    }

    fn completed(&mut self, wc: &WorkCompletion) {
        // Of a queue pair that was reset or destroyed before the completion was polled: its work is forgotten.
        if let (Some(rkey), WcStatus::Success) = (wc.invalidated_rkey, wc.status) {
            self.bytes.check_invalidated(self.engine.keys(), rkey);
        }
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.qpn == wc.qpn) else {
            panic!("a completion of no queue pair: {wc:?}")
        };
        if wc.wr_id & RECV == 0 {
            let mtu = self.engine.query_qp(wc.qpn).and_then(|info| info.path_mtu).unwrap_or(PathMtu::Mtu256);
            slot.work.sent(wc, slot.kind.lossy, mtu.bytes());
        } else if slot.work.recvs.iter().any(|posted| posted.wr_id == wc.wr_id) {
            slot.work.received(wc, slot.kind.lossy);
        } else {
            received_shared(&mut self.shared, wc);
        }
    }

    /// A frame of ours is a valid packet to the peer of a queue pair, and brings nothing that the peer may not read.
    pub fn check_transmitted(&mut self, frame: &[u8]) {
        let packet = match classify(frame) {
            Ok(Frame::Roce(packet)) => packet,
            other => panic!("not a packet: {other:?}"),
        };
        assert!(packet.icrc_ok(), "{packet}");
        let peer = path_from_peer(self.setup, false);
        assert_eq!((packet.src_gid(), packet.dst_gid()), (peer.dst, peer.src), "{packet}");
        if packet.transport() == Transport::Ud {
            assert!(packet.payload().len() <= self.setup.mtu().bytes(), "{packet}");
            assert_eq!(packet.dest_qp(), 0x99, "{packet}");
            return;
        }
        assert!(packet.dest_qp() > FIRST_PEER, "{packet}");
        let slot = self.slots.iter().find(|slot| slot.peer == packet.dest_qp());
        // The path MTU of a queue pair whose peer was detected is the peer's. A destroyed one may have been such.
        let mtu = slot.and_then(|slot| self.engine.query_qp(slot.qpn)?.path_mtu).unwrap_or(PathMtu::Mtu4096);
        assert!(packet.payload().len() <= mtu.bytes(), "{packet}");
        if packet.info().response {
            self.check_response(&packet);
        }
    }

    fn check_response(&self, packet: &RocePacket<'_>) {
        let slot = self.slots.iter().find(|slot| slot.peer == packet.dest_qp());
        // A queue pair that was destroyed may have been in either protection domain.
        let second = slot.is_none_or(|slot| slot.kind.pd == 1);
        let leaks = |value: u8| packet.payload().windows(LEAK).any(|bytes| bytes.iter().all(|byte| *byte == value));
        assert!(!leaks(SECRET) && (second || !leaks(FOREIGN)), "{packet} brings {:?}", packet.payload());
        let original = packet.atomic_ack().map(u64::to_ne_bytes);
        assert!(original != Some([SECRET; 8]), "{packet}");
        let Some(info) = slot.and_then(|slot| self.engine.query_qp(slot.qpn)) else { return };
        let after_expected = packet.psn().diff(info.expected_psn);
        match packet.aeth().map(|aeth| aeth.syndrome()) {
            Some(Syndrome::Rnr { .. } | Syndrome::Nak(NakCode::PsnSequence)) => {
                assert_eq!(after_expected, 0, "{packet}")
            }
            Some(Syndrome::Nak(_)) => assert!(after_expected <= 0, "{packet} expects {}", info.expected_psn),
            _ => assert!(after_expected < 0, "{packet} expects {}", info.expected_psn),
        }
    }

    /// In error all work completes; after everything is destroyed nothing is left.
    pub fn end(mut self) {
        for index in 0..self.slots.len() {
            let before = self.engine.query_qp(self.slots[index].qpn).expect("a queue pair");
            self.modify(index, 5);
            self.settle();
            self.poll(1, usize::MAX);
            let slot = &self.slots[index];
            let done = slot.work.flushed(before.send_queued > 0);
            assert!(done || slot.kind.lossy, "{:?} in {}: {:?}", slot.kind, before.state, slot.work);
        }
        let queued = self.engine.srq_len(self.srq).expect("a shared receive queue") as usize;
        assert!((queued..=queued + self.taken).contains(&self.shared.len()), "{queued} of {}", self.shared.len());
        for index in 0..self.slots.len() {
            self.engine.destroy_qp(self.now, self.slots[index].qpn).expect("a queue pair");
        }
        self.engine.destroy_srq(self.srq).expect("no user");
        self.engine.destroy_ah(self.ah).expect("no user");
        assert_eq!((self.engine.qp_count(), self.engine.srq_count(), self.engine.ah_count()), (0, 0, 0));
        assert_eq!(self.engine.next_timeout(), None);
        // Replies of destroyed queue pairs are sent within half a second.
        self.advance(Duration::from_secs(1));
        while !self.transmit(None).is_empty() {}
        assert!(!self.engine.wants_transmit());
        for cq in self.cqs {
            self.engine.destroy_cq(cq).expect("no user");
        }
        self.bytes.close(self.engine.keys_mut());
    }
}
