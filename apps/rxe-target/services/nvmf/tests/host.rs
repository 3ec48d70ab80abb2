//! A host: sessions that connect, send commands and end as a test orders.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use rxe_nvmf::host::{Action, HostConfig, IoCommand, IoCommands, Session};
use rxe_nvmf::wire::log::{LogFields, LogId};
use rxe_nvmf::wire::private_data::QueueRequest;
use rxe_nvmf::wire::{
    AsyncEvent, CQE_LEN, ConnectAttributes, ConnectCommand, ConnectData, Cqe, DYNAMIC_CONTROLLER, HostBuffer, IoOpcode,
    RwFields, SglDescriptor, Status,
};
use rxe_proto::cm::ConnId;
use rxe_proto::verbs::{
    Access, MemoryRegion, ProtectionDomain, QpCaps, Qpn, QueuePair, Rc, RecvWr, Sge, WcOpcode, WcStatus,
    WorkCompletion, WorkRequest,
};
use rxe_proto::wire::cm::Rej;
use rxe_service::{Connect, Context, EndReason, Outstanding, Service};
use zerocopy::{FromBytes, IntoBytes};

/// Keep alive timeout of every session in milliseconds.
pub const KATO_MS: u32 = 2000;
const RECEIVES: u16 = 128;
const CAPS: QpCaps =
    QpCaps { max_send_wr: 256, max_recv_wr: RECEIVES as u32, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
/// Parts of a session's memory: the session's buffer, data, capsules, completions of 9 queues.
const DATA: usize = 4096;
const DATA_LEN: usize = 1 << 20;
const CAPSULES: usize = DATA + DATA_LEN;
const CAPSULE_LEN: usize = 2048;
const CAPSULE_COUNT: usize = 256;
const COMPLETIONS: usize = CAPSULES + CAPSULE_LEN * CAPSULE_COUNT;
const QUEUES: usize = 9;
const LEN: usize = COMPLETIONS + QUEUES * RECEIVES as usize * CQE_LEN;

/// What a test orders.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// Begins a session with this number of I/O queues.
    Begin { io_queues: u16 },
    /// A queue pair without a Connect.
    OpenOnly { qid: u16 },
    /// An I/O command of a session: number of blocks, and what to do.
    Io { session: usize, qid: u16, kind: IoKind, block: u64, blocks: u32 },
    /// An I/O command whose answer is kept in [`Host::answers`]. It has a part of the session's memory to itself, so at most
    /// [`TRACKED`] are outstanding in a session.
    Tracked { session: usize, qid: u16, nsid: u32, kind: IoKind, block: u64, blocks: u32, token: u64 },
    /// A queue pair without a Connect sends this number of them at once.
    Connects { qid: u16, count: usize },
    /// A session disconnects in order.
    ShutDown { session: usize },
    /// A session sends a Keep Alive.
    KeepAlive { session: usize },
    /// A session reads the first bytes of a log into [`Host::logs`]; it sends no other admin command meanwhile.
    ReadLog { session: usize, log: LogId, len: u32 },
    /// A queue is disconnected, whatever it does.
    Disconnect { session: usize, qid: u16 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoKind {
    Read,
    Write,
    Compare,
    Verify,
    WriteDurably,
    WriteZeroes,
    WriteZeroesDeallocate,
    Deallocate,
    Flush,
    /// A command that is refused.
    OutOfRange,
}

/// Command id of [`Order::ReadLog`], which is none of a session's.
const READ_LOG: u16 = 0x0F07;

/// The number of commands with memory of their own, and the bytes that each has.
pub const TRACKED: usize = 32;
const TRACKED_LEN: usize = DATA_LEN / TRACKED;

/// The answer to a tracked command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    pub token: u64,
    /// `None` if the command was not sent.
    pub status: Option<Status>,
    /// For a read, the value of each block; `None` if its words differ.
    pub values: Vec<Option<u64>>,
}

/// A tracked command without an answer.
struct Pending {
    token: u64,
    slot: usize,
    blocks: u32,
    reads: bool,
}

struct HostQueue {
    qp: QueuePair<Rc>,
    conn: Option<ConnId>,
    commands: IoCommands,
}

/// A connection to the subsystem.
struct Client {
    session: Session,
    region: MemoryRegion,
    queues: BTreeMap<u16, HostQueue>,
    capsules: usize,
    /// By queue and number.
    tracked: BTreeMap<(u16, u16), Pending>,
    slots: Vec<usize>,
    /// Bytes of the log that is being read.
    log_len: usize,
    /// It has been ready once: completions of I/O queues are those of I/O commands.
    ready: bool,
    failed: bool,
}

/// A host. Sessions are numbered in the order in which they begin.
pub struct Host {
    target: IpAddr,
    config: HostConfig,
    pub orders: VecDeque<Order>,
    clients: Vec<Client>,
    /// Session and queue of a queue pair.
    owners: BTreeMap<Qpn, (usize, u16)>,
    /// Queue pairs of [`Order::OpenOnly`].
    pub opened: usize,
    pub rejected: usize,
    pub completed: u64,
    pub answers: Vec<Answer>,
    /// What [`Order::ReadLog`] has read.
    pub logs: Vec<Vec<u8>>,
    pub events: Vec<AsyncEvent>,
    /// Queue pairs of [`Order::Connects`], with the number of Connects.
    bare: BTreeMap<Qpn, (QueuePair<Rc>, MemoryRegion, usize)>,
    pd: Option<ProtectionDomain>,
}

impl Host {
    pub fn new(target: IpAddr, number: u8, subsystem: &str) -> Host {
        let config = HostConfig {
            host_nqn: format!("nqn.2026-01.test:host{number}").parse().expect("an NQN"),
            host_id: [number; 16],
            subsystem: subsystem.parse().expect("an NQN"),
            kato_ms: KATO_MS,
            io_queues: 0,
            queue_size: RECEIVES,
        };
        Host {
            target,
            config,
            orders: VecDeque::new(),
            clients: Vec::new(),
            owners: BTreeMap::new(),
            opened: 0,
            rejected: 0,
            completed: 0,
            answers: Vec::new(),
            logs: Vec::new(),
            events: Vec::new(),
            bare: BTreeMap::new(),
            pd: None,
        }
    }

    /// Its sessions to come have no keep alive timeout.
    pub fn forgo_keep_alive(&mut self) {
        self.config.kato_ms = 0;
    }

    pub fn sessions(&self) -> usize {
        self.clients.len()
    }

    pub fn is_ready(&self, session: usize) -> bool {
        self.clients.get(session).is_some_and(|client| client.session.is_ready() && !client.failed)
    }

    /// Whether a session has ended, or was refused, and all of its queues are disconnected.
    pub fn has_ended(&self, session: usize) -> bool {
        let ended = |client: &Client| (client.failed || client.session.is_closed()) && client.queues.is_empty();
        self.clients.get(session).is_some_and(ended)
    }

    /// I/O commands without a completion on queues that are connected.
    pub fn outstanding(&self) -> usize {
        let live = self.clients.iter().filter(|client| !client.failed);
        live.flat_map(|client| client.queues.values()).map(|queue| queue.commands.outstanding()).sum()
    }

    fn obey(&mut self, cx: &mut Context<'_>, order: Order) {
        match order {
            Order::Begin { io_queues } => {
                let memory = cx.alloc_memory(LEN).expect("memory");
                let pd = self.pd(cx);
                let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
                let region = cx.device().reg_mr(pd, memory, access).expect("a region");
                let buffer = HostBuffer { addr: region.addr(), len: 4096, rkey: region.rkey(), invalidate: false };
                let session = Session::new(HostConfig { io_queues, ..self.config.clone() }, buffer);
                let queues = BTreeMap::new();
                self.clients.push(Client {
                    session,
                    region,
                    queues,
                    capsules: 0,
                    tracked: BTreeMap::new(),
                    slots: (0..TRACKED).collect(),
                    log_len: 0,
                    ready: false,
                    failed: false,
                });
                self.act(cx, self.clients.len() - 1);
            }
            Order::OpenOnly { qid } => {
                let request = QueueRequest { qid, host_receives: RECEIVES, host_sqsize: 31 };
                self.connect(cx, request);
            }
            Order::Io { session, qid, kind, block, blocks } => self.submit(cx, session, qid, kind, block, blocks),
            Order::Tracked { session, qid, nsid, kind, block, blocks, token } => {
                if !self.send_tracked(cx, session, qid, nsid, kind, (block, blocks), token) {
                    self.answers.push(Answer { token, status: None, values: Vec::new() });
                }
            }
            Order::Connects { qid, count } => {
                let request = QueueRequest { qid, host_receives: RECEIVES, host_sqsize: 31 };
                let memory = cx.alloc_memory(LEN).expect("memory");
                let pd = self.pd(cx);
                let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
                let region = cx.device().reg_mr(pd, memory, access).expect("a region");
                let qp = self.connect(cx, request);
                self.bare.insert(qp.qpn(), (qp, region, count));
            }
            Order::ShutDown { session } => {
                if let Some(client) = self.clients.get_mut(session).filter(|client| !client.failed) {
                    client.session.shut_down();
                    self.act(cx, session);
                }
            }
            Order::KeepAlive { session } => {
                if let Some(client) = self.clients.get_mut(session).filter(|client| !client.failed) {
                    client.session.keep_alive();
                    self.act(cx, session);
                }
            }
            Order::ReadLog { session, log, len } => {
                let client = &mut self.clients[session];
                let (addr, rkey) = (client.region.addr() + DATA as u64, client.region.rkey());
                let to = SglDescriptor::Keyed(HostBuffer { addr, len, rkey, invalidate: false });
                client.log_len = len as usize;
                client.send(cx, 0, LogFields::new(log, u64::from(len)).to_sqe(READ_LOG, to).as_bytes());
            }
            Order::Disconnect { session, qid } => {
                let Some(client) = self.clients.get_mut(session) else { return };
                let conn = client.queues.get(&qid).and_then(|queue| queue.conn);
                if let Some(conn) = conn {
                    client.failed = true;
                    cx.disconnect(conn);
                }
            }
        }
    }

    fn pd(&mut self, cx: &mut Context<'_>) -> ProtectionDomain {
        *self.pd.get_or_insert_with(|| cx.device().alloc_pd())
    }

    fn connect(&mut self, cx: &mut Context<'_>, request: QueueRequest) -> QueuePair<Rc> {
        let pd = self.pd(cx);
        let attr = cx.qp_attr().with_caps(CAPS);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let qp: QueuePair<Rc> = cx.device().create_qp_in_init(pd, attr, access).expect("a queue pair");
        cx.connect(Connect {
            responder_resources: 16,
            private_data: request.to_bytes().to_vec(),
            ..Connect::new(SocketAddr::new(self.target, 4420), qp)
        });
        qp
    }

    /// Takes the actions of a session.
    fn act(&mut self, cx: &mut Context<'_>, number: usize) {
        while let Some(action) = self.clients[number].session.next_action() {
            if self.clients[number].failed {
                return;
            }
            match action {
                Action::OpenQueue { qid, request } => {
                    let qp = self.connect(cx, request);
                    let client = &mut self.clients[number];
                    for slot in 0..RECEIVES {
                        client.post_receive(cx, qp, qid, slot);
                    }
                    let commands = IoCommands::new(qid, RECEIVES - 1);
                    client.queues.insert(qid, HostQueue { qp, conn: None, commands });
                    self.owners.insert(qp.qpn(), (number, qid));
                }
                Action::CloseQueue { qid } => match self.clients[number].queues[&qid].conn {
                    Some(conn) => cx.disconnect(conn),
                    None => panic!("a queue without connection"),
                },
                Action::Send { qid, sqe, capsule, buffer, .. } => {
                    let client = &mut self.clients[number];
                    if let Some(data) = buffer {
                        client.region.memory().write(0, data.as_bytes()).expect("in the region");
                    }
                    let data = capsule.as_ref().map_or(&[][..], |data| data.as_bytes());
                    client.send(cx, qid, &[sqe.as_bytes(), data].concat());
                }
            }
        }
        let client = &mut self.clients[number];
        client.ready |= client.session.is_ready();
    }

    fn submit(&mut self, cx: &mut Context<'_>, number: usize, qid: u16, kind: IoKind, block: u64, blocks: u32) {
        let Some(client) = self.clients.get_mut(number).filter(|client| client.ready && !client.failed) else { return };
        let (addr, rkey) = (client.region.addr() + DATA as u64, client.region.rkey());
        let data = HostBuffer { addr, len: blocks * 4096, rkey, invalidate: false };
        let Some(queue) = client.queues.get_mut(&qid) else { return };
        if let Some(sqe) = queue.commands.submit(&command(1, kind, block, blocks, data)) {
            client.send(cx, qid, sqe.as_bytes());
        }
    }

    /// Sends a command with memory of its own; a write has its token in every word. Returns whether it was sent.
    #[allow(clippy::too_many_arguments, reason = "the parts of a command")]
    fn send_tracked(
        &mut self,
        cx: &mut Context<'_>,
        number: usize,
        qid: u16,
        nsid: u32,
        kind: IoKind,
        (block, blocks): (u64, u32),
        token: u64,
    ) -> bool {
        let live = self.clients.get_mut(number).filter(|client| client.ready && !client.failed);
        let Some(client) = live.filter(|client| client.queues.contains_key(&qid)) else { return false };
        let Some(slot) = client.slots.pop() else { return false };
        let offset = DATA + slot * TRACKED_LEN;
        let bytes = match kind {
            IoKind::Deallocate => [&[0; 4][..], &blocks.to_le_bytes(), &block.to_le_bytes()].concat(),
            IoKind::Write | IoKind::WriteDurably | IoKind::Compare => token.to_le_bytes().repeat(blocks as usize * 512),
            _ => Vec::new(),
        };
        client.region.memory().write(offset, &bytes).expect("in the region");
        let len = if kind == IoKind::Deallocate { 16 } else { blocks * 4096 };
        let (addr, rkey) = (client.region.addr() + offset as u64, client.region.rkey());
        let data = HostBuffer { addr, len, rkey, invalidate: false };
        let queue = client.queues.get_mut(&qid).expect("a queue");
        let Some(sqe) = queue.commands.submit(&command(nsid, kind, block, blocks, data)) else {
            client.slots.push(slot);
            return false;
        };
        let pending = Pending { token, slot, blocks, reads: kind == IoKind::Read };
        client.tracked.insert((qid, sqe.command_id() & 0xFFF), pending);
        client.send(cx, qid, sqe.as_bytes());
        true
    }

    /// Sends the Connects of a queue pair of [`Order::Connects`]; each has its data in other memory.
    fn send_connects(&self, cx: &mut Context<'_>, qp: Qpn) {
        let Some((qp, region, count)) = self.bare.get(&qp) else { return };
        let HostConfig { host_nqn, host_id, subsystem, .. } = &self.config;
        let data = ConnectData::new(*host_id, DYNAMIC_CONTROLLER, subsystem, host_nqn);
        let attributes = ConnectAttributes::empty();
        let connect = ConnectCommand { qid: 0, sqsize: 31, attributes, kato_ms: KATO_MS };
        for number in 0..*count {
            let (at, capsule) = (number * 4096, CAPSULES + number * CAPSULE_LEN);
            region.memory().write(at, data.as_bytes()).expect("in the region");
            let from =
                HostBuffer { addr: region.addr() + at as u64, len: 1024, rkey: region.rkey(), invalidate: false };
            let sqe = connect.to_sqe(number as u16, SglDescriptor::Keyed(from));
            region.memory().write(capsule, sqe.as_bytes()).expect("in the region");
            let sge = Sge { addr: region.addr() + capsule as u64, length: 64, lkey: region.lkey() };
            cx.device().post_send(*qp, WorkRequest::send(&[sge])).expect("room for it");
        }
    }

    /// A completion has arrived. Each command has one at most.
    fn answered(&mut self, cx: &mut Context<'_>, number: usize, qid: u16, cqe: &Cqe) {
        let client = &mut self.clients[number];
        if qid > 0 && client.ready {
            let queue = client.queues.get_mut(&qid).expect("a queue");
            let completed = queue.commands.complete(cqe, None).expect("the completion of an outstanding command");
            self.completed += 1;
            if let Some(Pending { token, slot, blocks, reads }) = client.tracked.remove(&(qid, completed.tag)) {
                let blocks = if reads && completed.status.is_success() { blocks as usize } else { 0 };
                let value = |block: usize| {
                    let mut bytes = [0; 4096];
                    let offset = DATA + slot * TRACKED_LEN + block * 4096;
                    client.region.memory().read(offset, &mut bytes).expect("in the region");
                    let (words, _) = bytes.as_chunks::<8>();
                    words.iter().all(|word| *word == words[0]).then(|| u64::from_le_bytes(words[0]))
                };
                let values = (0..blocks).map(value).collect();
                client.slots.push(slot);
                self.answers.push(Answer { token, status: Some(completed.status), values });
            }
            return;
        }
        if cqe.command_id() == READ_LOG {
            assert!(cqe.status().is_success(), "{}", cqe.status());
            let mut log = vec![0; client.log_len];
            client.region.memory().read(DATA, &mut log).expect("in the region");
            return self.logs.push(log);
        }
        let mut data = [0; 4096];
        client.region.memory().read(0, &mut data).expect("in the region");
        match client.session.completed(cqe, &data) {
            Ok(event) => self.events.extend(event),
            // Refused: the queues are disconnected.
            Err(_) => return client.fail(cx),
        }
        self.act(cx, number);
    }
}

fn command(nsid: u32, kind: IoKind, block: u64, blocks: u32, data: HostBuffer) -> IoCommand {
    let flags = |fua, deallocate| RwFields { slba: block, blocks, fua, deallocate }.to_cdws();
    let write = IoCommand::write(nsid, block, blocks, data);
    let zeroes = IoCommand::write_zeroes(nsid, block, blocks);
    match kind {
        IoKind::Read => IoCommand::read(nsid, block, blocks, data),
        IoKind::Write => write,
        IoKind::WriteDurably => IoCommand { cdws: flags(true, false), ..write },
        IoKind::Compare => IoCommand { opcode: IoOpcode::Compare, ..write },
        IoKind::Verify => IoCommand { opcode: IoOpcode::Verify, ..zeroes },
        IoKind::WriteZeroes => zeroes,
        IoKind::WriteZeroesDeallocate => IoCommand { cdws: flags(false, true), ..zeroes },
        IoKind::Deallocate => IoCommand::deallocate(nsid, 1, SglDescriptor::Keyed(data)),
        IoKind::Flush => IoCommand::flush(nsid),
        IoKind::OutOfRange => IoCommand::read(nsid, u64::MAX, blocks, data),
    }
}

impl Client {
    /// Disconnects all queues.
    fn fail(&mut self, cx: &mut Context<'_>) {
        self.failed = true;
        self.queues.values().filter_map(|queue| queue.conn).for_each(|conn| cx.disconnect(conn));
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.region.addr() + offset as u64, length: length as u32, lkey: self.region.lkey() }
    }

    fn completion_offset(qid: u16, slot: u16) -> usize {
        COMPLETIONS + (usize::from(qid) * usize::from(RECEIVES) + usize::from(slot)) * CQE_LEN
    }

    fn post_receive(&self, cx: &mut Context<'_>, qp: QueuePair<Rc>, qid: u16, slot: u16) {
        let sge = self.sge(Client::completion_offset(qid, slot), CQE_LEN);
        // It fails on a queue pair in error, whose end is reported.
        let _ = cx.device().post_recv(qp, RecvWr { wr_id: slot.into(), sges: &[sge] });
    }

    fn send(&mut self, cx: &mut Context<'_>, qid: u16, capsule: &[u8]) {
        let offset = CAPSULES + self.capsules % CAPSULE_COUNT * CAPSULE_LEN;
        self.capsules += 1;
        self.region.memory().write(offset, capsule).expect("in the region");
        let qp = self.queues[&qid].qp;
        let _ = cx.device().post_send(qp, WorkRequest::send(&[self.sge(offset, capsule.len())]));
    }
}

