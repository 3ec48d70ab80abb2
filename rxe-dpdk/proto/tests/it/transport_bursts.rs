//! Packets that change places within one received burst, and ports that refuse the answers: the peer must learn from an
//! answer what is missing, never by its ACK timeout.

use crate::harness::receives::{post_receives, with_receives};
use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use rxe_proto::wire::Opcode;

use AckReq::Ack;
use Opcode::*;

fn sends(peer: &mut ScriptedPeer, psns: impl IntoIterator<Item = i32>) {
    for psn in psns {
        peer.request(SendOnly, psn, Ack, b"data");
    }
}

// [RC-RSP-GAP-NAK]
#[test]
fn sequence_nak_survives_reordering_within_a_burst() {
    let mut peer = with_receives(8);
    sends(&mut peer, [0, 2, 1]);
    peer.expect(["NAK 2 PsnSequence msn 2"]);
    assert_eq!((peer.node.stat("sequence_naks_sent"), peer.node.stat("acks_sent")), (1, 0));
    // The peer goes back to 2.
    sends(&mut peer, [2, 3]);
    peer.expect(["ACK 3 msn 4"]);
    // The PSN of the NAK advances until it is sent.
    sends(&mut peer, [7, 5, 4]);
    sends(&mut peer, [5]);
    peer.expect(["NAK 6 PsnSequence msn 6"]);
}

// [RC-RSP-GAP-NAK]
#[test]
fn a_gap_filled_within_the_burst_gets_an_ack() {
    let mut peer = with_receives(4);
    // The peer has sent 1 twice.
    sends(&mut peer, [1, 0, 1]);
    peer.expect(["ACK 1 msn 2"]);
    assert_eq!((peer.node.stat("sequence_naks_sent"), peer.node.engine.wants_transmit()), (0, false));
    // The next gap gets its own NAK.
    sends(&mut peer, [3]);
    peer.expect(["NAK 2 PsnSequence msn 2"]);
}

// [RC-RSP-GAP-NAK]
#[test]
fn sequence_nak_names_the_packet_behind_a_read() {
    let mut peer = with_receives(4);
    sends(&mut peer, [3]);
    peer.rdma(ReadRequest, 0, Ack, 0, 2000, b"");
    peer.expect([
        "READ_RESPONSE_FIRST 0 msn 1 1024 bytes",
        "READ_RESPONSE_LAST 1 msn 1 976 bytes",
        "NAK 2 PsnSequence msn 1",
    ]);
}

// [RC-RSP-GAP-NAK] [RC-RSP-ACK-ORDER]
#[test]
fn refused_nak_and_ack_are_not_lost() {
    let mut peer = with_receives(8);
    // The NAK includes the ACK of 0, but the port accepts neither.
    sends(&mut peer, [0, 2]);
    assert_eq!(peer.transmit_at_most(Some(0)), [""; 0]);
    // Then the missing packet arrives, without AckReq, and closes the gap.
    peer.rdma(WriteOnly, 1, AckReq::NoAck, 0, 1, b"w");
    peer.rdma(WriteOnly, 2, AckReq::NoAck, 0, 1, b"w");
    peer.expect(["ACK 2 msn 3"]);
    // The same while a gap is left.
    sends(&mut peer, [3, 5]);
    assert_eq!(peer.transmit_at_most(Some(0)), [""; 0]);
    peer.rdma(WriteOnly, 4, AckReq::NoAck, 0, 1, b"w");
    assert_eq!(peer.transmit_at_most(Some(0)), [""; 0]);
    peer.expect(["NAK 5 PsnSequence msn 5"]);
    assert!(!peer.node.engine.wants_transmit());
}

// [RC-RSP-SILENT-AFTER-RNR]
#[test]
fn rnr_nak_that_was_not_sent_becomes_a_sequence_nak() {
    let mut peer = ScriptedPeer::new();
    sends(&mut peer, [0, 1]);
    assert_eq!(peer.transmit_at_most(Some(0)), [""; 0]);
    // A copy of 0 finds a receive before the RNR NAK is sent; 1 was dropped.
    post_receives(&mut peer, 2);
    sends(&mut peer, [0]);
    peer.expect(["NAK 1 PsnSequence msn 1"]);
    assert_eq!(peer.node.stat("send_rnr_err"), 0);
    sends(&mut peer, [1]);
    peer.expect(["ACK 1 msn 2"]);
}

// [RC-RSP-GAP-NAK] [RC-RSP-SILENT-AFTER-RNR]
#[test]
fn a_retransmission_reordered_within_a_burst_gets_a_nak() {
    let mut peer = with_receives(4);
    sends(&mut peer, [1, 2]);
    peer.expect(["NAK 0 PsnSequence msn 0"]);
    // More of what was in flight, then the retransmission.
    sends(&mut peer, [3]);
    sends(&mut peer, [1, 0]);
    peer.expect(["NAK 1 PsnSequence msn 1"]);
    sends(&mut peer, [1, 2, 3]);
    peer.expect(["ACK 3 msn 4"]);
    // Packets in order are answered as usual: those that were in flight are retransmitted anyway.
    post_receives(&mut peer, 4);
    sends(&mut peer, [5, 6]);
    peer.expect(["NAK 4 PsnSequence msn 4"]);
    sends(&mut peer, [7, 4]);
    peer.expect(["ACK 4 msn 5"]);
    sends(&mut peer, [5, 6, 7]);
    peer.expect(["ACK 7 msn 8"]);

    let mut peer = ScriptedPeer::new();
    sends(&mut peer, [0, 1]);
    peer.expect(["RNR_NAK 0 timer 1 msn 0"]);
    post_receives(&mut peer, 2);
    sends(&mut peer, [1, 0]);
    peer.expect(["NAK 1 PsnSequence msn 1"]);
}

// [RC-RSP-GAP-NAK] [RC-RSP-SILENT-AFTER-RNR]
#[test]
fn a_new_request_that_overtakes_the_retransmission_after_an_rnr_nak_gets_a_nak() {
    let mut peer = ScriptedPeer::new();
    sends(&mut peer, [0]);
    peer.expect(["RNR_NAK 0 timer 1 msn 0"]);
    // In flight behind it: retransmitted together with it, so the retransmission gets an ACK.
    sends(&mut peer, [1]);
    peer.expect([""; 0]);
    post_receives(&mut peer, 4);
    sends(&mut peer, [0]);
    peer.expect(["ACK 0 msn 1"]);
    sends(&mut peer, [1]);
    peer.expect(["ACK 1 msn 2"]);

    let mut peer = ScriptedPeer::new();
    sends(&mut peer, [0]);
    peer.expect(["RNR_NAK 0 timer 1 msn 0"]);
    post_receives(&mut peer, 4);
    // 1 is sent for the first time, behind the retransmission of 0. Without a NAK the peer would wait for its timeout.
    sends(&mut peer, [1, 0]);
    peer.expect(["NAK 1 PsnSequence msn 1"]);
    sends(&mut peer, [1]);
    peer.expect(["ACK 1 msn 2"]);
}
