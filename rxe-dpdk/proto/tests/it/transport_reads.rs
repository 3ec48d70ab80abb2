//! Responses to READs and atomics, packet by packet: order, gaps, overtaking, and what must never complete them.

use crate::harness::Agreed;
use crate::harness::scripted_peer::ScriptedPeer;
use rxe_proto::transport::{WcOpcode, WcStatus};
use rxe_proto::wire::{NakCode, Opcode};

use crate::harness::ops::*;
use Opcode::*;

#[test]
fn read_responses_land_in_order() {
    let mut peer = ScriptedPeer::new();
    let sges = [peer.node.sge(0, 1000), peer.node.sge(2000, 0), peer.node.sge(3000, 1100)];
    peer.node.post_send(1, READ, &sges);
    peer.expect(["READ_REQUEST 0 va 0x10000 len 2100 ack_req"]);
    peer.read_response(ReadResponseFirst, 0, &[1; 1024]);
    peer.read_response(ReadResponseMiddle, 1, &[2; 1024]);
    assert_eq!(completed(&mut peer), []);
    peer.read_response(ReadResponseLast, 2, &[3; 52]);
    let [wc] = peer.node.take_completions()[..] else { panic!() };
    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::RdmaRead, 2100));
    assert_eq!(peer.node.read(0, 1000), [1; 1000]);
    assert_eq!(peer.node.read(3000, 24), [1; 24]);
    assert_eq!(peer.node.read(3024, 1024), [2; 1024]);
    assert_eq!(peer.node.read(4048, 52), [3; 52]);
}

// [RC-REQ-READ-GAP] [RC-REQ-READ-BEGIN]
#[test]
fn a_gap_in_a_read_response_is_requested_again_at_once() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, READ, 5 * 1024);
    post(&mut peer, 2, SEND, 1);
    assert_eq!(peer.transmit().len(), 2);
    peer.read_response(ReadResponseFirst, 0, &[1; 1024]);
    peer.read_response(ReadResponseMiddle, 2, &[3; 1024]);
    peer.expect(["READ_REQUEST 1 va 0x10400 len 4096 ack_req", "SEND_ONLY 5 1 bytes ack_req"]);
    // The rest of the first answer, then the second, as an rxe peer sends it (no FIRST) or as the standard has it.
    peer.read_response(ReadResponseMiddle, 3, &[4; 1024]);
    peer.read_response(ReadResponseLast, 4, &[5; 1024]);
    peer.expect([]);
    peer.read_response(ReadResponseMiddle, 1, &[2; 1024]);
    peer.read_response(ReadResponseFirst, 2, &[3; 1024]);
    peer.read_response(ReadResponseMiddle, 3, &[4; 1024]);
    peer.read_response(ReadResponseLast, 4, &[5; 1024]);
    peer.ack(5);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    for block in 0..5 {
        assert_eq!(peer.node.read(block * 1024, 1024), [block as u8 + 1; 1024]);
    }
    assert_eq!((peer.node.stat("read_gaps"), peer.node.stat("timeouts")), (1, 0));
}

// [RC-REQ-READ-GAP]
#[test]
fn the_head_of_the_second_answer_may_be_lost_too() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, READ, 4 * 1024);
    assert_eq!(peer.transmit().len(), 1);
    for psn in [1, 2] {
        peer.read_response(ReadResponseMiddle, psn, &[0; 1024]);
    }
    peer.read_response(ReadResponseLast, 3, &[0; 1024]);
    peer.expect(["READ_REQUEST 0 va 0x10000 len 4096 ack_req"]);
    // Its PSN was seen beyond the gap before: a new stream whose head is missing.
    peer.read_response(ReadResponseMiddle, 1, &[0; 1024]);
    peer.expect(["READ_REQUEST 0 va 0x10000 len 4096 ack_req"]);
    assert_eq!(peer.node.stat("read_gaps"), 2);
}

