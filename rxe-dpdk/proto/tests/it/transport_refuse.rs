//! Fault injection: refused requests, their NAKs, the state of both queue pairs, and what is not refused.

use crate::harness::pair::{Link, Pair};
use crate::harness::receives::{errors, statuses, with_receives};
use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use crate::harness::{ALL_ACCESS, Agreed, PORT};
use rxe_proto::Duration;
use rxe_proto::transport::{QpErrorCause, QpState, RemoteAddr, RequestRefusal, SendOp, WcStatus};
use rxe_proto::wire::{Frame, Opcode, PathMtu, Psn, classify};

use AckReq::{Ack, NoAck};
use Opcode::*;
use RequestRefusal::*;

const SECOND: Duration = Duration::from_secs(1);

/// Passes a frame of the peer to the engine, to be refused. Returns whether `choose` was called, and whether it was
/// refused.
fn refuse(peer: &mut ScriptedPeer, frame: &[u8], refusal: RequestRefusal) -> (bool, bool) {
    let Ok(Frame::Roce(packet)) = classify(frame) else { panic!("not a RoCE frame") };
    let mut asked = false;
    let refused = peer.node.engine.refuse_request(peer.now, PORT, &packet, |_| {
        asked = true;
        Some(refusal)
    });
    (asked, refused)
}

fn send(peer: &ScriptedPeer, psn: i32) -> Vec<u8> {
    let psn = Psn::new((peer.agreed.rq_psn.get() as i32 + psn) as u32);
    peer.frame(SendOnly, psn, Ack, b"data", |_| {})
}

#[test]
fn not_ready_and_out_of_sequence_leave_the_queue_pair_as_it_was() {
    for (refusal, told, counter) in [
        (NotReady { timer: 14 }, "RNR_NAK 1 timer 14 msn 1", "send_rnr_err"),
        (PsnSequence, "NAK 1 PsnSequence msn 1", "sequence_naks_sent"),
    ] {
        let mut peer = with_receives(4);
        peer.request(SendOnly, 0, Ack, b"before");
        let frame = send(&peer, 1);
        assert_eq!(refuse(&mut peer, &frame, refusal), (true, true));
        // Packets in flight behind it are dropped without a response.
        peer.request(SendOnly, 2, Ack, b"in flight");
        peer.expect([told]);
        assert_eq!((peer.node.state(), peer.node.stat(counter)), (QpState::Rts, 1));
        assert_eq!((peer.node.dropped("injected"), peer.node.stat("out_of_seq_request")), (1, 0));
        assert_eq!(peer.node.stat("rcvd_pkts"), 3, "the refused one was received, too");
        assert_eq!(peer.node.take_completions().len(), 1, "it was not executed");
        // Each retransmission is refused again.
        assert_eq!(refuse(&mut peer, &frame, refusal), (true, true));
        peer.expect([told]);
        peer.inject(&frame);
        peer.request(SendOnly, 2, Ack, b"again");
        peer.expect(["ACK 2 msn 3"]);
        assert_eq!(peer.node.take_completions().len(), 2);
        assert_eq!(errors(&peer.node.take_events()), []);
    }
}

#[test]
fn the_other_refusals_end_the_connection() {
    for (refusal, told, receive) in [
        (InvalidRequest, "NAK 1 InvalidRequest msn 1", WcStatus::RemInvReqErr),
        (RemoteAccess, "NAK 1 RemoteAccess msn 1", WcStatus::RemAccessErr),
        (RemoteOperational, "NAK 1 RemoteOperational msn 1", WcStatus::LocQpOpErr),
    ] {
        let mut peer = with_receives(3);
        let mtu = vec![7; peer.mtu()];
        peer.request(SendOnly, 0, Ack, b"before");
        let frame = send(&peer, 1);
        assert_eq!(refuse(&mut peer, &frame, refusal), (true, true));
        peer.expect([told]);
        assert_eq!(errors(&peer.node.take_events()), [QpErrorCause::Injected]);
        let flushed = WcStatus::WrFlushErr;
        assert_eq!(
            statuses(&peer.node.take_completions()),
            [(0, WcStatus::Success), (1, flushed), (2, flushed)],
            "no receive was in use"
        );
        assert_eq!((peer.node.state(), peer.node.stat("fatal_naks_sent")), (QpState::Error, 1));
        assert_eq!(peer.node.dropped("injected"), 1);
        let offender = peer.node.engine.take_error_packet(peer.node.qpn);
        assert!(offender.is_some_and(|packet| packet.starts_with("RC SEND_ONLY")));
        assert_eq!(refuse(&mut peer, &frame, refusal), (false, false), "there is nobody to refuse it");

        // In the middle of a message, its receive completes with the reason.
        let mut peer = with_receives(2);
        peer.request(SendFirst, 0, NoAck, &mtu);
        let frame = peer.frame(SendLast, peer.agreed.rq_psn.add(1), Ack, b"end", |_| {});
        assert_eq!(refuse(&mut peer, &frame, refusal), (true, true));
        assert_eq!(peer.transmit().len(), 1);
        assert_eq!(statuses(&peer.node.take_completions()), [(0, receive), (1, flushed)]);
    }
}

