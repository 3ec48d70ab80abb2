//! Code that the connection manager's tests share: addresses, messages as a Linux initiator sends them, a driver.

pub mod client;
pub mod replay;
pub mod replay_active;

use std::net::Ipv4Addr;

use rxe_proto::cm::{
    AcceptParams, Cm, CmConfig, CmEvent, ConnId, ConnectFailure, ConnectParams, ConnectReply, ConnectRequest,
    LocalAddresses, MadPath, MadTransmit,
};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::{
    Answered, CmMessage, Drep, Dreq, IpAddressing, Mra, PortSpace, Rej, RejReason, Rep, Req, Rtu, ServiceId,
};
use rxe_proto::wire::mad::MAD_LEN;
use rxe_proto::wire::{DropReason, Gid, MacAddr, PathMtu, PortId, Psn};
use rxe_proto::{Duration, Instant};

pub const SERVER_IP: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
pub const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);
pub const SERVER_GUID: u64 = 0x0202_0202_0202_0202;
pub const CLIENT_GUID: u64 = 0x5054_00FF_FE00_000B;
pub const CLIENT_QPN: u32 = 0x11;
pub const SERVER_QPN: u32 = 0x22;
/// The communication id of a peer that the active side connects to.
pub const PEER: u32 = 0x1111;
/// The active side's retransmission interval: 4.096 us * (2^20 + 2^19), the peer's response timeout and an ACK timeout.
pub const RESEND: Duration = Duration::from_nanos(6_442_450_944);

/// One port with one address, and a path MTU of 1024.
pub struct Addresses(pub Vec<Gid>, pub PathMtu);

impl Default for Addresses {
    fn default() -> Addresses {
        Addresses(vec![SERVER_IP.into()], PathMtu::Mtu1024)
    }
}

impl LocalAddresses for Addresses {
    fn is_local(&self, _port: PortId, gid: Gid) -> bool {
        self.0.contains(&gid)
    }
    fn path_mtu(&self, _port: PortId) -> PathMtu {
        self.1
    }
}

pub fn path_from(peer: Ipv4Addr) -> MadPath {
    MadPath {
        port: PortId(0),
        local_mac: MacAddr([0x52, 0x54, 0, 0, 0, 0x0A]),
        peer_mac: MacAddr([0x52, 0x54, 0, 0, 0, peer.octets()[3]]),
        vlan: None,
        local: SERVER_IP.into(),
        peer: peer.into(),
        traffic_class: 0,
    }
}

pub fn path() -> MadPath {
    path_from(CLIENT_IP)
}

/// A REQ as rping sends it.
pub fn req(comm_id: u32) -> Req {
    let mut req = Req {
        local_comm_id: comm_id,
        service_id: ServiceId::new(PortSpace::Tcp, 7174),
        local_ca_guid: CLIENT_GUID,
        local_qpn: CLIENT_QPN,
        responder_resources: 1,
        initiator_depth: 1,
        remote_response_timeout: 20,
        starting_psn: Psn::new(0x29480F),
        local_response_timeout: 20,
        retry_count: 7,
        pkey: 0xFFFF,
        path_mtu: 3,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        ..Req::default()
    };
    req.primary.local_lid = 0xFFFF;
    req.primary.remote_lid = 0xFFFF;
    req.primary.local_gid = CLIENT_IP.into();
    req.primary.remote_gid = SERVER_IP.into();
    req.primary.hop_limit = 64;
    req.primary.ack_timeout = 19;
    let addressing = IpAddressing::new((CLIENT_IP.into(), 40000), SERVER_IP.into()).unwrap();
    assert!(req.set_private_data(&addressing, b"ulp"));
    req
}

pub fn mad_of(message: &CmMessage, transaction_id: u64) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    message.emit(transaction_id, &mut mad);
    mad
}

pub fn rtu(client: u32, server: u32) -> CmMessage {
    CmMessage::Rtu(Rtu { local_comm_id: client, remote_comm_id: server, ..Rtu::default() })
}

pub fn dreq(client: u32, server: u32, server_qpn: u32) -> CmMessage {
    CmMessage::Dreq(Dreq { local_comm_id: client, remote_comm_id: server, remote_qpn: server_qpn, ..Dreq::default() })
}

pub fn drep(client: u32, server: u32) -> CmMessage {
    CmMessage::Drep(Drep { local_comm_id: client, remote_comm_id: server, ..Drep::default() })
}

pub fn mra(client: u32, server: u32, answered: Answered, service_timeout: u8) -> CmMessage {
    let ids = Mra { local_comm_id: client, remote_comm_id: server, ..Mra::default() };
    CmMessage::Mra(Mra { answered, service_timeout, ..ids })
}

pub fn rej(client: u32, server: u32, answered: Answered, reason: RejReason, ari: &[u8]) -> CmMessage {
    let mut rej = Rej { local_comm_id: client, remote_comm_id: server, answered, reason, ..Rej::default() };
    assert!(rej.set_ari(ari));
    CmMessage::Rej(rej)
}

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A connection manager with a clock, fed with messages of initiators.
pub struct Target {
    pub cm: Cm,
    pub now: Instant,
    pub local: Addresses,
}

impl Default for Target {
    fn default() -> Target {
        Target::new(CmConfig::new(SERVER_GUID, [5; 32]))
    }
}

