//! The device of the connection manager: what `write` to `/dev/infiniband/rdma_cm` does.
//!
//! [`RdmaCm`] is Linux's ucma and cma for one adapter, on top of the connection manager of rxe-proto. It has no thread, clock,
//! socket or lock of its own: its owner passes all in with [`Host`], and
//!
//! * gives the program the descriptor that [`open`](RdmaCm::open) returns, and passes what the program writes to it to
//!   [`command`](RdmaCm::command);
//! * passes every event of the connection manager to [`handle`](RdmaCm::handle), and queue pairs with a first packet to
//!   [`established`](RdmaCm::established);
//! * calls [`handle_timeout`](RdmaCm::handle_timeout), not later than [`next_timeout`](RdmaCm::next_timeout);
//! * executes the [`Action`]s of [`poll_action`](RdmaCm::poll_action) after any of these.
//!
//! Each command is in the file of its subject, and its errors are those of Linux 6.1. Where a command does nothing that takes time
//! (a route is looked up at once), its event is queued before it returns.
//!
//! Differences from Linux: there is one adapter with one address; loopback addresses are destinations like others if the adapter has one;
//! ports below 1024 need no privilege; native InfiniBand addresses are refused, after which librdmacm uses IP
//! addresses only; enhanced connection establishment is not negotiated, as the rxe provider has none; a DREQ is answered at once, not
//! when the program reacts to it.

mod abi;
mod address;
mod bind;
mod channel;
mod connect;
mod events;
mod id;
mod inspect;
mod lifecycle;
mod multicast;
mod options;
mod ports;
mod qp_attr;
mod query;
mod requests;
mod resolve;
mod table;

#[cfg(test)]
mod layout;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::os::fd::RawFd;

use nix::errno::Errno;
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use rxe_proto::cm::{Cm, CmConfig, ConnId, SidrId};
use rxe_proto::wire::Psn;
use rxe_proto::wire::cm::{PortSpace, ServiceId};
use rxe_proto::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::backend::Answer;
use crate::local::Local;
use crate::user;
use abi::cmd;
use channel::{Channel, Event};
use id::Id;
pub use inspect::Owner;
use multicast::Membership;
use ports::{ClaimResult, Ports};
use requests::Request;
use table::Table;

/// Most ids: librdmacm has no room for more.
const MAX_IDS: u32 = 1 << 16;
/// Most memberships in multicast groups.
const MAX_MEMBERSHIPS: u32 = 1 << 16;
/// The usual limit of unread events in a channel.
const MAX_EVENTS: usize = 1 << 16;

/// The parts of the adapter that commands and events use.
pub struct Host<'a> {
    /// The connection manager.
    pub cm: &'a mut Cm,
    /// The adapter's address.
    pub local: &'a Local,
    /// How peers are reached.
    pub routes: &'a dyn Routes,
    /// The channel of a descriptor of the program.
    pub file_at: &'a dyn Fn(RawFd) -> Option<u32>,
    /// Claims a port for this process, of those that share the address.
    pub claim: &'a dyn Fn(PortSpace, u16) -> ClaimResult,
    /// The time.
    pub now: Instant,
}

/// The routing table of the adapter's network.
pub trait Routes {
    /// The source address of packets to `dest`, or `None` when there is no route. `dest` is a single host other than the adapter
    /// itself.
    fn route(&self, dest: IpAddr) -> Option<IpAddr>;
}

impl<F: Fn(IpAddr) -> Option<IpAddr>> Routes for F {
    fn route(&self, dest: IpAddr) -> Option<IpAddr> {
        self(dest)
    }
}

/// Work that a command leaves to the adapter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Join an IP multicast group.
    JoinGroup(IpAddr),
    /// Leave it.
    LeaveGroup(IpAddr),
}

/// Settings of a connection manager that [`RdmaCm`] uses: as patient with programs as Linux is.
#[must_use]
pub fn cm_config(node_guid: u64, seed: [u8; 32]) -> CmConfig {
    CmConfig {
        // A program may be stopped in a debugger. The peer gives up long before.
        answer_timeout: Duration::from_secs(3600),
        // Linux sends the REP 16 times, 4.1 s apart.
        max_rep_resends: 15,
        max_rep_resend: Duration::from_secs(5),
        unconfirmed_timeout: Duration::from_secs(70),
        // As many as there are ids: a test may connect all of them at once.
        max_pending: 1 << 16,
        max_pending_per_peer: 1 << 16,
        max_sidr: 1 << 16,
        max_sidr_per_peer: 1 << 16,
        max_transmits: 1 << 16,
        // 68.7 s, as Linux: time for the program to confirm.
        service_timeout: 24,
        ib_port_space: true,
        ..CmConfig::new(node_guid, seed)
    }
}

