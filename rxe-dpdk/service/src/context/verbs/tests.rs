use std::collections::HashSet;
use std::sync::mpsc::{self, Receiver};

use rxe_proto::Instant;
use rxe_proto::mem::HeapAllocator;
use rxe_proto::transport::{Engine, EngineConfig, WcStatus};
use rxe_proto::wire::MacAddr;

use super::super::ServiceTimers;
use super::*;
use crate::local_port::LocalPort;
use crate::seeds::Seeds;

/// What a worker holds for its only service.
struct Bench {
    engine: Engine,
    cq: ServiceCq,
    objects: Objects,
    psns: Seeds,
    ports: Vec<LocalPort>,
    timers: ServiceTimers,
    outbox: mpsc::Sender<ToControl>,
    told: Receiver<ToControl>,
}

impl Bench {
    fn new(max_cqe: u32) -> Bench {
        let mut engine = Engine::new(EngineConfig { max_cqe, ..EngineConfig::default() });
        let cq = ServiceCq::new(engine.create_cq(1).unwrap());
        let (outbox, told) = mpsc::channel();
        let port = LocalPort {
            id: PortId(0),
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            vlan: None,
            addresses: vec![[10, 0, 0, 1].into()],
            mtu: 1500,
            path_mtu: PathMtu::Mtu1024,
        };
        Bench {
            engine,
            cq,
            objects: Objects::default(),
            psns: Seeds::new([1; 32]),
            ports: vec![port],
            timers: ServiceTimers::default(),
            outbox,
            told,
        }
    }

    fn cx(&mut self) -> Context<'_> {
        Context {
            now: Instant::ZERO,
            worker: 3,
            service: 0,
            engine: &mut self.engine,
            cq: &mut self.cq,
            objects: &mut self.objects,
            psns: &mut self.psns,
            ports: &self.ports,
            allocator: &HeapAllocator,
            regions: &[],
            outbox: &self.outbox,
            timers: &mut self.timers,
        }
    }

    fn groups_told(&self) -> Vec<(Gid, bool)> {
        let group = |message| match message {
            ToControl::GroupMember { worker: 3, port: PortId(0), group, joined } => (group, joined),
            other => panic!("{other:?}"),
        };
        self.told.try_iter().map(group).collect()
    }
}

