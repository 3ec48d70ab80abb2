//! The state that threads share: what a packet, a command or a timer changes, and what follows from it.

mod managed;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use nix::errno::Errno;
use rxe_adapter::counters::WorkerCounters;
use rxe_proto::cm::{Cm, CmConfig, CmStats, MadTransmit, read_mad, write_mad};
use rxe_proto::transport::{AsyncEvent, Engine, EngineConfig, Qpn};
use rxe_proto::wire::cm::{CmMessage, PortSpace, ServiceId};
use rxe_proto::wire::{DropCounters, DropReason, Frame, PortId, Psn, ROCE_UDP_PORT, RocePacket, TxQueue, classify};
use rxe_proto::{Duration, Instant};
use rxe_udp::Routes;
use rxe_udp::host::{Output, PortTx};

use super::addressee::message;
use super::groups::Groups;
use super::share::Node;
use super::share::socket::claim_port;
use super::tx::Tx;
use crate::backend::{Answer, Device, Objects};
use crate::descriptors::{Descriptors, File, Kind};
use crate::local::Local;
use crate::rdma_cm::{self, Host, RdmaCm};
use crate::uverbs::{Mapped, PortEvent, Uverbs};
pub use managed::Mail;
use managed::Managed;

/// The adapter's only port.
pub const PORT: PortId = PortId(0);

/// Packets that a queue pair may have outstanding. What the receiver's socket has no room for is lost, and without privileges it
/// has room for about 50 packets of 4 KiB.
const WINDOW: u32 = 32;

/// The same while the program sends messages of several packets and nothing gets lost, with privileges: a peer probably has them
/// too. 1 MiB with packets of 4 KiB.
const LONG_WINDOW: u32 = 256;

/// The least receive buffer with which that is so. Without privileges it is smaller.
const LARGE_BUFFER: usize = 8 << 20;

/// The same while the program sends messages of at most 256 bytes and nothing gets lost. In a socket, 128 of their packets take
/// less room than [`WINDOW`] packets of 4 KiB.
const SHORT_WINDOW: u32 = 128;

/// The most doorbells whose packets leave together. Half a window: the peer acknowledges one half while the other arrives.
const MAX_HELD: u32 = WINDOW / 2;

/// The same for messages of at most 256 bytes. A quarter of the window, as many programs have no more than 128 messages outstanding.
const MAX_HELD_SHORT: u32 = 32;

/// The shortest retransmission timeout. A peer's thread may wait for a CPU that long.
const MIN_TIMEOUT: Duration = Duration::from_millis(20);

/// Turns that one call makes at most; the thread continues.
const TURNS: usize = 64;

/// How often the thread looks for room that a program makes without telling, in a full completion queue or event channel, and for
/// frames that a fault injector holds.
const ROOM_INTERVAL: Duration = Duration::from_millis(1);

/// Everything that the lock of the adapter protects.
pub struct State {
    local: Local,
    routes: Routes,
    descriptors: &'static Descriptors,
    engine: Engine,
    cm: Cm,
    tx: Output<Tx>,
    /// Tells this process from others that share the address: the upper four bits of its numbers.
    worker: u8,
    uverbs: Uverbs,
    rdma_cm: RdmaCm,
    groups: Groups,
    managed: Managed,
    drops: Arc<DropCounters>,
    /// PSN of the next packet from queue pair 1.
    gsi_psn: Psn,
    /// A MAD for which there was no room.
    pending_mad: Option<MadTransmit>,
    /// Doorbells whose packets wait for those of the next ones.
    held: u32,
    /// The receive buffer is large enough for [`LONG_WINDOW`].
    large_buffer: bool,
    /// Nothing was retransmitted so far.
    lossless: bool,
    /// A call has left something for the thread: its turns were used up, or the socket is full.
    unfinished: bool,
    /// When the thread wakes up at the latest.
    sleeps_until: Option<Instant>,
    ending: bool,
    ended: bool,
}

/// The sources of packets, as the connection manager looks them up.
fn route_by(routes: &Routes) -> impl Fn(IpAddr) -> Option<IpAddr> + '_ {
    |to| routes.route_to(to).ok().map(|route| route.source)
}

/// The channels of the connection manager, by the program's descriptors.
fn file_in(descriptors: &Descriptors) -> impl Fn(RawFd) -> Option<u32> + '_ {
    |fd| {
        let entry = descriptors.get(fd).filter(|entry| entry.file.kind == Kind::RdmaCm && !entry.inherited)?;
        Some(entry.file.handle)
    }
}

/// Random bytes of the operating system.
fn seed() -> Result<[u8; 32], getrandom::Error> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)?;
    Ok(seed)
}

