//! Errors as short scripts, one side played by hand: what goes wrong, what the engine says to the peer, and what it
//! tells its consumer.

use crate::harness::Agreed;
use crate::harness::ops::*;
use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use rxe_proto::Duration;
use rxe_proto::transport::{QpErrorCause, QpState, Sge, WcStatus};
use rxe_proto::wire::{NakCode, Opcode, Psn, Syndrome};

use AckReq::{Ack, NoAck};
use Opcode::*;
use WcStatus::*;

/// As requester, with these retry counts.
fn requester(retry_cnt: u8, rnr_retry: u8) -> ScriptedPeer {
    ScriptedPeer::with(Agreed { retry_cnt, rnr_retry, sq_psn: Psn::new(0xFF_FFFE), ..Agreed::default() })
}

/// As responder, with a receive of 4096 bytes.
fn responder() -> ScriptedPeer {
    let mut peer = ScriptedPeer::new();
    let sge = peer.node.sge(0x8000, 4096);
    peer.node.post_recv(1, &[sge]);
    peer
}

#[track_caller]
fn lost(peer: &mut ScriptedPeer, cause: QpErrorCause, completions: &[(u64, WcStatus)]) {
    assert_eq!(errors(peer), [cause]);
    assert_eq!(completed(peer), completions);
    assert_eq!(peer.node.state(), QpState::Error);
    // Silent for ever.
    peer.advance(Duration::from_secs(10));
    peer.expect([]);
    assert_eq!((peer.node.engine.next_timeout(), peer.node.take_completions()), (None, vec![]));
}

/// Time passes until the engine writes again.
fn until_retry(peer: &mut ScriptedPeer) -> Vec<String> {
    for _ in 0..64 {
        let lines = peer.transmit();
        if !lines.is_empty() || peer.node.state() == QpState::Error {
            return lines;
        }
        let at = peer.node.engine.next_timeout().expect("waits for nothing");
        peer.advance(at - peer.now);
    }
    panic!("never tries again");
}

// [RC-REQ-GHOST]
#[test]
fn ghost_ack() {
    let mut peer = requester(7, 7);
    // Nothing sent yet.
    peer.ack(0);
    post(&mut peer, 1, SEND, 10);
    peer.expect(["SEND_ONLY 0 10 bytes ack_req"]);
    // For later packets.
    peer.ack(1);
    peer.nak(1, NakCode::RemoteAccess);
    peer.atomic_response(5, 1);
    assert_eq!(completed(&mut peer), []);
    peer.ack(0);
    // For completed ones.
    peer.ack(0);
    assert_eq!(completed(&mut peer), [(1, Success)]);
    assert_eq!((peer.node.stat("ghost_responses"), peer.node.dropped("response_unexpected")), (4, 4));
    assert_eq!((peer.node.state(), peer.node.dropped("response_stale")), (QpState::Rts, 1));
}

// [RC-REQ-BAD-RESPONSE]
#[test]
fn bad_response() {
    // Shorter than asked for, longer, an end too early, no end where it must be.
    for (op, len) in [(ReadResponseOnly, 7), (ReadResponseOnly, 9), (ReadResponseFirst, 8)] {
        let mut peer = requester(7, 7);
        post(&mut peer, 1, READ, 8);
        post(&mut peer, 2, SEND, 1);
        assert_eq!(peer.transmit().len(), 2);
        peer.read_response(op, 0, &vec![1; len]);
        peer.expect([]);
        lost(&mut peer, QpErrorCause::BadResponse, &[(1, BadRespErr), (2, WrFlushErr)]);
    }
    let mut peer = requester(7, 7);
    post(&mut peer, 1, READ, 2048);
    assert_eq!(peer.transmit().len(), 1);
    peer.read_response(ReadResponseLast, 0, &[1; 1024]);
    lost(&mut peer, QpErrorCause::BadResponse, &[(1, BadRespErr)]);
}

