//! The responder of an unreliable connection, rule by rule: a message arrives whole or not at all, a lost one costs nothing
//! but itself, and nothing is ever answered.

use crate::harness::solo::{Ask, Solo};
use crate::harness::{ALL_ACCESS, Agreed, Node, PORT, path};
use rxe_proto::mem::{Access, Memory};
use rxe_proto::transport::{
    AsyncEvent, EngineConfig, PostError, QpErrorCause, QpState, QpTransition, QpType, Qpn, SendFlags, SendOp, SendWr,
    Sge, WcOpcode, WcStatus,
};
use rxe_proto::wire::{BthFields, BthOpcode, DEFAULT_PKEY, DropReason, Frame, HeaderTemplate, Opcode, Psn, classify};
use rxe_proto::{Duration, Instant};

use Ask::{Ack, Nothing};
use Opcode::*;

const MTU: usize = 1024;

/// A queue pair with `n` receives of 4096 bytes at offset 0x8000, numbered from 0. PSNs start just before the wrap.
fn with_receives(n: u64) -> Solo {
    let agreed = Agreed { sq_psn: Psn::new(0xFF_FFFE), rq_psn: Psn::new(0xFF_FFFD), ..Agreed::default() };
    let mut solo = Solo::of(QpType::Uc, false, agreed, EngineConfig::default());
    for wr_id in 0..n {
        let sge = solo.node.sge(0x8000, 4096);
        solo.node.post_recv(wr_id, &[sge]);
    }
    solo
}

/// Nothing was answered; the receives that completed, and how many messages were lost.
fn outcome(solo: &mut Solo) -> (Vec<(u64, u32)>, u64) {
    solo.expect([]);
    assert_eq!(solo.node.state(), QpState::Rts);
    let completions = solo.node.take_completions();
    assert!(completions.iter().all(|wc| wc.status == WcStatus::Success), "{completions:?}");
    (completions.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect(), solo.node.stat("uc_messages_lost"))
}

// [UC-RSP-SILENT]
#[test]
fn whole_messages_arrive_and_nothing_is_answered() {
    let mut solo = with_receives(3);
    let qpn = solo.node.qpn;
    let mtu = [7; MTU];
    solo.request(SendOnly, 0, Ack, b"one");
    assert_eq!(solo.node.take_events(), [AsyncEvent::CommunicationEstablished { qpn }]);
    solo.request(SendFirst, 1, Ack, &mtu);
    solo.request(SendMiddle, 2, Ack, &mtu);
    solo.request(SendLast, 3, Ack, b"end");
    solo.rdma(WriteFirst, 4, Ack, 0x100, MTU + 2, &mtu);
    solo.request(WriteLast, 5, Ack, b"ab");
    let (va, rkey) = (solo.node.region.addr(), solo.node.region.rkey());
    let frame = solo.frame(WriteOnlyImm, solo.agreed.rq_psn.add(6), Ack, b"imm", |packet| {
        packet.reth(va, rkey, 3).imm(9);
    });
    solo.inject(&frame);
    solo.expect([]);
    let completions = solo.node.take_completions();
    let seen: Vec<_> = completions.iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len, wc.imm)).collect();
    let expected =
        [(0, WcOpcode::Recv, 3, None), (1, WcOpcode::Recv, 2051, None), (2, WcOpcode::RecvRdmaWithImm, 3, Some(9))];
    assert_eq!(seen, expected);
    assert_eq!(solo.node.read(0x8000 + 2048, 3), b"end");
    assert_eq!(solo.node.read(0x100 + MTU, 2), b"ab");
    assert_eq!((solo.node.read(0, 3), solo.node.stat("uc_messages_lost")), (b"imm".to_vec(), 0));
    assert!(!solo.node.engine.wants_transmit());
}

