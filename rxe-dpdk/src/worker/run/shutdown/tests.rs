use std::cell::Cell;
use std::net::Ipv4Addr;

use rxe_proto::mem::{Access, Memory};
use rxe_proto::transport::{EngineConfig, QpCaps, QpInit, QpTransition, QpType, Qpn, RtrAttr};
use rxe_proto::wire::{
    BthFields, BthOpcode, DEFAULT_PKEY, Frame, HeaderTemplate, MacAddr, Opcode, Path, PathMtu, PortId, Psn, classify,
};

use super::*;

/// A port that accepts every frame.
struct Fast {
    frame: Vec<u8>,
    taken: u64,
}

impl TxQueue for Fast {
    fn push(&mut self, _port: PortId, len: usize) -> Option<&mut [u8]> {
        self.taken += 1;
        self.frame.get_mut(..len)
    }
}

fn path(from: u8, to: u8) -> Path {
    Path {
        port: PortId(0),
        src_mac: MacAddr([2, 0, 0, 0, 0, from]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, to]),
        vlan: None,
        src: Ipv4Addr::new(10, 0, 0, from).into(),
        dst: Ipv4Addr::new(10, 0, 0, to).into(),
        udp_src_port: 0xC000,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
    }
}

/// An engine that owes a READ of `len` bytes.
fn reading(len: usize) -> Engine {
    let mut engine = Engine::new(EngineConfig::default());
    let cq = engine.create_cq(8).unwrap();
    let pd = engine.keys_mut().alloc_pd();
    let region = engine.keys_mut().register(pd, Memory::heap(len), 0, Access::REMOTE_READ).unwrap();
    let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init = QpInit { qp_type: QpType::Rc, pd, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: false };
    let now = Instant::ZERO;
    let qpn = engine.create_qp(now, &init).unwrap();
    engine.modify_qp(qpn, QpTransition::ToInit { access: Access::REMOTE_READ }).unwrap();
    let (path_mtu, dest_qpn, rq_psn) = (PathMtu::Mtu256, Qpn::new(0x11), Psn::new(0));
    let rtr = RtrAttr { path: path(1, 2), path_mtu, dest_qpn, rq_psn, max_dest_rd_atomic: 1, min_rnr_timer: 1 };
    engine.modify_qp(qpn, QpTransition::ToRtr(rtr)).unwrap();

    let template = HeaderTemplate::new(&path(2, 1));
    let fields = BthFields {
        opcode: BthOpcode { transport: QpType::Rc.transport(), op: Opcode::ReadRequest },
        dest_qp: qpn.get(),
        psn: rq_psn,
        solicited: false,
        ack_req: true,
        pkey: DEFAULT_PKEY,
    };
    let mut frame = vec![0; template.frame_len(fields.opcode, 0)];
    let mut packet = template.build(&mut frame, fields, 0);
    packet.reth(region.addr(), region.rkey(), len as u32);
    packet.finish();
    let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!("not a RoCE frame") };
    engine.receive(now, PortId(0), &packet);
    assert!(engine.wants_transmit());
    engine
}

/// A clock that advances by a millisecond per call.
fn ticking() -> impl Fn() -> Instant {
    let millis = Cell::new(0);
    move || {
        millis.set(millis.get() + 1);
        Instant::from_nanos(millis.get() * 1_000_000)
    }
}

#[test]
fn a_huge_read_does_not_delay_shutdown() {
    let mut engine = reading(16 << 20);
    let mut port = Fast { frame: vec![0; 2048], taken: 0 };
    transmit_rest(&mut engine, &mut port, Duration::from_millis(100), ticking());
    assert_eq!(port.taken, 100 * 64);
    assert!(engine.wants_transmit());
}

#[test]
fn outstanding_replies_are_sent_within_the_patience() {
    let mut engine = reading(1 << 20);
    let mut port = Fast { frame: vec![0; 2048], taken: 0 };
    transmit_rest(&mut engine, &mut port, Duration::from_millis(100), ticking());
    assert_eq!(port.taken, 4096);
    assert!(!engine.wants_transmit());
}
