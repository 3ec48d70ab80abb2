//! The IP host of the port: routes, ARP and neighbours are the kernel's, TCP streams are its sockets.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rxe_adapter::addressing::Addressing;
use rxe_adapter::host_stats::HostStats;
use rxe_adapter::worker::host::WorkerHost;
use rxe_adapter::worker::orders::{AddressingChanged, AddressingRefused};
use rxe_proto::Instant;
use rxe_proto::cm::{MadPath, write_mad};
use rxe_proto::wire::mad::MAD_LEN;
use rxe_proto::wire::{Cidr, DropReason, MacAddr, PortId, PrefixList, Psn, ROCE_UDP_PORT};
use rxe_service::LocalPort;
use rxe_service::control::ip_host::{HostEvent, IpHost, Resolution};

use super::output::Output;
use super::tcp::{Tcp, TcpStreamId};
use crate::local::route_between;
use crate::tx::UdpTx;

/// The addresses and routes of a port are those of its socket.
pub(super) const FIXED_ADDRESS: &str =
    "the address of a UDP port belongs to the kernel and stays as it is: restart with another --udp ADDRESS";

/// The port's IP host.
pub struct UdpHost {
    local: LocalPort,
    /// The port's address with the prefix of its network.
    network: Cidr,
    /// Index of the interface, for addresses of a link.
    scope: u32,
    tcp: Tcp,
    /// Groups that the worker is to join (true) or leave, as the receiving half of the port is its own.
    group_changes: VecDeque<(IpAddr, bool)>,
    /// PSN of the next packet from our QP1.
    gsi_psn: Psn,
    /// Time of the last poll.
    now: Instant,
    stats: Arc<HostStats>,
}

/// A TCP port that cannot be listened to.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another socket has it.
    #[error(
        "TCP port {port} of {address} is in use: end the program that has it, or leave the service out (--service)"
    )]
    InUse {
        /// The TCP port.
        port: u16,
        /// The address.
        address: IpAddr,
    },
    /// Another error of the operating system.
    #[error("TCP port {port} of {address} cannot be opened: {source}")]
    System {
        /// The TCP port.
        port: u16,
        /// The address.
        address: IpAddr,
        /// The error.
        source: io::Error,
    },
}

impl UdpHost {
    /// # Errors
    /// The system has no descriptor for it.
    pub(super) fn new(local: LocalPort, network: Cidr, scope: u32) -> io::Result<UdpHost> {
        let stats = Arc::<HostStats>::default();
        let tcp = Tcp::new(local.restrictions.peers.clone(), Arc::clone(&stats))?;
        Ok(UdpHost {
            local,
            network,
            scope,
            tcp,
            group_changes: VecDeque::new(),
            gsi_psn: Psn::default(),
            now: Instant::ZERO,
            stats,
        })
    }

    pub(super) fn stats(&self) -> &Arc<HostStats> {
        &self.stats
    }

    /// A descriptor that is readable when TCP has something to do.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.tcp.descriptor()
    }

    /// Whether clients of services wait to be accepted.
    pub(super) fn has_waiting_connections(&self) -> bool {
        self.tcp.has_waiting_connections()
    }

    /// The worker has slept: something may have happened to a TCP stream.
    pub(super) fn poll_streams_next(&mut self) {
        self.tcp.poll_next();
    }

    /// The next group to join (true) or to leave.
    pub(super) fn next_group_change(&mut self) -> Option<(IpAddr, bool)> {
        self.group_changes.pop_front()
    }

    fn address(&self) -> IpAddr {
        self.network.ip
    }
}

impl fmt::Debug for UdpHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UdpHost({})", self.network)
    }
}

impl WorkerHost for UdpHost {
    /// The socket receives nothing but UDP.
    fn handle_frame(&mut self, _: Instant, _: &[u8], _: &mut Output<UdpTx>) -> Result<(), DropReason> {
        Ok(())
    }

    fn set_peers(&mut self, peers: Option<PrefixList>) {
        self.tcp.set_peers(peers);
    }

    fn set_addressing(
        &mut self,
        _: Instant,
        addressing: Addressing,
        _: bool,
    ) -> Result<AddressingChanged, AddressingRefused> {
        let same =
            addressing.addresses == [self.network] && addressing.gateways.is_empty() && addressing.routes.is_empty();
        if !same {
            return Err(AddressingRefused::Refused(FIXED_ADDRESS.to_owned()));
        }
        Ok(AddressingChanged { local: self.local_port(), conflicts: Arc::default() })
    }
}

