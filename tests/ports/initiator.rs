//! A small initiator on one port: connection manager messages by hand, everything else by our own engine.

use std::time::{Duration, Instant};

use rxe_dpdk::eal::{Clock, Eal, Port, RxBurst, RxQueue, TxStage};
use rxe_dpdk::rxe_proto::cm::{MadPath, read_mad, write_mad};
use rxe_dpdk::rxe_proto::mem::{Access, Memory, PdId};
use rxe_dpdk::rxe_proto::transport::{
    CqId, Engine, EngineConfig, QpCaps, QpInit, QpTransition, QpType, Qpn, RemoteAddr, RtrAttr, RtsAttr, SendFlags,
    SendOp, SendWr, Sge, WcStatus,
};
use rxe_dpdk::rxe_proto::wire::cm::{
    CmMessage, CmPath, CmTransport, Dreq, IpAddressing, PortSpace, Rep, Req, Rtu, ServiceId,
};
use rxe_dpdk::rxe_proto::wire::mad::MAD_LEN;
use rxe_dpdk::rxe_proto::wire::{Frame, Gid, MacAddr, Path, PathMtu, PortId, Psn, TxQueue, classify, udp_source_port};

const OWN: [u8; 4] = [10, 77, 0, 2];
const PEER: [u8; 4] = [10, 77, 0, 1];

/// Nothing here takes longer than this.
const LIMIT: Duration = Duration::from_secs(20);

struct Tx(TxStage);

impl TxQueue for Tx {
    fn push(&mut self, _port: PortId, len: usize) -> Option<&mut [u8]> {
        self.0.push(len)
    }
}

pub struct Initiator {
    clock: Clock,
    rx: RxQueue,
    tx: Tx,
    burst: RxBurst,
    engine: Engine,
    pd: PdId,
    cq: CqId,
    path: MadPath,
    inbox: Vec<CmMessage>,
    next_id: u32,
    gsi_psn: Psn,
}

pub struct Connection {
    qpn: Qpn,
    rep: Rep,
    own_id: u32,
    address: u64,
    len: u64,
    rkey: u32,
}

impl Initiator {
    pub fn new(eal: &Eal, port: &Port, (rx, tx): (RxQueue, TxStage), target: MacAddr) -> Initiator {
        let mut engine = Engine::new(EngineConfig { seed: [9; 32], ..EngineConfig::default() });
        let pd = engine.keys_mut().alloc_pd();
        let cq = engine.create_cq(64).unwrap();
        let path = MadPath {
            port: port.id(),
            local_mac: port.mac(),
            peer_mac: target,
            vlan: None,
            local: std::net::Ipv4Addr::from(OWN).into(),
            peer: std::net::Ipv4Addr::from(PEER).into(),
            traffic_class: 0,
        };
        let clock = Clock::new(eal);
        let (tx, burst) = (Tx(tx), RxBurst::new());
        Initiator { clock, rx, tx, burst, engine, pd, cq, path, inbox: vec![], next_id: 1, gsi_psn: Psn::default() }
    }

    fn turn(&mut self) {
        let now = self.clock.now();
        let count = self.rx.burst(&mut self.burst);
        for index in 0..count {
            let Ok(Frame::Roce(packet)) = classify(self.burst.data(index)) else { continue };
            if packet.dest_qp() != Qpn::GSI.get() {
                self.engine.receive(now, self.path.port, &packet, 0);
            } else if let Ok((_, mad)) = read_mad(self.path.port, &packet)
                && packet.icrc_ok(0)
                && let Ok((_, message)) = CmMessage::parse(mad)
            {
                self.inbox.push(message);
            }
        }
        self.burst.clear();
        self.engine.handle_timeout(now);
        self.engine.transmit(now, &mut self.tx);
        self.tx.0.flush();
    }

    fn send(&mut self, message: &CmMessage) {
        let mut mad = [0; MAD_LEN];
        message.emit(u64::from(self.next_id), &mut mad);
        assert!(write_mad(&mut self.tx, &self.path, 1, self.gsi_psn, &mad));
        self.gsi_psn = self.gsi_psn.next();
    }

