//! The requester and completer, packet by packet. PSNs are relative to the start (which is just before the wrap).

use crate::harness::pair::{Link, Pair};
use crate::harness::scripted_peer::ScriptedPeer;
use crate::harness::{ALL_ACCESS, Agreed};
use rxe_proto::Duration;
use rxe_proto::mem::Memory;
use rxe_proto::transport::{
    AsyncEvent, EngineConfig, PostError, QpErrorCause, QpState, QpTransition, RemoteAddr, SendFlags, SendOp, SendWr,
    Sge, WcOpcode, WcStatus,
};
use rxe_proto::wire::{NakCode, Opcode, PathMtu, Psn, Syndrome};

use crate::harness::ops::*;
use Opcode::*;

// [RC-REQ-PACKETS]
#[test]
fn packets_of_messages() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, SEND, 2500);
    post(&mut peer, 2, SendOp::Write { remote: REMOTE, imm: Some(9) }, 1025);
    post(&mut peer, 3, SendOp::SendInvalidate { rkey: 0xABC }, 4);
    let sge = peer.node.sge(0, 0);
    peer.node.post_flags(4, SendOp::Send { imm: Some(3) }, &[sge], SendFlags::SOLICITED);
    post(&mut peer, 5, SendOp::CompareSwap { remote: REMOTE, compare: 1, swap: 2 }, 8);
    peer.expect([
        "SEND_FIRST 0 1024 bytes",
        "SEND_MIDDLE 1 1024 bytes",
        "SEND_LAST 2 452 bytes ack_req",
        "WRITE_FIRST 3 va 0x10000 len 1025 1024 bytes",
        "WRITE_LAST_IMM 4 imm 9 1 bytes ack_req",
        "SEND_ONLY_INVALIDATE 5 inv 0xabc 4 bytes ack_req",
        "SEND_ONLY_IMM 6 imm 3 solicited ack_req",
        "COMPARE_SWAP 7 ack_req",
    ]);
    peer.ack(6);
    assert_eq!(completed(&mut peer), [1, 2, 3].map(|id| (id, WcStatus::Success)), "4 is not signalled");
    peer.atomic_response(7, 42);
    let [wc] = peer.node.take_completions()[..] else { panic!() };
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (5, WcOpcode::CompSwap, 8));
    assert_eq!(peer.node.read(0, 8), 42u64.to_ne_bytes());
    assert_eq!(peer.node.engine.next_timeout().map(|at| at > peer.now), Some(true), "armed lazily");
    peer.advance(Duration::from_secs(1));
    assert_eq!((peer.node.stat("timeouts"), peer.node.engine.next_timeout()), (0, None));
}

// [RC-REQ-COALESCED-ACK] [RC-REQ-STALE]
#[test]
fn acks_may_be_partial_and_coalesced() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, SEND, 2048);
    post(&mut peer, 2, SEND, 10);
    post(&mut peer, 3, SEND, 10);
    assert_eq!(peer.transmit().len(), 4);
    peer.ack(0);
    assert_eq!(completed(&mut peer), []);
    peer.ack(2);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    peer.ack(3);
    peer.ack(3);
    peer.ack(1);
    assert_eq!(completed(&mut peer), [(3, WcStatus::Success)]);
    assert_eq!(peer.node.dropped("response_stale"), 2);
}

// [RC-REQ-ACKREQ] [RC-REQ-WINDOW]
#[test]
fn ack_req_is_set_within_and_at_the_end_of_the_window() {
    let config = EngineConfig { window: 8, ack_every: 3, ..EngineConfig::default() };
    let mut peer = ScriptedPeer::with_config(Agreed { mtu: PathMtu::Mtu256, ..Agreed::default() }, config);
    post(&mut peer, 1, SEND, 256 * 20);
    let lines = peer.transmit();
    let asks: Vec<bool> = lines.iter().map(|line| line.ends_with("ack_req")).collect();
    assert_eq!(asks, [false, false, true, false, false, true, false, true], "every third, and where it closes");
    assert!(peer.node.stat("window_stalls") > 0);
    peer.ack(2);
    assert_eq!(peer.transmit().len(), 3);
    peer.ack(10);
    assert_eq!(peer.transmit().len(), 8);
    peer.ack(18);
    peer.expect(["SEND_LAST 19 256 bytes ack_req"]);
}