impl IpHost for UdpHost {
    type Output = Output<UdpTx>;
    type Stream = TcpStreamId;
    type Error = ListenError;

    fn local_port(&self) -> LocalPort {
        self.local.clone()
    }

    fn is_broadcast(&self, ip: IpAddr) -> bool {
        matches!(ip, IpAddr::V4(v4) if v4 == Ipv4Addr::BROADCAST || self.network.broadcast() == Some(v4))
    }

    fn is_on_link(&self, ip: IpAddr) -> bool {
        self.network.contains(ip)
    }

    fn has_route(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.address().is_ipv4() && route_between(self.address(), ip, self.scope).is_ok()
    }

    fn next_hop(&self, dst: IpAddr) -> IpAddr {
        dst
    }

    fn resolve(&mut self, _: Instant, dst: IpAddr) -> Resolution {
        let source = self.address();
        if dst.is_multicast() || self.has_route(dst) {
            Resolution::Ready { mac: MacAddr::default(), source }
        } else {
            Resolution::Unreachable
        }
    }

    fn same_station(&mut self, _: Instant, a: IpAddr, b: IpAddr) -> bool {
        a == b || (is_ours(a) && is_ours(b))
    }

    fn note_peer(&mut self, _: Instant, peer: IpAddr) {
        if !self.has_route(peer) {
            self.stats.no_route.inc();
        }
    }

    fn learn(&mut self, _: Instant, _: IpAddr, _: MacAddr) {}

    fn listen(&mut self, port: u16) -> Result<(), ListenError> {
        let address = self.address();
        self.tcp.listen(crate::local::socket_address(address, port, self.scope)).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse { port, address },
            _ => ListenError::System { port, address, source },
        })
    }

    /// The kernel does not show what other hosts report.
    fn watch_listeners(&mut self) -> Result<(), ListenError> {
        Ok(())
    }

    fn join_group(&mut self, _: Instant, group: IpAddr) -> Result<(), ListenError> {
        self.stats.groups_joined.inc();
        self.group_changes.push_back((group, true));
        Ok(())
    }

    fn leave_group(&mut self, _: Instant, group: IpAddr) -> Result<(), ListenError> {
        self.stats.groups_left.inc();
        self.group_changes.push_back((group, false));
        Ok(())
    }

    fn recv(&mut self, stream: TcpStreamId, buffer: &mut [u8]) -> usize {
        self.tcp.recv(stream, buffer)
    }

    fn send(&mut self, stream: TcpStreamId, data: &[u8]) -> usize {
        self.tcp.send(stream, data)
    }

    fn close(&mut self, stream: TcpStreamId) {
        self.tcp.close(self.now, stream);
    }

    fn abort(&mut self, stream: TcpStreamId) {
        self.tcp.abort(stream);
    }

    fn stream_count(&self) -> usize {
        self.tcp.len()
    }

    fn neighbour_count(&self) -> usize {
        0
    }

    fn poll(&mut self, now: Instant, _: &mut Output<UdpTx>) {
        self.now = now;
        self.tcp.poll(now);
    }

    fn poll_event(&mut self) -> Option<HostEvent<TcpStreamId>> {
        self.tcp.poll_event().map(HostEvent::Stream)
    }

    fn send_mad(&mut self, output: &mut Output<UdpTx>, path: &MadPath, mad: &[u8; MAD_LEN]) -> bool {
        let sent = write_mad(output, path, ROCE_UDP_PORT, self.gsi_psn, mad);
        if sent {
            self.gsi_psn = self.gsi_psn.next();
        }
        sent
    }
}

/// Whether an address is this machine's: the kernel lets sockets have it.
fn is_ours(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// The number of the only port.
pub(super) const PORT: PortId = PortId(0);

/// An identifier of the adapter for connection managers: there is no MAC address that it could derive from.
pub(super) fn guid(address: IpAddr) -> u64 {
    // 02: locally administered.
    const LOCAL: u64 = 0x02_00_00_00_00_00_00_00;
    match address {
        IpAddr::V4(v4) => LOCAL | u64::from(ROCE_UDP_PORT) << 32 | u64::from(v4.to_bits()),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            ((bits >> 64) as u64 ^ bits as u64) & !(0xFF << 56) | LOCAL
        }
    }
}
