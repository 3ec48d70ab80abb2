//! The connection manager: messages of peers, whole ones of any content and ones that fit its connections, commands of the
//! local side, and time.
//!
//! Tables stay bounded, events keep their grammar, every MAD is a valid packet, and after the local side has ended
//! everything nothing is left. An input is a byte with the environment and then steps, each an [`op`] and its arguments.

mod peer;

use std::collections::BTreeMap;

use rxe_proto::cm::{
    AcceptParams, Cm, CmConfig, CmError, CmEvent, ConnId, ConnectParams, GSI_UDP_SRC_PORT, MadTransmit, ResolveParams,
    SidrId, SidrReply, read_mad, write_mad,
};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::{CmMessage, RejReason, SidrStatus};
use rxe_proto::wire::mad::{MAD_DATA_LEN, MAD_HEADER_LEN, MAD_LEN, attribute};
use rxe_proto::wire::{Frame, MacAddr, PathMtu, Psn, TxFrames, classify};
use rxe_proto::{Duration, Instant};

use crate::input::Input;
use peer::{Addresses, path};

/// The steps of an input.
pub mod op {
    /// A MAD as it is: [`FLAGS`](super::FLAG_AIM), number of a connection, 256 bytes.
    pub const RAW: u8 = 0;
    /// A message with small numbers, and changes: kind, flags, four numbers, connection, changes.
    pub const MESSAGE: u8 = 1;
    /// Bytes of any length: length, bytes.
    pub const NOISE: u8 = 2;
    /// Accepts a request: connection, length of the private data.
    pub const ACCEPT: u8 = 3;
    /// Rejects a request or REP: connection, lengths of private data and additional information.
    pub const REJECT: u8 = 4;
    /// Reports data on the queue pair: connection.
    pub const ESTABLISHED: u8 = 5;
    /// Requests a connection: flags, length of the private data.
    pub const CONNECT: u8 = 6;
    /// Confirms a REP: connection, length of the private data.
    pub const CONFIRM: u8 = 7;
    /// Sends a SIDR request: flags, length of the private data.
    pub const RESOLVE: u8 = 8;
    /// Disconnects: connection.
    pub const DISCONNECT: u8 = 9;
    /// Answers a SIDR request: request, status, length of the private data.
    pub const REPLY_SIDR: u8 = 10;
    /// Waits: milliseconds.
    pub const WAIT: u8 = 11;
    /// Reads events and MADs.
    pub const READ: u8 = 12;
    /// Drops a request: connection.
    pub const DISCARD: u8 = 13;
    /// Number of steps.
    pub const COUNT: u8 = 14;
}

/// Flag of a message: it names the ids of the connection that the step chooses.
pub const FLAG_AIM: u8 = 1;
/// Flag: the addresses are IPv6 ones.
pub const FLAG_IPV6: u8 = 2;
/// Flag: from another address than the peer's.
pub const FLAG_FOREIGN: u8 = 4;
/// Flag of the first byte: the target has the address .2 and its peer .1, as the initiators of the captures.
pub const FLAG_INITIATOR: u8 = 1;

const CONNECTIONS: usize = 6;
const CLOSING: usize = 5;
const SIDR: usize = 3;
const TRANSMITS: usize = 20;
/// The bound of refused requests that wait for the log.
const REFUSALS: usize = 64;
/// Most steps of an input.
const STEPS: usize = 200;

/// State of a connection according to its events.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Seen {
    Requested,
    Established,
    Over,
}

struct Env {
    cm: Cm,
    now: Instant,
    local: Addresses,
    /// Connections and the peer's id of each, 0 before it is known.
    conns: Vec<(ConnId, u32)>,
    seen: BTreeMap<ConnId, Seen>,
    sidrs: Vec<SidrId>,
    /// Our own SIDR requests: those sent, and how many were started and have ended.
    request_ids: Vec<u32>,
    resolves: usize,
    resolved: usize,
}

