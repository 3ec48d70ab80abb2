//! Times of operations: which are counted, and from when to when.

use std::sync::Arc;

use crate::harness::Agreed;
use crate::harness::ops::*;
use crate::harness::receives::with_receives;
use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use rxe_proto::Duration;
use rxe_proto::transport::{EngineConfig, Latencies, Operation, QpType};
use rxe_proto::wire::Opcode;

use AckReq::{Ack, NoAck};
use Opcode::*;

const MTU: usize = 1024;
const TURN: Duration = Duration::from_nanos(700);

/// What was counted: operation, number and sum of times in nanoseconds; the peer's operations, and ours.
type Counted = Vec<(&'static str, u64, u64)>;

fn counted(latencies: &Latencies) -> [Counted; 2] {
    [Latencies::responder, Latencies::requester].map(|times| {
        let all = Operation::ALL.map(|operation| (operation.name(), times(latencies, operation)));
        let all = all.map(|(name, times)| (name, times.count_below(u64::BITS), times.sum()));
        all.into_iter().filter(|(_, count, _)| *count > 0).collect()
    })
}

#[track_caller]
fn expect_served(peer: &ScriptedPeer, expected: &[(&'static str, u64, u64)]) {
    assert_eq!(counted(peer.node.engine.latencies()), [expected.to_vec(), Vec::new()]);
}

#[test]
fn operations_answered_in_the_turn_in_which_they_came_are_not_counted() {
    let mut peer = with_receives(1);
    peer.rdma(WriteOnly, 0, Ack, 0, 8, &[1; 8]);
    peer.request(SendOnly, 1, Ack, &[2; 8]);
    peer.rdma(ReadRequest, 2, Ack, 0, 8, &[]);
    peer.atomic(FetchAdd, 3, 0, 1, 0);
    peer.rdma(WriteFirst, 4, NoAck, 0, MTU + 1, &[3; MTU]);
    peer.request(WriteLast, 5, Ack, &[3]);
    // The responses of the READ and of the atomic, and one ACK.
    assert_eq!(peer.transmit().len(), 3);
    expect_served(&peer, &[]);
}

#[test]
fn a_message_of_several_packets_counts_from_the_first_to_its_ack() {
    let mut peer = with_receives(1);
    peer.rdma(WriteFirst, 0, Ack, 0, 2 * MTU + 1, &[1; MTU]);
    peer.expect(["ACK 0 msn 0"]);
    peer.advance(TURN);
    peer.request(WriteMiddle, 1, NoAck, &[1; MTU]);
    peer.expect([]);
    peer.advance(TURN);
    peer.request(WriteLast, 2, Ack, &[1]);
    assert_eq!(peer.transmit_at_most(Some(0)), [""; 0]);
    expect_served(&peer, &[]);
    peer.advance(TURN);
    peer.expect(["ACK 2 msn 1"]);
    expect_served(&peer, &[("write", 1, 2100)]);
    peer.request(SendFirst, 3, NoAck, &[2; MTU]);
    peer.advance(TURN);
    // A message without AckReq is not answered: it ends with its last packet.
    peer.request(SendLast, 4, NoAck, &[2]);
    expect_served(&peer, &[("send", 1, 700), ("write", 1, 2100)]);
    peer.advance(TURN);
    peer.rdma(WriteOnly, 5, Ack, 0, 1, &[3]);
    peer.expect(["ACK 5 msn 3"]);
    expect_served(&peer, &[("send", 1, 700), ("write", 1, 2100)]);
}

#[test]
fn messages_that_wait_for_one_ack_count_from_the_first_of_them() {
    let mut peer = with_receives(1);
    peer.rdma(WriteOnly, 0, Ack, 0, 1, &[1]);
    assert_eq!(peer.transmit_at_most(Some(0)), [""; 0]);
    peer.advance(TURN);
    peer.request(SendOnly, 1, Ack, &[1]);
    peer.rdma(WriteOnly, 2, Ack, 0, 1, &[1]);
    assert_eq!(peer.transmit_at_most(Some(0)), [""; 0]);
    peer.advance(TURN);
    peer.expect(["ACK 2 msn 3"]);
    expect_served(&peer, &[("send", 1, 1400), ("write", 2, 2800)]);
    // A repeated request is answered again and is no operation.
    peer.rdma(WriteOnly, 2, Ack, 0, 1, &[1]);
    assert_eq!(peer.transmit_at_most(Some(0)), [""; 0]);
    peer.advance(TURN);
    peer.expect(["ACK 2 msn 3"]);
    expect_served(&peer, &[("send", 1, 1400), ("write", 2, 2800)]);
}

#[test]
fn a_read_counts_from_its_request_to_its_last_response() {
    let mut peer = ScriptedPeer::new();
    peer.rdma(ReadRequest, 0, Ack, 0, 3 * MTU, &[]);
    assert_eq!(peer.transmit_at_most(Some(2)).len(), 2);
    peer.advance(TURN);
    peer.atomic(FetchAdd, 3, 0, 1, 0);
    assert_eq!(peer.transmit_at_most(Some(1)).len(), 1);
    peer.advance(TURN);
    assert_eq!(peer.transmit().len(), 1);
    expect_served(&peer, &[("read", 1, 700), ("atomic", 1, 700)]);
    // The same READ again.
    peer.rdma(ReadRequest, 0, Ack, 0, 3 * MTU, &[]);
    peer.advance(TURN);
    assert_eq!(peer.transmit().len(), 3);
    expect_served(&peer, &[("read", 1, 700), ("atomic", 1, 700)]);
}

#[test]
fn a_message_on_an_unreliable_connection_counts_to_its_last_packet() {
    let mut peer = ScriptedPeer::of(QpType::Uc, false, Agreed::default(), EngineConfig::default());
    peer.rdma(WriteFirst, 0, NoAck, 0, 2 * MTU, &[1; MTU]);
    peer.advance(TURN);
    // AckReq means nothing here.
    peer.request(WriteLast, 1, Ack, &[1; MTU]);
    peer.expect([]);
    expect_served(&peer, &[("write", 1, 700)]);
    peer.advance(TURN);
    peer.rdma(WriteOnly, 2, Ack, 0, 1, &[1]);
    peer.expect([]);
    expect_served(&peer, &[("write", 1, 700)]);
}

#[test]
fn our_operations_count_from_posting_to_completion() {
    let mut peer = ScriptedPeer::new();
    peer.expect([]);
    post(&mut peer, 1, SEND, 1);
    post(&mut peer, 2, WRITE, 2 * MTU);
    post(&mut peer, 3, READ, 2 * MTU);
    post(&mut peer, 4, FADD, 8);
    peer.advance(TURN);
    assert_eq!(peer.transmit().len(), 5);
    peer.advance(TURN);
    peer.ack(0);
    peer.advance(TURN);
    // It acknowledges the WRITE, too.
    peer.read_response(ReadResponseFirst, 3, &[1; MTU]);
    peer.advance(TURN);
    peer.read_response(ReadResponseLast, 4, &[1; MTU]);
    peer.atomic_response(5, 7);
    assert_eq!(completed(&mut peer).len(), 4);
    let expected = vec![("send", 1, 1400), ("write", 1, 2100), ("read", 1, 2800), ("atomic", 1, 2800)];
    assert_eq!(counted(peer.node.engine.latencies()), [Vec::new(), expected]);
}

#[test]
fn an_operation_that_is_retransmitted_counts_from_posting() {
    let mut peer = ScriptedPeer::new();
    peer.expect([]);
    post(&mut peer, 1, WRITE, 1);
    assert_eq!(peer.transmit().len(), 1);
    peer.advance(TIMEOUT);
    assert_eq!(peer.transmit().len(), 1);
    peer.ack(0);
    let nanos = TIMEOUT.as_nanos() as u64;
    assert_eq!(counted(peer.node.engine.latencies()), [Vec::new(), vec![("write", 1, nanos)]]);
}

#[test]
fn times_are_counted_where_the_queue_pair_is_told() {
    let mut peer = ScriptedPeer::new();
    let ours = Arc::<Latencies>::default();
    peer.node.engine.set_latencies(peer.node.qpn, Arc::clone(&ours)).unwrap();
    peer.rdma(ReadRequest, 0, Ack, 0, 8, &[]);
    peer.advance(TURN);
    assert_eq!(peer.transmit().len(), 1);
    assert_eq!(counted(&ours), [vec![("read", 1, 700)], Vec::new()]);
    expect_served(&peer, &[]);
}