// [RC-REQ-ACKREQ] [RC-REQ-WINDOW]
#[test]
fn the_window_may_change_while_packets_are_in_flight() {
    let config = EngineConfig { window: 4, ack_every: 2, ..EngineConfig::default() };
    let mut peer = ScriptedPeer::with_config(Agreed { mtu: PathMtu::Mtu256, ..Agreed::default() }, config);
    post(&mut peer, 1, SEND, 256 * 20);
    assert_eq!(peer.transmit().len(), 4);
    peer.node.engine.set_window(8);
    assert_eq!(peer.transmit().len(), 0, "the queue pair waits for an ACK");
    peer.ack(0);
    let lines = peer.transmit();
    assert_eq!(lines.len(), 5);
    assert!(lines[4].ends_with("ack_req"), "it closes the window");
    assert_eq!(peer.node.engine.send_unacked(peer.node.qpn), Some(8));
    peer.node.engine.set_window(1);
    assert_eq!(peer.node.engine.config().window, 4, "twice ack_every");
    peer.ack(4);
    assert_eq!(peer.transmit().len(), 0, "four are in flight");
    peer.ack(8);
    assert_eq!(peer.transmit().len(), 4);
    peer.node.engine.set_window(u32::MAX);
    assert_eq!(peer.node.engine.config().window, 1 << 16);
}

// [RC-REQ-GHOST]
#[test]
fn ghost_acks_are_counted_and_ignored() {
    let mut peer = ScriptedPeer::new();
    peer.ack(0);
    post(&mut peer, 1, SEND, 10);
    assert_eq!(peer.transmit().len(), 1);
    peer.ack(1);
    peer.ack(500);
    peer.nak(1, NakCode::InvalidRequest);
    assert_eq!(completed(&mut peer), []);
    assert_eq!(peer.node.stat("ghost_responses"), 4);
    peer.ack(0);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success)]);
}

// [RC-REQ-TIMEOUT]
#[test]
fn timeout_repeats_from_the_first_unacknowledged_packet() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, WRITE, 3000);
    post(&mut peer, 2, SEND, 1);
    assert_eq!(peer.transmit().len(), 4);
    peer.ack(0);
    peer.advance(TIMEOUT - Duration::from_nanos(1));
    peer.expect([]);
    peer.advance(Duration::from_nanos(1));
    // In the middle of the message: no RETH again. The first packet has AckReq, to probe the path.
    peer.expect(["WRITE_MIDDLE 1 1024 bytes ack_req", "WRITE_LAST 2 952 bytes ack_req", "SEND_ONLY 3 1 bytes ack_req"]);
    assert_eq!((peer.node.stat("retransmitted_pkts"), peer.node.stat("timeouts")), (3, 1));
    peer.ack(3);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

// [RC-REQ-RETRY-COUNT] [REQ-SIGNALED] [REQ-ERROR-FLUSH] [REQ-ERROR-POST]
#[test]
fn retries_exceeded() {
    let mut peer = ScriptedPeer::with(Agreed { retry_cnt: 2, ..Agreed::default() });
    for wr_id in 1..=3 {
        let sge = peer.node.sge(0, 8);
        let flags = if wr_id == 3 { SendFlags::empty() } else { SendFlags::SIGNALED };
        peer.node.post_flags(wr_id, if wr_id == 2 { FADD } else { SEND }, &[sge], flags);
    }
    peer.node.post_recv(9, &[]);
    assert_eq!(peer.transmit().len(), 3);
    for packets in [3, 1] {
        peer.advance(TIMEOUT);
        assert_eq!(peer.transmit().len(), packets);
    }
    peer.advance(TIMEOUT);
    peer.expect([]);
    use WcStatus::*;
    // In order, the unsignalled one too, and the receives.
    assert_eq!(completed(&mut peer), [(1, RetryExcErr), (2, WrFlushErr), (3, WrFlushErr), (9, WrFlushErr)]);
    assert_eq!(errors(&mut peer), [QpErrorCause::RetryExceeded]);
    assert_eq!(peer.node.stat("retry_exceeded_err"), 1);
    post(&mut peer, 10, SEND, 1);
    assert_eq!(completed(&mut peer), [(10, WrFlushErr)]);
    peer.ack(0);
    assert_eq!(peer.node.dropped("qp_in_error"), 1);
    peer.advance(Duration::from_secs(1));
    assert_eq!(peer.node.engine.next_timeout(), None);
}

