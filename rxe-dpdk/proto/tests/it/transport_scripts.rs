//! Errors as short scripts, one side played by hand: what goes wrong, what the engine says to the peer, and what it tells
//! its consumer.

use crate::harness::Agreed;
use crate::harness::ops::*;
use crate::harness::solo::{Ask, Solo};
use rxe_proto::Duration;
use rxe_proto::transport::{QpErrorCause, QpState, Sge, WcStatus};
use rxe_proto::wire::{NakCode, Opcode, Psn, Syndrome};

use Ask::{Ack, Nothing};
use Opcode::*;
use WcStatus::*;

/// As requester, with these retry counts.
fn requester(retry_cnt: u8, rnr_retry: u8) -> Solo {
    Solo::with(Agreed { retry_cnt, rnr_retry, sq_psn: Psn::new(0xFF_FFFE), ..Agreed::default() })
}

/// As responder, with a receive of 4096 bytes.
fn responder() -> Solo {
    let mut solo = Solo::new();
    let sge = solo.node.sge(0x8000, 4096);
    solo.node.post_recv(1, &[sge]);
    solo
}

#[track_caller]
fn lost(solo: &mut Solo, cause: QpErrorCause, completions: &[(u64, WcStatus)]) {
    assert_eq!(errors(solo), [cause]);
    assert_eq!(completed(solo), completions);
    assert_eq!(solo.node.state(), QpState::Error);
    // Silent for ever.
    solo.advance(Duration::from_secs(10));
    solo.expect([]);
    assert_eq!((solo.node.engine.next_timeout(), solo.node.take_completions()), (None, vec![]));
}

/// Time passes until the engine writes again.
fn until_retry(solo: &mut Solo) -> Vec<String> {
    for _ in 0..64 {
        let lines = solo.transmit();
        if !lines.is_empty() || solo.node.state() == QpState::Error {
            return lines;
        }
        let at = solo.node.engine.next_timeout().expect("waits for nothing");
        solo.advance(at - solo.now);
    }
    panic!("never tries again");
}

// [RC-REQ-GHOST]
#[test]
fn ghost_ack() {
    let mut solo = requester(7, 7);
    // Nothing sent yet.
    solo.ack(0);
    post(&mut solo, 1, SEND, 10);
    solo.expect(["SEND_ONLY 0 10 bytes ask"]);
    // For what comes after it.
    solo.ack(1);
    solo.nak(1, NakCode::RemoteAccess);
    solo.atomic_response(5, 1);
    assert_eq!(completed(&mut solo), []);
    solo.ack(0);
    // For what is done.
    solo.ack(0);
    assert_eq!(completed(&mut solo), [(1, Success)]);
    assert_eq!((solo.node.stat("ghost_responses"), solo.node.dropped("response_unexpected")), (4, 4));
    assert_eq!((solo.node.state(), solo.node.dropped("response_stale")), (QpState::Rts, 1));
}

// [RC-REQ-BAD-RESPONSE]
#[test]
fn bad_response() {
    // Shorter than asked for, longer, an end too early, no end where it must be.
    for (op, len) in [(ReadResponseOnly, 7), (ReadResponseOnly, 9), (ReadResponseFirst, 8)] {
        let mut solo = requester(7, 7);
        post(&mut solo, 1, READ, 8);
        post(&mut solo, 2, SEND, 1);
        assert_eq!(solo.transmit().len(), 2);
        solo.read_response(op, 0, &vec![1; len]);
        solo.expect([]);
        lost(&mut solo, QpErrorCause::BadResponse, &[(1, BadRespErr), (2, WrFlushErr)]);
    }
    let mut solo = requester(7, 7);
    post(&mut solo, 1, READ, 2048);
    assert_eq!(solo.transmit().len(), 1);
    solo.read_response(ReadResponseLast, 0, &[1; 1024]);
    lost(&mut solo, QpErrorCause::BadResponse, &[(1, BadRespErr)]);
}

