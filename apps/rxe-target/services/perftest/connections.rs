//! perftest over the connection manager: `-z` has a control connection in place of the TCP stream, `-R` connections, or
//! datagram queue pairs, for the tests too.
//!
//! All use one port, and nothing in a request shows its kind: a connection whose first message is a version is the control
//! connection.

use std::net::{IpAddr, SocketAddr};

use rxe_proto::cm::{ConnId, ConnectRequest, SidrRequest};
use rxe_proto::verbs::{
    Access, AnyQueuePair, MemoryRegion, Qpn, QueuePair, Rc, RemoteAddr, Sge, Ud, WcOpcode, WorkCompletion,
};
use rxe_proto::wire::cm::{CmTransport, RejReason, SidrStatus};
use rxe_proto::wire::mad::RDMA_UDP_QKEY;
use rxe_proto::wire::{PathMtu, Psn};
use rxe_proto::{Duration, Instant};
use rxe_service::{Accept, Charge, Context, DatagramDecision, Decision, EndReason, PeerPath, QpMap, Standing};

use super::client::{Channel, Client, RECORDS_OF_WRITE_LAT};
use super::first_writer::FirstWriter;
use super::record::Record;
use super::refusals;
use super::talk::{VERSION, version};
use super::test_qp::{Answerer, CAPS, MAX_INLINE, PEER_ACCESS, RD_ATOMIC, Sink, is_untouched};
use super::{NAME, NEXT_TURN, Perftest, log_first_writer};
use crate::config::PerftestConfig;
use crate::services::out_of_band::{DatagramTo, datagram_qp};

/// Timers with this bit are for connections, by the number of their queue pair.
pub const CONNECTION: u64 = 1 << 49;
/// Path requests with this bit are for datagrams, by the number of our queue pair.
pub const DATAGRAM: u64 = 1 << 50;
/// A datagram carries no more than the largest path MTU.
const LONGEST_DATAGRAM: usize = PathMtu::Mtu4096.bytes();
/// Interval of checks of a silent test connection: it may be ib_write_lat's.
const LOOK: Duration = Duration::from_millis(250);

/// The purpose of a connection, known from its first message.
pub enum Role {
    /// A test, or unknown before the first message.
    Test,
    /// The control connection of this client.
    Control(u64),
}

/// A connection of one client.
pub struct Connection {
    conn: ConnId,
    client: IpAddr,
    path_mtu: PathMtu,
    /// The client's queue pair, and the PSN that it begins with.
    remote: (Qpn, Psn),
    pub(super) role: Role,
    /// We have requested its disconnection.
    ending: bool,
    /// Whether a work request has completed on it.
    spoken: bool,
    /// Receives the beginning of each message, separate from the other connections' messages.
    head: MemoryRegion,
    answers: Answerer,
    writer: Option<FirstWriter>,
    charge: Charge,
}

/// A datagram queue pair of one client.
pub struct Datagrams {
    client: IpAddr,
    path: Option<PeerPath>,
    /// The client's queue pair, known from its first datagram.
    sender: Option<Qpn>,
    answers: Answerer,
    /// Memory for datagrams alone: a SIDR request, whose address may be forged, costs little.
    sink: Sink,
    charge: Charge,
}

impl Datagrams {
    /// A datagram has come: the client is there.
    fn prove(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        let proved = cx.ledger().prove(&mut self.charge).and_then(|()| self.sink.prove(cx));
        proved.map_err(|refusal| refusal.to_string())
    }
}

/// The memory behind all connections of one client on this worker.
pub struct Shared {
    sink: Sink,
    users: u32,
}

impl Perftest {
    fn share(&mut self, cx: &mut Context<'_>, client: IpAddr) -> Result<(), String> {
        if let Some(shared) = self.shared.get_mut(&client) {
            shared.users += 1;
            return Ok(());
        }
        let pd = self.pds.pop().unwrap_or_else(|| cx.device().alloc_pd());
        let who = (client, Standing::Unproven);
        let sink = Sink::take(cx, &self.account, pd, who, self.config.max_message);
        let sink = sink.inspect_err(|_| self.pds.push(pd))?;
        self.shared.insert(client, Shared { sink, users: 1 });
        Ok(())
    }

