//! End-to-end credits: the requester sends no more than the peer has receives for, asks when it does not know, and
//! never waits for ever.

use crate::harness::rated::{Line, Rated};
use crate::harness::solo::{Ask, Solo};
use crate::harness::{Agreed, Rng};
use rxe_proto::Duration;
use rxe_proto::transport::{EngineConfig, RemoteAddr, SendFlags, SendOp, WcStatus};
use rxe_proto::wire::{NakCode, Opcode, Psn, Syndrome};

use crate::harness::ops::*;
use Opcode::*;

const WRITE_IMM: SendOp = SendOp::Write { remote: REMOTE, imm: Some(1) };

/// The peer acknowledges, has completed `msn` messages and has receives for `credits` more.
fn ack(solo: &mut Solo, psn: i32, msn: u32, credits: u8) {
    respond(solo, Acknowledge, psn, msn, credits, &[]);
}

fn respond(solo: &mut Solo, op: Opcode, psn: i32, msn: u32, credits: u8, payload: &[u8]) {
    let psn = Psn::new((solo.agreed.sq_psn.get() as i32 + psn) as u32);
    let frame = solo.frame(op, psn, Ask::Nothing, payload, |packet| {
        packet.aeth(Syndrome::Ack { credits }, msn);
        if op == AtomicAcknowledge {
            packet.atomic_ack(0);
        }
    });
    solo.inject(&frame);
}

/// One SEND, after which the peer has `credits` receives.
fn limited(agreed: Agreed, credits: u8) -> Solo {
    let mut solo = Solo::with(agreed);
    post(&mut solo, 0, SEND, 1);
    assert_eq!(solo.transmit().len(), 1);
    ack(&mut solo, 0, 1, credits);
    assert_eq!(completed(&mut solo), [(0, WcStatus::Success)]);
    solo
}

fn counts(solo: &Solo) -> (bool, u64) {
    (solo.node.stat("credit_stalls") > 0, solo.node.stat("credit_probes"))
}

// [RC-REQ-CREDIT-FORWARD]
#[test]
fn nothing_limits_before_the_first_ack_and_with_a_peer_that_does_not_count() {
    let mut solo = Solo::new();
    for wr_id in 0..40 {
        post(&mut solo, wr_id, SEND, 1);
    }
    assert_eq!(solo.transmit().len(), 40);
    // A peer that does not count may say anything as MSN.
    for psn in 0..40 {
        ack(&mut solo, psn, 0xABC, 31);
    }
    assert_eq!(completed(&mut solo).len(), 40);
    for wr_id in 40..60 {
        post(&mut solo, wr_id, SEND, 1);
    }
    assert_eq!(solo.transmit().len(), 20);
    assert_eq!(counts(&solo), (false, 0));
}

// [RC-REQ-CREDIT-LIMIT]
#[test]
fn sends_wait_for_receives_while_something_is_unanswered() {
    let mut solo = limited(Agreed::default(), 2);
    for wr_id in 1..=5 {
        post(&mut solo, wr_id, SEND, 1);
    }
    solo.expect(["SEND_ONLY 1 1 bytes ask", "SEND_ONLY 2 1 bytes ask"]);
    assert_eq!(counts(&solo), (true, 0));
    // No receives were posted: the one left is for 2, which is under way.
    ack(&mut solo, 1, 2, 1);
    solo.expect([]);
    // Code 4 is four.
    ack(&mut solo, 2, 3, 4);
    solo.expect(["SEND_ONLY 3 1 bytes ask", "SEND_ONLY 4 1 bytes ask", "SEND_ONLY 5 1 bytes ask"]);
    assert_eq!(counts(&solo).1, 0);
}

// [RC-REQ-CREDIT-LIMIT]
#[test]
fn what_needs_no_receive_goes_beyond_the_credits_and_counts_as_a_message() {
    let mut solo = limited(Agreed::default(), 1);
    for (wr_id, op) in (1..).zip([WRITE, READ, FADD, SEND, WRITE_IMM]) {
        post(&mut solo, wr_id, op, 8);
    }
    // The SEND is message 5 and the limit 2.
    assert_eq!(solo.transmit().len(), 3);
    assert_eq!(counts(&solo), (true, 0));
    // Four messages done, one receive: the SEND may go.
    respond(&mut solo, ReadResponseOnly, 2, 3, 1, &[0; 8]);
    solo.expect([]);
    respond(&mut solo, AtomicAcknowledge, 3, 4, 1, &[]);
    solo.expect(["SEND_ONLY 4 8 bytes ask"]);
    ack(&mut solo, 4, 5, 1);
    solo.expect(["WRITE_ONLY_IMM 5 va 0x10000 len 8 imm 1 8 bytes ask"]);
    assert_eq!(counts(&solo).1, 0);
}

