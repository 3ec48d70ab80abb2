//! One connection: what is done with the messages of the peer, and what we send.

use std::net::SocketAddr;

use rxe_proto::Duration;
use rxe_proto::Instant;
use rxe_proto::cm::ConnId;
use rxe_proto::verbs::{
    Payload, PostError, ProtectionDomain, QpCaps, QueuePair, Rc, RecvWr, RemoteAddr, Sge, WorkRequest,
};
use rxe_proto::wire::Psn;
use rxe_service::{BudgetId, Context, Refusal, Shares};

use super::super::metrics::ServiceMetrics;
use super::backlog::{Backlog, Store};
use super::data::{BUFFER, Buffer, ConnData, Message};
use super::mapped::{self, ENTRY, Entry};
use super::resources::{ConnResources, HALF, Mapped, MemoryError, QUEUE, RING, SEND_RING, TABLE};
use super::stream::{Inbound, Nonsense, Outbound, SendRing};

/// Receives for messages that are not counted: rsockets have four of them on the way at most.
const EXTRA_RECEIVES: u32 = 8;
/// The longest message that we send.
const MAX_MESSAGE: u32 = 64 << 10;
/// Messages of the stream on the way.
const MAX_DATA: u32 = 32;
/// Messages that are not counted on the way: a client has spare receives for four.
const MAX_CONTROL: u32 = 4;
/// Sizes of the queues.
pub const CAPS: QpCaps = QpCaps {
    max_send_wr: MAX_DATA + MAX_CONTROL + 1,
    max_recv_wr: QUEUE as u32 + EXTRA_RECEIVES,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: ENTRY as u32,
};
/// Marks the numbers of work requests that are not counted. Those of the stream are lengths.
const WR_CONTROL: u64 = 1 << 32;
/// The number of the WRITE of a mapped buffer.
const WR_MAPPED: u64 = 1 << 33;
/// Bytes of the connections of one worker.
const CONNECTIONS: usize = 1 << 30;
/// Bytes of the mapped buffers of one worker.
const MAPPED: usize = 256 << 20;
/// Unread bytes of the clients of one worker.
const BACKLOG: usize = 256 << 20;

/// What the clients of one worker share.
pub struct Reserves {
    /// Memory of connections.
    pub connections: BudgetId,
    mapped: BudgetId,
    store: Store,
}

impl Reserves {
    /// Nothing is taken yet.
    pub fn new(cx: &mut Context<'_>) -> Reserves {
        Reserves {
            connections: cx.open_memory_budget("rsocket connections", CONNECTIONS, Shares::HALF),
            mapped: cx.open_memory_budget("rsocket mapped buffers", MAPPED, Shares::HALF),
            store: Store::new(cx.open_budget("rsocket unread bytes", BACKLOG, Shares::HALF)),
        }
    }
}

/// A connection.
pub struct Client {
    /// The connection manager's handle.
    pub conn: ConnId,
    /// The client's address.
    pub from: SocketAddr,
    /// The queue pair.
    pub qp: QueuePair<Rc>,
    resources: ConnResources,
    peer: ConnData,
    inbound: Inbound,
    outbound: Outbound,
    ring: SendRing,
    backlog: Backlog,
    /// Messages that count on the way, and others.
    sending: (u32, u32),
    mapped: Option<Mapped>,
    /// The client has mapped a buffer and wants one of ours.
    wanted: Option<Entry>,
    /// Our mapped buffer is on the way.
    returning: bool,
    /// We may send.
    up: bool,
    /// The client sends no more: `Some(false)` until we have said that we do not either.
    closed: Option<bool>,
    /// The connection is to end.
    pub ending: bool,
    /// The PSN expected from the client, and the oldest of ours without an answer, when they last moved, and when.
    progress: (Psn, Psn),
    heard: Instant,
}

/// Why a client is disconnected.
pub enum Fault {
    /// A message against the rules.
    Nonsense(Nonsense),
    /// A work request that the queue pair did not take.
    Post(PostError),
    /// No memory for a mapped buffer.
    Memory(MemoryError),
    /// Its address has its share of memory.
    Share(Refusal),
}

impl From<Nonsense> for Fault {
    fn from(nonsense: Nonsense) -> Fault {
        Fault::Nonsense(nonsense)
    }
}

impl From<PostError> for Fault {
    fn from(error: PostError) -> Fault {
        Fault::Post(error)
    }
}

impl Client {
    /// A client that connects with `peer`, to the queue pair `qp` with the memory `resources`.
    pub fn new(
        (conn, from): (ConnId, SocketAddr),
        qp: QueuePair<Rc>,
        resources: ConnResources,
        peer: ConnData,
        now: Instant,
    ) -> Client {
        Client {
            conn,
            from,
            qp,
            resources,
            peer,
            inbound: Inbound::new(HALF, QUEUE),
            outbound: Outbound::new(peer.credits, peer.buffer),
            ring: SendRing::new(SEND_RING),
            backlog: Backlog::default(),
            sending: (0, 0),
            mapped: None,
            wanted: None,
            returning: false,
            up: false,
            closed: None,
            ending: false,
            progress: (Psn::default(), Psn::default()),
            heard: now,
        }
    }