// [RC-REQ-PROGRESS]
#[test]
fn progress_restores_the_retries() {
    let mut peer = ScriptedPeer::with(Agreed { retry_cnt: 2, ..Agreed::default() });
    post(&mut peer, 1, SEND, 10 * 1024);
    assert_eq!(peer.transmit().len(), 10);
    for psn in 0..10 {
        for packets in [10 - psn as usize, 1] {
            peer.advance(TIMEOUT);
            assert_eq!(peer.transmit().len(), packets);
        }
        peer.ack(psn);
        assert_eq!(peer.transmit().len(), 9 - psn as usize, "the peer answers");
    }
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success)]);
}

// [RC-REQ-TIMER-0]
#[test]
fn timeout_code_0_waits_for_ever() {
    let mut peer = ScriptedPeer::with(Agreed { timeout: 0, ..Agreed::default() });
    post(&mut peer, 1, SEND, 1);
    assert_eq!(peer.transmit().len(), 1);
    assert_eq!(peer.node.engine.next_timeout(), None);
}

// [RC-REQ-SEQ-NAK]
#[test]
fn sequence_nak() {
    let mut peer = ScriptedPeer::new();
    for wr_id in 0..5 {
        post(&mut peer, wr_id, SEND, 1);
    }
    assert_eq!(peer.transmit().len(), 5);
    // It acknowledges the packets before it, and causes one retransmission; copies of it cause none.
    peer.nak(2, NakCode::PsnSequence);
    peer.nak(2, NakCode::PsnSequence);
    assert_eq!(completed(&mut peer), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    peer.expect(["SEND_ONLY 2 1 bytes ack_req", "SEND_ONLY 3 1 bytes ack_req", "SEND_ONLY 4 1 bytes ack_req"]);
    peer.nak(2, NakCode::PsnSequence);
    peer.expect([]);
    assert_eq!((peer.node.stat("rcvd_seq_err"), peer.node.stat("completer_retry_err")), (3, 1));
    peer.ack(4);
    assert_eq!(completed(&mut peer).len(), 3);
}

// [RC-REQ-FATAL-NAK]
#[test]
fn fatal_naks() {
    for (code, status, cause) in [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr, QpErrorCause::PeerInvalidRequest),
        (NakCode::RemoteAccess, WcStatus::RemAccessErr, QpErrorCause::PeerAccess),
        (NakCode::RemoteOperational, WcStatus::RemOpErr, QpErrorCause::PeerOperational),
        (NakCode::Unknown(9), WcStatus::RemOpErr, QpErrorCause::PeerOperational),
    ] {
        let mut peer = ScriptedPeer::new();
        post(&mut peer, 1, SEND, 1);
        post(&mut peer, 2, WRITE, 3000);
        post(&mut peer, 3, READ, 1);
        assert_eq!(peer.transmit().len(), 5);
        peer.nak(2, code);
        assert_eq!(completed(&mut peer), [(1, WcStatus::Success), (2, status), (3, WcStatus::WrFlushErr)]);
        assert_eq!(errors(&mut peer), [cause]);
    }
}

// [RC-REQ-FATAL-NAK]
#[test]
fn a_fatal_nak_blames_its_own_request() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, READ, 1);
    post(&mut peer, 2, WRITE, 1);
    assert_eq!(peer.transmit().len(), 2);
    peer.nak(1, NakCode::RemoteAccess);
    assert_eq!(completed(&mut peer), [(1, WcStatus::WrFlushErr), (2, WcStatus::RemAccessErr)]);
}