/// The device of the connection manager. See the [module](self) for how to drive it.
pub struct RdmaCm {
    /// By handle.
    channels: BTreeMap<u32, Channel>,
    /// Channels opened so far.
    opened: u32,
    ids: Table<Id>,
    memberships: Table<Membership>,
    /// Memberships of each group that the adapter has joined.
    groups: BTreeMap<IpAddr, usize>,
    ports: Ports,
    /// Ids by connection, until it has ended.
    connections: BTreeMap<ConnId, u32>,
    /// Ids by SIDR request, until it was answered.
    sidr_requests: BTreeMap<SidrId, u32>,
    /// Connections of the passive side whose peer has not confirmed, by our queue pair.
    unconfirmed: BTreeMap<u32, ConnId>,
    /// Ids whose disconnected connection is remembered until then.
    timewaits: BTreeSet<(Instant, ConnId, u32)>,
    /// Requests of peers that wait for a listener, the oldest first, and until when.
    early: VecDeque<(Instant, Request)>,
    actions: VecDeque<Action>,
    /// Unread events of a channel beyond which commands that queue one are refused, and requests of peers dropped.
    max_events: usize,
    rng: ChaCha12Rng,
}

impl RdmaCm {
    /// A device without channels. `seed` makes first PSNs and ephemeral ports unpredictable.
    #[must_use]
    pub fn new(seed: [u8; 32]) -> RdmaCm {
        RdmaCm {
            channels: BTreeMap::new(),
            opened: 0,
            ids: Table::new(MAX_IDS),
            memberships: Table::new(MAX_MEMBERSHIPS),
            groups: BTreeMap::new(),
            ports: Ports::default(),
            connections: BTreeMap::new(),
            sidr_requests: BTreeMap::new(),
            unconfirmed: BTreeMap::new(),
            timewaits: BTreeSet::new(),
            early: VecDeque::new(),
            actions: VecDeque::new(),
            max_events: MAX_EVENTS,
            rng: ChaCha12Rng::from_seed(seed),
        }
    }

    /// Whether `file` is an open channel.
    #[must_use]
    pub fn is_open(&self, file: u32) -> bool {
        self.channels.contains_key(&file)
    }

    /// Number of ids.
    #[must_use]
    pub fn ids(&self) -> usize {
        self.ids.len()
    }

    /// Whether an id listens on the port of a service, at whatever address.
    #[must_use]
    pub fn has_listener(&self, service: ServiceId) -> bool {
        service.port_space().is_some_and(|space| self.ports.is_listening(&self.ids, space, service.port()))
    }