    /// Releases its resources, except the queue pair, which the runtime destroys. Returns its protection domain.
    pub fn close(mut self, cx: &mut Context<'_>, reserves: &mut Reserves) -> ProtectionDomain {
        self.backlog.clear(&mut reserves.store, cx.ledger());
        if let Some(mapped) = self.mapped {
            mapped.close(cx);
        }
        self.resources.close(cx)
    }

    /// The client has confirmed its connection.
    pub fn confirmed(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
        self.up = true;
        self.resources.prove(cx).map_err(Fault::Share)
    }

    /// Whether the client has mapped a buffer.
    pub fn maps(&self) -> bool {
        self.mapped.is_some()
    }

    /// Handles a WRITE of the client of `written` bytes, with `imm`.
    pub fn message(&mut self, cx: &mut Context<'_>, imm: Option<u32>, written: u32) -> Result<(), Fault> {
        cx.device().post_recv(self.qp, RecvWr { wr_id: 0, sges: &[] })?;
        match imm.and_then(Message::parse) {
            Some(Message::Data(length)) => self.inbound.data(length, written)?,
            Some(Message::Credits(limit)) => {
                let buffer = (written == BUFFER as u32).then(|| self.resources.entry(self.outbound.entry()));
                self.outbound.granted(limit, buffer)?;
            }
            Some(Message::Keepalive) => {}
            Some(Message::Disconnect | Message::Shutdown) => {
                self.closed.get_or_insert(imm == Some(Message::Disconnect.imm()));
            }
            Some(Message::Iomap(index)) => {
                self.inbound.numbered()?;
                self.map(index, written)?;
            }
            None => return Err(Nonsense("its immediate data says nothing").into()),
        }
        Ok(())
    }

    /// The client has mapped a buffer.
    fn map(&mut self, index: u32, written: u32) -> Result<(), Nonsense> {
        let entry = self.resources.mapped();
        if !self.peer.iomap || self.peer.iomap_entries == 0 {
            return Err(Nonsense("it maps a buffer and has no table for ours"));
        }
        if index != 0 || written != ENTRY as u32 || self.wanted.is_some() {
            return Err(Nonsense("it maps a second buffer"));
        }
        if !(1..=mapped::MAX_LENGTH).contains(&entry.buffer.length) {
            return Err(Nonsense("it maps an empty buffer or one longer than 64 MiB"));
        }
        self.wanted = Some(entry);
        Ok(())
    }

    /// Maps a buffer for the client that wants one. What comes behind in the stream waits for that.
    fn answer_map(&mut self, cx: &mut Context<'_>, budget: BudgetId) -> Result<(), Fault> {
        let Some(peer) = self.wanted else { return Ok(()) };
        if self.returning || self.sending.0 == MAX_DATA || !self.outbound.open() {
            return Ok(());
        }
        self.wanted = None;
        if let Some(old) = self.mapped.take() {
            old.close(cx);
        }
        let client = self.from.ip();
        let mapped = Mapped::new(cx, budget, client, self.resources.pd, peer).map_err(Fault::Memory)?;
        let bytes = mapped.entry().write(self.peer.big_endian);
        self.mapped = Some(mapped);
        let list = self.peer.list;
        let remote = RemoteAddr { addr: list.addr.wrapping_add(TABLE as u64), ..list };
        // A message that counts, of no bytes of the stream.
        let wr = WorkRequest::write_with_imm(Payload::Inline(&bytes), remote, Message::Iomap(0).imm());
        cx.device().post_send(self.qp, wr.signaled())?;
        self.outbound.numbered();
        self.sending.0 += 1;
        Ok(())
    }

    /// Looks into the mapped buffer and sends it back when it is our turn; whether it was.
    pub fn look(&mut self, cx: &mut Context<'_>, metrics: &ServiceMetrics) -> Result<bool, Fault> {
        let Some(mapped) = &mut self.mapped else { return Ok(false) };
        if self.returning || self.ending || !mapped.turn() {
            return Ok(false);
        }
        let region = &mapped.region;
        let sge = Sge { addr: region.addr(), length: mapped.peer.buffer.length, lkey: region.lkey() };
        let sges = [sge];
        let wr = WorkRequest::write(&sges, mapped.peer.buffer.at).wr_id(WR_MAPPED).signaled();
        cx.device().post_send(self.qp, wr)?;
        self.returning = true;
        metrics.exchanges.inc();
        Ok(true)
    }