#[test]
fn credits_come_with_read_and_atomic_responses_too() {
    for op in [READ, FADD] {
        let mut solo = limited(Agreed::default(), 0);
        post(&mut solo, 1, op, 8);
        post(&mut solo, 2, SEND, 1);
        post(&mut solo, 3, SEND, 1);
        assert_eq!(solo.transmit().len(), 1);
        match op {
            READ => respond(&mut solo, ReadResponseOnly, 1, 2, 2, &[0; 8]),
            _ => respond(&mut solo, AtomicAcknowledge, 1, 2, 2, &[]),
        }
        solo.expect(["SEND_ONLY 2 1 bytes ask", "SEND_ONLY 3 1 bytes ask"]);
        assert_eq!(counts(&solo), (true, 0));
    }
}

// [RC-REQ-CREDIT-PROBE]
#[test]
fn the_first_packet_goes_out_alone_as_a_probe() {
    let mut solo = limited(Agreed::default(), 0);
    post(&mut solo, 1, SEND, 3000);
    post(&mut solo, 2, WRITE, 1);
    solo.expect(["SEND_FIRST 1 1024 bytes ask"]);
    assert_eq!(counts(&solo), (true, 1));
    // The peer took it, and says no more of receives: the message in progress is not counted as done.
    ack(&mut solo, 1, 1, 0);
    solo.expect(["SEND_MIDDLE 2 1024 bytes", "SEND_LAST 3 952 bytes ask", "WRITE_ONLY 4 va 0x10000 len 1 1 bytes ask"]);
    assert_eq!(counts(&solo).1, 1);
    ack(&mut solo, 4, 3, 0);
    assert_eq!(completed(&mut solo), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

// [RC-REQ-CREDIT-PROBE]
#[test]
fn nothing_follows_a_probe_and_each_message_beyond_is_one() {
    let mut solo = limited(Agreed::default(), 0);
    for wr_id in 1..=3 {
        post(&mut solo, wr_id, SEND, 1);
    }
    post(&mut solo, 4, READ, 1);
    for psn in 1..=3 {
        assert_eq!(solo.transmit(), [format!("SEND_ONLY {psn} 1 bytes ask")]);
        solo.expect([]);
        ack(&mut solo, psn, 1 + psn as u32, 0);
    }
    solo.expect(["READ_REQUEST 4 va 0x10000 len 1 ask"]);
    assert_eq!(counts(&solo), (true, 3));
}

#[test]
fn a_lost_probe_and_one_that_finds_no_receive_come_again() {
    let mut solo = limited(Agreed::default(), 0);
    post(&mut solo, 1, SEND, 2000);
    solo.expect(["SEND_FIRST 1 1024 bytes ask"]);
    solo.advance(TIMEOUT);
    solo.expect(["SEND_FIRST 1 1024 bytes ask"]);
    solo.answer(1, Syndrome::Rnr { timer: 1 });
    solo.advance(Duration::from_micros(10));
    solo.expect(["SEND_FIRST 1 1024 bytes ask"]);
    assert_eq!(counts(&solo).1, 3);
    ack(&mut solo, 1, 1, 0);
    solo.expect(["SEND_LAST 2 976 bytes ask"]);
    // Repeated from amid the message: no probe.
    solo.advance(TIMEOUT);
    solo.expect(["SEND_LAST 2 976 bytes ask"]);
    assert_eq!(counts(&solo).1, 3);
}

// [RC-REQ-STALE]
#[test]
fn an_ack_that_repeats_the_last_one_brings_new_credits() {
    let mut solo = limited(Agreed::default(), 1);
    post(&mut solo, 1, WRITE, 1);
    post(&mut solo, 2, READ, 1);
    post(&mut solo, 3, SEND, 1);
    assert_eq!(solo.transmit().len(), 2);
    ack(&mut solo, 1, 2, 1);
    solo.expect([]);
    // The READ is still under way. Receives are posted, and the peer says so unasked.
    ack(&mut solo, 1, 2, 8);
    solo.expect(["SEND_ONLY 3 1 bytes ask"]);
    assert_eq!(solo.node.dropped("response_stale"), 0);
    // Nothing new: an ordinary duplicate. Older ones are not looked at.
    ack(&mut solo, 1, 2, 8);
    ack(&mut solo, 0, 1, 20);
    assert_eq!(solo.node.dropped("response_stale"), 2);
}

#[test]
fn going_back_over_messages_beyond_the_credits() {
    // All were sent before the peer said a word; then it turns out that it counts.
    let mut solo = Solo::new();
    for wr_id in 0..6 {
        post(&mut solo, wr_id, if wr_id == 3 { WRITE } else { SEND }, 2000);
    }
    assert_eq!(solo.transmit().len(), 12);
    ack(&mut solo, 0, 0, 2);
    solo.nak(1, NakCode::PsnSequence);
    // Messages 1 and 2 are granted, the third waits for them.
    solo.expect(["SEND_LAST 1 976 bytes ask", "SEND_FIRST 2 1024 bytes", "SEND_LAST 3 976 bytes ask"]);
    ack(&mut solo, 3, 2, 0);
    solo.expect(["SEND_FIRST 4 1024 bytes ask"]);
    ack(&mut solo, 4, 2, 0);
    // The WRITE needs none; the next SEND does.
    assert_eq!(solo.transmit().len(), 3);
    ack(&mut solo, 7, 4, 31);
    assert_eq!(solo.transmit().len(), 4);
    solo.ack(11);
    assert_eq!(completed(&mut solo).len(), 6);
    assert_eq!(counts(&solo), (true, 1));
}

#[test]
fn local_operations_are_no_messages() {
    let mut solo = limited(Agreed::default(), 1);
    let key = solo.node.fast_region(64);
    solo.node.post_send(1, SendOp::LocalInvalidate { key }, &[]);
    post(&mut solo, 2, SEND, 1);
    solo.expect(["SEND_ONLY 1 1 bytes ask"]);
    assert_eq!(counts(&solo), (false, 0));
}

/// Two engines: receives are posted one at a time, or late, or many at once; nothing is ever lost on the way and there
/// is no timer, so that a requester that waits for nothing would wait for ever.
#[test]
fn no_deadlock_without_a_timer() {
    let mut probes = 0;
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let agreed = Agreed { timeout: 0, sq_psn: Psn::new(0xFF_FFF8), ..Agreed::default() };
        let mut pair = Rated::new(seed, &agreed, &EngineConfig::default(), 64, 1 << 14, Line::default());
        run(&mut pair, &mut rng);
        probes += pair.nodes[0].stat("credit_probes");
    }
    assert!(probes > 1000, "{probes} probes: this is what was to be tested");
}

/// The same with losses, and a timer.
#[test]
fn no_deadlock_with_losses() {
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let agreed = Agreed { sq_psn: Psn::new(0xFF_FFF8), ..Agreed::default() };
        let line = Line { loss: 50_000, ..Line::default() };
        let mut pair = Rated::new(seed, &agreed, &EngineConfig::default(), 64, 1 << 14, line);
        run(&mut pair, &mut rng);
    }
}

