//! What those who look after the adapter ask of a worker, and how it answers.
//!
//! Only the worker's own lcore may look at its queue pairs, keys and connections. So a question comes as a message, is
//! answered in one turn of the loop, and costs nothing when nobody asks. Long lists are asked for in parts of
//! [`PART`] slots each, so that no turn becomes long.

use std::net::SocketAddr;
use std::sync::mpsc::SyncSender;

use rxe_proto::cm::ConnId;
use rxe_proto::mem::KeyInfo;
use rxe_proto::transport::{Engine, QpInfo, Qpn};
use rxe_proto::{Duration, Instant};

use super::messages::ToControl;
use super::services::ServiceHost;

/// Slots of a table that one answer covers.
pub(crate) const PART: usize = 64;

/// A question to one worker. Who asks waits for the answer at the other end of `reply`, or has given up.
#[derive(Debug)]
pub(crate) enum Question {
    /// The queue pairs in `PART` slots from here.
    Qps { from: usize, reply: SyncSender<Part<QpEntry>> },
    /// One queue pair.
    Qp { qpn: Qpn, reply: SyncSender<Option<Box<QpEntry>>> },
    /// The keys in `PART` slots from here.
    Keys { from: usize, reply: SyncSender<Part<KeyInfo>> },
    /// How many objects there are.
    Counts { reply: SyncSender<Counts> },
    /// Ends this queue pair, and its connection if it has one; the answer is whether there is such a queue pair.
    Disconnect { qpn: Qpn, reply: SyncSender<bool> },
}

/// What is in some slots of a table.
#[derive(Debug)]
pub(crate) struct Part<T> {
    pub(crate) items: Vec<T>,
    /// Whether the table goes on behind them.
    pub(crate) more: bool,
}

/// A queue pair and what the worker knows of it.
#[derive(Debug)]
pub(crate) struct QpEntry {
    pub(crate) info: QpInfo,
    /// The service that made it.
    pub(crate) service: Option<&'static str>,
    pub(crate) connection: Option<ConnectionEntry>,
}

/// The connection of a queue pair.
#[derive(Debug)]
pub(crate) struct ConnectionEntry {
    pub(crate) conn: ConnId,
    pub(crate) established: bool,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) age: Duration,
}

/// How many objects a worker has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) pd: usize,
    pub(crate) cq: usize,
    pub(crate) qp: usize,
    pub(crate) connections: usize,
    pub(crate) keys: usize,
    pub(crate) services: usize,
    pub(crate) srq: usize,
    pub(crate) ah: usize,
}

impl ServiceHost {
    /// Answers. Whoever asked may have given up, which is no loss.
    #[cold]
    pub(super) fn inspect(&mut self, now: Instant, engine: &mut Engine, question: Question) {
        match question {
            Question::Qps { from, reply } => {
                let items = engine.qps_in(from..from.saturating_add(PART));
                let items = items.map(|info| self.entry(now, info)).collect();
                let _ = reply.try_send(Part { items, more: from.saturating_add(PART) < engine.qp_slots() });
            }
            Question::Qp { qpn, reply } => {
                let _ = reply.try_send(engine.query_qp(qpn).map(|info| Box::new(self.entry(now, info))));
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
                    connections: self.connection_count(),
                    keys: engine.keys().len(),
                    services: self.service_count(),
                    srq: engine.srq_count(),
                    ah: engine.ah_count(),
                });
            }
            Question::Disconnect { qpn, reply } => {
                let known = match self.connection_of(qpn) {
                    Some((conn, _)) => {
                        self.tell(ToControl::Disconnect { conn });
                        true
                    }
                    // The service hears of it as of any error.
                    None => engine.abort_qp(qpn).is_ok(),
                };
                let _ = reply.try_send(known);
            }
        }
    }

    fn entry(&self, now: Instant, info: QpInfo) -> QpEntry {
        let connection = self.connection_of(info.qpn).map(|(conn, connection)| ConnectionEntry {
            conn,
            established: connection.connected,
            peer: connection.peer,
            age: now.saturating_since(connection.since),
        });
        QpEntry { service: self.service_of(info.qpn), connection, info }
    }
}
