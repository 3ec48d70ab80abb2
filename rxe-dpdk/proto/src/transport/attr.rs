//! Attributes of queue pairs: creation, queries and errors.

use crate::mem::{Access, PdId};
use crate::time::Duration;
use crate::wire::{Path, PathMtu, PortId, Psn};

use super::{CqId, EngineConfig, QpState, QpType, Qpn, SrqId, Wait};

/// Attributes for creating a queue pair (`ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Transport service.
    pub qp_type: QpType,
    /// Protection domain: the queue pair reaches regions of this domain only.
    pub pd: PdId,
    /// Completion queue of the send queue.
    pub send_cq: CqId,
    /// Completion queue of the receives.
    pub recv_cq: CqId,
    /// The shared receive queue that receives come from, in place of a receive queue of its own.
    pub srq: Option<SrqId>,
    /// Sizes of its queues. With a shared receive queue those of the receive queue mean nothing.
    pub caps: QpCaps,
    /// Every send queue work request completes with a work completion, signalled or not.
    pub sq_sig_all: bool,
}

/// Sizes of the queues of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpCaps {
    /// Outstanding work requests of the send queue.
    pub max_send_wr: u32,
    /// Outstanding work requests of the receive queue.
    pub max_recv_wr: u32,
    /// Buffers of one work request of the send queue.
    pub max_send_sge: u32,
    /// Buffers of one receive.
    pub max_recv_sge: u32,
    /// Bytes that a work request of the send queue can bring with it instead of naming buffers.
    pub max_inline_data: u32,
}

/// Why a queue pair could not be made or changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QpError {
    /// The engine holds no more queue pairs.
    #[error("no more queue pairs: the limit is {0}")]
    TooMany(u32),
    /// There is no such queue pair here.
    #[error("no such queue pair: {0}")]
    Unknown(Qpn),
    /// There is no such completion queue here.
    #[error("no such completion queue")]
    UnknownCq,
    /// There is no such shared receive queue here.
    #[error("no such shared receive queue")]
    UnknownSrq,
    /// There is no such protection domain here.
    #[error("no such protection domain")]
    UnknownPd,
    /// A queue size or attribute is beyond what the engine or the standard allows.
    #[error("{name} is {value}, the limit is {limit}")]
    Limit {
        /// Name of the attribute, in verbs terms.
        name: &'static str,
        /// The requested value.
        value: u32,
        /// The most there can be.
        limit: u32,
    },
    /// The state diagram has no such transition.
    #[error("a queue pair in {from} cannot go to {to}")]
    Transition {
        /// The present state.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// The transition is one of another transport service.
    #[error("not a transition of a queue pair of type {0}")]
    WrongType(QpType),
    /// The attribute cannot be changed in this state, or in this change of state.
    #[error("a queue pair of type {qp_type} cannot change its {name} from {from} to {to}")]
    Attribute {
        /// Name of the attribute, in verbs terms.
        name: &'static str,
        /// Type of the queue pair.
        qp_type: QpType,
        /// The present state.
        from: QpState,
        /// The state asked for; the present one when only attributes are changed.
        to: QpState,
    },
    /// The queue pair has no path in its present state.
    #[error("the queue pair has no path yet")]
    NoPath,
}

/// Why a work request was not posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// There is no such queue pair here.
    #[error("no such queue pair: {0}")]
    Unknown(Qpn),
    /// Not allowed in this state.
    #[error("not in state {0}")]
    State(QpState),
    /// As many work requests as the queue holds are outstanding.
    #[error("the queue is full")]
    QueueFull,
    /// More buffers than agreed when the queue pair was made.
    #[error("too many buffers")]
    TooManySges,
    /// Longer than 2^31 bytes, or than half the PSNs.
    #[error("the message is too long")]
    MessageTooLong,
    /// The queue pair's transport service does not have the operation.
    #[error("not an operation of a queue pair of type {0}")]
    Opcode(QpType),
    /// Inline data longer than agreed when the queue pair was made, or for an operation that sends nothing.
    #[error("too much inline data")]
    InlineTooLong,
    /// Receives of this queue pair come from a shared receive queue.
    #[error("the queue pair has a shared receive queue")]
    SharedReceiveQueue,
    /// There is no such shared receive queue here.
    #[error("no such shared receive queue")]
    UnknownSrq,
    /// There is no such address handle in the queue pair's protection domain.
    #[error("no such address handle")]
    UnknownAddressHandle,
    /// The buffers of an atomic or ATOMIC WRITE must hold 8 bytes.
    #[error("an atomic needs buffers of 8 bytes")]
    AtomicLength,
    /// A READ or atomic with `max_rd_atomic` 0.
    #[error("the peer takes no READs and atomics")]
    NoReadResources,
}

