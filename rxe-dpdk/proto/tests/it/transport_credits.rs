//! End-to-end credits: the requester sends no more than the peer has receives for, asks when it does not know, and
//! never waits for ever.

use crate::harness::rated::{LinkParams, RatedPair};
use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use crate::harness::{Agreed, Rng};
use rxe_proto::Duration;
use rxe_proto::transport::{EngineConfig, RemoteAddr, SendFlags, SendOp, WcStatus};
use rxe_proto::wire::{NakCode, Opcode, Psn, Syndrome};

use crate::harness::ops::*;
use Opcode::*;

const WRITE_IMM: SendOp = SendOp::Write { remote: REMOTE, imm: Some(1) };

/// The peer acknowledges, has completed `msn` messages and has receives for `credits` more.
fn ack(peer: &mut ScriptedPeer, psn: i32, msn: u32, credits: u8) {
    respond(peer, Acknowledge, psn, msn, credits, &[]);
}

fn respond(peer: &mut ScriptedPeer, op: Opcode, psn: i32, msn: u32, credits: u8, payload: &[u8]) {
    let psn = Psn::new((peer.agreed.sq_psn.get() as i32 + psn) as u32);
    let frame = peer.frame(op, psn, AckReq::NoAck, payload, |packet| {
        packet.aeth(Syndrome::Ack { credits }, msn);
        if op == AtomicAcknowledge {
            packet.atomic_ack(0);
        }
    });
    peer.inject(&frame);
}

/// One SEND, after which the peer has `credits` receives.
fn limited(agreed: Agreed, credits: u8) -> ScriptedPeer {
    let mut peer = ScriptedPeer::with(agreed);
    post(&mut peer, 0, SEND, 1);
    assert_eq!(peer.transmit().len(), 1);
    ack(&mut peer, 0, 1, credits);
    assert_eq!(completed(&mut peer), [(0, WcStatus::Success)]);
    peer
}

fn counts(peer: &ScriptedPeer) -> (bool, u64) {
    (peer.node.stat("credit_stalls") > 0, peer.node.stat("credit_probes"))
}

// [RC-REQ-CREDIT-FORWARD]
#[test]
fn nothing_limits_before_the_first_ack_and_with_a_peer_that_does_not_count() {
    let mut peer = ScriptedPeer::new();
    for wr_id in 0..40 {
        post(&mut peer, wr_id, SEND, 1);
    }
    assert_eq!(peer.transmit().len(), 40);
    // The MSN of a peer that does not count may be any number.
    for psn in 0..40 {
        ack(&mut peer, psn, 0xABC, 31);
    }
    assert_eq!(completed(&mut peer).len(), 40);
    for wr_id in 40..60 {
        post(&mut peer, wr_id, SEND, 1);
    }
    assert_eq!(peer.transmit().len(), 20);
    assert_eq!(counts(&peer), (false, 0));
}

// [RC-REQ-CREDIT-LIMIT]
#[test]
fn sends_wait_for_receives_while_something_is_unanswered() {
    let mut peer = limited(Agreed::default(), 2);
    for wr_id in 1..=5 {
        post(&mut peer, wr_id, SEND, 1);
    }
    peer.expect(["SEND_ONLY 1 1 bytes ack_req", "SEND_ONLY 2 1 bytes ack_req"]);
    assert_eq!(counts(&peer), (true, 0));
    // No receives were posted: the one left is for 2, which is under way.
    ack(&mut peer, 1, 2, 1);
    peer.expect([]);
    // Code 4 is four.
    ack(&mut peer, 2, 3, 4);
    peer.expect(["SEND_ONLY 3 1 bytes ack_req", "SEND_ONLY 4 1 bytes ack_req", "SEND_ONLY 5 1 bytes ack_req"]);
    assert_eq!(counts(&peer).1, 0);
}

