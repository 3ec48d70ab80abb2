//! A [`Solo`] whose queue pair is of an unreliable type.

use rxe_proto::Instant;
use rxe_proto::transport::{AhId, QpCaps, QpInit, QpTransition, QpType, Qpn};

use super::solo::{PEER_QPN, Solo};
use super::{Agreed, PORT, path};

/// Queues of 8; as much inline data as the other queue pairs of the harness have.
fn with_qp(agreed: Agreed, qp_type: QpType) -> Solo {
    let mut solo = Solo::with(agreed);
    let node = &mut solo.node;
    let caps = QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };
    let init = QpInit { pd: node.pd, qp_type, send_cq: node.cq, recv_cq: node.cq, srq: None, caps, sq_sig_all: false };
    node.qpn = node.engine.create_qp(&init).unwrap();
    solo
}

/// An unreliable connection to [`PEER_QPN`].
pub fn uc(agreed: Agreed) -> Solo {
    let mut solo = with_qp(agreed, QpType::Uc);
    let node = &mut solo.node;
    node.engine.modify_qp(Instant::ZERO, node.qpn, QpTransition::ToInit { access: agreed.access }).unwrap();
    node.ready_to_receive(2, Qpn::new(PEER_QPN), &agreed);
    node.ready_to_send(&agreed);
    solo
}

/// A datagram queue pair, and an address handle of the peer.
pub fn ud(agreed: Agreed) -> (Solo, AhId) {
    let mut solo = with_qp(agreed, QpType::Ud);
    let node = &mut solo.node;
    for transition in [
        QpTransition::ToInitDatagram { port: PORT, qkey: 0x1111 },
        QpTransition::ToRtrDatagram { path_mtu: agreed.mtu },
        QpTransition::ToRtsDatagram { sq_psn: agreed.sq_psn },
    ] {
        node.engine.modify_qp(Instant::ZERO, node.qpn, transition).unwrap();
    }
    let ah = node.engine.create_ah(node.pd, &path(1, 2)).unwrap();
    (solo, ah)
}
