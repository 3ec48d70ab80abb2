//! Addresses, ports, and ends with an engine.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time;

use rxe_proto::Instant;
use rxe_proto::verbs::{
    Access, Adapter, CompletionQueue, Connected, Engine, EngineConfig, Memory, MemoryRegion, ProtectionDomain, QpCaps,
    QpInitAttr, QueuePair, RtrAttr, RtsAttr, TransportService, WorkCompletion,
};
use rxe_proto::wire::{
    BthFields, BthOpcode, DEFAULT_PKEY, Frame, HeaderTemplate, Opcode, Path, PortId, Psn, ROCE_UDP_PORT, RocePacket,
    TxQueue, classify,
};
use rxe_testkit::child::ip;
use rxe_udp::{UdpConfig, UdpPort, UdpStats};

/// A state that is not reached after this time is never reached.
pub const PATIENCE: time::Duration = time::Duration::from_secs(60);

/// An address of the loopback interface that no other test uses: its middle bytes depend on the process.
pub fn fresh_address() -> IpAddr {
    static LAST: AtomicU8 = AtomicU8::new(0);
    let last = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    assert!(last < 255, "no address is left");
    let process = std::process::id();
    Ipv4Addr::new(127, 64 + (process >> 8) as u8 % 128, process as u8, last).into()
}

/// A port with default settings at an address of its own.
pub fn open() -> UdpPort {
    open_with(|_| {})
}

/// A port with other settings.
pub fn open_with(change: impl FnOnce(&mut UdpConfig)) -> UdpPort {
    let mut config = UdpConfig::new(fresh_address());
    change(&mut config);
    UdpPort::open(config).unwrap()
}

/// Adds the Ethernet interface eth7, with an MTU of 1500, to the network namespace of the test. Its other end is other7.
pub fn add_interface() {
    ip("link add eth7 mtu 1500 type veth peer name other7");
    for end in ["eth7", "other7"] {
        ip(&format!("link set {end} addrgenmode none up"));
    }
}

/// The value of a counter.
pub fn count(port: &UdpPort, name: &str) -> u64 {
    counted(port.stats(), name)
}

pub fn counted(stats: &UdpStats, name: &str) -> u64 {
    stats.iter().find(|(counter, _)| *counter == name).map(|(_, value)| value).unwrap()
}

/// The path from one address to another, as this crate wants it.
pub fn path(src: IpAddr, dst: IpAddr) -> Path {
    Path { src: src.into(), dst: dst.into(), udp_src_port: ROCE_UDP_PORT, ..Path::default() }
}

/// A frame: an RC SEND with this PSN and payload.
pub fn frame(path: &Path, psn: u32, payload: &[u8]) -> Vec<u8> {
    let template = HeaderTemplate::new(path);
    let opcode = BthOpcode::rc(Opcode::SendOnly);
    let mut frame = vec![0; template.frame_len(opcode, payload.len())];
    build(&template, &mut frame, psn, payload);
    frame
}

fn build(template: &HeaderTemplate, frame: &mut [u8], psn: u32, payload: &[u8]) {
    let fields = BthFields {
        opcode: BthOpcode::rc(Opcode::SendOnly),
        dest_qp: 0x12_3456,
        psn: Psn::new(psn),
        solicited: false,
        ack_req: false,
        pkey: DEFAULT_PKEY,
    };
    let mut packet = template.build(frame, fields, payload.len());
    packet.payload_mut().copy_from_slice(payload);
    packet.finish();
}

/// Stages a copy of a frame. False when there is no room.
pub fn stage(port: &mut UdpPort, frame: &[u8]) -> bool {
    port.tx().push(PortId(0), frame.len()).map(|room| room.copy_from_slice(frame)).is_some()
}

/// Sends frames at once.
pub fn send<'f>(port: &mut UdpPort, frames: impl IntoIterator<Item = &'f Vec<u8>>) {
    for frame in frames {
        assert!(stage(port, frame));
    }
    assert_eq!(port.tx().flush(), 0);
}

/// Receives frames until there are `count` of them.
pub fn receive(port: &mut UdpPort, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let begin = time::Instant::now();
    while frames.len() < count {
        assert!(begin.elapsed() < PATIENCE, "{} of {count} frames: {:?}", frames.len(), port.stats());
        port.wait(Some(time::Duration::from_millis(100))).unwrap();
        let mut burst = port.receive();
        while let Some(frame) = burst.next_frame() {
            frames.push(frame.to_vec());
        }
    }
    frames
}