// [RC-REQ-BAD-RESPONSE]
#[test]
fn responses_that_do_not_fit() {
    type Bad = fn(&mut ScriptedPeer);
    let cases: [Bad; 4] = [
        |peer| peer.read_response(ReadResponseFirst, 0, &[1; 1000]),
        |peer| peer.read_response(ReadResponseOnly, 0, &[1; 1024]),
        |peer| {
            peer.read_response(ReadResponseFirst, 0, &[1; 1024]);
            peer.read_response(ReadResponseMiddle, 1, &[1; 976]);
        },
        |peer| {
            peer.read_response(ReadResponseFirst, 0, &[1; 1024]);
            peer.read_response(ReadResponseLast, 1, &[1; 977]);
        },
    ];
    for bad in cases {
        let mut peer = ScriptedPeer::new();
        post(&mut peer, 1, READ, 2000);
        assert_eq!(peer.transmit().len(), 1);
        bad(&mut peer);
        assert_eq!(completed(&mut peer), [(1, WcStatus::BadRespErr)]);
        assert_eq!(errors(&mut peer), [QpErrorCause::BadResponse]);
    }
    // A response of another kind than the request's is dropped.
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, FADD, 8);
    assert_eq!(peer.transmit().len(), 1);
    peer.read_response(ReadResponseOnly, 0, &[1; 8]);
    peer.answer(0, Syndrome::Reserved(0x40));
    assert_eq!(peer.node.dropped("response_unexpected"), 2);
    peer.atomic_response(0, 1);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success)]);
}

// [RC-REQ-RD-ATOMIC] [RC-REQ-FENCE]
#[test]
fn reads_outstanding_and_fences() {
    let mut peer = ScriptedPeer::with(Agreed { rd_atomic: 2, ..Agreed::default() });
    for wr_id in 0..3 {
        post(&mut peer, wr_id, READ, 1);
    }
    assert_eq!(peer.transmit().len(), 2);
    assert!(peer.node.stat("rd_atomic_stalls") > 0);
    peer.read_response(ReadResponseOnly, 0, &[1]);
    peer.expect(["READ_REQUEST 2 va 0x10000 len 1 ack_req"]);
    let sge = peer.node.sge(0, 1);
    peer.node.post_flags(3, SEND, &[sge], SendFlags::SIGNALED);
    peer.node.post_flags(4, SEND, &[sge], SendFlags::SIGNALED | SendFlags::FENCE);
    peer.expect(["SEND_ONLY 3 1 bytes ack_req"]);
    peer.read_response(ReadResponseOnly, 1, &[1]);
    peer.expect([]);
    assert!(peer.node.stat("fence_stalls") > 0);
    peer.read_response(ReadResponseOnly, 2, &[1]);
    peer.expect(["SEND_ONLY 4 1 bytes ack_req"]);
    peer.ack(4);
    assert_eq!(completed(&mut peer).len(), 5);

    // After a retry the count is right, too.
    for wr_id in 0..3 {
        post(&mut peer, wr_id, READ, 1);
    }
    assert_eq!(peer.transmit().len(), 2);
    peer.advance(TIMEOUT);
    assert_eq!(peer.transmit().len(), 2);
    peer.read_response(ReadResponseOnly, 5, &[1]);
    assert_eq!(peer.transmit().len(), 1);
}

// [RC-REQ-LOCAL-KEY]
#[test]
fn a_bad_local_key_fails_when_it_is_the_oldest() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, SEND, 1);
    peer.node.post_send(2, SEND, &[Sge { addr: 0, length: 1, lkey: 4711 }]);
    post(&mut peer, 3, SEND, 1);
    peer.expect(["SEND_ONLY 0 1 bytes ack_req"]);
    assert_eq!(completed(&mut peer), []);
    peer.ack(0);
    peer.expect([]);
    use WcStatus::*;
    assert_eq!(completed(&mut peer), [(1, Success), (2, LocProtErr), (3, WrFlushErr)]);
    assert_eq!(errors(&mut peer), [QpErrorCause::LocalKey]);

    // A READ into memory that the owner may not write.
    let mut peer = ScriptedPeer::new();
    let pd = peer.node.pd;
    let keys = peer.node.engine.keys_mut();
    let region = keys.register(pd, Memory::heap(64), 0, rxe_proto::mem::Access::REMOTE_READ).unwrap();
    peer.node.post_send(1, READ, &[Sge { addr: 0, length: 64, lkey: region.lkey() }]);
    peer.expect([]);
    assert_eq!(completed(&mut peer), [(1, LocProtErr)]);

    // Deregistered while the response is in flight.
    let mut peer = ScriptedPeer::new();
    let pd = peer.node.pd;
    let region = peer.node.engine.keys_mut().register(pd, Memory::heap(64), 0, ALL_ACCESS).unwrap();
    peer.node.post_send(1, READ, &[Sge { addr: 0, length: 64, lkey: region.lkey() }]);
    assert_eq!(peer.transmit().len(), 1);
    peer.node.engine.keys_mut().deregister(region.lkey()).unwrap();
    peer.read_response(ReadResponseOnly, 0, &[1; 64]);
    assert_eq!(completed(&mut peer), [(1, LocProtErr)]);
}

