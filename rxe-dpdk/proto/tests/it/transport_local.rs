//! Local operations in the send queue: binding memory windows, fast registration, local invalidation.

use crate::harness::rated::{LinkParams, RatedPair};
use crate::harness::scripted_peer::ScriptedPeer;
use crate::harness::{ALL_ACCESS, Agreed, Rng};
use rxe_proto::Duration;
use rxe_proto::mem::{Access, Memory, WindowBind, WindowKind};
use rxe_proto::transport::{
    AsyncEvent, EngineConfig, QpErrorCause, QpState, QpTransition, RemoteAddr, SendFlags, SendOp, WcOpcode, WcStatus,
};
use rxe_proto::wire::{NakCode, Opcode, PathMtu, Psn};

use crate::harness::ops::*;
use Opcode::*;
use WcStatus::{LocQpOpErr, MwBindErr, Success, WrFlushErr};

/// A type 2 window and a region of 4096 bytes at address 0x5000 that it can be bound to.
struct Window {
    key: u32,
    region_key: u32,
}

fn window(peer: &mut ScriptedPeer) -> Window {
    let pd = peer.node.pd;
    let keys = peer.node.engine.keys_mut();
    let access = ALL_ACCESS | Access::MW_BIND;
    let region_key = keys.register(pd, Memory::heap(4096), 0x5000, access).unwrap().lkey();
    Window { key: keys.alloc_window(pd, WindowKind::Type2).unwrap(), region_key }
}

impl Window {
    fn bind(&self) -> SendOp {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let bind = WindowBind { region_key: self.region_key, addr: 0x5100, len: 256, access };
        SendOp::BindWindow { key: self.key, key_byte: None, bind }
    }

    fn invalidate(&self) -> SendOp {
        SendOp::LocalInvalidate { key: self.key }
    }

    /// Whether the peer gets through.
    fn is_open(&self, peer: &ScriptedPeer) -> bool {
        let (pd, qpn) = (peer.node.pd, peer.node.qpn.get());
        peer.node.engine.keys().check_remote(self.key, pd, qpn, 0x5100, 256, Access::REMOTE_WRITE).is_ok()
    }
}

/// A fast-registration MR in state FREE with 64 bytes staged.
fn free_region(peer: &mut ScriptedPeer) -> u32 {
    let pd = peer.node.pd;
    let keys = peer.node.engine.keys_mut();
    let key = keys.alloc_fast_reg_mr(pd, 64).unwrap();
    keys.map_fast_reg_mr(key, Memory::heap(64)).unwrap();
    key
}

fn register(key: u32) -> SendOp {
    SendOp::FastRegister { key, addr: 0x9000, access: ALL_ACCESS }
}

fn is_valid(peer: &ScriptedPeer, key: u32) -> bool {
    peer.node.engine.keys().check_local(key, peer.node.pd, 0x9000, 64, Access::LOCAL_WRITE).is_ok()
}

fn post_local(peer: &mut ScriptedPeer, wr_id: u64, op: SendOp) {
    peer.node.post_send(wr_id, op, &[]);
}

// [REQ-LOCAL-ONCE] [REQ-LOCAL-INVALIDATE]
#[test]
fn they_take_no_psn_and_complete_in_the_order_of_the_queue() {
    let mut peer = ScriptedPeer::new();
    let window = window(&mut peer);
    let region = free_region(&mut peer);
    post_local(&mut peer, 1, register(region));
    post(&mut peer, 2, SEND, 1);
    post_local(&mut peer, 3, window.bind());
    post_local(&mut peer, 4, SendOp::LocalInvalidate { key: region });
    post(&mut peer, 5, SEND, 1);
    assert!(!is_valid(&peer, region), "nothing happens before the engine's turn");
    peer.expect(["SEND_ONLY 0 1 bytes ack_req"]);
    // The first is done and complete; the window is bound, but not completed before the SEND in front of it.
    let [wc] = peer.node.take_completions()[..] else { panic!() };
    assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (1, Success, WcOpcode::RegMr, 0));
    assert!(is_valid(&peer, region) && window.is_open(&peer));
    assert!(peer.node.stat("local_stalls") > 0, "an invalidation waits for everything before it");
    peer.ack(0);
    let wcs = peer.node.take_completions();
    assert_eq!(
        wcs.iter().map(|wc| (wc.wr_id, wc.opcode)).collect::<Vec<_>>(),
        [(2, WcOpcode::Send), (3, WcOpcode::BindMw)]
    );
    peer.expect(["SEND_ONLY 1 1 bytes ack_req"]);
    assert!(!is_valid(&peer, region));
    let [wc] = peer.node.take_completions()[..] else { panic!() };
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (4, Success, WcOpcode::LocalInv));
    peer.ack(1);
    assert_eq!(completed(&mut peer), [(5, Success)]);
    post_local(&mut peer, 6, window.invalidate());
    peer.expect([]);
    assert_eq!(completed(&mut peer), [(6, Success)]);
    assert!(!window.is_open(&peer));
    peer.advance(Duration::from_secs(60));
    assert_eq!((peer.node.engine.next_timeout(), peer.node.stat("timeouts")), (None, 0), "they have no timer");
}