/// The packet in a frame.
pub fn packet(frame: &[u8]) -> RocePacket<'_> {
    match classify(frame) {
        Ok(Frame::Roce(packet)) => packet,
        other => panic!("{other:?}"),
    }
}

/// A port with an engine, and a region of which peers may use everything.
pub struct End {
    pub port: UdpPort,
    pub engine: Engine,
    pub pd: ProtectionDomain,
    pub cq: CompletionQueue,
    pub mr: MemoryRegion,
    now: Instant,
}

/// Access of peers.
const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

impl End {
    /// An end with a region of `len` bytes.
    pub fn new(port: UdpPort, len: usize) -> End {
        let mut engine = Engine::new(EngineConfig { udp_src_port: Some(ROCE_UDP_PORT), ..EngineConfig::default() });
        let mut dev = Adapter::new(&mut engine, Instant::ZERO);
        let pd = dev.alloc_pd();
        let cq = dev.create_cq(256).unwrap();
        let mr = dev.reg_mr(pd, Memory::heap(len), Access::LOCAL_WRITE | REMOTE).unwrap();
        End { port, engine, pd, cq, mr, now: Instant::ZERO }
    }

    pub fn device(&mut self) -> Adapter<'_> {
        Adapter::new(&mut self.engine, self.now)
    }

    pub fn create_qp<T: TransportService>(&mut self) -> QueuePair<T> {
        let caps = QpCaps { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };
        let attr = QpInitAttr { caps, ..QpInitAttr::new(self.cq) };
        let pd = self.pd;
        self.device().create_qp(pd, attr).unwrap()
    }

    /// Bytes at the beginning of the region.
    pub fn fill(&self, bytes: &[u8]) {
        self.mr.memory().write(0, bytes).unwrap();
    }

    pub fn bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.memory().read(0, &mut bytes).unwrap();
        bytes
    }

    /// One turn: what has arrived, then what is due.
    pub fn turn(&mut self, now: Instant) {
        self.now = now;
        let mut burst = self.port.receive();
        while let Some(frame) = burst.next_frame() {
            self.engine.receive(now, PortId(0), &packet(frame));
        }
        self.engine.handle_timeout(now);
        self.engine.transmit(now, self.port.tx());
        self.port.tx().flush();
    }

    pub fn completion(&mut self) -> Option<WorkCompletion> {
        let cq = self.cq;
        self.device().poll_cq_one(cq)
    }
}

/// Connects a queue pair of each end with each other.
pub fn connect<T: Connected>(ends: &mut [End; 2]) -> [QueuePair<T>; 2] {
    let qps = ends.each_mut().map(End::create_qp::<T>);
    let addresses = ends.each_ref().map(|end| end.port.address());
    for (at, end) in ends.iter_mut().enumerate() {
        let rtr = RtrAttr {
            path: Path { src: addresses[at].into(), dst: addresses[1 - at].into(), ..Path::default() },
            path_mtu: end.port.path_mtu(),
            dest_qpn: qps[1 - at].qpn(),
            max_dest_rd_atomic: 16,
            ..RtrAttr::default()
        };
        qps[at].connect(&mut end.device(), REMOTE, rtr, RtsAttr { max_rd_atomic: 16, ..RtsAttr::default() }).unwrap();
    }
    qps
}

/// Lets both ends turn until `done` returns something.
pub fn turn_until<R>(ends: &mut [End; 2], mut done: impl FnMut(&mut [End; 2]) -> Option<R>) -> R {
    let begin = time::Instant::now();
    // Engines that have run before must not see time go back.
    let base = ends.iter().map(|end| end.now.as_nanos()).max().unwrap();
    loop {
        if let Some(result) = done(ends) {
            return result;
        }
        let elapsed = begin.elapsed();
        assert!(elapsed < PATIENCE, "{:#?}", ends.each_ref().map(|end| (end.port.stats(), end.engine.stats())));
        let now = Instant::from_nanos(base + elapsed.as_nanos() as u64);
        ends.iter_mut().for_each(|end| end.turn(now));
    }
}

/// The next completion of an end, which must be a success.
pub fn completion(ends: &mut [End; 2], end: usize) -> WorkCompletion {
    turn_until(ends, |ends| ends[end].completion()).success().unwrap()
}

/// Bytes that differ from those of other seeds.
pub fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|i| ((i ^ seed).wrapping_mul(0x9E37_79B9) >> 24) as u8).collect()
}
