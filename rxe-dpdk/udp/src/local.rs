//! Facts about this machine: which interface has an address, which MTU it has, and where a destination is reached from.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::libc;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::{SockaddrStorage, getsockopt, setsockopt, sockopt};
use rxe_proto::wire::net::{IPV4_LEN, IPV6_LEN, UDP_LEN};
use rxe_proto::wire::{BTH_LEN, ICRC_LEN, IMM_LEN, PathMtu, RETH_LEN, ROCE_UDP_PORT};

use crate::error::{OpenError, RouteError};
use crate::options::{Ipv4MulticastInterface, Ipv6Mtu, Ipv6MulticastInterface};

/// Bytes of a packet behind the IP header that are not payload, at most: UDP, BTH, RETH, immediate, ICRC.
const OVERHEAD: usize = UDP_LEN + BTH_LEN + RETH_LEN + IMM_LEN + ICRC_LEN;

/// The interface that has the address of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Name of the interface, such as `eth0`.
    pub name: String,
    /// Index of the interface in its network namespace.
    pub index: u32,
    /// Length of the prefix that the address has there.
    pub prefix: u8,
    /// Largest IP packet, in bytes.
    pub mtu: usize,
    /// Whether it is the loopback interface, and packets from the address stay on the machine or have no IPv4 identification.
    pub loopback: bool,
}

impl Interface {
    /// The interface that has the unicast address `address`.
    ///
    /// # Errors
    /// [`OpenError::NotLocal`] when there is none; [`OpenError::NotUnicast`],
    /// [`OpenError::Tentative`], [`OpenError::System`].
    pub fn of(address: IpAddr) -> Result<Interface, OpenError> {
        let limited_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
        let mapped = matches!(address, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
        if address.is_unspecified() || address.is_multicast() || limited_broadcast || mapped {
            return Err(OpenError::NotUnicast(address));
        }
        let system = |action| move |source: io::Error| OpenError::System { action, address, source };
        let all: Vec<InterfaceAddress> =
            getifaddrs().map_err(io::Error::from).map_err(system("list the addresses of this machine"))?.collect();
        let found = all.iter().find(|entry| ip(entry.address) == Some(address));
        // The kernel has every address of the loopback interface's prefix, but lists one.
        let found = found.or_else(|| all.iter().find(|entry| is_loopback(entry) && covers(entry, address)));
        let Some(entry) = found else {
            return Err(OpenError::NotLocal { address, available: available(&all) });
        };
        let name = device(entry);
        let index = if_nametoindex(name).map_err(io::Error::from).map_err(system("find the index of the interface"))?;
        // Packets from other IPv4 addresses of the loopback interface may leave the machine, where merged ones are numbered.
        let loopback = is_loopback(entry) && (address.is_loopback() || address.is_ipv6());
        let mtu = if loopback { route_mtu(address, address) } else { interface_mtu(address, index) };
        let mtu = mtu.map_err(|source| match source.kind() {
            // It may be the only one that the interface has.
            io::ErrorKind::AddrNotAvailable => OpenError::Tentative(address),
            _ => OpenError::System { action: "find the MTU of the interface", address, source },
        })?;
        Ok(Interface { name: name.to_owned(), index, prefix: prefix(entry), mtu, loopback })
    }

    /// The largest path MTU whose every packet between addresses like `address` fits the MTU of the interface; the smallest
    /// one where none does.
    pub fn path_mtu(&self, address: IpAddr) -> PathMtu {
        path_mtu(self.mtu, address)
    }
}

/// The kernel's path to a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Address that packets to the destination come from.
    pub source: IpAddr,
    /// Largest IP packet on the path, in bytes, as far as the kernel knows: that of the interface, of a route with an MTU, or one
    /// that a router reported.
    pub mtu: usize,
    /// The largest path MTU whose every packet fits [`mtu`](Self::mtu); the smallest one where none does.
    pub path_mtu: PathMtu,
}

/// The route to `destination` of a program without an address of its own yet: [`Route::source`] is the address to take for one.
///
/// # Errors
/// When there is none.
pub fn route_to(destination: IpAddr) -> Result<Route, RouteError> {
    let any = match destination {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    route_between(any, destination, 0)
}

/// The route from `source` to `destination`. `scope` is the index of the interface, for addresses of a link.
pub(crate) fn route_between(source: IpAddr, destination: IpAddr, scope: u32) -> Result<Route, RouteError> {
    let failed = |error| RouteError { destination, source_address: source, error };
    let socket = connected(source, destination, scope).map_err(failed)?;
    let source = socket.local_addr().map_err(failed)?.ip();
    let mtu = mtu_of(&socket).map_err(failed)?;
    Ok(Route { source, mtu, path_mtu: path_mtu(mtu, destination) })
}

/// The socket address of `ip`. `scope` is the index of the interface, which addresses of a link need.
pub(crate) fn socket_address(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, port),
        IpAddr::V6(v6) => {
            let of_link = v6.is_unicast_link_local() || v6.is_multicast();
            SocketAddrV6::new(v6, port, 0, if of_link { scope } else { 0 }).into()
        }
    }
}

fn path_mtu(mtu: usize, address: IpAddr) -> PathMtu {
    let ip_len = if address.is_ipv4() { IPV4_LEN } else { IPV6_LEN };
    PathMtu::at_most(mtu.saturating_sub(ip_len + OVERHEAD)).unwrap_or(PathMtu::Mtu256)
}

/// A socket that sends from `source` to `destination`.
fn connected(source: IpAddr, destination: IpAddr, scope: u32) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(socket_address(source, 0, scope))?;
    socket.connect(socket_address(destination, ROCE_UDP_PORT, scope))?;
    Ok(socket)
}

