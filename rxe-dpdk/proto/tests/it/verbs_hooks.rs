//! The verbs as a runtime offers them: hooks below the device, and handles of queue pairs whose type is not known.

use crate::verbs_support::{End, Link, REMOTE, connect, pair, settle};
use rxe_proto::Instant;
use rxe_proto::verbs::{
    Access, Adapter, AhError, AnyQueuePair, AnyWorkRequest, CqId, Device, DeviceHooks, Engine, EngineConfig, Payload,
    PostError, ProtectionDomain, QpAttrChange, QpError, QpInit, QpInitAttr, QpState, QpTransition, QpType, Qpn,
    QueuePair, Rc, RecvWr, RtrAttr, SendOp, SrqAttr, SrqError, SrqId, SrqInit, SrqInitAttr, Transition, Uc, Ud, UdAttr,
    WcOpcode, WcStatus, WorkRequest,
};
use rxe_proto::wire::{Gid, Path, PathMtu, PortId, Psn};

/// Records every call; refuses what needs more than `places` completions, and all ports but 0.
#[derive(Default)]
struct Ledger {
    calls: Vec<String>,
    places: u32,
    groups: usize,
}

impl DeviceHooks for Ledger {
    fn before_create_qp(&mut self, engine: &mut Engine, init: &QpInit) -> Result<(), QpError> {
        let value = init.caps.max_send_wr + init.caps.max_recv_wr;
        if value > self.places {
            return Err(QpError::Limit { name: "completion queue depth", value, limit: self.places });
        }
        engine.resize_cq(init.send_cq, value as usize).map_err(|_| QpError::UnknownCq)
    }

    fn qp_created(&mut self, _engine: &mut Engine, qpn: Qpn, init: &QpInit) {
        self.calls.push(format!("created {} {qpn}", init.qp_type));
    }

    fn before_modify_qp(&mut self, _qpn: Qpn, transition: &QpTransition) -> Result<(), QpError> {
        match transition {
            QpTransition::ToInitDatagram { port, .. } if port.0 > 0 => {
                Err(QpError::Limit { name: "port_num", value: port.0.into(), limit: 0 })
            }
            _ => Ok(()),
        }
    }

    fn before_modify_attributes(&mut self, _qpn: Qpn, change: &QpAttrChange) -> Result<(), QpError> {
        match change.port {
            Some(PortId(0)) | None => Ok(()),
            Some(port) => Err(QpError::Limit { name: "port_num", value: port.0.into(), limit: 0 }),
        }
    }

    fn before_destroy_qp(&mut self, qpn: Qpn) -> Result<(), QpError> {
        if self.calls.iter().any(|call| call.ends_with(&format!(" {qpn}"))) {
            Ok(())
        } else {
            Err(QpError::Unknown(qpn))
        }
    }

    fn qp_destroyed(&mut self, qpn: Qpn) {
        self.calls.push(format!("destroyed {qpn}"));
    }

    fn before_create_srq(&mut self, _engine: &mut Engine, init: &SrqInit) -> Result<(), SrqError> {
        if init.max_wr > self.places { Err(SrqError::TooMany(0)) } else { Ok(()) }
    }

    fn srq_created(&mut self, srq: SrqId, _init: &SrqInit) {
        self.calls.push(format!("created {srq:?}"));
    }

    fn before_modify_srq(&mut self, _engine: &mut Engine, _srq: SrqId, attr: &SrqAttr) -> Result<(), SrqError> {
        if attr.max_wr.is_some_and(|max_wr| max_wr > self.places) { Err(SrqError::TooMany(0)) } else { Ok(()) }
    }

    fn srq_modified(&mut self, srq: SrqId, attr: &SrqAttr) {
        self.calls.push(format!("modified {srq:?} {:?}", attr.max_wr));
    }

    fn srq_destroyed(&mut self, srq: SrqId) {
        self.calls.push(format!("destroyed {srq:?}"));
    }

    fn before_create_ah(&mut self, path: &Path) -> Result<(), AhError> {
        if path.port.0 > 0 { Err(AhError::UnknownPort(path.port)) } else { Ok(()) }
    }

    fn multicast_changed(&mut self, engine: &Engine) {
        self.groups = engine.multicast_groups().count();
    }
}

fn engine() -> (Engine, CqId) {
    let mut engine = Engine::new(EngineConfig::default());
    let cq = engine.create_cq(1).unwrap();
    (engine, cq)
}

