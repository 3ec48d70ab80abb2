//! A peer that has no receive, for a moment or for good.

use crate::harness::Agreed;
use crate::harness::ops::*;
use crate::harness::pair::{Link, Pair};
use crate::harness::scripted_peer::ScriptedPeer;
use rxe_proto::Duration;
use rxe_proto::transport::{QpErrorCause, WcStatus};
use rxe_proto::wire::Syndrome;

/// How long the requester waits after being refused `psn` with the timer of 0.01 ms; what it sends then is not
/// answered.
fn wait(peer: &mut ScriptedPeer, psn: i32) -> Duration {
    peer.answer(psn, Syndrome::Rnr { timer: 1 });
    let began = peer.now;
    while peer.transmit().is_empty() {
        peer.advance(Duration::from_micros(10));
    }
    peer.now.saturating_since(began)
}

// [RC-REQ-RNR-BACKOFF]
#[test]
fn the_wait_for_a_message_that_is_refused_again_and_again_doubles() {
    let mut peer = ScriptedPeer::with(Agreed { rnr_retry: 7, timeout: 0, ..Agreed::default() });
    post(&mut peer, 1, SEND, 1);
    post(&mut peer, 2, SEND, 1);
    assert_eq!(peer.transmit().len(), 2);
    let mut expected = Duration::from_micros(10);
    for _ in 0..20 {
        assert_eq!(wait(&mut peer, 0), expected);
        expected = (expected * 2).min(Duration::from_micros(655_360));
    }
    assert_eq!((peer.node.stat("rnr_backoffs"), peer.node.stat("rcvd_rnr_err")), (19, 20));
    // The next message starts with the first wait, and the first one arrives as soon as a receive is posted.
    peer.ack(0);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success)]);
    assert_eq!(wait(&mut peer, 1), Duration::from_micros(10));
    assert_eq!(wait(&mut peer, 1), Duration::from_micros(20));
    peer.ack(1);
    assert_eq!(completed(&mut peer), [(2, WcStatus::Success)]);
}

// [RC-REQ-RNR-COUNT]
#[test]
fn with_limited_retries_each_wait_equals_the_rnr_timer() {
    let mut peer = ScriptedPeer::with(Agreed { rnr_retry: 6, timeout: 0, ..Agreed::default() });
    post(&mut peer, 1, SEND, 1);
    assert_eq!(peer.transmit().len(), 1);
    for _ in 0..6 {
        assert_eq!(wait(&mut peer, 0), Duration::from_micros(10));
    }
    peer.answer(0, Syndrome::Rnr { timer: 1 });
    assert_eq!(completed(&mut peer), [(1, WcStatus::RnrRetryExcErr)]);
}

// [RC-REQ-RNR]
#[test]
fn receiver_not_ready_and_recovery() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, SEND, 1);
    post(&mut peer, 2, SEND, 1);
    assert_eq!(peer.transmit().len(), 2);
    // Code 10: 0.32 ms.
    let told = |peer: &ScriptedPeer| peer.node.engine.query_qp(peer.node.qpn).unwrap().peer_not_ready;
    assert!(!told(&peer));
    peer.answer(0, Syndrome::Rnr { timer: 10 });
    peer.answer(0, Syndrome::Rnr { timer: 10 });
    post(&mut peer, 3, SEND, 1);
    peer.expect([]);
    peer.advance(Duration::from_micros(319));
    peer.expect([]);
    assert!(told(&peer));
    peer.advance(Duration::from_micros(1));
    assert_eq!(peer.transmit().len(), 3);
    assert!(!told(&peer));
    assert_eq!((peer.node.stat("timeouts"), peer.node.stat("rcvd_rnr_err")), (0, 2));
    peer.ack(2);
    assert_eq!(completed(&mut peer).len(), 3);
}

// [RC-REQ-RNR]
#[test]
fn an_ack_ends_the_wait_for_the_receiver() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 1, SEND, 1);
    post(&mut peer, 2, SEND, 1);
    assert_eq!(peer.transmit().len(), 2);
    peer.answer(0, Syndrome::Rnr { timer: 31 });
    peer.ack(0);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success)]);
    peer.expect(["SEND_ONLY 1 1 bytes ack_req"]);
}

// [RC-REQ-RNR-COUNT]
#[test]
fn rnr_retries_exceeded_or_not() {
    let mut peer = ScriptedPeer::with(Agreed { rnr_retry: 2, ..Agreed::default() });
    post(&mut peer, 1, SEND, 1);
    for _ in 0..2 {
        assert_eq!(peer.transmit().len(), 1);
        peer.answer(0, Syndrome::Rnr { timer: 1 });
        peer.advance(Duration::from_millis(1));
    }
    assert_eq!(peer.transmit().len(), 1);
    peer.answer(0, Syndrome::Rnr { timer: 1 });
    assert_eq!(completed(&mut peer), [(1, WcStatus::RnrRetryExcErr)]);
    assert_eq!(errors(&mut peer), [QpErrorCause::RnrRetryExceeded]);
    assert_eq!(peer.node.stat("retry_rnr_exceeded_err"), 1);

    // Seven is unlimited; and other retries are not used up.
    let mut peer = ScriptedPeer::with(Agreed { rnr_retry: 7, retry_cnt: 0, ..Agreed::default() });
    post(&mut peer, 1, SEND, 1);
    for _ in 0..100 {
        assert_eq!(peer.transmit().len(), 1);
        peer.answer(0, Syndrome::Rnr { timer: 1 });
        peer.advance(Duration::from_secs(1));
    }
    assert_eq!(peer.transmit().len(), 1);
    peer.ack(0);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success)]);
}

// [RC-REQ-RNR-ALIVE]
#[test]
fn a_receiver_that_is_not_ready_is_there() {
    // Every other packet is lost; the answers to the rest show that the peer is alive.
    let mut peer = ScriptedPeer::with(Agreed { retry_cnt: 1, ..Agreed::default() });
    post(&mut peer, 1, SEND, 1);
    for round in 0..10 {
        assert_eq!(peer.transmit().len(), 1);
        peer.advance(TIMEOUT);
        assert_eq!(peer.transmit().len(), 1);
        peer.answer(0, Syndrome::Rnr { timer: 1 });
        peer.advance(Duration::from_micros(10 << round));
    }
    assert_eq!(completed(&mut peer), []);
    assert_eq!(peer.node.stat("timeouts"), 10);
}

// [RC-RSP-SILENT-AFTER-RNR]
#[test]
fn a_slow_receiver_between_two_engines() {
    let mut pair = Pair::new(1, &Agreed::default(), 16, 1 << 16, Link::default());
    for wr_id in 0..8 {
        let sge = pair.nodes[0].sge(0, 2000);
        pair.nodes[0].post_send(wr_id, SEND, &[sge]);
    }
    // One receive every millisecond.
    for wr_id in 0..8 {
        let end = pair.now + Duration::from_millis(1);
        while pair.now < end && pair.step() {}
        let sge = pair.nodes[1].sge(0, 2000);
        pair.nodes[1].post_recv(wr_id, &[sge]);
    }
    pair.drive(Duration::from_secs(1), |pair| pair.nodes[0].completions.len() == 8);
    let statuses = pair.nodes[0].take_completions();
    assert!(statuses.iter().all(|wc| wc.status == WcStatus::Success), "{statuses:?}");
    assert!(pair.nodes[0].stat("rcvd_rnr_err") > 0);
    // After an RNR NAK no other NAK is sent for the packets behind it.
    assert_eq!((pair.nodes[0].stat("rcvd_seq_err"), pair.nodes[1].stat("sequence_naks_sent")), (0, 0));
}
