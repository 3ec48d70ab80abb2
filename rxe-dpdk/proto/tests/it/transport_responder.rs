//! The responder, packet by packet. PSNs are relative to the start (which is just before the wrap).

use crate::harness::receives::{post_receives, statuses, with_receives};
use crate::harness::scripted_peer::{AckReq, PEER_QPN, ScriptedPeer};
use crate::harness::{ALL_ACCESS, Agreed, Node, PORT};
use rxe_proto::transport::{AsyncEvent, EngineConfig, QpState, QpTransition, WcOpcode, WcStatus};
use rxe_proto::wire::{Frame, MacAddr, Opcode, Psn, TxFrames, classify};
use rxe_proto::{Duration, Instant};

use AckReq::{Ack, NoAck};
use Opcode::*;

// [RC-RSP-IN-ORDER]
#[test]
fn sends_of_one_and_many_packets() {
    let mut peer = with_receives(3);
    let mtu = vec![0xAB; peer.mtu()];
    peer.request(SendOnly, 0, Ack, b"hello");
    peer.expect(["ACK 0 msn 1"]);
    peer.request(SendFirst, 1, NoAck, &mtu);
    peer.expect([]);
    peer.request(SendMiddle, 2, NoAck, &mtu);
    peer.request(SendLast, 3, Ack, b"end");
    peer.expect(["ACK 3 msn 2"]);
    peer.request(SendOnly, 4, NoAck, b"");
    peer.expect([]);
    let completions = peer.node.take_completions();
    assert_eq!(completions.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect::<Vec<_>>(), [(0, 5), (1, 2051), (2, 0)]);
    assert_eq!(peer.node.read(0x8000 + 2048, 3), b"end");
    assert_eq!(peer.node.stat("rdma_recvs"), 3);
}

// [RC-RSP-ACK-COALESCE]
#[test]
fn one_ack_per_burst() {
    let mut peer = with_receives(10);
    for psn in 0..10 {
        peer.request(SendOnly, psn, Ack, b"x");
    }
    peer.expect(["ACK 9 msn 10"]);
    assert_eq!(peer.node.stat("ack_deferred"), 9);
    // The ACK is owed for a packet in the middle, and acknowledges the newest executed one.
    peer.rdma(WriteOnly, 10, Ack, 0, 1, b"a");
    peer.rdma(WriteOnly, 11, NoAck, 0, 1, b"b");
    peer.expect(["ACK 11 msn 12"]);
}

// [RC-RSP-ACK-WHERE]
#[test]
fn an_ack_is_for_the_end_of_a_message_or_a_packet_that_has_asked() {
    let mut peer = with_receives(3);
    let mtu = vec![0xAB; peer.mtu()];
    peer.request(SendOnly, 0, Ack, b"x");
    peer.request(SendFirst, 1, NoAck, &mtu);
    peer.request(SendMiddle, 2, NoAck, &mtu);
    peer.expect(["ACK 0 msn 1"]);
    // Repeated in mid-message: no packet of the message has asked yet.
    peer.request(SendFirst, 1, NoAck, &mtu);
    peer.expect(["ACK 0 msn 1"]);
    peer.request(SendMiddle, 2, Ack, &mtu);
    peer.expect(["ACK 2 msn 1"]);
    peer.request(SendFirst, 1, Ack, &mtu);
    peer.expect(["ACK 2 msn 1"]);
    peer.request(SendMiddle, 3, NoAck, &mtu);
    peer.expect([]);
    peer.request(SendLast, 4, NoAck, b"end");
    peer.request(SendOnly, 5, Ack, b"");
    peer.expect(["ACK 5 msn 3"]);
    peer.request(SendLast, 4, NoAck, b"end");
    peer.expect(["ACK 5 msn 3"]);
}

// [RC-RSP-COMM-EST]
#[test]
fn communication_established_is_raised_once() {
    let mut peer = with_receives(2);
    let qpn = peer.node.qpn;
    peer.request(SendOnly, 0, Ack, b"x");
    peer.request(SendOnly, 1, Ack, b"x");
    assert_eq!(peer.node.take_events(), [AsyncEvent::CommunicationEstablished { qpn }]);
    let mut peer = with_receives(1);
    let qpn = peer.node.qpn;
    peer.node.engine.established(qpn);
    peer.request(SendOnly, 0, Ack, b"x");
    assert_eq!(peer.node.take_events(), []);
}

