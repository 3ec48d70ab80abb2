//! The responder of an unreliable connection, rule by rule: a message arrives whole or not at all, a lost one costs
//! nothing but itself, and nothing is ever answered.

use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use crate::harness::{ALL_ACCESS, Agreed, Node, PORT, path};
use rxe_proto::mem::{Access, Memory};
use rxe_proto::transport::{
    AsyncEvent, EngineConfig, PostError, QpErrorCause, QpState, QpTransition, QpType, Qpn, SendFlags, SendOp, SendWr,
    Sge, WcOpcode, WcStatus,
};
use rxe_proto::wire::{BthFields, BthOpcode, DEFAULT_PKEY, DropReason, Frame, HeaderTemplate, Opcode, Psn, classify};
use rxe_proto::{Duration, Instant};

use AckReq::{Ack, NoAck};
use Opcode::*;

const MTU: usize = 1024;

/// A queue pair with `n` receives of 4096 bytes at offset 0x8000, numbered from 0. PSNs start just before the wrap.
fn with_receives(n: u64) -> ScriptedPeer {
    let agreed = Agreed { sq_psn: Psn::new(0xFF_FFFE), rq_psn: Psn::new(0xFF_FFFD), ..Agreed::default() };
    let mut peer = ScriptedPeer::of(QpType::Uc, false, agreed, EngineConfig::default());
    for wr_id in 0..n {
        let sge = peer.node.sge(0x8000, 4096);
        peer.node.post_recv(wr_id, &[sge]);
    }
    peer
}

/// Nothing was answered; the receives that completed, and how many messages were lost.
fn outcome(peer: &mut ScriptedPeer) -> (Vec<(u64, u32)>, u64) {
    peer.expect([]);
    assert_eq!(peer.node.state(), QpState::Rts);
    let completions = peer.node.take_completions();
    assert!(completions.iter().all(|wc| wc.status == WcStatus::Success), "{completions:?}");
    (completions.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect(), peer.node.stat("uc_messages_lost"))
}

// [UC-RSP-SILENT]
#[test]
fn whole_messages_arrive_and_nothing_is_answered() {
    let mut peer = with_receives(3);
    let qpn = peer.node.qpn;
    let mtu = [7; MTU];
    peer.request(SendOnly, 0, Ack, b"one");
    assert_eq!(peer.node.take_events(), [AsyncEvent::CommunicationEstablished { qpn }]);
    peer.request(SendFirst, 1, Ack, &mtu);
    peer.request(SendMiddle, 2, Ack, &mtu);
    peer.request(SendLast, 3, Ack, b"end");
    peer.rdma(WriteFirst, 4, Ack, 0x100, MTU + 2, &mtu);
    peer.request(WriteLast, 5, Ack, b"ab");
    let (va, rkey) = (peer.node.region.addr(), peer.node.region.rkey());
    let frame = peer.frame(WriteOnlyImm, peer.agreed.rq_psn.add(6), Ack, b"imm", |packet| {
        packet.reth(va, rkey, 3).imm(9);
    });
    peer.inject(&frame);
    peer.expect([]);
    let completions = peer.node.take_completions();
    let seen: Vec<_> = completions.iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len, wc.imm)).collect();
    let expected =
        [(0, WcOpcode::Recv, 3, None), (1, WcOpcode::Recv, 2051, None), (2, WcOpcode::RecvRdmaWithImm, 3, Some(9))];
    assert_eq!(seen, expected);
    assert_eq!(peer.node.read(0x8000 + 2048, 3), b"end");
    assert_eq!(peer.node.read(0x100 + MTU, 2), b"ab");
    assert_eq!((peer.node.read(0, 3), peer.node.stat("uc_messages_lost")), (b"imm".to_vec(), 0));
    assert!(!peer.node.engine.wants_transmit());
}

// [UC-RSP-RESYNC]
#[test]
fn a_lost_message_is_passed_over() {
    let mut peer = with_receives(2);
    peer.request(SendOnly, 0, Ack, b"0");
    peer.request(SendOnly, 5, Ack, b"five");
    peer.request(SendOnly, 6, Ack, b"6");
    assert_eq!(outcome(&mut peer).0, [(0, 1), (1, 4)]);
    assert_eq!((peer.node.dropped("uc_psn_stale"), peer.node.dropped("no_receive")), (0, 1));
}