#[test]
fn a_peer_reaches_a_window_from_its_bind_to_its_invalidation() {
    let mut peer = ScriptedPeer::new();
    let window = window(&mut peer);
    post_local(&mut peer, 1, window.bind());
    peer.expect([]);
    peer.rdma_raw(WriteOnly, 0, crate::harness::scripted_peer::AckReq::Ack, 0x5100, window.key, 4, &[7; 4]);
    peer.expect(["ACK 0 msn 1"]);
    post_local(&mut peer, 2, window.invalidate());
    peer.expect([]);
    assert_eq!(completed(&mut peer), [(1, Success), (2, Success)]);
    peer.rdma_raw(WriteOnly, 1, crate::harness::scripted_peer::AckReq::Ack, 0x5100, window.key, 4, &[7; 4]);
    peer.expect(["NAK 1 RemoteAccess msn 1"]);
}

// [REQ-LOCAL-ONCE]
#[test]
fn a_retry_does_not_carry_them_out_again() {
    let mut peer = ScriptedPeer::new();
    let regions: Vec<u32> = (0..4).map(|_| free_region(&mut peer)).collect();
    post(&mut peer, 1, SEND, 1);
    for (wr_id, region) in (2..).zip(&regions[..3]) {
        post_local(&mut peer, wr_id, register(*region));
    }
    post(&mut peer, 5, WRITE, 2000);
    post_local(&mut peer, 6, register(regions[3]));
    assert_eq!(peer.transmit().len(), 3);
    assert!(regions.iter().all(|&key| is_valid(&peer, key)));
    for packets in [3, 1, 1] {
        peer.advance(TIMEOUT);
        // A second registration of a valid region would fail.
        assert_eq!(peer.transmit().len(), packets);
    }
    peer.ack(1);
    peer.nak(2, NakCode::PsnSequence);
    peer.expect(["WRITE_LAST 2 976 bytes ack_req"]);
    assert_eq!(completed(&mut peer), [1, 2, 3, 4].map(|id| (id, Success)));
    peer.ack(2);
    assert_eq!(completed(&mut peer), [(5, Success), (6, Success)]);
}

#[test]
fn a_late_answer_overtakes_a_retry_over_them() {
    let mut peer = ScriptedPeer::new();
    let region = free_region(&mut peer);
    post(&mut peer, 1, READ, 1);
    post_local(&mut peer, 2, register(region));
    post(&mut peer, 3, SEND, 1);
    assert_eq!(peer.transmit().len(), 2);
    peer.advance(TIMEOUT);
    peer.read_response(ReadResponseOnly, 0, &[1]);
    assert_eq!(completed(&mut peer), [(1, Success), (2, Success)]);
    peer.expect(["SEND_ONLY 1 1 bytes ack_req"]);
    peer.advance(TIMEOUT);
    peer.ack(1);
    assert_eq!(completed(&mut peer), [(3, Success)]);
    peer.expect([]);
}

// [RC-REQ-FENCE]
#[test]
fn fences_hold_them_back_and_unsignalled_ones_stay_silent() {
    let mut peer = ScriptedPeer::new();
    let (one, two) = (free_region(&mut peer), free_region(&mut peer));
    post(&mut peer, 1, READ, 1);
    peer.node.post_flags(2, register(one), &[], SendFlags::empty());
    peer.node.post_flags(3, register(two), &[], SendFlags::SIGNALED | SendFlags::FENCE);
    assert_eq!(peer.transmit().len(), 1);
    assert!(is_valid(&peer, one) && !is_valid(&peer, two));
    assert!(peer.node.stat("fence_stalls") > 0);
    peer.read_response(ReadResponseOnly, 0, &[1]);
    peer.expect([]);
    assert!(is_valid(&peer, two));
    assert_eq!(completed(&mut peer), [(1, Success), (3, Success)]);
}

