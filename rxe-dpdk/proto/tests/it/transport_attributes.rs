//! Attributes that are changed without a change of state, or along with one, and what a query says of them.

use std::fmt::Write;

use crate::harness::ops::*;
use crate::harness::receives::post_receives;
use crate::harness::scripted_peer::{AckReq, PEER_QPN, ScriptedPeer};
use crate::harness::{Agreed, PORT, QKEY, path};
use rxe_proto::Duration;
use rxe_proto::mem::Access;
use rxe_proto::transport::{
    EngineConfig, QpAttrChange, QpCaps, QpError, QpInfo, QpState, QpTransition, QpType, Qpn, RtrAttr, RtsAttr, WcStatus,
};
use rxe_proto::wire::{Frame, Opcode, Path, PathMtu, PortId, Psn, classify};

use AckReq::Ack;

/// A queue pair in RESET.
fn reset(qp_type: QpType) -> ScriptedPeer {
    let mut peer = ScriptedPeer::of(qp_type, false, Agreed::default(), EngineConfig::default());
    step(&mut peer, QpTransition::ToReset);
    peer
}

fn step(peer: &mut ScriptedPeer, transition: QpTransition) {
    peer.node.engine.modify_qp(peer.node.qpn, transition).unwrap();
}

fn to_init(qp_type: QpType) -> QpTransition {
    match qp_type {
        QpType::Ud => QpTransition::ToInitDatagram { port: PORT, qkey: QKEY },
        _ => QpTransition::ToInit { access: Agreed::default().access },
    }
}

fn to_rtr(qp_type: QpType) -> QpTransition {
    match qp_type {
        QpType::Ud => QpTransition::ToRtrDatagram { path_mtu: PathMtu::Mtu1024 },
        _ => QpTransition::ToRtr(RtrAttr { path: path(1, 2), dest_qpn: Qpn::new(PEER_QPN), ..RtrAttr::default() }),
    }
}

fn to_rts(qp_type: QpType) -> QpTransition {
    match qp_type {
        QpType::Ud => QpTransition::ToRtsDatagram { sq_psn: Psn::new(0) },
        _ => QpTransition::ToRts(RtsAttr { timeout: 8, ..RtsAttr::default() }),
    }
}

/// A queue pair in a state; `None` for SQE, which no transition leads to.
fn in_state(qp_type: QpType, state: QpState) -> Option<ScriptedPeer> {
    let mut peer = reset(qp_type);
    let way: &[fn(QpType) -> QpTransition] = match state {
        QpState::Reset => &[],
        QpState::Init => &[to_init],
        QpState::Rtr => &[to_init, to_rtr],
        QpState::Rts => &[to_init, to_rtr, to_rts],
        QpState::Sqd => &[to_init, to_rtr, to_rts, |_| QpTransition::ToSqd],
        QpState::Error => &[|_| QpTransition::ToError],
        QpState::Sqe => return None,
    };
    for transition in way {
        step(&mut peer, transition(qp_type));
    }
    Some(peer)
}

fn info(peer: &ScriptedPeer) -> QpInfo {
    peer.node.engine.query_qp(peer.node.qpn).unwrap()
}

fn change(peer: &mut ScriptedPeer, change: &QpAttrChange) -> Result<(), QpError> {
    peer.node.engine.modify_attributes(peer.now, peer.node.qpn, change)
}

