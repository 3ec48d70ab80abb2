//! The peer of `rstream`: an rsocket that sends every byte of its stream back.
//!
//! rsockets are streams over RDMA WRITEs with immediate data. [`data`] has what they tell each other, [`stream`] who may
//! write how much where, [`backlog`] the bytes that came and did not go back yet. docs/protocol-notes.md has the
//! protocol. A client's memory is one region that it may write (list of buffers, ring) and one that only we touch (what
//! was sent and is not acknowledged).

mod backlog;
mod data;
mod stream;

use std::collections::HashMap;
use std::sync::Arc;

use rxe_dpdk::service::{Accept, Context, Decision, EndReason, Listen, QpSpec, Service};
use rxe_dpdk::worker::QpCaps;
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::mem::{Access, MemoryRegion, PdId};
use rxe_proto::transport::{
    PostError, Qpn, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use rxe_proto::wire::Psn;
use rxe_proto::wire::cm::RejReason;
use rxe_proto::{Duration, Instant};

use super::factory::Factory;
use super::port7471::{Caller, PORT};
use super::tally::{Book, Tally};
use backlog::{Backlog, Store};
use data::{BUFFER, Buffer, ConnData, ENTRIES, Message};
use stream::{Inbound, Nonsense, Outbound, SendRing};

/// The name that users select the service by.
pub const NAME: &str = "rsocket";

/// Messages that a client may be ahead.
const QUEUE: u16 = 256;
/// Receives for messages that are not counted: rsockets have four of them on the way at most.
const EXTRA_RECEIVES: u32 = 8;
/// Half of the ring that a client writes to.
const HALF: u32 = 128 << 10;
/// Where the ring lies, behind the list of buffers, in the region that a client may write.
const RING: usize = 64;
/// Memory for what was sent and is not acknowledged.
const SEND_RING: u32 = 256 << 10;
/// The longest message that we send.
const MAX_MESSAGE: u32 = 64 << 10;
/// Messages of the stream on the way.
const MAX_DATA: u32 = 32;
/// Messages that are not counted on the way: a client has spare receives for four.
const MAX_CONTROL: u32 = 4;
/// What the clients of one worker may be ahead of what they read.
const STORE: usize = 256 << 20;
const CAPS: QpCaps = QpCaps {
    max_send_wr: MAX_DATA + MAX_CONTROL,
    max_recv_wr: QUEUE as u32 + EXTRA_RECEIVES,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: BUFFER as u32,
};
/// Marks the numbers of work requests that are not counted. Those of the stream are lengths.
const WR_CONTROL: u64 = 1 << 32;
/// How often we look for clients that are silent, or wait for memory.
const SWEEP: Duration = Duration::from_secs(1);
/// How long a client may be silent.
const IDLE: Duration = Duration::from_secs(30);

/// A protection domain and the memory of one connection. Outlives connections: the next one takes it over.
struct Seat {
    pd: PdId,
    /// What the client may write.
    shared: MemoryRegion,
    /// What only we touch.
    own: MemoryRegion,
}

impl Seat {
    fn new(cx: &mut Context<'_>) -> Result<Seat, String> {
        let shared = cx.alloc_memory(RING + 2 * HALF as usize).map_err(|error| error.to_string())?;
        let own = cx.alloc_memory(SEND_RING as usize).map_err(|error| error.to_string())?;
        let pd = cx.alloc_pd();
        match cx.register(pd, shared, Access::LOCAL_WRITE | Access::REMOTE_WRITE) {
            Ok(shared) => match cx.register(pd, own, Access::LOCAL_WRITE) {
                Ok(own) => Ok(Seat { pd, shared, own }),
                Err(error) => {
                    cx.deregister(&shared);
                    cx.dealloc_pd(pd);
                    Err(error.to_string())
                }
            },
            Err(error) => {
                cx.dealloc_pd(pd);
                Err(error.to_string())
            }
        }
    }

    /// What the client is told to begin with.
    fn conn_data(&self) -> ConnData {
        let (addr, rkey) = (self.shared.addr(), self.shared.rkey());
        ConnData {
            big_endian: false,
            iomap: false,
            credits: QUEUE,
            iomap_entries: 0,
            list: RemoteAddr { addr, rkey },
            entries: ENTRIES,
            buffer: self.half(0),
        }
    }

    /// The half of the ring that begins at `offset`.
    fn half(&self, offset: u32) -> Buffer {
        let addr = self.shared.addr() + RING as u64 + u64::from(offset);
        Buffer { at: RemoteAddr { addr, rkey: self.shared.rkey() }, length: HALF }
    }

    /// An entry of our list, which the client writes.
    fn entry(&self, index: u32) -> Buffer {
        let mut entry = [0; BUFFER];
        // The entry lies inside; an empty one is refused.
        let _ = self.shared.memory().read(index as usize * BUFFER, &mut entry);
        Buffer::parse(&entry)
    }
}

/// A connection.
struct Client {
    conn: ConnId,
    qp: Qpn,
    seat: Seat,
    peer: ConnData,
    inbound: Inbound,
    outbound: Outbound,
    ring: SendRing,
    backlog: Backlog,
    /// Messages of the stream on the way, and others.
    sending: (u32, u32),
    /// We may send.
    up: bool,
    /// The client sends no more: `Some(false)` until we have said that we do not either.
    closed: Option<bool>,
    /// The connection is to end.
    ending: bool,
    /// The PSN expected from the client, and the oldest of ours without an answer, when they last moved, and when.
    progress: (Psn, Psn),
    heard: Instant,
}

/// Why a client is disconnected.
enum Fault {
    Nonsense(Nonsense),
    Post(PostError),
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
    /// A WRITE of the client, with `imm` and so many bytes.
    fn message(&mut self, cx: &mut Context<'_>, imm: Option<u32>, written: u32) -> Result<(), Fault> {
        cx.post_recv(self.qp, &RecvWr { wr_id: 0, sges: &[] })?;
        match imm.and_then(Message::parse) {
            Some(Message::Data(length)) => self.inbound.data(length, written)?,
            Some(Message::Credits(limit)) => {
                let buffer = (written == BUFFER as u32).then(|| self.seat.entry(self.outbound.entry()));
                self.outbound.granted(limit, buffer)?;
            }
            Some(Message::Keepalive) => {}
            Some(Message::Disconnect | Message::Shutdown) => {
                self.closed.get_or_insert(imm == Some(Message::Disconnect.imm()));
            }
            Some(Message::Iomap(_)) => return Err(Nonsense("it maps a buffer, of which we have offered none").into()),
            None => return Err(Nonsense("its immediate data says nothing").into()),
        }
        Ok(())
    }

    /// A work request of ours is acknowledged.
    fn sent(&mut self, wr_id: u64) {
        if wr_id & WR_CONTROL != 0 {
            self.sending.1 -= 1;
        } else {
            self.sending.0 -= 1;
            // Our own number: a length.
            self.ring.give(wr_id as u32);
        }
    }

    /// Does what can be done now: takes bytes out of the ring, hands out room, sends bytes back.
    fn pump(&mut self, cx: &mut Context<'_>, store: &mut Store, tally: &Tally) -> Result<(), Fault> {
        if !self.up || self.ending || self.closed == Some(true) {
            return Ok(());
        }
        loop {
            self.take_in(store, tally);
            while self.sending.1 < MAX_CONTROL
                && let Some(grant) = self.inbound.grant()
            {
                let entry = grant.half.map(|(offset, entry)| (self.peer.entry(entry), self.seat.half(offset)));
                self.control(cx, Message::Credits(grant.credits), entry)?;
            }
            if !self.send_back(cx, store, tally)? {
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
    fn take_in(&mut self, store: &mut Store, tally: &Tally) {
        loop {
            let (offset, length) = self.inbound.unread();
            if length == 0 {
                return;
            }
            let Some(room) = self.backlog.room(store) else {
                tally.backlog_full.inc();
                return;
            };
            let length = room.len().min(length as usize);
            let Some(room) = room.get_mut(..length) else { return };
            // The bytes lie inside; if they did not, the client would get old ones.
            let _ = self.seat.shared.memory().read(RING + offset as usize, room);
            self.backlog.filled(length);
            // Not longer than the ring.
            self.inbound.read(length as u32);
        }
    }

    /// From the backlog to the client; whether anything could be sent.
    fn send_back(&mut self, cx: &mut Context<'_>, store: &mut Store, tally: &Tally) -> Result<bool, Fault> {
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
            let _ = self.seat.own.memory().write(at as usize, bytes);
            let own = &self.seat.own;
            let sge = Sge { addr: own.addr() + u64::from(at), length, lkey: own.lkey() };
            let remote = self.outbound.data(length);
            let op = SendOp::Write { remote, imm: Some(Message::Data(length).imm()) };
            cx.post_send(self.qp, &SendWr { wr_id: length.into(), op, sges: &[sge], flags: SendFlags::SIGNALED })?;
            self.backlog.taken(length as usize, store);
            self.sending.0 += 1;
            tally.exchanges.inc();
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
        let op = SendOp::Write { remote, imm: Some(message.imm()) };
        let wr = SendWr { wr_id: WR_CONTROL, op, sges: &[], flags: SendFlags::SIGNALED };
        cx.post_send_inline(self.qp, &wr, &bytes)?;
        self.sending.1 += 1;
        Ok(())
    }

    /// How long nothing has moved.
    fn silence(&mut self, cx: &Context<'_>) -> Duration {
        if let Some(info) = cx.query_qp(self.qp) {
            let progress = (info.expected_psn, info.unacked_psn);
            if progress != self.progress {
                self.progress = progress;
                self.heard = cx.now();
            }
        }
        cx.now().saturating_since(self.heard)
    }
}

/// The service on one lcore.
struct Rsocket {
    clients: HashMap<Qpn, Client>,
    seats: Vec<Seat>,
    store: Store,
    tally: Arc<Tally>,
}

impl Rsocket {
    fn new(tally: Arc<Tally>) -> Rsocket {
        Rsocket { clients: HashMap::new(), seats: Vec::new(), store: Store::new(STORE), tally }
    }

    /// A queue pair with receives posted, and the memory behind it; or the refusal to send.
    fn open(&mut self, cx: &mut Context<'_>) -> Result<(Qpn, Seat), Decision> {
        let refuse = |reason, what: &str, error: String| {
            tracing::warn!("rsocket refused, no {what}: {error}");
            Decision::Reject { reason, private_data: Vec::new() }
        };
        let seat = match self.seats.pop() {
            Some(seat) => seat,
            None => Seat::new(cx).map_err(|error| refuse(RejReason::NoResources, "memory", error))?,
        };
        // Nobody is to see what another one has written.
        let shared = seat.shared.memory();
        let _ = shared.fill(0, shared.len(), 0);
        let qp = match cx.create_qp(&QpSpec::rc(seat.pd, CAPS, Access::REMOTE_WRITE)) {
            Ok(qp) => qp,
            Err(error) => {
                self.seats.push(seat);
                return Err(refuse(RejReason::NoQp, "queue pair", error.to_string()));
            }
        };
        for _ in 0..CAPS.max_recv_wr {
            if let Err(error) = cx.post_recv(qp, &RecvWr { wr_id: 0, sges: &[] }) {
                cx.destroy_qp(qp);
                self.seats.push(seat);
                return Err(refuse(RejReason::NoResources, "receive queue", error.to_string()));
            }
        }
        Ok((qp, seat))
    }

    /// Counts what is wrong with a client and disconnects it.
    fn end(cx: &mut Context<'_>, client: &mut Client, tally: &Tally, fault: Fault) {
        if client.ending {
            return;
        }
        client.ending = true;
        match fault {
            Fault::Nonsense(Nonsense(what)) => {
                tally.malformed.inc();
                tracing::info!(qp = %client.qp, "rsocket disconnected: {what}");
            }
            Fault::Post(error) => {
                tally.post_failures.inc();
                tracing::info!(qp = %client.qp, "rsocket disconnected: {error}");
            }
        }
        cx.disconnect(client.conn);
    }
}

impl Service for Rsocket {
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.set_timer(SWEEP, 0);
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        let peer = match ConnData::parse(&request.private_data) {
            Some(peer) if peer.entries == ENTRIES => peer,
            _ => {
                self.tally.refused.inc();
                return Decision::refuse("rsockets here have lists of two buffers");
            }
        };
        let (qp, seat) = match self.open(cx) {
            Ok(opened) => opened,
            Err(refusal) => {
                self.tally.refused.inc();
                return refusal;
            }
        };
        self.tally.connections.inc();
        let private_data = seat.conn_data().write();
        let client = Client {
            conn: request.conn,
            qp,
            seat,
            peer,
            inbound: Inbound::new(HALF, QUEUE),
            outbound: Outbound::new(peer.credits, peer.buffer),
            ring: SendRing::new(SEND_RING),
            backlog: Backlog::default(),
            sending: (0, 0),
            up: false,
            closed: None,
            ending: false,
            progress: (Psn::default(), Psn::default()),
            heard: cx.now(),
        };
        self.clients.insert(qp, client);
        Decision::Accept(Accept { qp, responder_resources: 0, initiator_depth: 0, private_data })
    }

    fn connected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn) {
        let Some(client) = self.clients.get_mut(&qp) else { return };
        client.up = true;
        if let Err(fault) = client.pump(cx, &mut self.store, &self.tally) {
            Rsocket::end(cx, client, &self.tally, fault);
        }
    }

    fn disconnected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        let Some(mut client) = self.clients.remove(&qp) else { return };
        tracing::debug!(%qp, ?reason, "rsocket gone");
        client.backlog.clear(&mut self.store);
        self.seats.push(client.seat);
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        let Some(client) = self.clients.get_mut(&wc.qpn) else { return };
        if wc.status != WcStatus::Success {
            // The queue pair is in error, and the runtime ends the connection.
            tracing::debug!(qp = %wc.qpn, status = ?wc.status, "rsocket work request failed");
            return;
        }
        let done = match wc.opcode {
            WcOpcode::RecvRdmaWithImm => client.message(cx, wc.imm, wc.byte_len),
            WcOpcode::Recv => Err(Nonsense("it sent a message where rsockets write").into()),
            _ => {
                client.sent(wc.wr_id);
                Ok(())
            }
        };
        if let Err(fault) = done.and_then(|()| client.pump(cx, &mut self.store, &self.tally)) {
            Rsocket::end(cx, client, &self.tally, fault);
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        cx.set_timer(SWEEP, 0);
        for client in self.clients.values_mut() {
            if client.silence(cx) >= IDLE && !client.ending {
                client.ending = true;
                self.tally.idle_ended.inc();
                tracing::info!(qp = %client.qp, "rsocket disconnected: nothing came from it for {} s", IDLE.as_secs());
                cx.disconnect(client.conn);
            } else if let Err(fault) = client.pump(cx, &mut self.store, &self.tally) {
                // Others may have given back memory that it waits for.
                Rsocket::end(cx, client, &self.tally, fault);
            }
        }
    }
}

/// Makes the service.
pub fn factory(book: &Book) -> Factory {
    let listens = vec![Listen::cm_if(PORT, |request| Caller::of(request) == Caller::Rsocket)];
    Factory::new(NAME, listens, |tally| Box::new(Rsocket::new(tally)), book)
}