    /// A work request of ours is acknowledged.
    pub fn sent(&mut self, wr_id: u64) {
        if wr_id == WR_MAPPED {
            self.returning = false;
        } else if wr_id & WR_CONTROL != 0 {
            self.sending.1 -= 1;
        } else {
            self.sending.0 -= 1;
            // Our own number: a length.
            self.ring.give(wr_id as u32);
        }
    }

    /// Does what can be done now: takes bytes out of the ring, hands out room, sends bytes back.
    pub fn pump(
        &mut self,
        cx: &mut Context<'_>,
        reserves: &mut Reserves,
        metrics: &ServiceMetrics,
    ) -> Result<(), Fault> {
        let Reserves { store, mapped, .. } = reserves;
        if !self.up || self.ending || self.closed == Some(true) {
            return Ok(());
        }
        loop {
            self.take_in(cx, store, metrics);
            while self.sending.1 < MAX_CONTROL
                && let Some(grant) = self.inbound.grant()
            {
                let entry = grant.half.map(|(offset, entry)| (self.peer.entry(entry), self.resources.half(offset)));
                self.control(cx, Message::Credits(grant.credits), entry)?;
            }
            self.answer_map(cx, *mapped)?;
            if self.wanted.is_some() || !self.send_back(cx, store, metrics)? {
                break;
            }
        }
        if self.closed == Some(false) && self.backlog.is_empty() && self.sending.1 < MAX_CONTROL {
            self.closed = Some(true);
            self.control(cx, Message::Disconnect, None)?;
        }
        Ok(())
    }

    /// From the ring into the backlog.
    fn take_in(&mut self, cx: &mut Context<'_>, store: &mut Store, metrics: &ServiceMetrics) {
        loop {
            let (offset, length) = self.inbound.unread();
            if length == 0 {
                return;
            }
            let Some(room) = self.backlog.room(store, cx.ledger(), self.from.ip()) else {
                metrics.backlog_full.inc();
                return;
            };
            let length = room.len().min(length as usize);
            let Some(room) = room.get_mut(..length) else { return };
            // The bytes lie inside; if they did not, the client would get old ones.
            let _ = self.resources.shared.memory().read(RING + offset as usize, room);
            self.backlog.filled(length);
            // Not longer than the ring.
            self.inbound.read(length as u32);
        }
    }

    /// From the backlog to the client; whether anything could be sent.
    fn send_back(&mut self, cx: &mut Context<'_>, store: &mut Store, metrics: &ServiceMetrics) -> Result<bool, Fault> {
        let mut any = false;
        while self.sending.0 < MAX_DATA {
            let length = self.outbound.room().min(self.ring.room()).min(MAX_MESSAGE);
            let bytes = self.backlog.front();
            let bytes = bytes.get(..length as usize).unwrap_or(bytes);
            if bytes.is_empty() {
                break;
            }
            // A chunk at most.
            let length = bytes.len() as u32;
            let at = self.ring.take(length);
            // The bytes lie inside; if they did not, the client would get old ones.
            let _ = self.resources.own.memory().write(at as usize, bytes);
            let own = &self.resources.own;
            let sge = Sge { addr: own.addr() + u64::from(at), length, lkey: own.lkey() };
            let remote = self.outbound.data(length);
            let sges = [sge];
            let wr = WorkRequest::write_with_imm(&sges, remote, Message::Data(length).imm());
            cx.device().post_send(self.qp, wr.wr_id(length.into()).signaled())?;
            self.backlog.taken(length as usize, store, cx.ledger());
            self.sending.0 += 1;
            metrics.exchanges.inc();
            any = true;
        }
        Ok(any)
    }

    /// Sends a message that is not counted, which writes `entry` into the client's list.
    fn control(
        &mut self,
        cx: &mut Context<'_>,
        message: Message,
        entry: Option<(RemoteAddr, Buffer)>,
    ) -> Result<(), Fault> {
        let (remote, bytes) = match entry {
            Some((remote, buffer)) => (remote, buffer.write(self.peer.big_endian).to_vec()),
            None => (RemoteAddr::default(), Vec::new()),
        };
        let wr = WorkRequest::write_with_imm(Payload::Inline(&bytes), remote, message.imm());
        cx.device().post_send(self.qp, wr.wr_id(WR_CONTROL).signaled())?;
        self.sending.1 += 1;
        Ok(())
    }

    /// Time since the queue pair made progress, or the client was last heard.
    pub fn silence(&mut self, cx: &mut Context<'_>) -> Duration {
        if let Ok(info) = cx.device().query_qp(self.qp) {
            let progress = (info.expected_psn, info.unacked_psn);
            if progress != self.progress {
                self.progress = progress;
                self.heard = cx.now();
            }
        }
        cx.now().saturating_since(self.heard)
    }
}
