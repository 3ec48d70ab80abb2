//! As many as there may be: READs and atomics outstanding, buffers of one work request; message sequence numbers in
//! every reply; draining; congestion notifications.

use crate::harness::ops::*;
use crate::harness::scripted_peer::{AckReq, PEER_QPN, ScriptedPeer};
use crate::harness::{Agreed, Rng};
use rxe_proto::Duration;
use rxe_proto::transport::{
    AsyncEvent, EngineConfig, QpCaps, QpInit, QpState, QpTransition, QpType, Qpn, SendFlags, SendOp, Sge, WcStatus,
};
use rxe_proto::wire::{Frame, Opcode, Psn, classify};

use AckReq::{Ack, NoAck};
use Opcode::*;

/// With a depth of 128 both ways, and queues of 256.
fn deep(sges: u32) -> ScriptedPeer {
    let agreed =
        Agreed { rd_atomic: 128, sq_psn: Psn::new(0xFF_FFC0), rq_psn: Psn::new(0xFF_FFC0), ..Agreed::default() };
    let mut peer = ScriptedPeer::with_config(agreed, EngineConfig { window: 1024, ..EngineConfig::default() });
    let (pd, cq) = (peer.node.pd, peer.node.cq);
    let caps =
        QpCaps { max_send_wr: 256, max_recv_wr: 256, max_send_sge: sges, max_recv_sge: sges, max_inline_data: 0 };
    let qp_type = QpType::Rc;
    let init = QpInit { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: false };
    let qpn = peer.node.engine.create_qp(peer.now, &init).unwrap();
    let access = agreed.access;
    peer.node.engine.modify_qp(qpn, QpTransition::ToInit { access }).unwrap();
    peer.node.qpn = qpn;
    peer.node.ready_to_receive(2, Qpn::new(PEER_QPN), &agreed);
    peer.node.ready_to_send(&agreed);
    peer
}

#[test]
fn a_hundred_and_twenty_eight_requests_served() {
    let mut peer = deep(1);
    for psn in 0..128 {
        match psn % 2 {
            0 => peer.rdma(ReadRequest, psn, Ack, 0, 8, b""),
            _ => peer.atomic(FetchAdd, psn, 8, 1, 0),
        }
    }
    let expected: Vec<String> = (0..128)
        .map(|psn| match psn % 2 {
            0 => format!("READ_RESPONSE_ONLY {psn} msn {} 8 bytes", psn + 1),
            _ => format!("ATOMIC_ACKNOWLEDGE {psn} msn {} value {}", psn + 1, psn / 2),
        })
        .collect();
    assert_eq!(peer.transmit(), expected);
    // All of them are remembered, the atomics with their values.
    for psn in (1..128).step_by(2) {
        peer.atomic(FetchAdd, psn, 8, 1, 0);
    }
    let again: Vec<_> = expected.iter().skip(1).step_by(2).cloned().collect();
    assert_eq!(peer.transmit(), again);
    assert_eq!(peer.node.read(8, 8), 64u64.to_ne_bytes());
    // One more than agreed without an answer.
    for psn in 128..257 {
        peer.rdma(ReadRequest, psn, Ack, 0, 1, b"");
    }
    let lines = peer.transmit();
    assert_eq!((lines.len(), lines.last().map(String::as_str)), (129, Some("NAK 256 InvalidRequest msn 256")));
}

