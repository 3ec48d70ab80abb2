//! A control side on a scripted IP host, and a peer with a connection manager of its own.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rxe_proto::cm::{Cm, CmConfig, CmEvent, GSI_UDP_SRC_PORT, LocalAddresses, MadPath, MadTransmit, write_mad};
use rxe_proto::wire::mad::MAD_LEN;
use rxe_proto::wire::{Frame, Gid, MacAddr, PathMtu, PortId, Psn, TxQueue, classify};
use rxe_proto::{Duration, Instant};

use crate::control::ip_host::{HostEvent, IpHost, Resolution, StreamEvent};
use crate::control::{Control, ControlParts, TrafficClassConfig};
use crate::local_port::{LocalPort, Restrictions};
use crate::mailbox::{WorkerInspector, WorkerMailbox, mailboxes};
use crate::messages::{ToControl, ToWorker};
use crate::service::Listen;

pub const OUR_IP: [u8; 4] = [10, 0, 0, 1];
pub const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub const PEER_IP: [u8; 4] = [10, 0, 0, 2];
pub const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// A TCP stream of a [`ScriptedHost`].
#[derive(Default)]
pub struct ScriptedStream {
    /// Bytes that the client has sent and control has not read.
    pub received: VecDeque<u8>,
    /// Frames that control wrote, one entry per call.
    pub sent: Vec<Vec<u8>>,
    /// Number of bytes that it takes before the client reads.
    pub room: usize,
    pub closed: bool,
    pub aborted: bool,
}

/// An IP host that answers as a test says, and records what control does to it.
pub struct ScriptedHost {
    pub local: LocalPort,
    /// Results of `resolve`; other addresses are unreachable.
    pub resolutions: HashMap<IpAddr, Resolution>,
    /// Addresses without a route.
    pub no_route: HashSet<IpAddr>,
    /// Addresses that are behind this router instead of on the link.
    pub router: Option<(IpAddr, HashSet<IpAddr>)>,
    pub groups: HashSet<IpAddr>,
    /// Whether the port refuses to change its filter.
    pub filter_fails: bool,
    pub learned: Vec<(IpAddr, MacAddr)>,
    /// Peers that requested connections.
    pub noted: Vec<IpAddr>,
    pub events: VecDeque<HostEvent<u32>>,
    pub streams: HashMap<u32, ScriptedStream>,
    pub listens: Vec<u16>,
    pub watches_listeners: bool,
    /// Number of MADs that the port takes.
    pub mad_room: usize,
    pub mads: VecDeque<MadTransmit>,
    /// VLAN tag and traffic class of each MAD that control has sent.
    pub marks: Vec<(Option<u16>, u8)>,
}

impl ScriptedHost {
    pub fn new(port: u16, ip: [u8; 4], mac: MacAddr) -> ScriptedHost {
        let local = LocalPort {
            id: PortId(port),
            mac,
            vlan: None,
            addresses: vec![ip.into()],
            restrictions: Restrictions::default(),
            mtu: 1500,
            path_mtu: PathMtu::Mtu1024,
        };
        ScriptedHost {
            local,
            resolutions: HashMap::new(),
            no_route: HashSet::new(),
            router: None,
            groups: HashSet::new(),
            filter_fails: false,
            learned: Vec::new(),
            noted: Vec::new(),
            events: VecDeque::new(),
            streams: HashMap::new(),
            listens: Vec::new(),
            watches_listeners: false,
            mad_room: usize::MAX,
            mads: VecDeque::new(),
            marks: Vec::new(),
        }
    }

    fn filter_result(&self) -> Result<(), &'static str> {
        if self.filter_fails { Err("the filter is full") } else { Ok(()) }
    }
}

impl IpHost for ScriptedHost {
    type Output = ();
    type Stream = u32;
    type Error = &'static str;

    fn local_port(&self) -> LocalPort {
        self.local.clone()
    }

    fn is_broadcast(&self, ip: IpAddr) -> bool {
        ip == IpAddr::from([10, 0, 0, 255])
    }

    fn is_on_link(&self, ip: IpAddr) -> bool {
        let (IpAddr::V4(ip), IpAddr::V4(own)) = (ip, self.local.addresses[0]) else { return false };
        ip.octets()[..3] == own.octets()[..3]
    }

    fn has_route(&self, ip: IpAddr) -> bool {
        !self.no_route.contains(&ip)
    }

    fn next_hop(&self, dst: IpAddr) -> IpAddr {
        match &self.router {
            Some((router, behind)) if behind.contains(&dst) => *router,
            _ => dst,
        }
    }