// [REQ-LOCAL-FAIL]
#[test]
fn a_local_failure_waits_for_earlier_requests() {
    type Case = (fn(&mut ScriptedPeer) -> SendOp, WcStatus);
    let cases: [Case; 5] = [
        (
            |peer| {
                let window = window(peer);
                Window { region_key: 0x4711, ..window }.bind()
            },
            MwBindErr,
        ),
        (|_| SendOp::FastRegister { key: 0x4710, addr: 0, access: Access::empty() }, LocQpOpErr),
        (|peer| register(peer.node.fast_region(64)), LocQpOpErr),
        (|peer| SendOp::LocalInvalidate { key: peer.node.region.lkey() }, LocQpOpErr),
        (|peer| SendOp::LocalInvalidate { key: free_region(peer) }, LocQpOpErr),
    ];
    for (make, status) in cases {
        let mut peer = ScriptedPeer::new();
        let op = make(&mut peer);
        let region = free_region(&mut peer);
        post(&mut peer, 1, SEND, 1);
        post_local(&mut peer, 2, register(region));
        post_local(&mut peer, 3, op);
        post(&mut peer, 4, SEND, 1);
        peer.expect(["SEND_ONLY 0 1 bytes ack_req"]);
        assert_eq!(completed(&mut peer), []);
        peer.advance(TIMEOUT);
        peer.expect(["SEND_ONLY 0 1 bytes ack_req"]);
        peer.ack(0);
        peer.expect([]);
        assert_eq!(completed(&mut peer), [(1, Success), (2, Success), (3, status), (4, WrFlushErr)]);
        assert_eq!(errors(&mut peer), [QpErrorCause::LocalOperation]);
        assert_eq!(peer.node.stat("send_err"), 1);
    }
}

#[test]
fn a_nak_blames_the_message_behind_them() {
    let mut peer = ScriptedPeer::new();
    let (one, two) = (free_region(&mut peer), free_region(&mut peer));
    post(&mut peer, 1, SEND, 1);
    post_local(&mut peer, 2, register(one));
    post_local(&mut peer, 3, register(two));
    post(&mut peer, 4, WRITE, 1);
    assert_eq!(peer.transmit().len(), 2);
    peer.nak(1, NakCode::RemoteAccess);
    assert_eq!(completed(&mut peer), [(1, Success), (2, Success), (3, Success), (4, WcStatus::RemAccessErr)]);
}

#[test]
fn draining_begins_none() {
    let mut peer = ScriptedPeer::new();
    let qpn = peer.node.qpn;
    let (one, two) = (free_region(&mut peer), free_region(&mut peer));
    post(&mut peer, 1, SEND, 1);
    post_local(&mut peer, 2, register(one));
    assert_eq!(peer.transmit().len(), 1);
    post_local(&mut peer, 3, register(two));
    peer.node.engine.modify_qp(qpn, QpTransition::ToSqd).unwrap();
    peer.expect([]);
    assert_eq!(peer.node.take_events(), []);
    // Retransmits the message that was begun, past the local operations that were executed.
    peer.advance(TIMEOUT);
    peer.expect(["SEND_ONLY 0 1 bytes ack_req"]);
    peer.ack(0);
    assert_eq!(completed(&mut peer), [(1, Success), (2, Success)]);
    assert_eq!(peer.node.take_events(), [AsyncEvent::SendQueueDrained { qpn }]);
    peer.expect([]);
    assert!(!is_valid(&peer, two));
    peer.node.engine.modify_qp(qpn, QpTransition::Resume).unwrap();
    peer.expect([]);
    assert_eq!(completed(&mut peer), [(3, Success)]);
}

#[test]
fn an_error_flushes_them() {
    let mut peer = ScriptedPeer::new();
    let (one, two) = (free_region(&mut peer), free_region(&mut peer));
    post(&mut peer, 1, SEND, 1);
    post_local(&mut peer, 2, register(one));
    post(&mut peer, 3, SEND, 1);
    post_local(&mut peer, 4, SendOp::LocalInvalidate { key: one });
    post_local(&mut peer, 5, register(two));
    assert_eq!(peer.transmit().len(), 2);
    peer.nak(0, NakCode::RemoteOperational);
    assert_eq!(completed(&mut peer)[0], (1, WcStatus::RemOpErr));
    post_local(&mut peer, 6, register(two));
    assert_eq!(completed(&mut peer), [(6, WrFlushErr)]);
    assert!(!is_valid(&peer, two));
}

