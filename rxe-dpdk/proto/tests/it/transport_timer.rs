//! When a requester sends again, and when it gives up: the timeout follows the measured round trip, the connection's
//! ACK timeout is the unit of patience.

use crate::harness::Agreed;
use crate::harness::rated::{Line, Rated};
use crate::harness::solo::Solo;
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

fn patient(retry_cnt: u8) -> Solo {
    Solo::with(Agreed { timeout: PATIENT, retry_cnt, ..Agreed::default() })
}

/// One SEND that is answered after `rtt`: the first measurement.
fn measure(solo: &mut Solo, psn: i32, rtt: Duration) {
    post(solo, 1000 + psn as u64, SEND, 1);
    assert_eq!(solo.transmit().len(), 1);
    solo.advance(rtt);
    solo.ack(psn);
    assert_eq!(completed(solo), [(1000 + psn as u64, WcStatus::Success)]);
}

fn rtt(solo: &Solo) -> Option<Duration> {
    solo.node.engine.query_qp(solo.node.qpn).unwrap().rtt
}

/// Lets time pass until something is transmitted or completed; how long that took, and how much was transmitted.
fn until_something(solo: &mut Solo) -> (Duration, usize) {
    let start = solo.now;
    loop {
        let next = solo.node.engine.next_timeout().expect("waits for ever");
        solo.advance(next - solo.now);
        let written = solo.transmit().len();
        if written > 0 || !solo.node.completions.is_empty() {
            return (solo.now - start, written);
        }
    }
}

// [RC-REQ-RETRY-COUNT] [RC-REQ-EARLY-RETRY]
#[test]
fn repetitions_get_rarer_and_the_peer_is_given_up_when_the_ack_timeout_says() {
    for retry_cnt in [0, 1, 3] {
        let mut solo = patient(retry_cnt);
        post(&mut solo, 1, SEND, 1);
        assert_eq!(solo.transmit().len(), 1);
        let start = solo.now;
        // Before there is a measurement: 32 ms, doubled each time; the last one would not be answered in time.
        for millis in [32, 64, 128, 256, 512] {
            assert_eq!(until_something(&mut solo), (millis * MILLI, 1));
        }
        // From then on only whole ACK timeouts are left.
        for retry in 1..=retry_cnt {
            until_something(&mut solo);
            assert_eq!(solo.now - start, ACK_TIMEOUT * u32::from(retry));
            assert_eq!(completed(&mut solo), []);
        }
        assert_eq!(until_something(&mut solo).1, 0);
        assert_eq!(solo.now - start, ACK_TIMEOUT * (u32::from(retry_cnt) + 1));
        assert_eq!(completed(&mut solo), [(1, WcStatus::RetryExcErr)]);
        assert_eq!(errors(&mut solo), [QpErrorCause::RetryExceeded]);
        assert_eq!(solo.node.stat("timeouts"), 6 + u64::from(retry_cnt));
    }
}

// [RC-REQ-RTT] [RC-REQ-RTT-KARN] [RC-REQ-EARLY-RETRY]
#[test]
fn the_timeout_follows_the_round_trip() {
    let mut solo = patient(7);
    assert_eq!(rtt(&solo), None);
    measure(&mut solo, 0, 4 * MILLI);
    assert_eq!((rtt(&solo), solo.node.stat("rtt_samples")), (Some(4 * MILLI), 1));
    // The first measurement counts with half of itself as deviation: 4 + 4 * 2.
    post(&mut solo, 1, SEND, 1);
    assert_eq!(solo.transmit().len(), 1);
    assert_eq!(until_something(&mut solo), (12 * MILLI, 1));
    solo.ack(1);
    // What was sent twice is not measured, and the doubling stays until something is.
    assert_eq!((rtt(&solo), solo.node.stat("rtt_samples")), (Some(4 * MILLI), 1));
    post(&mut solo, 2, SEND, 1);
    assert_eq!(solo.transmit().len(), 1);
    assert_eq!(until_something(&mut solo), (24 * MILLI, 1));
    solo.ack(2);
    completed(&mut solo);
    for psn in 3..40 {
        measure(&mut solo, psn, 40 * MICRO);
    }
    let mean = rtt(&solo).unwrap();
    assert!(mean > 40 * MICRO && mean < 100 * MICRO, "{mean:?}");
    assert_eq!(solo.node.stat("rtt_samples"), 38);
    post(&mut solo, 3, SEND, 1);
    assert_eq!(solo.transmit().len(), 1);
    assert_eq!(until_something(&mut solo), (MILLI, 1), "never less than a millisecond");
}

// [RC-REQ-RTT-KARN]
#[test]
fn one_packet_at_a_time_is_measured_and_none_that_asks_for_nothing() {
    let config = EngineConfig { ack_every: 2, ..EngineConfig::default() };
    let mut solo = Solo::with_config(Agreed { timeout: PATIENT, ..Agreed::default() }, config);
    // Packets 1 and 3 ask for an ACK, 0 and 2 do not.
    post(&mut solo, 1, SEND, 4 * 1024);
    assert_eq!(solo.transmit().len(), 4);
    solo.advance(30 * MICRO);
    solo.ack(0);
    assert_eq!(rtt(&solo), None);
    solo.ack(1);
    assert_eq!(rtt(&solo), Some(30 * MICRO));
    solo.advance(30 * MICRO);
    solo.ack(3);
    assert_eq!(solo.node.stat("rtt_samples"), 1, "3 was sent while 1 was being timed");
}

