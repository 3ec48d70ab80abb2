//! The verbs device: what `/dev/infiniband/uverbs0` of Linux' rxe does for libibverbs and its rxe provider.
//!
//! [`Uverbs`] executes the commands that a program writes to the device, on an engine that its caller owns. It has no
//! thread, clock or socket. Queues are memory that the program maps from the device's descriptor, a memfd; completion and
//! asynchronous events come from ends of socket pairs. So only opening, writing and closing the device need interposing.
//!
//! The caller's loop, for each packet and turn:
//!
//! 1. [`pull_receives`](Uverbs::pull_receives) before the engine gets a packet, as the program posts receives without
//!    a system call;
//! 2. [`pull_sends`](Uverbs::pull_sends) and the engine's `transmit`;
//! 3. [`async_event`](Uverbs::async_event) for each event of the engine;
//! 4. [`deliver`](Uverbs::deliver): completions go to the program's queues.

mod abi;
mod ah;
mod call;
mod channel;
mod command;
mod context;
mod cq;
mod deliver;
mod device;
mod events;
mod gather;
mod ioctl;
mod limits;
mod maps;
mod mcast;
mod modify;
mod mr;
mod mw;
mod path;
mod pd;
mod pull;
mod qp;
mod ring;
mod srq;
mod staging;
mod table;
mod transitions;
mod whole;
mod wqe;

use std::collections::VecDeque;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::available_parallelism;

use rustc_hash::FxHashMap;
use rxe_proto::mem::KeyLayout;
use rxe_proto::transport::{CqId, EngineConfig, Qpn, SrqId, WorkCompletion};

use crate::local::Local;
use ah::Ahs;
use context::Context;
use cq::Cq;
pub use events::PortEvent;
use gather::Gather;
pub use ioctl::RDMA_VERBS_IOCTL;
use limits::Limits;
pub use maps::Mapped;
use mr::Mr;
use mw::Mw;
use pd::Pd;
use qp::Qp;
use srq::Srq;
use staging::Staging;
use table::Table;
use wqe::{Scratch, SendRequest};

/// The number of the device's only port.
const PORT: u8 = 1;

/// The verbs device of one adapter, for all contexts of this process.
#[derive(Debug)]
pub struct Uverbs {
    local: Local,
    limits: Limits,
    /// Completion vectors: accepted, without effect, as one thread completes everything.
    vectors: u32,
    port_is_up: bool,
    contexts: Vec<Context>,
    /// Contexts opened so far.
    opened: u32,
    /// Event channels opened so far.
    channels_opened: u32,
    /// The event channel that the last command has made, until the caller takes it.
    new_channel: Option<(u32, OwnedFd)>,
    pds: Table<Pd>,
    mrs: Table<Mr>,
    mws: Table<Mw>,
    ahs: Ahs,
    cqs: Table<Cq>,
    srqs: Table<Srq>,
    qps: Table<Qp>,
    /// Handles by the engine's names.
    cq_of: FxHashMap<CqId, u32>,
    srq_of: FxHashMap<SrqId, u32>,
    qp_of: FxHashMap<Qpn, u32>,
    /// Queue pairs in multicast groups.
    members: Vec<u32>,
    /// Queue pairs whose work requests have not all been taken, each once.
    unsent: VecDeque<u32>,
    /// Queue pairs with outstanding work requests, each once.
    sending: VecDeque<u32>,
    /// Queue pairs in the error state, whose receives are flushed when they are posted.
    broken: Vec<u32>,
    /// Writes to the memory of programs.
    staging: Arc<Staging>,
    scratch: Scratch,
    /// The work requests in hand.
    requests: Vec<SendRequest>,
    gather: Gather,
    /// Bytes of the last work request that was taken.
    last_len: u64,
    /// See [`take_can_wait`](Self::take_can_wait).
    can_wait: bool,
    completions: Vec<WorkCompletion>,
    /// The last delivery has left completions in the engine.
    cq_is_full: bool,
}

impl Uverbs {
    /// Settings of an engine with what programs expect of the device.
    pub fn engine_config(config: EngineConfig) -> EngineConfig {
        EngineConfig { key_layout: KeyLayout::ConsumerByte, atomic_write: true, ..config }
    }

    /// The device of an adapter, without contexts. `config` is the engine's: see [`engine_config`](Self::engine_config).
    pub fn new(local: Local, config: &EngineConfig) -> Uverbs {
        let limits = Limits::new(config);
        Uverbs {
            local,
            limits,
            vectors: available_parallelism().map_or(1, NonZero::get) as u32,
            port_is_up: true,
            contexts: Vec::new(),
            opened: 0,
            channels_opened: 0,
            new_channel: None,
            pds: Table::new(limits.pds),
            mrs: Table::new(limits.mrs),
            mws: Table::new(limits.mws),
            ahs: Ahs::new(limits.ahs),
            cqs: Table::new(limits.cqs),
            srqs: Table::new(limits.srqs),
            qps: Table::new(limits.qps),
            cq_of: FxHashMap::default(),
            srq_of: FxHashMap::default(),
            qp_of: FxHashMap::default(),
            members: Vec::new(),
            unsent: VecDeque::new(),
            sending: VecDeque::new(),
            broken: Vec::new(),
            staging: Arc::default(),
            scratch: Scratch::default(),
            requests: Vec::new(),
            gather: Gather::default(),
            last_len: 0,
            can_wait: false,
            completions: Vec::new(),
            cq_is_full: false,
        }
    }
}
