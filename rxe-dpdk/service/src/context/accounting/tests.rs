use std::collections::HashSet;
use std::sync::mpsc::{self, Receiver};

use rxe_proto::Instant;
use rxe_proto::verbs::{
    Access, CompletionQueue, Device, EngineConfig, MulticastError, QpCaps, QpInitAttr, QueuePair, Rc, RecvWr,
    SharedReceiveQueue, SrqInitAttr, Transition, Uc, Ud, UdAttr, WcStatus,
};
use rxe_proto::wire::{MacAddr, PathMtu, Psn};

use super::*;

/// A worker's state for its only service.
struct TestBed {
    engine: Engine,
    cq: ServiceCq,
    objects: Objects,
    latencies: ServiceLatencies,
    ports: Vec<LocalPort>,
    outbox: mpsc::Sender<ToControl>,
    reported: Receiver<ToControl>,
}

impl TestBed {
    fn new(max_cqe: u32) -> TestBed {
        let mut engine = Engine::new(EngineConfig { max_cqe, ..EngineConfig::default() });
        let cq = ServiceCq::new(engine.create_cq(1).unwrap());
        let (outbox, reported) = mpsc::channel();
        let port = LocalPort {
            id: PortId(0),
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            vlan: None,
            addresses: vec![[10, 0, 0, 1].into()],
            restrictions: crate::Restrictions::default(),
            mtu: 1500,
            path_mtu: PathMtu::Mtu1024,
        };
        let latencies = ServiceLatencies::new("one,other");
        TestBed { engine, cq, objects: Objects::default(), latencies, ports: vec![port], outbox, reported }
    }

    fn attr(&self) -> QpInitAttr {
        QpInitAttr::new(self.cq.cq.into()).with_caps(CAPS)
    }