impl State {
    /// An adapter without objects.
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn new(
        local: Local,
        routes: Routes,
        tx: Tx,
        receive_buffer: usize,
        worker: u8,
        descriptors: &'static Descriptors,
        mail: Mail,
    ) -> Result<State, getrandom::Error> {
        let engine = Engine::new(Uverbs::engine_config(EngineConfig {
            worker,
            seed: seed()?,
            window: WINDOW,
            ack_every: WINDOW / 2,
            min_timeout: MIN_TIMEOUT,
            udp_src_port: Some(ROCE_UDP_PORT),
            ..EngineConfig::default()
        }));
        let [a, b, c, ..] = seed()?;
        let counters = WorkerCounters {
            transport: Arc::clone(engine.stats()),
            other_latencies: Arc::clone(engine.latencies()),
            drops: [Arc::default(), Arc::clone(engine.drops())],
            ..WorkerCounters::default()
        };
        Ok(State {
            cm: Cm::new(CmConfig { id_prefix: Some(worker), ..rdma_cm::cm_config(local.node_guid, seed()?) }),
            rdma_cm: RdmaCm::new(seed()?),
            uverbs: Uverbs::new(local.clone(), engine.config()),
            engine,
            tx: Output::new(tx, local.address, Arc::clone(&counters.tx_faults)),
            worker,
            local,
            routes,
            descriptors,
            groups: Groups::default(),
            drops: Arc::clone(&counters.drops[0]),
            managed: Managed::new(mail, counters),
            gsi_psn: Psn::new(u32::from_le_bytes([a, b, c, 0])),
            pending_mad: None,
            held: 0,
            large_buffer: receive_buffer >= LARGE_BUFFER,
            lossless: true,
            unfinished: false,
            sleeps_until: None,
            ending: false,
            ended: false,
        })
    }

