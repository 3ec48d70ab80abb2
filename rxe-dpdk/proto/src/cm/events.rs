//! What the connection manager tells its user, and what the user answers.

use std::net::IpAddr;

use super::{ConnId, MadPath, SidrId};
use crate::transport::Qpn;
use crate::wire::cm::{RejReason, Req, ServiceId, SidrReq, SidrStatus};
use crate::wire::{Gid, PathMtu, Psn};

/// Something that the user of a [`Cm`](super::Cm) must know.
///
/// A connection starts with one `ConnectRequest` and ends with exactly one `ConnectFailed` or `Disconnected`, unless the
/// user rejects it: then nothing more comes. `Disconnected` follows `Established` or the user's own
/// [`disconnect`](super::Cm::disconnect); `ConnectFailed` comes before either, perhaps before the user has answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CmEvent {
    /// A peer asks for a connection: answer with [`accept`](super::Cm::accept) or [`reject`](super::Cm::reject).
    ConnectRequest(Box<ConnectRequest>),
    /// The peer has confirmed the connection, by RTU or by data.
    Established {
        /// Which connection.
        conn: ConnId,
    },
    /// An established connection, or one that [`disconnect`](super::Cm::disconnect) was called for, is over.
    Disconnected {
        /// Which connection.
        conn: ConnId,
        /// Why.
        reason: DisconnectReason,
    },
    /// A connection came to nothing before it was established.
    ConnectFailed {
        /// Which connection.
        conn: ConnId,
        /// Why.
        reason: ConnectFailure,
    },
    /// A peer asks for a datagram queue pair: answer with [`reply_sidr`](super::Cm::reply_sidr).
    SidrRequest(Box<SidrRequest>),
}

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DisconnectReason {
    /// The peer asked for it.
    Peer,
    /// We asked for it and the peer has confirmed.
    Local,
    /// We asked for it and the peer never answered.
    LocalUnanswered,
    /// The peer rejected the connection although it was established already.
    PeerRejected(RejReason),
    /// The same queue pair of the same peer came with a new REQ: the peer has forgotten the old connection.
    Stale,
}

/// Why a connection was not established.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectFailure {
    /// The peer rejected our answer or gave up waiting for it.
    PeerRejected(RejReason),
    /// The peer disconnected at once.
    PeerDisconnected,
    /// The peer did not confirm.
    Timeout,
    /// Neither [`accept`](super::Cm::accept) nor [`reject`](super::Cm::reject) was called in time.
    NotAnswered,
    /// The same queue pair of the same peer came with a new REQ.
    Stale,
}

/// A peer's wish to connect, checked as far as the connection manager can: addresses, transport, partition and path MTU
/// are good; whether there is such a service, and whether it wants the peer, is for the user to decide.
///
/// "Remote" and "peer" is the initiator, "local" is our side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectRequest {
    /// The handle to answer with.
    pub conn: ConnId,
    /// The way of the connection manager's packets.
    pub path: MadPath,
    /// What the peer wants.
    pub service_id: ServiceId,
    /// The initiator's address and port, as it says.
    pub source: (IpAddr, u16),
    /// Our address and port.
    pub dest: (IpAddr, u16),
    /// The initiator's queue pair.
    pub remote_qpn: u32,
    /// The PSN that *our* first request must carry (our `sq_psn`).
    pub starting_psn: Psn,
    /// Path MTU, at most what the port allows. Final: the answer cannot change it.
    pub path_mtu: PathMtu,
    /// READs and atomics that the initiator takes at once: bounds our initiator depth.
    pub responder_resources: u8,
    /// READs and atomics that the initiator wants to have outstanding: bounds our responder resources.
    pub initiator_depth: u8,
    /// Transport retries for our queue pair.
    pub retry_count: u8,
    /// Receiver-not-ready retries for our queue pair; 7 is without end.
    pub rnr_retry_count: u8,
    /// ACK timeout for our queue pair: 4.096 us * 2^this; 0 is none.
    pub local_ack_timeout: u8,
    /// The initiator wants end-to-end flow control.
    pub flow_control: bool,
    /// The initiator's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Traffic class for the packets of our queue pair.
    pub traffic_class: u8,
    /// Flow label for the packets of our queue pair (20 bits).
    pub flow_label: u32,
    /// The address that our queue pair's packets go to.
    pub peer_gid: Gid,
    /// The address that our queue pair's packets come from.
    pub local_gid: Gid,
    /// The initiator's channel adapter.
    pub ca_guid: u64,
    /// The initiator's communication id.
    pub remote_comm_id: u32,
    /// The upper layer's private data, padded with zeros.
    pub private_data: [u8; Req::ULP_DATA_LEN],
}