impl Target {
    pub fn new(config: CmConfig) -> Target {
        Target { cm: Cm::new(config), now: Instant::from_nanos(1_000_000_000), local: Addresses::default() }
    }

    pub fn feed(&mut self, message: &CmMessage) -> Result<(), DropReason> {
        self.feed_from(&path(), 7, message)
    }

    pub fn feed_from(&mut self, path: &MadPath, transaction_id: u64, message: &CmMessage) -> Result<(), DropReason> {
        self.cm.handle_mad(self.now, path, &mad_of(message, transaction_id), &self.local)
    }

    /// Lets time pass, calling for every timer on its way.
    pub fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.cm.next_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.cm.handle_timeout(self.now);
        }
        self.now = end;
        self.cm.handle_timeout(end);
    }

    /// The messages to send, taken out.
    pub fn sent(&mut self) -> Vec<CmMessage> {
        self.transmits().into_iter().map(|t| CmMessage::parse(&*t.mad).unwrap().1).collect()
    }

    pub fn transmits(&mut self) -> Vec<MadTransmit> {
        std::iter::from_fn(|| self.cm.poll_transmit()).collect()
    }

    pub fn events(&mut self) -> Vec<CmEvent> {
        std::iter::from_fn(|| self.cm.poll_event()).collect()
    }

    /// The one message to send.
    pub fn sent_one(&mut self) -> CmMessage {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    /// The request that a REQ must have raised, and nothing else.
    pub fn request(&mut self) -> ConnectRequest {
        match self.events().as_slice() {
            [CmEvent::ConnectRequest(request)] => (**request).clone(),
            other => panic!("{other:?}"),
        }
    }

    pub fn accept(&mut self, conn: ConnId) {
        self.cm.accept(self.now, conn, accept_params()).unwrap();
    }

    /// Brings a connection up to a REP sent.
    pub fn rep_sent(&mut self, req: Req) -> ConnId {
        self.feed(&CmMessage::Req(req)).unwrap();
        let conn = self.request().conn;
        self.accept(conn);
        assert!(matches!(self.sent_one(), CmMessage::Rep(_)));
        conn
    }

    /// Brings a connection up to established.
    pub fn established(&mut self, req: Req) -> ConnId {
        let client = req.local_comm_id;
        let conn = self.rep_sent(req);
        self.feed(&rtu(client, conn.comm_id())).unwrap();
        assert_eq!(self.events(), [CmEvent::Established { conn }]);
        conn
    }
}

pub fn accept_params() -> AcceptParams {
    AcceptParams {
        qpn: Qpn::new(SERVER_QPN),
        starting_psn: Psn::new(0xDCD52E),
        responder_resources: 16,
        initiator_depth: 16,
        rnr_retry_count: 7,
        flow_control: false,
        srq: false,
        private_data: Vec::new(),
    }
}

/// Parameters to connect to port 7174 of [`CLIENT_IP`], which is the server then.
pub fn connect_params() -> ConnectParams {
    ConnectParams {
        responder_resources: 1,
        initiator_depth: 1,
        private_data: b"ulp".to_vec(),
        ..ConnectParams::new(path(), (40000, 7174), Qpn::new(SERVER_QPN), Psn::new(0x29480F), PathMtu::Mtu1024)
    }
}

/// The REP of a peer with communication id `theirs` to our REQ with `ours`.
pub fn rep(theirs: u32, ours: u32) -> Rep {
    Rep {
        local_comm_id: theirs,
        remote_comm_id: ours,
        local_qpn: CLIENT_QPN,
        starting_psn: Psn::new(0xDCD52E),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 15,
        rnr_retry_count: 7,
        local_ca_guid: CLIENT_GUID,
        ..Rep::default()
    }
}

impl Target {
    /// Requests a connection, REQ sent.
    pub fn req_sent(&mut self) -> ConnId {
        let conn = self.cm.connect(self.now, connect_params()).unwrap();
        assert!(matches!(self.sent_one(), CmMessage::Req(_)));
        conn
    }

    /// The event that a REP must have raised, and nothing else.
    pub fn reply(&mut self) -> ConnectReply {
        match self.events().as_slice() {
            [CmEvent::ConnectReply(reply)] => (**reply).clone(),
            other => panic!("{other:?}"),
        }
    }

    /// The event of a failed attempt, and nothing else.
    pub fn connect_failed(&mut self) -> (ConnId, ConnectFailure, Option<Box<Rej>>) {
        match self.events().as_slice() {
            [CmEvent::ConnectFailed { conn, reason, rej }] => (*conn, *reason, rej.clone()),
            other => panic!("{other:?}"),
        }
    }

    /// Requests a connection that the peer accepts with id `theirs`.
    pub fn rep_received(&mut self, theirs: u32) -> ConnId {
        let conn = self.req_sent();
        self.feed(&CmMessage::Rep(rep(theirs, conn.comm_id()))).unwrap();
        assert_eq!(self.reply().conn, conn);
        conn
    }

    /// Requests a connection and brings it up.
    pub fn confirmed(&mut self, theirs: u32) -> ConnId {
        let conn = self.rep_received(theirs);
        self.cm.confirm(conn, b"").unwrap();
        assert!(matches!(self.sent_one(), CmMessage::Rtu(_)));
        assert_eq!(self.events(), [CmEvent::Established { conn }]);
        conn
    }
}
