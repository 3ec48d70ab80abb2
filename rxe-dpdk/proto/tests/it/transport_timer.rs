//! Retransmission timeout and ACK timeout: the former follows the measured round trip, the latter limits the retries.

use crate::harness::Agreed;
use crate::harness::rated::{LinkParams, RatedPair};
use crate::harness::scripted_peer::ScriptedPeer;
use rxe_proto::Duration;
use rxe_proto::transport::{EngineConfig, QpErrorCause, RemoteAddr, SendOp, WcStatus};
use rxe_proto::wire::{NakCode, Opcode, PathMtu, Syndrome};

use crate::harness::ops::*;
use Opcode::*;

/// ACK timeout code 19, which librdmacm's clients bring: 2.15 s.
const PATIENT: u8 = 19;
const ACK_TIMEOUT: Duration = Duration::from_nanos(4096 << PATIENT);
const MICRO: Duration = Duration::from_micros(1);
const MILLI: Duration = Duration::from_millis(1);

fn patient(retry_cnt: u8) -> ScriptedPeer {
    ScriptedPeer::with(Agreed { timeout: PATIENT, retry_cnt, ..Agreed::default() })
}

/// One SEND that is answered after `rtt`: the first measurement.
fn measure(peer: &mut ScriptedPeer, psn: i32, rtt: Duration) {
    post(peer, 1000 + psn as u64, SEND, 1);
    assert_eq!(peer.transmit().len(), 1);
    peer.advance(rtt);
    peer.ack(psn);
    assert_eq!(completed(peer), [(1000 + psn as u64, WcStatus::Success)]);
}

fn rtt(peer: &ScriptedPeer) -> Option<Duration> {
    peer.node.engine.query_qp(peer.node.qpn).unwrap().rtt
}

/// Lets time pass until something is transmitted or completed; how long that took, and how much was transmitted.
fn until_something(peer: &mut ScriptedPeer) -> (Duration, usize) {
    let start = peer.now;
    loop {
        let next = peer.node.engine.next_timeout().expect("waits for ever");
        peer.advance(next - peer.now);
        let written = peer.transmit().len();
        if written > 0 || !peer.node.completions.is_empty() {
            return (peer.now - start, written);
        }
    }
}

// [RC-REQ-RETRY-COUNT] [RC-REQ-EARLY-RETRY]
#[test]
fn repetitions_get_rarer_and_the_peer_is_given_up_when_the_ack_timeout_says() {
    for retry_cnt in [0, 1, 3] {
        let mut peer = patient(retry_cnt);
        post(&mut peer, 1, SEND, 1);
        assert_eq!(peer.transmit().len(), 1);
        let start = peer.now;
        // Before there is a measurement: 32 ms, doubled each time; the last one would not be answered in time.
        for millis in [32, 64, 128, 256, 512] {
            assert_eq!(until_something(&mut peer), (millis * MILLI, 1));
        }
        // From then on only whole ACK timeouts are left.
        for retry in 1..=retry_cnt {
            until_something(&mut peer);
            assert_eq!(peer.now - start, ACK_TIMEOUT * u32::from(retry));
            assert_eq!(completed(&mut peer), []);
        }
        assert_eq!(until_something(&mut peer).1, 0);
        assert_eq!(peer.now - start, ACK_TIMEOUT * (u32::from(retry_cnt) + 1));
        assert_eq!(completed(&mut peer), [(1, WcStatus::RetryExcErr)]);
        assert_eq!(errors(&mut peer), [QpErrorCause::RetryExceeded]);
        assert_eq!(peer.node.stat("timeouts"), 6 + u64::from(retry_cnt));
    }
}

// [RC-REQ-RTT] [RC-REQ-RTT-KARN] [RC-REQ-EARLY-RETRY]
#[test]
fn the_timeout_follows_the_round_trip() {
    let mut peer = patient(7);
    assert_eq!(rtt(&peer), None);
    measure(&mut peer, 0, 4 * MILLI);
    assert_eq!((rtt(&peer), peer.node.stat("rtt_samples")), (Some(4 * MILLI), 1));
    // The first measurement counts with half of itself as deviation: 4 + 4 * 2.
    post(&mut peer, 1, SEND, 1);
    assert_eq!(peer.transmit().len(), 1);
    assert_eq!(until_something(&mut peer), (12 * MILLI, 1));
    peer.advance(4 * MILLI);
    peer.ack(1);
    completed(&mut peer);
    // A packet that was sent twice is not measured (Karn's rule), and the doubling stays until one is.
    assert_eq!((rtt(&peer), peer.node.stat("rtt_samples")), (Some(4 * MILLI), 1));
    post(&mut peer, 2, SEND, 1);
    assert_eq!(peer.transmit().len(), 1);
    assert_eq!(until_something(&mut peer), (24 * MILLI, 1));
    peer.advance(4 * MILLI);
    peer.ack(2);
    completed(&mut peer);
    for psn in 3..40 {
        measure(&mut peer, psn, 40 * MICRO);
    }
    let mean = rtt(&peer).unwrap();
    assert!(mean > 40 * MICRO && mean < 100 * MICRO, "{mean:?}");
    assert_eq!(peer.node.stat("rtt_samples"), 38);
    post(&mut peer, 3, SEND, 1);
    assert_eq!(peer.transmit().len(), 1);
    assert_eq!(until_something(&mut peer), (MILLI, 1), "never less than a millisecond");
}