// [QP-STATE-SERVE]
#[test]
fn requests_are_answered_in_rtr() {
    let agreed = Agreed { access: ALL_ACCESS, ..Agreed::default() };
    let mut node = Node::new(1, EngineConfig::default(), 4, 4096, agreed.access);
    let peer = ScriptedPeer::with(agreed);
    let frame = peer.frame(WriteOnly, Psn::new(0), Ack, b"early", |packet| {
        packet.reth(node.region.addr(), node.region.rkey(), 5);
    });
    let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!() };
    let mut tx = TxFrames::default();
    node.engine.receive(Instant::ZERO, PORT, &packet);
    assert_eq!(node.dropped("qp_wrong_state"), 1, "in INIT");
    node.ready_to_receive(2, rxe_proto::transport::Qpn::new(0x11), &agreed);
    node.engine.receive(Instant::ZERO, PORT, &packet);
    assert_eq!(node.engine.transmit(Instant::ZERO, &mut tx), 1);
    assert_eq!(node.read(0, 5), b"early");
}

// [RC-RSP-ZERO-LENGTH] [RC-RSP-WRITE-IMM]
#[test]
fn writes_of_one_and_many_packets() {
    let mut peer = with_receives(2);
    let mtu: Vec<u8> = (0..peer.mtu()).map(|i| i as u8).collect();
    peer.rdma(WriteFirst, 0, NoAck, 0x100, 2 * mtu.len() + 3, &mtu);
    peer.request(WriteMiddle, 1, NoAck, &mtu);
    peer.request(WriteLast, 2, Ack, b"abc");
    peer.expect(["ACK 2 msn 1"]);
    assert_eq!(peer.node.read(0x100, 2051), [&mtu[..], &mtu, b"abc"].concat());
    // Zero bytes: neither key nor address are looked at, and no receive is taken.
    peer.rdma_raw(WriteOnly, 3, Ack, 0xDEAD, 0xBEEF, 0, b"");
    peer.expect(["ACK 3 msn 2"]);
    assert_eq!(peer.node.take_completions(), []);

    let (va, rkey) = (peer.node.region.addr(), peer.node.region.rkey());
    let psn = peer.agreed.rq_psn.add(4);
    let frame = peer.frame(WriteOnlyImm, psn, Ack, b"imm", |packet| {
        packet.reth(va, rkey, 3).imm(77);
    });
    peer.inject(&frame);
    peer.expect(["ACK 4 msn 3"]);
    let [wc] = peer.node.take_completions()[..] else { panic!() };
    assert_eq!((wc.opcode, wc.byte_len, wc.imm), (WcOpcode::RecvRdmaWithImm, 3, Some(77)));
}

// [RC-RSP-READ-NO-ACK] [RC-RSP-READ-PSNS] [RC-RSP-READ-AETH] [RC-RSP-ZERO-LENGTH]
#[test]
fn reads_are_answered_whatever_ack_req_says() {
    let mut peer = ScriptedPeer::new();
    peer.node.write(0, &vec![7; 5000]);
    peer.rdma(ReadRequest, 0, NoAck, 0, 2500, b"");
    peer.rdma(ReadRequest, 3, Ack, 10, 5, b"");
    peer.rdma_raw(ReadRequest, 4, Ack, 1, 2, 0, b"");
    peer.expect([
        "READ_RESPONSE_FIRST 0 msn 1 1024 bytes",
        "READ_RESPONSE_MIDDLE 1 1024 bytes",
        "READ_RESPONSE_LAST 2 msn 1 452 bytes",
        "READ_RESPONSE_ONLY 3 msn 2 5 bytes",
        "READ_RESPONSE_ONLY 4 msn 3",
    ]);
}

// [RC-RSP-ACK-ORDER]
#[test]
fn no_ack_passes_an_unanswered_read() {
    let mut peer = with_receives(2);
    peer.request(SendOnly, 0, Ack, b"before");
    peer.rdma(ReadRequest, 1, Ack, 0, 2048, b"");
    peer.request(SendOnly, 3, Ack, b"after");
    // Room for one packet at a time.
    assert_eq!(peer.transmit_at_most(Some(1)), ["READ_RESPONSE_FIRST 1 msn 2 1024 bytes"]);
    assert_eq!(peer.transmit_at_most(Some(1)), ["READ_RESPONSE_LAST 2 msn 2 1024 bytes"]);
    assert_eq!(peer.transmit_at_most(Some(1)), ["ACK 3 msn 3"]);
    peer.expect([]);

    // A SEND before the READ may be acknowledged before it, but says nothing of messages after itself.
    peer.rdma(WriteOnly, 4, Ack, 0, 1, b"w");
    peer.rdma(ReadRequest, 5, Ack, 0, 1, b"");
    peer.expect(["ACK 4 msn 4", "READ_RESPONSE_ONLY 5 msn 5 1 bytes"]);
}

