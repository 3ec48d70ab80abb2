//! As many as there may be: READs and atomics outstanding, buffers of one work request; message sequence numbers in every
//! reply; draining; congestion notifications.

use crate::harness::ops::*;
use crate::harness::solo::{Ask, PEER_QPN, Solo};
use crate::harness::{Agreed, Rng};
use rxe_proto::Duration;
use rxe_proto::transport::{
    AsyncEvent, EngineConfig, QpCaps, QpInit, QpState, QpTransition, QpType, Qpn, SendFlags, SendOp, Sge, WcStatus,
};
use rxe_proto::wire::{Frame, Opcode, Psn, classify};

use Ask::{Ack, Nothing};
use Opcode::*;

/// With a depth of 128 both ways, and queues of 256.
fn deep(sges: u32) -> Solo {
    let agreed =
        Agreed { rd_atomic: 128, sq_psn: Psn::new(0xFF_FFC0), rq_psn: Psn::new(0xFF_FFC0), ..Agreed::default() };
    let mut solo = Solo::with_config(agreed, EngineConfig { window: 1024, ..EngineConfig::default() });
    let (pd, cq) = (solo.node.pd, solo.node.cq);
    let caps =
        QpCaps { max_send_wr: 256, max_recv_wr: 256, max_send_sge: sges, max_recv_sge: sges, max_inline_data: 0 };
    let qp_type = QpType::Rc;
    let init = QpInit { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: false };
    let qpn = solo.node.engine.create_qp(solo.now, &init).unwrap();
    let access = agreed.access;
    solo.node.engine.modify_qp(qpn, QpTransition::ToInit { access }).unwrap();
    solo.node.qpn = qpn;
    solo.node.ready_to_receive(2, Qpn::new(PEER_QPN), &agreed);
    solo.node.ready_to_send(&agreed);
    solo
}

#[test]
fn a_hundred_and_twenty_eight_requests_served() {
    let mut solo = deep(1);
    for psn in 0..128 {
        match psn % 2 {
            0 => solo.rdma(ReadRequest, psn, Ack, 0, 8, b""),
            _ => solo.atomic(FetchAdd, psn, 8, 1, 0),
        }
    }
    let expected: Vec<String> = (0..128)
        .map(|psn| match psn % 2 {
            0 => format!("READ_RESPONSE_ONLY {psn} msn {} 8 bytes", psn + 1),
            _ => format!("ATOMIC_ACKNOWLEDGE {psn} msn {} value {}", psn + 1, psn / 2),
        })
        .collect();
    assert_eq!(solo.transmit(), expected);
    // All of them are remembered, the atomics with their values.
    for psn in (1..128).step_by(2) {
        solo.atomic(FetchAdd, psn, 8, 1, 0);
    }
    let again: Vec<_> = expected.iter().skip(1).step_by(2).cloned().collect();
    assert_eq!(solo.transmit(), again);
    assert_eq!(solo.node.read(8, 8), 64u64.to_ne_bytes());
    // One more than agreed without an answer.
    for psn in 128..257 {
        solo.rdma(ReadRequest, psn, Ack, 0, 1, b"");
    }
    let lines = solo.transmit();
    assert_eq!((lines.len(), lines.last().map(String::as_str)), (129, Some("NAK 256 InvalidRequest msn 256")));
}