#[test]
fn rkey_violation() {
    let key = 0x1234_5678;
    type Request = fn(&mut ScriptedPeer, u32);
    let requests: [(&str, Request); 3] = [
        ("WRITE", |peer, key| peer.rdma_raw(WriteOnly, 1, Ack, 0x1_0000, key, 4, b"evil")),
        ("READ", |peer, key| peer.rdma_raw(ReadRequest, 1, Ack, 0x1_0000, key, 4, b"")),
        ("atomic", |peer, key| {
            let frame = peer.frame(FetchAdd, peer.agreed.rq_psn.add(1), Ack, b"", |packet| {
                packet.atomic_eth(0x1_0000, key, 1, 0);
            });
            peer.inject(&frame);
        }),
    ];
    for (name, request) in requests {
        let mut peer = responder();
        peer.request(SendOnly, 0, NoAck, b"fine");
        request(&mut peer, key);
        assert_eq!(peer.transmit(), ["NAK 1 RemoteAccess msn 1"], "{name}");
        lost(&mut peer, QpErrorCause::RemoteKey, &[(1, Success)]);
        assert_eq!(peer.node.read(0, 4), [0; 4], "{name}");
    }
    // By a NAK of the peer: earlier work requests are complete, later ones are flushed.
    let mut peer = requester(7, 7);
    post(&mut peer, 1, SEND, 1);
    post(&mut peer, 2, WRITE, 1);
    post(&mut peer, 3, SEND, 1);
    assert_eq!(peer.transmit().len(), 3);
    peer.nak(1, NakCode::RemoteAccess);
    peer.expect([]);
    lost(&mut peer, QpErrorCause::PeerAccess, &[(1, Success), (2, RemAccessErr), (3, WrFlushErr)]);
}

#[test]
fn unexpected_opcode() {
    let mut peer = responder();
    peer.request(SendFirst, 0, NoAck, &[1; 1024]);
    peer.request(WriteLast, 1, Ack, b"of what?");
    peer.expect(["NAK 1 InvalidRequest msn 0"]);
    lost(&mut peer, QpErrorCause::OpcodeSequence, &[(1, RemInvReqErr)]);

    // A response of another kind than asked for answers nothing; the right one still does.
    let mut peer = requester(7, 7);
    post(&mut peer, 1, READ, 8);
    post(&mut peer, 2, FADD, 8);
    assert_eq!(peer.transmit().len(), 2);
    peer.atomic_response(0, 1);
    peer.ack(0);
    peer.read_response(ReadResponseOnly, 0, &[1; 8]);
    peer.read_response(ReadResponseOnly, 1, &[1; 8]);
    assert_eq!(completed(&mut peer), [(1, Success)]);
    peer.atomic_response(1, 1);
    assert_eq!((completed(&mut peer), peer.node.dropped("response_unexpected")), (vec![(2, Success)], 3));

    let mut peer = requester(7, 7);
    post(&mut peer, 1, SEND, 1);
    assert_eq!(peer.transmit().len(), 1);
    peer.nak(0, NakCode::InvalidRequest);
    lost(&mut peer, QpErrorCause::PeerInvalidRequest, &[(1, RemInvReqErr)]);
}

#[test]
fn rnr_exceeded() {
    let mut peer = requester(7, 3);
    post(&mut peer, 1, SEND, 1);
    post(&mut peer, 2, WRITE, 1);
    for _ in 0..3 {
        assert_eq!(until_retry(&mut peer).len(), 2);
        peer.answer(0, Syndrome::Rnr { timer: 1 });
    }
    assert_eq!(until_retry(&mut peer).len(), 2);
    peer.answer(0, Syndrome::Rnr { timer: 1 });
    peer.expect([]);
    lost(&mut peer, QpErrorCause::RnrRetryExceeded, &[(1, RnrRetryExcErr), (2, WrFlushErr)]);
}

