//! FLUSH and ATOMIC WRITE as requester, and against our own responder.

use crate::harness::rated::{LinkParams, RatedPair};
use crate::harness::scripted_peer::ScriptedPeer;
use crate::harness::{ALL_ACCESS, Agreed, Node, Rng};
use rxe_proto::Duration;
use rxe_proto::mem::{Access, Memory};
use rxe_proto::transport::{
    EngineConfig, PostError, QpErrorCause, QpType, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus,
};
use rxe_proto::wire::{Feth, Frame, NakCode, Opcode, Psn, classify};

use crate::harness::ops::*;
use Opcode::*;
use WcStatus::Success;

const ATOMIC_WRITE: SendOp = SendOp::AtomicWrite { remote: REMOTE };
const FLUSH: SendOp = SendOp::Flush { remote: REMOTE, length: 77, whole_region: false, persistent: false };

/// The last transmission: name, PSN, address, length, key, FETH and payload of each packet.
type Request = (Opcode, i32, u64, u32, u32, Option<(u8, u8)>, Vec<u8>);

fn requests(peer: &mut ScriptedPeer) -> Vec<Request> {
    peer.transmit();
    let parse = |frame: &Vec<u8>| {
        let Ok(Frame::Roce(packet)) = classify(frame) else { panic!("not a RoCE frame") };
        assert!(packet.ack_req());
        let reth = packet.reth().unwrap();
        let feth = packet.feth().map(|feth| (feth.level(), feth.placement()));
        let psn = packet.psn().diff(peer.agreed.sq_psn);
        (packet.opcode(), psn, reth.va(), reth.dma_len(), reth.rkey(), feth, packet.payload().to_vec())
    };
    peer.frames.iter().map(parse).collect()
}

fn post_flush(peer: &mut ScriptedPeer, wr_id: u64, whole_region: bool, persistent: bool) {
    let op = SendOp::Flush { remote: REMOTE, length: 77, whole_region, persistent };
    peer.node.post_send(wr_id, op, &[]);
}

/// Posts the 8 bytes inline.
fn post_atomic_write(node: &mut Node, wr_id: u64, remote: RemoteAddr, bytes: &[u8]) -> Result<(), PostError> {
    let wr = SendWr { wr_id, op: SendOp::AtomicWrite { remote }, sges: &[], flags: SendFlags::SIGNALED };
    node.engine.post_send_inline(node.qpn, &wr, bytes)
}

// [RC-REQ-FLUSH]
#[test]
fn flush_requests() {
    let mut peer = ScriptedPeer::new();
    for (wr_id, (whole_region, persistent)) in (1..).zip([(false, false), (true, false), (false, true), (true, true)]) {
        post_flush(&mut peer, wr_id, whole_region, persistent);
    }
    let feths = [
        (Feth::LEVEL_RANGE, Feth::GLOBAL_VISIBILITY),
        (Feth::LEVEL_REGION, Feth::GLOBAL_VISIBILITY),
        (Feth::LEVEL_RANGE, Feth::PERSISTENT),
        (Feth::LEVEL_REGION, Feth::PERSISTENT),
    ];
    let expected: Vec<Request> =
        (0..).zip(feths).map(|(psn, feth)| (Flush, psn, 0x10_000, 77, 0x77, Some(feth), vec![])).collect();
    assert_eq!(requests(&mut peer), expected);
    // Lost, all of them.
    peer.advance(TIMEOUT);
    assert_eq!(requests(&mut peer), expected);
    for psn in 0..4 {
        peer.read_response(ReadResponseOnly, psn, &[]);
    }
    let wcs = peer.node.take_completions();
    assert_eq!(wcs.len(), 4);
    assert!(wcs.iter().all(|wc| (wc.status, wc.opcode, wc.byte_len) == (Success, WcOpcode::Flush, 0)), "{wcs:?}");
}

