//! Queue pairs that are reset and used again: the second life knows nothing of the first.

use crate::harness::scripted_peer::{AckReq, PEER_QPN, ScriptedPeer};
use crate::harness::{Agreed, PORT, QKEY, path};
use rxe_proto::Duration;
use rxe_proto::transport::{
    AhId, EngineConfig, QpState, QpTransition, QpType, Qpn, RemoteAddr, RtrAttr, RtsAttr, SendOp, Sge, Wait, WcStatus,
};
use rxe_proto::wire::{NakCode, Opcode, PathMtu, Psn};

use AckReq::Ack;

/// What happens to a queue pair in INIT before it is reset.
type Script = fn(&mut ScriptedPeer);

const TYPES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

/// A queue pair in INIT, and an address handle of its peer.
fn peer_of(qp_type: QpType) -> ScriptedPeer {
    let mut peer = ScriptedPeer::of(qp_type, false, Agreed::default(), EngineConfig::default());
    assert_eq!(peer.node.engine.create_ah(peer.node.pd, &path(1, 2)), Ok(AhId(0)));
    step(&mut peer, QpTransition::ToReset);
    step(&mut peer, to(qp_type, QpState::Init));
    peer
}

fn step(peer: &mut ScriptedPeer, transition: QpTransition) {
    peer.node.engine.modify_qp(peer.node.qpn, transition).unwrap();
}

/// The next transition on the way to RTS.
fn to(qp_type: QpType, state: QpState) -> QpTransition {
    let agreed = Agreed::default();
    match (qp_type, state) {
        (QpType::Ud, QpState::Init) => QpTransition::ToInitDatagram { port: PORT, qkey: QKEY },
        (_, QpState::Init) => QpTransition::ToInit { access: agreed.access },
        (QpType::Ud, QpState::Rtr) => QpTransition::ToRtrDatagram { path_mtu: PathMtu::Mtu1024 },
        (_, QpState::Rtr) => QpTransition::ToRtr(RtrAttr {
            path: path(1, 2),
            dest_qpn: Qpn::new(PEER_QPN),
            rq_psn: agreed.rq_psn,
            max_dest_rd_atomic: 4,
            ..RtrAttr::default()
        }),
        (QpType::Ud, _) => QpTransition::ToRtsDatagram { sq_psn: agreed.sq_psn },
        _ => QpTransition::ToRts(RtsAttr { sq_psn: agreed.sq_psn, timeout: 8, max_rd_atomic: 4, ..RtsAttr::default() }),
    }
}

fn post(peer: &mut ScriptedPeer, wr_id: u64, sge: Sge) {
    let op = match peer.qp_type {
        QpType::Ud => SendOp::Datagram { ah: AhId(0), qpn: Qpn::new(PEER_QPN), qkey: QKEY, imm: None },
        _ => SendOp::Send { imm: None },
    };
    peer.node.post_send(wr_id, op, &[sge]);
}

/// The peer sends a message of one packet.
fn receive(peer: &mut ScriptedPeer, psn: u32) {
    let (is_datagram, psn) = (peer.qp_type == QpType::Ud, peer.agreed.rq_psn.add(psn));
    let frame = peer.frame(Opcode::SendOnly, psn, Ack, b"x", |packet| {
        if is_datagram {
            packet.deth(QKEY, PEER_QPN);
        }
    });
    peer.inject(&frame);
}

/// From INIT to RTS and back to nothing outstanding: a message each way, both complete.
fn live(peer: &mut ScriptedPeer) {
    let qp_type = peer.qp_type;
    peer.node.post_recv(10, &[peer.node.sge(0x8000, 4096)]);
    step(peer, to(qp_type, QpState::Rtr));
    receive(peer, 0);
    step(peer, to(qp_type, QpState::Rts));
    let sge = peer.node.sge(0, 1);
    post(peer, 20, sge);
    let lines = peer.transmit();
    match qp_type {
        QpType::Rc => {
            assert_eq!(lines, ["ACK 0 msn 1", "SEND_ONLY 0 1 bytes ack_req"]);
            peer.ack(0);
        }
        _ => assert_eq!(lines, [format!("{qp_type} SEND_ONLY 0 1 bytes")]),
    }
    let done: Vec<_> = peer.node.take_completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(10, WcStatus::Success), (20, WcStatus::Success)]);
}

/// A queue pair in INIT after a reset has nothing of its former life.
fn is_fresh(peer: &mut ScriptedPeer) {
    let info = peer.node.engine.query_qp(peer.node.qpn).unwrap();
    assert_eq!((info.send_queued, info.recv_queued, info.dest_qpn, info.path.is_none()), (0, 0, None, true));
    assert_eq!((info.established, info.peer_not_ready, info.msn, info.waits), (false, false, 0, Wait::State));
    assert_eq!((info.sends.rd_outstanding, info.sends.unacked, info.rtt), (0, 0, None));
    peer.expect([]);
    peer.advance(Duration::from_secs(3600));
    peer.expect([]);
    assert_eq!((peer.node.take_completions(), peer.node.take_events()), (vec![], vec![]));
}