// [RC-REQ-RTT-KARN]
#[test]
fn one_packet_at_a_time_is_timed_and_none_without_ack_req() {
    let config = EngineConfig { ack_every: 2, ..EngineConfig::default() };
    let mut peer = ScriptedPeer::with_config(Agreed { timeout: PATIENT, ..Agreed::default() }, config);
    // Packets 1 and 3 ask for an ACK, 0 and 2 do not.
    post(&mut peer, 1, SEND, 4 * 1024);
    assert_eq!(peer.transmit().len(), 4);
    peer.advance(30 * MICRO);
    peer.ack(0);
    assert_eq!(rtt(&peer), None);
    peer.ack(1);
    assert_eq!(rtt(&peer), Some(30 * MICRO));
    peer.advance(30 * MICRO);
    peer.ack(3);
    assert_eq!(peer.node.stat("rtt_samples"), 1, "3 was sent while 1 was being timed");
}

// [RC-REQ-PROGRESS]
#[test]
fn retransmissions_after_a_nak_are_timed_and_after_a_timeout_are_not() {
    // A message of ten packets, of which only the last one asks, unless the first of a retry does.
    let mut peer = patient(7);
    post(&mut peer, 1, SEND, 10 * 1024);
    assert_eq!(peer.transmit().len(), 10);
    assert_eq!(until_something(&mut peer), (32 * MILLI, 10));
    peer.advance(50 * MICRO);
    peer.ack(0);
    assert_eq!(rtt(&peer), None);
    // Nothing from 3 on was received, whichever copy it was.
    peer.nak(3, NakCode::PsnSequence);
    let lines = peer.transmit();
    assert_eq!(lines[..2], ["SEND_MIDDLE 3 1024 bytes ack_req", "SEND_MIDDLE 4 1024 bytes"]);
    peer.advance(60 * MICRO);
    peer.ack(3);
    assert_eq!((rtt(&peer), peer.node.stat("rtt_samples")), (Some(60 * MICRO), 1));
    // The doubling is gone with that: a millisecond, not 64.
    assert_eq!(until_something(&mut peer), (MILLI, 6));
    // A receiver that is not ready has not received either.
    peer.answer(4, Syndrome::Rnr { timer: 1 });
    peer.advance(10 * MICRO);
    assert_eq!(peer.transmit().len(), 6);
    peer.advance(60 * MICRO);
    peer.ack(9);
    assert_eq!((completed(&mut peer), peer.node.stat("rtt_samples")), (vec![(1, WcStatus::Success)], 2));

    // A gap in the responses to a READ tells the same.
    let mut peer = patient(7);
    post(&mut peer, 1, READ, 4 * 1024);
    assert_eq!(peer.transmit().len(), 1);
    peer.read_response(ReadResponseMiddle, 1, &[0; 1024]);
    assert_eq!(peer.transmit().len(), 1);
    peer.advance(70 * MICRO);
    peer.read_response(ReadResponseFirst, 0, &[0; 1024]);
    assert_eq!(rtt(&peer), Some(70 * MICRO));
}

#[test]
fn progress_restarts_the_ack_timeout_and_restores_the_retries() {
    let mut peer = patient(0);
    post(&mut peer, 1, SEND, 3 * 1024);
    assert_eq!(peer.transmit().len(), 3);
    let pass = |peer: &mut ScriptedPeer, end| {
        while let Some(at) = peer.node.engine.next_timeout().filter(|&at| at < end) {
            peer.advance(at.saturating_since(peer.now));
            peer.transmit();
        }
        peer.advance(end.saturating_since(peer.now));
    };
    for psn in 0..2 {
        let end = peer.now + (ACK_TIMEOUT - MICRO);
        pass(&mut peer, end);
        peer.ack(psn);
        assert_eq!(completed(&mut peer), []);
        peer.transmit();
    }
    let start = peer.now;
    pass(&mut peer, start + (ACK_TIMEOUT - MICRO));
    assert_eq!(completed(&mut peer), []);
    pass(&mut peer, start + ACK_TIMEOUT);
    assert_eq!(completed(&mut peer), [(1, WcStatus::RetryExcErr)]);
}