// [RC-REQ-ATOMIC-WRITE]
#[test]
fn atomic_write_requests() {
    let mut peer = ScriptedPeer::new();
    peer.node.write(0, &[1, 2, 3, 4]);
    peer.node.write(100, &[5, 6, 7, 8]);
    let sges = [peer.node.sge(0, 4), peer.node.sge(100, 4)];
    peer.node.post_send(1, ATOMIC_WRITE, &sges);
    let mut inline = *b"inlined!";
    post_atomic_write(&mut peer.node, 2, REMOTE, &inline).unwrap();
    inline.fill(0);
    let expected = vec![
        (AtomicWrite, 0, 0x10_000, 8, 0x77, None, vec![1, 2, 3, 4, 5, 6, 7, 8]),
        (AtomicWrite, 1, 0x10_000, 8, 0x77, None, b"inlined!".to_vec()),
    ];
    assert_eq!(requests(&mut peer), expected);
    peer.advance(TIMEOUT);
    assert_eq!(requests(&mut peer), expected);
    peer.read_response(ReadResponseOnly, 0, &[]);
    peer.read_response(ReadResponseOnly, 1, &[]);
    let wcs = peer.node.take_completions();
    assert_eq!(wcs.len(), 2);
    let expected = (Success, WcOpcode::AtomicWrite, 0);
    assert!(wcs.iter().all(|wc| (wc.status, wc.opcode, wc.byte_len) == expected), "{wcs:?}");
    assert_eq!(peer.node.read(0, 4), [1, 2, 3, 4], "nothing comes back");
}

// [RC-REQ-ATOMIC-WRITE]
#[test]
fn invalid_work_requests_are_refused_when_posted() {
    let mut peer = ScriptedPeer::new();
    let (qpn, sge) = (peer.node.qpn, peer.node.sge(0, 7));
    let mut post = |op, sges: &[Sge]| {
        let wr = SendWr { wr_id: 0, op, sges, flags: SendFlags::SIGNALED };
        peer.node.engine.post_send(qpn, &wr)
    };
    assert_eq!(post(ATOMIC_WRITE, &[sge]), Err(PostError::AtomicLength));
    assert_eq!(post(ATOMIC_WRITE, &[]), Err(PostError::AtomicLength));
    assert_eq!(post(FLUSH, &[sge]), Err(PostError::TooManySges));
    assert_eq!(post_atomic_write(&mut peer.node, 0, REMOTE, &[0; 9]), Err(PostError::AtomicLength));
    let wr = SendWr { wr_id: 0, op: FLUSH, sges: &[], flags: SendFlags::SIGNALED };
    assert_eq!(peer.node.engine.post_send_inline(qpn, &wr, &[1]), Err(PostError::InlineTooLong));

    let mut peer = ScriptedPeer::with(Agreed { rd_atomic: 0, ..Agreed::default() });
    let wr = SendWr { wr_id: 0, op: FLUSH, sges: &[], flags: SendFlags::SIGNALED };
    assert_eq!(peer.node.engine.post_send(peer.node.qpn, &wr), Err(PostError::NoReadResources));
    assert_eq!(post_atomic_write(&mut peer.node, 0, REMOTE, &[0; 8]), Err(PostError::NoReadResources));

    let mut peer = crate::harness::variants::uc(Agreed::default(), 0);
    assert_eq!(peer.node.engine.post_send(peer.node.qpn, &wr), Err(PostError::Opcode(QpType::Uc)));
}

// [RC-REQ-RD-ATOMIC]
#[test]
fn they_count_as_outstanding_reads() {
    let mut peer = ScriptedPeer::with(Agreed { rd_atomic: 2, ..Agreed::default() });
    post_flush(&mut peer, 1, false, false);
    post_atomic_write(&mut peer.node, 2, REMOTE, &[0; 8]).unwrap();
    post_flush(&mut peer, 3, false, false);
    let sge = peer.node.sge(0, 1);
    peer.node.post_flags(4, SEND, &[sge], SendFlags::SIGNALED | SendFlags::FENCE);
    assert_eq!(peer.transmit().len(), 2);
    assert!(peer.node.stat("rd_atomic_stalls") > 0);
    peer.read_response(ReadResponseOnly, 0, &[]);
    assert_eq!(peer.transmit().len(), 1);
    peer.read_response(ReadResponseOnly, 1, &[]);
    peer.expect([]);
    assert!(peer.node.stat("fence_stalls") > 0);
    peer.read_response(ReadResponseOnly, 2, &[]);
    peer.expect(["SEND_ONLY 3 1 bytes ack_req"]);
    assert_eq!(completed(&mut peer), [1, 2, 3].map(|id| (id, Success)));
}