#[test]
fn rkey_violation() {
    let key = 0x1234_5678;
    type Request = fn(&mut Solo, u32);
    let requests: [(&str, Request); 3] = [
        ("WRITE", |solo, key| solo.rdma_raw(WriteOnly, 1, Ack, 0x1_0000, key, 4, b"evil")),
        ("READ", |solo, key| solo.rdma_raw(ReadRequest, 1, Ack, 0x1_0000, key, 4, b"")),
        ("atomic", |solo, key| {
            let frame = solo.frame(FetchAdd, solo.agreed.rq_psn.add(1), Ack, b"", |packet| {
                packet.atomic_eth(0x1_0000, key, 1, 0);
            });
            solo.inject(&frame);
        }),
    ];
    for (name, request) in requests {
        let mut solo = responder();
        solo.request(SendOnly, 0, Nothing, b"fine");
        request(&mut solo, key);
        assert_eq!(solo.transmit(), ["NAK 1 RemoteAccess msn 1"], "{name}");
        lost(&mut solo, QpErrorCause::RemoteKey, &[(1, Success)]);
        assert_eq!(solo.node.read(0, 4), [0; 4], "{name}");
    }
    // Told so by the peer: what came before is done, what came after is flushed.
    let mut solo = requester(7, 7);
    post(&mut solo, 1, SEND, 1);
    post(&mut solo, 2, WRITE, 1);
    post(&mut solo, 3, SEND, 1);
    assert_eq!(solo.transmit().len(), 3);
    solo.nak(1, NakCode::RemoteAccess);
    solo.expect([]);
    lost(&mut solo, QpErrorCause::PeerAccess, &[(1, Success), (2, RemAccessErr), (3, WrFlushErr)]);
}

#[test]
fn unexpected_opcode() {
    let mut solo = responder();
    solo.request(SendFirst, 0, Nothing, &[1; 1024]);
    solo.request(WriteLast, 1, Ack, b"of what?");
    solo.expect(["NAK 1 InvalidRequest msn 0"]);
    lost(&mut solo, QpErrorCause::OpcodeSequence, &[(1, RemInvReqErr)]);

    // A response of another kind than asked for answers nothing; the right one still does.
    let mut solo = requester(7, 7);
    post(&mut solo, 1, READ, 8);
    post(&mut solo, 2, FADD, 8);
    assert_eq!(solo.transmit().len(), 2);
    solo.atomic_response(0, 1);
    solo.ack(0);
    solo.read_response(ReadResponseOnly, 0, &[1; 8]);
    solo.read_response(ReadResponseOnly, 1, &[1; 8]);
    assert_eq!(completed(&mut solo), [(1, Success)]);
    solo.atomic_response(1, 1);
    assert_eq!((completed(&mut solo), solo.node.dropped("response_unexpected")), (vec![(2, Success)], 3));

    let mut solo = requester(7, 7);
    post(&mut solo, 1, SEND, 1);
    assert_eq!(solo.transmit().len(), 1);
    solo.nak(0, NakCode::InvalidRequest);
    lost(&mut solo, QpErrorCause::PeerInvalidRequest, &[(1, RemInvReqErr)]);
}

#[test]
fn rnr_exceeded() {
    let mut solo = requester(7, 3);
    post(&mut solo, 1, SEND, 1);
    post(&mut solo, 2, WRITE, 1);
    for _ in 0..3 {
        assert_eq!(until_retry(&mut solo).len(), 2);
        solo.answer(0, Syndrome::Rnr { timer: 1 });
    }
    assert_eq!(until_retry(&mut solo).len(), 2);
    solo.answer(0, Syndrome::Rnr { timer: 1 });
    solo.expect([]);
    lost(&mut solo, QpErrorCause::RnrRetryExceeded, &[(1, RnrRetryExcErr), (2, WrFlushErr)]);
}