impl ConnectRequest {
    /// How many READs and atomics either side may have outstanding, when we hold at most `responder_resources` of the
    /// peer's and want at most `initiator_depth` of our own: what to program into the queue pair and to say in
    /// [`AcceptParams`].
    #[must_use]
    pub fn negotiate(&self, responder_resources: u8, initiator_depth: u8) -> (u8, u8) {
        (responder_resources.min(self.initiator_depth), initiator_depth.min(self.responder_resources))
    }
}

/// The answer that grants a connection.
///
/// By then the queue pair must be able to receive, receives posted: data can arrive before the peer's RTU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcceptParams {
    /// Our queue pair.
    pub qpn: Qpn,
    /// The PSN that the *peer's* first request must carry (our `rq_psn`).
    pub starting_psn: Psn,
    /// READs and atomics of the peer that our queue pair holds. Never says more than the peer asked for.
    pub responder_resources: u8,
    /// READs and atomics that our queue pair will have outstanding. Never says more than the peer can take. When 0,
    /// Linux peers refuse READs.
    pub initiator_depth: u8,
    /// Receiver-not-ready retries that the peer shall make; 7, without end, is right nearly always.
    pub rnr_retry_count: u8,
    /// End-to-end flow control; mirror the request's.
    pub flow_control: bool,
    /// Our queue pair uses a shared receive queue.
    pub srq: bool,
    /// The upper layer's private data, at most 196 bytes.
    pub private_data: Vec<u8>,
}

impl AcceptParams {
    /// The usual answer to `request`: at most `responder_resources` READs of the peer and `initiator_depth` of ours at
    /// a time, endless receiver-not-ready retries, flow control as the peer wants it, no private data.
    #[must_use]
    pub fn for_request(
        request: &ConnectRequest,
        qpn: Qpn,
        starting_psn: Psn,
        responder_resources: u8,
        initiator_depth: u8,
    ) -> AcceptParams {
        let (responder_resources, initiator_depth) = request.negotiate(responder_resources, initiator_depth);
        AcceptParams {
            qpn,
            starting_psn,
            responder_resources,
            initiator_depth,
            rnr_retry_count: 7,
            flow_control: request.flow_control,
            srq: false,
            private_data: Vec::new(),
        }
    }
}

/// A peer's question for a datagram queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrRequest {
    /// The handle to answer with.
    pub id: SidrId,
    /// The way of the request.
    pub path: MadPath,
    /// What the peer wants.
    pub service_id: ServiceId,
    /// The peer's address and port, as it says.
    pub source: (IpAddr, u16),
    /// Our address and port.
    pub dest: (IpAddr, u16),
    /// The upper layer's private data, padded with zeros.
    pub private_data: [u8; SidrReq::ULP_DATA_LEN],
}

/// The answer to a [`SidrRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrReply {
    /// [`SidrStatus::Valid`], or why not.
    pub status: SidrStatus,
    /// The queue pair that serves; 0 unless valid.
    pub qpn: Qpn,
    /// Its Q_Key. Clients of the IP port spaces insist on [`RDMA_UDP_QKEY`](crate::wire::mad::RDMA_UDP_QKEY).
    pub qkey: u32,
    /// The upper layer's private data, at most 136 bytes.
    pub private_data: Vec<u8>,
}

impl SidrReply {
    /// The answer that names a queue pair.
    #[must_use]
    pub fn valid(qpn: Qpn) -> SidrReply {
        let qkey = crate::wire::mad::RDMA_UDP_QKEY;
        SidrReply { status: SidrStatus::Valid, qpn, qkey, private_data: Vec::new() }
    }

    /// The answer that refuses.
    #[must_use]
    pub fn refuse(status: SidrStatus) -> SidrReply {
        SidrReply { status, qpn: Qpn::new(0), qkey: 0, private_data: Vec::new() }
    }
}

/// Why a command was refused. Nothing changes then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CmError {
    /// There is no such connection or request (any more).
    #[error("no such connection")]
    Unknown,
    /// The connection is not in a state for this.
    #[error("not possible in the connection's state")]
    WrongState,
    /// Private data or additional reject information longer than the message has room for.
    #[error("private data too long")]
    TooLong,
}