/// Runs a program.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut env = Env::new(input.u8() & FLAG_INITIATOR != 0);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        env.step(&mut input);
        assert!(env.cm.len() <= CONNECTIONS + CLOSING, "{} connections", env.cm.len());
        assert!(env.cm.sidr_len() <= SIDR && env.cm.resolving() <= SIDR);
    }
    env.end();
}

impl Env {
    fn new(initiator: bool) -> Env {
        let config = CmConfig {
            max_connections: CONNECTIONS,
            max_pending: 4,
            max_closing: CLOSING,
            max_sidr: SIDR,
            max_transmits: TRANSMITS,
            max_events: 8,
            ..CmConfig::new(1, [5; 32])
        };
        Env {
            cm: Cm::new(config),
            now: Instant::from_nanos(1_000_000_000),
            local: Addresses { initiator },
            conns: Vec::new(),
            seen: BTreeMap::new(),
            sidrs: Vec::new(),
            request_ids: Vec::new(),
            resolves: 0,
            resolved: 0,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % op::COUNT {
            op::RAW => {
                let (flags, conn) = (input.u8(), input.u8());
                let mut mad: [u8; MAD_LEN] = input.array();
                self.aim(flags, conn, &mut mad);
                self.feed(flags, &mad);
            }
            op::MESSAGE => {
                let mut mad = [0; MAD_LEN];
                let (kind, flags) = (input.u8(), input.u8());
                peer::message(kind, flags, self.local, input).emit(3, &mut mad);
                self.aim(flags, input.u8(), &mut mad);
                input.change(&mut mad);
                self.feed(flags, &mad);
            }
            op::NOISE => {
                let len = usize::from(input.u16()) % 300;
                self.feed(0, input.bytes(len));
            }
            op::ACCEPT => self.accept(input),
            op::REJECT => {
                let (conn, private_data, ari) = (input.u8(), input.u8(), input.u8());
                if let Some((conn, _)) = self.connection(conn)
                    && self
                        .cm
                        .reject(conn, RejReason::from_code(private_data.into()), &zeros(ari), &zeros(private_data))
                        .is_ok()
                {
                    assert_eq!(self.seen.insert(conn, Seen::Over), Some(Seen::Requested));
                }
            }
            op::DISCARD => {
                if let Some((conn, _)) = self.connection(input.u8())
                    && self.cm.discard(conn).is_ok()
                {
                    assert_eq!(self.seen.insert(conn, Seen::Over), Some(Seen::Requested));
                }
            }
            op::ESTABLISHED => {
                if let Some((conn, _)) = self.connection(input.u8()) {
                    let _refused = self.cm.established(conn);
                }
            }
            op::CONNECT => self.connect(input),
            op::CONFIRM => {
                let (conn, private_data) = (input.u8(), input.u8());
                if let Some((conn, _)) = self.connection(conn) {
                    let _refused = self.cm.confirm(conn, &zeros(private_data));
                }
            }
            op::RESOLVE => self.resolve(input),
            op::DISCONNECT => {
                if let Some((conn, _)) = self.connection(input.u8()) {
                    let _refused = self.cm.disconnect(self.now, conn);
                }
            }
            op::REPLY_SIDR => {
                if let Some(id) = input.pick(&self.sidrs) {
                    let reply = match SidrStatus::from_code(input.u8()) {
                        SidrStatus::Valid => SidrReply::valid(Qpn::new(2)),
                        status => SidrReply::refuse(status),
                    };
                    let reply = SidrReply { private_data: zeros(input.u8()), ..reply };
                    let _refused = self.cm.reply_sidr(self.now, id, reply);
                }
            }
            op::WAIT => self.advance(Duration::from_millis(input.u16().into())),
            _ => self.read(),
        }
    }

    fn connection(&self, index: u8) -> Option<(ConnId, u32)> {
        self.conns.get(usize::from(index) % self.conns.len().max(1)).copied()
    }

    /// Writes the ids of connection `index` into a message that names ids of ours, if the flags say so.
    fn aim(&self, flags: u8, index: u8, mad: &mut [u8; MAD_LEN]) {
        if flags & FLAG_AIM == 0 {
            return;
        }
        let kind = u16::from_be_bytes([mad[16], mad[17]]);
        let data: &mut [u8; MAD_DATA_LEN] = mad.last_chunk_mut().expect("the body");
        match kind {
            attribute::REQ | attribute::SIDR_REQ => {}
            attribute::SIDR_REP => {
                let id = self.request_ids.get(usize::from(index) % self.request_ids.len().max(1));
                data[..4].copy_from_slice(&id.copied().unwrap_or(1).to_be_bytes());
            }
            _ => {
                let Some((conn, remote)) = self.connection(index) else { return };
                if remote != 0 {
                    data[..4].copy_from_slice(&remote.to_be_bytes());
                }
                data[4..8].copy_from_slice(&conn.comm_id().to_be_bytes());
                let local_qpn = self.cm.connection(conn).and_then(|info| info.local_qpn);
                if let (attribute::DREQ, Some(qpn)) = (kind, local_qpn) {
                    data[8..11].copy_from_slice(&qpn.get().to_be_bytes()[1..]);
                }
            }
        }
    }

    /// The peer sends a MAD. At most one message answers it.
    fn feed(&mut self, flags: u8, mad: &[u8]) {
        let before = self.transmits().len();
        assert!(before <= TRANSMITS, "{before} MADs waited");
        let _dropped = self.cm.handle_mad(self.now, &path(self.local, flags), mad, &self.local);
        let answers: Vec<CmMessage> =
            self.transmits().iter().map(|answer| CmMessage::parse(&*answer.mad).expect("a message").1).collect();
        // A REP with the queue pair of one connection and the id of another one ends both.
        let stale = answers.len() == 2 && answers.iter().all(|answer| matches!(answer, CmMessage::Dreq(_)));
        assert!(answers.len() <= 1 || stale, "{answers:?} answer one MAD");
    }

    fn accept(&mut self, input: &mut Input<'_>) {
        let (conn, private_data) = (input.u8(), input.u8());
        let Some((conn, _)) = self.connection(conn) else { return };
        let params = AcceptParams {
            qpn: Qpn::new(conn.comm_id()),
            starting_psn: Psn::new(0xDC_D52E),
            responder_resources: 16,
            initiator_depth: private_data,
            rnr_retry_count: private_data,
            flow_control: false,
            srq: false,
            private_data: zeros(private_data),
        };
        let _refused = self.cm.accept(self.now, conn, params);
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        let path = path(self.local, input.u8());
        let (qpn, psn) = (Qpn::new(0x22 + self.conns.len() as u32), Psn::new(0x29_480F));
        let params = ConnectParams {
            private_data: zeros(input.u8()),
            ..ConnectParams::new(path, (40_000, 7174), qpn, psn, PathMtu::Mtu1024)
        };
        match self.cm.connect(self.now, params) {
            Ok(conn) => {
                assert_eq!(self.seen.insert(conn, Seen::Requested), None);
                self.conns.push((conn, 0));
            }
            Err(error) => assert!(matches!(error, CmError::Limit | CmError::TooLong), "{error}"),
        }
    }

    fn resolve(&mut self, input: &mut Input<'_>) {
        let params = ResolveParams::new(path(self.local, input.u8()), (1, 2));
        match self.cm.resolve_datagram(self.now, ResolveParams { private_data: zeros(input.u8()), ..params }) {
            Ok(_) => self.resolves += 1,
            Err(error) => assert!(matches!(error, CmError::Limit | CmError::TooLong), "{error}"),
        }
    }

    /// Lets time pass; every timer expires at its time.
    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.cm.next_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.cm.handle_timeout(self.now);
        }
        self.now = end;
        self.cm.handle_timeout(end);
    }

    fn read(&mut self) {
        while let Some(event) = self.cm.poll_event() {
            match event {
                CmEvent::ConnectRequest(request) => {
                    assert_eq!(self.seen.insert(request.conn, Seen::Requested), None);
                    self.conns.push((request.conn, request.remote_comm_id));
                }
                CmEvent::ConnectReply(reply) => {
                    // The local side may have ended the connection before it reads the event.
                    assert!(matches!(self.seen.get(&reply.conn), Some(Seen::Requested | Seen::Over)));
                    let (_, remote) = self.conns.iter_mut().find(|(conn, _)| *conn == reply.conn).expect("ours");
                    assert_eq!(std::mem::replace(remote, reply.remote_comm_id), 0, "two REPs for one REQ");
                }
                CmEvent::DatagramResolved(_) | CmEvent::ResolveFailed { .. } => self.resolved += 1,
                CmEvent::Established { conn } => {
                    assert_eq!(self.seen.insert(conn, Seen::Established), Some(Seen::Requested));
                }
                CmEvent::Disconnected { conn, .. } => {
                    let before = self.seen.insert(conn, Seen::Over);
                    assert!(matches!(before, Some(Seen::Requested | Seen::Established)), "{before:?}");
                }
                CmEvent::ConnectFailed { conn, .. } => {
                    assert_eq!(self.seen.insert(conn, Seen::Over), Some(Seen::Requested));
                }
                CmEvent::SidrRequest(request) => self.sidrs.push(request.id),
            }
        }
        let refusals = std::iter::from_fn(|| self.cm.poll_refusal()).count();
        assert!(refusals <= REFUSALS, "{refusals} refused requests");
        for conn in self.cm.connections() {
            assert!(self.cm.replaced_by(conn.conn).len() <= CONNECTIONS);
        }
        self.transmits();
    }

    /// The MADs to send. Each one is a message of ours, and a valid packet to the peer's queue pair 1.
    fn transmits(&mut self) -> Vec<MadTransmit> {
        let transmits: Vec<MadTransmit> = std::iter::from_fn(|| self.cm.poll_transmit()).collect();
        for transmit in &transmits {
            let (_, message) = CmMessage::parse(&*transmit.mad).expect("a message");
            if let CmMessage::SidrReq(req) = &message {
                self.request_ids.push(req.request_id);
            }
            assert!(!matches!(message, CmMessage::Lap(_) | CmMessage::Apr(_)), "{message}");
            let mut tx = TxFrames::default();
            assert!(write_mad(&mut tx, &transmit.path, GSI_UDP_SRC_PORT, Psn::new(1), &transmit.mad));
            let (port, frame) = tx.frames.first().expect("a frame");
            let Ok(Frame::Roce(packet)) = classify(frame) else { panic!("not a packet: {message}") };
            assert!(packet.icrc_ok());
            let (reversed, mad) = read_mad(*port, &packet).expect("a MAD");
            assert_eq!((reversed.local, reversed.peer), (transmit.path.peer, transmit.path.local));
            assert_eq!(mad[MAD_HEADER_LEN..], transmit.mad[MAD_HEADER_LEN..]);
        }
        transmits
    }

    /// The local side ends everything; after the longest retransmissions nothing is left.
    fn end(mut self) {
        self.read();
        for (conn, _) in self.conns.clone() {
            let _refused = self.cm.set_peer_mac(conn, MacAddr([2; 6]));
            let _gone = self.cm.disconnect(self.now, conn);
        }
        self.advance(Duration::from_secs(3_000));
        assert!(self.transmits().len() <= TRANSMITS);
        self.read();
        assert_eq!((self.cm.len(), self.cm.sidr_len(), self.cm.resolving()), (0, 0, 0));
        assert_eq!(self.resolves, self.resolved, "each SIDR request ends once");
        assert_eq!(self.cm.next_timeout(), None);
        assert!(self.seen.values().all(|&seen| seen == Seen::Over), "{:?}", self.seen);
    }
}

/// Private data of any length.
fn zeros(len: u8) -> Vec<u8> {
    vec![0; len.into()]
}