// [RC-REQ-NAK-RETRY]
#[test]
fn naks_between_repetitions_use_up_one_retry_per_ack_timeout() {
    let mut peer = patient(1);
    measure(&mut peer, 0, 40 * MICRO);
    post(&mut peer, 1, SEND, 2);
    post(&mut peer, 2, SEND, 2);
    assert_eq!(peer.transmit().len(), 2);
    let start = peer.now;
    // The peer asks for packet 1 again and again, and never gets it.
    while completed(&mut peer).is_empty() {
        assert!(peer.node.engine.next_timeout().is_some());
        peer.advance(200 * MICRO);
        peer.nak(1, NakCode::PsnSequence);
        peer.transmit();
    }
    // The NAK used up the retry and restarted the timer, at its time.
    let took = peer.now - start;
    assert!(took >= ACK_TIMEOUT && took < ACK_TIMEOUT + 2 * MILLI, "{took:?}");
    assert!(peer.node.stat("timeouts") > 5, "repeated much more often than that");
}

#[test]
fn a_long_read_does_not_time_out_while_its_responses_come() {
    let mut peer = patient(0);
    measure(&mut peer, 0, 40 * MICRO);
    post(&mut peer, 1, READ, 40 * 1024);
    peer.expect(["READ_REQUEST 1 va 0x10000 len 40960 ack_req"]);
    peer.advance(60 * MICRO);
    peer.read_response(ReadResponseFirst, 1, &[1; 1024]);
    // 40 * 7/8 + 60 / 8: the first response ends the measurement, be the READ as long as it likes.
    assert_eq!((rtt(&peer), peer.node.stat("rtt_samples")), (Some(Duration::from_nanos(42_500)), 2));
    for psn in 2..40 {
        peer.advance(999 * MICRO);
        peer.expect([]);
        peer.read_response(ReadResponseMiddle, psn, &[1; 1024]);
    }
    assert_eq!((peer.node.stat("timeouts"), peer.node.stat("rtt_samples")), (0, 2));
    peer.advance(MILLI);
    peer.expect(["READ_REQUEST 40 va 0x19c00 len 1024 ack_req"]);
    peer.read_response(ReadResponseOnly, 40, &[1; 1024]);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success)]);
}

// [RC-REQ-STILL-ANSWERING]
#[test]
fn answers_without_progress_hold_back_the_repetition_but_not_the_end() {
    let mut peer = ScriptedPeer::with(Agreed { timeout: 12, retry_cnt: 0, ..Agreed::default() });
    measure(&mut peer, 0, 40 * MICRO);
    post(&mut peer, 1, READ, 60 * 1024);
    assert_eq!(peer.transmit().len(), 1);
    let start = peer.now;
    // The first response is lost for ever; others come, in the order of a peer that sends all of them.
    for psn in 2.. {
        peer.advance(400 * MICRO);
        if peer.now - start >= Duration::from_nanos(4096 << 12) {
            break;
        }
        peer.read_response(ReadResponseMiddle, psn, &[1; 1024]);
        peer.transmit();
    }
    assert_eq!(peer.node.stat("timeouts"), 1, "the last one");
    assert_eq!(completed(&mut peer), [(1, WcStatus::RetryExcErr)]);
}

// [RC-REQ-STILL-ANSWERING]
#[test]
fn answers_to_newer_requests_do_not_hold_back_the_repetition() {
    let mut peer = ScriptedPeer::with(Agreed { timeout: PATIENT, rd_atomic: 128, ..Agreed::default() });
    measure(&mut peer, 0, 40 * MICRO);
    post(&mut peer, 1, READ, 1);
    post(&mut peer, 2, READ, 1);
    assert_eq!(peer.transmit().len(), 2);
    // The response to the first one is lost, and so is its repetition, while newer READs are answered all the time.
    peer.read_response(ReadResponseOnly, 2, &[1]);
    assert_eq!(peer.transmit().len(), 2);
    let start = peer.now;
    for psn in 3.. {
        post(&mut peer, 3, READ, 1);
        if peer.transmit().len() > 1 {
            break;
        }
        peer.read_response(ReadResponseOnly, psn, &[1]);
        peer.advance(300 * MICRO);
    }
    assert!(peer.now - start < 2 * MILLI, "{:?}", peer.now - start);
    assert_eq!(peer.node.stat("timeouts"), 1);
}

// [RC-REQ-TIMER-0]
#[test]
fn no_timer_but_a_measurement_with_code_0() {
    let mut peer = ScriptedPeer::with(Agreed { timeout: 0, ..Agreed::default() });
    measure(&mut peer, 0, 40 * MICRO);
    assert_eq!((rtt(&peer), peer.node.engine.next_timeout()), (Some(40 * MICRO), None));
    post(&mut peer, 1, SEND, 1);
    assert_eq!(peer.transmit().len(), 1);
    assert_eq!(peer.node.engine.next_timeout(), None);
}