#[test]
fn a_refused_transmission_loses_nothing() {
    let mut peer = with_receives(1);
    peer.rdma(ReadRequest, 0, Ack, 0, 3000, b"");
    peer.request(SendOnly, 3, Ack, b"x");
    peer.rdma(ReadRequest, 5, Ack, 0, 3000, b"");
    assert_eq!(peer.transmit_at_most(Some(0)), [""; 0]);
    assert!(peer.node.engine.wants_transmit());
    let mut lines = Vec::new();
    for _ in 0..5 {
        lines.extend(peer.transmit_at_most(Some(1)));
    }
    assert_eq!(
        lines,
        [
            "READ_RESPONSE_FIRST 0 msn 1 1024 bytes",
            "READ_RESPONSE_MIDDLE 1 1024 bytes",
            "READ_RESPONSE_LAST 2 msn 1 952 bytes",
            "NAK 4 PsnSequence msn 2",
        ]
    );
    assert!(!peer.node.engine.wants_transmit());
    assert!(peer.node.stat("transmit_stalls") > 0);
}

#[test]
fn a_full_port_does_not_cost_a_walk_through_all_queue_pairs() {
    let mut peer = ScriptedPeer::new();
    let first = peer.node.qpn;
    let others: Vec<_> = (1..500).map(|_| peer.second_qp(PEER_QPN)).collect();
    for qpn in std::iter::once(first).chain(others) {
        peer.node.qpn = qpn;
        peer.rdma(WriteOnly, 0, Ack, 0, 1, b"w");
    }
    for _ in 0..10 {
        assert_eq!(peer.transmit_at_most(Some(0)), [""; 0]);
    }
    let stalls = peer.node.stat("transmit_stalls");
    assert!((10..=500).contains(&stalls), "{stalls}");
    // Each queue pair still sends its ACK, and none sends two.
    let acks: usize = (0..500).map(|_| peer.transmit_at_most(Some(1)).len()).sum();
    assert_eq!((acks, peer.node.engine.wants_transmit()), (500, false));
}

// [RC-RSP-IN-ORDER] [RC-RSP-GAP-NAK]
#[test]
fn one_nak_per_gap() {
    let mut peer = with_receives(4);
    peer.request(SendOnly, 0, Ack, b"0");
    for psn in [2, 3, 2, 9] {
        peer.request(SendOnly, psn, Ack, b"late");
    }
    peer.expect(["NAK 1 PsnSequence msn 1"]);
    peer.request(SendOnly, 10, Ack, b"10");
    peer.expect([]);
    assert_eq!((peer.node.stat("out_of_seq_request"), peer.node.dropped("psn_out_of_sequence")), (1, 5));
    // The expected one comes: the next gap gets its own NAK.
    peer.request(SendOnly, 1, Ack, b"1");
    peer.expect(["ACK 1 msn 2"]);
    peer.request(SendOnly, 3, Ack, b"3");
    peer.expect(["NAK 2 PsnSequence msn 2"]);
}

// [RC-RSP-GAP-NAK]
#[test]
fn a_gap_that_moves_within_the_burst_gets_one_nak() {
    let mut peer = with_receives(4);
    peer.request(SendOnly, 1, Ack, b"1");
    peer.request(SendOnly, 0, Ack, b"0");
    peer.expect(["NAK 1 PsnSequence msn 1"]);
    peer.request(SendOnly, 1, Ack, b"1");
    peer.expect(["ACK 1 msn 2"]);
}

// [RC-RSP-ACK-ORDER]
#[test]
fn a_nak_waits_for_the_responses_before_it() {
    let mut peer = ScriptedPeer::new();
    peer.rdma(ReadRequest, 0, Ack, 0, 2048, b"");
    peer.rdma(ReadRequest, 5, Ack, 0, 1, b"");
    peer.expect([
        "READ_RESPONSE_FIRST 0 msn 1 1024 bytes",
        "READ_RESPONSE_LAST 1 msn 1 1024 bytes",
        "NAK 2 PsnSequence msn 1",
    ]);
}

// [RC-RSP-RNR] [RC-RSP-SILENT-AFTER-RNR]
#[test]
fn not_ready_then_silent_until_the_expected_psn() {
    let mut peer = ScriptedPeer::new();
    peer.request(SendOnly, 0, Ack, b"0");
    peer.request(SendOnly, 1, Ack, b"1");
    peer.request(SendOnly, 2, Ack, b"2");
    peer.expect(["RNR_NAK 0 timer 1 msn 0"]);
    assert_eq!(peer.node.dropped("psn_after_rnr"), 2);
    // Still not ready.
    peer.request(SendOnly, 0, Ack, b"0");
    peer.expect(["RNR_NAK 0 timer 1 msn 0"]);
    post_receives(&mut peer, 1);
    peer.request(SendOnly, 2, Ack, b"2");
    peer.expect([]);
    peer.request(SendOnly, 0, Ack, b"0");
    peer.request(SendOnly, 1, Ack, b"1");
    peer.expect(["RNR_NAK 1 timer 1 msn 1"]);
    assert_eq!(peer.node.take_completions().len(), 1);
    assert_eq!((peer.node.stat("send_rnr_err"), peer.node.dropped("no_receive")), (3, 3));
}

