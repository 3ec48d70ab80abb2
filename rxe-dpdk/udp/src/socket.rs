//! The sockets of a port.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
};
use rxe_proto::wire::ROCE_UDP_PORT;

use crate::config::{UdpConfig, moved};
use crate::error::OpenError;
use crate::local::{Interface, ipv4_membership, socket_address};
use crate::options::{
    Ipv4JoinGroup, Ipv4MtuDiscover, Ipv4MulticastAll, Ipv4MulticastInterface, Ipv4NoChecksum, Ipv6JoinGroup,
    Ipv6MtuDiscover, Ipv6MulticastAll, Ipv6MulticastInterface, Ipv6NoChecksumRx, Ipv6NoChecksumTx,
};
use crate::segmentation::Checksums;

/// The socket of a port's address.
pub(crate) struct Opened {
    pub(crate) socket: UdpSocket,
    /// Whether it may receive several packets as one datagram.
    pub(crate) merges: bool,
    /// Whether it can send several packets as one datagram.
    pub(crate) segments: bool,
}

/// The socket that sends all packets and receives those to the port's address.
pub(crate) fn open(config: &UdpConfig, interface: &Interface) -> Result<Opened, OpenError> {
    let address = config.address;
    let socket = UdpSocket::bind(socket_address(address, ROCE_UDP_PORT, interface.index)).map_err(|source| {
        match source.kind() {
            io::ErrorKind::AddrInUse => OpenError::InUse(address),
            // An interface has the address, as `interface` was found.
            io::ErrorKind::AddrNotAvailable => OpenError::Tentative(address),
            _ => OpenError::System { action: "bind a UDP socket", address, source },
        }
    })?;
    let socket = UdpSocket::from(moved(socket.into(), config.lowest_descriptor));
    let system = |action| move |source: io::Error| OpenError::System { action, address, source };
    socket.set_nonblocking(true).map_err(system("make the socket non-blocking"))?;
    for_transmission(&socket, config, interface).map_err(system("set up the socket to send"))?;
    let merges = for_reception(&socket, config).map_err(system("set up the socket to receive"))?;
    let segments = config.offload && setsockopt(&socket, sockopt::UdpGsoSegment, &0).is_ok();
    Ok(Opened { socket, merges, segments })
}

/// A socket for the datagrams to a multicast group: the socket of the port's address does not receive them. Any number of sockets
/// of this machine may be bound to a group, and each receives every datagram.
pub(crate) fn open_group(group: IpAddr, config: &UdpConfig, interface: &Interface) -> io::Result<UdpSocket> {
    let family = if group.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Datagram, flags, SockProtocol::Udp)?;
    let socket = UdpSocket::from(moved(socket, config.lowest_descriptor));
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    let address: SocketAddr = socket_address(group, ROCE_UDP_PORT, interface.index);
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    match group {
        IpAddr::V4(group) => {
            setsockopt(&socket, Ipv4MulticastAll, &false)?;
            setsockopt(&socket, Ipv4JoinGroup, &ipv4_membership(group, interface.index))?;
        }
        IpAddr::V6(group) => {
            setsockopt(&socket, Ipv6MulticastAll, &false)?;
            setsockopt(&socket, Ipv6JoinGroup, &ipv6_membership(group, interface.index))?;
        }
    }
    for_reception(&socket, config)?;
    Ok(socket)
}

fn ipv6_membership(group: Ipv6Addr, index: u32) -> libc::ipv6_mreq {
    libc::ipv6_mreq { ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() }, ipv6mr_interface: index }
}

fn for_transmission(socket: &UdpSocket, config: &UdpConfig, interface: &Interface) -> io::Result<()> {
    // Unlike a connected one, an unconnected socket with this option sends IPv4 identification 0, which the ICRC covers.
    match config.address {
        IpAddr::V4(address) => {
            setsockopt(socket, Ipv4MtuDiscover, &libc::IP_PMTUDISC_DO)?;
            setsockopt(socket, Ipv4MulticastInterface, &ipv4_membership(address, interface.index))?;
        }
        IpAddr::V6(_) => {
            setsockopt(socket, Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_DO)?;
            setsockopt(socket, sockopt::Ipv6DontFrag, &true)?;
            setsockopt(socket, Ipv6MulticastInterface, &interface.index.cast_signed())?;
        }
    }
    // The ICRC protects a packet better than the UDP checksum. The kernel leaves checksums to the device, and virtual ones such
    // as veth hand packets on without them, which receivers that bypass the kernel then drop. The loopback interface has no
    // such receivers, computes no checksum either, and segments only with checksums. Elsewhere packets to sockets get them while
    // several leave as one datagram.
    if !interface.loopback {
        match config.address {
            IpAddr::V4(_) => setsockopt(socket, Ipv4NoChecksum, &true)?,
            IpAddr::V6(_) => setsockopt(socket, Ipv6NoChecksumTx, &true)?,
        }
    }
    // The forced size is not limited, but needs CAP_NET_ADMIN.
    if setsockopt(socket, sockopt::SndBufForce, &config.send_buffer).is_err() {
        setsockopt(socket, sockopt::SndBuf, &config.send_buffer)?;
    }
    Ok(())
}