// [UC-RSP-WHOLE] [UC-RSP-NO-RECEIVE]
#[test]
fn a_message_without_its_middle_is_lost_and_its_receive_used_again() {
    let mut peer = with_receives(1);
    peer.request(SendFirst, 0, NoAck, &[1; MTU]);
    peer.request(SendMiddle, 2, NoAck, &[1; MTU]);
    peer.request(SendLast, 3, Ack, b"end");
    assert_eq!(outcome(&mut peer), (vec![], 1));
    assert_eq!(peer.node.dropped("uc_message_broken"), 2);
    peer.request(SendFirst, 4, NoAck, &[2; MTU]);
    peer.request(SendLast, 5, Ack, b"whole");
    assert_eq!(outcome(&mut peer), (vec![(0, MTU as u32 + 5)], 1));
    assert_eq!(peer.node.read(0x8000, MTU), [2; MTU]);
}

// [UC-RSP-WHOLE]
#[test]
fn a_message_without_its_first_is_lost() {
    let mut peer = with_receives(1);
    for (psn, op) in [(1, SendMiddle), (2, SendLast), (4, WriteMiddle), (5, WriteLast)] {
        peer.request(op, psn, NoAck, &[1; MTU]);
    }
    assert_eq!(outcome(&mut peer).0, []);
    assert_eq!(peer.node.dropped("uc_message_broken"), 4);
    peer.request(SendOnly, 6, NoAck, b"6");
    assert_eq!(outcome(&mut peer).0, [(0, 1)]);
}

// [UC-RSP-RESYNC]
#[test]
fn a_message_without_its_last_ends_with_the_next_one() {
    for next in [1, 2] {
        let mut peer = with_receives(1);
        peer.request(SendFirst, 0, NoAck, &[1; MTU]);
        peer.request(SendOnly, next, NoAck, b"next");
        assert_eq!(outcome(&mut peer), (vec![(0, 4)], 1), "{next}");
        assert_eq!(peer.node.read(0x8000, 4), b"next");
    }
}

// [UC-RSP-STALE]
#[test]
fn copies_and_stragglers_are_dropped() {
    let mut peer = with_receives(3);
    peer.request(SendFirst, 0, NoAck, &[1; MTU]);
    peer.request(SendFirst, 0, NoAck, &[9; MTU]);
    peer.request(SendLast, 1, NoAck, b"end");
    peer.request(SendLast, 1, NoAck, b"END");
    peer.request(SendOnly, 5, NoAck, b"five");
    peer.request(SendOnly, 3, NoAck, b"three");
    peer.request(SendOnly, -2, NoAck, b"from before the start");
    assert_eq!(outcome(&mut peer), (vec![(0, MTU as u32 + 3), (1, 4)], 0));
    assert_eq!(peer.node.dropped("uc_psn_stale"), 4);
    assert_eq!(peer.node.stat("duplicate_request"), 0, "a word of reliable connections");
}

// [UC-RSP-STALE]
#[test]
fn a_sender_that_went_on_unheard_is_followed() {
    // Half the PSNs and more have passed: what looks far behind is ahead. The second packet in a row shows that the
    // sender is there.
    for far in [257, 65_000, 0x7F_FFF0, 0x80_0010] {
        let mut peer = with_receives(2);
        peer.request(SendOnly, far, NoAck, b"far");
        assert_eq!((outcome(&mut peer).0, peer.node.dropped("uc_psn_jump")), (vec![], 1), "{far:#x}");
        peer.request(SendOnly, far + 1, NoAck, b"next");
        peer.request(SendOnly, far + 2, NoAck, b"third");
        assert_eq!(outcome(&mut peer).0, [(0, 4), (1, 5)], "{far:#x}");
    }
    // The end of a message is as good a first packet as any: nothing more is lost than what never came whole.
    let mut peer = with_receives(1);
    peer.request(SendLast, 70_000, NoAck, b"end");
    peer.request(SendFirst, 70_001, NoAck, &[1; MTU]);
    peer.request(SendLast, 70_002, NoAck, b"end");
    assert_eq!(outcome(&mut peer).0, [(0, MTU as u32 + 3)]);
}

