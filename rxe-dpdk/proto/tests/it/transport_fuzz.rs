//! Whatever arrives, an engine does not panic, and goes on serving its other connections.

use crate::harness::pair::{Link, Pair};
use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use crate::harness::{Agreed, PORT, Rng};
use proptest::prelude::*;
use rxe_proto::Duration;
use rxe_proto::transport::{Qpn, RemoteAddr, SendOp};
use rxe_proto::wire::{Frame, OPCODES, Psn, TxFrames, classify};

/// One request or response with any header contents, its ICRC right.
#[derive(Clone, Debug)]
struct Wild {
    byte: u8,
    psn: i32,
    ask: bool,
    va: u64,
    key: bool,
    len: u32,
    syndrome: u8,
    payload: usize,
}

fn wild() -> impl Strategy<Value = Wild> {
    let psn = prop_oneof![-3..12i32, any::<i16>().prop_map(i32::from), any::<i32>()];
    let va = prop_oneof![0..0x2_0000u64, 0x1_0000..0x1_0040u64, any::<u64>()];
    let len = prop_oneof![0..5000u32, Just(1024), any::<u32>()];
    let payload = prop_oneof![Just(0), Just(1024), 0..1500usize];
    (0..0x1Eu8, psn, any::<bool>(), va, prop::bool::weighted(0.9), len, any::<u8>(), payload).prop_map(
        |(byte, psn, ask, va, key, len, syndrome, payload)| Wild { byte, psn, ask, va, key, len, syndrome, payload },
    )
}

/// Something of every kind in flight.
fn busy() -> ScriptedPeer {
    let mut peer = ScriptedPeer::with(Agreed { sq_psn: Psn::new(3), rq_psn: Psn::new(0xFF_FFFF), ..Agreed::default() });
    for wr_id in 0..8 {
        let sge = peer.node.sge(0x4000, 4096);
        peer.node.post_recv(wr_id, &[sge]);
    }
    let remote = RemoteAddr { addr: 0x1_0000, rkey: 1 };
    let (small, large) = (peer.node.sge(0, 8), peer.node.sge(0, 3000));
    peer.node.post_send(1, SendOp::Send { imm: None }, &[large]);
    peer.node.post_send(2, SendOp::Read { remote }, &[large]);
    peer.node.post_send(3, SendOp::FetchAdd { remote, add: 1 }, &[small]);
    peer.node.post_send(4, SendOp::Write { remote, imm: None }, &[large]);
    peer.transmit();
    peer
}