impl Service for Host {
    fn wants_poll(&self) -> bool {
        true
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Outstanding {
        while let Some(order) = self.orders.pop_front() {
            self.obey(cx, order);
        }
        Outstanding::NONE
    }

    fn connected(&mut self, cx: &mut Context<'_>, conn: ConnId, qp: Qpn) {
        let Some(&(number, qid)) = self.owners.get(&qp) else {
            self.send_connects(cx, qp);
            return self.opened += 1;
        };
        let client = &mut self.clients[number];
        client.queues.get_mut(&qid).expect("a queue").conn = Some(conn);
        if client.failed {
            return cx.disconnect(conn);
        }
        client.session.queue_opened(qid).expect("an awaited queue");
        self.act(cx, number);
    }

    fn connect_rejected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, _rej: &Rej) {
        self.rejected += 1;
        let Some((number, qid)) = self.owners.remove(&qp) else { return };
        let client = &mut self.clients[number];
        client.queues.remove(&qid);
        client.fail(cx);
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, _reason: EndReason) {
        let Some((number, qid)) = self.owners.remove(&qp) else { return };
        let client = &mut self.clients[number];
        client.queues.remove(&qid);
        if client.failed || client.session.queue_closed(qid).is_err() {
            return client.fail(cx);
        }
        self.act(cx, number);
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        let Some(&(number, qid)) = self.owners.get(&wc.qpn) else { return };
        if wc.status != WcStatus::Success || wc.opcode != WcOpcode::Recv {
            return;
        }
        let client = &self.clients[number];
        let slot = wc.wr_id as u16;
        let mut bytes = [0; CQE_LEN];
        client.region.memory().read(Client::completion_offset(qid, slot), &mut bytes).expect("in the region");
        client.post_receive(cx, client.queues[&qid].qp, qid, slot);
        if !client.failed {
            let cqe = Cqe::read_from_bytes(&bytes).expect("16 bytes");
            self.answered(cx, number, qid, &cqe);
        }
    }
}