// [UC-RSP-RESYNC]
#[test]
fn one_stray_packet_does_not_move_the_expected_psn() {
    type Stray = fn(&mut ScriptedPeer, i32);
    let strays: [(&str, Stray); 4] = [
        ("MIDDLE", |peer, psn| peer.request(SendMiddle, psn, NoAck, &[9; MTU])),
        ("LAST", |peer, psn| peer.request(WriteLast, psn, NoAck, b"stray")),
        ("ONLY", |peer, psn| peer.request(SendOnly, psn, NoAck, b"stray")),
        ("WRITE ONLY", |peer, psn| peer.rdma(WriteOnly, psn, NoAck, 0, 5, b"stray")),
    ];
    for (name, stray) in strays {
        for far in [300, 65_530, 65_536, 65_537, 0x7F_FFF0, -65_537] {
            let mut peer = with_receives(2);
            peer.request(SendFirst, 0, NoAck, &[1; MTU]);
            stray(&mut peer, far);
            peer.request(SendLast, 1, NoAck, b"end");
            // Not even two of them, with a valid packet in between.
            stray(&mut peer, far + 1);
            peer.request(SendOnly, 2, NoAck, b"2");
            assert_eq!(outcome(&mut peer), (vec![(0, MTU as u32 + 3), (1, 1)], 0), "{name} {far}");
            assert_eq!(peer.node.read(0, 5), [0; 5]);
        }
    }
    // A packet that starts no message moves no PSN, however near: the message under way is lost, nothing else.
    let mut peer = with_receives(1);
    peer.request(SendFirst, 0, NoAck, &[1; MTU]);
    peer.request(SendMiddle, 200, NoAck, &[9; MTU]);
    peer.request(SendLast, 1, NoAck, b"end");
    peer.request(SendOnly, 2, NoAck, b"2");
    assert_eq!(outcome(&mut peer), (vec![(0, 1)], 1));
}

// [UC-RSP-RESYNC]
#[test]
fn long_messages_survive_the_loss_of_one_of_their_packets() {
    const LONG: i32 = 1000;
    let mut peer = with_receives(2);
    let pd = peer.node.pd;
    let memory = Memory::heap(LONG as usize * MTU);
    let rkey = peer.node.engine.keys_mut().register(pd, memory, 0, ALL_ACCESS).unwrap().rkey();
    for message in 0..3 {
        let first = message * LONG;
        peer.rdma_raw(WriteFirst, first, NoAck, 0, rkey, LONG as u32 * MTU as u32, &[1; MTU]);
        for n in 1..LONG - 1 {
            if (message, n) != (0, 5) {
                peer.request(WriteMiddle, first + n, NoAck, &[2; MTU]);
            }
        }
        let last = peer.agreed.rq_psn.add((first + LONG - 1) as u32);
        let frame = peer.frame(WriteLastImm, last, NoAck, &[3; MTU], |packet| {
            packet.imm(7);
        });
        peer.inject(&frame);
    }
    let (done, lost) = outcome(&mut peer);
    assert_eq!((done.len(), lost), (2, 1));
}

// [UC-RSP-WHOLE]
#[test]
fn opcodes_in_an_order_that_makes_no_message() {
    for (first, second) in
        [(SendFirst, WriteMiddle), (SendFirst, WriteLast), (WriteFirst, SendMiddle), (WriteFirst, SendLast)]
    {
        let mut peer = with_receives(1);
        match first {
            WriteFirst => peer.rdma(first, 0, NoAck, 0, 3000, &[1; MTU]),
            _ => peer.request(first, 0, NoAck, &[1; MTU]),
        }
        peer.request(second, 1, NoAck, &[1; MTU]);
        // Nor does the correct end.
        peer.request(if first == SendFirst { SendLast } else { WriteLast }, 2, NoAck, b"x");
        assert_eq!(outcome(&mut peer), (vec![], 1), "{first:?} {second:?}");
        assert_eq!(peer.node.dropped("uc_message_broken"), 2);
        peer.request(SendOnly, 3, NoAck, b"3");
        assert_eq!(outcome(&mut peer).0, [(0, 1)]);
    }
}