// [RC-REQ-RNR-COUNT]
#[test]
fn rnr_not_exceeded() {
    // As often as agreed, and then it is ready.
    let mut peer = requester(7, 3);
    post(&mut peer, 1, SEND, 1);
    for _ in 0..3 {
        assert_eq!(until_retry(&mut peer), ["SEND_ONLY 0 1 bytes ack_req"]);
        peer.answer(0, Syndrome::Rnr { timer: 1 });
    }
    assert_eq!(until_retry(&mut peer).len(), 1);
    peer.ack(0);
    // The count restarts with the next message.
    post(&mut peer, 2, SEND, 1);
    for _ in 0..3 {
        assert_eq!(until_retry(&mut peer), ["SEND_ONLY 1 1 bytes ack_req"]);
        peer.answer(1, Syndrome::Rnr { timer: 1 });
    }
    assert_eq!(until_retry(&mut peer).len(), 1);
    peer.ack(1);
    assert_eq!(completed(&mut peer), [(1, Success), (2, Success)]);

    // The responder asks for it again and again, and executes once.
    let mut peer = ScriptedPeer::new();
    for _ in 0..5 {
        peer.request(SendOnly, 0, Ack, b"x");
        peer.expect(["RNR_NAK 0 timer 1 msn 0"]);
    }
    peer.node.post_recv(1, &[peer.node.sge(0, 8)]);
    peer.request(SendOnly, 0, Ack, b"x");
    peer.expect(["ACK 0 msn 1"]);
    assert_eq!(completed(&mut peer), [(1, Success)]);
}

#[test]
fn psn_retry_exceeded() {
    // The peer says each time that the packet is missing, and it never comes. (That it says so only once for each time
    // is the rule; the clock does the rest.)
    let mut peer = requester(2, 7);
    post(&mut peer, 1, SEND, 1);
    post(&mut peer, 2, SEND, 1);
    assert_eq!(until_retry(&mut peer).len(), 2);
    let mut tries = 0;
    while peer.node.state() == QpState::Rts {
        peer.nak(0, NakCode::PsnSequence);
        until_retry(&mut peer);
        tries += 1;
        assert!(tries < 10);
    }
    peer.expect([]);
    lost(&mut peer, QpErrorCause::RetryExceeded, &[(1, RetryExcErr), (2, WrFlushErr)]);
    assert_eq!(peer.node.stat("retry_exceeded_err"), 1);
    // Or never answers.
    let mut peer = requester(2, 7);
    post(&mut peer, 1, READ, 8);
    for _ in 0..3 {
        assert_eq!(until_retry(&mut peer).len(), 1);
    }
    assert_eq!(until_retry(&mut peer).len(), 0);
    lost(&mut peer, QpErrorCause::RetryExceeded, &[(1, RetryExcErr)]);
}

#[test]
fn psn_retry_not_exceeded() {
    let mut peer = requester(2, 7);
    for wr_id in 0..20 {
        post(&mut peer, wr_id, SEND, 1);
    }
    assert_eq!(until_retry(&mut peer).len(), 20);
    // Every message is lost as often as may be.
    for psn in 0..20 {
        peer.nak(psn, NakCode::PsnSequence);
        assert_eq!(until_retry(&mut peer).len(), 20 - psn as usize);
        assert_eq!(until_retry(&mut peer).len(), 20 - psn as usize);
        peer.ack(psn);
    }
    let done: Vec<_> = (0..20).map(|id| (id, Success)).collect();
    assert_eq!((completed(&mut peer), errors(&mut peer)), (done, vec![]));

    // The responder says it once, and takes up where it was.
    let mut peer = responder();
    peer.request(SendLast, 1, Ack, b"end");
    peer.expect(["NAK 0 PsnSequence msn 0"]);
    peer.request(SendFirst, 0, NoAck, &[1; 1024]);
    peer.request(SendLast, 1, Ack, b"end");
    peer.expect(["ACK 1 msn 1"]);
    assert_eq!(completed(&mut peer), [(1, Success)]);
}

