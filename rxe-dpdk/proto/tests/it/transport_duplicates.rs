//! Duplicates of requests. PSNs are relative to the start (which is just before the wrap).

use crate::harness::receives::{errors, with_receives};
use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use crate::harness::{ALL_ACCESS, Agreed};
use rxe_proto::mem::Memory;
use rxe_proto::wire::{Frame, Opcode, classify};

use AckReq::{Ack, NoAck};
use Opcode::*;

// [RC-RSP-DUP-SEND-WRITE] [RC-RSP-READ-NO-ACK]
#[test]
fn duplicates_of_sends_and_writes() {
    let mut peer = with_receives(2);
    peer.request(SendOnly, 0, NoAck, b"one");
    peer.rdma(WriteOnly, 1, NoAck, 0, 1, b"w");
    peer.rdma(ReadRequest, 2, Ack, 0, 1, b"");
    peer.expect(["READ_RESPONSE_ONLY 2 msn 3 1 bytes"]);
    // Five copies, one ACK, for the newest executed packet that a plain ACK may name.
    peer.node.write(0, b"z");
    for _ in 0..5 {
        peer.request(SendOnly, 0, NoAck, b"one");
    }
    peer.expect(["ACK 1 msn 2"]);
    peer.rdma(WriteOnly, 1, NoAck, 0, 1, b"w");
    peer.expect(["ACK 1 msn 2"]);
    assert_eq!(peer.node.read(0, 1), b"z", "not executed again");
    assert_eq!(peer.node.take_completions().len(), 1);
    assert_eq!(peer.node.stat("duplicate_request"), 6);
}

// [RC-RSP-DUP-SEND-WRITE]
#[test]
fn a_duplicate_before_anything_was_executed() {
    let mut peer = with_receives(1);
    peer.request(SendOnly, -3, NoAck, b"from the past");
    peer.expect(["ACK -1 msn 0"]);
    assert_eq!(peer.node.take_completions(), []);
}

// [RC-RSP-DUP-READ] [RC-RSP-DUP-READ-FIRST] [RC-RSP-DUP-READ-BOUNDS]
#[test]
fn duplicate_reads_read_again_from_any_psn() {
    let mut peer = ScriptedPeer::new();
    peer.node.write(0, &[1; 4096]);
    peer.rdma(ReadRequest, 0, Ack, 0, 4096, b"");
    assert_eq!(peer.transmit().len(), 4);
    peer.node.write(0, &[2; 4096]);
    peer.rdma(ReadRequest, 2, Ack, 2048, 2048, b"");
    peer.expect(["READ_RESPONSE_FIRST 2 msn 1 1024 bytes", "READ_RESPONSE_LAST 3 msn 1 1024 bytes"]);
    let Ok(Frame::Roce(packet)) = classify(&peer.frames[0]) else { panic!() };
    assert_eq!(packet.payload(), [2; 1024], "as it is now");
    peer.rdma(ReadRequest, 3, Ack, 3072, 1024, b"");
    peer.expect(["READ_RESPONSE_ONLY 3 msn 1 1024 bytes"]);
    // Not part of it.
    peer.rdma(ReadRequest, 1, Ack, 1024, 4096, b"");
    peer.rdma(ReadRequest, 3, Ack, 0, 2048, b"");
    peer.expect([]);
    assert_eq!(peer.node.dropped("psn_duplicate_gone"), 2);
    assert_eq!(peer.node.stat("read_replays"), 2);
}

// [RC-RSP-DUP-READ]
#[test]
fn a_duplicate_read_during_its_responses_restarts_them_in_order() {
    let mut peer = ScriptedPeer::new();
    peer.rdma(ReadRequest, 0, Ack, 0, 4096, b"");
    peer.rdma(ReadRequest, 4, Ack, 0, 10, b"");
    assert_eq!(peer.transmit_at_most(Some(3)).len(), 3);
    peer.rdma(ReadRequest, 1, Ack, 1024, 3072, b"");
    peer.rdma(ReadRequest, 4, Ack, 0, 10, b"");
    peer.expect([
        "READ_RESPONSE_FIRST 1 msn 1 1024 bytes",
        "READ_RESPONSE_MIDDLE 2 1024 bytes",
        "READ_RESPONSE_LAST 3 msn 1 1024 bytes",
        "READ_RESPONSE_ONLY 4 msn 2 10 bytes",
    ]);
}

#[test]
fn a_repeated_older_read_is_answered_before_a_newer_one() {
    let mut peer = ScriptedPeer::new();
    peer.rdma(ReadRequest, 0, Ack, 0, 10, b"");
    peer.expect(["READ_RESPONSE_ONLY 0 msn 1 10 bytes"]);
    peer.rdma(ReadRequest, 1, Ack, 0, 2000, b"");
    peer.atomic(FetchAdd, 3, 8, 1, 0);
    assert_eq!(peer.transmit_at_most(Some(1)), ["READ_RESPONSE_FIRST 1 msn 2 1024 bytes"]);
    peer.rdma(ReadRequest, 0, Ack, 0, 10, b"");
    peer.expect([
        "READ_RESPONSE_ONLY 0 msn 1 10 bytes",
        "READ_RESPONSE_LAST 2 msn 2 976 bytes",
        "ATOMIC_ACKNOWLEDGE 3 msn 3 value 0",
    ]);
}