#[test]
fn a_hundred_and_twenty_eight_requests_of_ours() {
    let mut peer = deep(1);
    for wr_id in 0..200 {
        post(&mut peer, wr_id, if wr_id % 2 == 0 { READ } else { FADD }, 8);
    }
    assert_eq!(peer.transmit().len(), 128);
    assert!(peer.node.stat("rd_atomic_stalls") > 0);
    for psn in 0..72 {
        answer(&mut peer, psn);
        assert_eq!(peer.transmit().len(), 1, "each answer makes room for one");
    }
    for psn in 72..200 {
        answer(&mut peer, psn);
    }
    let done: Vec<_> = completed(&mut peer);
    assert_eq!(done, (0..200).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
}

fn answer(peer: &mut ScriptedPeer, psn: i32) {
    match psn % 2 {
        0 => peer.read_response(ReadResponseOnly, psn, &[1; 8]),
        _ => peer.atomic_response(psn, 1),
    }
}

// [RC-RSP-MSN]
#[test]
fn every_reply_says_how_many_messages_are_complete() {
    let mut peer = ScriptedPeer::new();
    for wr_id in 0..2 {
        let sge = peer.node.sge(0x8000, 4096);
        peer.node.post_recv(wr_id, &[sge]);
    }
    peer.request(SendOnly, 0, Ack, b"1");
    peer.expect(["ACK 0 msn 1"]);
    peer.rdma(WriteFirst, 1, Ack, 0, 1025, &[0; 1024]);
    peer.expect(["ACK 1 msn 1"]);
    peer.request(WriteLast, 2, Ack, b"2");
    peer.expect(["ACK 2 msn 2"]);
    peer.rdma(ReadRequest, 3, Ack, 0, 2049, b"");
    peer.atomic(FetchAdd, 6, 0, 1, 0);
    peer.rdma(ReadRequest, 7, Ack, 0, 0, b"");
    peer.request(SendFirst, 8, Ack, &[0; 1024]);
    peer.expect([
        "READ_RESPONSE_FIRST 3 msn 3 1024 bytes",
        "READ_RESPONSE_MIDDLE 4 1024 bytes",
        "READ_RESPONSE_LAST 5 msn 3 1 bytes",
        "ATOMIC_ACKNOWLEDGE 6 msn 4 value 0",
        "READ_RESPONSE_ONLY 7 msn 5",
        "ACK 8 msn 5",
    ]);
    // A gap, its end, a repeat of each kind, a receiver that is not ready, and a refusal.
    peer.request(SendOnly, 10, Ack, b"x");
    peer.expect(["NAK 9 PsnSequence msn 5"]);
    peer.request(SendLast, 9, Ack, b"6");
    peer.expect(["ACK 9 msn 6"]);
    peer.request(SendOnly, 0, Ack, b"1");
    peer.expect(["ACK 9 msn 6"]);
    peer.rdma(ReadRequest, 5, Ack, 2048, 1, b"");
    peer.atomic(FetchAdd, 6, 0, 1, 0);
    peer.expect(["READ_RESPONSE_ONLY 5 msn 3 1 bytes", "ATOMIC_ACKNOWLEDGE 6 msn 4 value 0"]);
    peer.request(SendOnly, 10, Ack, b"x");
    peer.expect(["RNR_NAK 10 timer 1 msn 6"]);
    peer.request(SendMiddle, 10, Ack, b"x");
    peer.expect(["NAK 10 InvalidRequest msn 6"]);
}

#[test]
fn thirty_two_buffers() {
    let mut peer = deep(32);
    let mut rng = Rng(5);
    let mut source = vec![0; 0x4000];
    rng.fill(&mut source);
    peer.node.write(0, &source);
    // Uneven, some empty, more than a packet together.
    let mut pieces = |from: usize| -> Vec<(usize, usize)> {
        (0..32).map(|i| (from + i * 0x200, if i % 7 == 3 { 0 } else { rng.below(0x1F0) as usize })).collect()
    };
    let (sent, room) = (pieces(0), pieces(0x4000));
    let sges = |peer: &ScriptedPeer, pieces: &[(usize, usize)]| -> Vec<Sge> {
        pieces.iter().map(|&(offset, len)| peer.node.sge(offset, len)).collect()
    };
    let message: Vec<u8> = sent.iter().flat_map(|&(offset, len)| source[offset..offset + len].to_vec()).collect();
    assert!(message.len() > 3 * 1024);
    let list = sges(&peer, &sent);
    peer.node.post_send(1, SEND, &list);
    peer.transmit();
    let written: Vec<u8> = peer
        .frames
        .iter()
        .flat_map(|frame| {
            let Ok(Frame::Roce(packet)) = classify(frame) else { panic!() };
            packet.payload().to_vec()
        })
        .collect();
    assert!(written == message, "gathered");
    // And scattered: a message as long as the receive's buffers together.
    let list = sges(&peer, &room);
    peer.node.post_recv(2, &list);
    let total: usize = room.iter().map(|piece| piece.1).sum();
    let bytes = &source[..total];
    let chunks: Vec<&[u8]> = bytes.chunks(1024).collect();
    for (psn, chunk) in (0..).zip(&chunks) {
        let op = match psn {
            0 => SendFirst,
            _ if psn as usize + 1 == chunks.len() => SendLast,
            _ => SendMiddle,
        };
        peer.request(op, psn, NoAck, chunk);
    }
    let [wc] = peer.node.take_completions()[..] else { panic!() };
    assert_eq!((wc.wr_id, wc.byte_len as usize), (2, total));
    let landed: Vec<u8> = room.iter().flat_map(|&(offset, len)| peer.node.read(offset, len)).collect();
    assert!(landed == bytes, "scattered");
}

// [REQ-SQD]
#[test]
fn draining_waits_for_reads_and_goes_on_serving() {
    let mut peer = ScriptedPeer::new();
    let qpn = peer.node.qpn;
    peer.node.engine.established(qpn);
    post(&mut peer, 1, READ, 8);
    post(&mut peer, 2, WRITE, 8);
    assert_eq!(peer.transmit().len(), 2);
    post(&mut peer, 3, WRITE, 8);
    peer.node.engine.modify_qp(qpn, QpTransition::ToSqd).unwrap();
    peer.expect([]);
    // Requests of the peer are served meanwhile, and lost packets repeated.
    peer.rdma(ReadRequest, 0, Ack, 0, 1, b"");
    peer.expect(["READ_RESPONSE_ONLY 0 msn 1 1 bytes"]);
    peer.advance(TIMEOUT);
    assert_eq!(peer.transmit().len(), 2, "again, and nothing new");
    peer.read_response(ReadResponseOnly, 0, &[1; 8]);
    assert_eq!(peer.node.take_events(), []);
    peer.ack(1);
    assert_eq!(peer.node.take_events(), [AsyncEvent::SendQueueDrained { qpn }]);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    // The event is raised once; and at once when there is nothing to wait for.
    peer.expect([]);
    assert_eq!(peer.node.take_events(), []);
    peer.node.engine.modify_qp(qpn, QpTransition::Resume).unwrap();
    assert_eq!(peer.transmit().len(), 1);
    peer.ack(2);
    peer.node.engine.modify_qp(qpn, QpTransition::ToSqd).unwrap();
    assert_eq!(peer.node.take_events(), [AsyncEvent::SendQueueDrained { qpn }]);
}

// [REQ-SQD]
#[test]
fn draining_an_unreliable_queue_pair_finishes_the_message() {
    let mut peer = ScriptedPeer::of(QpType::Uc, false, Agreed::default(), EngineConfig::default());
    let qpn = peer.node.qpn;
    for wr_id in 1..3 {
        post(&mut peer, wr_id, SEND, 2000);
    }
    assert_eq!(peer.transmit_at_most(Some(1)), ["UC SEND_FIRST 0 1024 bytes"]);
    peer.node.engine.modify_qp(qpn, QpTransition::ToSqd).unwrap();
    assert_eq!(peer.node.take_events(), []);
    peer.expect(["UC SEND_LAST 1 976 bytes"]);
    assert_eq!(peer.node.take_events(), [AsyncEvent::SendQueueDrained { qpn }]);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success)]);
    peer.node.engine.modify_qp(qpn, QpTransition::Resume).unwrap();
    peer.expect(["UC SEND_FIRST 2 1024 bytes", "UC SEND_LAST 3 976 bytes"]);
}

