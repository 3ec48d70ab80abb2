//! Settings of an engine.

use crate::mem::KeyLayout;
use crate::time::Duration;
use crate::wire::Path;

use super::congestion_control::CongestionControl;

/// Settings of an [`Engine`](super::Engine). The defaults suit 10 to 100 Gb/s links within a data centre.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineConfig {
    /// Number of the worker, 0 to 14: bits 23..20 of its queue pair numbers.
    pub worker: u8,
    /// Seed for queue pair numbers and memory keys: secret, and fresh at every start.
    pub seed: [u8; 32],
    /// Most queue pairs, at most 65,534.
    pub max_qp: u32,
    /// Most completion queues, at most 65,536.
    pub max_cq: u32,
    /// Most entries of one completion queue.
    pub max_cqe: u32,
    /// Most outstanding work requests of one queue (send or receive).
    pub max_qp_wr: u32,
    /// Most buffers of one work request, at most 255.
    pub max_sge: u32,
    /// Most memory keys, at most 2^24; 2^23 with [`KeyLayout::ConsumerByte`].
    pub max_mr: u32,
    /// Which bits of a memory key the engine chooses. [`KeyLayout::ConsumerByte`] is for programs that bind memory
    /// windows by libibverbs.
    pub key_layout: KeyLayout,
    /// Most READs and atomics that one queue pair may have outstanding, as responder and as requester.
    pub max_rd_atomic: u8,
    /// Most bytes of inline data of one work request.
    pub max_inline_data: u32,
    /// Most shared receive queues, at most 65,536.
    pub max_srq: u32,
    /// Most outstanding receives of one shared receive queue.
    pub max_srq_wr: u32,
    /// Most address handles, at most 2^20.
    pub max_ah: u32,
    /// Most multicast groups with attached queue pairs.
    pub max_mcast_grp: u32,
    /// Most queue pairs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// UDP source port of every packet, whatever the paths of queue pairs and address handles say: for a host that sends
    /// from one socket, as the ICRC covers the port. `None` is the port of each path.
    pub udp_src_port: Option<u16>,
    /// Whether peers may FLUSH. Off, a FLUSH is an invalid request.
    pub flush: bool,
    /// Whether peers may do ATOMIC WRITEs. Off, an ATOMIC WRITE is an invalid request.
    pub atomic_write: bool,
    /// Whether ACKs carry end-to-end credits: how many receives are posted. If not, and always with a shared receive
    /// queue, they carry "no limit".
    pub credits: bool,
    /// The shortest time between two congestion notifications of one queue pair.
    pub cnp_interval: Duration,
    /// What makes a queue pair send less than it could.
    pub congestion: CongestionControl,
    /// Whether long messages of a port give way to short ones: what they have outstanding is limited while there are short ones.
    pub short_messages_first: bool,
    /// Whether a requester retransmits before the ACK timeout of the connection has expired, when the measured round trip shows that
    /// the answer is lost. If not, it does what the standard says, no more: one copy for each ACK timeout, `retry_cnt` of them.
    pub early_retransmission: bool,
    /// Keep-alive settings for consumers that enable it on their queue pairs; the engine itself does not use them.
    /// `None` is never.
    pub keep_alive: Option<KeepAlive>,
    /// The shortest retransmission timeout, at least a microsecond. The measured round trip sets it between this and
    /// the connection's ACK timeout.
    pub min_timeout: Duration,
    /// The retransmission timeout before a round trip has been measured, if the connection's ACK timeout is not
    /// shorter; at least [`min_timeout`](Self::min_timeout).
    pub initial_timeout: Duration,
    /// Send window: PSNs that a requester may be ahead of the oldest one not acknowledged. A larger window fills longer
    /// links; after a loss all of it may be retransmitted, and the responder's receive ring must hold the burst.
    pub window: u32,
    /// A requester sets AckReq in the last packet of each message and after this many packets without it. Limited to
    /// half a window, so that the window never closes without an ACK requested.
    pub ack_every: u32,
    /// READ response packets that a queue pair sends before the next queue pair is served.
    pub read_quantum: u32,
    /// Request packets that a queue pair sends before the next queue pair is served.
    pub send_quantum: u32,
    /// Packets for one port after which a call of [`transmit`](super::Engine::transmit) returns, so that its caller
    /// polls for received packets. The queue pair being served finishes its quantum.
    pub transmit_quantum: u32,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            worker: 0,
            seed: [0; 32],
            max_qp: 16_384,
            max_cq: 16_384,
            max_cqe: 1 << 20,
            max_qp_wr: 1 << 16,
            max_sge: 32,
            max_mr: 1 << 24,
            key_layout: KeyLayout::Random,
            max_rd_atomic: 128,
            max_inline_data: 512,
            max_srq: 4096,
            max_srq_wr: 1 << 16,
            max_ah: 1 << 16,
            max_mcast_grp: 1024,
            max_mcast_qp_attach: 64,
            udp_src_port: None,
            flush: false,
            atomic_write: false,
            credits: true,
            cnp_interval: Duration::from_micros(50),
            congestion: CongestionControl::default(),
            short_messages_first: true,
            early_retransmission: true,
            keep_alive: Some(KeepAlive::default()),
            min_timeout: Duration::from_millis(1),
            initial_timeout: Duration::from_millis(32),
            window: 128,
            ack_every: 64,
            read_quantum: 16,
            send_quantum: 16,
            transmit_quantum: 64,
        }
    }
}