    /// Runs `act` with the device of a service.
    fn on<R>(&mut self, service: usize, act: impl FnOnce(&mut Device<'_>) -> R) -> R {
        self.with(service, |accounting, engine| act(&mut Device::with_hooks(engine, Instant::ZERO, accounting)))
    }

    fn with<R>(&mut self, service: usize, act: impl FnOnce(&mut Accounting<'_>, &mut Engine) -> R) -> R {
        let mut accounting = Accounting {
            worker: 3,
            service,
            cq: &mut self.cq,
            objects: &mut self.objects,
            latencies: &self.latencies,
            ports: &self.ports,
            outbox: &self.outbox,
        };
        act(&mut accounting, &mut self.engine)
    }

    fn groups_reported(&self) -> Vec<(Gid, bool)> {
        let group = |message| match message {
            ToControl::GroupMember { worker: 3, port: PortId(0), group, joined } => (group, joined),
            other => panic!("{other:?}"),
        };
        self.reported.try_iter().map(group).collect()
    }
}

const CAPS: QpCaps = QpCaps { max_send_wr: 1, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

#[test]
fn completions_of_destroyed_queue_pairs_take_no_room_from_others() {
    let mut bed = TestBed::new(1024);
    let attr = bed.attr();
    let pd = bed.on(0, |dev| dev.alloc_pd());
    let failing = |dev: &mut Device<'_>| {
        let qp: QueuePair<Rc> = dev.create_qp_in_init(pd, attr, Access::empty()).unwrap();
        for wr_id in 0..CAPS.max_recv_wr.into() {
            dev.post_recv(qp, RecvWr { wr_id, sges: &[] }).unwrap();
        }
        dev.modify_qp(qp, Transition::to_error()).unwrap();
        qp
    };
    for _ in 0..50 {
        let (kept, last) = bed.on(0, |dev| {
            let made = [failing(dev), failing(dev)];
            // The first one is destroyed with unread completions; the second one's must all have found room.
            dev.destroy_qp(made[0]).unwrap();
            let last = failing(dev);
            assert_eq!(dev.query_qp(last).unwrap().recv_queued, 0);
            (made[1], last)
        });
        let mut completions = Vec::new();
        let cq = bed.cq.cq;
        assert_eq!(bed.engine.poll_cq(cq, &mut completions, 1000), 3 * CAPS.max_recv_wr as usize);
        assert!(completions.iter().all(|wc| wc.status == WcStatus::WrFlushErr));
        bed.cq.drained();
        for qp in [kept, last] {
            bed.on(0, |dev| dev.destroy_qp(qp)).unwrap();
        }
    }
    bed.cq.drained();
    assert_eq!(bed.cq.depth, 1, "all room was released");
}

#[test]
fn times_of_a_queue_pair_are_counted_under_its_name() {
    let mut bed = TestBed::new(64);
    let attr = bed.attr();
    // Beside the bed itself.
    let users = |bed: &TestBed| {
        ["one", "other"]
            .map(|name| bed.latencies.of(Some(name)).map_or(0, |latencies| Arc::strong_count(latencies) - 1))
    };
    let pd = bed.on(0, |dev| dev.alloc_pd());
    let qp: QueuePair<Rc> = bed.on(0, |dev| dev.create_qp_in_init(pd, attr, Access::empty())).unwrap();
    assert_eq!(users(&bed), [1, 0], "without a name they are those of the first");
    bed.with(0, |accounting, engine| accounting.set_name(engine, qp.qpn(), "other"));
    assert_eq!(users(&bed), [0, 1]);
    bed.on(0, |dev| dev.destroy_qp(qp)).unwrap();
    assert_eq!(users(&bed), [0, 0]);
}

#[test]
fn errors_name_the_limit_of_the_completion_queue() {
    let mut bed = TestBed::new(64);
    let attr = bed.attr();
    let srq_attr = SrqInitAttr { max_wr: 32, ..SrqInitAttr::default() };
    let pd = bed.on(0, |dev| dev.alloc_pd());
    bed.on(0, |dev| {
        let srq = dev.create_srq(pd, srq_attr).unwrap();
        // 1 + 32 are taken. With a shared receive queue, each takes its send queue and one receive.
        let shared = attr.with_srq(srq);
        let made: Vec<QueuePair<Uc>> = std::iter::from_fn(|| dev.create_qp(pd, shared).ok()).collect();
        assert_eq!(made.len(), 15);
        let too_deep = QpError::Limit { name: "completion queue depth", value: 65, limit: 64 };
        assert_eq!(dev.create_qp::<Uc>(pd, shared), Err(too_deep));
        let too_deep = SrqError::Limit { name: "completion queue depth", value: 95, limit: 64 };
        assert_eq!(dev.create_srq(pd, srq_attr), Err(too_deep));
        let greedy = QpCaps { max_send_wr: u32::MAX, max_recv_wr: u32::MAX, ..CAPS };
        assert!(dev.create_qp::<Rc>(pd, attr.with_caps(greedy)).is_err());
        for qp in made {
            dev.destroy_qp(qp).unwrap();
        }
        dev.destroy_srq(srq).unwrap();
        assert!(dev.create_qp::<Uc>(pd, attr).is_err(), "their completions may still wait");
    });
    bed.cq.drained();
    assert_eq!(bed.cq.depth, 1);
    assert!(bed.on(0, |dev| dev.create_qp::<Uc>(pd, attr)).is_ok());
}

#[test]
fn a_resized_shared_receive_queue_takes_and_gives_back_room() {
    let mut bed = TestBed::new(64);
    let srq_attr = SrqInitAttr { max_wr: 32, ..SrqInitAttr::default() };
    let srq = bed.on(0, |dev| {
        let pd = dev.alloc_pd();
        dev.create_srq(pd, srq_attr).unwrap()
    });
    bed.on(0, |dev| dev.modify_srq(srq, SrqAttr::size(48))).unwrap();
    assert_eq!(bed.cq.depth, 1 + 48);
    let too_deep = SrqError::Limit { name: "completion queue depth", value: 65, limit: 64 };
    assert_eq!(bed.on(0, |dev| dev.modify_srq(srq, SrqAttr::size(64))), Err(too_deep));
    bed.on(0, |dev| dev.modify_srq(srq, SrqAttr::limit(8))).unwrap();
    bed.on(0, |dev| dev.modify_srq(srq, SrqAttr::size(8))).unwrap();
    assert_eq!(bed.cq.depth, 1 + 48, "completions of 48 receives may still wait");
    bed.cq.drained();
    assert_eq!(bed.cq.depth, 1 + 8);
    bed.on(0, |dev| dev.destroy_srq(srq)).unwrap();
    bed.cq.drained();
    assert_eq!(bed.cq.depth, 1);
}

#[test]
fn refused_objects_leave_nothing_behind() {
    let mut bed = TestBed::new(64);
    let attr = bed.attr();
    let foreign = bed.engine.create_cq(64).unwrap();
    bed.on(0, |dev| {
        let pd = dev.alloc_pd();
        let unknown = attr.with_srq(SharedReceiveQueue::from(SrqId(9)));
        assert_eq!(dev.create_qp_in_init::<Rc>(pd, unknown, Access::empty()), Err(QpError::UnknownSrq));
        let foreign = QpInitAttr { send_cq: CompletionQueue::from(foreign), ..attr };
        assert_eq!(dev.create_qp::<Rc>(pd, foreign), Err(QpError::UnknownCq), "the queue of another service");
        assert_eq!(dev.engine().qp_count(), 0);
        dev.dealloc_pd(pd).unwrap();
    });
    assert_eq!(bed.cq.depth, 1);
}

fn open(dev: &mut Device<'_>, qp: QueuePair<Ud>, port: u16) -> Result<(), QpError> {
    qp.open(dev, UdAttr { port: PortId(port), qkey: 0, path_mtu: PathMtu::Mtu1024, sq_psn: Psn::new(0) })
}

#[test]
fn ports_that_do_not_exist_are_refused() {
    let mut bed = TestBed::new(64);
    let attr = bed.attr();
    bed.on(0, |dev| {
        let pd = dev.alloc_pd();
        let qp = dev.create_qp::<Ud>(pd, attr).unwrap();
        assert_eq!(open(dev, qp, 1), Err(QpError::Limit { name: "port_num", value: 1, limit: 0 }));
        let path = Path { port: PortId(1), ..Path::default() };
        assert_eq!(dev.create_ah(pd, &path), Err(AhError::UnknownPort(PortId(1))));
        let refused = QpError::Limit { name: "port_num", value: 1, limit: 0 };
        let port = QpAttrChange { port: Some(PortId(1)), ..QpAttrChange::default() };
        assert_eq!(dev.modify_qp_attr(qp, &port), Err(refused));
        let path = QpAttrChange { path: Some(path), ..QpAttrChange::default() };
        assert_eq!(dev.modify_qp_attr(qp, &path), Err(refused));
        assert_eq!(dev.modify_qp_with(qp, Transition::to_init_datagram(PortId(0), 0), &port), Err(refused));
    });
}

#[test]
fn first_and_last_members_are_reported_to_control() {
    let mut bed = TestBed::new(1024);
    let attr = bed.attr();
    let groups = [[239, 0, 0, 1], [239, 0, 0, 2]].map(|ip| Gid::from(std::net::Ipv4Addr::from(ip)));
    let made = bed.on(0, |dev| {
        let pd = dev.alloc_pd();
        let made: [QueuePair<Ud>; 2] = [(); 2].map(|()| dev.create_qp(pd, attr).unwrap());
        for qp in made {
            open(dev, qp, 0).unwrap();
        }
        for (qp, group) in [(0, 0), (1, 0), (1, 1)] {
            dev.attach_mcast(made[qp], groups[group]).unwrap();
        }
        dev.detach_mcast(made[0], groups[0]).unwrap();
        assert_eq!(dev.detach_mcast(made[0], groups[0]), Err(MulticastError::NotAttached));
        made
    });
    assert_eq!(bed.groups_reported(), [(groups[0], true), (groups[1], true)]);
    bed.on(0, |dev| dev.destroy_qp(made[1])).unwrap();
    let left: HashSet<(Gid, bool)> = bed.groups_reported().into_iter().collect();
    assert_eq!(left, HashSet::from(groups.map(|group| (group, false))));
}

#[test]
fn objects_find_their_service() {
    let mut bed = TestBed::new(1024);
    let attr = bed.attr();
    let (srq, qp) = bed.on(5, |dev| {
        let pd = dev.alloc_pd();
        let srq = dev.create_srq(pd, SrqInitAttr { max_wr: 1, ..SrqInitAttr::default() }).unwrap();
        (srq, dev.create_qp::<Uc>(pd, attr).unwrap())
    });
    let owners = |bed: &TestBed| (bed.objects.owner_of_srq(srq.id()), bed.objects.owner_of_qp(qp.qpn()));
    assert_eq!(owners(&bed), (Some(5), Some(5)));
    bed.on(0, |dev| {
        dev.destroy_qp(qp).unwrap();
        assert_eq!(dev.destroy_qp(qp), Err(QpError::Unknown(qp.qpn())));
        dev.destroy_srq(srq).unwrap();
    });
    assert_eq!(owners(&bed), (None, None));
}