#[test]
fn a_hundred_and_twenty_eight_requests_of_ours() {
    let mut solo = deep(1);
    for wr_id in 0..200 {
        post(&mut solo, wr_id, if wr_id % 2 == 0 { READ } else { FADD }, 8);
    }
    assert_eq!(solo.transmit().len(), 128);
    assert!(solo.node.stat("rd_atomic_stalls") > 0);
    for psn in 0..72 {
        answer(&mut solo, psn);
        assert_eq!(solo.transmit().len(), 1, "each answer makes room for one");
    }
    for psn in 72..200 {
        answer(&mut solo, psn);
    }
    let done: Vec<_> = completed(&mut solo);
    assert_eq!(done, (0..200).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
}

fn answer(solo: &mut Solo, psn: i32) {
    match psn % 2 {
        0 => solo.read_response(ReadResponseOnly, psn, &[1; 8]),
        _ => solo.atomic_response(psn, 1),
    }
}

// [RC-RSP-MSN]
#[test]
fn every_reply_says_how_many_messages_are_complete() {
    let mut solo = Solo::new();
    for wr_id in 0..2 {
        let sge = solo.node.sge(0x8000, 4096);
        solo.node.post_recv(wr_id, &[sge]);
    }
    solo.request(SendOnly, 0, Ack, b"1");
    solo.expect(["ACK 0 msn 1"]);
    solo.rdma(WriteFirst, 1, Ack, 0, 1025, &[0; 1024]);
    solo.expect(["ACK 1 msn 1"]);
    solo.request(WriteLast, 2, Ack, b"2");
    solo.expect(["ACK 2 msn 2"]);
    solo.rdma(ReadRequest, 3, Ack, 0, 2049, b"");
    solo.atomic(FetchAdd, 6, 0, 1, 0);
    solo.rdma(ReadRequest, 7, Ack, 0, 0, b"");
    solo.request(SendFirst, 8, Ack, &[0; 1024]);
    solo.expect([
        "READ_RESPONSE_FIRST 3 msn 3 1024 bytes",
        "READ_RESPONSE_MIDDLE 4 1024 bytes",
        "READ_RESPONSE_LAST 5 msn 3 1 bytes",
        "ATOMIC_ACKNOWLEDGE 6 msn 4 value 0",
        "READ_RESPONSE_ONLY 7 msn 5",
        "ACK 8 msn 5",
    ]);
    // A gap, its end, a repeat of each kind, a receiver that is not ready, and a refusal.
    solo.request(SendOnly, 10, Ack, b"x");
    solo.expect(["NAK 9 PsnSequence msn 5"]);
    solo.request(SendLast, 9, Ack, b"6");
    solo.expect(["ACK 9 msn 6"]);
    solo.request(SendOnly, 0, Ack, b"1");
    solo.expect(["ACK 9 msn 6"]);
    solo.rdma(ReadRequest, 5, Ack, 2048, 1, b"");
    solo.atomic(FetchAdd, 6, 0, 1, 0);
    solo.expect(["READ_RESPONSE_ONLY 5 msn 3 1 bytes", "ATOMIC_ACKNOWLEDGE 6 msn 4 value 0"]);
    solo.request(SendOnly, 10, Ack, b"x");
    solo.expect(["RNR_NAK 10 timer 1 msn 6"]);
    solo.request(SendMiddle, 10, Ack, b"x");
    solo.expect(["NAK 10 InvalidRequest msn 6"]);
}

#[test]
fn thirty_two_buffers() {
    let mut solo = deep(32);
    let mut rng = Rng(5);
    let mut source = vec![0; 0x4000];
    rng.fill(&mut source);
    solo.node.write(0, &source);
    // Uneven, some empty, more than a packet together.
    let mut pieces = |from: usize| -> Vec<(usize, usize)> {
        (0..32).map(|i| (from + i * 0x200, if i % 7 == 3 { 0 } else { rng.below(0x1F0) as usize })).collect()
    };
    let (sent, room) = (pieces(0), pieces(0x4000));
    let sges = |solo: &Solo, pieces: &[(usize, usize)]| -> Vec<Sge> {
        pieces.iter().map(|&(offset, len)| solo.node.sge(offset, len)).collect()
    };
    let message: Vec<u8> = sent.iter().flat_map(|&(offset, len)| source[offset..offset + len].to_vec()).collect();
    assert!(message.len() > 3 * 1024);
    let list = sges(&solo, &sent);
    solo.node.post_send(1, SEND, &list);
    solo.transmit();
    let written: Vec<u8> = solo
        .frames
        .iter()
        .flat_map(|frame| {
            let Ok(Frame::Roce(packet)) = classify(frame) else { panic!() };
            packet.payload().to_vec()
        })
        .collect();
    assert!(written == message, "gathered");
    // And scattered: a message as long as the receive's buffers together.
    let list = sges(&solo, &room);
    solo.node.post_recv(2, &list);
    let total: usize = room.iter().map(|piece| piece.1).sum();
    let bytes = &source[..total];
    let chunks: Vec<&[u8]> = bytes.chunks(1024).collect();
    for (psn, chunk) in (0..).zip(&chunks) {
        let op = match psn {
            0 => SendFirst,
            _ if psn as usize + 1 == chunks.len() => SendLast,
            _ => SendMiddle,
        };
        solo.request(op, psn, Nothing, chunk);
    }
    let [wc] = solo.node.take_completions()[..] else { panic!() };
    assert_eq!((wc.wr_id, wc.byte_len as usize), (2, total));
    let landed: Vec<u8> = room.iter().flat_map(|&(offset, len)| solo.node.read(offset, len)).collect();
    assert!(landed == bytes, "scattered");
}

// [REQ-SQD]
#[test]
fn draining_waits_for_reads_and_goes_on_serving() {
    let mut solo = Solo::new();
    let qpn = solo.node.qpn;
    solo.node.engine.established(qpn);
    post(&mut solo, 1, READ, 8);
    post(&mut solo, 2, WRITE, 8);
    assert_eq!(solo.transmit().len(), 2);
    post(&mut solo, 3, WRITE, 8);
    solo.node.engine.modify_qp(qpn, QpTransition::ToSqd).unwrap();
    solo.expect([]);
    // Requests of the peer are served meanwhile, and lost packets repeated.
    solo.rdma(ReadRequest, 0, Ack, 0, 1, b"");
    solo.expect(["READ_RESPONSE_ONLY 0 msn 1 1 bytes"]);
    solo.advance(TIMEOUT);
    assert_eq!(solo.transmit().len(), 2, "again, and nothing new");
    solo.read_response(ReadResponseOnly, 0, &[1; 8]);
    assert_eq!(solo.node.take_events(), []);
    solo.ack(1);
    assert_eq!(solo.node.take_events(), [AsyncEvent::SendQueueDrained { qpn }]);
    assert_eq!(completed(&mut solo), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    // Said once; and at once when there is nothing to wait for.
    solo.expect([]);
    assert_eq!(solo.node.take_events(), []);
    solo.node.engine.modify_qp(qpn, QpTransition::Resume).unwrap();
    assert_eq!(solo.transmit().len(), 1);
    solo.ack(2);
    solo.node.engine.modify_qp(qpn, QpTransition::ToSqd).unwrap();
    assert_eq!(solo.node.take_events(), [AsyncEvent::SendQueueDrained { qpn }]);
}

// [REQ-SQD]
#[test]
fn draining_an_unreliable_queue_pair_finishes_the_message() {
    let mut solo = Solo::of(QpType::Uc, false, Agreed::default(), EngineConfig::default());
    let qpn = solo.node.qpn;
    for wr_id in 1..3 {
        post(&mut solo, wr_id, SEND, 2000);
    }
    assert_eq!(solo.transmit_at_most(Some(1)), ["UC SEND_FIRST 0 1024 bytes"]);
    solo.node.engine.modify_qp(qpn, QpTransition::ToSqd).unwrap();
    assert_eq!(solo.node.take_events(), []);
    solo.expect(["UC SEND_LAST 1 976 bytes"]);
    assert_eq!(solo.node.take_events(), [AsyncEvent::SendQueueDrained { qpn }]);
    assert_eq!(completed(&mut solo), [(1, WcStatus::Success)]);
    solo.node.engine.modify_qp(qpn, QpTransition::Resume).unwrap();
    solo.expect(["UC SEND_FIRST 2 1024 bytes", "UC SEND_LAST 3 976 bytes"]);
}

// [ECN-CNP]
#[test]
fn one_congestion_notification_for_each_interval() {
    const INTERVAL: Duration = Duration::from_micros(50);
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut solo = Solo::of(qp_type, false, Agreed::default(), EngineConfig::default());
        let mut psn = 0;
        let mut write = |solo: &mut Solo| {
            solo.rdma(WriteOnly, psn, Nothing, 0, 1, b"w");
            psn += 1;
        };
        write(&mut solo);
        solo.expect([]);
        solo.mark_congestion(true);
        for _ in 0..10 {
            write(&mut solo);
        }
        solo.expect(["CNP"]);
        solo.advance(INTERVAL - Duration::from_nanos(1));
        write(&mut solo);
        solo.expect([]);
        solo.advance(Duration::from_nanos(1));
        write(&mut solo);
        // No room: it is kept.
        assert_eq!(solo.transmit_at_most(Some(0)), [""; 0]);
        solo.expect(["CNP"]);
        solo.advance(10 * INTERVAL);
        solo.mark_congestion(false);
        write(&mut solo);
        solo.expect([]);
        assert_eq!((solo.node.stat("ecn_marked"), solo.node.stat("cnps_sent")), (12, 2), "{qp_type}");
        assert_eq!(solo.node.engine.query_qp(solo.node.qpn).unwrap().cnps, (0, 2));
    }
}

// [ECN-CNP] [ECN-CNP-NOT-OBEYED]
#[test]
fn a_marked_response_is_told_too_and_notifications_are_counted() {
    let mut solo = Solo::new();
    post(&mut solo, 1, SEND, 1);
    assert_eq!(solo.transmit().len(), 1);
    solo.mark_congestion(true);
    solo.ack(0);
    solo.expect(["CNP"]);
    assert_eq!(completed(&mut solo), [(1, WcStatus::Success)]);
    // A notification is counted, not answered, and no reason to establish anything.
    solo.mark_congestion(false);
    solo.notify_congestion();
    solo.notify_congestion();
    solo.expect([]);
    assert_eq!((solo.node.stat("cnps_rcvd"), solo.node.take_events().len()), (2, 0));
    assert_eq!(solo.node.engine.query_qp(solo.node.qpn).unwrap().cnps, (2, 1));
    // What is not for us counts nothing: a damaged packet, a dead queue pair.
    solo.mark_congestion(true);
    let mut damaged = solo.frame(SendOnly, solo.agreed.rq_psn, Ack, b"damaged", |_| {});
    let last = damaged.len() - 6;
    damaged[last] ^= 1;
    solo.inject(&damaged);
    let qpn = solo.node.qpn;
    solo.node.engine.modify_qp(qpn, QpTransition::ToError).unwrap();
    solo.notify_congestion();
    solo.expect([]);
    assert_eq!((solo.node.stat("ecn_marked"), solo.node.stat("cnps_rcvd")), (1, 2));
    assert_eq!(solo.node.state(), QpState::Error);
}

// [RC-REQ-SOLICITED]
#[test]
fn solicited_is_said_in_the_last_packet_only() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut solo = Solo::of(qp_type, false, Agreed::default(), EngineConfig::default());
        let sge = solo.node.sge(0, 2049);
        solo.node.post_flags(1, SendOp::Send { imm: None }, &[sge], SendFlags::SOLICITED);
        let solicited: Vec<bool> = solo.transmit().iter().map(|line| line.contains("solicited")).collect();
        assert_eq!(solicited, [false, false, true], "{qp_type}");
    }
}