impl EngineConfig {
    /// The most for [`window`](Self::window). PSNs compare within half their space; a window must stay far below that.
    pub(super) const MAX_WINDOW: u32 = 1 << 16;

    /// The settings, each clamped to its valid range.
    pub(super) fn bounded(mut self) -> EngineConfig {
        self.worker = self.worker.min(14);
        self.max_qp = self.max_qp.min(65_534);
        self.max_cq = self.max_cq.min(65_536);
        self.max_sge = self.max_sge.clamp(1, 255);
        self.max_qp_wr = self.max_qp_wr.clamp(1, 1 << 24);
        self.max_mr = self.max_mr.min(self.key_layout.max_keys() as u32);
        self.max_rd_atomic = self.max_rd_atomic.min(128);
        self.max_srq = self.max_srq.min(65_536);
        self.max_srq_wr = self.max_srq_wr.clamp(1, 1 << 24);
        self.max_ah = self.max_ah.min(1 << 20);
        self.min_timeout = self.min_timeout.max(Duration::from_micros(1));
        self.initial_timeout = self.initial_timeout.max(self.min_timeout);
        self.window = self.window.clamp(1, EngineConfig::MAX_WINDOW);
        self.ack_every = self.ack_every.clamp(1, self.window.div_ceil(2));
        self.read_quantum = self.read_quantum.max(1);
        self.send_quantum = self.send_quantum.max(1);
        self.transmit_quantum = self.transmit_quantum.max(1);
        self
    }

    /// `path` with the source port that its packets have.
    pub(super) fn bind_path(&self, path: Path) -> Path {
        Path { udp_src_port: self.udp_src_port.unwrap_or(path.udp_src_port), ..path }
    }
}

/// When to probe a silent peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepAlive {
    /// Time without news from the peer before the first probe. It may take up to twice as long.
    pub idle: Duration,
    /// Interval between probes, and between the last one and giving up.
    pub interval: Duration,
    /// Unanswered probes before the queue pair goes to error.
    pub probes: u8,
}

impl Default for KeepAlive {
    /// First probe after 30 s, then every 5 s, 6 probes: a dead peer is detected within 90 s.
    fn default() -> KeepAlive {
        KeepAlive { idle: Duration::from_secs(30), interval: Duration::from_secs(5), probes: 6 }
    }
}
