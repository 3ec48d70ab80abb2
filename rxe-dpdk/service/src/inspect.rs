//! Questions of management to a worker.
//!
//! Only the worker's own thread may access its queue pairs, keys and connections. A question is therefore a message, which the
//! worker answers in one turn of its loop. Long lists are read in parts of [`PART`] slots each, to keep turns short.

use std::net::SocketAddr;
use std::sync::mpsc::SyncSender;

use rxe_proto::cm::{Cm, ConnId, Handshake};
use rxe_proto::mem::KeyInfo;
use rxe_proto::transport::{Engine, QpInfo, Qpn};
use rxe_proto::{Duration, Instant};

/// Slots of a table per answer.
pub const PART: usize = 64;

/// A question to one worker. The answer goes to `reply`; it is lost when the other end of that is closed or full.
#[derive(Debug)]
pub enum Question {
    /// Lists the queue pairs in `PART` slots.
    Qps {
        /// The first slot.
        from: usize,
        /// Receives the answer.
        reply: SyncSender<Part<QpEntry>>,
    },
    /// Describes one queue pair; `None` when there is no such queue pair.
    Qp {
        /// The queue pair.
        qpn: Qpn,
        /// Receives the answer.
        reply: SyncSender<Option<Box<QpEntry>>>,
    },
    /// Lists the keys in `PART` slots.
    Keys {
        /// The first slot.
        from: usize,
        /// Receives the answer.
        reply: SyncSender<Part<KeyInfo>>,
    },
    /// Counts the worker's objects.
    Counts {
        /// Receives the answer.
        reply: SyncSender<Counts>,
    },
    /// Counts the entries of the control side's tables. Any worker passes it on.
    ControlCounts {
        /// Receives the answer.
        reply: SyncSender<ControlCounts>,
    },
    /// Lists the messages that made the connections, [`PART`] of them. Any worker passes it on.
    Handshakes {
        /// The first communication id.
        from: u32,
        /// Receives the answer.
        reply: SyncSender<Part<Handshake>>,
    },
    /// Disconnects a queue pair's connection; a queue pair without one goes to the error state. The answer is whether
    /// there is such a queue pair.
    Disconnect {
        /// The queue pair.
        qpn: Qpn,
        /// Receives the answer.
        reply: SyncSender<bool>,
    },
}

/// Some slots of a table.
#[derive(Debug)]
pub struct Part<T> {
    /// The objects in these slots.
    pub items: Vec<T>,
    /// Whether the table has more slots after them.
    pub more: bool,
}

/// A queue pair and what the worker knows of it.
#[derive(Debug)]
pub struct QpEntry {
    /// The transport's view.
    pub info: QpInfo,
    /// The service that created it.
    pub service: Option<&'static str>,
    /// Its connection, if the connection manager made one.
    pub connection: Option<ConnectionEntry>,
}

/// The connection of a queue pair.
#[derive(Debug)]
pub struct ConnectionEntry {
    /// The connection manager's id.
    pub conn: ConnId,
    /// Whether both sides have confirmed it.
    pub established: bool,
    /// The peer's address and port, of a connection that the peer requested.
    pub peer: Option<SocketAddr>,
    /// The time since the request.
    pub age: Duration,
}

/// Number of a worker's objects, by kind.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Protection domains.
    pub pd: usize,
    /// Completion queues.
    pub cq: usize,
    /// Queue pairs.
    pub qp: usize,
    /// Connections of the connection manager.
    pub connections: usize,
    /// Memory regions and windows.
    pub keys: usize,
    /// Services.
    pub services: usize,
    /// Shared receive queues.
    pub srq: usize,
    /// Address handles.
    pub ah: usize,
    /// Queue pairs with an armed timer.
    pub timers: usize,
    /// Operations that services had outstanding when they were last polled.
    pub operations: usize,
}

/// Number of entries in the tables of the control side, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlCounts {
    /// Connections of the connection manager in any state, those whose ids are kept after their end included.
    pub connections: usize,
    /// SIDR requests: those of peers, answered ones included, and ours.
    pub sidr: usize,
    /// TCP streams in any state, TIME-WAIT included.
    pub streams: usize,
    /// Neighbours in any state.
    pub neighbours: usize,
}

/// The owner of an engine, with the purpose of each queue pair.
pub trait EngineOwner {
    /// The name of what created a queue pair.
    fn service_of(&self, qpn: Qpn) -> Option<&'static str>;

    /// The connection of a queue pair.
    fn connection_of(&self, now: Instant, qpn: Qpn) -> Option<ConnectionEntry>;

    /// Number of connections.
    fn connection_count(&self) -> usize;

    /// Number of services.
    fn service_count(&self) -> usize;

    /// Operations that services had outstanding when they were last polled.
    fn operation_count(&self) -> usize {
        0
    }

    /// Answers [`Question::ControlCounts`].
    fn count_control(&mut self, reply: SyncSender<ControlCounts>);

    /// Answers [`Question::Handshakes`], see [`handshakes`].
    fn list_handshakes(&mut self, from: u32, reply: SyncSender<Part<Handshake>>);

    /// Ends the connection of a queue pair. Returns false if it has none.
    fn disconnect(&mut self, now: Instant, qpn: Qpn) -> bool;
}

impl Question {
    /// Answers. The sender may have timed out, which is no loss.
    #[cold]
    pub fn answer(self, now: Instant, engine: &mut Engine, owner: &mut impl EngineOwner) {
        match self {
            Question::Qps { from, reply } => {
                let items = engine.qps_in(from..from.saturating_add(PART));
                let items = items.map(|info| QpEntry::new(now, info, owner)).collect();
                let _ = reply.try_send(Part { items, more: from.saturating_add(PART) < engine.qp_slots() });
            }
            Question::Qp { qpn, reply } => {
                let _ = reply.try_send(engine.query_qp(qpn).map(|info| Box::new(QpEntry::new(now, info, owner))));
            }
            Question::Keys { from, reply } => {
                let keys = engine.keys();
                let items = keys.list(from..from.saturating_add(PART)).collect();
                let _ = reply.try_send(Part { items, more: from.saturating_add(PART) < keys.slots() });
            }
            Question::Counts { reply } => {
                let _ = reply.try_send(Counts {
                    pd: engine.keys().pd_count(),
                    cq: engine.cq_count(),
                    qp: engine.qp_count(),
                    connections: owner.connection_count(),
                    keys: engine.keys().len(),
                    services: owner.service_count(),
                    srq: engine.srq_count(),
                    ah: engine.ah_count(),
                    timers: engine.timer_count(),
                    operations: owner.operation_count(),
                });
            }
            Question::ControlCounts { reply } => owner.count_control(reply),
            Question::Handshakes { from, reply } => owner.list_handshakes(from, reply),
            Question::Disconnect { qpn, reply } => {
                // The owner hears of an abort as of any error.
                let known = owner.disconnect(now, qpn) || engine.abort_qp(qpn).is_ok();
                let _ = reply.try_send(known);
            }
        }
    }
}

/// The answer to [`Question::Handshakes`].
#[must_use]
pub fn handshakes(cm: &Cm, from: u32) -> Part<Handshake> {
    let items: Vec<Handshake> = cm.handshakes(from).take(PART).collect();
    Part { more: items.len() == PART, items }
}

impl QpEntry {
    fn new(now: Instant, info: QpInfo, owner: &impl EngineOwner) -> QpEntry {
        QpEntry { service: owner.service_of(info.qpn), connection: owner.connection_of(now, info.qpn), info }
    }
}