/// The MTU of a connected socket's path.
fn mtu_of(socket: &UdpSocket) -> io::Result<usize> {
    let mtu = match socket.local_addr()? {
        SocketAddr::V4(_) => getsockopt(socket, sockopt::IpMtu)?,
        SocketAddr::V6(_) => getsockopt(socket, Ipv6Mtu)?,
    };
    Ok(usize::try_from(mtu).unwrap_or(0))
}

fn route_mtu(source: IpAddr, destination: IpAddr) -> io::Result<usize> {
    mtu_of(&connected(source, destination, 0)?)
}

/// The MTU of an interface: that of the path to the group of all hosts there. /sys does not show it in every network namespace.
fn interface_mtu(address: IpAddr, index: u32) -> io::Result<usize> {
    match address {
        IpAddr::V4(_) => {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            setsockopt(&socket, Ipv4MulticastInterface, &ipv4_membership(Ipv4Addr::UNSPECIFIED, index))?;
            socket.connect((Ipv4Addr::new(224, 0, 0, 1), ROCE_UDP_PORT))?;
            mtu_of(&socket)
        }
        IpAddr::V6(_) => {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            setsockopt(&socket, Ipv6MulticastInterface, &index.cast_signed())?;
            let all_nodes = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);
            socket.connect(socket_address(all_nodes.into(), ROCE_UDP_PORT, index))?;
            mtu_of(&socket)
        }
    }
}

/// An IPv4 multicast group on an interface, as socket options name it.
pub(crate) fn ipv4_membership(group: Ipv4Addr, index: u32) -> libc::ip_mreqn {
    libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group.octets()) },
        imr_address: libc::in_addr { s_addr: 0 },
        imr_ifindex: index.cast_signed(),
    }
}

/// One sentence about the addresses of this machine.
fn available(all: &[InterfaceAddress]) -> String {
    let mut addresses: Vec<String> =
        all.iter().filter_map(|entry| Some(format!("{} ({})", ip(entry.address)?, device(entry)))).collect();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() {
        return "it has none: set the loopback interface up (ip link set lo up), or add an address to another one"
            .into();
    }
    format!("it has {}", addresses.join(", "))
}

fn ip(address: Option<SockaddrStorage>) -> Option<IpAddr> {
    let address = address?;
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(v4.ip().into()),
        (_, Some(v6)) => Some(v6.ip().into()),
        _ => None,
    }
}

/// The name of the interface, without the label that an IPv4 address may add, as in `eth0:1`.
fn device(entry: &InterfaceAddress) -> &str {
    entry.interface_name.split(':').next().unwrap_or_default()
}

fn is_loopback(entry: &InterfaceAddress) -> bool {
    entry.flags.contains(InterfaceFlags::IFF_LOOPBACK)
}

/// Length of the prefix of an interface's address.
fn prefix(entry: &InterfaceAddress) -> u8 {
    let bits = match ip(entry.netmask) {
        Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
        Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
        None => 0,
    };
    // At most 128.
    bits as u8
}

/// Whether an IPv4 address is in the prefix of an interface's address.
fn covers(entry: &InterfaceAddress, address: IpAddr) -> bool {
    match (address, ip(entry.address), ip(entry.netmask)) {
        (IpAddr::V4(address), Some(IpAddr::V4(own)), Some(IpAddr::V4(mask))) => address & mask == own & mask,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtu_leaves_room_for_the_longest_headers() {
        let (v4, v6) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST));
        assert_eq!(path_mtu(65536, v4), PathMtu::Mtu4096);
        assert_eq!(path_mtu(1500, v4), PathMtu::Mtu1024);
        assert_eq!((path_mtu(4096 + 64, v4), path_mtu(4096 + 63, v4)), (PathMtu::Mtu4096, PathMtu::Mtu2048));
        assert_eq!((path_mtu(4096 + 84, v6), path_mtu(4096 + 83, v6)), (PathMtu::Mtu4096, PathMtu::Mtu2048));
        assert_eq!(path_mtu(68, v4), PathMtu::Mtu256);
    }

    #[test]
    fn addresses_of_a_link_get_the_interface_as_their_scope() {
        let scope = |ip: &str| match socket_address(ip.parse().unwrap(), 1, 7) {
            SocketAddr::V6(address) => address.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        assert_eq!([scope("fe80::1"), scope("ff02::1"), scope("fd00::1"), scope("10.0.0.1")], [7, 7, 0, 0]);
    }

    #[test]
    fn every_address_of_the_loopback_prefix_is_an_address_of_lo() {
        let lo = Interface::of("127.200.3.4".parse().unwrap()).unwrap();
        assert_eq!((lo.name.as_str(), lo.loopback, lo.prefix), ("lo", true, 8));
        assert_eq!(lo.path_mtu(Ipv4Addr::LOCALHOST.into()), PathMtu::Mtu4096);
    }

    #[test]
    fn loopback_reaches_loopback_only() {
        let [one, two] = ["127.200.3.4", "127.200.3.5"].map(|ip| ip.parse::<IpAddr>().unwrap());
        assert_eq!(route_between(one, two, 0).unwrap(), Route { source: one, mtu: 65535, path_mtu: PathMtu::Mtu4096 });
        assert_eq!(route_to(two).unwrap().source, Ipv4Addr::LOCALHOST);
        let error = route_between(one, "192.0.2.77".parse().unwrap(), 0).unwrap_err();
        assert!(error.to_string().starts_with("192.0.2.77 cannot be reached from 127.200.3.4: "), "{error}");
    }
}