/// Messages from the first end, receives at the second one whenever chance will have it.
fn run(pair: &mut Rated, rng: &mut Rng) {
    const MESSAGES: u64 = 50;
    let [a, b] = &mut pair.nodes;
    let remote = RemoteAddr { addr: b.region.addr(), rkey: b.region.rkey() };
    let mut receives = 0;
    for wr_id in 0..MESSAGES {
        let len = if rng.chance(500_000) { rng.below(64) } else { rng.below(5000) };
        let sge = a.sge(0, len as usize);
        let op = match rng.below(6) {
            0 => SendOp::Write { remote, imm: None },
            1 => SendOp::Write { remote, imm: Some(1) },
            2 => SendOp::Read { remote },
            _ => SEND,
        };
        receives += u64::from(matches!(op, SendOp::Send { .. } | SendOp::Write { imm: Some(_), .. }));
        a.post_flags(wr_id, op, &[sge], SendFlags::SIGNALED);
    }
    let rate = [3_000, 30_000, 300_000][rng.below(3) as usize];
    // Receives come by the step, and a step becomes as long as the wait for a receiver that is never ready.
    let end = pair.now + Duration::from_secs(24 * 3600);
    while pair.nodes[0].completions.len() < MESSAGES as usize {
        let waits = !pair.step();
        assert!(pair.now < end && !(waits && receives == 0), "stuck: {:?}", pair.nodes[0].engine.stats());
        if waits || rng.chance(rate) {
            let b = &mut pair.nodes[1];
            for _ in 0..(1 + rng.below(4)).min(receives) {
                b.post_recv(1000, &[b.sge(0, 5000)]);
                receives -= 1;
            }
        }
    }
    let completions = pair.nodes[0].take_completions();
    assert!(completions.iter().all(|wc| wc.status == WcStatus::Success), "{completions:?}");
    assert_eq!(completions.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (0..MESSAGES).collect::<Vec<_>>());
}
