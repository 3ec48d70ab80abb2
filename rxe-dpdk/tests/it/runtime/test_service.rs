//! A service with queue pairs of its own, which reports its events to the test: on each worker a UC queue pair with a shared
//! receive queue, and a UD queue pair in two multicast groups.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;
use std::sync::mpsc::Sender;

use rxe_dpdk::rxe_proto::mem::{Access, Memory, MemoryRegion};
use rxe_dpdk::rxe_proto::transport::{
    AhId, AsyncEvent, MulticastError, PostError, QpCaps, QpState, QpTransition, QpType, Qpn, RecvWr, RemoteAddr,
    RtrAttr, RtsAttr, SendFlags, SendOp, SendWr, Sge, SrqError, SrqId, SrqInit, WcOpcode, WcStatus, WorkCompletion,
};
use rxe_dpdk::rxe_proto::wire::{Gid, MacAddr, Path, PathMtu, PortId, Psn};
use rxe_dpdk::service::{Context, Listen, QpSpec, Service, ServiceFactory};

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
    srq: SrqId,
    uc: Qpn,
    ud: Qpn,
    ah: AhId,
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
        let pd = cx.alloc_pd();
        let memory = cx.alloc_memory(8192).unwrap();
        let region = cx.register(pd, memory.clone(), Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        assert_eq!(cx.keys().region(region.lkey()).map(|known| known.addr()), Some(region.addr()));
        let path = path_to_peer(cx);

        let srq = cx.create_srq(&SrqInit { pd, max_wr: SHARED, max_sge: 1, limit: LOW }).unwrap();
        let uc = cx.create_qp(&QpSpec::uc(pd, CAPS, Access::REMOTE_WRITE).with_srq(srq)).unwrap();
        assert_eq!(cx.destroy_srq(srq), Err(SrqError::InUse(1)));
        let sq_psn = cx.random_psn();
        let rtr = RtrAttr {
            path: path.clone(),
            path_mtu: MTU,
            dest_qpn: self.peer,
            rq_psn: Psn::default(),
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
        };
        let nowhere = RtrAttr { path: Path { port: PortId(7), ..path.clone() }, ..rtr.clone() };
        assert!(cx.modify_qp(uc, QpTransition::ToRtr(nowhere)).is_err());
        cx.modify_qp(uc, QpTransition::ToRtr(rtr)).unwrap();
        let rts = RtsAttr { sq_psn, timeout: 0, retry_cnt: 0, rnr_retry: 0, max_rd_atomic: 0 };
        cx.modify_qp(uc, QpTransition::ToRts(rts)).unwrap();

        assert!(cx.create_qp(&QpSpec::ud(pd, CAPS, PortId(7), QKEY)).is_err());
        let ud = cx.create_qp(&QpSpec::ud(pd, CAPS, PortId(0), QKEY)).unwrap();
        cx.open_datagram_qp(ud, MTU).unwrap();
        let info = cx.query_qp(ud).unwrap();
        assert_eq!((info.qp_type, info.state, info.qkey), (QpType::Ud, QpState::Rts, QKEY));
        assert!(cx.create_ah(pd, &Path { port: PortId(7), ..path.clone() }).is_err());
        let ah = cx.create_ah(pd, &path).unwrap();
        for group in groups() {
            cx.attach_multicast(ud, group).unwrap();
        }
        assert_eq!(cx.attach_multicast(ud, OURS.into()), Err(MulticastError::NotMulticast));
        assert_eq!(cx.attach_multicast(uc, groups()[0]), Err(MulticastError::NotDatagram));

        let made = Made { memory, region, srq, uc, ud, ah };
        let wr = |slot: u64| (slot, [made.sge(slot)]);
        for (wr_id, sges) in (0..u64::from(SHARED)).map(wr) {
            cx.post_srq_recv(srq, &RecvWr { wr_id, sges: &sges }).unwrap();
        }
        assert_eq!(cx.srq_len(srq), Some(SHARED));
        let (wr_id, sges) = wr(0);
        assert_eq!(cx.post_recv(uc, &RecvWr { wr_id, sges: &sges }), Err(PostError::SharedReceiveQueue));
        for (wr_id, sges) in (4..4 + u64::from(CAPS.max_recv_wr)).map(wr) {
            cx.post_recv(ud, &RecvWr { wr_id, sges: &sges }).unwrap();
        }
        let window = RemoteAddr { addr: made.region.addr() + WINDOW as u64, rkey: made.region.rkey() };
        self.made = Some(made);
        self.report(Report::Ready { worker: cx.worker(), uc, sq_psn, ud, window });
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        let worker = cx.worker();
        let made = self.made.as_ref().unwrap();
        // Flushed completions follow the error events, on which the queue pair is destroyed.
        assert_eq!(wc.status, WcStatus::Success);
        let offset = wc.wr_id as usize * SLOT;
        match wc.opcode {
            // The next limit event of the shared receive queue posts it again.
            WcOpcode::Recv if wc.qpn == made.uc => {
                let bytes = made.bytes(offset, wc.byte_len as usize);
                let op = SendOp::Send { imm: wc.imm.map(|imm| imm + 1) };
                cx.post_send_inline(made.uc, &wr(op), &bytes).unwrap();
            }
            WcOpcode::RecvRdmaWithImm => {
                let bytes = made.bytes(WINDOW, wc.byte_len as usize);
                self.report(Report::Written { worker, bytes });
            }
            WcOpcode::Recv => {
                assert_eq!(wc.qpn, made.ud);
                let bytes = made.bytes(offset + GRH, wc.byte_len as usize - GRH);
                cx.post_recv(made.ud, &RecvWr { wr_id: wc.wr_id, sges: &[made.sge(wc.wr_id)] }).unwrap();
                self.command(cx, wc, &bytes);
                self.report(Report::Datagram { worker, bytes });
            }
            // No send is signalled.
            opcode => panic!("{opcode:?}"),
        }
    }

    fn async_event(&mut self, cx: &mut Context<'_>, event: &AsyncEvent) {
        let made = self.made.as_ref().unwrap();
        match event {
            AsyncEvent::SrqLimitReached { srq } => {
                assert_eq!(*srq, made.srq);
                // Messages arrive one at a time, so any slots may be posted.
                for slot in u64::from(cx.srq_len(made.srq).unwrap())..u64::from(SHARED) {
                    cx.post_srq_recv(made.srq, &RecvWr { wr_id: slot, sges: &[made.sge(slot)] }).unwrap();
                }
                cx.modify_srq(made.srq, LOW).unwrap();
            }
            AsyncEvent::LastWqeReached { qpn } => {
                assert_eq!(*qpn, made.uc);
                cx.destroy_qp(made.uc);
                cx.destroy_srq(made.srq).unwrap();
                assert!(cx.query_qp(made.uc).is_none());
            }
            AsyncEvent::QpError { .. } | AsyncEvent::CommunicationEstablished { .. } => {}
            AsyncEvent::SendQueueDrained { qpn } => cx.modify_qp(*qpn, QpTransition::Resume).unwrap(),
        }
        self.report(Report::Event { worker: cx.worker(), event: *event });
    }
}

impl Instance {
    /// Executes a command of the peer.
    fn command(&self, cx: &mut Context<'_>, wc: &WorkCompletion, command: &[u8]) {
        let made = self.made.as_ref().unwrap();
        let answer = |cx: &mut Context<'_>| {
            let op = SendOp::Datagram { ah: made.ah, qpn: wc.src_qpn.unwrap(), qkey: QKEY, imm: wc.imm };
            cx.post_send_inline(made.ud, &wr(op), b"pong").unwrap();
        };
        match command {
            b"ping" => answer(cx),
            b"drain" => {
                answer(cx);
                cx.modify_qp(made.uc, QpTransition::ToSqd).unwrap();
            }
            b"leave" => cx.detach_multicast(made.ud, groups()[0]).unwrap(),
            // Leaves the groups implicitly.
            b"destroy" => {
                cx.destroy_ah(made.ah).unwrap();
                cx.destroy_qp(made.ud);
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