// [RC-REQ-NAK-RETRY]
#[test]
fn responses_that_overtake_each_other_cost_no_retries() {
    let mut peer = ScriptedPeer::with(Agreed { retry_cnt: 1, ..Agreed::default() });
    post(&mut peer, 1, READ, 6 * 1024);
    assert_eq!(peer.transmit().len(), 1);
    for psn in [3, 2, 4, 1, 3, 2, 4, 1] {
        peer.read_response(ReadResponseMiddle, psn, &[0; 1024]);
        peer.transmit();
    }
    assert_eq!(completed(&mut peer), []);
    // But a packet that is missing for ever is found by the timer, which does not restart each time.
    for _ in 0..12 {
        peer.advance(TIMEOUT / 4);
        for psn in [1, 2] {
            peer.read_response(ReadResponseMiddle, psn, &[0; 1024]);
        }
        peer.transmit();
    }
    assert_eq!(completed(&mut peer), [(1, WcStatus::RetryExcErr)]);
}

// [RC-REQ-IMPLIED-NAK]
#[test]
fn an_answer_past_an_unanswered_read_means_it_was_lost() {
    for past_read in [READ, FADD] {
        let mut peer = ScriptedPeer::new();
        post(&mut peer, 1, SEND, 1);
        post(&mut peer, 2, past_read, 8);
        post(&mut peer, 3, SEND, 1);
        post(&mut peer, 4, READ, 1);
        assert_eq!(peer.transmit().len(), 4);
        peer.ack(2);
        assert_eq!(completed(&mut peer), [(1, WcStatus::Success)]);
        let lines = peer.transmit();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].contains(" 1 "), "{lines:?}");
        // The same gap again.
        peer.read_response(ReadResponseOnly, 3, &[0]);
        peer.expect([]);
        assert_eq!((peer.node.stat("implied_naks"), peer.node.stat("completer_retry_err")), (1, 1));
    }
}

// [RC-REQ-BARE-ACK]
#[test]
fn a_bare_ack_completes_no_read_and_no_atomic() {
    for op in [READ, FADD] {
        let mut peer = ScriptedPeer::new();
        post(&mut peer, 1, op, 8);
        assert_eq!(peer.transmit().len(), 1);
        peer.ack(0);
        assert_eq!(completed(&mut peer), []);
        assert_eq!(peer.node.stat("bare_acks"), 1);
        peer.expect([]);
    }
}

// [RC-REQ-READ-ACKS]
#[test]
fn a_read_response_acknowledges_what_is_before_it() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, SEND, 1);
    post(&mut peer, 2, READ, 1);
    assert_eq!(peer.transmit().len(), 2);
    peer.read_response(ReadResponseOnly, 1, &[1]);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

// [RC-REQ-SEQ-NAK]
#[test]
fn a_sequence_nak_may_overtake_the_response_before_it() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, READ, 1);
    post(&mut peer, 2, WRITE, 1);
    post(&mut peer, 3, WRITE, 1);
    assert_eq!(peer.transmit().len(), 3);
    peer.nak(0, NakCode::PsnSequence);
    assert_eq!(peer.transmit().len(), 3);
    // The READ has arrived now, and 1 is missing again.
    peer.nak(1, NakCode::PsnSequence);
    peer.read_response(ReadResponseOnly, 0, &[1]);
    peer.expect(["WRITE_ONLY 1 va 0x10000 len 1 1 bytes ack_req", "WRITE_ONLY 2 va 0x10000 len 1 1 bytes ack_req"]);
    // A copy of it shows nothing new.
    peer.nak(1, NakCode::PsnSequence);
    peer.expect([]);
    peer.ack(2);
    assert_eq!(completed(&mut peer).len(), 3);
}

#[test]
fn a_late_answer_overtakes_the_retry() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, READ, 2048);
    post(&mut peer, 2, READ, 1);
    assert_eq!(peer.transmit().len(), 2);
    peer.advance(TIMEOUT);
    peer.read_response(ReadResponseFirst, 0, &[1; 1024]);
    peer.read_response(ReadResponseLast, 1, &[1; 1024]);
    peer.expect(["READ_REQUEST 2 va 0x10000 len 1 ack_req"]);
    peer.read_response(ReadResponseOnly, 2, &[1]);
    assert_eq!(completed(&mut peer).len(), 2);
    peer.expect([]);
}