// [RC-REQ-BARE-ACK]
#[test]
fn responses_that_do_not_fit() {
    for flush in [true, false] {
        let posted = || {
            let mut peer = ScriptedPeer::new();
            if flush {
                post_flush(&mut peer, 1, false, false);
            } else {
                post_atomic_write(&mut peer.node, 1, REMOTE, &[0; 8]).unwrap();
            }
            assert_eq!(peer.transmit().len(), 1);
            peer
        };
        for (op, payload) in [
            (ReadResponseOnly, &[0; 8][..]),
            (ReadResponseFirst, &[]),
            (ReadResponseMiddle, &[]),
            (ReadResponseLast, &[]),
            (ReadResponseLast, &[1]),
        ] {
            let mut peer = posted();
            peer.read_response(op, 0, payload);
            assert_eq!(completed(&mut peer), [(1, WcStatus::BadRespErr)], "{op:?}");
            assert_eq!(errors(&mut peer), [QpErrorCause::BadResponse]);
        }
        // Neither an ACK nor the answer to another kind of atomic is one.
        let mut peer = posted();
        peer.ack(0);
        peer.atomic_response(0, 1);
        assert_eq!((completed(&mut peer), peer.node.stat("bare_acks")), (vec![], 1));
        assert_eq!(peer.node.dropped("response_unexpected"), 2);
        peer.read_response(ReadResponseOnly, 0, &[]);
        assert_eq!(completed(&mut peer), [(1, Success)]);
        // And it is no answer to a READ.
        let mut peer = ScriptedPeer::new();
        post(&mut peer, 1, READ, 8);
        assert_eq!(peer.transmit().len(), 1);
        peer.read_response(ReadResponseOnly, 0, &[]);
        assert_eq!(completed(&mut peer), [(1, WcStatus::BadRespErr)]);
    }
}

// [RC-REQ-IMPLIED-NAK]
#[test]
fn an_answer_past_one_means_that_its_own_was_lost() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, WRITE, 1);
    post_flush(&mut peer, 2, true, false);
    post(&mut peer, 3, SEND, 1);
    assert_eq!(peer.transmit().len(), 3);
    peer.ack(2);
    assert_eq!(completed(&mut peer), [(1, Success)]);
    let lines = peer.transmit();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("FLUSH 1 "), "{lines:?}");
    peer.read_response(ReadResponseOnly, 1, &[]);
    peer.ack(2);
    assert_eq!(completed(&mut peer), [(2, Success), (3, Success)]);
    assert_eq!((peer.node.stat("implied_naks"), peer.node.stat("timeouts")), (1, 0));
}

#[test]
fn naks_and_bad_keys() {
    let mut peer = ScriptedPeer::new();
    post_flush(&mut peer, 1, false, true);
    assert_eq!(peer.transmit().len(), 1);
    peer.nak(0, NakCode::RemoteAccess);
    assert_eq!(completed(&mut peer), [(1, WcStatus::RemAccessErr)]);

    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, SEND, 1);
    peer.node.post_send(2, ATOMIC_WRITE, &[Sge { addr: 0, length: 8, lkey: 4711 }]);
    peer.expect(["SEND_ONLY 0 1 bytes ack_req"]);
    peer.ack(0);
    peer.expect([]);
    assert_eq!(completed(&mut peer), [(1, Success), (2, WcStatus::LocProtErr)]);
}