// [UC-RSP-RESYNC]
#[test]
fn a_lost_message_is_passed_over() {
    let mut solo = with_receives(2);
    solo.request(SendOnly, 0, Ack, b"0");
    solo.request(SendOnly, 5, Ack, b"five");
    solo.request(SendOnly, 6, Ack, b"6");
    assert_eq!(outcome(&mut solo).0, [(0, 1), (1, 4)]);
    assert_eq!((solo.node.dropped("uc_psn_stale"), solo.node.dropped("no_receive")), (0, 1));
}

// [UC-RSP-WHOLE] [UC-RSP-NO-RECEIVE]
#[test]
fn a_message_without_its_middle_is_lost_and_its_receive_used_again() {
    let mut solo = with_receives(1);
    solo.request(SendFirst, 0, Nothing, &[1; MTU]);
    solo.request(SendMiddle, 2, Nothing, &[1; MTU]);
    solo.request(SendLast, 3, Ack, b"end");
    assert_eq!(outcome(&mut solo), (vec![], 1));
    assert_eq!(solo.node.dropped("uc_message_broken"), 2);
    solo.request(SendFirst, 4, Nothing, &[2; MTU]);
    solo.request(SendLast, 5, Ack, b"whole");
    assert_eq!(outcome(&mut solo), (vec![(0, MTU as u32 + 5)], 1));
    assert_eq!(solo.node.read(0x8000, MTU), [2; MTU]);
}

// [UC-RSP-WHOLE]
#[test]
fn a_message_without_its_first_is_lost() {
    let mut solo = with_receives(1);
    for (psn, op) in [(1, SendMiddle), (2, SendLast), (4, WriteMiddle), (5, WriteLast)] {
        solo.request(op, psn, Nothing, &[1; MTU]);
    }
    assert_eq!(outcome(&mut solo).0, []);
    assert_eq!(solo.node.dropped("uc_message_broken"), 4);
    solo.request(SendOnly, 6, Nothing, b"6");
    assert_eq!(outcome(&mut solo).0, [(0, 1)]);
}

// [UC-RSP-RESYNC]
#[test]
fn a_message_without_its_last_ends_with_the_next_one() {
    for next in [1, 2] {
        let mut solo = with_receives(1);
        solo.request(SendFirst, 0, Nothing, &[1; MTU]);
        solo.request(SendOnly, next, Nothing, b"next");
        assert_eq!(outcome(&mut solo), (vec![(0, 4)], 1), "{next}");
        assert_eq!(solo.node.read(0x8000, 4), b"next");
    }
}

// [UC-RSP-STALE]
#[test]
fn copies_and_stragglers_are_dropped() {
    let mut solo = with_receives(3);
    solo.request(SendFirst, 0, Nothing, &[1; MTU]);
    solo.request(SendFirst, 0, Nothing, &[9; MTU]);
    solo.request(SendLast, 1, Nothing, b"end");
    solo.request(SendLast, 1, Nothing, b"END");
    solo.request(SendOnly, 5, Nothing, b"five");
    solo.request(SendOnly, 3, Nothing, b"three");
    solo.request(SendOnly, -2, Nothing, b"from before the start");
    assert_eq!(outcome(&mut solo), (vec![(0, MTU as u32 + 3), (1, 4)], 0));
    assert_eq!(solo.node.dropped("uc_psn_stale"), 4);
    assert_eq!(solo.node.stat("duplicate_request"), 0, "a word of reliable connections");
}