    /// Opens a device for the program. Returns the handle of the file, and its descriptor.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open(&mut self, device: Device) -> Result<(u32, OwnedFd), Errno> {
        self.check_running()?;
        match device {
            Device::Uverbs => self.uverbs.open(),
            Device::RdmaCm => self.rdma_cm.open(),
        }
    }

    /// The program has closed a file.
    pub fn close(&mut self, now: Instant, file: File) {
        match file.kind {
            Kind::Uverbs => self.uverbs.close(&mut self.engine, now, file.handle),
            Kind::Channel => self.uverbs.close_channel(file.handle),
            Kind::RdmaCm => self.with_host(now, |rdma_cm, host| rdma_cm.close(host, file.handle)),
            // It is no file of the adapter.
            Kind::Netlink => {}
        }
        self.update_groups();
    }

    /// Executes a command of the verbs device. Returns the event channel that it has made.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn uverbs_command(
        &mut self,
        now: Instant,
        handle: u32,
        command: &[u8],
        mapped: Mapped,
    ) -> Result<Option<(u32, OwnedFd)>, Errno> {
        if !Uverbs::gives_back(command) {
            self.check_running()?;
        }
        self.uverbs.command(&mut self.engine, now, handle, command, mapped)?;
        if !Uverbs::is_doorbell(command) {
            self.update_groups();
        }
        Ok(self.uverbs.take_new_channel())
    }

    /// Executes a command of the verbs device's ioctl. Also at the end of the process: libibverbs tries it before it writes a command that
    /// gives something back.
    ///
    /// # Errors
    /// Those of `ioctl`.
    pub fn uverbs_ioctl(&self, handle: u32, at: u64) -> Result<(), Errno> {
        self.uverbs.ioctl(&self.engine, handle, at)
    }

    /// Looks into the send queues of all queue pairs, as if each had a doorbell.
    pub fn ring_all(&mut self) {
        self.uverbs.ring_all();
    }

    /// Executes a command of the connection manager's device.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn rdma_cm_command(
        &mut self,
        now: Instant,
        handle: u32,
        command: &[u8],
        byte_read: bool,
    ) -> Result<Answer, Errno> {
        if !RdmaCm::gives_back(command) {
            self.check_running()?;
        }
        let answer = self.with_host(now, |rdma_cm, host| rdma_cm.command(host, handle, command, byte_read))?;
        self.update_groups();
        Ok(answer)
    }

    /// The program exits: from now on commands fail, except those that give something back, and the thread ends all connections.
    pub fn begin_end(&mut self) {
        self.ending = true;
    }

    /// Whether the program exits.
    pub fn is_ending(&self) -> bool {
        self.ending
    }

    /// Ends all connections.
    pub fn shut_down(&mut self, now: Instant) {
        self.with_host(now, RdmaCm::shutdown);
        self.ended = true;
    }

    /// Writes what was dropped to the log.
    pub fn log_drops(&self) {
        let dropped = |drops: &DropCounters| drops.iter().filter(|&(_, count)| count > 0).collect::<Vec<_>>();
        tracing::debug!(
            "dropped packets: {:?}, by the engine: {:?}",
            dropped(&self.drops),
            dropped(self.engine.drops())
        );
    }

    /// Commands fail from now on, except those that give something back: destructors of other libraries run later than ours.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Transmits by another port from now on: the process that had the address has ended. What waited for the old one is lost, as
    /// on a network.
    pub fn set_tx(&mut self, tx: Tx) {
        self.tx.set_port(tx);
        self.groups.set_joined(BTreeSet::new());
    }

    /// The counters of the packets.
    pub fn counters(&self) -> &WorkerCounters {
        self.managed.counters()
    }

    /// The counters of the connection manager.
    pub fn cm_stats(&self) -> &Arc<CmStats> {
        self.cm.stats()
    }

    /// The limits of the engine.
    pub fn engine_config(&self) -> &EngineConfig {
        self.engine.config()
    }

    /// Tells this process from others that share the address.
    pub fn worker(&self) -> u8 {
        self.worker
    }

    /// The port of the adapter is down, or up again.
    pub fn port_event(&mut self, event: PortEvent) {
        self.uverbs.port_event(event);
    }

    /// The objects of the program.
    pub fn objects(&self) -> Objects {
        Objects { cm_ids: self.rdma_cm.ids(), ..self.uverbs.objects() }
    }

    /// Whether the adapter was shut down.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    fn check_running(&self) -> Result<(), Errno> {
        if self.ending || self.ended { Err(Errno::EIO) } else { Ok(()) }
    }

    fn with_host<T>(&mut self, now: Instant, call: impl FnOnce(&mut RdmaCm, &mut Host<'_>) -> T) -> T {
        let State { cm, local, routes, descriptors, rdma_cm, .. } = self;
        let (route, file_at) = (route_by(routes), file_in(descriptors));
        let claim = |space: PortSpace, port| claim_port(local.address, space as u16, port);
        call(rdma_cm, &mut Host { cm, local, routes: &route, file_at: &file_at, claim: &claim, now })
    }

    fn update_groups(&mut self) {
        while let Some(action) = self.rdma_cm.poll_action() {
            self.groups.change(action);
        }
        self.groups.update(self.engine.multicast_groups().map(|(_, group)| group.ip()));
    }

    /// Multicast groups.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    fn handle_packet(&mut self, now: Instant, packet: &RocePacket<'_>) -> Result<(), DropReason> {
        let qpn = Qpn::new(packet.dest_qp());
        if qpn != Qpn::MULTICAST && packet.dst_gid().ip() != self.local.address {
            return Err(DropReason::ForeignAddress);
        }
        if qpn == Qpn::GSI {
            let (path, mad) = read_mad(PORT, packet)?;
            if !packet.icrc_ok() {
                return Err(DropReason::IcrcMismatch);
            }
            return self.cm.handle_mad(now, &path, mad, &self.local);
        }
        if self.refuse(now, packet) {
            return Ok(());
        }
        self.uverbs.pull_receives(&mut self.engine, qpn);
        self.engine.receive(now, PORT, packet);
        Ok(())
    }

    /// Handles a frame that the fault injector, if there is one, has passed.
    fn deliver(&mut self, now: Instant, frame: &[u8]) {
        self.begin_record();
        let handled = match &classify(frame) {
            Ok(Frame::Roce(packet)) => self.handle_packet(now, packet),
            // The port makes UDP headers only.
            Ok(Frame::Host) => Ok(()),
            Err(reason) => Err(*reason),
        };
        if let Err(reason) = handled {
            self.drops.count(reason);
        }
        self.record(now, frame);
    }

    /// Does everything that is due: timers, packets to transmit, events and completions for the program. Packets of a doorbell that
    /// can wait leave with those of the next ones, or when the ACK arrives that they wait for: false then, as nothing has changed.
    pub fn turn(&mut self, now: Instant) -> bool {
        let max_held = if self.uverbs.sends_short() { MAX_HELD_SHORT } else { MAX_HELD };
        if self.uverbs.take_can_wait() && self.held + 1 < max_held {
            self.held += 1;
            return false;
        }
        self.held = 0;
        self.release_frames(now);
        if self.engine.next_timeout().is_some_and(|at| at <= now) {
            self.engine.handle_timeout(now);
        }
        if self.cm.next_timeout().is_some_and(|at| at <= now) {
            self.cm.handle_timeout(now);
        }
        if self.rdma_cm.next_timeout().is_some_and(|at| at <= now) {
            self.with_host(now, RdmaCm::handle_timeout);
        }
        for _ in 0..TURNS {
            let pulled = self.uverbs.pull_sends(&mut self.engine);
            self.engine.set_window(self.window());
            self.engine.transmit(now, &mut self.tx);
            // They may be news for the connection manager.
            self.handle_engine_events(now);
            self.handle_cm_events(now);
            // Before the completions: a program may exit when it sees its last one, and the peer needs the ACK.
            self.note_retransmissions();
            self.unfinished = self.tx.flush(now) || self.pending_mad.is_some();
            self.uverbs.deliver(&mut self.engine);
            let is_left = pulled && self.uverbs.has_unsent();
            let more = self.handle_engine_events(now) || is_left || self.engine.wants_transmit();
            if self.unfinished || !more {
                return true;
            }
        }
        self.unfinished = true;
        true
    }

    /// Packets that a queue pair may have outstanding.
    fn window(&self) -> u32 {
        match &self.uverbs {
            uverbs if self.lossless && uverbs.sends_short() => SHORT_WINDOW,
            uverbs if self.lossless && uverbs.sends_long() && self.large_buffer => LONG_WINDOW,
            _ => WINDOW,
        }
    }

    /// What may have got lost because too much was sent at once is sent in smaller parts.
    fn note_retransmissions(&mut self) {
        let total = self.engine.stats().retransmitted_pkts.get();
        self.tx.port_mut().note_retransmissions(total);
        self.lossless = total == 0;
    }

    fn handle_cm_events(&mut self, now: Instant) {
        while let Some(event) = self.cm.poll_event() {
            self.with_host(now, |rdma_cm, host| rdma_cm.handle(host, event));
        }
        while let Some(refused) = self.cm.poll_refusal() {
            tracing::debug!("a connection request was rejected: {refused:?}");
        }
        while let Some(mad) = self.pending_mad.take().or_else(|| self.cm.poll_transmit()) {
            if !write_mad(&mut self.tx, &mad.path, ROCE_UDP_PORT, self.gsi_psn, &mad.mad) {
                self.pending_mad = Some(mad);
                return;
            }
            self.gsi_psn = self.gsi_psn.next();
        }
    }

    /// Returns whether there were any.
    fn handle_engine_events(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(event) = self.engine.poll_event() {
            any = true;
            if let AsyncEvent::CommunicationEstablished { qpn } = event {
                self.with_host(now, |rdma_cm, host| rdma_cm.established(host, qpn.get()));
            }
            self.uverbs.async_event(&mut self.engine, event);
        }
        any
    }
}

