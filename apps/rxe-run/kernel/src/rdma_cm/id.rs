//! An id, rdma_cm's name for a connection, a listener or a datagram service, and its states.

use std::net::SocketAddr;

use rxe_proto::Instant;
use rxe_proto::cm::{ConnId, SidrId};
use rxe_proto::wire::cm::PortSpace;
use rxe_proto::wire::{Gid, PathMtu, Psn};

/// Hop limit of every path.
pub const HOP_LIMIT: u8 = 64;

/// Types of queue pairs, as verbs number them.
pub mod qp_type {
    pub const RC: u8 = 2;
    pub const UC: u8 = 3;
    pub const UD: u8 = 4;
    pub const XRC_INI: u8 = 9;
}

/// The port space of a number of the ABI.
pub fn port_space(number: u16) -> Option<PortSpace> {
    [PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib].into_iter().find(|&space| space as u16 == number)
}

/// How far an id has come. Resolution takes no time here, so Linux's states for queries are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Created.
    Idle,
    /// It has a port, maybe an address.
    Bound,
    /// It knows the peer's address and its own.
    AddressResolved,
    /// It knows the path to the peer.
    RouteResolved,
    /// It has requested a connection, or was created by a request.
    Connected,
    /// The connection has ended.
    Disconnected,
    /// It takes requests.
    Listening,
}

/// The path to a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathRecord {
    pub source: Gid,
    pub dest: Gid,
    pub flow_label: u32,
    pub traffic_class: u8,
    pub mtu: PathMtu,
    /// 4.096 us * 2^this.
    pub life_time: u8,
}

/// Progress of a connection between the first request and its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Active side: the peer has not answered.
    ReqSent,
    /// Active side: the program has not confirmed the peer's answer.
    RepReceived,
    /// Passive side: the program has not answered.
    ReqReceived,
    /// Passive side: the peer has not confirmed our answer.
    RepSent,
    Established,
    Ended,
}

/// A connection, and what its queue pair has to be set to.
#[derive(Clone, Debug)]
pub struct Connection {
    pub conn: ConnId,
    /// When it was requested.
    pub since: Instant,
    pub phase: Phase,
    pub active: bool,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// First PSN that our queue pair sends.
    pub sq_psn: Psn,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub ack_timeout: u8,
}

/// An id's object in the connection manager.
#[derive(Clone, Debug)]
pub enum Link {
    None,
    Connection(Connection),
    /// A SIDR request of ours; `None` once it was answered.
    SidrSent(Option<SidrId>),
    /// A SIDR request of a peer; `None` once it was answered.
    SidrReceived(Option<SidrId>),
}

/// An id.
#[derive(Debug)]
pub struct Id {
    /// Number of the event channel that gets the events of the id.
    pub channel: u32,
    /// The program's name for it, in its events. 0 until the program has accepted: such an id has no events.
    pub uid: u64,
    /// Events that the program has read.
    pub events_reported: u32,
    pub space: PortSpace,
    pub qp_type: u8,
    pub state: State,
    pub source: Option<SocketAddr>,
    pub dest: Option<SocketAddr>,
    /// It has the adapter's address, and so the adapter.
    pub attached: bool,
    /// It has an entry in the table of ports.
    pub has_port: bool,
    pub reuse_address: bool,
    pub family_only: bool,
    /// The program has set `family_only`.
    pub family_only_set: bool,
    pub type_of_service: Option<u8>,
    pub ack_timeout: Option<u8>,
    /// Requests that may still be queued.
    pub backlog: u32,
    /// Q_Key; 0 until it is needed.
    pub qkey: u32,
    /// First PSN that our queue pair expects.
    pub psn: Psn,
    /// Our queue pair, once the program has named it.
    pub qpn: u32,
    pub path: Option<PathRecord>,
    pub link: Link,
    /// Its memberships in multicast groups.
    pub multicasts: Vec<u32>,
}

impl Id {
    /// An id as the program creates it.
    pub fn new(channel: u32, uid: u64, space: PortSpace, qp_type: u8, psn: Psn) -> Id {
        Id {
            channel,
            uid,
            events_reported: 0,
            space,
            qp_type,
            state: State::Idle,
            source: None,
            dest: None,
            attached: false,
            has_port: false,
            reuse_address: false,
            family_only: false,
            family_only_set: false,
            type_of_service: None,
            ack_timeout: None,
            backlog: 0,
            qkey: 0,
            psn,
            qpn: 0,
            path: None,
            link: Link::None,
            multicasts: Vec::new(),
        }
    }

    /// Whether its queue pair is a datagram one.
    pub fn is_datagram(&self) -> bool {
        self.qp_type == qp_type::UD
    }

    /// The connection of the id, from the first request on.
    pub fn connection(&self) -> Option<&Connection> {
        match &self.link {
            Link::Connection(connection) => Some(connection),
            _ => None,
        }
    }

    /// The connection of the id, to change it.
    pub fn connection_mut(&mut self) -> Option<&mut Connection> {
        match &mut self.link {
            Link::Connection(connection) => Some(connection),
            _ => None,
        }
    }
}