#[test]
fn on_an_unreliable_connection() {
    let mut peer = crate::harness::variants::uc(Agreed { mtu: PathMtu::Mtu256, ..Agreed::default() }, 0);
    let window = window(&mut peer);
    let region = free_region(&mut peer);
    post_local(&mut peer, 1, window.bind());
    post_local(&mut peer, 2, register(region));
    post(&mut peer, 3, SEND, 300);
    post_local(&mut peer, 4, window.invalidate());
    post_local(&mut peer, 5, SendOp::LocalInvalidate { key: region });
    post(&mut peer, 6, SEND, 1);
    let lines = peer.transmit();
    assert_eq!(lines, ["UC SEND_FIRST 0 256 bytes", "UC SEND_LAST 1 44 bytes", "UC SEND_ONLY 2 1 bytes"]);
    assert_eq!(completed(&mut peer), [1, 2, 3, 4, 5, 6].map(|id| (id, Success)));
    assert!(!window.is_open(&peer) && !is_valid(&peer, region));
    assert_eq!(peer.node.stat("local_stalls"), 0, "what has left has completed");

    // A failure stops the send queue, and nothing else.
    post(&mut peer, 7, SEND, 1);
    post_local(&mut peer, 8, window.invalidate());
    post(&mut peer, 9, SEND, 1);
    assert_eq!(peer.transmit().len(), 1);
    assert_eq!(completed(&mut peer), [(7, Success), (8, LocQpOpErr), (9, WrFlushErr)]);
    assert_eq!(peer.node.engine.query_qp(peer.node.qpn).unwrap().state, QpState::Sqe);
    peer.node.engine.modify_qp(peer.node.qpn, QpTransition::Resume).unwrap();
    post_local(&mut peer, 10, register(region));
    peer.expect([]);
    assert_eq!(completed(&mut peer), [(10, Success)]);
}

/// Registrations and invalidations of a few regions between messages, over a bad link. Each would fail if it were
/// carried out twice, not at all, or out of order.
#[test]
fn exactly_once_over_a_bad_link() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let agreed = Agreed { sq_psn: Psn::new(0xFF_FFF0), mtu: PathMtu::Mtu256, ..Agreed::default() };
        let line = LinkParams { loss: 100_000, ..LinkParams::default() };
        let mut pair = RatedPair::new(seed, &agreed, &EngineConfig::default(), 64, 1 << 16, line);
        let [a, b] = &mut pair.nodes;
        let keys = a.engine.keys_mut();
        let mut regions: Vec<(u32, bool)> = Vec::new();
        for _ in 0..3 {
            let key = keys.alloc_fast_reg_mr(a.pd, 64).unwrap();
            keys.map_fast_reg_mr(key, Memory::heap(64)).unwrap();
            regions.push((key, false));
        }
        let remote = RemoteAddr { addr: b.region.addr(), rkey: b.region.rkey() };
        for wr_id in 0..64 {
            b.post_recv(wr_id, &[b.sge(0, 4096)]);
        }
        let mut signalled = Vec::new();
        for wr_id in 0..64 {
            let mut flags = SendFlags::empty();
            flags.set(SendFlags::SIGNALED, rng.chance(700_000));
            flags.set(SendFlags::FENCE, rng.chance(200_000));
            if flags.contains(SendFlags::SIGNALED) {
                signalled.push((wr_id, Success));
            }
            let sge = [a.sge(0, rng.below(2000) as usize)];
            match rng.below(6) {
                0 => a.post_flags(wr_id, SEND, &sge, flags),
                1 => a.post_flags(wr_id, SendOp::Write { remote, imm: None }, &sge, flags),
                2 => a.post_flags(wr_id, SendOp::Read { remote }, &sge, flags),
                _ => {
                    let (key, valid) = &mut regions[rng.below(3) as usize];
                    let op = if *valid { SendOp::LocalInvalidate { key: *key } } else { register(*key) };
                    *valid = !*valid;
                    a.post_flags(wr_id, op, &[], flags);
                }
            }
        }
        pair.drive(Duration::from_secs(2), |pair| {
            pair.nodes[0].engine.query_qp(pair.nodes[0].qpn).unwrap().send_queued == 0
        });
        let completions = pair.nodes[0].take_completions();
        let sent: Vec<_> = completions.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(sent, signalled, "seed {seed}");
        for (key, valid) in regions {
            assert_eq!(pair.nodes[0].engine.keys().region(key).is_some(), valid);
        }
    }
}