/// The parts of the state that the thread uses.
impl State {
    /// How long the thread may sleep, from `now`: `None` for ever.
    pub fn sleep(&mut self, now: Instant) -> Option<Duration> {
        self.sleeps_until = if self.unfinished && !self.is_blocked() { Some(now) } else { self.next_due(now) };
        self.sleeps_until.map(|at| at.saturating_since(now))
    }

    fn next_timeout(&self) -> Option<Instant> {
        let timeouts = [self.engine.next_timeout(), self.cm.next_timeout(), self.rdma_cm.next_timeout()];
        timeouts.into_iter().flatten().min()
    }

    /// When the thread has something to do at the latest: a timer, or a look at a full completion queue or event channel, or at
    /// frames that a fault injector holds.
    fn next_due(&self, now: Instant) -> Option<Instant> {
        let looks = self.uverbs.waits_for_room() || self.holds_frames();
        let room = looks.then(|| now + ROOM_INTERVAL);
        self.next_timeout().into_iter().chain(room).min()
    }

    /// Whether the thread has to be woken: for what is due earlier than it wakes up, or for work that only it can do.
    pub fn wants_thread(&self, now: Instant) -> bool {
        let earlier = match (self.next_due(now), self.sleeps_until) {
            (Some(next), Some(until)) => next < until,
            (next, None) => next.is_some(),
            (None, Some(_)) => false,
        };
        earlier || self.unfinished || !self.groups.are_joined()
    }

    /// Whether something is left to send.
    pub fn is_unfinished(&self) -> bool {
        self.unfinished
    }

    /// Whether frames wait for room in the socket.
    pub fn is_blocked(&self) -> bool {
        self.tx.waiting() > 0
    }
}

impl Node for State {
    fn handle_frame(&mut self, now: Instant, frame: &[u8]) {
        if self.inject(now, frame) {
            self.release_frames(now);
        } else {
            self.deliver(now, frame);
        }
    }

    fn listens_for(&self, frame: &[u8]) -> bool {
        let listens = |service: ServiceId| self.rdma_cm.has_listener(service);
        match message(frame) {
            Some(CmMessage::Req(req)) => listens(req.service_id),
            Some(CmMessage::SidrReq(req)) => listens(req.service_id),
            _ => false,
        }
    }

    fn send_frame(&mut self, frame: &[u8]) -> bool {
        // A guest's: our fault rules are for our own packets.
        let sent = self.tx.port_mut().push(PORT, frame.len()).map(|room| room.copy_from_slice(frame)).is_some();
        // A frame that an empty queue refuses is too long: it is dropped.
        sent || self.tx.waiting() == 0
    }

    fn groups_mut(&mut self) -> &mut Groups {
        &mut self.groups
    }
}