/// Two engines, and a region of the second one with every right.
fn pair(seed: u64, config: &EngineConfig, loss: u32) -> (RatedPair, RemoteAddr) {
    let flush = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    let agreed = Agreed { sq_psn: Psn::new(0xFF_FFF8), access: Agreed::default().access | flush, ..Agreed::default() };
    let mut pair = RatedPair::new(seed, &agreed, config, 64, 1 << 14, LinkParams { loss, ..LinkParams::default() });
    let b = &mut pair.nodes[1];
    b.region = b.engine.keys_mut().register(b.pd, Memory::heap(4096), 0, ALL_ACCESS | flush).unwrap();
    let remote = RemoteAddr { addr: b.region.addr(), rkey: b.region.rkey() };
    (pair, remote)
}

#[test]
fn a_peer_that_does_not_offer_them_refuses() {
    for flush in [true, false] {
        let (mut pair, remote) = pair(1, &EngineConfig::default(), 0);
        if flush {
            let op = SendOp::Flush { remote, length: 8, whole_region: false, persistent: false };
            pair.nodes[0].post_send(1, op, &[]);
        } else {
            post_atomic_write(&mut pair.nodes[0], 1, remote, &[0; 8]).unwrap();
        }
        pair.drive(Duration::from_millis(1), |pair| !pair.nodes[0].completions.is_empty());
        assert_eq!(pair.nodes[0].take_completions()[0].status, WcStatus::RemInvReqErr);
    }
}

/// Each ATOMIC WRITE stores a larger number, and no READ behind it may see a smaller one: so it happened before what
/// follows, and not again when its answer was lost.
#[test]
fn exactly_once_and_in_order_over_a_bad_link() {
    let config = EngineConfig { flush: true, atomic_write: true, ..EngineConfig::default() };
    let (mut flushes, mut replays) = (0, 0);
    for seed in 0..100 {
        let mut rng = Rng(seed);
        let (mut pair, remote) = pair(seed, &config, 100_000);
        let a = &mut pair.nodes[0];
        let mut posted_flushes = 0;
        for wr_id in 0..60 {
            match rng.below(4) {
                0 => {
                    let length = rng.below(4096) as u32;
                    let whole_region = rng.chance(500_000);
                    let op = SendOp::Flush { remote, length, whole_region, persistent: rng.chance(500_000) };
                    a.post_send(wr_id, op, &[]);
                    posted_flushes += 1;
                }
                1 => {
                    a.post_send(wr_id, SendOp::Read { remote }, &[a.sge(8 * wr_id as usize, 8)]);
                }
                _ => post_atomic_write(a, wr_id, remote, &wr_id.to_ne_bytes()).unwrap(),
            }
        }
        pair.drive(Duration::from_secs(2), |pair| pair.nodes[0].completions.len() == 60);
        let wcs = pair.nodes[0].take_completions();
        assert!((0..60).zip(&wcs).all(|(id, wc)| (wc.wr_id, wc.status) == (id, Success)), "seed {seed}: {wcs:?}");
        let mut last = 0;
        for (wr_id, wc) in (0..60u64).zip(&wcs) {
            match wc.opcode {
                WcOpcode::AtomicWrite => last = wr_id,
                WcOpcode::RdmaRead => {
                    // READs may be read again for a retry, and then see what was stored since: never anything older.
                    let bytes = pair.nodes[0].read(8 * wr_id as usize, 8);
                    let seen = u64::from_ne_bytes(bytes.try_into().unwrap());
                    assert!(seen >= last, "seed {seed}: READ {wr_id} saw {seen} after {last}");
                }
                _ => {}
            }
        }
        assert_eq!(pair.nodes[1].read(0, 8), last.to_ne_bytes());
        let writes = wcs.iter().filter(|wc| wc.opcode == WcOpcode::AtomicWrite).count() as u64;
        assert_eq!((pair.nodes[1].stat("atomic_writes"), pair.nodes[1].stat("flushes")), (writes, posted_flushes));
        flushes += posted_flushes;
        replays += pair.nodes[1].stat("flush_replays");
    }
    assert!(flushes > 1000 && replays > 100, "{flushes} {replays}");
}
