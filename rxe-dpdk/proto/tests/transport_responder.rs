//! The responder, packet by packet. PSNs are relative to the start (which is just before the wrap).

mod harness;

use harness::solo::{Ask, Solo};
use harness::{ALL_ACCESS, Agreed, Node, PORT};
use rxe_proto::mem::{Access, Memory};
use rxe_proto::transport::{
    EngineConfig, QpErrorCause, QpEvent, QpState, QpTransition, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use rxe_proto::wire::{Frame, MacAddr, Opcode, PortId, Psn, TxFrames, classify};
use rxe_proto::{Duration, Instant};

use Ask::{Ack, Nothing};
use Opcode::*;

/// A solo engine with `n` receives of 4096 bytes at offset 0x8000, numbered from 0.
fn with_receives(n: u64) -> Solo {
    let mut solo = Solo::new();
    post_receives(&mut solo, n);
    solo
}

fn post_receives(solo: &mut Solo, n: u64) {
    for wr_id in 0..n {
        let sge = solo.node.sge(0x8000, 4096);
        solo.node.post_recv(wr_id, &[sge]);
    }
}

fn statuses(completions: &[WorkCompletion]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

fn errors(events: &[QpEvent]) -> Vec<QpErrorCause> {
    events
        .iter()
        .filter_map(|event| if let QpEvent::QpError { cause, .. } = event { Some(*cause) } else { None })
        .collect()
}

/// The queue pair went to error for `cause`, once, and completed as told.
#[track_caller]
fn expect_error(solo: &mut Solo, cause: QpErrorCause, completions: &[(u64, WcStatus)]) {
    assert_eq!(errors(&solo.node.take_events()), [cause]);
    assert_eq!(statuses(&solo.node.take_completions()), completions);
    let qpn = solo.node.qpn;
    assert_eq!(solo.node.engine.query_qp(qpn).unwrap().state, QpState::Error);
    // Silent from now on.
    solo.request(SendOnly, 100, Ack, b"anybody there?");
    solo.expect([]);
    assert_eq!(solo.node.dropped("qp_in_error"), 1);
}

#[test]
fn sends_of_one_and_many_packets() {
    let mut solo = with_receives(3);
    let mtu = vec![0xAB; solo.mtu()];
    solo.request(SendOnly, 0, Ack, b"hello");
    solo.expect(["ACK 0 msn 1"]);
    solo.request(SendFirst, 1, Nothing, &mtu);
    solo.expect([]);
    solo.request(SendMiddle, 2, Nothing, &mtu);
    solo.request(SendLast, 3, Ack, b"end");
    solo.expect(["ACK 3 msn 2"]);
    solo.request(SendOnly, 4, Nothing, b"");
    solo.expect([]);
    let completions = solo.node.take_completions();
    assert_eq!(completions.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect::<Vec<_>>(), [(0, 5), (1, 2051), (2, 0)]);
    assert_eq!(solo.node.read(0x8000 + 2048, 3), b"end");
    assert_eq!(solo.node.stat("rdma_recvs"), 3);
}

#[test]
fn one_ack_per_burst() {
    let mut solo = with_receives(10);
    for psn in 0..10 {
        solo.request(SendOnly, psn, Ack, b"x");
    }
    solo.expect(["ACK 9 msn 10"]);
    assert_eq!(solo.node.stat("ack_deferred"), 9);
    // Owed for a packet in the middle: the newest executed one is told.
    solo.rdma(WriteOnly, 10, Ack, 0, 1, b"a");
    solo.rdma(WriteOnly, 11, Nothing, 0, 1, b"b");
    solo.expect(["ACK 11 msn 12"]);
}

#[test]
fn communication_established_is_told_once() {
    let mut solo = with_receives(2);
    let qpn = solo.node.qpn;
    solo.request(SendOnly, 0, Ack, b"x");
    solo.request(SendOnly, 1, Ack, b"x");
    assert_eq!(solo.node.take_events(), [QpEvent::CommunicationEstablished { qpn }]);
    let mut solo = with_receives(1);
    let qpn = solo.node.qpn;
    solo.node.engine.established(qpn);
    solo.request(SendOnly, 0, Ack, b"x");
    assert_eq!(solo.node.take_events(), []);
}

#[test]
fn requests_are_answered_in_rtr() {
    let agreed = Agreed { access: ALL_ACCESS, ..Agreed::default() };
    let mut node = Node::new(1, EngineConfig::default(), 4, 4096, agreed.access);
    let solo = Solo::with(agreed);
    let frame = solo.frame(WriteOnly, Psn::new(0), Ack, b"early", |packet| {
        packet.reth(node.region.addr(), node.region.rkey(), 5);
    });
    let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!() };
    let mut tx = TxFrames::default();
    node.engine.receive(Instant::ZERO, PORT, &packet, 0);
    assert_eq!(node.dropped("qp_wrong_state"), 1, "in INIT");
    node.to_rtr(2, rxe_proto::transport::Qpn::new(0x11), &agreed);
    node.engine.receive(Instant::ZERO, PORT, &packet, 0);
    assert_eq!(node.engine.transmit(Instant::ZERO, &mut tx), 1);
    assert_eq!(node.read(0, 5), b"early");
}

#[test]
fn writes_of_one_and_many_packets() {
    let mut solo = with_receives(2);
    let mtu: Vec<u8> = (0..solo.mtu()).map(|i| i as u8).collect();
    solo.rdma(WriteFirst, 0, Nothing, 0x100, 2 * mtu.len() + 3, &mtu);
    solo.request(WriteMiddle, 1, Nothing, &mtu);
    solo.request(WriteLast, 2, Ack, b"abc");
    solo.expect(["ACK 2 msn 1"]);
    assert_eq!(solo.node.read(0x100, 2051), [&mtu[..], &mtu, b"abc"].concat());
    // Zero bytes: neither key nor address are looked at, and no receive is taken.
    solo.rdma_raw(WriteOnly, 3, Ack, 0xDEAD, 0xBEEF, 0, b"");
    solo.expect(["ACK 3 msn 2"]);
    assert_eq!(solo.node.take_completions(), []);

    let (va, rkey) = (solo.node.region.addr(), solo.node.region.rkey());
    let psn = solo.agreed.rq_psn.add(4);
    let frame = solo.frame(WriteOnlyImm, psn, Ack, b"imm", |packet| {
        packet.reth(va, rkey, 3).imm(77);
    });
    solo.inject(&frame);
    solo.expect(["ACK 4 msn 3"]);
    let [wc] = solo.node.take_completions()[..] else { panic!() };
    assert_eq!((wc.opcode, wc.byte_len, wc.imm), (WcOpcode::RecvRdmaWithImm, 3, Some(77)));
}

#[test]
fn reads_are_answered_whatever_ack_req_says() {
    let mut solo = Solo::new();
    solo.node.write(0, &vec![7; 5000]);
    solo.rdma(ReadRequest, 0, Nothing, 0, 2500, b"");
    solo.rdma(ReadRequest, 3, Ack, 10, 5, b"");
    solo.rdma_raw(ReadRequest, 4, Ack, 1, 2, 0, b"");
    solo.expect([
        "READ_RESPONSE_FIRST 0 msn 1 1024 bytes",
        "READ_RESPONSE_MIDDLE 1 1024 bytes",
        "READ_RESPONSE_LAST 2 msn 1 452 bytes",
        "READ_RESPONSE_ONLY 3 msn 2 5 bytes",
        "READ_RESPONSE_ONLY 4 msn 3",
    ]);
}

#[test]
fn no_ack_passes_an_unanswered_read() {
    let mut solo = with_receives(2);
    solo.request(SendOnly, 0, Ack, b"before");
    solo.rdma(ReadRequest, 1, Ack, 0, 2048, b"");
    solo.request(SendOnly, 3, Ack, b"after");
    // Room for one packet at a time.
    assert_eq!(solo.transmit_at_most(Some(1)), ["READ_RESPONSE_FIRST 1 msn 2 1024 bytes"]);
    assert_eq!(solo.transmit_at_most(Some(1)), ["READ_RESPONSE_LAST 2 msn 2 1024 bytes"]);
    assert_eq!(solo.transmit_at_most(Some(1)), ["ACK 3 msn 3"]);
    solo.expect([]);

    // A SEND before the READ may be acknowledged before it, but says nothing of messages after itself.
    solo.rdma(WriteOnly, 4, Ack, 0, 1, b"w");
    solo.rdma(ReadRequest, 5, Ack, 0, 1, b"");
    solo.expect(["ACK 4 msn 4", "READ_RESPONSE_ONLY 5 msn 5 1 bytes"]);
}

#[test]
fn a_refused_transmission_loses_nothing() {
    let mut solo = with_receives(1);
    solo.rdma(ReadRequest, 0, Ack, 0, 3000, b"");
    solo.request(SendOnly, 3, Ack, b"x");
    solo.rdma(ReadRequest, 5, Ack, 0, 3000, b"");
    assert_eq!(solo.transmit_at_most(Some(0)), [""; 0]);
    assert!(solo.node.engine.wants_transmit());
    let mut lines = Vec::new();
    for _ in 0..5 {
        lines.extend(solo.transmit_at_most(Some(1)));
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
    assert!(!solo.node.engine.wants_transmit());
    assert!(solo.node.stat("transmit_stalls") > 0);
}

#[test]
fn duplicates_of_sends_and_writes() {
    let mut solo = with_receives(2);
    solo.request(SendOnly, 0, Nothing, b"one");
    solo.rdma(WriteOnly, 1, Nothing, 0, 1, b"w");
    solo.rdma(ReadRequest, 2, Ack, 0, 1, b"");
    solo.expect(["READ_RESPONSE_ONLY 2 msn 3 1 bytes"]);
    // Five copies, one ACK, for the newest executed packet that a plain ACK may name.
    solo.node.write(0, b"z");
    for _ in 0..5 {
        solo.request(SendOnly, 0, Nothing, b"one");
    }
    solo.expect(["ACK 1 msn 2"]);
    solo.rdma(WriteOnly, 1, Nothing, 0, 1, b"w");
    solo.expect(["ACK 1 msn 2"]);
    assert_eq!(solo.node.read(0, 1), b"z", "not executed again");
    assert_eq!(solo.node.take_completions().len(), 1);
    assert_eq!(solo.node.stat("duplicate_request"), 6);
}

#[test]
fn a_duplicate_before_anything_was_executed() {
    let mut solo = with_receives(1);
    solo.request(SendOnly, -3, Nothing, b"from the past");
    solo.expect(["ACK -1 msn 0"]);
    assert_eq!(solo.node.take_completions(), []);
}

#[test]
fn duplicate_reads_read_again_from_any_psn() {
    let mut solo = Solo::new();
    solo.node.write(0, &[1; 4096]);
    solo.rdma(ReadRequest, 0, Ack, 0, 4096, b"");
    assert_eq!(solo.transmit().len(), 4);
    solo.node.write(0, &[2; 4096]);
    solo.rdma(ReadRequest, 2, Ack, 2048, 2048, b"");
    solo.expect(["READ_RESPONSE_FIRST 2 msn 1 1024 bytes", "READ_RESPONSE_LAST 3 msn 1 1024 bytes"]);
    let Ok(Frame::Roce(packet)) = classify(&solo.frames[0]) else { panic!() };
    assert_eq!(packet.payload(), [2; 1024], "as it is now");
    solo.rdma(ReadRequest, 3, Ack, 3072, 1024, b"");
    solo.expect(["READ_RESPONSE_ONLY 3 msn 1 1024 bytes"]);
    // Not part of it.
    solo.rdma(ReadRequest, 1, Ack, 1024, 4096, b"");
    solo.rdma(ReadRequest, 3, Ack, 0, 2048, b"");
    solo.expect([]);
    assert_eq!(solo.node.dropped("psn_duplicate_gone"), 2);
    assert_eq!(solo.node.stat("read_replays"), 2);
}

#[test]
fn a_read_asked_for_again_while_it_is_answered_starts_over_in_its_place() {
    let mut solo = Solo::new();
    solo.rdma(ReadRequest, 0, Ack, 0, 4096, b"");
    solo.rdma(ReadRequest, 4, Ack, 0, 10, b"");
    assert_eq!(solo.transmit_at_most(Some(3)).len(), 3);
    solo.rdma(ReadRequest, 1, Ack, 1024, 3072, b"");
    solo.rdma(ReadRequest, 4, Ack, 0, 10, b"");
    solo.expect([
        "READ_RESPONSE_FIRST 1 msn 1 1024 bytes",
        "READ_RESPONSE_MIDDLE 2 1024 bytes",
        "READ_RESPONSE_LAST 3 msn 1 1024 bytes",
        "READ_RESPONSE_ONLY 4 msn 2 10 bytes",
    ]);
}

#[test]
fn a_stray_duplicate_read_of_memory_long_gone_is_harmless() {
    let mut solo = Solo::new();
    let pd = solo.node.pd;
    let region = solo.node.engine.keys_mut().register(pd, Memory::heap(64), 0, ALL_ACCESS).unwrap();
    solo.rdma_raw(ReadRequest, 0, Ack, 0, region.rkey(), 64, b"");
    solo.expect(["READ_RESPONSE_ONLY 0 msn 1 64 bytes"]);
    solo.node.engine.keys_mut().deregister(region.rkey()).unwrap();
    solo.rdma_raw(ReadRequest, 0, Ack, 0, region.rkey(), 64, b"");
    solo.expect([]);
    assert_eq!(errors(&solo.node.take_events()), []);
}

#[test]
fn memory_gone_amid_a_read() {
    let mut solo = Solo::new();
    let pd = solo.node.pd;
    let region = solo.node.engine.keys_mut().register(pd, Memory::heap(4096), 0, ALL_ACCESS).unwrap();
    solo.rdma_raw(ReadRequest, 0, Ack, 0, region.rkey(), 4096, b"");
    assert_eq!(solo.transmit_at_most(Some(1)).len(), 1);
    solo.node.engine.keys_mut().deregister(region.rkey()).unwrap();
    solo.expect(["NAK 1 RemoteAccess msn 1"]);
    expect_error(&mut solo, QpErrorCause::RemoteKey, &[]);
}

#[test]
fn atomics_happen_once() {
    let mut solo = Solo::new();
    solo.node.write(8, &5u64.to_ne_bytes());
    solo.atomic(FetchAdd, 0, 8, 3, 0);
    solo.expect(["ATOMIC_ACKNOWLEDGE 0 msn 1 value 5"]);
    solo.atomic(CompareSwap, 1, 8, 100, 8);
    solo.atomic(CompareSwap, 2, 8, 200, 8);
    solo.expect(["ATOMIC_ACKNOWLEDGE 1 msn 2 value 8", "ATOMIC_ACKNOWLEDGE 2 msn 3 value 100"]);
    for psn in [0, 1, 2] {
        solo.atomic(if psn == 0 { FetchAdd } else { CompareSwap }, psn, 8, 1, 100);
    }
    solo.expect([
        "ATOMIC_ACKNOWLEDGE 0 msn 1 value 5",
        "ATOMIC_ACKNOWLEDGE 1 msn 2 value 8",
        "ATOMIC_ACKNOWLEDGE 2 msn 3 value 100",
    ]);
    assert_eq!(solo.node.read(8, 8), 100u64.to_ne_bytes());
    // Of another kind than the first time.
    solo.atomic(CompareSwap, 0, 8, 1, 1);
    solo.rdma(ReadRequest, 0, Ack, 0, 8, b"");
    solo.expect([]);
    assert_eq!(solo.node.dropped("psn_duplicate_gone"), 2);
}

#[test]
fn an_atomic_older_than_the_ring_is_not_answered() {
    let mut solo = Solo::new();
    for psn in 0..5 {
        solo.atomic(FetchAdd, psn, 8, 1, 0);
        assert_eq!(solo.transmit().len(), 1);
    }
    solo.atomic(FetchAdd, 0, 8, 1, 0);
    solo.atomic(FetchAdd, 1, 8, 1, 0);
    solo.expect(["ATOMIC_ACKNOWLEDGE 1 msn 2 value 1"]);
    assert_eq!(solo.node.dropped("psn_duplicate_gone"), 1);
}

#[test]
fn one_nak_per_gap() {
    let mut solo = with_receives(4);
    solo.request(SendOnly, 0, Ack, b"0");
    for psn in [2, 3, 2, 9] {
        solo.request(SendOnly, psn, Ack, b"late");
    }
    solo.expect(["NAK 1 PsnSequence msn 1"]);
    solo.request(SendOnly, 3, Ack, b"3");
    solo.expect([]);
    assert_eq!((solo.node.stat("out_of_seq_request"), solo.node.dropped("psn_out_of_sequence")), (1, 5));
    // The expected one comes: the next gap gets its own NAK.
    solo.request(SendOnly, 1, Ack, b"1");
    solo.expect(["ACK 1 msn 2"]);
    solo.request(SendOnly, 3, Ack, b"3");
    solo.expect(["NAK 2 PsnSequence msn 2"]);
}

#[test]
fn a_gap_closed_within_the_burst_needs_no_nak() {
    let mut solo = with_receives(4);
    solo.request(SendOnly, 1, Ack, b"1");
    solo.request(SendOnly, 0, Ack, b"0");
    solo.expect(["ACK 0 msn 1"]);
    solo.request(SendOnly, 1, Ack, b"1");
    solo.expect(["ACK 1 msn 2"]);
}

#[test]
fn a_nak_waits_for_the_responses_before_it() {
    let mut solo = Solo::new();
    solo.rdma(ReadRequest, 0, Ack, 0, 2048, b"");
    solo.rdma(ReadRequest, 5, Ack, 0, 1, b"");
    solo.expect([
        "READ_RESPONSE_FIRST 0 msn 1 1024 bytes",
        "READ_RESPONSE_LAST 1 msn 1 1024 bytes",
        "NAK 2 PsnSequence msn 1",
    ]);
}

#[test]
fn not_ready_then_silent_until_the_expected_psn() {
    let mut solo = Solo::new();
    solo.request(SendOnly, 0, Ack, b"0");
    solo.request(SendOnly, 1, Ack, b"1");
    solo.request(SendOnly, 2, Ack, b"2");
    solo.expect(["RNR_NAK 0 timer 1 msn 0"]);
    assert_eq!(solo.node.dropped("psn_after_rnr"), 2);
    // Still not ready.
    solo.request(SendOnly, 0, Ack, b"0");
    solo.expect(["RNR_NAK 0 timer 1 msn 0"]);
    post_receives(&mut solo, 1);
    solo.request(SendOnly, 2, Ack, b"2");
    solo.expect([]);
    solo.request(SendOnly, 0, Ack, b"0");
    solo.request(SendOnly, 1, Ack, b"1");
    solo.expect(["RNR_NAK 1 timer 1 msn 1"]);
    assert_eq!(solo.node.take_completions().len(), 1);
    assert_eq!((solo.node.stat("send_rnr_err"), solo.node.dropped("no_receive")), (3, 3));
}

#[test]
fn a_write_with_immediate_waits_for_its_receive_at_the_end() {
    let mut solo = Solo::new();
    let mtu = vec![9; solo.mtu()];
    solo.rdma(WriteFirst, 0, Nothing, 0, mtu.len() + 1, &mtu);
    let frame = solo.frame(WriteLastImm, solo.agreed.rq_psn.add(1), Ack, b"!", |packet| {
        packet.imm(5);
    });
    solo.inject(&frame);
    solo.expect(["RNR_NAK 1 timer 1 msn 0"]);
    assert_eq!(solo.node.read(mtu.len(), 1), [0], "not executed");
    post_receives(&mut solo, 1);
    solo.inject(&frame);
    solo.expect(["ACK 1 msn 1"]);
    let [wc] = solo.node.take_completions()[..] else { panic!() };
    assert_eq!((wc.byte_len, wc.imm), (1025, Some(5)));
}

#[test]
fn opcodes_out_of_order() {
    for (before, bad) in [
        (None, SendMiddle),
        (None, SendLast),
        (None, WriteMiddle),
        (Some(SendFirst), SendFirst),
        (Some(SendFirst), SendOnly),
        (Some(SendFirst), WriteMiddle),
        (Some(WriteFirst), SendMiddle),
        (Some(WriteFirst), SendOnly),
    ] {
        let mut solo = with_receives(2);
        let mtu = vec![1; solo.mtu()];
        let mut psn = 0;
        match before {
            Some(WriteFirst) => solo.rdma(WriteFirst, 0, Nothing, 0, 3000, &mtu),
            Some(op) => solo.request(op, 0, Nothing, &mtu),
            None => psn = -1,
        }
        psn += 1;
        solo.request(bad, psn, Ack, &mtu);
        assert_eq!(solo.transmit(), [format!("NAK {psn} InvalidRequest msn 0")], "{before:?} {bad:?}");
        let first = if before == Some(SendFirst) { WcStatus::RemInvReqErr } else { WcStatus::WrFlushErr };
        expect_error(&mut solo, QpErrorCause::OpcodeSequence, &[(0, first), (1, WcStatus::WrFlushErr)]);
    }
    // Not even a READ may interleave.
    let mut solo = with_receives(0);
    let mtu = vec![1; solo.mtu()];
    solo.rdma(WriteFirst, 0, Nothing, 0, 3000, &mtu);
    solo.rdma(ReadRequest, 1, Ack, 0, 1, b"");
    solo.expect(["NAK 1 InvalidRequest msn 0"]);
}

#[test]
fn what_is_not_offered() {
    let mut solo = Solo::new();
    solo.rdma(AtomicWrite, 0, Ack, 0, 8, &[0; 8]);
    solo.expect(["NAK 0 InvalidRequest msn 0"]);
    expect_error(&mut solo, QpErrorCause::OpcodeUnsupported, &[]);
}

#[test]
fn access_flags_of_the_queue_pair() {
    for op in [WriteOnly, ReadRequest, FetchAdd] {
        let mut solo = Solo::with(Agreed { access: Access::empty(), ..Agreed::default() });
        match op {
            WriteOnly => solo.rdma(op, 0, Ack, 0, 1, b"x"),
            ReadRequest => solo.rdma(op, 0, Ack, 0, 1, b""),
            _ => solo.atomic(op, 0, 0, 1, 1),
        }
        solo.expect(["NAK 0 InvalidRequest msn 0"]);
        expect_error(&mut solo, QpErrorCause::AccessFlags, &[]);
    }
}

#[test]
fn bad_remote_keys() {
    type Bad = fn(&mut Solo) -> (u64, u32, u32);
    let cases: [(&str, Bad); 4] = [
        ("unknown", |solo| (solo.node.region.addr(), solo.node.region.rkey() ^ 0x10, 8)),
        ("range", |solo| (solo.node.region.addr() + (1 << 16) - 7, solo.node.region.rkey(), 8)),
        ("rights", |solo| {
            let pd = solo.node.pd;
            let keys = solo.node.engine.keys_mut();
            (0, keys.register(pd, Memory::heap(64), 0, Access::LOCAL_WRITE).unwrap().rkey(), 8)
        }),
        ("domain", |solo| {
            let keys = solo.node.engine.keys_mut();
            let pd = keys.alloc_pd();
            (0, keys.register(pd, Memory::heap(64), 0, ALL_ACCESS).unwrap().rkey(), 8)
        }),
    ];
    for (name, bad) in cases {
        for op in [WriteOnly, ReadRequest, FetchAdd] {
            let mut solo = with_receives(1);
            solo.request(SendOnly, 0, Ack, b"before");
            let (va, rkey, len) = bad(&mut solo);
            match op {
                WriteOnly => solo.rdma_raw(op, 1, Ack, va, rkey, len, &[0; 8]),
                ReadRequest => solo.rdma_raw(op, 1, Ack, va, rkey, len, b""),
                _ => {
                    let va = va & !7;
                    let va = if name == "range" { va + 8 } else { va };
                    let frame = solo.frame(op, solo.agreed.rq_psn.add(1), Ack, b"", |packet| {
                        packet.atomic_eth(va, rkey, 1, 1);
                    });
                    solo.inject(&frame);
                }
            }
            assert_eq!(solo.transmit(), ["NAK 1 RemoteAccess msn 1"], "{name} {op:?}");
            expect_error(&mut solo, QpErrorCause::RemoteKey, &[(0, WcStatus::Success)]);
        }
    }
}

#[test]
fn a_bad_range_is_found_before_a_byte_is_written() {
    let mut solo = Solo::new();
    let mtu = vec![0xFF; solo.mtu()];
    solo.rdma(WriteFirst, 0, Nothing, (1 << 16) - 1024, 1025, &mtu);
    solo.expect(["NAK 0 RemoteAccess msn 0"]);
    assert_eq!(solo.node.read((1 << 16) - 1024, 1024), [0; 1024]);
}

#[test]
fn lengths_against_the_rules() {
    type Bad = fn(&mut Solo, &[u8]);
    let cases: [(&str, Bad); 9] = [
        ("short SEND_FIRST", |solo, mtu| solo.request(SendFirst, 0, Ack, &mtu[1..])),
        ("long SEND_ONLY", |solo, mtu| solo.request(SendOnly, 0, Ack, &[mtu, b"x"].concat())),
        ("short WRITE_FIRST", |solo, mtu| solo.rdma(WriteFirst, 0, Ack, 0, 2000, &mtu[1..])),
        ("WRITE_FIRST with all", |solo, mtu| solo.rdma(WriteFirst, 0, Ack, 0, mtu.len(), mtu)),
        ("WRITE_ONLY with less", |solo, _| solo.rdma(WriteOnly, 0, Ack, 0, 10, b"123456789")),
        ("WRITE_ONLY with more", |solo, _| solo.rdma(WriteOnly, 0, Ack, 0, 8, b"123456789")),
        ("WRITE_ONLY beyond the MTU", |solo, mtu| {
            solo.rdma(WriteOnly, 0, Ack, 0, mtu.len() + 1, &[mtu, b"x"].concat());
        }),
        ("endless READ", |solo, _| solo.rdma(ReadRequest, 0, Ack, 0, (1 << 31) + 1, b"")),
        ("WRITE without end", |solo, mtu| solo.rdma(WriteFirst, 0, Ack, 0, (1 << 31) + 1, mtu)),
    ];
    for (name, bad) in cases {
        let mut solo = with_receives(1);
        let mtu = vec![1; solo.mtu()];
        bad(&mut solo, &mtu);
        assert_eq!(solo.transmit(), ["NAK 0 InvalidRequest msn 0"], "{name}");
        let status = if name.contains("SEND") { WcStatus::RemInvReqErr } else { WcStatus::WrFlushErr };
        expect_error(&mut solo, QpErrorCause::Length, &[(0, status)]);
    }
    // An empty last packet.
    let mut solo = with_receives(1);
    let mtu = vec![1; solo.mtu()];
    solo.request(SendFirst, 0, Nothing, &mtu);
    solo.request(SendLast, 1, Ack, b"");
    solo.expect(["NAK 1 InvalidRequest msn 0"]);
    // A last packet that is not the rest.
    let mut solo = Solo::new();
    solo.rdma(WriteFirst, 0, Nothing, 0, 2000, &mtu);
    solo.request(WriteLast, 1, Ack, &mtu[..975]);
    solo.expect(["NAK 1 InvalidRequest msn 0"]);
}

#[test]
fn a_send_longer_than_its_receive() {
    let mut solo = Solo::new();
    let sge = solo.node.sge(0, 1500);
    solo.node.post_recv(1, &[sge]);
    solo.node.post_recv(2, &[sge]);
    let mtu = vec![1; solo.mtu()];
    solo.request(SendFirst, 0, Nothing, &mtu);
    solo.request(SendLast, 1, Ack, &mtu);
    solo.expect(["NAK 1 InvalidRequest msn 0"]);
    expect_error(&mut solo, QpErrorCause::ReceiveTooSmall, &[(1, WcStatus::LocLenErr), (2, WcStatus::WrFlushErr)]);
}

#[test]
fn a_receive_with_a_bad_key() {
    let mut solo = Solo::new();
    solo.node.post_recv(1, &[Sge { addr: 0, length: 100, lkey: 12345 }]);
    solo.request(SendOnly, 0, Ack, b"x");
    solo.expect(["NAK 0 RemoteOperational msn 0"]);
    expect_error(&mut solo, QpErrorCause::ReceiveKey, &[(1, WcStatus::LocProtErr)]);
}

#[test]
fn invalidation_needs_leave() {
    let mut solo = with_receives(2);
    let pd = solo.node.pd;
    let region = solo.node.engine.keys_mut().register(pd, Memory::heap(64), 0, ALL_ACCESS).unwrap();
    assert!(solo.node.engine.allow_invalidate(region.rkey()));
    let send = |solo: &mut Solo, psn: u32, rkey: u32| {
        let frame = solo.frame(SendOnlyInvalidate, solo.agreed.rq_psn.add(psn), Ack, b"inv", |packet| {
            packet.ieth(rkey);
        });
        solo.inject(&frame);
    };
    send(&mut solo, 0, region.rkey());
    let [wc] = solo.node.take_completions()[..] else { panic!() };
    assert_eq!(wc.invalidated_rkey, Some(region.rkey()));
    assert!(solo.node.engine.keys().region(region.rkey()).is_none());
    solo.expect(["ACK 0 msn 1"]);
    // The region of everybody else was not offered.
    let rkey = solo.node.region.rkey();
    send(&mut solo, 1, rkey);
    solo.expect(["ACK 1 msn 2"]);
    assert!(solo.node.engine.keys().region(rkey).is_some());
    solo.node.take_events();
    assert_eq!(statuses(&solo.node.take_completions()), [(1, WcStatus::RemInvReqErr)]);
}

#[test]
fn misaligned_atomic() {
    let mut solo = Solo::new();
    solo.atomic(FetchAdd, 0, 4, 1, 0);
    solo.expect(["NAK 0 InvalidRequest msn 0"]);
    expect_error(&mut solo, QpErrorCause::Misaligned, &[]);
}

#[test]
fn read_depth() {
    // Three agreed: the ring holds four, as rxe would use.
    let mut solo = Solo::with(Agreed { rd_atomic: 3, ..Agreed::default() });
    for psn in 0..4 {
        solo.rdma(ReadRequest, psn, Ack, 0, 1, b"");
    }
    assert_eq!(solo.transmit().len(), 4);
    for psn in 4..9 {
        solo.rdma(ReadRequest, psn, Ack, 0, 1, b"");
    }
    // Those accepted are answered before the refusal.
    solo.expect([
        "READ_RESPONSE_ONLY 4 msn 5 1 bytes",
        "READ_RESPONSE_ONLY 5 msn 6 1 bytes",
        "READ_RESPONSE_ONLY 6 msn 7 1 bytes",
        "READ_RESPONSE_ONLY 7 msn 8 1 bytes",
        "NAK 8 InvalidRequest msn 8",
    ]);
    expect_error(&mut solo, QpErrorCause::ReadDepth, &[]);

    let mut solo = Solo::with(Agreed { rd_atomic: 0, ..Agreed::default() });
    solo.rdma(ReadRequest, 0, Ack, 0, 1, b"");
    solo.expect(["NAK 0 InvalidRequest msn 0"]);
}

#[test]
fn reads_take_turns_between_queue_pairs() {
    let mut solo = Solo::with_config(Agreed::default(), EngineConfig { read_quantum: 2, ..EngineConfig::default() });
    let first = solo.node.qpn;
    let second = solo.second_qp(2);
    for qpn in [first, second] {
        solo.node.qpn = qpn;
        solo.rdma(ReadRequest, 0, Ack, 0, 5 * 1024, b"");
    }
    solo.rdma(WriteOnly, 5, Ack, 0, 1, b"w");
    // The destination tells which queue pair wrote: 0x11 is the peer of the first, 2 that of the second.
    let mut tx = TxFrames::default();
    solo.node.engine.transmit(solo.now, &mut tx);
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
fn a_full_completion_queue_ends_the_queue_pair() {
    let mut solo = with_receives(3);
    let (cq, qpn) = (solo.node.cq, solo.node.qpn);
    solo.node.engine.resize_cq(cq, 1).unwrap();
    // Not collected in between, as the harness does when it transmits.
    solo.request(SendOnly, 0, Ack, b"fits");
    solo.request(SendOnly, 1, Ack, b"does not");
    assert_eq!(errors(&solo.node.take_events()), [QpErrorCause::CqOverflow]);
    assert_eq!(solo.node.engine.query_qp(qpn).unwrap().state, QpState::Error);
    assert!(solo.node.stat("cq_overflows") > 0);
}

#[test]
fn strangers_are_not_heard() {
    let mut solo = with_receives(4);
    let frame = solo.frame(SendOnly, solo.agreed.rq_psn, Ack, b"x", |_| {});

    let mut damaged = frame.clone();
    let last = damaged.len() - 6;
    damaged[last] ^= 1;
    solo.inject(&damaged);
    assert_eq!(solo.node.dropped("icrc_mismatch"), 1);

    let mut elsewhere = frame.clone();
    elsewhere[14 + 15] ^= 1;
    solo.inject(&elsewhere);
    let mut to_elsewhere = frame.clone();
    to_elsewhere[14 + 19] ^= 1;
    solo.inject(&to_elsewhere);
    let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!() };
    solo.node.engine.receive(solo.now, PortId(1), &packet, 0);
    assert_eq!(solo.node.dropped("qp_wrong_address"), 3);

    let mut partition = frame.clone();
    partition[14 + 20 + 8 + 3] = 0xFE;
    solo.inject(&partition);
    assert_eq!(solo.node.dropped("pkey_mismatch"), 1);

    let mut unreliable = frame.clone();
    unreliable[14 + 20 + 8] |= 0x20;
    solo.inject(&unreliable);
    assert_eq!(solo.node.dropped("qp_wrong_transport"), 1);

    let mut nobody = frame.clone();
    nobody[14 + 20 + 8 + 7] ^= 1;
    solo.inject(&nobody);
    assert_eq!(solo.node.dropped("qpn_unknown"), 1);

    solo.expect([]);
    solo.inject(&frame);
    solo.expect(["ACK 0 msn 1"]);
}

#[test]
fn the_number_of_a_former_queue_pair_is_unknown() {
    let mut solo = Solo::new();
    let frame = solo.frame(SendOnly, solo.agreed.rq_psn, Ack, b"x", |_| {});
    let old = solo.node.qpn;
    let (pd, cq) = (solo.node.pd, solo.node.cq);
    let init = rxe_proto::transport::QpInit {
        pd,
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        sq_sig_all: false,
    };
    solo.node.engine.destroy_qp(old).unwrap();
    let new = solo.node.engine.create_qp(&init).unwrap();
    assert_ne!(new, old);
    assert_eq!(new.get() & 0xFFFF, old.get() & 0xFFFF, "same slot");
    assert_eq!(new.get() >> 16, (old.get() >> 16) + 1, "next generation");
    solo.inject(&frame);
    assert_eq!(solo.node.dropped("qpn_unknown"), 1);
    // The protection domain and the completion queue are held by queue pairs.
    assert!(solo.node.engine.destroy_cq(cq).is_err());
    solo.node.engine.destroy_qp(new).unwrap();
    assert!(solo.node.engine.destroy_cq(cq).is_ok());
}

#[test]
fn numbers_name_the_worker_and_leave_out_the_management_pairs() {
    let node = |worker| Node::new(1, EngineConfig { worker, ..EngineConfig::default() }, 1, 64, ALL_ACCESS);
    assert_eq!(node(0).qpn.get(), 2);
    assert_eq!(node(5).qpn.get(), 0x50_0000);
    assert_eq!(node(5).qpn.worker(), 5);
}

#[test]
fn a_new_next_hop() {
    let mut solo = with_receives(1);
    let (qpn, mac) = (solo.node.qpn, MacAddr([2, 9, 9, 9, 9, 9]));
    solo.node.engine.set_path(qpn, mac).unwrap();
    solo.request(SendOnly, 0, Ack, b"x");
    solo.expect(["ACK 0 msn 1"]);
    assert_eq!(solo.frames[0][..6], mac.0);
    assert_eq!(solo.node.engine.query_qp(qpn).unwrap().path.unwrap().dst_mac, mac);
}

#[test]
fn to_error_and_to_reset_by_the_consumer() {
    let mut solo = with_receives(2);
    let qpn = solo.node.qpn;
    solo.rdma(ReadRequest, 0, Ack, 0, 4000, b"");
    solo.node.take_events();
    solo.node.engine.modify_qp(solo.now, qpn, QpTransition::ToError).unwrap();
    solo.expect([]);
    assert_eq!(solo.node.take_events(), [], "as wished, so no event");
    assert_eq!(statuses(&solo.node.take_completions()), [(0, WcStatus::WrFlushErr), (1, WcStatus::WrFlushErr)]);
    // What is posted now is flushed at once.
    post_receives(&mut solo, 1);
    assert_eq!(statuses(&solo.node.take_completions()), [(0, WcStatus::WrFlushErr)]);
    let engine = &mut solo.node.engine;
    assert!(engine.modify_qp(solo.now, qpn, QpTransition::Resume).is_err());
    engine.modify_qp(solo.now, qpn, QpTransition::ToReset).unwrap();
    let info = engine.query_qp(qpn).unwrap();
    assert_eq!((info.state, info.path), (QpState::Reset, None));
    solo.advance(Duration::from_secs(1));
}