// [RC-REQ-CREDIT-LIMIT]
#[test]
fn messages_without_receive_pass_the_credit_limit_and_count() {
    let mut peer = limited(Agreed::default(), 1);
    for (wr_id, op) in (1..).zip([WRITE, READ, FADD, SEND, WRITE_IMM]) {
        post(&mut peer, wr_id, op, 8);
    }
    // The SEND is message 5 and the limit 2.
    assert_eq!(peer.transmit().len(), 3);
    assert_eq!(counts(&peer), (true, 0));
    // Four messages done, one receive: the SEND may go.
    respond(&mut peer, ReadResponseOnly, 2, 3, 1, &[0; 8]);
    peer.expect([]);
    respond(&mut peer, AtomicAcknowledge, 3, 4, 1, &[]);
    peer.expect(["SEND_ONLY 4 8 bytes ack_req"]);
    ack(&mut peer, 4, 5, 1);
    peer.expect(["WRITE_ONLY_IMM 5 va 0x10000 len 8 imm 1 8 bytes ack_req"]);
    assert_eq!(counts(&peer).1, 0);
}

#[test]
fn credits_come_with_read_and_atomic_responses_too() {
    for op in [READ, FADD] {
        let mut peer = limited(Agreed::default(), 0);
        post(&mut peer, 1, op, 8);
        post(&mut peer, 2, SEND, 1);
        post(&mut peer, 3, SEND, 1);
        assert_eq!(peer.transmit().len(), 1);
        match op {
            READ => respond(&mut peer, ReadResponseOnly, 1, 2, 2, &[0; 8]),
            _ => respond(&mut peer, AtomicAcknowledge, 1, 2, 2, &[]),
        }
        peer.expect(["SEND_ONLY 2 1 bytes ack_req", "SEND_ONLY 3 1 bytes ack_req"]);
        assert_eq!(counts(&peer), (true, 0));
    }
}