// [RC-REQ-POST-CHECK]
#[test]
fn invalid_work_requests_are_refused_when_posted() {
    let mut peer = ScriptedPeer::with(Agreed { rd_atomic: 0, ..Agreed::default() });
    let qpn = peer.node.qpn;
    let sge = peer.node.sge(0, 1);
    let huge = Sge { length: u32::MAX, ..sge };
    let mut post = |op, sges: &[Sge]| {
        let wr = SendWr { wr_id: 0, op, sges, flags: SendFlags::SIGNALED };
        peer.node.engine.post_send(qpn, &wr)
    };
    assert_eq!(post(SEND, &[sge; 17]), Err(PostError::TooManySges));
    assert_eq!(post(SEND, &[huge]), Err(PostError::MessageTooLong));
    assert_eq!(post(FADD, &[sge]), Err(PostError::AtomicLength));
    assert_eq!(post(READ, &[sge]), Err(PostError::NoReadResources));
    for _ in 0..64 {
        assert_eq!(post(SEND, &[sge; 16]), Ok(()));
    }
    assert_eq!(post(SEND, &[sge]), Err(PostError::QueueFull));
}

// [REQ-SQD]
#[test]
fn draining_finishes_what_was_begun() {
    let config = EngineConfig { window: 2, ..EngineConfig::default() };
    let mut peer = ScriptedPeer::with_config(Agreed::default(), config);
    let qpn = peer.node.qpn;
    post(&mut peer, 1, SEND, 3000);
    post(&mut peer, 2, SEND, 1);
    assert_eq!(peer.transmit().len(), 2);
    peer.node.engine.modify_qp(qpn, QpTransition::ToSqd).unwrap();
    peer.ack(1);
    assert_eq!(peer.node.take_events(), [], "in the middle of a message");
    assert_eq!(peer.transmit().len(), 1);
    peer.ack(2);
    assert_eq!(peer.node.take_events(), [AsyncEvent::SendQueueDrained { qpn }]);
    peer.expect([]);
    peer.node.engine.modify_qp(qpn, QpTransition::Resume).unwrap();
    assert_eq!(peer.node.engine.query_qp(qpn).unwrap().state, QpState::Rts);
    assert_eq!(peer.transmit().len(), 1);
    peer.ack(3);
    assert_eq!(completed(&mut peer).len(), 2);
}

#[test]
fn a_lost_read_response_costs_one_round_trip() {
    // Two microseconds each way; a timeout would be 268 milliseconds.
    let agreed = Agreed { timeout: 16, sq_psn: Psn::new(0xFF_FFFF), ..Agreed::default() };
    let mut pair = Pair::new(1, &agreed, 4, 1 << 16, Link::default());
    let [a, b] = &mut pair.nodes;
    let remote = RemoteAddr { addr: b.region.addr(), rkey: b.region.rkey() };
    b.write(0, &[7; 40_000]);
    let sge = a.sge(0, 40_000);
    a.post_send(1, SendOp::Read { remote }, &[sge]);
    let start = pair.now;
    // The request and the responses leave; then the link loses the first of them.
    pair.step();
    pair.link.loss = 1_000_000;
    pair.link.burst = 1;
    pair.step();
    pair.link.loss = 0;
    pair.link.burst = 64;
    pair.drive(Duration::from_millis(1), |pair| !pair.nodes[0].completions.is_empty());
    assert!(pair.now - start < Duration::from_micros(20), "{:?}", pair.now - start);
    assert_eq!((pair.nodes[0].stat("read_gaps"), pair.nodes[0].stat("timeouts")), (1, 0));
    assert_eq!(pair.nodes[0].read(0, 40_000), [7; 40_000]);
}
