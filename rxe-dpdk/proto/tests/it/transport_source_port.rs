//! The UDP source port: each path's own, or the only one that the host has.

use crate::harness::ops::{SEND, post};
use crate::harness::scripted_peer::{AckReq, PEER_QPN, ScriptedPeer};
use crate::harness::{Agreed, QKEY, path};
use rxe_proto::transport::{EngineConfig, QpType, Qpn, SendOp};
use rxe_proto::wire::{Frame, Opcode, classify};

/// Source ports of the frames of the last transmission, whose ICRCs [`ScriptedPeer::transmit`] has checked.
fn ports(peer: &ScriptedPeer) -> Vec<u16> {
    let port = |frame: &Vec<u8>| match classify(frame) {
        Ok(Frame::Roce(packet)) => packet.udp_src_port(),
        other => panic!("not RoCE: {other:?}"),
    };
    peer.frames.iter().map(port).collect()
}

/// Everything that a queue pair sends by itself: requests, ACKs, responses, congestion notifications, NAKs, datagrams.
fn every_port(qp_type: QpType, udp_src_port: Option<u16>) -> Vec<u16> {
    let config = EngineConfig { udp_src_port, ..EngineConfig::default() };
    let mut peer = ScriptedPeer::of(qp_type, false, Agreed::default(), config);
    if qp_type == QpType::Ud {
        let ah = peer.node.engine.create_ah(peer.node.pd, &path(1, 2)).unwrap();
        post(&mut peer, 1, SendOp::Datagram { ah, qpn: Qpn::new(PEER_QPN), qkey: QKEY, imm: None }, 8);
        peer.transmit();
        return ports(&peer);
    }
    post(&mut peer, 1, SEND, 2000);
    if qp_type == QpType::Rc {
        peer.mark_congestion(true);
        peer.rdma(Opcode::WriteOnly, 0, AckReq::Ack, 0, 1, b"w");
        peer.rdma(Opcode::ReadRequest, 1, AckReq::Ack, 0, 2000, b"");
        peer.atomic(Opcode::FetchAdd, 3, 0, 1, 0);
        peer.request(Opcode::SendOnly, 4, AckReq::Ack, b"no receive");
    }
    peer.transmit();
    ports(&peer)
}

#[test]
fn each_path_has_a_source_port_of_its_own() {
    for (qp_type, packets) in [(QpType::Rc, 8), (QpType::Uc, 2), (QpType::Ud, 1)] {
        assert_eq!(every_port(qp_type, None), vec![0xC123; packets], "{qp_type}");
    }
}

#[test]
fn a_host_with_one_socket_sends_everything_from_its_port() {
    for (qp_type, packets) in [(QpType::Rc, 8), (QpType::Uc, 2), (QpType::Ud, 1)] {
        assert_eq!(every_port(qp_type, Some(4791)), vec![4791; packets], "{qp_type}");
    }
    // The query shows the port that is used, and a change of the next hop keeps it.
    let config = EngineConfig { udp_src_port: Some(4791), ..EngineConfig::default() };
    let mut peer = ScriptedPeer::with_config(Agreed::default(), config);
    let qpn = peer.node.qpn;
    let there = peer.node.engine.query_qp(qpn).and_then(|info| info.path).unwrap();
    assert_eq!(there.udp_src_port, 4791);
    peer.node.engine.set_path(qpn, path(1, 3).dst_mac).unwrap();
    post(&mut peer, 1, SEND, 8);
    peer.transmit();
    assert_eq!(ports(&peer), [4791]);
}
