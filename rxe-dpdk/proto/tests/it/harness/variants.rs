//! A [`ScriptedPeer`] with a queue pair of another type, or with more inline data.

use rxe_proto::Instant;
use rxe_proto::transport::{AhId, QpCaps, QpInit, QpTransition, QpType, Qpn};

use super::scripted_peer::{PEER_QPN, ScriptedPeer};
use super::{Agreed, PORT, path};

/// Queues of 8.
fn with_qp(agreed: Agreed, qp_type: QpType, max_inline_data: u32) -> ScriptedPeer {
    let mut peer = ScriptedPeer::with(agreed);
    let node = &mut peer.node;
    let caps = QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 4, max_recv_sge: 4, max_inline_data };
    let init = QpInit { pd: node.pd, qp_type, send_cq: node.cq, recv_cq: node.cq, srq: None, caps, sq_sig_all: false };
    node.qpn = node.engine.create_qp(Instant::ZERO, &init).unwrap();
    peer
}

fn connected(agreed: Agreed, qp_type: QpType, max_inline_data: u32) -> ScriptedPeer {
    let mut peer = with_qp(agreed, qp_type, max_inline_data);
    let node = &mut peer.node;
    node.engine.modify_qp(node.qpn, QpTransition::ToInit { access: agreed.access }).unwrap();
    node.ready_to_receive(2, Qpn::new(PEER_QPN), &agreed);
    node.ready_to_send(&agreed);
    peer
}

/// A reliable connection with this much inline data.
pub fn rc(agreed: Agreed, max_inline_data: u32) -> ScriptedPeer {
    connected(agreed, QpType::Rc, max_inline_data)
}

/// An unreliable connection.
pub fn uc(agreed: Agreed, max_inline_data: u32) -> ScriptedPeer {
    connected(agreed, QpType::Uc, max_inline_data)
}

/// A datagram queue pair, and an address handle of the peer.
pub fn ud(agreed: Agreed, max_inline_data: u32) -> (ScriptedPeer, AhId) {
    let mut peer = with_qp(agreed, QpType::Ud, max_inline_data);
    let node = &mut peer.node;
    for transition in [
        QpTransition::ToInitDatagram { port: PORT, qkey: 0x1111 },
        QpTransition::ToRtrDatagram { path_mtu: agreed.mtu },
        QpTransition::ToRtsDatagram { sq_psn: agreed.sq_psn },
    ] {
        node.engine.modify_qp(node.qpn, transition).unwrap();
    }
    let ah = node.engine.create_ah(node.pd, &path(1, 2)).unwrap();
    (peer, ah)
}