    /// Sends `message` until an answer comes that `wanted` takes something from.
    fn ask<T>(&mut self, message: &CmMessage, wanted: impl Fn(&CmMessage) -> Option<T>) -> T {
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            self.send(message);
            let sent = Instant::now();
            while sent.elapsed() < Duration::from_millis(300) {
                self.turn();
                if let Some(answer) = self.inbox.drain(..).find_map(|message| wanted(&message)) {
                    return answer;
                }
            }
        }
        panic!("no answer to {message}");
    }

    pub fn connect(&mut self, port: u16, region: &str, mtu: PathMtu) -> Connection {
        let now = self.clock.now();
        let qpn = self
            .engine
            .create_qp(&QpInit {
                qp_type: QpType::Rc,
                pd: self.pd,
                send_cq: self.cq,
                recv_cq: self.cq,
                srq: None,
                caps: QpCaps { max_send_wr: 8, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
                sq_sig_all: false,
            })
            .unwrap();
        self.engine.modify_qp(now, qpn, QpTransition::ToInit { access: Access::empty() }).unwrap();
        let own_id = self.next_id;
        self.next_id += 1;
        let peers_first = Psn::new(0xFF_FFF0);
        let (local, remote): (Gid, Gid) = (self.path.local, self.path.peer);
        let mut req = Req {
            local_comm_id: own_id,
            service_id: ServiceId::new(PortSpace::Tcp, port),
            local_ca_guid: 0x0202,
            local_qpn: qpn.get(),
            responder_resources: 1,
            initiator_depth: 4,
            remote_response_timeout: 20,
            local_response_timeout: 20,
            transport: CmTransport::Rc,
            starting_psn: peers_first,
            retry_count: 7,
            rnr_retry_count: 7,
            pkey: 0xFFFF,
            path_mtu: mtu.code(),
            max_cm_retries: 15,
            primary: CmPath {
                local_lid: 0xFFFF,
                remote_lid: 0xFFFF,
                local_gid: local,
                remote_gid: remote,
                hop_limit: 64,
                ack_timeout: 14,
                ..CmPath::default()
            },
            ..Req::default()
        };
        let ip = IpAddressing::new((local.ip(), 40_000), remote.ip()).unwrap();
        assert!(req.set_private_data(&ip, region.as_bytes()));
        let rep = self.ask(&CmMessage::Req(req), |message| match message {
            CmMessage::Rep(rep) if rep.remote_comm_id == own_id => Some(rep.clone()),
            CmMessage::Rej(rej) => panic!("rejected: {:?}", rej.reason),
            _ => None,
        });
        let path = Path {
            port: self.path.port,
            src_mac: self.path.local_mac,
            dst_mac: self.path.peer_mac,
            vlan: None,
            src: local,
            dst: remote,
            udp_src_port: udp_source_port(0, qpn.get(), rep.local_qpn),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
        };
        let rtr = RtrAttr {
            path,
            path_mtu: mtu,
            dest_qpn: Qpn::new(rep.local_qpn),
            rq_psn: peers_first,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        };
        self.engine.modify_qp(now, qpn, QpTransition::ToRtr(rtr)).unwrap();
        let rts = RtsAttr {
            sq_psn: rep.starting_psn,
            timeout: 17,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: rep.responder_resources,
        };
        self.engine.modify_qp(now, qpn, QpTransition::ToRts(rts)).unwrap();
        self.send(&CmMessage::Rtu(Rtu { local_comm_id: own_id, remote_comm_id: rep.local_comm_id, ..Rtu::default() }));
        let data = &rep.private_data;
        let (address, len) = (data[..8].try_into().unwrap(), data[8..16].try_into().unwrap());
        let rkey = u32::from_be_bytes(data[16..20].try_into().unwrap());
        assert_eq!(&data[24..24 + region.len()], region.as_bytes());
        Connection { qpn, own_id, address: u64::from_be_bytes(address), len: u64::from_be_bytes(len), rkey, rep }
    }
}

impl Connection {
    pub fn region_len(&self) -> u64 {
        self.len
    }

    /// Carries out one operation on a buffer that holds `bytes`, and returns what the buffer holds then.
    fn run(&self, on: &mut Initiator, bytes: &[u8], op: SendOp) -> Vec<u8> {
        let memory = Memory::heap(bytes.len());
        memory.write(0, bytes).unwrap();
        let region = on.engine.keys_mut().register(on.pd, memory, 0x1000, Access::LOCAL_WRITE).unwrap();
        let sge = Sge { addr: region.addr(), length: bytes.len() as u32, lkey: region.lkey() };
        let wr = SendWr { wr_id: 7, op, sges: &[sge], flags: SendFlags::SIGNALED };
        let now = on.clock.now();
        on.engine.post_send(now, self.qpn, &wr).unwrap();
        let began = Instant::now();
        let completion = loop {
            on.turn();
            if let Some(completion) = on.engine.poll_cq_one(on.cq) {
                break completion;
            }
            assert!(began.elapsed() < LIMIT, "{op:?} of {} bytes does not end: {:?}", bytes.len(), on.engine.stats());
        };
        assert_eq!((completion.wr_id, completion.status), (7, WcStatus::Success));
        let mut result = vec![0; bytes.len()];
        region.memory().read(0, &mut result).unwrap();
        on.engine.keys_mut().deregister(region.lkey()).unwrap();
        result
    }

    fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.address + offset, rkey: self.rkey }
    }

    pub fn write(&mut self, on: &mut Initiator, offset: u64, bytes: &[u8]) {
        self.run(on, bytes, SendOp::Write { remote: self.remote(offset), imm: None });
    }

    pub fn read(&mut self, on: &mut Initiator, offset: u64, len: usize) -> Vec<u8> {
        self.run(on, &vec![0; len], SendOp::Read { remote: self.remote(offset) })
    }

    /// What was there before.
    pub fn fetch_add(&mut self, on: &mut Initiator, offset: u64, add: u64) -> u64 {
        let was = self.run(on, &[0; 8], SendOp::FetchAdd { remote: self.remote(offset), add });
        u64::from_ne_bytes(was.try_into().unwrap())
    }

    pub fn disconnect(self, on: &mut Initiator) {
        let (own, peer) = (self.own_id, self.rep.local_comm_id);
        let dreq = Dreq { local_comm_id: own, remote_comm_id: peer, remote_qpn: self.rep.local_qpn, ..Dreq::default() };
        on.ask(&CmMessage::Dreq(dreq), |message| match message {
            CmMessage::Drep(drep) if drep.remote_comm_id == own => Some(()),
            _ => None,
        });
        on.engine.destroy_qp(self.qpn).unwrap();
    }
}
