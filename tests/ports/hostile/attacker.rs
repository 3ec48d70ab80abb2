//! A host that connects to the target's services and has no queue pairs: a test writes the packets of its connections,
//! right or wrong. It has a MAC address, a host stack and a connection manager of its own.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rxe_dpdk::host::{Host, HostConfig, HostEvent, StreamEvent, TcpStreamId};
use rxe_dpdk::rxe_proto::Instant;
use rxe_dpdk::rxe_proto::cm::{
    Cm, CmConfig, CmEvent, ConnId, ConnectParams, GSI_UDP_SRC_PORT, LocalAddresses, MadPath, MadTransmit,
    ResolveParams, SidrId, read_mad, write_mad,
};
use rxe_dpdk::rxe_proto::transport::Qpn;
use rxe_dpdk::rxe_proto::wire::{
    Cidr, Frame, Gid, HeaderTemplate, MacAddr, NakCode, Opcode, Path, PathMtu, PortId, Psn, RocePacket, Syndrome,
    Transport, TxQueue, classify, udp_source_port,
};

use crate::initiator::{Neighbour, PEER, Tx};

/// The Ethernet address of the attacker.
pub const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0xBA, 0xD1]);

/// Its IPv4 addresses are 10.77.0.100 and the following ones.
pub const ADDRESSES: u8 = 16;

/// The target's IPv6 address.
pub const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xFD00, 0x77, 0, 0, 0, 0, 0, 1);

/// Its own IPv6 address.
pub const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xFD00, 0x77, 0, 0, 0, 0, 0, 0xBAD);

/// The number of the queue pair of the first connection; those of the others follow.
const FIRST_QPN: u32 = 0x100;

/// Connections that it opens at a time.
const MAX_OPENING: usize = 16;

/// The IPv4 address number `index`.
pub fn address(index: usize) -> IpAddr {
    Ipv4Addr::new(10, 77, 0, 100 + (index % usize::from(ADDRESSES)) as u8).into()
}

/// A service of rxe-target that the attacker uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// A region of this name, or the directory of numbered regions.
    Region(&'static str),
    /// READs and WRITEs the client's memory as its SENDs say.
    Rping,
    /// Answers one SEND.
    Message,
    /// Datagrams.
    Udaddy,
    /// Echoes SENDs of a queue pair whose transport service is found from its packets; this one's is UC.
    Pingpong,
}

impl Service {
    pub fn transport(self) -> Transport {
        match self {
            Service::Udaddy => Transport::Ud,
            Service::Pingpong => Transport::Uc,
            Service::Region(_) | Service::Rping | Service::Message => Transport::Rc,
        }
    }
}

/// State of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Closed,
    Connecting(ConnId),
    Resolving(SidrId),
    /// The exchange of pingpong's numbers.
    Exchanging(TcpStreamId),
    Open,
    /// As `Open`, with the connection that may end.
    Connected(ConnId),
    /// The target has sent a NAK that ends it.
    Ending(ConnId),
}

/// A message of several packets in progress.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// PSN of the next packet.
    pub psn: Psn,
    /// Bytes that are still to be sent.
    pub left: u64,
    /// Whether its first packet was sent.
    pub begun: bool,
    pub is_write: bool,
}

/// A region as the target describes it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Place {
    pub addr: u64,
    pub len: u64,
    pub rkey: u32,
}

/// A connection of the attacker with a queue pair of the target.
pub struct Victim {
    pub service: Service,
    pub local: IpAddr,
    pub mtu: PathMtu,
    /// Our number for it.
    qpn: u32,
    state: State,
    /// The target's queue pair.
    pub peer_qpn: u32,
    /// The PSN that the target expects, as far as its responses tell.
    pub psn: Psn,
    /// The PSN of the latest request of the target.
    pub requested: Psn,
    /// A SEND or WRITE.
    pub message: Option<Message>,
    /// The response to a READ request of the target.
    pub response: Option<Message>,
    pub place: Place,
    template: Option<HeaderTemplate>,
}

impl Victim {
    pub fn new(service: Service, local: IpAddr, mtu: PathMtu) -> Victim {
        Victim {
            service,
            local,
            mtu,
            qpn: 0,
            state: State::Closed,
            peer_qpn: 0,
            psn: Psn::default(),
            requested: Psn::default(),
            message: None,
            response: None,
            place: Place::default(),
            template: None,
        }
    }