// [RC-RSP-WRITE-IMM]
#[test]
fn a_write_with_immediate_waits_for_its_receive_at_the_end() {
    let mut peer = ScriptedPeer::new();
    let mtu = vec![9; peer.mtu()];
    peer.rdma(WriteFirst, 0, NoAck, 0, mtu.len() + 1, &mtu);
    let frame = peer.frame(WriteLastImm, peer.agreed.rq_psn.add(1), Ack, b"!", |packet| {
        packet.imm(5);
    });
    peer.inject(&frame);
    peer.expect(["RNR_NAK 1 timer 1 msn 0"]);
    assert_eq!(peer.node.read(mtu.len(), 1), [0], "not executed");
    post_receives(&mut peer, 1);
    peer.inject(&frame);
    peer.expect(["ACK 1 msn 1"]);
    let [wc] = peer.node.take_completions()[..] else { panic!() };
    assert_eq!((wc.byte_len, wc.imm), (1025, Some(5)));
}

#[test]
fn read_responses_are_round_robin_between_queue_pairs() {
    let mut peer =
        ScriptedPeer::with_config(Agreed::default(), EngineConfig { read_quantum: 2, ..EngineConfig::default() });
    let first = peer.node.qpn;
    let second = peer.second_qp(2);
    for qpn in [first, second] {
        peer.node.qpn = qpn;
        peer.rdma(ReadRequest, 0, Ack, 0, 5 * 1024, b"");
    }
    peer.rdma(WriteOnly, 5, Ack, 0, 1, b"w");
    // The destination tells which queue pair wrote: 0x11 is the peer of the first, 2 that of the second.
    let mut tx = TxFrames::default();
    peer.node.engine.transmit(peer.now, &mut tx);
    let turns: Vec<(u32, u32)> = tx
        .frames
        .iter()
        .map(|(_, frame)| {
            let Ok(Frame::Roce(packet)) = classify(frame) else { panic!() };
            (packet.dest_qp(), packet.psn().get())
        })
        .collect();
    let expected = [(17, 0), (17, 1), (2, 0), (2, 1), (17, 2), (17, 3), (2, 2), (2, 3), (17, 4), (2, 4), (2, 5)];
    assert_eq!(turns, expected);
}

#[test]
fn a_new_next_hop() {
    let mut peer = with_receives(1);
    let (qpn, mac) = (peer.node.qpn, MacAddr([2, 9, 9, 9, 9, 9]));
    peer.node.engine.set_path(qpn, mac).unwrap();
    peer.request(SendOnly, 0, Ack, b"x");
    peer.expect(["ACK 0 msn 1"]);
    assert_eq!(peer.frames[0][..6], mac.0);
    assert_eq!(peer.node.engine.query_qp(qpn).unwrap().path.unwrap().dst_mac, mac);
}

// [REQ-ERROR-FLUSH] [REQ-ERROR-POST]
#[test]
fn to_error_and_to_reset_by_the_consumer() {
    let mut peer = with_receives(2);
    let qpn = peer.node.qpn;
    peer.rdma(ReadRequest, 0, Ack, 0, 4000, b"");
    peer.node.take_events();
    peer.node.engine.modify_qp(qpn, QpTransition::ToError).unwrap();
    peer.expect([]);
    assert_eq!(peer.node.take_events(), [], "as wished, so no event");
    assert_eq!(statuses(&peer.node.take_completions()), [(0, WcStatus::WrFlushErr), (1, WcStatus::WrFlushErr)]);
    // Receives posted now are flushed at once.
    post_receives(&mut peer, 1);
    assert_eq!(statuses(&peer.node.take_completions()), [(0, WcStatus::WrFlushErr)]);
    let engine = &mut peer.node.engine;
    assert!(engine.modify_qp(qpn, QpTransition::Resume).is_err());
    engine.modify_qp(qpn, QpTransition::ToReset).unwrap();
    let info = engine.query_qp(qpn).unwrap();
    assert_eq!((info.state, info.path), (QpState::Reset, None));
    peer.advance(Duration::from_secs(1));
}
