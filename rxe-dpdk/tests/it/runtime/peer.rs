//! The other end of a link: an engine on a port of its own, polled by the test.

use std::time::{Duration, Instant};

use rxe_dpdk::eal::{Clock, Eal, Port, PortConfig, PortQueues, RxBurst, RxQueue, TxStage};
use rxe_dpdk::rxe_proto::mem::{Access, Memory, MemoryRegion, PdId};
use rxe_dpdk::rxe_proto::transport::{
    CqId, Engine, EngineConfig, QpCaps, QpInit, QpType, Qpn, RecvWr, Sge, WorkCompletion,
};
use rxe_dpdk::rxe_proto::wire::{Frame, PortId, TxQueue, classify};

/// Time limit of every wait.
const LIMIT: Duration = Duration::from_secs(30);

/// Bytes of the peer's memory.
pub const MEMORY: usize = 8192;

struct TxQueues {
    stages: Vec<TxStage>,
    /// The transmit queue in use.
    current: usize,
}

impl TxQueue for TxQueues {
    fn push(&mut self, _port: PortId, len: usize) -> Option<&mut [u8]> {
        self.stages[self.current].push(len)
    }
}

/// An engine, its port, and the received frames that are not RoCE.
pub struct Peer {
    pub engine: Engine,
    pub pd: PdId,
    pub cq: CqId,
    pub memory: Memory,
    region: MemoryRegion,
    /// Frames that are not RoCE.
    pub host_frames: Vec<Vec<u8>>,
    clock: Clock,
    port: Port,
    rx: Vec<RxQueue>,
    tx: TxQueues,
    burst: RxBurst,
}

impl Peer {
    /// A peer on the device `name`, with `queues` queues in each direction.
    pub fn new(eal: &Eal, name: &str, queues: u16) -> Peer {
        let info = eal.ports().into_iter().find(|info| info.name == name).unwrap();
        let config = PortConfig { rx_queues: queues, tx_queues: queues, mtu: 1500, ..PortConfig::default() };
        let mut port = Port::configure(eal, info.id, &config).unwrap();
        let PortQueues { rx, tx: stages } = port.start().unwrap();
        let mut engine = Engine::new(EngineConfig { seed: [9; 32], ..EngineConfig::default() });
        let pd = engine.keys_mut().alloc_pd();
        let cq = engine.create_cq(256).unwrap();
        let memory = Memory::heap(MEMORY);
        let address = memory.as_ptr() as u64;
        let region = engine.keys_mut().register(pd, memory.clone(), address, Access::LOCAL_WRITE).unwrap();
        let (tx, burst) = (TxQueues { stages, current: 0 }, RxBurst::new());
        let (clock, host_frames) = (Clock::new(eal), Vec::new());
        Peer { engine, pd, cq, memory, region, host_frames, clock, port, rx, tx, burst }
    }

    /// The number of its port.
    pub fn port(&self) -> PortId {
        self.port.id()
    }

    /// Sends through this transmit queue from now on.
    pub fn use_tx_queue(&mut self, queue: usize) {
        self.tx.current = queue;
    }

    /// A queue pair in RESET.
    pub fn create_qp(&mut self, qp_type: QpType) -> Qpn {
        let caps = QpCaps { max_send_wr: 32, max_recv_wr: 32, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 512 };
        let init =
            QpInit { qp_type, pd: self.pd, send_cq: self.cq, recv_cq: self.cq, srq: None, caps, sq_sig_all: false };
        self.engine.create_qp(self.clock.now(), &init).unwrap()
    }

    /// `length` bytes of its memory.
    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { addr: self.region.addr() + offset as u64, length, lkey: self.region.lkey() }
    }

    /// Posts a receive of 256 bytes at `offset`.
    pub fn post_recv(&mut self, qpn: Qpn, offset: usize) {
        let sge = self.sge(offset, 256);
        self.engine.post_recv(qpn, &RecvWr { wr_id: offset as u64, sges: &[sge] }).unwrap();
    }

    /// The bytes at `offset`.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes).unwrap();
        bytes
    }

    /// Receives a burst from each queue, and sends what is due.
    pub fn poll(&mut self) {
        let now = self.clock.now();
        for queue in &mut self.rx {
            let count = queue.burst(&mut self.burst);
            for index in 0..count {
                match classify(self.burst.data(index)) {
                    Ok(Frame::Roce(packet)) => {
                        self.engine.receive(now, self.port.id(), &packet);
                    }
                    _ => self.host_frames.push(self.burst.data(index).to_vec()),
                }
            }
            self.burst.clear();
        }
        self.engine.handle_timeout(now);
        self.engine.transmit(now, &mut self.tx);
        for stage in &mut self.tx.stages {
            stage.flush();
        }
    }

    /// Polls until `done` returns something.
    pub fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Peer) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            self.poll();
            if let Some(result) = done(self) {
                return result;
            }
            assert!(began.elapsed() < LIMIT, "not in time: {what}");
            // The adapter may share this core.
            std::thread::yield_now();
        }
    }

    /// The next completion.
    pub fn completion(&mut self) -> WorkCompletion {
        self.until("a completion", |peer| peer.engine.poll_cq_one(peer.cq))
    }

    /// Waits until the link is up.
    pub fn wait_for_link(&mut self) {
        self.until("the link", |peer| peer.port.link().up.then_some(()));
    }
}