    /// Headers of its packets while it is open.
    pub fn template(&self) -> Option<&HeaderTemplate> {
        self.template.as_ref().filter(|_| self.is_open())
    }

    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open | State::Connected(_))
    }

    fn is_opening(&self) -> bool {
        matches!(self.state, State::Connecting(_) | State::Resolving(_) | State::Exchanging(_))
    }

    /// Forgets a connection whose end the target does not announce, to open another one.
    pub fn abandon(&mut self) {
        if self.state == State::Open {
            self.state = State::Closed;
        }
    }

    fn peer(&self) -> IpAddr {
        if self.local.is_ipv4() { Ipv4Addr::from(PEER).into() } else { PEER_V6.into() }
    }

    fn opened(&mut self, target: MacAddr, state: State) {
        self.state = state;
        (self.message, self.response) = (None, None);
        self.template = Some(HeaderTemplate::new(&Path {
            src_mac: MAC,
            dst_mac: target,
            src: self.local.into(),
            dst: self.peer().into(),
            udp_src_port: udp_source_port(0, self.qpn, self.peer_qpn),
            ..Path::default()
        }));
    }

    /// Takes note of a packet of the target.
    fn received(&mut self, packet: &RocePacket<'_>) {
        if !packet.info().response {
            self.requested = packet.psn();
            if packet.opcode() == Opcode::ReadRequest
                && let Some(reth) = packet.reth()
            {
                let left = u64::from(reth.dma_len());
                self.response = Some(Message { psn: packet.psn(), left, begun: false, is_write: false });
            }
        } else if packet.opcode() == Opcode::Acknowledge
            && let Some(aeth) = packet.aeth()
        {
            match aeth.syndrome() {
                Syndrome::Ack { .. } => self.psn = packet.psn().next(),
                Syndrome::Nak(NakCode::PsnSequence) | Syndrome::Rnr { .. } => self.psn = packet.psn(),
                _ => {
                    self.state = match self.state {
                        State::Connected(conn) => State::Ending(conn),
                        _ => State::Closed,
                    }
                }
            }
        }
    }

    /// Takes note of a packet to the target.
    pub fn sent(&mut self, packet: &RocePacket<'_>) {
        let length = packet.payload().len() as u64;
        if packet.info().response {
            let response = self.response.filter(|response| response.psn == packet.psn() && response.left > length);
            self.response = response.map(|response| Message {
                psn: response.psn.next(),
                left: response.left - length,
                begun: true,
                ..response
            });
        } else if packet.psn() == self.psn {
            let psn = self.psn.next();
            let left = match (packet.opcode(), packet.reth(), self.message) {
                (Opcode::WriteFirst, Some(reth), _) => u64::from(reth.dma_len()),
                (Opcode::SendFirst, ..) => 3 * length + 5,
                (_, _, Some(message)) => message.left,
                _ => 0,
            };
            let is_write =
                packet.opcode() == Opcode::WriteFirst || self.message.is_some_and(|message| message.is_write);
            self.message = (left > length).then(|| Message { psn, left: left - length, begun: true, is_write });
            self.psn = psn;
        }
    }
}

pub struct Attacker {
    target: MacAddr,
    host: Host,
    cm: Cm,
    gsi_psn: Psn,
    unsent: Option<MadTransmit>,
    pub victims: Vec<Victim>,
    next_qpn: u32,
    /// Frames that wait for room in the transmit queue.
    pub outbox: VecDeque<Vec<u8>>,
    /// Frames of the outbox that were sent.
    pub sent: u64,
    /// Connections that were opened.
    pub opened: u64,
}

/// The attacker's addresses.
struct Own<'a>(&'a Host);

impl LocalAddresses for Own<'_> {
    fn is_local(&self, _port: PortId, gid: Gid) -> bool {
        self.0.owns(gid.ip())
    }

    fn path_mtu(&self, _port: PortId) -> PathMtu {
        PathMtu::Mtu4096
    }
}

