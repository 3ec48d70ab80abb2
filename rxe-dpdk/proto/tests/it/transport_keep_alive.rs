//! Keep-alive: silent peers are probed, and the queue pair goes to error when they do not answer.

use std::time::Duration;

use crate::harness::Agreed;
use crate::harness::ops::*;
use crate::harness::pair::{Link, Pair};
use crate::harness::scripted_peer::ScriptedPeer;
use rxe_proto::Instant;
use rxe_proto::transport::{KeepAlive, QpError, QpErrorCause, QpState, RemoteAddr, SendOp, WcStatus};

const KEEP: KeepAlive = KeepAlive { idle: Duration::from_secs(30), interval: Duration::from_secs(5), probes: 3 };

fn watched(agreed: Agreed) -> ScriptedPeer {
    let mut peer = ScriptedPeer::with(agreed);
    peer.node.engine.set_keep_alive(peer.now, peer.node.qpn, Some(KEEP)).unwrap();
    peer
}

// [RC-REQ-KEEP-ALIVE]
#[test]
fn a_silent_peer_is_probed_by_a_duplicate_send() {
    let mut peer = watched(Agreed::default());
    peer.expect([]);
    peer.advance(KEEP.idle - Duration::from_nanos(1));
    peer.expect([]);
    peer.advance(Duration::from_nanos(1));
    peer.expect(["SEND_ONLY -1 ack_req"]);
    // It answers as to a duplicate; the next probe follows after the full interval.
    peer.ack(-1);
    assert_eq!((peer.node.dropped("response_stale"), peer.node.stat("keep_alive_probes")), (0, 1));
    peer.advance(KEEP.idle - Duration::from_nanos(1));
    peer.expect([]);
    // The next message has the PSN as without the probe, and is answered as usual.
    post(&mut peer, 1, SEND, 1);
    peer.expect(["SEND_ONLY 0 1 bytes ack_req"]);
    peer.ack(0);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success)]);
    peer.advance(Duration::from_nanos(1));
    peer.expect([]);
    peer.advance(KEEP.idle);
    peer.expect(["SEND_ONLY 0 ack_req"]);
}

#[test]
fn a_peer_that_answers_no_probe_is_given_up() {
    let mut peer = watched(Agreed::default());
    peer.node.post_recv(5, &[]);
    peer.advance(KEEP.idle);
    for _ in 0..KEEP.probes {
        assert_eq!(peer.node.state(), QpState::Rts);
        peer.expect(["SEND_ONLY -1 ack_req"]);
        peer.advance(KEEP.interval);
    }
    assert_eq!((errors(&mut peer), peer.node.state()), (vec![QpErrorCause::PeerSilent], QpState::Error));
    assert_eq!(completed(&mut peer), [(5, WcStatus::WrFlushErr)]);
    assert_eq!((peer.node.stat("silent_peers"), peer.node.engine.next_timeout()), (1, None));
    peer.expect([]);
}

#[test]
fn only_outstanding_requests_with_a_timeout_suppress_probes() {
    // With an ACK timeout, that ends the connection. Without, the peer is probed.
    for (timeout, probes) in [(14, 0), (0, 1)] {
        let mut peer = watched(Agreed { timeout, retry_cnt: 7, ..Agreed::default() });
        post(&mut peer, 1, SEND, 1);
        assert_eq!(peer.transmit().len(), 1);
        peer.advance(KEEP.idle);
        let sent = peer.transmit();
        assert_eq!(sent.iter().filter(|line| line.starts_with("SEND_ONLY -1 ack_req")).count(), probes, "{sent:?}");
    }
}

#[test]
fn only_a_reliable_connection_that_is_ready_is_looked_after() {
    let mut peer = watched(Agreed::default());
    let qpn = peer.node.qpn;
    peer.node.engine.set_keep_alive(peer.now, qpn, None).unwrap();
    peer.advance(KEEP.idle * 2);
    peer.expect([]);
    assert_eq!(peer.node.engine.next_timeout(), None);
    let other = peer.node.create_qp(4, crate::harness::ALL_ACCESS);
    let refused = peer.node.engine.set_keep_alive(Instant::ZERO, other, Some(KEEP));
    assert!(matches!(refused, Err(QpError::Transition { .. })), "{refused:?}");
}

/// Two ends, the first with keep-alive; both have receives posted.
fn pair() -> Pair {
    let mut pair = Pair::new(3, &Agreed::default(), 8, 1 << 21, Link::default());
    for node in &mut pair.nodes {
        node.post_recv(9, &[]);
    }
    let qpn = pair.nodes[0].qpn;
    pair.nodes[0].engine.set_keep_alive(pair.now, qpn, Some(KEEP)).unwrap();
    pair
}

// [RC-REQ-KEEP-ALIVE]
#[test]
fn a_live_peer_acknowledges_the_probe_and_executes_nothing() {
    let mut pair = pair();
    let end = pair.now + Duration::from_secs(3600);
    while pair.now < end {
        pair.step_before(end);
    }
    assert!(pair.nodes[0].stat("keep_alive_probes") > 100);
    assert_eq!(pair.nodes[1].stat("duplicate_request"), pair.nodes[0].stat("keep_alive_probes"));
    for node in &mut pair.nodes {
        assert_eq!((node.take_completions(), node.take_events()), (vec![], vec![]), "no receive is used up");
        assert_eq!(node.state(), QpState::Rts);
    }
    // Both directions work as usual.
    for end in 0..2 {
        pair.nodes[end].post_send(1, SEND, &[]);
        pair.drive(Duration::from_secs(1), |pair| pair.nodes.iter().all(|node| !node.completions.is_empty()));
        for node in &mut pair.nodes {
            assert_eq!(node.take_completions()[0].status, WcStatus::Success);
        }
    }
}

#[test]
fn the_reads_of_a_dead_peer_end() {
    let mut pair = pair();
    // One packet at a time, so that the peer vanishes in the middle of the READ.
    pair.link.burst = 1;
    let remote = RemoteAddr { addr: pair.nodes[0].region.addr(), rkey: pair.nodes[0].region.rkey() };
    let sge = pair.nodes[1].sge(0, 1 << 20);
    pair.nodes[1].post_send(1, SendOp::Read { remote }, &[sge]);
    pair.drive(Duration::from_secs(1), |pair| pair.nodes[0].stat("read_responses_sent") > 10);
    pair.link.loss = 1_000_000;
    let gone = pair.now;
    let mut ended = None;
    while pair.now < gone + Duration::from_secs(120) {
        pair.step_before(gone + Duration::from_secs(120));
        if ended.is_none() && pair.nodes[0].state() == QpState::Error {
            ended = Some(pair.now.saturating_since(gone));
        }
    }
    let bound = 2 * KEEP.idle + KEEP.interval * u32::from(KEEP.probes);
    assert!(ended.is_some_and(|after| after <= bound), "{ended:?}");
}