// [ECN-CNP]
#[test]
fn one_congestion_notification_for_each_interval() {
    const INTERVAL: Duration = Duration::from_micros(50);
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut peer = ScriptedPeer::of(qp_type, false, Agreed::default(), EngineConfig::default());
        let mut psn = 0;
        let mut write = |peer: &mut ScriptedPeer| {
            peer.rdma(WriteOnly, psn, NoAck, 0, 1, b"w");
            psn += 1;
        };
        write(&mut peer);
        peer.expect([]);
        peer.mark_congestion(true);
        for _ in 0..10 {
            write(&mut peer);
        }
        peer.expect(["CNP"]);
        peer.advance(INTERVAL - Duration::from_nanos(1));
        write(&mut peer);
        peer.expect([]);
        peer.advance(Duration::from_nanos(1));
        write(&mut peer);
        // No room: it is kept.
        assert_eq!(peer.transmit_at_most(Some(0)), [""; 0]);
        peer.expect(["CNP"]);
        peer.advance(10 * INTERVAL);
        peer.mark_congestion(false);
        write(&mut peer);
        peer.expect([]);
        assert_eq!((peer.node.stat("ecn_marked"), peer.node.stat("cnps_sent")), (12, 2), "{qp_type}");
        assert_eq!(peer.node.engine.query_qp(peer.node.qpn).unwrap().cnps, (0, 2));
    }
}

// [ECN-CNP]
#[test]
fn a_marked_response_causes_a_cnp_and_notifications_are_counted() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, SEND, 1);
    assert_eq!(peer.transmit().len(), 1);
    peer.mark_congestion(true);
    peer.ack(0);
    peer.expect(["CNP"]);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success)]);
    // A notification is counted, not answered, and no reason to establish anything.
    peer.mark_congestion(false);
    peer.notify_congestion();
    peer.notify_congestion();
    peer.expect([]);
    assert_eq!((peer.node.stat("cnps_rcvd"), peer.node.take_events().len()), (2, 0));
    assert_eq!(peer.node.engine.query_qp(peer.node.qpn).unwrap().cnps, (2, 1));
    // Dropped packets are not counted: a damaged one, and one to a queue pair in ERROR.
    peer.mark_congestion(true);
    let mut damaged = peer.frame(SendOnly, peer.agreed.rq_psn, Ack, b"damaged", |_| {});
    let last = damaged.len() - 6;
    damaged[last] ^= 1;
    peer.inject(&damaged);
    let qpn = peer.node.qpn;
    peer.node.engine.modify_qp(qpn, QpTransition::ToError).unwrap();
    peer.notify_congestion();
    peer.expect([]);
    assert_eq!((peer.node.stat("ecn_marked"), peer.node.stat("cnps_rcvd")), (1, 2));
    assert_eq!(peer.node.state(), QpState::Error);
}

// [RC-REQ-SOLICITED]
#[test]
fn solicited_is_said_in_the_last_packet_only() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut peer = ScriptedPeer::of(qp_type, false, Agreed::default(), EngineConfig::default());
        let sge = peer.node.sge(0, 2049);
        peer.node.post_flags(1, SendOp::Send { imm: None }, &[sge], SendFlags::SOLICITED);
        let solicited: Vec<bool> = peer.transmit().iter().map(|line| line.contains("solicited")).collect();
        assert_eq!(solicited, [false, false, true], "{qp_type}");
    }
}
