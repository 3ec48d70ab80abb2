//! A peer that has no receive, for a moment or for good.

use std::time::Duration;

use crate::harness::Agreed;
use crate::harness::ops::*;
use crate::harness::scripted_peer::ScriptedPeer;
use rxe_proto::transport::WcStatus;
use rxe_proto::wire::Syndrome;

/// How long the requester waits after being refused `psn` with the timer of 0.01 ms; what it sends then is not
/// answered.
fn wait(peer: &mut ScriptedPeer, psn: i32) -> Duration {
    peer.answer(psn, Syndrome::Rnr { timer: 1 });
    let began = peer.now;
    while peer.transmit().is_empty() {
        peer.advance(Duration::from_micros(10));
    }
    Duration::from_nanos(peer.now.saturating_since(began).as_nanos() as u64)
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
    // The next message begins anew, and the first one comes through whenever a receive is there.
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
