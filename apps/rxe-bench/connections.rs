//! The connections of the test: requests them, repeats requests that were rejected for a temporary reason, and disconnects
//! them; each with a limit on how many at the same time.

use std::sync::Arc;

use rxe::CliError;
use rxe_proto::cm::{ConnId, ConnectReply};
use rxe_proto::verbs::{Access, ProtectionDomain, QpCaps, Qpn, QueuePair, Rc};
use rxe_proto::wire::cm::RejReason;
use rxe_proto::{Duration, Instant};
use rxe_service::{Context, QpMap};

use crate::load::RemoteMemory;
use crate::plan::Protocol;
use crate::region::place_of;
use crate::session::{Session, broken, connect};

/// Maximum number of connections that are established or closed concurrently.
const AT_ONCE: usize = 64;
/// Delay before rejected connections are requested again, and the maximum number of attempts.
const RETRY_DELAY: Duration = Duration::from_millis(100);
const ATTEMPTS: u32 = 30;

/// A queue pair, its connection, and the remote memory that the peer has named.
pub struct Connection {
    pub qp: QueuePair<Rc>,
    pub remote: Option<RemoteMemory>,
    conn: Option<ConnId>,
}

/// The connections, without perftest's control connection.
pub struct Connections {
    session: Arc<Session>,
    list: Vec<Connection>,
    /// Index in `list`.
    by_qp: QpMap<usize>,
    /// Number of connections that were requested.
    requested: usize,
    /// Number of established connections.
    established: usize,
    /// Number of connections that `disconnect` has handled.
    disconnecting: usize,
    /// Indexes of connections to request again, and when; the control connection has the index after all others.
    retries: Vec<usize>,
    retry_at: Instant,
    attempts: u32,
}

impl Connections {
    /// No connection yet.
    pub fn new(session: Arc<Session>) -> Connections {
        Connections {
            session,
            list: Vec::new(),
            by_qp: QpMap::default(),
            requested: 0,
            established: 0,
            disconnecting: 0,
            retries: Vec::new(),
            retry_at: Instant::ZERO,
            attempts: 0,
        }
    }

    /// The connections, in the order of their requests.
    pub fn list(&self) -> &[Connection] {
        &self.list
    }

    /// The connections, in the order of their requests.
    pub fn list_mut(&mut self) -> &mut [Connection] {
        &mut self.list
    }

    /// Requests further connections of queue pairs in `pd`, up to the limit of concurrent ones.
    ///
    /// # Errors
    /// A queue pair cannot be created.
    pub fn request(&mut self, cx: &mut Context<'_>, pd: ProtectionDomain) -> Result<(), CliError> {
        while self.requested < self.all() && self.requested - self.established < AT_ONCE {
            self.request_one(cx, pd, self.requested)?;
            self.requested += 1;
        }
        Ok(())
    }

    /// Creates the queue pair of index `index` and requests its connection.
    fn request_one(&mut self, cx: &mut Context<'_>, pd: ProtectionDomain, index: usize) -> Result<(), CliError> {
        let plan = &self.session.plan;
        let answers = plan.wants_answers() || plan.verify;
        // The queue pairs of the additional load follow those of the test.
        let beside = plan.beside().filter(|_| index >= plan.qps as usize);
        let depth = beside.as_ref().unwrap_or(plan).depth();
        let caps = QpCaps {
            max_send_wr: depth.max(1 + u32::from(plan.verify)),
            max_recv_wr: if answers { depth } else { 1 },
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let attr = cx.qp_attr().with_caps(caps);
        let qp = cx.device().create_qp_in_init(pd, attr, Access::empty()).map_err(broken)?;
        self.by_qp.insert(qp.qpn(), index);
        let connection = Connection { qp, remote: None, conn: None };
        match self.list.get_mut(index) {
            Some(former) => *former = connection,
            None => self.list.push(connection),
        }
        // perftest's servers expect no private data.
        let words = if plan.protocol == Protocol::Region { plan.asks_for() } else { String::new() };
        cx.connect(connect(plan, qp, words.as_bytes()));
        Ok(())
    }

    /// Schedules another request for a connection, the control connection for `control`, if the reason `why` of its
    /// rejection is temporary.
    pub fn schedule_retry(&mut self, now: Instant, qp: Qpn, control: bool, why: RejReason) -> bool {
        let temporary = match why {
            // The peer had a queue pair connected to this number, from an earlier process, and has destroyed it now.
            RejReason::StaleConnection => true,
            // perftest's servers listen for the connections of the test only some time after the exchange.
            RejReason::InvalidServiceId => self.session.plan.protocol != Protocol::Region && !control,
            _ => false,
        };
        if !temporary || self.attempts == ATTEMPTS {
            return false;
        }
        let index = if control { Some(self.all()) } else { self.by_qp.remove(&qp) };
        let Some(index) = index else { return false };
        if self.retries.is_empty() {
            self.attempts += 1;
            self.retry_at = now + RETRY_DELAY;
        }
        self.retries.push(index);
        true
    }

    /// Whether rejected connections are to be requested again now.
    pub fn is_retry_due(&self, now: Instant) -> bool {
        !self.retries.is_empty() && now >= self.retry_at
    }

    /// Requests connections again after temporary rejections; `true` if the control connection is to be requested again, too.
    ///
    /// # Errors
    /// A queue pair cannot be created.
    pub fn retry(&mut self, cx: &mut Context<'_>, pd: ProtectionDomain) -> Result<bool, CliError> {
        let mut control = false;
        for index in std::mem::take(&mut self.retries) {
            if index < self.all() {
                self.request_one(cx, pd, index)?;
            } else {
                control = true;
            }
        }
        Ok(control)
    }

    /// The peer has accepted the connection of `qp`; `false` if that is none of these.
    pub fn accepted(&mut self, conn: ConnId, qp: Qpn, reply: &ConnectReply) -> bool {
        let Some(connection) = self.get_mut(qp) else { return false };
        connection.conn = Some(conn);
        connection.remote = place_of(&reply.private_data);
        true
    }

    /// A connection is established.
    pub fn established(&mut self) {
        self.established += 1;
    }

    /// Whether all connections are established.
    pub fn all_established(&self) -> bool {
        self.established == self.all()
    }

    /// Whether the peer has named memory for `qp`.
    pub fn has_remote(&self, qp: Qpn) -> bool {
        self.by_qp
            .get(&qp)
            .and_then(|index| self.list.get(*index))
            .is_some_and(|connection| connection.remote.is_some())
    }

    /// The connection of `qp` is closed.
    pub fn closed(&mut self, qp: Qpn) {
        if self.get_mut(qp).is_some_and(|connection| connection.conn.take().is_some()) {
            self.established = self.established.saturating_sub(1);
        }
    }

    /// Disconnects further connections, up to the limit of concurrent ones; `true` when none is left.
    pub fn disconnect(&mut self, cx: &mut Context<'_>) -> bool {
        while let Some(connection) = self.list.get(self.disconnecting)
            && self.disconnecting + self.established < self.list.len() + AT_ONCE
        {
            if let Some(conn) = connection.conn {
                cx.disconnect(conn);
            }
            self.disconnecting += 1;
        }
        self.established == 0
    }

    /// Number of connections in the plan.
    fn all(&self) -> usize {
        self.session.plan.connections() as usize
    }

    fn get_mut(&mut self, qp: Qpn) -> Option<&mut Connection> {
        self.by_qp.get(&qp).and_then(|index| self.list.get_mut(*index))
    }
}