#[test]
fn a_read_before_it_is_answered_first() {
    let mut peer = with_receives(1);
    peer.rdma(ReadRequest, 0, Ack, 0, 2000, b"");
    let frame = send(&peer, 2);
    assert_eq!(refuse(&mut peer, &frame, RemoteAccess), (true, true));
    peer.expect([
        "READ_RESPONSE_FIRST 0 msn 1 1024 bytes",
        "READ_RESPONSE_LAST 1 msn 1 976 bytes",
        "NAK 2 RemoteAccess msn 1",
    ]);
}

#[test]
fn only_the_next_intact_request_can_be_refused() {
    let mut peer = with_receives(4);
    peer.request(SendOnly, 0, Ack, b"first");
    peer.expect(["ACK 0 msn 1"]);
    let good = send(&peer, 1);
    let mut others = vec![send(&peer, 0), send(&peer, 2), good.clone(), good.clone(), good.clone()];
    // Its payload, the peer's address, and the queue pair.
    *others[2].last_mut().unwrap() ^= 1;
    others[3][29] ^= 1;
    others[4][49] ^= 1;
    others.push(peer.frame(Acknowledge, peer.agreed.rq_psn.add(1), NoAck, &[], |packet| {
        packet.aeth(rxe_proto::wire::Syndrome::ACK, 0);
    }));
    let before = (peer.node.stat("rcvd_pkts"), peer.node.dropped("injected"));
    for frame in &others {
        assert_eq!(refuse(&mut peer, frame, RemoteAccess), (false, false));
    }
    assert_eq!((peer.node.stat("rcvd_pkts"), peer.node.dropped("injected")), before, "nothing was done");
    peer.expect([]);
    // `choose` was called and refused nothing.
    let Ok(Frame::Roce(packet)) = classify(&good) else { panic!() };
    assert!(!peer.node.engine.refuse_request(peer.now, PORT, &packet, |_| None));
    assert_eq!(peer.node.stat("rcvd_pkts"), before.0);
    peer.inject(&good);
    peer.expect(["ACK 1 msn 2"]);
}

fn pair() -> Pair {
    let agreed = Agreed { mtu: PathMtu::Mtu1024, access: ALL_ACCESS, ..Agreed::default() };
    Pair::new(1, &agreed, 16, 1 << 16, Link::default())
}

/// Both ends do eight WRITEs and READs of 3000 bytes from the first to the second, with `refusals` met on the way.
fn work(refusals: Vec<RequestRefusal>) -> Pair {
    let mut pair = pair();
    let bytes: Vec<u8> = (0..24_000).map(|i| (i * 7 + i / 256) as u8).collect();
    pair.nodes[0].write(0, &bytes);
    let [a, b] = &mut pair.nodes;
    let remote = |offset: usize| RemoteAddr { addr: b.region.addr() + offset as u64, rkey: b.region.rkey() };
    for part in 0..8 {
        let from = a.sge(3000 * part, 3000);
        a.post_send(part as u64, SendOp::Write { remote: remote(3000 * part), imm: None }, &[from]);
    }
    for part in 0..8 {
        let to = a.sge(0x8000 + 3000 * part, 3000);
        a.post_send(8 + part as u64, SendOp::Read { remote: remote(3000 * part) }, &[to]);
    }
    let mut left = refusals.into_iter();
    pair.refuse =
        Some(Box::new(move |to, packet| if to == 1 && packet.psn().get() % 3 == 2 { left.next() } else { None }));
    pair.drive(SECOND, |pair| pair.nodes[0].completions.len() == 16);
    pair
}

#[test]
fn both_ends_recover_from_recoverable_refusals() {
    let mut pair = work(vec![
        NotReady { timer: 1 },
        NotReady { timer: 1 },
        NotReady { timer: 1 },
        PsnSequence,
        PsnSequence,
        NotReady { timer: 2 },
    ]);
    let [a, b] = &mut pair.nodes;
    assert!(a.take_completions().iter().all(|wc| wc.status == WcStatus::Success));
    assert!(a.read(0, 24_000) == b.read(0, 24_000) && a.read(0x8000, 24_000) == b.read(0, 24_000));
    assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Rts));
    assert_eq!((b.stat("send_rnr_err"), a.stat("rcvd_rnr_err")), (4, 4));
    assert_eq!((b.stat("sequence_naks_sent"), a.stat("rcvd_seq_err")), (2, 2));
    assert_eq!(b.dropped("injected"), 6);
}

#[test]
fn the_requester_gets_the_nak_code() {
    for (refusal, status, cause) in [
        (InvalidRequest, WcStatus::RemInvReqErr, QpErrorCause::PeerInvalidRequest),
        (RemoteAccess, WcStatus::RemAccessErr, QpErrorCause::PeerAccess),
        (RemoteOperational, WcStatus::RemOpErr, QpErrorCause::PeerOperational),
    ] {
        let mut pair = work(vec![refusal]);
        let [a, b] = &mut pair.nodes;
        let failed: Vec<WcStatus> =
            a.take_completions().iter().map(|wc| wc.status).filter(|status| *status != WcStatus::Success).collect();
        assert_eq!(failed[0], status);
        assert!(failed[1..].iter().all(|status| *status == WcStatus::WrFlushErr));
        assert_eq!((errors(&a.take_events()), errors(&b.take_events())), (vec![cause], vec![QpErrorCause::Injected]));
        assert_eq!((a.state(), b.state()), (QpState::Error, QpState::Error));
    }
}