fn inject(peer: &mut ScriptedPeer, wild: &Wild) {
    let Some(info) = &OPCODES[usize::from(wild.byte)] else { return };
    let start = if info.response { peer.agreed.sq_psn } else { peer.agreed.rq_psn };
    let psn = Psn::new(start.get().wrapping_add_signed(wild.psn));
    let rkey = if wild.key { peer.node.region.rkey() } else { wild.len };
    let ask = if wild.ask { AckReq::Ack } else { AckReq::NoAck };
    let frame = peer.frame(info.opcode.op, psn, ask, &vec![7; wild.payload], |packet| {
        use rxe_proto::wire::{Headers, Syndrome};
        if info.headers.contains(Headers::RETH) {
            packet.reth(wild.va, rkey, wild.len);
        }
        if info.headers.contains(Headers::ATOMIC) {
            packet.atomic_eth(wild.va, rkey, 1, 2);
        }
        if info.headers.contains(Headers::AETH) {
            packet.aeth(Syndrome::from_byte(wild.syndrome), wild.len);
        }
        if info.headers.contains(Headers::ATOMIC_ACK) {
            packet.atomic_ack(wild.va);
        }
        if info.headers.contains(Headers::IMM) {
            packet.imm(wild.len);
        }
        if info.headers.contains(Headers::IETH) {
            packet.ieth(rkey);
        }
        if info.headers.contains(Headers::FETH) {
            packet.feth(1, 1);
        }
    });
    peer.inject(&frame);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Well-formed packets with any contents, in any order.
    #[test]
    fn wild_packets(packets in prop::collection::vec(wild(), 1..40), room in 0..30usize) {
        let mut peer = busy();
        for packet in &packets {
            inject(&mut peer, packet);
            // A READ of gigabytes is legal but long: the port decides how much goes out.
            let mut tx = TxFrames { room: Some(room), ..TxFrames::default() };
            peer.node.engine.transmit(peer.now, &mut tx);
            peer.node.collect();
            peer.advance(Duration::from_micros(100));
        }
        peer.advance(Duration::from_millis(100));
        let qpn = peer.node.qpn;
        peer.node.engine.destroy_qp(peer.now, qpn).unwrap();
        prop_assert_eq!(peer.node.engine.next_timeout(), None);
        // Every reply that is owed is due within this time.
        peer.advance(Duration::from_secs(1));
        peer.node.engine.transmit(peer.now, &mut TxFrames::default());
        prop_assert!(!peer.node.engine.wants_transmit());
    }

    /// Frames of a living connection with bytes changed, but the ICRC made right again where that is possible.
    #[test]
    fn mutated_frames(seed in any::<u64>(), mutations in 1..6u64) {
        let mut rng = Rng(seed);
        let mut peer = busy();
        let templates: Vec<Vec<u8>> = peer.frames.clone();
        for _ in 0..40 {
            let mut frame = templates[rng.below(templates.len() as u64) as usize].clone();
            // Turned round, so that the addresses fit.
            for i in 0..4 {
                frame.swap(14 + 12 + i, 14 + 16 + i);
            }
            frame[46..50].copy_from_slice(&peer.node.qpn.get().to_be_bytes());
            frame[46] = 0;
            for _ in 0..rng.below(mutations) {
                let at = 42 + rng.below(frame.len() as u64 - 42) as usize;
                frame[at] = rng.next() as u8;
            }
            if let Ok(Frame::Roce(packet)) = classify(&frame) {
                // The right ICRC, as computed over the frame as it is now.
                let end = frame.len() - 4;
                let icrc = rxe_proto::wire::icrc(&frame[14..end], packet.is_ipv4());
                let mut fixed = frame.clone();
                fixed[end..].copy_from_slice(&icrc.to_le_bytes());
                for frame in [&frame, &fixed] {
                    if let Ok(Frame::Roce(packet)) = classify(frame) {
                        peer.node.engine.receive(peer.now, PORT, &packet);
                    }
                }
            }
            let mut tx = TxFrames { room: Some(16), ..TxFrames::default() };
            peer.node.engine.transmit(peer.now, &mut tx);
            peer.node.collect();
            peer.advance(Duration::from_micros(300));
        }
    }
}

/// A peer that sends garbage ends at most its own connection; the other one on the same engine works.
#[test]
fn one_connection_does_not_disturb_another() {
    let mut pair = Pair::new(3, &Agreed::default(), 16, 1 << 16, Link::default());
    let [_, b] = &mut pair.nodes;
    let own = std::mem::take(&mut b.qpn);
    let victim = b.create_qp(4, Agreed::default().access);
    b.qpn = victim;
    b.ready_to_receive(1, Qpn::new(0x99), &Agreed::default());
    b.qpn = own;
    let mut rng = Rng(1);
    let mut peer = busy();
    peer.node.qpn = victim;
    for round in 0..200 {
        let wild = Wild {
            byte: rng.below(0x1E) as u8,
            psn: rng.below(4) as i32,
            ask: true,
            va: rng.next(),
            key: false,
            len: rng.next() as u32,
            syndrome: rng.next() as u8,
            payload: rng.below(1025) as usize,
        };
        if let Some(info) = &OPCODES[usize::from(wild.byte)]
            && info.headers.is_empty()
        {
            let frame =
                peer.frame(info.opcode.op, Psn::new(wild.psn as u32), AckReq::Ack, &vec![0; wild.payload], |_| {});
            if let Ok(Frame::Roce(packet)) = classify(&frame) {
                pair.nodes[1].engine.receive(pair.now, PORT, &packet);
            }
        }
        let [a, b] = &mut pair.nodes;
        let remote = RemoteAddr { addr: b.region.addr() + 0x8000, rkey: b.region.rkey() };
        let sge = a.sge(0, 3000);
        a.post_send(round, SendOp::Write { remote, imm: None }, &[sge]);
        pair.drive(Duration::from_millis(1), |pair| !pair.nodes[0].completions.is_empty());
        assert_eq!(pair.nodes[0].take_completions().len(), 1);
    }
}