// [RC-RSP-DUP-READ-FIRST] [RC-REQ-READ-REST] [RC-REQ-READ-BEGIN]
#[test]
fn partial_retry_read() {
    let mut peer = requester(7, 7);
    post(&mut peer, 1, READ, 4 * 1024);
    peer.expect(["READ_REQUEST 0 va 0x10000 len 4096 ack_req"]);
    peer.read_response(ReadResponseFirst, 0, &[1; 1024]);
    peer.read_response(ReadResponseMiddle, 1, &[2; 1024]);
    // Only the missing responses are requested again.
    assert_eq!(until_retry(&mut peer), ["READ_REQUEST 2 va 0x10800 len 2048 ack_req"]);
    peer.read_response(ReadResponseFirst, 2, &[3; 1024]);
    peer.read_response(ReadResponseLast, 3, &[4; 1024]);
    assert_eq!(completed(&mut peer), [(1, Success)]);
    for block in 0..4 {
        assert_eq!(peer.node.read(block * 1024, 1024), [block as u8 + 1; 1024]);
    }

    // As responder: from where the peer asks.
    let mut peer = responder();
    peer.rdma(ReadRequest, 0, Ack, 0, 4096, b"");
    assert_eq!(peer.transmit().len(), 4);
    peer.rdma(ReadRequest, 2, Ack, 2048, 2048, b"");
    peer.expect(["READ_RESPONSE_FIRST 2 msn 1 1024 bytes", "READ_RESPONSE_LAST 3 msn 1 1024 bytes"]);
    peer.rdma(ReadRequest, 4, Ack, 0, 1, b"");
    peer.expect(["READ_RESPONSE_ONLY 4 msn 2 1 bytes"]);
}

// [RC-REQ-TIMEOUT]
#[test]
fn partial_retry_write() {
    let mut peer = requester(7, 7);
    post(&mut peer, 1, WRITE, 4 * 1024);
    assert_eq!(peer.transmit().len(), 4);
    peer.ack(1);
    // In the middle of the message: no address again.
    assert_eq!(until_retry(&mut peer), ["WRITE_MIDDLE 2 1024 bytes ack_req", "WRITE_LAST 3 1024 bytes ack_req"]);
    peer.nak(3, NakCode::PsnSequence);
    peer.expect(["WRITE_LAST 3 1024 bytes ack_req"]);
    peer.ack(3);
    assert_eq!(completed(&mut peer), [(1, Success)]);

    // As responder: repeated packets are not written again, the missing ones go where they belong.
    let mut peer = responder();
    peer.rdma(WriteFirst, 0, NoAck, 0, 3072, &[1; 1024]);
    peer.request(WriteMiddle, 1, NoAck, &[2; 1024]);
    peer.node.write(0, &[7; 2048]);
    peer.rdma(WriteFirst, 0, NoAck, 0, 3072, &[1; 1024]);
    peer.request(WriteMiddle, 1, NoAck, &[2; 1024]);
    peer.request(WriteLast, 2, Ack, &[3; 1024]);
    peer.expect(["ACK 2 msn 1"]);
    assert_eq!((peer.node.read(0, 2048), peer.node.read(2048, 1024)), (vec![7; 2048], vec![3; 1024]));
}

// [RC-RSP-RECV-KEY]
#[test]
fn remote_operational_error() {
    // A receive of ours that cannot be written to.
    let mut peer = ScriptedPeer::new();
    peer.node.post_recv(1, &[Sge { addr: 0, length: 100, lkey: 4711 }]);
    peer.node.post_recv(2, &[]);
    peer.request(SendOnly, 0, Ack, b"x");
    peer.expect(["NAK 0 RemoteOperational msn 0"]);
    lost(&mut peer, QpErrorCause::ReceiveKey, &[(1, LocProtErr), (2, WrFlushErr)]);

    let mut peer = requester(7, 7);
    post(&mut peer, 1, SEND, 1);
    post(&mut peer, 2, SEND, 1);
    assert_eq!(peer.transmit().len(), 2);
    peer.nak(0, NakCode::RemoteOperational);
    peer.advance(Duration::from_secs(1));
    peer.expect([]);
    lost(&mut peer, QpErrorCause::PeerOperational, &[(1, RemOpErr), (2, WrFlushErr)]);
}