// [UC-RSP-BAD-REQUEST]
#[test]
fn lengths_against_the_rules_cost_the_message() {
    type Bad = fn(&mut ScriptedPeer);
    let cases: [(&str, Bad, i32); 6] = [
        ("short SEND_FIRST", |peer| peer.request(SendFirst, 0, NoAck, &[1; MTU - 4]), 1),
        ("long SEND_ONLY", |peer| peer.request(SendOnly, 0, NoAck, &[1; MTU + 4]), 1),
        (
            "empty SEND_LAST",
            |peer| {
                peer.request(SendFirst, 0, NoAck, &[1; MTU]);
                peer.request(SendLast, 1, NoAck, b"");
            },
            2,
        ),
        ("WRITE_ONLY with less", |peer| peer.rdma(WriteOnly, 0, NoAck, 0, 10, b"123456789"), 1),
        ("WRITE_FIRST with all", |peer| peer.rdma(WriteFirst, 0, NoAck, 0, MTU, &[1; MTU]), 1),
        (
            "WRITE_LAST with less than the rest",
            |peer| {
                peer.rdma(WriteFirst, 0, NoAck, 0, MTU + 9, &[1; MTU]);
                peer.request(WriteLast, 1, NoAck, b"12345678");
            },
            2,
        ),
    ];
    for (name, bad, next) in cases {
        let mut peer = with_receives(1);
        bad(&mut peer);
        assert_eq!(outcome(&mut peer), (vec![], 1), "{name}");
        assert_eq!(peer.node.dropped("payload_length"), 1, "{name}");
        peer.request(SendOnly, next, NoAck, b"next");
        assert_eq!(outcome(&mut peer), (vec![(0, 4)], 1), "{name}");
    }
}

// [UC-RSP-BAD-REQUEST]
#[test]
fn remote_access_refused_costs_the_message() {
    type Bad = fn(&ScriptedPeer) -> (u64, u32);
    let cases: [(&str, Bad); 2] = [
        ("key", |peer| (peer.node.region.addr(), peer.node.region.rkey() ^ 0x10)),
        ("range", |peer| (peer.node.region.addr() + (1 << 16) - 8, peer.node.region.rkey())),
    ];
    for (name, bad) in cases {
        let mut peer = with_receives(1);
        let (va, rkey) = bad(&peer);
        peer.rdma_raw(WriteOnly, 0, Ack, va, rkey, 9, b"123456789");
        assert_eq!(outcome(&mut peer), (vec![], 1), "{name}");
        assert_eq!(peer.node.dropped("remote_access"), 1, "{name}");
        assert_eq!(peer.node.read((1 << 16) - 8, 8), [0; 8]);
        peer.request(SendOnly, 1, NoAck, b"next");
        assert_eq!(outcome(&mut peer).0, [(0, 4)], "{name}");
    }
    // The queue pair's own flags.
    let agreed = Agreed { access: Access::empty(), ..Agreed::default() };
    let mut peer = ScriptedPeer::of(QpType::Uc, false, agreed, EngineConfig::default());
    peer.rdma(WriteOnly, 0, Ack, 0, 1, b"x");
    assert_eq!((outcome(&mut peer), peer.node.dropped("remote_access")), ((vec![], 1), 1));
}

// [UC-RSP-NO-RECEIVE]
#[test]
fn without_a_receive_the_message_is_lost() {
    let mut peer = with_receives(0);
    peer.request(SendFirst, 0, NoAck, &[1; MTU]);
    peer.request(SendLast, 1, Ack, b"end");
    assert_eq!(outcome(&mut peer), (vec![], 1));
    assert_eq!((peer.node.dropped("no_receive"), peer.node.dropped("uc_message_broken")), (1, 1));
    assert_eq!((peer.node.stat("receive_queue_empty"), peer.node.stat("send_rnr_err")), (1, 0));
    // A WRITE with immediate needs its receive at the end, when its bytes have been written up to there.
    peer.rdma(WriteFirst, 2, NoAck, 0, MTU + 1, &[5; MTU]);
    let frame = peer.frame(WriteLastImm, peer.agreed.rq_psn.add(3), Ack, b"!", |packet| {
        packet.imm(5);
    });
    peer.inject(&frame);
    assert_eq!(outcome(&mut peer), (vec![], 2));
    assert_eq!((peer.node.read(0, MTU), peer.node.read(MTU, 1)), (vec![5; MTU], vec![0]));
    // A receive that comes in the middle of a lost message is for the next one.
    peer.request(SendFirst, 4, NoAck, &[1; MTU]);
    peer.node.post_recv(8, &[peer.node.sge(0x8000, 4096)]);
    peer.request(SendLast, 5, NoAck, b"end");
    peer.request(SendOnly, 6, NoAck, b"here");
    assert_eq!(outcome(&mut peer).0, [(8, 4)]);
}