// [RC-REQ-RNR-COUNT]
#[test]
fn rnr_not_exceeded() {
    // As often as agreed, and then it is ready.
    let mut solo = requester(7, 3);
    post(&mut solo, 1, SEND, 1);
    for _ in 0..3 {
        assert_eq!(until_retry(&mut solo), ["SEND_ONLY 0 1 bytes ask"]);
        solo.answer(0, Syndrome::Rnr { timer: 1 });
    }
    assert_eq!(until_retry(&mut solo).len(), 1);
    solo.ack(0);
    // The count starts anew with the next message.
    post(&mut solo, 2, SEND, 1);
    for _ in 0..3 {
        assert_eq!(until_retry(&mut solo), ["SEND_ONLY 1 1 bytes ask"]);
        solo.answer(1, Syndrome::Rnr { timer: 1 });
    }
    assert_eq!(until_retry(&mut solo).len(), 1);
    solo.ack(1);
    assert_eq!(completed(&mut solo), [(1, Success), (2, Success)]);

    // The responder asks for it again and again, and executes once.
    let mut solo = Solo::new();
    for _ in 0..5 {
        solo.request(SendOnly, 0, Ack, b"x");
        solo.expect(["RNR_NAK 0 timer 1 msn 0"]);
    }
    solo.node.post_recv(1, &[solo.node.sge(0, 8)]);
    solo.request(SendOnly, 0, Ack, b"x");
    solo.expect(["ACK 0 msn 1"]);
    assert_eq!(completed(&mut solo), [(1, Success)]);
}

#[test]
fn psn_retry_exceeded() {
    // The peer says each time that the packet is missing, and it never comes. (That it says so only once for each time is
    // the rule; the clock does the rest.)
    let mut solo = requester(2, 7);
    post(&mut solo, 1, SEND, 1);
    post(&mut solo, 2, SEND, 1);
    assert_eq!(until_retry(&mut solo).len(), 2);
    let mut tries = 0;
    while solo.node.state() == QpState::Rts {
        solo.nak(0, NakCode::PsnSequence);
        until_retry(&mut solo);
        tries += 1;
        assert!(tries < 10);
    }
    solo.expect([]);
    lost(&mut solo, QpErrorCause::RetryExceeded, &[(1, RetryExcErr), (2, WrFlushErr)]);
    assert_eq!(solo.node.stat("retry_exceeded_err"), 1);
    // Or says nothing at all.
    let mut solo = requester(2, 7);
    post(&mut solo, 1, READ, 8);
    for _ in 0..3 {
        assert_eq!(until_retry(&mut solo).len(), 1);
    }
    assert_eq!(until_retry(&mut solo).len(), 0);
    lost(&mut solo, QpErrorCause::RetryExceeded, &[(1, RetryExcErr)]);
}

#[test]
fn psn_retry_not_exceeded() {
    let mut solo = requester(2, 7);
    for wr_id in 0..20 {
        post(&mut solo, wr_id, SEND, 1);
    }
    assert_eq!(until_retry(&mut solo).len(), 20);
    // Every message is lost as often as may be.
    for psn in 0..20 {
        solo.nak(psn, NakCode::PsnSequence);
        assert_eq!(until_retry(&mut solo).len(), 20 - psn as usize);
        assert_eq!(until_retry(&mut solo).len(), 20 - psn as usize);
        solo.ack(psn);
    }
    let done: Vec<_> = (0..20).map(|id| (id, Success)).collect();
    assert_eq!((completed(&mut solo), errors(&mut solo)), (done, vec![]));

    // The responder says it once, and takes up where it was.
    let mut solo = responder();
    solo.request(SendLast, 1, Ack, b"end");
    solo.expect(["NAK 0 PsnSequence msn 0"]);
    solo.request(SendFirst, 0, Nothing, &[1; 1024]);
    solo.request(SendLast, 1, Ack, b"end");
    solo.expect(["ACK 1 msn 1"]);
    assert_eq!(completed(&mut solo), [(1, Success)]);
}