/// One change for each attribute, by its name in verbs terms, in a queue pair in `state`.
fn changes(state: QpState) -> [(&'static str, QpAttrChange); 12] {
    let none = QpAttrChange::default;
    [
        ("cur_qp_state", QpAttrChange { cur_state: Some(state), ..none() }),
        ("qp_access_flags", QpAttrChange { access: Some(Access::REMOTE_READ), ..none() }),
        ("pkey_index", QpAttrChange { pkey_index: Some(0), ..none() }),
        ("port_num", QpAttrChange { port: Some(PORT), ..none() }),
        ("qkey", QpAttrChange { qkey: Some(7), ..none() }),
        ("ah_attr", QpAttrChange { path: Some(path(1, 3)), ..none() }),
        ("timeout", QpAttrChange { timeout: Some(9), ..none() }),
        ("retry_cnt", QpAttrChange { retry_cnt: Some(3), ..none() }),
        ("rnr_retry", QpAttrChange { rnr_retry: Some(3), ..none() }),
        ("min_rnr_timer", QpAttrChange { min_rnr_timer: Some(9), ..none() }),
        ("max_rd_atomic", QpAttrChange { max_rd_atomic: Some(2), ..none() }),
        ("max_dest_rd_atomic", QpAttrChange { max_dest_rd_atomic: Some(2), ..none() }),
    ]
}

// [QP-ATTRIBUTES]
#[test]
fn each_state_and_transition_allows_certain_attributes() {
    let mut table = String::new();
    type Way = fn(QpType) -> QpTransition;
    let ways: [(QpState, Option<Way>); 15] = [
        (QpState::Reset, None),
        (QpState::Reset, Some(to_init)),
        (QpState::Init, None),
        (QpState::Init, Some(to_init)),
        (QpState::Init, Some(to_rtr)),
        (QpState::Rtr, None),
        (QpState::Rtr, Some(to_rts)),
        (QpState::Rts, None),
        (QpState::Rts, Some(|_| QpTransition::ToSqd)),
        (QpState::Sqd, None),
        (QpState::Sqd, Some(|_| QpTransition::ToSqd)),
        (QpState::Sqd, Some(|_| QpTransition::Resume)),
        (QpState::Error, None),
        (QpState::Rts, Some(|_| QpTransition::ToError)),
        (QpState::Rts, Some(|_| QpTransition::ToReset)),
    ];
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        writeln!(table, "{qp_type}").unwrap();
        for (state, way) in ways {
            let mut allowed = Vec::new();
            for (name, attr) in changes(state) {
                let mut peer = in_state(qp_type, state).unwrap();
                let before = format!("{:?}", info(&peer));
                let (now, qpn) = (peer.now, peer.node.qpn);
                let outcome = match way {
                    Some(way) => peer.node.engine.modify_qp_with(now, qpn, way(qp_type), &attr),
                    None => peer.node.engine.modify_attributes(now, qpn, &attr),
                };
                match outcome {
                    Ok(()) => allowed.push(name),
                    Err(QpError::Attribute { name: refused, .. }) => {
                        assert_eq!((refused, format!("{:?}", info(&peer))), (name, before));
                    }
                    Err(QpError::Transition { from, to }) => assert!(way.is_none() && from == state && to == state),
                    Err(other) => panic!("{other}"),
                }
            }
            let to = way.map_or(state, |way| way(qp_type).target());
            let names = if allowed.is_empty() { "-".to_owned() } else { allowed.join(" ") };
            let kind = if way.is_some() { "transition" } else { "attributes" };
            writeln!(table, "    {state:5} {to:5} {kind:10} {names}").unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

// [QP-ATTRIBUTES]
#[test]
fn a_change_is_made_whole_or_not_at_all() {
    let mut peer = in_state(QpType::Rc, QpState::Sqd).unwrap();
    let before = format!("{:?}", info(&peer));
    let most = u32::from(EngineConfig::default().max_rd_atomic);
    let good = QpAttrChange { access: Some(Access::empty()), min_rnr_timer: Some(20), ..QpAttrChange::default() };
    let limit = |name, value, limit| QpError::Limit { name, value, limit };
    let (from, to) = (QpState::Sqd, QpState::Sqd);
    for (bad, error) in [
        (QpAttrChange { pkey_index: Some(1), ..good.clone() }, limit("pkey_index", 1, 0)),
        (QpAttrChange { timeout: Some(32), ..good.clone() }, limit("timeout", 32, 31)),
        (QpAttrChange { retry_cnt: Some(8), ..good.clone() }, limit("retry_cnt", 8, 7)),
        (QpAttrChange { rnr_retry: Some(8), ..good.clone() }, limit("rnr_retry", 8, 7)),
        (QpAttrChange { min_rnr_timer: Some(32), ..good.clone() }, limit("min_rnr_timer", 32, 31)),
        (QpAttrChange { max_rd_atomic: Some(129), ..good.clone() }, limit("max_rd_atomic", 129, most)),
        (QpAttrChange { max_dest_rd_atomic: Some(129), ..good.clone() }, limit("max_dest_rd_atomic", 129, most)),
        (
            QpAttrChange { qkey: Some(1), ..good.clone() },
            QpError::Attribute { name: "qkey", qp_type: QpType::Rc, from, to },
        ),
    ] {
        assert_eq!(change(&mut peer, &bad), Err(error));
        assert_eq!(format!("{:?}", info(&peer)), before, "{bad:?}");
    }
    change(&mut peer, &good).unwrap();
    assert_eq!((info(&peer).access, info(&peer).min_rnr_timer), (Access::empty(), 20));
    // A bad attribute keeps the state, a bad transition the attributes.
    let (now, qpn) = (peer.now, peer.node.qpn);
    let bad = QpAttrChange { access: Some(Access::REMOTE_READ), min_rnr_timer: Some(32), ..QpAttrChange::default() };
    let engine = &mut peer.node.engine;
    assert!(engine.modify_qp_with(now, qpn, QpTransition::Resume, &bad).is_err());
    let good = QpAttrChange { access: Some(Access::REMOTE_READ), ..QpAttrChange::default() };
    assert!(engine.modify_qp_with(now, qpn, to_rtr(QpType::Rc), &good).is_err());
    assert_eq!((info(&peer).state, info(&peer).access), (QpState::Sqd, Access::empty()));
    let unknown = peer.node.engine.modify_attributes(now, Qpn::new(0x77), &good);
    assert_eq!(unknown, Err(QpError::Unknown(Qpn::new(0x77))));
}

#[test]
fn a_change_for_another_state_than_the_present_one_is_refused() {
    let mut peer = in_state(QpType::Rc, QpState::Rts).unwrap();
    let access = Some(Access::REMOTE_READ);
    let expected = |cur_state| QpAttrChange { cur_state: Some(cur_state), access, ..QpAttrChange::default() };
    let refused = QpError::Transition { from: QpState::Rts, to: QpState::Rts };
    assert_eq!(change(&mut peer, &expected(QpState::Sqd)), Err(refused));
    assert_eq!(info(&peer).access, Agreed::default().access);
    change(&mut peer, &expected(QpState::Rts)).unwrap();
    assert_eq!(info(&peer).access, Access::REMOTE_READ);
}

#[test]
fn access_rights_count_from_the_next_request_on() {
    let mut peer = in_state(QpType::Rc, QpState::Rts).unwrap();
    peer.rdma(Opcode::WriteOnly, 0, Ack, 0, 1, b"w");
    peer.expect(["ACK 0 msn 1"]);
    change(&mut peer, &QpAttrChange { access: Some(Access::REMOTE_READ), ..QpAttrChange::default() }).unwrap();
    peer.rdma(Opcode::WriteOnly, 1, Ack, 0, 1, b"w");
    peer.expect(["NAK 1 InvalidRequest msn 1"]);
}

#[test]
fn rnr_naks_ask_for_the_time_that_was_set_last() {
    let mut peer = in_state(QpType::Rc, QpState::Rts).unwrap();
    peer.request(Opcode::SendOnly, 0, Ack, b"x");
    peer.expect(["RNR_NAK 0 timer 12 msn 0"]);
    change(&mut peer, &QpAttrChange { min_rnr_timer: Some(5), ..QpAttrChange::default() }).unwrap();
    peer.request(Opcode::SendOnly, 0, Ack, b"x");
    peer.expect(["RNR_NAK 0 timer 5 msn 0"]);
    // Along with the way to RTS.
    let mut peer = in_state(QpType::Rc, QpState::Rtr).unwrap();
    let (now, qpn) = (peer.now, peer.node.qpn);
    let change = QpAttrChange { min_rnr_timer: Some(7), ..QpAttrChange::default() };
    peer.node.engine.modify_qp_with(now, qpn, to_rts(QpType::Rc), &change).unwrap();
    peer.request(Opcode::SendOnly, 0, Ack, b"x");
    peer.expect(["RNR_NAK 0 timer 7 msn 0"]);
}

#[test]
fn a_new_queue_key_counts_from_the_next_datagram_on() {
    let mut peer = in_state(QpType::Ud, QpState::Rts).unwrap();
    assert_eq!(info(&peer).qkey, QKEY);
    change(&mut peer, &QpAttrChange { qkey: Some(7), ..QpAttrChange::default() }).unwrap();
    post_receives(&mut peer, 1);
    for qkey in [QKEY, 7] {
        let frame = peer.frame(Opcode::SendOnly, Psn::new(0), AckReq::NoAck, b"x", |packet| {
            packet.deth(qkey, PEER_QPN);
        });
        peer.inject(&frame);
    }
    assert_eq!((peer.node.dropped("qkey_mismatch"), peer.node.take_completions().len()), (1, 1));
}

#[test]
fn a_drained_connection_gets_another_path() {
    let mut peer = in_state(QpType::Rc, QpState::Sqd).unwrap();
    post(&mut peer, 1, SEND, 1);
    peer.expect([]);
    let there = Path { vlan: Some(5), traffic_class: 0x20, ..path(1, 3) };
    change(&mut peer, &QpAttrChange { path: Some(there.clone()), ..QpAttrChange::default() }).unwrap();
    assert_eq!(info(&peer).path.as_ref(), Some(&there));
    step(&mut peer, QpTransition::Resume);
    assert_eq!(peer.transmit().len(), 1);
    let Ok(Frame::Roce(packet)) = classify(&peer.frames[0]) else { panic!() };
    assert_eq!((packet.dst_gid(), packet.vlan(), packet.traffic_class()), (there.dst, Some(5), 0x20));
    // The former peer is none any more.
    peer.ack(0);
    assert_eq!((peer.node.dropped("qp_wrong_address"), completed(&mut peer)), (1, vec![]));
}

#[test]
fn timeout_and_retries_can_be_changed_while_a_message_waits_for_its_answer() {
    // Without a timer nothing is sent again.
    let mut peer = ScriptedPeer::with(Agreed { timeout: 0, retry_cnt: 7, ..Agreed::default() });
    post(&mut peer, 1, SEND, 1);
    peer.transmit();
    step(&mut peer, QpTransition::ToSqd);
    peer.advance(Duration::from_secs(3600));
    peer.expect([]);
    let (timeout, retry_cnt) = (Some(8), Some(1));
    change(&mut peer, &QpAttrChange { timeout, retry_cnt, ..QpAttrChange::default() }).unwrap();
    assert_eq!((info(&peer).timeout, info(&peer).sends.retry_cnt, info(&peer).sends.retries_left), (8, 1, 1));
    peer.expect([]);
    peer.advance(TIMEOUT);
    peer.expect(["SEND_ONLY 0 1 bytes ack_req"]);
    // Off again, then on: the message fails when its one retry is used up.
    change(&mut peer, &QpAttrChange { timeout: Some(0), ..QpAttrChange::default() }).unwrap();
    peer.advance(Duration::from_secs(3600));
    peer.expect([]);
    change(&mut peer, &QpAttrChange { timeout, ..QpAttrChange::default() }).unwrap();
    for _ in 0..20 {
        peer.advance(TIMEOUT);
        peer.transmit();
    }
    assert_eq!(completed(&mut peer), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn more_reads_are_sent_after_the_limit_was_raised() {
    let mut peer = ScriptedPeer::with(Agreed { rd_atomic: 1, ..Agreed::default() });
    for wr_id in 0..3 {
        post(&mut peer, wr_id, READ, 8);
    }
    assert_eq!(peer.transmit().len(), 1);
    step(&mut peer, QpTransition::ToSqd);
    change(&mut peer, &QpAttrChange { max_rd_atomic: Some(2), ..QpAttrChange::default() }).unwrap();
    peer.expect([]);
    assert_eq!(info(&peer).sends.max_rd_atomic, 2);
    step(&mut peer, QpTransition::Resume);
    assert_eq!(peer.transmit().len(), 1, "two of three are outstanding");
}

#[test]
fn reads_that_the_peer_has_outstanding_survive_a_lower_limit() {
    let mut peer = ScriptedPeer::with(Agreed { rd_atomic: 4, ..Agreed::default() });
    step(&mut peer, QpTransition::ToSqd);
    for psn in 0..3 {
        peer.rdma(Opcode::ReadRequest, psn, Ack, 0, 8, b"");
    }
    change(&mut peer, &QpAttrChange { max_dest_rd_atomic: Some(1), ..QpAttrChange::default() }).unwrap();
    assert_eq!(info(&peer).max_dest_rd_atomic, 1);
    let line = |psn: u32| format!("READ_RESPONSE_ONLY {psn} msn {} 8 bytes", psn + 1);
    assert_eq!(peer.transmit(), [line(0), line(1), line(2)]);
    // From now on one at a time; a repetition of the last one is answered, of earlier ones not.
    peer.rdma(Opcode::ReadRequest, 3, Ack, 0, 8, b"");
    assert_eq!(peer.transmit(), [line(3)]);
    peer.rdma(Opcode::ReadRequest, 3, Ack, 0, 8, b"");
    peer.rdma(Opcode::ReadRequest, 2, Ack, 0, 8, b"");
    assert_eq!(peer.transmit(), [line(3)]);
    // Raised again: four fit, a fifth is an invalid request.
    change(&mut peer, &QpAttrChange { max_dest_rd_atomic: Some(4), ..QpAttrChange::default() }).unwrap();
    for psn in 4..9 {
        peer.rdma(Opcode::ReadRequest, psn, Ack, 0, 8, b"");
    }
    let lines = peer.transmit();
    assert_eq!((lines.len(), lines.last().map(String::as_str)), (5, Some("NAK 8 InvalidRequest msn 8")));
}

#[test]
fn a_datagram_queue_pair_that_moves_to_another_port_leaves_its_groups() {
    let group = rxe_proto::wire::Gid::from(std::net::Ipv4Addr::new(239, 0, 0, 1));
    let moves: [fn(&mut ScriptedPeer); 2] = [
        |peer| change(peer, &QpAttrChange { port: Some(PortId(1)), ..QpAttrChange::default() }).unwrap(),
        |peer| step(peer, QpTransition::ToInitDatagram { port: PortId(1), qkey: QKEY }),
    ];
    for moves in moves {
        let mut peer = in_state(QpType::Ud, QpState::Init).unwrap();
        let qpn = peer.node.qpn;
        peer.node.engine.attach_multicast(qpn, group).unwrap();
        assert_eq!(peer.node.engine.multicast_members(PORT, group), [qpn]);
        step(&mut peer, to_init(QpType::Ud));
        assert_eq!(peer.node.engine.multicast_members(PORT, group), [qpn], "on the same port it stays");
        moves(&mut peer);
        assert_eq!(info(&peer).port, Some(PortId(1)));
        assert_eq!(peer.node.engine.multicast_groups().count(), 0);
        assert!(peer.node.engine.multicast_members(PORT, group).is_empty());
    }
}

#[test]
fn a_query_says_what_was_set() {
    let mut peer = reset(QpType::Rc);
    let (now, qpn) = (peer.now, peer.node.qpn);
    let fresh = info(&peer);
    assert_eq!((fresh.state, fresh.port, fresh.path_mtu, fresh.dest_qpn), (QpState::Reset, None, None, None));
    let caps = QpCaps { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 16, max_recv_sge: 16, max_inline_data: 64 };
    assert_eq!((fresh.caps, fresh.sq_sig_all, fresh.pkey_index), (caps, false, 0));
    let port = QpAttrChange { port: Some(PORT), pkey_index: Some(0), ..QpAttrChange::default() };
    peer.node.engine.modify_qp_with(now, qpn, to_init(QpType::Rc), &port).unwrap();
    assert_eq!((info(&peer).port, info(&peer).access), (Some(PORT), Agreed::default().access));
    let rtr = RtrAttr {
        path: path(1, 2),
        path_mtu: PathMtu::Mtu2048,
        dest_qpn: Qpn::new(0x123),
        rq_psn: Psn::new(0xABCDEF),
        max_dest_rd_atomic: 3,
        min_rnr_timer: 17,
    };
    step(&mut peer, QpTransition::ToRtr(rtr));
    let there = info(&peer);
    assert_eq!(
        (there.path, there.path_mtu, there.dest_qpn),
        (Some(path(1, 2)), Some(PathMtu::Mtu2048), Some(Qpn::new(0x123)))
    );
    assert_eq!((there.max_dest_rd_atomic, there.min_rnr_timer, there.expected_psn), (3, 17, Psn::new(0xABCDEF)));
    for timeout in [0, 1, 14, 31] {
        let mut peer = in_state(QpType::Rc, QpState::Rtr).unwrap();
        let rts = RtsAttr { sq_psn: Psn::new(7), timeout, retry_cnt: 5, rnr_retry: 6, max_rd_atomic: 9 };
        step(&mut peer, QpTransition::ToRts(rts));
        let there = info(&peer);
        let sends = there.sends;
        assert_eq!((there.timeout, sends.retry_cnt, sends.rnr_retry, sends.max_rd_atomic), (timeout, 5, 6, 9));
        assert_eq!((there.unsent_psn, there.next_psn, there.unacked_psn), (Psn::new(7), Psn::new(7), Psn::new(7)));
    }
    let ud = in_state(QpType::Ud, QpState::Rtr).unwrap();
    assert_eq!((info(&ud).path_mtu, info(&ud).port, info(&ud).qkey), (Some(PathMtu::Mtu1024), Some(PORT), QKEY));
    let ud = in_state(QpType::Ud, QpState::Init).unwrap();
    assert_eq!(info(&ud).path_mtu, None);
}

#[test]
fn a_query_shows_progress_in_psns_and_the_end_of_draining() {
    let mut peer = in_state(QpType::Rc, QpState::Rts).unwrap();
    post(&mut peer, 1, SEND, 2000);
    let psns = |peer: &ScriptedPeer| {
        let QpInfo { unacked_psn, unsent_psn, next_psn, sq_draining, .. } = info(peer);
        ([unacked_psn, unsent_psn, next_psn].map(|psn| psn.get()), sq_draining)
    };
    assert_eq!(psns(&peer), ([0, 0, 2], false));
    peer.transmit();
    assert_eq!(psns(&peer), ([0, 2, 2], false));
    step(&mut peer, QpTransition::ToSqd);
    peer.ack(0);
    assert_eq!(psns(&peer), ([1, 2, 2], true));
    peer.ack(1);
    assert_eq!(psns(&peer), ([2, 2, 2], false));
}

#[test]
fn attributes_that_an_unreliable_connection_lacks_may_have_any_value() {
    let mut peer = in_state(QpType::Uc, QpState::Init).unwrap();
    let rtr = RtrAttr { max_dest_rd_atomic: 255, min_rnr_timer: 255, ..RtrAttr::default() };
    let rts = RtsAttr { timeout: 255, retry_cnt: 255, rnr_retry: 255, max_rd_atomic: 255, ..RtsAttr::default() };
    let path = path(1, 2);
    step(&mut peer, QpTransition::ToRtr(RtrAttr { path: path.clone(), dest_qpn: Qpn::new(PEER_QPN), ..rtr.clone() }));
    step(&mut peer, QpTransition::ToRts(rts));
    post(&mut peer, 1, SEND, 1);
    peer.expect(["UC SEND_ONLY 0 1 bytes"]);
    // A reliable connection has them.
    let mut peer = in_state(QpType::Rc, QpState::Init).unwrap();
    let limit = |name, value, limit| Err(QpError::Limit { name, value, limit });
    let qpn = peer.node.qpn;
    let refused = peer.node.engine.modify_qp(qpn, QpTransition::ToRtr(RtrAttr { path, ..rtr }));
    assert_eq!(refused, limit("max_dest_rd_atomic", 255, 128));
    let mut peer = in_state(QpType::Rc, QpState::Rtr).unwrap();
    let refused = peer.node.engine.modify_qp(peer.node.qpn, QpTransition::ToRts(rts));
    assert_eq!(refused, limit("max_rd_atomic", 255, 128));
}