// [UC-RSP-OWN-FAULT]
#[test]
fn faults_of_our_own_receive_end_the_queue_pair() {
    type Receive = fn(&ScriptedPeer) -> Sge;
    let cases: [(Receive, QpErrorCause, WcStatus); 2] = [
        (|peer| peer.node.sge(0, 3), QpErrorCause::ReceiveTooSmall, WcStatus::LocLenErr),
        (|_| Sge { addr: 0, length: 100, lkey: 4711 }, QpErrorCause::ReceiveKey, WcStatus::LocProtErr),
    ];
    for (receive, cause, status) in cases {
        let mut peer = with_receives(0);
        let (qpn, sge) = (peer.node.qpn, receive(&peer));
        peer.node.post_recv(1, &[sge]);
        peer.node.post_recv(2, &[sge]);
        peer.request(SendOnly, 0, Ack, b"four");
        peer.expect([]);
        assert_eq!(peer.node.take_events(), [AsyncEvent::QpError { qpn, cause }]);
        let statuses: Vec<_> = peer.node.take_completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(statuses, [(1, status), (2, WcStatus::WrFlushErr)]);
        assert_eq!(peer.node.state(), QpState::Error);
    }
}

// [UNREL-SQE]
#[test]
fn requests_are_taken_from_rtr_on_and_in_sqe() {
    let agreed = Agreed::default();
    let mut peer = with_receives(2);
    let qpn = peer.node.qpn;
    // A bad key of our own stops the send queue only.
    peer.node.post_send(1, SendOp::Send { imm: None }, &[Sge { addr: 0, length: 1, lkey: 4711 }]);
    peer.node.post_send(2, SendOp::Send { imm: None }, &[]);
    peer.expect([]);
    let statuses: Vec<_> = peer.node.take_completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(statuses, [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(peer.node.state(), QpState::Sqe);
    peer.request(SendOnly, 0, NoAck, b"still heard");
    assert_eq!(peer.node.take_completions().len(), 1);
    peer.node.engine.modify_qp(qpn, QpTransition::Resume).unwrap();
    peer.node.post_send(3, SendOp::Send { imm: None }, &[peer.node.sge(0, 1)]);
    assert_eq!(peer.transmit().len(), 1);

    let mut node = Node::bare(1, EngineConfig::default(), 16, 4096);
    node.qpn = node.create_typed_qp(QpType::Uc, None, 4, agreed.access);
    node.post_recv(1, &[node.sge(0, 64)]);
    let other = ScriptedPeer::of(QpType::Uc, false, agreed, EngineConfig::default());
    assert_eq!(node.qpn, other.node.qpn);
    let frame = other.frame(SendOnly, agreed.rq_psn, NoAck, b"early", |_| {});
    let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!() };
    node.engine.receive(Instant::ZERO, PORT, &packet);
    assert_eq!(node.dropped("qp_wrong_state"), 1, "in INIT");
    node.ready_to_receive(2, Qpn::new(0x11), &agreed);
    node.engine.receive(Instant::ZERO, PORT, &packet);
    assert_eq!(node.take_completions().len(), 1, "in RTR");
}

// [UC-OPERATIONS]
#[test]
fn operations_missing_on_unreliable_connections() {
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
        let _unfinished = template.build(&mut frame, fields, 0);
        frame[42] |= 0x20;
        assert_eq!(classify(&frame).err(), Some(DropReason::UnknownOpcode), "{byte:?}");
    }
    // Nor can they be posted.
    let mut peer = with_receives(0);
    let (qpn, sge) = (peer.node.qpn, peer.node.sge(0, 8));
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
        assert_eq!(peer.node.engine.post_send(qpn, &wr), Err(PostError::Opcode(QpType::Uc)), "{op:?}");
    }
}

// [UC-REQ-DONE]
#[test]
fn sending_completes_with_the_last_packet() {
    let mut peer = with_receives(0);
    let remote = rxe_proto::transport::RemoteAddr { addr: 0x10_000, rkey: 7 };
    peer.node.post_send(1, SendOp::Send { imm: Some(3) }, &[peer.node.sge(0, 2500)]);
    peer.node.post_send(2, SendOp::Write { remote, imm: None }, &[peer.node.sge(0, 1025)]);
    assert_eq!(peer.transmit_at_most(Some(2)), ["UC SEND_FIRST 0 1024 bytes", "UC SEND_MIDDLE 1 1024 bytes"]);
    assert_eq!(peer.node.take_completions(), []);
    peer.expect([
        "UC SEND_LAST_IMM 2 imm 3 452 bytes",
        "UC WRITE_FIRST 3 va 0x10000 len 1025 1024 bytes",
        "UC WRITE_LAST 4 1 bytes",
    ]);
    let done: Vec<_> = peer.node.take_completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    // Nothing is waited for.
    assert_eq!(peer.node.engine.next_timeout(), None);
    peer.advance(Duration::from_secs(10));
    peer.expect([]);
}