const CAPS: QpCaps = QpCaps { max_send_wr: 1, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

#[test]
fn completions_of_who_is_gone_take_no_room_from_others() {
    let mut bench = Bench::new(1024);
    let pd = bench.cx().alloc_pd();
    for _ in 0..50 {
        let mut cx = bench.cx();
        let made = [(); 2].map(|()| {
            let qp = cx.create_qp(&QpSpec::rc(pd, CAPS, Access::empty())).unwrap();
            for wr_id in 0..CAPS.max_recv_wr.into() {
                cx.post_recv(qp, &RecvWr { wr_id, sges: &[] }).unwrap();
            }
            cx.modify_qp(qp, QpTransition::ToError).unwrap();
            qp
        });
        // The first one goes with its completions unread; the second one's must all have found room.
        cx.destroy_qp(made[0]);
        let last = cx.create_qp(&QpSpec::rc(pd, CAPS, Access::empty())).unwrap();
        for wr_id in 0..CAPS.max_recv_wr.into() {
            cx.post_recv(last, &RecvWr { wr_id, sges: &[] }).unwrap();
        }
        cx.modify_qp(last, QpTransition::ToError).unwrap();
        assert_eq!(cx.query_qp(last).unwrap().recv_queued, 0);
        let mut completions = Vec::new();
        let cq = bench.cq.cq;
        assert_eq!(bench.engine.poll_cq(cq, &mut completions, 1000), 3 * CAPS.max_recv_wr as usize);
        assert!(completions.iter().all(|wc| wc.status == WcStatus::WrFlushErr));
        bench.cq.drained();
        for qp in [made[1], last] {
            bench.cx().destroy_qp(qp);
        }
    }
    bench.cq.drained();
    assert_eq!(bench.cq.depth, 1, "all room was given back");
}

#[test]
fn the_completion_queue_has_a_limit_that_is_named() {
    let mut bench = Bench::new(64);
    let mut cx = bench.cx();
    let pd = cx.alloc_pd();
    let srq = cx.create_srq(&SrqInit { pd, max_wr: 32, max_sge: 1, limit: 0 }).unwrap();
    // 1 + 32 are taken. With a shared receive queue, each takes its send queue and one receive.
    let spec = QpSpec::uc(pd, CAPS, Access::empty()).with_srq(srq);
    let made: Vec<Qpn> = std::iter::from_fn(|| cx.create_qp(&spec).ok()).collect();
    assert_eq!(made.len(), 15);
    let too_deep = QpError::Limit { name: "completion queue depth", value: 65, limit: 64 };
    assert_eq!(cx.create_qp(&spec), Err(too_deep));
    let too_deep = SrqError::Limit { name: "completion queue depth", value: 95, limit: 64 };
    assert_eq!(cx.create_srq(&SrqInit { pd, max_wr: 32, max_sge: 1, limit: 0 }), Err(too_deep));
    let greedy = QpCaps { max_send_wr: u32::MAX, max_recv_wr: u32::MAX, ..CAPS };
    assert!(cx.create_qp(&QpSpec::rc(pd, greedy, Access::empty())).is_err());
    for qp in made {
        cx.destroy_qp(qp);
    }
    cx.destroy_srq(srq).unwrap();
    let other = QpSpec::uc(pd, CAPS, Access::empty());
    assert!(cx.create_qp(&other).is_err(), "their completions may still wait");
    bench.cq.drained();
    assert_eq!(bench.cq.depth, 1);
    assert!(bench.cx().create_qp(&other).is_ok());
}

#[test]
fn refused_objects_leave_nothing_behind() {
    let mut bench = Bench::new(64);
    let mut cx = bench.cx();
    let pd = cx.alloc_pd();
    let no_port = QpError::Limit { name: "port_num", value: 1, limit: 0 };
    assert_eq!(cx.create_qp(&QpSpec::ud(pd, CAPS, PortId(1), 0)), Err(no_port));
    let unknown = QpSpec::rc(pd, CAPS, Access::empty()).with_srq(SrqId(9));
    assert_eq!(cx.create_qp(&unknown), Err(QpError::UnknownSrq));
    assert_eq!((cx.engine.qp_count(), cx.cq.depth), (0, 1));
    assert!(cx.dealloc_pd(pd));
}

#[test]
fn control_hears_of_first_and_last_members() {
    let mut bench = Bench::new(1024);
    let mut cx = bench.cx();
    let pd = cx.alloc_pd();
    let made: Vec<Qpn> = (0..2).map(|_| cx.create_qp(&QpSpec::ud(pd, CAPS, PortId(0), 0)).unwrap()).collect();
    let groups = [[239, 0, 0, 1], [239, 0, 0, 2]].map(|ip| Gid::from(std::net::Ipv4Addr::from(ip)));
    for (qp, group) in [(0, 0), (1, 0), (1, 1)] {
        cx.attach_multicast(made[qp], groups[group]).unwrap();
    }
    cx.detach_multicast(made[0], groups[0]).unwrap();
    assert_eq!(cx.detach_multicast(made[0], groups[0]), Err(MulticastError::NotAttached));
    assert_eq!(bench.groups_told(), [(groups[0], true), (groups[1], true)]);
    bench.cx().destroy_qp(made[1]);
    let left: HashSet<(Gid, bool)> = bench.groups_told().into_iter().collect();
    assert_eq!(left, HashSet::from(groups.map(|group| (group, false))));
}

#[test]
fn objects_find_their_service() {
    let mut bench = Bench::new(1024);
    let mut cx = Context { service: 5, ..bench.cx() };
    let pd = cx.alloc_pd();
    let srq = cx.create_srq(&SrqInit { pd, max_wr: 1, max_sge: 1, limit: 0 }).unwrap();
    let qp = cx.create_qp(&QpSpec::uc(pd, CAPS, Access::empty())).unwrap();
    assert_eq!((bench.objects.owner_of_srq(srq), bench.objects.owner_of_qp(qp)), (Some(5), Some(5)));
    let mut cx = bench.cx();
    cx.destroy_qp(qp);
    cx.destroy_srq(srq).unwrap();
    assert_eq!((bench.objects.owner_of_srq(srq), bench.objects.owner_of_qp(qp)), (None, None));
}