// [QP-STATE-WAYS]
#[test]
fn a_queue_pair_works_again_after_a_reset_from_every_state() {
    for qp_type in TYPES {
        let mut peer = peer_of(qp_type);
        let trouble: [(&str, Script); 7] = [
            ("INIT", |_| {}),
            ("RTR", |peer| step(peer, to(peer.qp_type, QpState::Rtr))),
            ("RTS", live),
            ("SQD", |peer| {
                live(peer);
                step(peer, QpTransition::ToSqd);
            }),
            ("ERROR", |peer| {
                live(peer);
                step(peer, QpTransition::ToError);
            }),
            ("SQE or ERROR by itself", |peer| {
                live(peer);
                post(peer, 21, Sge { addr: 0, length: 1, lkey: 4711 });
                peer.transmit();
            }),
            ("work under way", |peer| {
                live(peer);
                peer.node.post_recv(11, &[peer.node.sge(0x8000, 4096)]);
                let sge = peer.node.sge(0, 1);
                (21..25).for_each(|wr_id| post(peer, wr_id, sge));
                peer.transmit_at_most(Some(2));
                if peer.qp_type == QpType::Rc {
                    peer.node.post_send(25, SendOp::Read { remote: RemoteAddr::default() }, &[sge]);
                    peer.rdma(Opcode::ReadRequest, 1, Ack, 0, 8, b"");
                    peer.nak(1, NakCode::PsnSequence);
                }
            }),
        ];
        for (name, script) in trouble {
            for _ in 0..2 {
                script(&mut peer);
                step(&mut peer, QpTransition::ToReset);
                let _former_life = (peer.node.take_completions(), peer.node.take_events());
                assert_eq!(peer.node.state(), QpState::Reset, "{qp_type} {name}");
                step(&mut peer, to(qp_type, QpState::Init));
                is_fresh(&mut peer);
            }
        }
        live(&mut peer);
    }
}

#[test]
fn sizes_and_completion_queues_survive_a_reset() {
    for qp_type in TYPES {
        let mut peer = peer_of(qp_type);
        let parts = |peer: &ScriptedPeer| {
            let info = peer.node.engine.query_qp(peer.node.qpn).unwrap();
            (info.caps, info.send_cq, info.recv_cq, info.pd, info.sq_sig_all, info.qp_type)
        };
        let before = parts(&peer);
        live(&mut peer);
        step(&mut peer, QpTransition::ToError);
        step(&mut peer, QpTransition::ToReset);
        assert_eq!(parts(&peer), before);
        step(&mut peer, to(qp_type, QpState::Init));
        let engine = &peer.node.engine;
        assert_eq!((engine.recv_room(peer.node.qpn), engine.send_room(peer.node.qpn)), (Some(64), Some(0)));
    }
}

// [UNREL-SQE] [REQ-SQD]
#[test]
fn an_unreliable_queue_pair_leaves_sqe_and_sqd_by_way_of_rts() {
    for qp_type in [QpType::Uc, QpType::Ud] {
        let mut peer = peer_of(qp_type);
        live(&mut peer);
        for psn in 1..4 {
            post(&mut peer, 30, Sge { addr: 0, length: 1, lkey: 4711 });
            peer.expect([]);
            assert_eq!(peer.node.state(), QpState::Sqe);
            let failed: Vec<_> = peer.node.take_completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
            assert_eq!(failed, [(30, WcStatus::LocProtErr)]);
            step(&mut peer, QpTransition::Resume);
            step(&mut peer, QpTransition::ToSqd);
            let sge = peer.node.sge(0, 1);
            post(&mut peer, 31, sge);
            peer.expect([]);
            step(&mut peer, QpTransition::Resume);
            let lines = peer.transmit();
            assert_eq!(lines.len(), 1, "{qp_type} {psn}: {lines:?}");
            assert_eq!(peer.node.take_completions()[0].status, WcStatus::Success);
        }
    }
}

#[test]
fn the_psns_of_a_second_life_are_its_own() {
    let mut peer = peer_of(QpType::Rc);
    live(&mut peer);
    step(&mut peer, QpTransition::ToReset);
    step(&mut peer, to(QpType::Rc, QpState::Init));
    let (QpTransition::ToRtr(rtr), QpTransition::ToRts(rts)) =
        (to(QpType::Rc, QpState::Rtr), to(QpType::Rc, QpState::Rts))
    else {
        panic!()
    };
    peer.node.post_recv(1, &[peer.node.sge(0x8000, 4096)]);
    step(&mut peer, QpTransition::ToRtr(RtrAttr { rq_psn: Psn::new(0x1000), ..rtr }));
    step(&mut peer, QpTransition::ToRts(RtsAttr { sq_psn: Psn::new(0x2000), ..rts }));
    (peer.agreed.rq_psn, peer.agreed.sq_psn) = (Psn::new(0x1000), Psn::new(0x2000));
    let sge = peer.node.sge(0, 1);
    post(&mut peer, 2, sge);
    receive(&mut peer, 0);
    peer.expect(["ACK 0 msn 1", "SEND_ONLY 0 1 bytes ack_req"]);
    peer.ack(0);
    assert_eq!(peer.node.take_completions().len(), 2);
}