// [UC-RSP-STALE]
#[test]
fn a_sender_that_went_on_unheard_is_followed() {
    // Half the PSNs and more have passed: what looks far behind is ahead. The second packet in a row shows that the sender
    // is there.
    for far in [257, 65_000, 0x7F_FFF0, 0x80_0010] {
        let mut solo = with_receives(2);
        solo.request(SendOnly, far, Nothing, b"far");
        assert_eq!((outcome(&mut solo).0, solo.node.dropped("uc_psn_jump")), (vec![], 1), "{far:#x}");
        solo.request(SendOnly, far + 1, Nothing, b"next");
        solo.request(SendOnly, far + 2, Nothing, b"third");
        assert_eq!(outcome(&mut solo).0, [(0, 4), (1, 5)], "{far:#x}");
    }
    // The end of a message is as good a first packet as any: nothing more is lost than what never came whole.
    let mut solo = with_receives(1);
    solo.request(SendLast, 70_000, Nothing, b"end");
    solo.request(SendFirst, 70_001, Nothing, &[1; MTU]);
    solo.request(SendLast, 70_002, Nothing, b"end");
    assert_eq!(outcome(&mut solo).0, [(0, MTU as u32 + 3)]);
}

// [UC-RSP-RESYNC]
#[test]
fn one_stray_packet_costs_next_to_nothing() {
    type Stray = fn(&mut Solo, i32);
    let strays: [(&str, Stray); 4] = [
        ("MIDDLE", |solo, psn| solo.request(SendMiddle, psn, Nothing, &[9; MTU])),
        ("LAST", |solo, psn| solo.request(WriteLast, psn, Nothing, b"stray")),
        ("ONLY", |solo, psn| solo.request(SendOnly, psn, Nothing, b"stray")),
        ("WRITE ONLY", |solo, psn| solo.rdma(WriteOnly, psn, Nothing, 0, 5, b"stray")),
    ];
    for (name, stray) in strays {
        for far in [300, 65_530, 65_536, 65_537, 0x7F_FFF0, -65_537] {
            let mut solo = with_receives(2);
            solo.request(SendFirst, 0, Nothing, &[1; MTU]);
            stray(&mut solo, far);
            solo.request(SendLast, 1, Nothing, b"end");
            // Not even two of them, when the peer was heard between.
            stray(&mut solo, far + 1);
            solo.request(SendOnly, 2, Nothing, b"2");
            assert_eq!(outcome(&mut solo), (vec![(0, MTU as u32 + 3), (1, 1)], 0), "{name} {far}");
            assert_eq!(solo.node.read(0, 5), [0; 5]);
        }
    }
    // What starts no message moves nothing, however near: the message under way is lost, nothing else.
    let mut solo = with_receives(1);
    solo.request(SendFirst, 0, Nothing, &[1; MTU]);
    solo.request(SendMiddle, 200, Nothing, &[9; MTU]);
    solo.request(SendLast, 1, Nothing, b"end");
    solo.request(SendOnly, 2, Nothing, b"2");
    assert_eq!(outcome(&mut solo), (vec![(0, 1)], 1));
}

// [UC-RSP-RESYNC]
#[test]
fn long_messages_survive_the_loss_of_one_of_their_packets() {
    const LONG: i32 = 1000;
    let mut solo = with_receives(2);
    let pd = solo.node.pd;
    let memory = Memory::heap(LONG as usize * MTU);
    let rkey = solo.node.engine.keys_mut().register(pd, memory, 0, ALL_ACCESS).unwrap().rkey();
    for message in 0..3 {
        let first = message * LONG;
        solo.rdma_raw(WriteFirst, first, Nothing, 0, rkey, LONG as u32 * MTU as u32, &[1; MTU]);
        for n in 1..LONG - 1 {
            if (message, n) != (0, 5) {
                solo.request(WriteMiddle, first + n, Nothing, &[2; MTU]);
            }
        }
        let last = solo.agreed.rq_psn.add((first + LONG - 1) as u32);
        let frame = solo.frame(WriteLastImm, last, Nothing, &[3; MTU], |packet| {
            packet.imm(7);
        });
        solo.inject(&frame);
    }
    let (done, lost) = outcome(&mut solo);
    assert_eq!((done.len(), lost), (2, 1));
}