// [RC-REQ-PROGRESS]
#[test]
fn what_the_peer_asked_for_again_is_measured_and_what_was_sent_on_a_guess_is_not() {
    // A message of ten packets, of which only the last one asks, unless the first of a retry does.
    let mut solo = patient(7);
    post(&mut solo, 1, SEND, 10 * 1024);
    assert_eq!(solo.transmit().len(), 10);
    assert_eq!(until_something(&mut solo), (32 * MILLI, 10));
    solo.advance(50 * MICRO);
    solo.ack(0);
    assert_eq!(rtt(&solo), None);
    // Nothing from 3 on was received, whichever copy it was.
    solo.nak(3, NakCode::PsnSequence);
    let lines = solo.transmit();
    assert_eq!(lines[..2], ["SEND_MIDDLE 3 1024 bytes ask", "SEND_MIDDLE 4 1024 bytes"]);
    solo.advance(60 * MICRO);
    solo.ack(3);
    assert_eq!((rtt(&solo), solo.node.stat("rtt_samples")), (Some(60 * MICRO), 1));
    // The doubling is gone with that: a millisecond, not 64.
    assert_eq!(until_something(&mut solo), (MILLI, 6));
    // A receiver that is not ready has not received either.
    solo.answer(4, Syndrome::Rnr { timer: 1 });
    solo.advance(10 * MICRO);
    assert_eq!(solo.transmit().len(), 6);
    solo.advance(60 * MICRO);
    solo.ack(9);
    assert_eq!((completed(&mut solo), solo.node.stat("rtt_samples")), (vec![(1, WcStatus::Success)], 2));

    // A gap in the responses to a READ tells the same.
    let mut solo = patient(7);
    post(&mut solo, 1, READ, 4 * 1024);
    assert_eq!(solo.transmit().len(), 1);
    solo.read_response(ReadResponseMiddle, 1, &[0; 1024]);
    assert_eq!(solo.transmit().len(), 1);
    solo.advance(70 * MICRO);
    solo.read_response(ReadResponseFirst, 0, &[0; 1024]);
    assert_eq!(rtt(&solo), Some(70 * MICRO));
}

#[test]
fn progress_starts_the_ack_timeout_anew_and_gives_the_retries_back() {
    let mut solo = patient(0);
    post(&mut solo, 1, SEND, 3 * 1024);
    assert_eq!(solo.transmit().len(), 3);
    for psn in 0..2 {
        solo.advance(ACK_TIMEOUT - MICRO);
        solo.transmit();
        solo.ack(psn);
    }
    solo.advance(ACK_TIMEOUT - MICRO);
    assert_eq!(completed(&mut solo), []);
    solo.advance(MICRO);
    assert_eq!(completed(&mut solo), [(1, WcStatus::RetryExcErr)]);
}

// [RC-REQ-NAK-RETRY]
#[test]
fn naks_between_repetitions_use_up_one_retry_per_ack_timeout() {
    let mut solo = patient(1);
    measure(&mut solo, 0, 40 * MICRO);
    post(&mut solo, 1, SEND, 2);
    post(&mut solo, 2, SEND, 2);
    assert_eq!(solo.transmit().len(), 2);
    let start = solo.now;
    // The peer asks for packet 1 again and again, and never gets it.
    while completed(&mut solo).is_empty() {
        assert!(solo.node.engine.next_timeout().is_some());
        solo.advance(200 * MICRO);
        solo.nak(1, NakCode::PsnSequence);
        solo.transmit();
    }
    // The NAK used up the retry and started the clock anew, at its time.
    let took = solo.now - start;
    assert!(took >= ACK_TIMEOUT && took < ACK_TIMEOUT + 2 * MILLI, "{took:?}");
    assert!(solo.node.stat("timeouts") > 5, "repeated much more often than that");
}

#[test]
fn a_long_read_does_not_time_out_while_its_responses_come() {
    let mut solo = patient(0);
    measure(&mut solo, 0, 40 * MICRO);
    post(&mut solo, 1, READ, 40 * 1024);
    solo.expect(["READ_REQUEST 1 va 0x10000 len 40960 ask"]);
    solo.advance(60 * MICRO);
    solo.read_response(ReadResponseFirst, 1, &[1; 1024]);
    // 40 * 7/8 + 60 / 8: the first response ends the measurement, be the READ as long as it likes.
    assert_eq!((rtt(&solo), solo.node.stat("rtt_samples")), (Some(Duration::from_nanos(42_500)), 2));
    for psn in 2..40 {
        solo.advance(999 * MICRO);
        solo.expect([]);
        solo.read_response(ReadResponseMiddle, psn, &[1; 1024]);
    }
    assert_eq!((solo.node.stat("timeouts"), solo.node.stat("rtt_samples")), (0, 2));
    solo.advance(MILLI);
    solo.expect(["READ_REQUEST 40 va 0x19c00 len 1024 ask"]);
    solo.read_response(ReadResponseOnly, 40, &[1; 1024]);
    assert_eq!(completed(&mut solo), [(1, WcStatus::Success)]);
}