    fn unshare(&mut self, cx: &mut Context<'_>, client: IpAddr) {
        let Some(shared) = self.shared.get_mut(&client) else { return };
        shared.users -= 1;
        if shared.users == 0
            && let Some(shared) = self.shared.remove(&client)
        {
            self.pds.push(shared.sink.close(cx));
        }
    }

    /// Handles a connection request, for control or for a test.
    pub fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        let client = request.peer_gid.ip();
        if request.transport != CmTransport::Rc {
            let why = "perftest connects reliable connections only";
            return self.metrics.reject(cx.now(), request, RejReason::ConsumerDefined, why);
        }
        let accepted = self
            .share(cx, client)
            .and_then(|()| self.accept(cx, client, request).inspect_err(|_| self.unshare(cx, client)));
        match accepted {
            Ok(qp) => Decision::Accept(Accept {
                // At most 128.
                responder_resources: RD_ATOMIC as u8,
                ..Accept::new(qp)
            }),
            Err(why) => self.metrics.reject(cx.now(), request, RejReason::NoResources, why),
        }
    }

    fn accept(
        &mut self,
        cx: &mut Context<'_>,
        client: IpAddr,
        request: &ConnectRequest,
    ) -> Result<QueuePair<Rc>, String> {
        let Some(Shared { sink, .. }) = self.shared.get(&client) else { return Err("no memory".to_owned()) };
        let pd = sink.pd;
        let memory = cx.alloc_memory(MAX_INLINE).map_err(|error| error.to_string())?;
        let head = cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE).map_err(|error| error.to_string())?;
        let attr = cx.qp_attr().with_caps(CAPS);
        let charge = match self.account.charge_qp(cx, client, CAPS, Standing::Unproven) {
            Ok(charge) => charge,
            Err(why) => {
                let _ = cx.device().dereg_mr(&head);
                return Err(why);
            }
        };
        let qp = match cx.device().create_qp_in_init::<Rc>(pd, attr, PEER_ACCESS) {
            Ok(qp) => qp,
            Err(error) => {
                let _ = cx.device().dereg_mr(&head);
                cx.ledger().release(charge);
                return Err(refusals::no_queue_pair(error));
            }
        };
        cx.set_name(qp, NAME);
        let first = Sge { addr: head.addr(), length: MAX_INLINE as u32, lkey: head.lkey() };
        let answers = Answerer::new(cx, qp.into(), Psn::new(0), &[first, sink.receive()]);
        let answers = match answers {
            Ok(answers) => answers,
            Err(why) => {
                let mut dev = cx.device();
                let _ = (dev.destroy_qp(qp), dev.dereg_mr(&head));
                cx.ledger().release(charge);
                return Err(why);
            }
        };
        let ours = Record {
            out_reads: u32::from(request.initiator_depth).clamp(1, RD_ATOMIC),
            qpn: qp.qpn(),
            psn: Psn::new(0),
            rkey: sink.region.rkey(),
            vaddr: sink.region.addr(),
            gid: request.local_gid,
        };
        let remote = Qpn::new(request.remote_qpn);
        self.rendezvous.accepted(client, remote, ours);
        let connection = Connection {
            conn: request.conn,
            client,
            path_mtu: request.path_mtu,
            remote: (remote, Psn::new(0)),
            role: Role::Test,
            ending: false,
            spoken: false,
            head,
            answers,
            writer: None,
            charge,
        };
        self.connections.insert(qp.qpn(), connection);
        Ok(qp)
    }

    /// Handles an established connection.
    pub fn connected(&mut self, cx: &mut Context<'_>, qp: Qpn) {
        let Some(connection) = self.connections.get_mut(&qp) else { return };
        if let Ok(info) = cx.device().query_qp(connection.answers.qp)
            && !connection.spoken
        {
            connection.remote.1 = info.expected_psn;
        }
        let proved = cx.ledger().prove(&mut connection.charge);
        let client = connection.client;
        let shared = self.shared.get_mut(&client).map_or(Ok(()), |shared| shared.sink.prove(cx));
        if let Err(refusal) = proved.and(shared) {
            self.break_off(cx, qp, &refusal.to_string());
            return;
        }
        // It may turn out to be silent.
        cx.set_timer(LOOK, self.tag | CONNECTION | u64::from(qp.get()));
    }

    fn log_end(&self, cx: &Context<'_>, connection: &Connection, reason: EndReason) {
        let EndReason::QueuePair(cause) = reason else {
            self.metrics.gone(cx.now(), connection.client, reason);
            return;
        };
        let PerftestConfig { max_message, write_lat_after, .. } = self.config;
        let writer = connection.writer.as_ref().and_then(|writer| writer.refusal(cause, write_lat_after));
        match (writer, refusals::beyond_memory(cause, max_message)) {
            (Some(why), _) => self.metrics.refuse(cx.now(), connection.client, "a test", why),
            (None, Some(why)) => self.metrics.refuse(cx.now(), connection.client, "a message", why),
            (None, None) => self.metrics.gone(cx.now(), connection.client, reason),
        }
    }

    /// Handles the end of a connection.
    pub fn disconnected(&mut self, cx: &mut Context<'_>, qp: Qpn, reason: EndReason) {
        let Some(connection) = self.connections.remove(&qp) else { return };
        self.log_end(cx, &connection, reason);
        self.rendezvous.closed(connection.client, connection.remote.0);
        if let Role::Control(number) = connection.role {
            self.end(cx, number, "it disconnected");
        }
        if let Some(writer) = connection.writer {
            writer.close(cx);
        }
        cx.ledger().release(connection.charge);
        let _ = cx.device().dereg_mr(&connection.head);
        connection.answers.close(&mut cx.device());
        self.unshare(cx, connection.client);
    }

    /// Handles a completion on a connection or datagram queue pair; `false` if it is not ours.
    pub fn connection_completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) -> bool {
        if let Some(connection) = self.connections.get_mut(&wc.qpn) {
            let first = !std::mem::replace(&mut connection.spoken, true);
            let done = match wc.opcode {
                WcOpcode::Recv => self.connection_message(cx, wc, first),
                WcOpcode::Send => match connection.role {
                    Role::Test => connection.answers.taken(cx, wc),
                    Role::Control(_) => Ok(()),
                },
                _ => {
                    if let Some(writer) = &mut connection.writer {
                        writer.completed(cx.now(), wc);
                    }
                    Ok(())
                }
            };
            if let Err(why) = done {
                self.break_off(cx, wc.qpn, &why);
            }
            return true;
        }
        let Some(datagrams) = self.datagrams.get_mut(&wc.qpn) else { return false };
        let done = match wc.opcode {
            WcOpcode::Recv => {
                self.metrics.exchanges.inc();
                datagrams.sender = wc.src_qpn.or(datagrams.sender);
                datagrams
                    .prove(cx)
                    .and_then(|()| datagrams.answers.received(cx, wc))
                    .and_then(|()| datagrams.answer(cx))
            }
            _ => datagrams.answers.taken(cx, wc),
        };
        if let Err(why) = done {
            self.metrics.post_failures.inc();
            self.close_datagrams(cx, wc.qpn, &why);
        }
        true
    }

    /// Handles a message on a connection. The `first` one shows the connection's role.
    fn connection_message(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion, first: bool) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&wc.qpn) else { return Ok(()) };
        if let Role::Test = connection.role
            && !(first && wc.imm.is_none() && wc.byte_len as usize == VERSION)
        {
            self.metrics.exchanges.inc();
            return connection.answers.received(cx, wc).and_then(|()| connection.answers.answer(cx));
        }
        let mut message = [0; MAX_INLINE];
        connection.head.memory().read(0, &mut message).map_err(|error| error.to_string())?;
        let message = message.get(..wc.byte_len as usize);
        let greets = first
            && wc.imm.is_none()
            && message.is_some_and(|message| message.try_into().is_ok_and(|m: [u8; VERSION]| version(&m).is_some()));
        if greets {
            let (channel, from) = (Channel::Control(wc.qp(), connection.conn), (connection.client, 0).into());
            // The port's own path MTU; the connection's may be smaller.
            let port = cx.device().query_qp(wc.qp()).ok().and_then(|info| Some(info.path?.port));
            let path_mtu = port.and_then(|port| cx.port(port)).map(|port| port.path_mtu);
            let path_mtu = path_mtu.unwrap_or(connection.path_mtu);
            let client = Client::new(cx, channel, from, path_mtu);
            let number = self.admit(client);
            if let Some(connection) = self.connections.get_mut(&wc.qpn) {
                connection.role = Role::Control(number);
            }
        }
        let Some(connection) = self.connections.get_mut(&wc.qpn) else { return Ok(()) };
        let Role::Control(number) = connection.role else {
            self.metrics.exchanges.inc();
            return connection.answers.received(cx, wc).and_then(|()| connection.answers.answer(cx));
        };
        connection.answers.post_recv(cx).map_err(|error| error.to_string())?;
        match message {
            Some(message) => self.hear(cx, number, message),
            None => self.nonsense(cx, number, "it sent what is no message of perftest's"),
        }
        Ok(())
    }

    /// Checks a connection for a silent ib_write_lat client, or polls for its next message.
    pub fn look_at_connection(&mut self, cx: &mut Context<'_>, qp: Qpn) {
        let Some(connection) = self.connections.get_mut(&qp) else { return };
        let Some(Shared { sink, .. }) = self.shared.get(&connection.client) else { return };
        let mut after = LOOK;
        let done = match &mut connection.writer {
            Some(writer) => {
                after = NEXT_TURN;
                let before = writer.strokes;
                let done = writer.poll(cx, None, sink);
                self.metrics.exchanges.add(writer.strokes - before);
                if writer.is_exhausted {
                    let why = refusals::write_lat_beyond_memory(self.config.max_message);
                    self.metrics.refuse(cx.now(), connection.client, "a test", why);
                    cx.disconnect(connection.conn);
                    return;
                }
                done
            }
            None if connection.spoken || !is_untouched(&cx.device(), qp.into(), connection.remote.1) => return,
            None => match self.rendezvous.meeting(connection.client, connection.remote.0) {
                Some(meeting) => match meeting.theirs {
                    Some((theirs, at))
                        if meeting.records == RECORDS_OF_WRITE_LAT
                            && theirs.out_reads == 1
                            // Without a key it lends no memory for WRITEs: it tests SENDs, and is slow.
                            && theirs.rkey != 0
                            && cx.now().saturating_since(at) >= self.config.write_lat_after =>
                    {
                        after = NEXT_TURN;
                        let remote = RemoteAddr { addr: theirs.vaddr, rkey: theirs.rkey };
                        let first = self.config.write_lat_size;
                        log_first_writer(connection.client, self.config.write_lat_after);
                        let writer =
                            FirstWriter::start(cx, &self.account, connection.client, qp.into(), sink, remote, first);
                        writer.map(|writer| connection.writer = Some(writer))
                    }
                    _ => Ok(()),
                },
                None => return,
            },
        };
        match done {
            Ok(()) => cx.set_timer(after, self.tag | CONNECTION | u64::from(qp.get())),
            Err(why) => self.break_off(cx, qp, &why),
        }
    }

    fn break_off(&mut self, cx: &mut Context<'_>, qp: Qpn, why: &str) {
        if let Some(connection) = self.connections.get(&qp) {
            self.metrics.fail(cx.now(), connection.client, why);
            cx.disconnect(connection.conn);
        }
    }

    /// Handles a SIDR request.
    pub fn datagram_request(&mut self, cx: &mut Context<'_>, request: &SidrRequest) -> DatagramDecision {
        let client = request.path.peer.ip();
        match self.open_datagrams(cx, client, request) {
            Ok(qp) => {
                self.metrics.connections.inc();
                self.relieve_datagrams(cx, qp.qpn());
                cx.resolve_path(client, self.tag | DATAGRAM | u64::from(qp.qpn().get()));
                DatagramDecision::Accept { qp: qp.into(), qkey: RDMA_UDP_QKEY, private_data: Vec::new() }
            }
            Err(why) => {
                self.metrics.refuse(cx.now(), SocketAddr::from(request.source), "a datagram queue pair", why);
                DatagramDecision::Refuse { status: SidrStatus::NoQp }
            }
        }
    }

    fn open_datagrams(
        &mut self,
        cx: &mut Context<'_>,
        client: IpAddr,
        request: &SidrRequest,
    ) -> Result<QueuePair<Ud>, String> {
        let charge = self.account.charge_qp(cx, client, CAPS, Standing::Unproven)?;
        let pd = self.pds.pop().unwrap_or_else(|| cx.device().alloc_pd());
        let sink = match Sink::take(cx, &self.account, pd, (client, Standing::Unproven), LONGEST_DATAGRAM) {
            Ok(sink) => sink,
            Err(why) => {
                self.pds.push(pd);
                cx.ledger().release(charge);
                return Err(why);
            }
        };
        let created = datagram_qp(cx, pd, CAPS, request.path.port).map_err(refusals::no_queue_pair);
        let opened = created.and_then(|qp| {
            cx.set_name(qp, NAME);
            let answers = Answerer::new(cx, qp.into(), Psn::new(0), &[sink.receive()]);
            let answers = answers.inspect_err(|_| {
                let _ = cx.device().destroy_qp(qp);
            })?;
            Ok((qp, answers))
        });
        match opened {
            Ok((qp, answers)) => {
                self.datagrams.insert(qp.qpn(), Datagrams { client, path: None, sender: None, answers, sink, charge });
                Ok(qp)
            }
            Err(why) => {
                self.pds.push(sink.close(cx));
                cx.ledger().release(charge);
                Err(why)
            }
        }
    }

    /// Closes the oldest datagram queue pair to which nothing has come, if such ones use most of what they may. `new` is the
    /// newest one. The datagrams of a client that is there come right after its SIDR reply.
    fn relieve_datagrams(&mut self, cx: &mut Context<'_>, new: Qpn) {
        let silent = |datagrams: &QpMap<Datagrams>, qp| datagrams.get(&qp).is_some_and(|d| d.sender.is_none());
        while self.unproven.front().is_some_and(|&qp| !silent(&self.datagrams, qp)) {
            self.unproven.pop_front();
        }
        self.unproven.push_back(new);
        if cx.is_crowded()
            && self.unproven.len() > 1
            && let Some(oldest) = self.unproven.pop_front()
        {
            self.metrics.evicted.inc();
            self.close_datagrams(cx, oldest, "it made room");
        }
    }

    /// Handles the resolved path for a queue pair's datagrams.
    pub fn datagram_path(&mut self, cx: &mut Context<'_>, qp: Qpn, path: Option<&PeerPath>) {
        let Some(datagrams) = self.datagrams.get_mut(&qp) else { return };
        datagrams.path = path.cloned();
        let done = match path {
            Some(_) => datagrams.answer(cx),
            None => Err(format!("there is no way to its address {}", datagrams.client)),
        };
        if let Err(why) = done {
            self.metrics.fail(cx.now(), datagrams.client, &why);
            self.close_datagrams(cx, qp, &why);
        }
    }

    fn close_datagrams(&mut self, cx: &mut Context<'_>, qp: Qpn, why: &str) {
        let Some(datagrams) = self.datagrams.remove(&qp) else { return };
        tracing::debug!(client = %datagrams.client, "perftest datagram queue pair closed: {why}");
        datagrams.answers.close(&mut cx.device());
        let _ = cx.device().destroy_qp(AnyQueuePair::from(qp));
        self.pds.push(datagrams.sink.close(cx));
        cx.ledger().release(datagrams.charge);
    }

    /// Ends connections and datagram queue pairs that are idle for longer than the timeout.
    pub fn sweep_connections(&mut self, cx: &mut Context<'_>) {
        let (now, limit) = (cx.now(), self.config.idle_timeout);
        let quiet = |heard: Instant| now.saturating_since(heard) >= limit;
        for connection in self.connections.values_mut() {
            connection.answers.look(&cx.device());
            self.rendezvous.touch(connection.client, connection.answers.heard);
        }
        for connection in self.connections.values_mut() {
            // Activity on one connection of a client keeps all of them.
            if !connection.ending && self.rendezvous.heard(connection.client).is_some_and(quiet) {
                connection.ending = true;
                self.metrics.give_up(cx.now(), connection.client, limit);
                cx.disconnect(connection.conn);
            }
        }
        let silent = self.datagrams.iter().filter(|(_, datagrams)| quiet(datagrams.answers.heard));
        let silent: Vec<Qpn> = silent.map(|(qp, _)| *qp).collect();
        for qp in silent {
            // Clients do not announce the end of datagram tests.
            self.close_datagrams(cx, qp, "nothing came for too long");
        }
    }
}

impl Datagrams {
    /// Answers, as soon as sender and path are known.
    fn answer(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        let (Some(path), Some(sender)) = (&self.path, self.sender) else { return Ok(()) };
        if self.answers.to.is_none() {
            let to = DatagramTo::new(&mut cx.device(), self.answers.qp, path, sender, RDMA_UDP_QKEY);
            self.answers.to = Some(to.map_err(|error| error.to_string())?);
        }
        self.answers.answer(cx)
    }
}
