//! A service with queue pairs of its own, which reports its events to the test: on each worker a UC queue pair with a shared
//! receive queue, and a UD queue pair in two multicast groups.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;
use std::sync::mpsc::Sender;

use rxe_dpdk::rxe_proto::verbs::{
    Access, AddressHandle, AnyQueuePair, AsyncEvent, Device, Memory, MemoryRegion, MulticastError, Payload, PostError,
    QpCaps, QpError, QpState, QpType, Qpn, QueuePair, RecvWr, RemoteAddr, RtrAttr, RtsAttr, SendFlags, SendOp, SendWr,
    Sge, SharedReceiveQueue, SrqAttr, SrqError, SrqInitAttr, Transition, Uc, Ud, UdAttr, WcOpcode, WcStatus,
    WorkCompletion, WorkRequest,
};
use rxe_dpdk::rxe_proto::wire::{Gid, MacAddr, Path, PathMtu, PortId, Psn};
use rxe_dpdk::service::{Context, Listen, Service, ServiceFactory};

pub const OUR_MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0x31]);
pub const PEER_MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0x32]);
pub const OURS: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
pub const PEERS: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
pub const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
pub const GROUP6: &str = "ff15::7";
pub const QKEY: u32 = 0x0123_4567;
pub const MTU: PathMtu = PathMtu::Mtu1024;

/// Receives of the shared receive queue, and its limit.
pub const SHARED: u32 = 4;
pub const LOW: u32 = 3;
/// Bytes of one receive.
pub const SLOT: usize = 256;
/// Offset of the region part that the peer WRITEs.
pub const WINDOW: usize = 4096;
pub const CAPS: QpCaps =
    QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 256 };

/// Bytes of the global route header in front of every received datagram.
pub const GRH: usize = 40;

/// A report of an instance of the service to the test.
#[derive(Debug)]
pub enum Report {
    Ready { worker: usize, uc: Qpn, sq_psn: Psn, ud: Qpn, window: RemoteAddr },
    Datagram { worker: usize, bytes: Vec<u8> },
    Written { worker: usize, bytes: Vec<u8> },
    Event { worker: usize, event: AsyncEvent },
}

pub struct TestService {
    /// The peer's UC queue pairs, by worker.
    pub uc: Vec<Qpn>,
    pub reports: Mutex<Sender<Report>>,
}

impl ServiceFactory for TestService {
    fn name(&self) -> &'static str {
        "test"
    }

    fn listen(&self) -> Vec<Listen> {
        Vec::new()
    }

    fn create(&self, worker: usize) -> Box<dyn Service> {
        Box::new(Instance { peer: self.uc[worker], reports: self.reports.lock().unwrap().clone(), made: None })
    }
}

/// The service on one worker.
struct Instance {
    peer: Qpn,
    reports: Sender<Report>,
    made: Option<Made>,
}

struct Made {
    memory: Memory,
    region: MemoryRegion,
    srq: SharedReceiveQueue,
    uc: QueuePair<Uc>,
    ud: QueuePair<Ud>,
    ah: AddressHandle,
}

impl Made {
    fn sge(&self, slot: u64) -> Sge {
        Sge { addr: self.region.addr() + slot * SLOT as u64, length: SLOT as u32, lkey: self.region.lkey() }
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes).unwrap();
        bytes
    }
}

/// The path from us to the peer.
fn path_to_peer(cx: &Context<'_>) -> Path {
    let port = cx.port(PortId(0)).unwrap();
    assert_eq!((port.mac, port.mtu, port.path_mtu, port.vlan), (OUR_MAC, 1500, MTU, None));
    assert_eq!(port.addresses[0], IpAddr::V4(OURS));
    assert_eq!(cx.ports().len(), 1);
    Path {
        port: port.id,
        src_mac: port.mac,
        dst_mac: PEER_MAC,
        vlan: port.vlan,
        src: port.gids().next().unwrap(),
        dst: PEERS.into(),
        udp_src_port: 0xC123,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
    }
}

pub fn groups() -> [Gid; 2] {
    [GROUP.into(), GROUP6.parse::<std::net::Ipv6Addr>().unwrap().into()]
}