#[test]
fn hooks_can_refuse_objects_and_see_those_that_are_created_and_destroyed() {
    let (mut engine, cq) = engine();
    let mut ledger = Ledger { places: 16, ..Ledger::default() };
    let mut dev = Device::with_hooks(&mut engine, Instant::ZERO, &mut ledger);
    let pd = dev.alloc_pd();
    let attr = QpInitAttr::new(cq.into());
    let refused = dev.create_qp::<Rc>(pd, attr);
    assert_eq!(refused, Err(QpError::Limit { name: "completion queue depth", value: 32, limit: 16 }));
    assert_eq!(dev.engine().qp_count(), 0, "refused before it was created");

    let mut attr = attr;
    (attr.caps.max_send_wr, attr.caps.max_recv_wr) = (8, 8);
    let qp = dev.create_qp_in_init::<Rc>(pd, attr, Access::empty()).unwrap();
    assert_eq!(dev.query_qp(qp).unwrap().state, QpState::Init);
    let access = Some(Access::REMOTE_READ);
    let change = |port| QpAttrChange { access, port: Some(PortId(port)), ..QpAttrChange::default() };
    assert_eq!(dev.modify_qp_attr(qp, &change(1)), Err(QpError::Limit { name: "port_num", value: 1, limit: 0 }));
    assert_eq!(dev.query_qp(qp).unwrap().access, Access::empty(), "refused before it was changed");
    dev.modify_qp_attr(qp, &change(0)).unwrap();
    assert_eq!(dev.query_qp(qp).unwrap().access, Access::REMOTE_READ);
    for wr_id in 0..8 {
        dev.post_recv(qp, RecvWr { wr_id, sges: &[] }).unwrap();
    }
    dev.destroy_qp(qp).unwrap();
    assert_eq!(dev.destroy_qp(AnyQueuePair::from(Qpn::new(0x77))), Err(QpError::Unknown(Qpn::new(0x77))));

    assert_eq!(dev.create_srq(pd, SrqInitAttr { max_wr: 17, ..SrqInitAttr::default() }), Err(SrqError::TooMany(0)));
    let srq = dev.create_srq(pd, SrqInitAttr::default()).unwrap();
    dev.post_srq_recv(srq, RecvWr { wr_id: 0, sges: &[] }).unwrap();
    assert_eq!(dev.modify_srq(srq, SrqAttr::size(17)), Err(SrqError::TooMany(0)));
    assert_eq!(dev.query_srq(srq).unwrap().max_wr, SrqInitAttr::default().max_wr, "refused before it was changed");
    dev.modify_srq(srq, SrqAttr::size(8)).unwrap();
    dev.destroy_srq(srq).unwrap();

    let path = |port| Path { port: PortId(port), ..Path::default() };
    assert_eq!(dev.create_ah(pd, &path(3)), Err(AhError::UnknownPort(PortId(3))));
    dev.create_ah(pd, &path(0)).unwrap();
    assert_eq!(
        ledger.calls,
        [
            format!("created RC {}", qp.qpn()),
            format!("destroyed {}", qp.qpn()),
            format!("created {:?}", srq.id()),
            format!("modified {:?} Some(8)", srq.id()),
            format!("destroyed {:?}", srq.id()),
        ]
    );
}

#[test]
fn hooks_hear_of_every_change_of_multicast_groups() {
    let (mut engine, cq) = engine();
    let mut ledger = Ledger { places: 64, ..Ledger::default() };
    let group = |last| Gid::from(std::net::Ipv4Addr::new(239, 0, 0, last));
    let mut step = |act: &mut dyn FnMut(&mut Device<'_>)| {
        act(&mut Device::with_hooks(&mut engine, Instant::ZERO, &mut ledger));
        ledger.groups
    };
    let mut made: Option<(ProtectionDomain, QueuePair<Ud>)> = None;
    let attr = UdAttr { port: PortId(0), qkey: 5, path_mtu: PathMtu::Mtu1024, sq_psn: Psn::new(0) };
    step(&mut |dev| {
        let pd = dev.alloc_pd();
        let qp = dev.create_qp::<Ud>(pd, QpInitAttr::new(cq.into())).unwrap();
        let wrong = qp.open(dev, UdAttr { port: PortId(1), ..attr });
        assert_eq!(wrong, Err(QpError::Limit { name: "port_num", value: 1, limit: 0 }));
        qp.open(dev, attr).unwrap();
        made = Some((pd, qp));
    });
    let (pd, qp) = made.unwrap();
    assert_eq!(step(&mut |dev| dev.attach_mcast(qp, group(1)).unwrap()), 1);
    assert_eq!(step(&mut |dev| dev.attach_mcast(qp, group(2)).unwrap()), 2);
    assert_eq!(step(&mut |dev| dev.detach_mcast(qp, group(1)).unwrap()), 1);
    assert_eq!(step(&mut |dev| dev.modify_qp(qp, Transition::to_reset()).unwrap()), 0);
    step(&mut |dev| qp.open(dev, attr).unwrap());
    assert_eq!(step(&mut |dev| dev.attach_mcast(qp, group(1)).unwrap()), 1);
    assert_eq!(step(&mut |dev| dev.destroy_qp(qp).unwrap()), 0);
    step(&mut |dev| dev.dealloc_pd(pd).unwrap());
}