    fn resolve(&mut self, _now: Instant, dst: IpAddr) -> Resolution {
        let next_hop = self.next_hop(dst);
        self.resolutions.get(&next_hop).copied().unwrap_or(Resolution::Unreachable)
    }

    fn same_station(&mut self, now: Instant, a: IpAddr, b: IpAddr) -> bool {
        let mac = |resolution| if let Resolution::Ready { mac, .. } = resolution { Some(mac) } else { None };
        a == b || mac(self.resolve(now, a)).is_some_and(|a| Some(a) == mac(self.resolve(now, b)))
    }

    fn note_peer(&mut self, _now: Instant, peer: IpAddr) {
        self.noted.push(peer);
    }

    fn learn(&mut self, _now: Instant, ip: IpAddr, mac: MacAddr) {
        self.learned.push((ip, mac));
    }

    fn listen(&mut self, port: u16) -> Result<(), &'static str> {
        self.listens.push(port);
        Ok(())
    }

    fn watch_listeners(&mut self) -> Result<(), &'static str> {
        self.watches_listeners = true;
        self.filter_result()
    }

    fn join_group(&mut self, _now: Instant, group: IpAddr) -> Result<(), &'static str> {
        self.groups.insert(group);
        self.filter_result()
    }

    fn leave_group(&mut self, _now: Instant, group: IpAddr) -> Result<(), &'static str> {
        self.groups.remove(&group);
        self.filter_result()
    }

    fn recv(&mut self, stream: u32, buffer: &mut [u8]) -> usize {
        let Some(stream) = self.streams.get_mut(&stream) else { return 0 };
        let len = buffer.len().min(stream.received.len());
        stream.received.drain(..len).zip(buffer).for_each(|(byte, place)| *place = byte);
        len
    }

    fn send(&mut self, stream: u32, data: &[u8]) -> usize {
        let Some(stream) = self.streams.get_mut(&stream) else { return 0 };
        let len = data.len().min(stream.room);
        stream.room -= len;
        if len > 0 {
            stream.sent.push(data[..len].to_vec());
        }
        len
    }

    fn close(&mut self, stream: u32) {
        self.streams.get_mut(&stream).unwrap().closed = true;
    }

    fn abort(&mut self, stream: u32) {
        self.streams.get_mut(&stream).unwrap().aborted = true;
    }

    fn stream_count(&self) -> usize {
        self.streams.len()
    }

    fn neighbour_count(&self) -> usize {
        self.resolutions.len()
    }

    fn poll(&mut self, _now: Instant, _output: &mut ()) {}

    fn poll_event(&mut self) -> Option<HostEvent<u32>> {
        self.events.pop_front()
    }

    fn send_mad(&mut self, _output: &mut (), path: &MadPath, mad: &[u8; MAD_LEN]) -> bool {
        if self.mad_room == 0 {
            return false;
        }
        self.mad_room -= 1;
        self.marks.push((path.vlan, path.traffic_class));
        self.mads.push_back(MadTransmit { path: path.clone(), mad: Box::new(*mad) });
        true
    }
}

/// The peer's only address.
struct PeerAddress;

impl LocalAddresses for PeerAddress {
    fn is_local(&self, _port: PortId, gid: Gid) -> bool {
        gid == Gid::from(IpAddr::from(PEER_IP))
    }

    fn path_mtu(&self, _port: PortId) -> PathMtu {
        PathMtu::Mtu1024
    }
}

/// A port with room for one frame.
pub struct OneFrame(pub Vec<u8>);

impl TxQueue for OneFrame {
    fn push(&mut self, _port: PortId, len: usize) -> Option<&mut [u8]> {
        self.0 = vec![0; len];
        Some(&mut self.0)
    }
}

/// A control side with workers that only have mailboxes, and a peer.
pub struct TestEnv {
    pub now: Instant,
    pub control: Control<ScriptedHost>,
    pub workers: Vec<WorkerMailbox>,
    pub inspectors: Vec<WorkerInspector>,
    pub peer: Cm,
}

impl TestEnv {
    /// One port with [`OUR_IP`], whose host knows the peer's MAC.
    pub fn new(workers: usize, listens: Vec<(usize, Listen)>) -> TestEnv {
        let mut host = ScriptedHost::new(0, OUR_IP, OUR_MAC);
        host.resolutions.insert(PEER_IP.into(), ready(PEER_MAC, OUR_IP));
        TestEnv::with_hosts(workers, listens, vec![host])
    }