// [RC-RSP-DUP-READ-FIRST] [RC-REQ-READ-REST] [RC-REQ-READ-BEGIN]
#[test]
fn partial_retry_read() {
    let mut solo = requester(7, 7);
    post(&mut solo, 1, READ, 4 * 1024);
    solo.expect(["READ_REQUEST 0 va 0x10000 len 4096 ask"]);
    solo.read_response(ReadResponseFirst, 0, &[1; 1024]);
    solo.read_response(ReadResponseMiddle, 1, &[2; 1024]);
    // The rest is asked for, not what has come.
    assert_eq!(until_retry(&mut solo), ["READ_REQUEST 2 va 0x10800 len 2048 ask"]);
    solo.read_response(ReadResponseFirst, 2, &[3; 1024]);
    solo.read_response(ReadResponseLast, 3, &[4; 1024]);
    assert_eq!(completed(&mut solo), [(1, Success)]);
    for block in 0..4 {
        assert_eq!(solo.node.read(block * 1024, 1024), [block as u8 + 1; 1024]);
    }

    // As responder: from where the peer asks.
    let mut solo = responder();
    solo.rdma(ReadRequest, 0, Ack, 0, 4096, b"");
    assert_eq!(solo.transmit().len(), 4);
    solo.rdma(ReadRequest, 2, Ack, 2048, 2048, b"");
    solo.expect(["READ_RESPONSE_FIRST 2 msn 1 1024 bytes", "READ_RESPONSE_LAST 3 msn 1 1024 bytes"]);
    solo.rdma(ReadRequest, 4, Ack, 0, 1, b"");
    solo.expect(["READ_RESPONSE_ONLY 4 msn 2 1 bytes"]);
}

// [RC-REQ-TIMEOUT]
#[test]
fn partial_retry_write() {
    let mut solo = requester(7, 7);
    post(&mut solo, 1, WRITE, 4 * 1024);
    assert_eq!(solo.transmit().len(), 4);
    solo.ack(1);
    // In the middle of the message: no address again.
    assert_eq!(until_retry(&mut solo), ["WRITE_MIDDLE 2 1024 bytes ask", "WRITE_LAST 3 1024 bytes ask"]);
    solo.nak(3, NakCode::PsnSequence);
    solo.expect(["WRITE_LAST 3 1024 bytes ask"]);
    solo.ack(3);
    assert_eq!(completed(&mut solo), [(1, Success)]);

    // As responder: repeated packets are not written again, the missing ones go where they belong.
    let mut solo = responder();
    solo.rdma(WriteFirst, 0, Nothing, 0, 3072, &[1; 1024]);
    solo.request(WriteMiddle, 1, Nothing, &[2; 1024]);
    solo.node.write(0, &[7; 2048]);
    solo.rdma(WriteFirst, 0, Nothing, 0, 3072, &[1; 1024]);
    solo.request(WriteMiddle, 1, Nothing, &[2; 1024]);
    solo.request(WriteLast, 2, Ack, &[3; 1024]);
    solo.expect(["ACK 2 msn 1"]);
    assert_eq!((solo.node.read(0, 2048), solo.node.read(2048, 1024)), (vec![7; 2048], vec![3; 1024]));
}

// [RC-RSP-RECV-KEY]
#[test]
fn remote_operational_error() {
    // A receive of ours that cannot be written to.
    let mut solo = Solo::new();
    solo.node.post_recv(1, &[Sge { addr: 0, length: 100, lkey: 4711 }]);
    solo.node.post_recv(2, &[]);
    solo.request(SendOnly, 0, Ack, b"x");
    solo.expect(["NAK 0 RemoteOperational msn 0"]);
    lost(&mut solo, QpErrorCause::ReceiveKey, &[(1, LocProtErr), (2, WrFlushErr)]);

    let mut solo = requester(7, 7);
    post(&mut solo, 1, SEND, 1);
    post(&mut solo, 2, SEND, 1);
    assert_eq!(solo.transmit().len(), 2);
    solo.nak(0, NakCode::RemoteOperational);
    solo.advance(Duration::from_secs(1));
    solo.expect([]);
    lost(&mut solo, QpErrorCause::PeerOperational, &[(1, RemOpErr), (2, WrFlushErr)]);
}