// [RC-REQ-CREDIT-PROBE]
#[test]
fn the_first_packet_goes_out_alone_as_a_probe() {
    let mut peer = limited(Agreed::default(), 0);
    post(&mut peer, 1, SEND, 3000);
    post(&mut peer, 2, WRITE, 1);
    peer.expect(["SEND_FIRST 1 1024 bytes ack_req"]);
    assert_eq!(counts(&peer), (true, 1));
    // The peer received it, and grants no more receives: the message in progress does not count as complete.
    ack(&mut peer, 1, 1, 0);
    peer.expect([
        "SEND_MIDDLE 2 1024 bytes",
        "SEND_LAST 3 952 bytes ack_req",
        "WRITE_ONLY 4 va 0x10000 len 1 1 bytes ack_req",
    ]);
    assert_eq!(counts(&peer).1, 1);
    ack(&mut peer, 4, 3, 0);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

// [RC-REQ-CREDIT-PROBE]
#[test]
fn nothing_follows_a_probe_and_each_message_beyond_is_one() {
    let mut peer = limited(Agreed::default(), 0);
    for wr_id in 1..=3 {
        post(&mut peer, wr_id, SEND, 1);
    }
    post(&mut peer, 4, READ, 1);
    for psn in 1..=3 {
        assert_eq!(peer.transmit(), [format!("SEND_ONLY {psn} 1 bytes ack_req")]);
        peer.expect([]);
        ack(&mut peer, psn, 1 + psn as u32, 0);
    }
    peer.expect(["READ_REQUEST 4 va 0x10000 len 1 ack_req"]);
    assert_eq!(counts(&peer), (true, 3));
}

#[test]
fn a_lost_probe_and_one_that_finds_no_receive_come_again() {
    let mut peer = limited(Agreed::default(), 0);
    post(&mut peer, 1, SEND, 2000);
    peer.expect(["SEND_FIRST 1 1024 bytes ack_req"]);
    peer.advance(TIMEOUT);
    peer.expect(["SEND_FIRST 1 1024 bytes ack_req"]);
    peer.answer(1, Syndrome::Rnr { timer: 1 });
    peer.advance(Duration::from_micros(10));
    peer.expect(["SEND_FIRST 1 1024 bytes ack_req"]);
    assert_eq!(counts(&peer).1, 3);
    ack(&mut peer, 1, 1, 0);
    peer.expect(["SEND_LAST 2 976 bytes ack_req"]);
    // Retransmitted from the middle of the message: no probe.
    peer.advance(TIMEOUT);
    peer.expect(["SEND_LAST 2 976 bytes ack_req"]);
    assert_eq!(counts(&peer).1, 3);
}

// [RC-REQ-STALE]
#[test]
fn an_ack_that_repeats_the_last_one_brings_new_credits() {
    let mut peer = limited(Agreed::default(), 1);
    post(&mut peer, 1, WRITE, 1);
    post(&mut peer, 2, READ, 1);
    post(&mut peer, 3, SEND, 1);
    assert_eq!(peer.transmit().len(), 2);
    ack(&mut peer, 1, 2, 1);
    peer.expect([]);
    // The READ is still outstanding. Receives are posted, and the peer sends an unsolicited ACK.
    ack(&mut peer, 1, 2, 8);
    peer.expect(["SEND_ONLY 3 1 bytes ack_req"]);
    assert_eq!(peer.node.dropped("response_stale"), 0);
    // Nothing new: an ordinary duplicate. Older ones are not looked at.
    ack(&mut peer, 1, 2, 8);
    ack(&mut peer, 0, 1, 20);
    assert_eq!(peer.node.dropped("response_stale"), 2);
}

#[test]
fn going_back_over_messages_beyond_the_credits() {
    // All were sent before the peer's first response, which then shows that it counts.
    let mut peer = ScriptedPeer::new();
    for wr_id in 0..6 {
        post(&mut peer, wr_id, if wr_id == 3 { WRITE } else { SEND }, 2000);
    }
    assert_eq!(peer.transmit().len(), 12);
    ack(&mut peer, 0, 0, 2);
    peer.nak(1, NakCode::PsnSequence);
    // Messages 1 and 2 are granted, the third waits for them.
    peer.expect(["SEND_LAST 1 976 bytes ack_req", "SEND_FIRST 2 1024 bytes", "SEND_LAST 3 976 bytes ack_req"]);
    ack(&mut peer, 3, 2, 0);
    peer.expect(["SEND_FIRST 4 1024 bytes ack_req"]);
    ack(&mut peer, 4, 2, 0);
    // The WRITE needs none; the next SEND does.
    assert_eq!(peer.transmit().len(), 3);
    ack(&mut peer, 7, 4, 31);
    assert_eq!(peer.transmit().len(), 4);
    peer.ack(11);
    assert_eq!(completed(&mut peer).len(), 6);
    assert_eq!(counts(&peer), (true, 1));
}

#[test]
fn local_operations_are_no_messages() {
    let mut peer = limited(Agreed::default(), 1);
    let key = peer.node.fast_region(64);
    peer.node.post_send(1, SendOp::LocalInvalidate { key }, &[]);
    post(&mut peer, 2, SEND, 1);
    peer.expect(["SEND_ONLY 1 1 bytes ack_req"]);
    assert_eq!(counts(&peer), (false, 0));
}

/// Two engines: receives are posted one at a time, or late, or many at once; nothing is ever lost on the way and there
/// is no timer, so that a requester that waits for nothing would wait for ever.
#[test]
fn no_deadlock_without_a_timer() {
    let mut probes = 0;
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let agreed = Agreed { timeout: 0, sq_psn: Psn::new(0xFF_FFF8), ..Agreed::default() };
        let mut pair = RatedPair::new(seed, &agreed, &EngineConfig::default(), 64, 1 << 14, LinkParams::default());
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
        let line = LinkParams { loss: 50_000, ..LinkParams::default() };
        let mut pair = RatedPair::new(seed, &agreed, &EngineConfig::default(), 64, 1 << 14, line);
        run(&mut pair, &mut rng);
    }
}

/// Messages from the first end, receives at the second one at random times.
fn run(pair: &mut RatedPair, rng: &mut Rng) {
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
    // One receive is posted per step, and a step becomes as long as the wait for a receiver that is never ready.
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