impl Service for Instance {
    fn start(&mut self, cx: &mut Context<'_>) {
        let memory = cx.alloc_memory(8192).unwrap();
        let path = path_to_peer(cx);
        let (attr, sq_psn, datagram_psn) = (cx.qp_attr().with_caps(CAPS), cx.random_psn(), cx.random_psn());
        let mut dev = cx.device();
        let pd = dev.alloc_pd();
        let region = dev.reg_mr(pd, memory.clone(), Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        assert_eq!(dev.engine().keys().region(region.lkey()).map(|known| known.addr()), Some(region.addr()));

        let srq = dev.create_srq(pd, SrqInitAttr { max_wr: SHARED, max_sge: 1, srq_limit: LOW }).unwrap();
        let uc: QueuePair<Uc> = dev.create_qp_in_init(pd, attr.with_srq(srq), Access::REMOTE_WRITE).unwrap();
        assert_eq!(dev.destroy_srq(srq), Err(SrqError::InUse(1)));
        let rtr = RtrAttr {
            path: path.clone(),
            path_mtu: MTU,
            dest_qpn: self.peer,
            rq_psn: Psn::default(),
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
        };
        let nowhere = RtrAttr { path: Path { port: PortId(7), ..path.clone() }, ..rtr.clone() };
        assert!(dev.modify_qp(uc, Transition::to_rtr(nowhere)).is_err());
        dev.modify_qp(uc, Transition::to_rtr(rtr)).unwrap();
        let rts = RtsAttr { sq_psn, timeout: 0, retry_cnt: 0, rnr_retry: 0, max_rd_atomic: 0 };
        dev.modify_qp(uc, Transition::to_rts(rts)).unwrap();

        let ud: QueuePair<Ud> = dev.create_qp(pd, attr).unwrap();
        let attr = UdAttr { port: PortId(0), qkey: QKEY, path_mtu: MTU, sq_psn: datagram_psn };
        assert!(ud.open(&mut dev, UdAttr { port: PortId(7), ..attr }).is_err());
        ud.open(&mut dev, attr).unwrap();
        let info = dev.query_qp(ud).unwrap();
        assert_eq!((info.qp_type, info.state, info.qkey), (QpType::Ud, QpState::Rts, QKEY));
        assert!(dev.create_ah(pd, &Path { port: PortId(7), ..path.clone() }).is_err());
        let ah = dev.create_ah(pd, &path).unwrap();
        for group in groups() {
            dev.attach_mcast(ud, group).unwrap();
        }
        assert_eq!(dev.attach_mcast(ud, OURS.into()), Err(MulticastError::NotMulticast));

        let made = Made { memory, region, srq, uc, ud, ah };
        let wr = |slot: u64| (slot, [made.sge(slot)]);
        for (wr_id, sges) in (0..u64::from(SHARED)).map(wr) {
            dev.post_srq_recv(srq, RecvWr { wr_id, sges: &sges }).unwrap();
        }
        assert_eq!(dev.query_srq(srq).map(|info| info.queued), Ok(SHARED));
        let (wr_id, sges) = wr(0);
        assert_eq!(dev.post_recv(uc, RecvWr { wr_id, sges: &sges }), Err(PostError::SharedReceiveQueue));
        for (wr_id, sges) in (4..4 + u64::from(CAPS.max_recv_wr)).map(wr) {
            dev.post_recv(ud, RecvWr { wr_id, sges: &sges }).unwrap();
        }
        let window = RemoteAddr { addr: made.region.addr() + WINDOW as u64, rkey: made.region.rkey() };
        self.made = Some(made);
        self.report(Report::Ready { worker: cx.worker(), uc: uc.qpn(), sq_psn, ud: ud.qpn(), window });
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        let worker = cx.worker();
        let made = self.made.as_ref().unwrap();
        // Flushed completions follow the error events, on which the queue pair is destroyed.
        assert_eq!(wc.status, WcStatus::Success);
        let offset = wc.wr_id as usize * SLOT;
        match wc.opcode {
            // The next limit event of the shared receive queue posts it again.
            WcOpcode::Recv if wc.qpn == made.uc.qpn() => {
                let bytes = made.bytes(offset, wc.byte_len as usize);
                let payload = Payload::Inline(&bytes);
                let answer = match wc.imm {
                    Some(imm) => WorkRequest::send_with_imm(payload, imm + 1),
                    None => WorkRequest::send(payload),
                };
                cx.device().post_send(made.uc, answer).unwrap();
            }
            WcOpcode::RecvRdmaWithImm => {
                let bytes = made.bytes(WINDOW, wc.byte_len as usize);
                self.report(Report::Written { worker, bytes });
            }
            WcOpcode::Recv => {
                assert_eq!(wc.qpn, made.ud.qpn());
                let bytes = made.bytes(offset + GRH, wc.byte_len as usize - GRH);
                cx.device().post_recv(made.ud, RecvWr { wr_id: wc.wr_id, sges: &[made.sge(wc.wr_id)] }).unwrap();
                self.command(&mut cx.device(), wc, &bytes);
                self.report(Report::Datagram { worker, bytes });
            }
            // No send is signalled.
            opcode => panic!("{opcode:?}"),
        }
    }

    fn async_event(&mut self, cx: &mut Context<'_>, event: &AsyncEvent) {
        let made = self.made.as_ref().unwrap();
        let mut dev = cx.device();
        match event {
            AsyncEvent::SrqLimitReached { srq } => {
                assert_eq!(*srq, made.srq.id());
                // Messages arrive one at a time, so any slots may be posted.
                for slot in u64::from(dev.query_srq(made.srq).unwrap().queued)..u64::from(SHARED) {
                    dev.post_srq_recv(made.srq, RecvWr { wr_id: slot, sges: &[made.sge(slot)] }).unwrap();
                }
                dev.modify_srq(made.srq, SrqAttr::limit(LOW)).unwrap();
            }
            AsyncEvent::LastWqeReached { qpn } => {
                assert_eq!(*qpn, made.uc.qpn());
                dev.destroy_qp(made.uc).unwrap();
                dev.destroy_srq(made.srq).unwrap();
                assert_eq!(dev.query_qp(made.uc).map(|_| ()), Err(QpError::Unknown(*qpn)));
            }
            AsyncEvent::QpError { .. } | AsyncEvent::CommunicationEstablished { .. } | AsyncEvent::CqError { .. } => {}
            AsyncEvent::SendQueueDrained { qpn } => {
                dev.modify_qp(AnyQueuePair::from(*qpn), Transition::resume()).unwrap();
            }
        }
        self.report(Report::Event { worker: cx.worker(), event: *event });
    }
}

impl Instance {
    /// Executes a command of the peer.
    fn command(&self, dev: &mut Device<'_>, wc: &WorkCompletion, command: &[u8]) {
        let made = self.made.as_ref().unwrap();
        let answer = |dev: &mut Device<'_>| {
            let (payload, sender) = (Payload::Inline(b"pong"), wc.src_qpn.unwrap());
            let datagram = match wc.imm {
                Some(imm) => WorkRequest::datagram_with_imm(payload, made.ah, sender, QKEY, imm),
                None => WorkRequest::datagram(payload, made.ah, sender, QKEY),
            };
            dev.post_send(made.ud, datagram).unwrap();
        };
        match command {
            b"ping" => answer(dev),
            b"drain" => {
                answer(dev);
                dev.modify_qp(made.uc, Transition::to_sqd()).unwrap();
            }
            b"leave" => dev.detach_mcast(made.ud, groups()[0]).unwrap(),
            // Leaves the groups implicitly.
            b"destroy" => {
                dev.destroy_ah(made.ah).unwrap();
                dev.destroy_qp(made.ud).unwrap();
            }
            _ => {}
        }
    }

    fn report(&self, report: Report) {
        self.reports.send(report).unwrap();
    }
}

pub fn wr(op: SendOp) -> SendWr<'static> {
    SendWr { wr_id: 0, op, sges: &[], flags: SendFlags::empty() }
}