#[test]
fn an_untyped_handle_takes_what_its_queue_pair_takes() {
    let mut link = Link::new(None);
    let ([a, b], [qp, peer]) = pair::<Uc>(&mut link);
    a.write(0, b"untyped!");
    let any = AnyQueuePair::from(qp);
    assert_eq!((any.qpn(), format!("{any:?}")), (qp.qpn(), format!("QueuePair<any service>({})", qp.qpn())));
    let mut dev = link.device(0);
    assert_eq!(any.downcast::<Uc>(&dev), Ok(qp));
    assert_eq!(any.downcast::<Rc>(&dev), Err(QpError::WrongType(QpType::Uc)));
    assert_eq!(dev.query_qp(any).unwrap().qp_type, QpType::Uc);
    // A request that the typed handle cannot express is refused when it is posted.
    let buffer = [a.sge(0, 8)];
    let read = AnyWorkRequest::new(SendOp::Read { remote: Default::default() }, &buffer);
    assert_eq!(dev.post_send(any, read), Err(PostError::Opcode(QpType::Uc)));
    link.device(1).post_recv(AnyQueuePair::from(peer), RecvWr { wr_id: 2, sges: &[b.sge(0, 8)] }).unwrap();
    link.device(0).post_send(any, WorkRequest::<Rc>::send(&buffer).wr_id(1).signaled().into()).unwrap();
    settle(&mut link);
    assert_eq!(b.read(0, 8), b"untyped!");
    let received = b.completions(&mut link);
    assert_eq!((received[0].wr_id, received[0].qp()), (2, AnyQueuePair::from(peer)));

    let mut dev = link.device(0);
    dev.modify_qp(any, QpTransition::ToError.into()).unwrap();
    let ud = dev.modify_qp(any, Transition::to_reset()).and_then(|()| dev.set_qp_type::<Ud>(any)).unwrap();
    assert_eq!(dev.query_qp(ud).unwrap().qp_type, QpType::Ud);
    dev.destroy_qp(any).unwrap();
    assert_eq!(dev.query_qp(ud).map(|_| ()), Err(QpError::Unknown(qp.qpn())));
}

#[test]
fn a_queue_pair_detects_the_type_of_a_peer_that_does_not_announce_it() {
    let mut link = Link::new(None);
    let (a, b) = (End::new(&mut link, 0), End::new(&mut link, 1));
    // One end is UC, the other assumes RC.
    let (client, server): (QueuePair<Uc>, QueuePair<Rc>) = (a.qp(&mut link), b.qp(&mut link));
    let unconnected = link.device(1).detect_peer_type(server, 5, PathMtu::Mtu1024);
    assert_eq!(unconnected, Err(QpError::NoPath));
    for (end, dest_qpn) in [(0, server.qpn()), (1, client.qpn())] {
        let rtr = RtrAttr { path: Link::path(end), dest_qpn, ..RtrAttr::default() };
        match end {
            0 => client.connect(&mut link.device(0), REMOTE, rtr, Default::default()).unwrap(),
            _ => server.connect(&mut link.device(1), REMOTE, rtr, Default::default()).unwrap(),
        }
    }
    let mut dev = link.device(1);
    let detected = dev.detect_peer_type(server, 5, PathMtu::Mtu1024).unwrap();
    dev.post_recv(detected, RecvWr { wr_id: 1, sges: &[] }).unwrap();
    assert_eq!(detected.downcast::<Rc>(&dev), Ok(server), "nothing came yet");
    link.device(0).post_send(client, WorkRequest::send(Payload::EMPTY)).unwrap();
    settle(&mut link);
    assert_eq!(b.outcomes(&mut link), [(1, WcOpcode::Recv, WcStatus::Success)]);
    let dev: Adapter<'_> = link.device(1);
    assert_eq!(detected.downcast::<Rc>(&dev), Err(QpError::WrongType(QpType::Uc)));
    assert!(detected.downcast::<Uc>(&dev).is_ok());
}

#[test]
fn keep_alive_needs_a_connection() {
    let mut link = Link::new(None);
    let (a, b) = (End::new(&mut link, 0), End::new(&mut link, 1));
    let qps: [QueuePair<Rc>; 2] = [a.qp(&mut link), b.qp(&mut link)];
    let settings = link.device(0).query_device().keep_alive;
    let early = link.device(0).set_keep_alive(qps[0], settings);
    assert_eq!(early, Err(QpError::Transition { from: QpState::Reset, to: QpState::Rts }));
    connect(&mut link, qps);
    link.device(0).set_keep_alive(qps[0], settings).unwrap();
}