// [UC-RSP-WHOLE]
#[test]
fn opcodes_in_an_order_that_makes_no_message() {
    for (first, second) in
        [(SendFirst, WriteMiddle), (SendFirst, WriteLast), (WriteFirst, SendMiddle), (WriteFirst, SendLast)]
    {
        let mut solo = with_receives(1);
        match first {
            WriteFirst => solo.rdma(first, 0, Nothing, 0, 3000, &[1; MTU]),
            _ => solo.request(first, 0, Nothing, &[1; MTU]),
        }
        solo.request(second, 1, Nothing, &[1; MTU]);
        // Nor does what would have been the right end.
        solo.request(if first == SendFirst { SendLast } else { WriteLast }, 2, Nothing, b"x");
        assert_eq!(outcome(&mut solo), (vec![], 1), "{first:?} {second:?}");
        assert_eq!(solo.node.dropped("uc_message_broken"), 2);
        solo.request(SendOnly, 3, Nothing, b"3");
        assert_eq!(outcome(&mut solo).0, [(0, 1)]);
    }
}

// [UC-RSP-BAD-REQUEST]
#[test]
fn lengths_against_the_rules_cost_the_message() {
    type Bad = fn(&mut Solo);
    let cases: [(&str, Bad, i32); 6] = [
        ("short SEND_FIRST", |solo| solo.request(SendFirst, 0, Nothing, &[1; MTU - 4]), 1),
        ("long SEND_ONLY", |solo| solo.request(SendOnly, 0, Nothing, &[1; MTU + 4]), 1),
        (
            "empty SEND_LAST",
            |solo| {
                solo.request(SendFirst, 0, Nothing, &[1; MTU]);
                solo.request(SendLast, 1, Nothing, b"");
            },
            2,
        ),
        ("WRITE_ONLY with less", |solo| solo.rdma(WriteOnly, 0, Nothing, 0, 10, b"123456789"), 1),
        ("WRITE_FIRST with all", |solo| solo.rdma(WriteFirst, 0, Nothing, 0, MTU, &[1; MTU]), 1),
        (
            "WRITE_LAST with less than the rest",
            |solo| {
                solo.rdma(WriteFirst, 0, Nothing, 0, MTU + 9, &[1; MTU]);
                solo.request(WriteLast, 1, Nothing, b"12345678");
            },
            2,
        ),
    ];
    for (name, bad, next) in cases {
        let mut solo = with_receives(1);
        bad(&mut solo);
        assert_eq!(outcome(&mut solo), (vec![], 1), "{name}");
        assert_eq!(solo.node.dropped("payload_length"), 1, "{name}");
        solo.request(SendOnly, next, Nothing, b"next");
        assert_eq!(outcome(&mut solo), (vec![(0, 4)], 1), "{name}");
    }
}

// [UC-RSP-BAD-REQUEST]
#[test]
fn remote_access_refused_costs_the_message() {
    type Bad = fn(&Solo) -> (u64, u32);
    let cases: [(&str, Bad); 2] = [
        ("key", |solo| (solo.node.region.addr(), solo.node.region.rkey() ^ 0x10)),
        ("range", |solo| (solo.node.region.addr() + (1 << 16) - 8, solo.node.region.rkey())),
    ];
    for (name, bad) in cases {
        let mut solo = with_receives(1);
        let (va, rkey) = bad(&solo);
        solo.rdma_raw(WriteOnly, 0, Ack, va, rkey, 9, b"123456789");
        assert_eq!(outcome(&mut solo), (vec![], 1), "{name}");
        assert_eq!(solo.node.dropped("remote_access"), 1, "{name}");
        assert_eq!(solo.node.read((1 << 16) - 8, 8), [0; 8]);
        solo.request(SendOnly, 1, Nothing, b"next");
        assert_eq!(outcome(&mut solo).0, [(0, 4)], "{name}");
    }
    // The queue pair's own flags.
    let agreed = Agreed { access: Access::empty(), ..Agreed::default() };
    let mut solo = Solo::of(QpType::Uc, false, agreed, EngineConfig::default());
    solo.rdma(WriteOnly, 0, Ack, 0, 1, b"x");
    assert_eq!((outcome(&mut solo), solo.node.dropped("remote_access")), ((vec![], 1), 1));
}