impl Attacker {
    pub fn new(target: MacAddr, victims: Vec<Victim>) -> Attacker {
        let mut addresses: Vec<Cidr> = (0..usize::from(ADDRESSES)).map(|index| Cidr::new(address(index), 24)).collect();
        addresses.push(Cidr::new(OWN_V6.into(), 64));
        let config = HostConfig { mac: MAC, addresses, seed: [13; 32], ..HostConfig::default() };
        Attacker {
            target,
            host: Host::new(&config).unwrap(),
            cm: Cm::new(CmConfig::new(0xBAD1, [13; 32])),
            gsi_psn: Psn::default(),
            unsent: None,
            victims,
            next_qpn: FIRST_QPN,
            outbox: VecDeque::new(),
            sent: 0,
            opened: 0,
        }
    }

    /// Whether all connections are open.
    pub fn is_connected(&self) -> bool {
        self.victims.iter().all(Victim::is_open)
    }

    /// Whether at least half of the connections are open.
    pub fn is_mostly_connected(&self) -> bool {
        2 * self.victims.iter().filter(|victim| victim.is_open()).count() >= self.victims.len()
    }

    fn mad_path(&self, local: IpAddr, peer: IpAddr) -> MadPath {
        MadPath {
            port: self.host.port(),
            local_mac: MAC,
            peer_mac: self.target,
            vlan: None,
            local: local.into(),
            peer: peer.into(),
            traffic_class: 0,
        }
    }

    /// Opens connections that are closed.
    fn open_some(&mut self, now: Instant) {
        let mut opening = self.victims.iter().filter(|victim| victim.is_opening()).count();
        for index in 0..self.victims.len() {
            if self.victims[index].state == State::Closed && opening < MAX_OPENING {
                self.open(now, index);
                opening += 1;
            }
        }
    }

    fn open(&mut self, now: Instant, index: usize) {
        let path = self.mad_path(self.victims[index].local, self.victims[index].peer());
        let victim = &mut self.victims[index];
        victim.qpn = self.next_qpn;
        self.next_qpn = FIRST_QPN.max((self.next_qpn + 1) & 0xFF_FFFF);
        let (port, name) = match victim.service {
            Service::Region(name) => (4792, name),
            Service::Rping => (7174, ""),
            Service::Message => (7471, ""),
            Service::Udaddy => {
                let params = ResolveParams { response_timeout: 16, ..ResolveParams::new(path, (40_000, 7174)) };
                victim.state = State::Resolving(self.cm.resolve_datagram(now, params).unwrap());
                return;
            }
            Service::Pingpong => {
                victim.psn = Psn::new(victim.qpn);
                if let Ok(stream) = self.host.connect(now, SocketAddr::new(victim.peer(), 18515)) {
                    victim.state = State::Exchanging(stream);
                }
                return;
            }
        };
        let qpn = Qpn::new(victim.qpn);
        let params = ConnectParams {
            responder_resources: 4,
            initiator_depth: 4,
            local_ack_timeout: 14,
            response_timeout: 16,
            private_data: name.as_bytes().to_vec(),
            ..ConnectParams::new(path, (40_000, port), qpn, Psn::new(victim.qpn), victim.mtu)
        };
        victim.state = State::Connecting(self.cm.connect(now, params).unwrap());
    }

    fn find(&mut self, state: State) -> Option<&mut Victim> {
        self.victims.iter_mut().find(|victim| victim.state == state)
    }

    fn cm_event(&mut self, event: CmEvent) {
        let target = self.target;
        match event {
            CmEvent::ConnectReply(reply) => {
                let conn = reply.conn;
                let _ = self.cm.confirm(conn, &[]);
                let Some(victim) = self.find(State::Connecting(conn)) else { return };
                (victim.peer_qpn, victim.psn) = (reply.remote_qpn, Psn::new(victim.qpn));
                if matches!(victim.service, Service::Region(_)) {
                    let number = |at: usize| u64::from_be_bytes(reply.private_data[at..at + 8].try_into().unwrap());
                    victim.place = Place { addr: number(0), len: number(8), rkey: (number(16) >> 32) as u32 };
                }
                victim.opened(target, State::Connected(conn));
                self.opened += 1;
            }
            CmEvent::Disconnected { conn, .. } | CmEvent::ConnectFailed { conn, .. } => {
                for state in [State::Connecting(conn), State::Connected(conn), State::Ending(conn)] {
                    if let Some(victim) = self.find(state) {
                        victim.state = State::Closed;
                    }
                }
            }
            CmEvent::DatagramResolved(reply) => {
                let Some(victim) = self.find(State::Resolving(reply.id)) else { return };
                victim.peer_qpn = reply.qpn.get();
                victim.opened(target, State::Open);
                self.opened += 1;
            }
            CmEvent::ResolveFailed { id, .. } => {
                if let Some(victim) = self.find(State::Resolving(id)) {
                    victim.state = State::Closed;
                }
            }
            CmEvent::Established { .. } | CmEvent::ConnectRequest(_) | CmEvent::SidrRequest(_) => {}
        }
    }