    /// Executes a command that the program writes to a channel. [`Answer::ReadByte`] when it reads an event and there is none:
    /// the command is to be passed again with `byte_read` when a byte of the channel was read.
    ///
    /// # Errors
    /// Those of `write`; `EBADF` when `file` is not open.
    pub fn command(&mut self, host: &mut Host<'_>, file: u32, buf: &[u8], byte_read: bool) -> Result<Answer, Errno> {
        let channel = self.channels.get_mut(&file).ok_or(Errno::EBADF)?;
        if byte_read {
            channel.byte_read();
        }
        let (header, input) = parse(buf)?;
        let room = usize::from(header.out);
        match header.cmd {
            cmd::CREATE_ID => self.create_id(file, &input.read(), room)?,
            cmd::DESTROY_ID => self.destroy_id(host, file, &input.read(), room)?,
            cmd::BIND_IP => self.bind_ip(host, file, &input.read())?,
            cmd::RESOLVE_IP => self.resolve_ip(host, file, &input.read())?,
            cmd::RESOLVE_ROUTE => self.resolve_route(host, file, &input.read())?,
            cmd::QUERY_ROUTE => self.query_route(host, file, &input.read(), room)?,
            cmd::CONNECT => self.connect(host, file, &input.read(), header.r#in)?,
            cmd::LISTEN => self.listen(host, file, &input.read())?,
            cmd::ACCEPT => self.accept(host, file, &input.read(), header.r#in)?,
            cmd::REJECT => self.reject(host, file, &input.read())?,
            cmd::DISCONNECT => self.disconnect(host, file, &input.read())?,
            cmd::INIT_QP_ATTR => self.init_qp_attr(host, file, &input.read(), room)?,
            cmd::GET_EVENT => return self.get_event(file, &input.read(), room),
            // GET_OPTION, which Linux does not have.
            cmd::GET_OPTION => return Err(Errno::ENOSYS),
            cmd::SET_OPTION => self.set_option(host, file, &input.read())?,
            cmd::NOTIFY => self.notify(host, file, &input.read())?,
            cmd::JOIN_IP_MCAST => self.join_ip_multicast(host, file, &input.read(), room)?,
            cmd::LEAVE_MCAST => self.leave_multicast(file, &input.read(), room)?,
            cmd::MIGRATE_ID => self.migrate_id(host, file, &input.read(), room)?,
            cmd::QUERY => self.query(host, file, &input.read(), room)?,
            cmd::BIND => self.bind(host, file, &input.read())?,
            cmd::RESOLVE_ADDR => self.resolve_addr(host, file, &input.read())?,
            cmd::JOIN_MCAST => self.join_multicast(host, file, &input.read(), room)?,
            _ => return Err(Errno::EINVAL),
        }
        Ok(Answer::Done)
    }

    /// Whether a command does nothing but give objects back.
    #[must_use]
    pub fn gives_back(buf: &[u8]) -> bool {
        parse(buf).is_ok_and(|(header, _)| matches!(header.cmd, cmd::DESTROY_ID | cmd::LEAVE_MCAST))
    }

    /// The deadline for the next call of [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let early = self.early.front().map(|&(until, _)| until);
        self.timewaits.first().map(|&(at, ..)| at).into_iter().chain(early).min()
    }

    /// Handles every deadline that has come. The connection manager's own deadlines are not among them.
    pub fn handle_timeout(&mut self, host: &mut Host<'_>) {
        while let Some((until, _)) = self.early.front()
            && *until <= host.now
            && let Some((_, request)) = self.early.pop_front()
        {
            self.answer(host, &request);
        }
        while let Some(&(at, conn, handle)) = self.timewaits.first()
            && at <= host.now
        {
            self.timewaits.pop_first();
            self.timewait_exit(conn, handle);
        }
    }

    /// Dequeues the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// GET_EVENT.
    fn get_event(&mut self, file: u32, command: &abi::GetEvent, room: usize) -> Result<Answer, Errno> {
        // Older programs do not have the last two fields.
        check_room(room, std::mem::offset_of!(abi::EventResp, reserved))?;
        let channel = self.channels.get_mut(&file).ok_or(Errno::EBADF)?;
        let Some(event) = channel.front() else { return Ok(Answer::ReadByte) };
        respond(command.response, &event.response, room)?;
        if let Some(event) = channel.pop() {
            self.reported(&event);
        }
        Ok(Answer::Done)
    }

    /// Counts an event that the program has read.
    fn reported(&mut self, event: &Event) {
        if let Some(id) = self.ids.get_mut(event.id) {
            id.events_reported = id.events_reported.wrapping_add(1);
            if event.request.is_some() {
                id.backlog += 1;
            }
        }
        if let Some(membership) = event.multicast.and_then(|handle| self.memberships.get_mut(handle)) {
            membership.events_reported = membership.events_reported.wrapping_add(1);
        }
    }

    /// The id that a command on channel `file` names.
    fn id(&self, file: u32, handle: u32) -> Result<&Id, Errno> {
        let id = self.ids.get(handle).ok_or(Errno::ENOENT)?;
        if id.channel == file { Ok(id) } else { Err(Errno::EINVAL) }
    }

    /// The id that a command on channel `file` names.
    fn id_mut(&mut self, file: u32, handle: u32) -> Result<&mut Id, Errno> {
        let id = self.ids.get_mut(handle).ok_or(Errno::ENOENT)?;
        if id.channel == file { Ok(id) } else { Err(Errno::EINVAL) }
    }

    /// [`id_mut`](Self::id_mut), for commands that need the adapter.
    fn attached(&mut self, file: u32, handle: u32) -> Result<&mut Id, Errno> {
        let id = self.id_mut(file, handle)?;
        if id.attached { Ok(id) } else { Err(Errno::EINVAL) }
    }

    /// The first PSN of an id.
    fn random_psn(&mut self) -> Psn {
        Psn::new(self.rng.next_u32())
    }
}

impl fmt::Debug for RdmaCm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaCm")
            .field("channels", &self.channels.len())
            .field("ids", &self.ids.len())
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

/// The bytes after the header of a command.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    /// The command's structure. As the kernel does not check its length, what is missing is 0 and what is too much ignored.
    fn read<T: FromBytes + IntoBytes>(&self) -> T {
        let mut command = T::new_zeroed();
        let bytes = command.as_mut_bytes();
        let len = bytes.len().min(self.0.len());
        bytes[..len].copy_from_slice(&self.0[..len]);
        command
    }
}

/// Splits what the program has written.
fn parse(buf: &[u8]) -> Result<(abi::CmdHdr, Input<'_>), Errno> {
    let (header, input) = abi::CmdHdr::read_from_prefix(buf).map_err(|_| Errno::EINVAL)?;
    if input.len() < usize::from(header.r#in) {
        return Err(Errno::EINVAL);
    }
    Ok((header, Input(input)))
}

/// Refuses a command with less room for its response than it must have.
fn check_room(room: usize, least: usize) -> Result<(), Errno> {
    if room < least { Err(Errno::ENOSPC) } else { Ok(()) }
}

/// Writes a response, or as much of it as the program has room for.
fn respond<T: IntoBytes + Immutable>(to: u64, response: &T, room: usize) -> Result<(), Errno> {
    let bytes = response.as_bytes();
    user::write(to, &bytes[..bytes.len().min(room)])
}