// [UC-RSP-NO-RECEIVE]
#[test]
fn without_a_receive_the_message_is_lost() {
    let mut solo = with_receives(0);
    solo.request(SendFirst, 0, Nothing, &[1; MTU]);
    solo.request(SendLast, 1, Ack, b"end");
    assert_eq!(outcome(&mut solo), (vec![], 1));
    assert_eq!((solo.node.dropped("no_receive"), solo.node.dropped("uc_message_broken")), (1, 1));
    assert_eq!((solo.node.stat("receive_queue_empty"), solo.node.stat("send_rnr_err")), (1, 0));
    // A WRITE with immediate needs its receive at the end, when its bytes have been written up to there.
    solo.rdma(WriteFirst, 2, Nothing, 0, MTU + 1, &[5; MTU]);
    let frame = solo.frame(WriteLastImm, solo.agreed.rq_psn.add(3), Ack, b"!", |packet| {
        packet.imm(5);
    });
    solo.inject(&frame);
    assert_eq!(outcome(&mut solo), (vec![], 2));
    assert_eq!((solo.node.read(0, MTU), solo.node.read(MTU, 1)), (vec![5; MTU], vec![0]));
    // A receive that comes in the middle of a lost message is for the next one.
    solo.request(SendFirst, 4, Nothing, &[1; MTU]);
    solo.node.post_recv(8, &[solo.node.sge(0x8000, 4096)]);
    solo.request(SendLast, 5, Nothing, b"end");
    solo.request(SendOnly, 6, Nothing, b"here");
    assert_eq!(outcome(&mut solo).0, [(8, 4)]);
}

// [UC-RSP-OWN-FAULT]
#[test]
fn faults_of_our_own_receive_end_the_queue_pair() {
    type Receive = fn(&Solo) -> Sge;
    let cases: [(Receive, QpErrorCause, WcStatus); 2] = [
        (|solo| solo.node.sge(0, 3), QpErrorCause::ReceiveTooSmall, WcStatus::LocLenErr),
        (|_| Sge { addr: 0, length: 100, lkey: 4711 }, QpErrorCause::ReceiveKey, WcStatus::LocProtErr),
    ];
    for (receive, cause, status) in cases {
        let mut solo = with_receives(0);
        let (qpn, sge) = (solo.node.qpn, receive(&solo));
        solo.node.post_recv(1, &[sge]);
        solo.node.post_recv(2, &[sge]);
        solo.request(SendOnly, 0, Ack, b"four");
        solo.expect([]);
        assert_eq!(solo.node.take_events(), [AsyncEvent::QpError { qpn, cause }]);
        let statuses: Vec<_> = solo.node.take_completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(statuses, [(1, status), (2, WcStatus::WrFlushErr)]);
        assert_eq!(solo.node.state(), QpState::Error);
    }
}