/// Attributes and progress of a queue pair, as queried.
#[derive(Clone, Debug)]
pub struct QpInfo {
    /// Queue pair number.
    pub qpn: Qpn,
    /// Transport service.
    pub qp_type: QpType,
    /// State.
    pub state: QpState,
    /// Protection domain.
    pub pd: PdId,
    /// Completion queue of the send queue.
    pub send_cq: CqId,
    /// Completion queue of the receives.
    pub recv_cq: CqId,
    /// The shared receive queue that receives come from.
    pub srq: Option<SrqId>,
    /// Sizes of its queues.
    pub caps: QpCaps,
    /// Q_Key (UD).
    pub qkey: u32,
    /// Remote operations that the peer may do.
    pub access: Access,
    /// Path to the peer, from RTR on.
    pub path: Option<Path>,
    /// The peer's queue pair, from RTR on.
    pub dest_qpn: Option<Qpn>,
    /// Path MTU, from RTR on.
    pub path_mtu: Option<PathMtu>,
    /// The port: of its path, or as given for INIT.
    pub port: Option<PortId>,
    /// Index of the partition key: the default partition's.
    pub pkey_index: u16,
    /// Code of the time that its RNR NAKs ask for (RC).
    pub min_rnr_timer: u8,
    /// READs and atomics that the peer may have outstanding here, as agreed (RC).
    pub max_dest_rd_atomic: u8,
    /// Code of the ACK timeout (RC); 0 waits for ever.
    pub timeout: u8,
    /// Every work request of the send queue completes with a work completion.
    pub sq_sig_all: bool,
    /// In SQD, work that was begun has not completed yet.
    pub sq_draining: bool,
    /// The PSN expected next from the peer (`rq_psn`).
    pub expected_psn: Psn,
    /// The PSN of the first packet of the next work request that is posted.
    pub next_psn: Psn,
    /// The PSN of the next packet that is sent for the first time (`sq_psn`).
    pub unsent_psn: Psn,
    /// The oldest PSN of ours without an answer.
    pub unacked_psn: Psn,
    /// Outstanding work requests of the send queue.
    pub send_queued: u32,
    /// Outstanding receives of its own receive queue.
    pub recv_queued: u32,
    /// An RNR NAK was received and its timer has not expired yet.
    pub peer_not_ready: bool,
    /// Measured round trip time, once there is one (RC).
    pub rtt: Option<Duration>,
    /// Congestion notification packets: received, sent.
    pub cnps: (u64, u64),
    /// Bits per second that congestion control allows; `None` while it sets no limit.
    pub rate: Option<u64>,
    /// Packets that the requester may have outstanding.
    pub window: u32,
    /// Whether communication is established: the consumer said so, or a request was executed.
    pub established: bool,
    /// The event that the queue pair waits for now.
    pub waits: Wait,
    /// Progress of its own requests.
    pub sends: SendProgress,
    /// Packets of the peer's requests served, READ responses included. Counts from an arbitrary start (RC, UC).
    pub packets_served: u64,
    /// Receives completed, modulo 2^32.
    pub recvs_completed: u32,
    /// Messages completed for the peer, modulo 2^24 (RC).
    pub msn: u32,
}

/// Progress of a queue pair's own requests.
#[derive(Clone, Copy, Debug)]
pub struct SendProgress {
    /// Packets that are acknowledged, or need no acknowledgement. Counts from an arbitrary start.
    pub packets: u64,
    /// Work requests completed.
    pub completed: u64,
    /// Packets sent and not acknowledged.
    pub unacked: u64,
    /// READs and atomics outstanding.
    pub rd_outstanding: u32,
    /// Limit of outstanding READs and atomics.
    pub max_rd_atomic: u32,
    /// Times that the requester went back to retransmit, for any reason.
    pub retries: u64,
    /// Transport retries left until the next progress.
    pub retries_left: u8,
    /// Transport retries after each progress.
    pub retry_cnt: u8,
    /// RNR retries left; 7 is unlimited.
    pub rnr_retries_left: u8,
    /// RNR retries after each progress; 7 is unlimited.
    pub rnr_retry: u8,
    /// The retransmission timeout now.
    pub timeout: Duration,
    /// The local ACK timeout of the connection; `None` waits for ever.
    pub ack_timeout: Option<Duration>,
}

pub(super) fn check_limit(name: &'static str, value: u32, limit: u32) -> Result<(), QpError> {
    if value > limit { Err(QpError::Limit { name, value, limit }) } else { Ok(()) }
}

impl QpCaps {
    /// Checks the sizes against the engine's limits.
    pub(super) fn check(&self, config: &EngineConfig) -> Result<(), QpError> {
        check_limit("max_send_wr", self.max_send_wr, config.max_qp_wr)?;
        check_limit("max_recv_wr", self.max_recv_wr, config.max_qp_wr)?;
        check_limit("max_send_sge", self.max_send_sge, config.max_sge)?;
        check_limit("max_recv_sge", self.max_recv_sge, config.max_sge)?;
        check_limit("max_inline_data", self.max_inline_data, config.max_inline_data)
    }
}