// [RC-RSP-DUP-READ-BOUNDS]
#[test]
fn a_late_duplicate_read_of_deregistered_memory_is_dropped() {
    let mut peer = ScriptedPeer::new();
    let pd = peer.node.pd;
    let region = peer.node.engine.keys_mut().register(pd, Memory::heap(64), 0, ALL_ACCESS).unwrap();
    peer.rdma_raw(ReadRequest, 0, Ack, 0, region.rkey(), 64, b"");
    peer.expect(["READ_RESPONSE_ONLY 0 msn 1 64 bytes"]);
    peer.node.engine.keys_mut().deregister(region.rkey()).unwrap();
    peer.rdma_raw(ReadRequest, 0, Ack, 0, region.rkey(), 64, b"");
    peer.expect([]);
    assert_eq!(errors(&peer.node.take_events()), []);
}

// [RC-RSP-DUP-ATOMIC] [RC-RSP-ATOMIC]
#[test]
fn atomics_happen_once() {
    let mut peer = ScriptedPeer::new();
    peer.node.write(8, &5u64.to_ne_bytes());
    peer.atomic(FetchAdd, 0, 8, 3, 0);
    peer.expect(["ATOMIC_ACKNOWLEDGE 0 msn 1 value 5"]);
    peer.atomic(CompareSwap, 1, 8, 100, 8);
    peer.atomic(CompareSwap, 2, 8, 200, 8);
    peer.expect(["ATOMIC_ACKNOWLEDGE 1 msn 2 value 8", "ATOMIC_ACKNOWLEDGE 2 msn 3 value 100"]);
    for psn in [0, 1, 2] {
        peer.atomic(if psn == 0 { FetchAdd } else { CompareSwap }, psn, 8, 1, 100);
    }
    peer.expect([
        "ATOMIC_ACKNOWLEDGE 0 msn 1 value 5",
        "ATOMIC_ACKNOWLEDGE 1 msn 2 value 8",
        "ATOMIC_ACKNOWLEDGE 2 msn 3 value 100",
    ]);
    assert_eq!(peer.node.read(8, 8), 100u64.to_ne_bytes());
    // Of another kind than the first time.
    peer.atomic(CompareSwap, 0, 8, 1, 1);
    peer.rdma(ReadRequest, 0, Ack, 0, 8, b"");
    peer.expect([]);
    assert_eq!(peer.node.dropped("psn_duplicate_gone"), 2);
}

// [RC-RSP-DUP-TOO-OLD]
#[test]
fn an_atomic_older_than_the_ring_is_not_answered() {
    let mut peer = ScriptedPeer::new();
    for psn in 0..5 {
        peer.atomic(FetchAdd, psn, 8, 1, 0);
        assert_eq!(peer.transmit().len(), 1);
    }
    peer.atomic(FetchAdd, 0, 8, 1, 0);
    peer.atomic(FetchAdd, 1, 8, 1, 0);
    peer.expect(["ATOMIC_ACKNOWLEDGE 1 msn 2 value 1"]);
    assert_eq!(peer.node.dropped("psn_duplicate_gone"), 1);
}

// [RC-RSP-READ-DEPTH-COPY]
#[test]
fn a_late_copy_of_an_answered_request_takes_no_place() {
    // One agreed: the second READ shows that the first was answered.
    let mut peer = ScriptedPeer::with(Agreed { rd_atomic: 1, ..Agreed::default() });
    peer.rdma(ReadRequest, 0, Ack, 0, 10, b"");
    peer.expect(["READ_RESPONSE_ONLY 0 msn 1 10 bytes"]);
    peer.rdma(ReadRequest, 0, Ack, 0, 10, b"");
    peer.rdma(ReadRequest, 1, Ack, 0, 20, b"");
    peer.expect(["READ_RESPONSE_ONLY 1 msn 2 20 bytes"]);
    // The same with atomics.
    peer.atomic(FetchAdd, 2, 8, 1, 0);
    peer.expect(["ATOMIC_ACKNOWLEDGE 2 msn 3 value 0"]);
    peer.atomic(FetchAdd, 2, 8, 1, 0);
    peer.atomic(FetchAdd, 3, 8, 1, 0);
    peer.expect(["ATOMIC_ACKNOWLEDGE 3 msn 4 value 1"]);
    assert!(!peer.node.engine.wants_transmit());
    // But what was never answered is not given up.
    peer.atomic(FetchAdd, 4, 8, 1, 0);
    peer.rdma(ReadRequest, 5, Ack, 0, 20, b"");
    peer.expect(["ATOMIC_ACKNOWLEDGE 4 msn 5 value 2", "NAK 5 InvalidRequest msn 5"]);
}