#[test]
fn a_receiver_that_is_not_ready_sets_its_own_time() {
    let mut peer = patient(7);
    measure(&mut peer, 0, 40 * MICRO);
    post(&mut peer, 1, SEND, 1);
    assert_eq!(peer.transmit().len(), 1);
    // Code 31: 491.52 ms.
    peer.answer(1, Syndrome::Rnr { timer: 31 });
    peer.expect([]);
    assert_eq!(until_something(&mut peer), (Duration::from_micros(491_520), 1));
    assert_eq!((peer.node.stat("timeouts"), peer.node.stat("rtt_samples")), (0, 1));
    assert_eq!(until_something(&mut peer), (MILLI, 1), "the clock of the repetition runs again");
}

// [RC-REQ-RTT]
#[test]
fn limits_of_the_configuration() {
    let config =
        EngineConfig { min_timeout: Duration::ZERO, initial_timeout: Duration::ZERO, ..EngineConfig::default() };
    let mut peer = ScriptedPeer::with_config(Agreed { timeout: 1, retry_cnt: 0, ..Agreed::default() }, config);
    assert_eq!(peer.node.engine.config().min_timeout, MICRO);
    post(&mut peer, 1, SEND, 1);
    assert_eq!(peer.transmit().len(), 1);
    // Code 1: 8.192 us.
    for _ in 0..10 {
        peer.advance(MICRO);
        peer.transmit();
    }
    assert_eq!(completed(&mut peer), [(1, WcStatus::RetryExcErr)]);
}

/// A round trip of 50 ms, longer than the first timeout: one repetition too many, not one for each message for ever.
#[test]
fn a_round_trip_longer_than_the_first_timeout_is_found_out() {
    let line = LinkParams { delay: Duration::from_millis(25), ..LinkParams::default() };
    let agreed = Agreed { timeout: PATIENT, ..Agreed::default() };
    let mut pair = RatedPair::new(1, &agreed, &EngineConfig::default(), 64, 1 << 16, line);
    for round in 0..30 {
        let [a, b] = &mut pair.nodes;
        let remote = RemoteAddr { addr: b.region.addr(), rkey: b.region.rkey() };
        let op = if round % 2 == 0 { SendOp::Write { remote, imm: None } } else { SendOp::Read { remote } };
        a.post_send(round, op, &[a.sge(0, 3000)]);
        pair.drive(Duration::from_millis(60), |pair| !pair.nodes[0].completions.is_empty());
        assert_eq!(pair.nodes[0].take_completions()[0].status, WcStatus::Success);
    }
    assert_eq!(pair.nodes[0].stat("timeouts"), 1);
    assert_eq!(pair.nodes[0].stat("rtt_samples"), 29);
}

/// 128 READs of 1 MiB at once: the last one is answered some 90 round trip timeouts after it was asked for, and the
/// peer is never asked twice, except for what was lost.
#[test]
fn reads_behind_reads_do_not_time_out() {
    const READS: u64 = 128;
    for lost in [None, Some(10)] {
        let agreed = Agreed { timeout: PATIENT, mtu: PathMtu::Mtu4096, rd_atomic: 128, ..Agreed::default() };
        let config = EngineConfig { window: 1 << 16, ..EngineConfig::default() };
        let line = LinkParams { rate: 10_000, ..LinkParams::default() };
        let mut pair = RatedPair::new(1, &agreed, &config, 128, 1 << 20, line);
        let mut left = lost;
        pair.drop_filter = Box::new(move |end, _| {
            if end == 1 {
                left = left.map(|left: u64| left.wrapping_sub(1));
            }
            left == Some(0)
        });
        let [a, b] = &mut pair.nodes;
        let remote = RemoteAddr { addr: b.region.addr(), rkey: b.region.rkey() };
        for wr_id in 0..READS {
            a.post_send(wr_id, SendOp::Read { remote }, &[a.sge(0, 1 << 20)]);
        }
        let took = pair.drive(Duration::from_millis(200), |pair| pair.nodes[0].completions.len() == READS as usize);
        assert!(took > 90 * MILLI, "{took:?}: was meant to be long");
        assert_eq!(pair.nodes[0].stat("timeouts"), 0, "lost {lost:?}");
        assert_eq!(pair.nodes[0].stat("read_gaps"), u64::from(lost.is_some()));
        let ideal = READS * 256;
        assert!(pair.frames[1] <= ideal + 20, "{} frames instead of {ideal}", pair.frames[1]);
    }
}