    pub fn with_hosts(workers: usize, listens: Vec<(usize, Listen)>, hosts: Vec<ScriptedHost>) -> TestEnv {
        let (mailbox, workers) = mailboxes(workers);
        let inspectors = mailbox.inspectors();
        let cm = Cm::new(CmConfig::new(1, [1; 32]));
        let traffic_class = TrafficClassConfig::default();
        let (factories, allowed) = (Arc::from(Vec::new()), Vec::new());
        let parts = ControlParts { cm, listens, factories, allowed, requests_per_second: 0, mailbox, traffic_class };
        let control = Control::new(hosts, parts).unwrap();
        let peer = Cm::new(CmConfig::new(2, [2; 32]));
        TestEnv { now: Instant::from_nanos(1_000_000_000), control, workers, inspectors, peer }
    }

    pub fn host(&mut self) -> &mut ScriptedHost {
        self.control.host_mut(PortId(0)).unwrap()
    }

    /// Polls control and carries MADs between it and the peer until neither has anything to send.
    pub fn exchange(&mut self) {
        loop {
            self.control.poll(self.now, &mut ());
            let to_peer = std::mem::take(&mut self.host().mads);
            let from_peer: Vec<MadTransmit> = std::iter::from_fn(|| self.peer.poll_transmit()).collect();
            if to_peer.is_empty() && from_peer.is_empty() {
                return;
            }
            for MadTransmit { path, mad } in to_peer {
                let path = MadPath {
                    local_mac: path.peer_mac,
                    peer_mac: path.local_mac,
                    local: path.peer,
                    peer: path.local,
                    ..path
                };
                self.peer.handle_mad(self.now, &path, &*mad, &PeerAddress).unwrap();
            }
            for MadTransmit { path, mad } in from_peer {
                let mut frame = OneFrame(Vec::new());
                assert!(write_mad(&mut frame, &path, GSI_UDP_SRC_PORT, Psn::new(0), &mad));
                let Ok(Frame::Roce(packet)) = classify(&frame.0) else { panic!("not a RoCE frame") };
                self.control.handle_gsi(self.now, PortId(0), &packet);
            }
        }
    }

    /// Lets time pass on both sides.
    pub fn advance(&mut self, by: Duration) {
        self.now += by;
        self.peer.handle_timeout(self.now);
        self.exchange();
    }

    /// A worker's message to control, which handles it.
    pub fn send(&mut self, message: ToControl) {
        self.workers[0].outbox.send(message).unwrap();
        self.exchange();
    }

    /// The messages of control to a worker.
    pub fn mail(&mut self, worker: usize) -> Vec<ToWorker> {
        self.workers[worker].inbox.try_iter().collect()
    }

    /// The only message of control to worker 0.
    #[track_caller]
    pub fn message(&mut self) -> ToWorker {
        let mut mail = self.mail(0);
        assert_eq!(mail.len(), 1, "{mail:?}");
        mail.remove(0)
    }

    /// The next event of the peer's connection manager.
    #[track_caller]
    pub fn peer_event(&mut self) -> CmEvent {
        self.peer.poll_event().expect("no event at the peer")
    }

    /// A client opens TCP stream `tcp` to `port`.
    pub fn open_stream(&mut self, tcp: u32, port: u16) {
        self.host().streams.insert(tcp, ScriptedStream { room: usize::MAX, ..ScriptedStream::default() });
        let (local, peer) = (SocketAddr::from((OUR_IP, port)), SocketAddr::from((PEER_IP, 40_000)));
        self.host().events.push_back(HostEvent::Stream(StreamEvent::Opened { stream: tcp, local, peer }));
        self.exchange();
    }

    /// Bytes of a client arrive.
    pub fn receive(&mut self, tcp: u32, data: &[u8]) {
        self.host().streams.get_mut(&tcp).unwrap().received.extend(data);
        self.host().events.push_back(HostEvent::Stream(StreamEvent::Readable { stream: tcp }));
        self.exchange();
    }

    pub fn stream(&mut self, tcp: u32) -> &mut ScriptedStream {
        self.host().streams.get_mut(&tcp).unwrap()
    }
}

/// The path of the peer's MADs to us.
pub fn peer_path() -> MadPath {
    MadPath {
        port: PortId(0),
        local_mac: PEER_MAC,
        peer_mac: OUR_MAC,
        vlan: None,
        local: IpAddr::from(PEER_IP).into(),
        peer: IpAddr::from(OUR_IP).into(),
        traffic_class: 0,
    }
}

/// The MAC of a neighbour is known, and packets leave from `source`.
pub fn ready(mac: MacAddr, source: [u8; 4]) -> Resolution {
    Resolution::Ready { mac, source: source.into() }
}