    /// Exchanges pingpong's numbers: a line of text each way.
    fn stream_event(&mut self, event: StreamEvent) {
        let target = self.target;
        match event {
            StreamEvent::Opened { stream, local, .. } => {
                let Some(victim) = self.find(State::Exchanging(stream)) else { return };
                victim.local = local.ip();
                let gid = u128::from_be_bytes(Gid::from(local.ip()).0);
                let line = format!("0000:{:06x}:{:06x}:{gid:032x}\0", victim.qpn, victim.psn.get());
                assert_eq!(self.host.send(stream, line.as_bytes()), line.len());
            }
            StreamEvent::Readable { stream } => {
                let mut line = [0; 52];
                let length = self.host.recv(stream, &mut line);
                let text = String::from_utf8_lossy(&line[..length]).into_owned();
                let qpn = text.split(':').nth(1).and_then(|qpn| u32::from_str_radix(qpn, 16).ok());
                let Some(victim) = self.find(State::Exchanging(stream)) else { return };
                victim.peer_qpn = qpn.unwrap_or_else(|| panic!("pingpong answers {text:?}"));
                victim.opened(target, State::Open);
                self.opened += 1;
                self.host.send(stream, b"done\0");
                self.host.close(stream);
            }
            StreamEvent::Closed { stream, .. } => {
                if let Some(victim) = self.find(State::Exchanging(stream)) {
                    victim.state = State::Closed;
                }
            }
        }
    }

    fn send_mads(&mut self, tx: &mut Tx) {
        while let Some(transmit) = self.unsent.take().or_else(|| self.cm.poll_transmit()) {
            if !write_mad(tx, &transmit.path, GSI_UDP_SRC_PORT, self.gsi_psn, &transmit.mad) {
                self.unsent = Some(transmit);
                return;
            }
            self.gsi_psn = self.gsi_psn.next();
        }
    }
}

impl Neighbour for Attacker {
    fn receive(&mut self, now: Instant, frame: &[u8], tx: &mut Tx) {
        if frame.first_chunk().is_none_or(|dst| *dst != MAC.0 && dst[0] & 1 == 0) {
            return;
        }
        match classify(frame) {
            Ok(Frame::Roce(packet)) if packet.dest_qp() == Qpn::GSI.get() => {
                if let Ok((path, mad)) = read_mad(self.host.port(), &packet)
                    && self.host.owns(path.local.ip())
                {
                    let _dropped = self.cm.handle_mad(now, &path, mad, &Own(&self.host));
                }
            }
            Ok(Frame::Roce(packet)) => {
                let qpn = packet.dest_qp();
                if let Some(victim) = self.victims.iter_mut().find(|victim| victim.is_open() && victim.qpn == qpn) {
                    victim.received(&packet);
                }
            }
            Ok(Frame::Host) => {
                let _dropped = self.host.handle_frame(now, frame, tx);
            }
            Err(_) => {}
        }
    }

    fn poll(&mut self, now: Instant, tx: &mut Tx) {
        self.host.poll(now, tx);
        self.cm.handle_timeout(now);
        while let Some(event) = self.host.poll_event() {
            if let HostEvent::Stream(event) = event {
                self.stream_event(event);
            }
        }
        while let Some(event) = self.cm.poll_event() {
            self.cm_event(event);
        }
        self.open_some(now);
        self.send_mads(tx);
        while let Some(frame) = self.outbox.front() {
            let Some(room) = tx.push(self.host.port(), frame.len()) else { break };
            room.copy_from_slice(frame);
            self.outbox.pop_front();
            self.sent += 1;
        }
    }
}