/// Returns whether the socket merges packets.
fn for_reception(socket: &UdpSocket, config: &UdpConfig) -> io::Result<bool> {
    if config.address.is_ipv4() {
        setsockopt(socket, sockopt::IpRecvTos, &true)?;
        setsockopt(socket, sockopt::Ipv4RecvTtl, &true)?;
    } else {
        setsockopt(socket, sockopt::Ipv6RecvTClass, &true)?;
        setsockopt(socket, sockopt::Ipv6RecvHopLimit, &true)?;
        setsockopt(socket, Ipv6NoChecksumRx, &true)?;
    }
    setsockopt(socket, sockopt::RxqOvfl, &1)?;
    if setsockopt(socket, sockopt::RcvBufForce, &config.receive_buffer).is_err() {
        setsockopt(socket, sockopt::RcvBuf, &config.receive_buffer)?;
    }
    if !config.offload {
        return Ok(false);
    }
    match setsockopt(socket, sockopt::UdpGroSegment, &true) {
        Ok(()) => Ok(true),
        // Linux before 5.0.
        Err(Errno::ENOPROTOOPT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Properties of outgoing datagrams that are options of the socket, as they rarely change: a control message for each datagram would cost
/// more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SendOptions {
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// Whether the destination is a multicast group, which has a hop limit of its own.
    pub(crate) multicast: bool,
    pub(crate) checksums: Checksums,
}

/// The [`SendOptions`] that a socket has.
#[derive(Debug, Default)]
pub(crate) struct AppliedOptions {
    traffic_class: Option<u8>,
    unicast_hops: Option<u8>,
    multicast_hops: Option<u8>,
    /// As far as datagrams have demanded something.
    checksums: Option<bool>,
}

impl AppliedOptions {
    /// Sets the options that differ.
    pub(crate) fn apply(&mut self, socket: &UdpSocket, ipv4: bool, options: SendOptions) -> nix::Result<()> {
        if self.traffic_class != Some(options.traffic_class) {
            let traffic_class = i32::from(options.traffic_class);
            match ipv4 {
                true => setsockopt(socket, sockopt::Ipv4Tos, &traffic_class)?,
                false => setsockopt(socket, sockopt::Ipv6TClass, &traffic_class)?,
            }
            self.traffic_class = Some(options.traffic_class);
        }
        let applied = if options.multicast { &mut self.multicast_hops } else { &mut self.unicast_hops };
        if *applied != Some(options.hop_limit) {
            // 0 would not leave the machine, and the kernel refuses it for unicast.
            let hops = options.hop_limit.max(1);
            match (ipv4, options.multicast) {
                (true, false) => setsockopt(socket, sockopt::Ipv4Ttl, &i32::from(hops))?,
                (true, true) => setsockopt(socket, sockopt::IpMulticastTtl, &hops)?,
                (false, false) => setsockopt(socket, sockopt::Ipv6Ttl, &i32::from(hops))?,
                (false, true) => setsockopt(socket, sockopt::Ipv6MulticastHops, &i32::from(hops))?,
            }
            *applied = Some(options.hop_limit);
        }
        let checksums = match options.checksums {
            Checksums::Any => self.checksums,
            Checksums::On => Some(true),
            Checksums::Off => Some(false),
        };
        if let Some(on) = checksums
            && self.checksums != checksums
        {
            match ipv4 {
                true => setsockopt(socket, Ipv4NoChecksum, &!on)?,
                false => setsockopt(socket, Ipv6NoChecksumTx, &!on)?,
            }
            self.checksums = checksums;
        }
        Ok(())
    }
}