// [RC-REQ-STILL-ANSWERING]
#[test]
fn answers_without_progress_hold_back_the_repetition_but_not_the_end() {
    let mut solo = Solo::with(Agreed { timeout: 12, retry_cnt: 0, ..Agreed::default() });
    measure(&mut solo, 0, 40 * MICRO);
    post(&mut solo, 1, READ, 60 * 1024);
    assert_eq!(solo.transmit().len(), 1);
    let start = solo.now;
    // The first response is lost for ever; others come, in the order of a peer that sends all of them.
    for psn in 2.. {
        solo.advance(400 * MICRO);
        if solo.now - start >= Duration::from_nanos(4096 << 12) {
            break;
        }
        solo.read_response(ReadResponseMiddle, psn, &[1; 1024]);
        solo.transmit();
    }
    assert_eq!(solo.node.stat("timeouts"), 1, "the last one");
    assert_eq!(completed(&mut solo), [(1, WcStatus::RetryExcErr)]);
}

// [RC-REQ-STILL-ANSWERING]
#[test]
fn answers_to_newer_requests_do_not_hold_back_the_repetition() {
    let mut solo = Solo::with(Agreed { timeout: PATIENT, rd_atomic: 128, ..Agreed::default() });
    measure(&mut solo, 0, 40 * MICRO);
    post(&mut solo, 1, READ, 1);
    post(&mut solo, 2, READ, 1);
    assert_eq!(solo.transmit().len(), 2);
    // The response to the first one is lost, and so is its repetition, while newer READs are answered all the time.
    solo.read_response(ReadResponseOnly, 2, &[1]);
    assert_eq!(solo.transmit().len(), 2);
    let start = solo.now;
    for psn in 3.. {
        post(&mut solo, 3, READ, 1);
        if solo.transmit().len() > 1 {
            break;
        }
        solo.read_response(ReadResponseOnly, psn, &[1]);
        solo.advance(300 * MICRO);
    }
    assert!(solo.now - start < 2 * MILLI, "{:?}", solo.now - start);
    assert_eq!(solo.node.stat("timeouts"), 1);
}

// [RC-REQ-TIMER-0]
#[test]
fn no_timer_but_a_measurement_with_code_0() {
    let mut solo = Solo::with(Agreed { timeout: 0, ..Agreed::default() });
    measure(&mut solo, 0, 40 * MICRO);
    assert_eq!((rtt(&solo), solo.node.engine.next_timeout()), (Some(40 * MICRO), None));
    post(&mut solo, 1, SEND, 1);
    assert_eq!(solo.transmit().len(), 1);
    assert_eq!(solo.node.engine.next_timeout(), None);
}

#[test]
fn a_receiver_that_is_not_ready_sets_its_own_time() {
    let mut solo = patient(7);
    measure(&mut solo, 0, 40 * MICRO);
    post(&mut solo, 1, SEND, 1);
    assert_eq!(solo.transmit().len(), 1);
    // Code 31: 491.52 ms.
    solo.answer(1, Syndrome::Rnr { timer: 31 });
    solo.expect([]);
    assert_eq!(until_something(&mut solo), (Duration::from_micros(491_520), 1));
    assert_eq!((solo.node.stat("timeouts"), solo.node.stat("rtt_samples")), (0, 1));
    assert_eq!(until_something(&mut solo), (MILLI, 1), "the clock of the repetition runs again");
}

// [RC-REQ-RTT]
#[test]
fn limits_of_the_configuration() {
    let config =
        EngineConfig { min_timeout: Duration::ZERO, initial_timeout: Duration::ZERO, ..EngineConfig::default() };
    let mut solo = Solo::with_config(Agreed { timeout: 1, retry_cnt: 0, ..Agreed::default() }, config);
    assert_eq!(solo.node.engine.config().min_timeout, MICRO);
    post(&mut solo, 1, SEND, 1);
    assert_eq!(solo.transmit().len(), 1);
    // Code 1: 8.192 us.
    solo.advance(10 * MICRO);
    assert_eq!(completed(&mut solo), [(1, WcStatus::RetryExcErr)]);
}

/// A round trip of 50 ms, longer than the first timeout: one repetition too many, not one for each message for ever.
#[test]
fn a_round_trip_longer_than_the_first_timeout_is_found_out() {
    let line = Line { delay: Duration::from_millis(25), ..Line::default() };
    let agreed = Agreed { timeout: PATIENT, ..Agreed::default() };
    let mut pair = Rated::new(1, &agreed, &EngineConfig::default(), 64, 1 << 16, line);
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
        let line = Line { rate: 10_000, ..Line::default() };
        let mut pair = Rated::new(1, &agreed, &config, 128, 1 << 20, line);
        let mut left = lost;
        pair.thief = Box::new(move |end, _| {
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