// [UNREL-SQE]
#[test]
fn requests_are_taken_from_rtr_on_and_in_sqe() {
    let agreed = Agreed::default();
    let mut solo = with_receives(2);
    let qpn = solo.node.qpn;
    // A bad key of our own stops the send queue only.
    solo.node.post_send(1, SendOp::Send { imm: None }, &[Sge { addr: 0, length: 1, lkey: 4711 }]);
    solo.node.post_send(2, SendOp::Send { imm: None }, &[]);
    solo.expect([]);
    let statuses: Vec<_> = solo.node.take_completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(statuses, [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(solo.node.state(), QpState::Sqe);
    solo.request(SendOnly, 0, Nothing, b"still heard");
    assert_eq!(solo.node.take_completions().len(), 1);
    solo.node.engine.modify_qp(qpn, QpTransition::Resume).unwrap();
    solo.node.post_send(3, SendOp::Send { imm: None }, &[solo.node.sge(0, 1)]);
    assert_eq!(solo.transmit().len(), 1);

    let mut node = Node::bare(1, EngineConfig::default(), 16, 4096);
    node.qpn = node.create_typed_qp(QpType::Uc, None, 4, agreed.access);
    node.post_recv(1, &[node.sge(0, 64)]);
    let other = Solo::of(QpType::Uc, false, agreed, EngineConfig::default());
    assert_eq!(node.qpn, other.node.qpn);
    let frame = other.frame(SendOnly, agreed.rq_psn, Nothing, b"early", |_| {});
    let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!() };
    node.engine.receive(Instant::ZERO, PORT, &packet);
    assert_eq!(node.dropped("qp_wrong_state"), 1, "in INIT");
    node.ready_to_receive(2, Qpn::new(0x11), &agreed);
    node.engine.receive(Instant::ZERO, PORT, &packet);
    assert_eq!(node.take_completions().len(), 1, "in RTR");
}

// [UC-OPERATIONS]
#[test]
fn what_unreliable_connections_do_not_have() {
    // On the wire: the opcodes do not exist.
    let template = HeaderTemplate::new(&path(2, 1));
    for byte in
        [ReadRequest, CompareSwap, FetchAdd, SendLastInvalidate, SendOnlyInvalidate, Flush, AtomicWrite, Acknowledge]
    {
        let fields = BthFields {
            opcode: BthOpcode::rc(byte),
            dest_qp: 2,
            psn: Psn::new(0),
            solicited: false,
            ack_req: false,
            pkey: DEFAULT_PKEY,
        };
        let mut frame = vec![0; template.frame_len(fields.opcode, 0)];
        let _unfinished = template.build(&mut frame, 1, fields, 0);
        frame[42] |= 0x20;
        assert_eq!(classify(&frame).err(), Some(DropReason::UnknownOpcode), "{byte:?}");
    }
    // Nor can they be posted.
    let mut solo = with_receives(0);
    let (qpn, sge) = (solo.node.qpn, solo.node.sge(0, 8));
    let remote = rxe_proto::transport::RemoteAddr::default();
    for op in [
        SendOp::Read { remote },
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap { remote, compare: 0, swap: 0 },
        SendOp::AtomicWrite { remote },
        SendOp::SendInvalidate { rkey: 1 },
        SendOp::Flush { remote, length: 0, whole_region: true, persistent: false },
    ] {
        let wr = SendWr { wr_id: 0, op, sges: &[sge], flags: SendFlags::SIGNALED };
        assert_eq!(solo.node.engine.post_send(qpn, &wr), Err(PostError::Opcode(QpType::Uc)), "{op:?}");
    }
}

// [UC-REQ-DONE]
#[test]
fn sending_completes_with_the_last_packet() {
    let mut solo = with_receives(0);
    let remote = rxe_proto::transport::RemoteAddr { addr: 0x10_000, rkey: 7 };
    solo.node.post_send(1, SendOp::Send { imm: Some(3) }, &[solo.node.sge(0, 2500)]);
    solo.node.post_send(2, SendOp::Write { remote, imm: None }, &[solo.node.sge(0, 1025)]);
    assert_eq!(solo.transmit_at_most(Some(2)), ["UC SEND_FIRST 0 1024 bytes", "UC SEND_MIDDLE 1 1024 bytes"]);
    assert_eq!(solo.node.take_completions(), []);
    solo.expect([
        "UC SEND_LAST_IMM 2 imm 3 452 bytes",
        "UC WRITE_FIRST 3 va 0x10000 len 1025 1024 bytes",
        "UC WRITE_LAST 4 1 bytes",
    ]);
    let done: Vec<_> = solo.node.take_completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    // Nothing is waited for.
    assert_eq!(solo.node.engine.next_timeout(), None);
    solo.advance(Duration::from_secs(10));
    solo.expect([]);
}
