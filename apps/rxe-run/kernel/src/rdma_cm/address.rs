//! Socket addresses as C programs pass them, and what Linux's rdma_cm makes of special ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use rxe_proto::wire::Gid;

use super::abi::{SockaddrIn6, SockaddrStorage};
use crate::local::Local;

/// The address family of native InfiniBand addresses.
const AF_IB: u16 = 27;

/// Size of a `struct sockaddr_in`.
const SOCKADDR_IN_LEN: u16 = 16;
/// Size of a `struct sockaddr_in6`.
const SOCKADDR_IN6_LEN: u16 = 28;
/// Size of a `struct sockaddr_ib`.
const SOCKADDR_IB_LEN: u16 = 48;

/// The address family of a socket address.
pub fn family(sockaddr: &[u8]) -> u16 {
    sockaddr.first_chunk().map_or(0, |&bytes| u16::from_ne_bytes(bytes))
}

/// The size that the family of a socket address implies; 0 for a family that rdma_cm does not know.
pub fn size(sockaddr: &[u8]) -> u16 {
    match i32::from(family(sockaddr)) {
        libc::AF_INET => SOCKADDR_IN_LEN,
        libc::AF_INET6 => SOCKADDR_IN6_LEN,
        family if family == i32::from(AF_IB) => SOCKADDR_IB_LEN,
        _ => 0,
    }
}

/// The IPv4 or IPv6 address in a `struct sockaddr`; `None` for another family.
pub fn read(sockaddr: &[u8]) -> Option<SocketAddr> {
    let bytes: &SockaddrIn6 = sockaddr.first_chunk()?;
    let [_, _, port_high, port_low, rest @ ..] = bytes;
    let port = u16::from_be_bytes([*port_high, *port_low]);
    match i32::from(family(sockaddr)) {
        libc::AF_INET => {
            let ip: [u8; 4] = *rest.first_chunk()?;
            Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
        }
        libc::AF_INET6 => {
            let (flow, rest) = rest.split_first_chunk::<4>()?;
            let (ip, rest) = rest.split_first_chunk::<16>()?;
            let scope: [u8; 4] = *rest.first_chunk()?;
            let (flow, scope) = (u32::from_be_bytes(*flow), u32::from_ne_bytes(scope));
            Some(SocketAddrV6::new(Ipv6Addr::from(*ip), port, flow, scope).into())
        }
        _ => None,
    }
}

/// Writes an address; zeros for none.
pub fn write(address: Option<SocketAddr>) -> SockaddrIn6 {
    let mut out = [0; size_of::<SockaddrIn6>()];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    match address {
        None => {}
        Some(SocketAddr::V4(v4)) => {
            put(0, &(libc::AF_INET as u16).to_ne_bytes());
            put(2, &v4.port().to_be_bytes());
            put(4, &v4.ip().octets());
        }
        Some(SocketAddr::V6(v6)) => {
            put(0, &(libc::AF_INET6 as u16).to_ne_bytes());
            put(2, &v6.port().to_be_bytes());
            put(4, &v6.flowinfo().to_be_bytes());
            put(8, &v6.ip().octets());
            put(24, &v6.scope_id().to_ne_bytes());
        }
    }
    out
}

/// [`write()`] for the larger structure.
pub fn write_storage(address: Option<SocketAddr>) -> SockaddrStorage {
    let mut out = [0; size_of::<SockaddrStorage>()];
    out[..size_of::<SockaddrIn6>()].copy_from_slice(&write(address));
    out
}

/// A `struct sockaddr_ib` with a GID and a service id, as the GID query returns it.
pub fn write_ib(pkey: [u8; 2], gid: [u8; 16], service_id: u64) -> (SockaddrStorage, u16) {
    let mut out = [0; size_of::<SockaddrStorage>()];
    out[0..2].copy_from_slice(&AF_IB.to_ne_bytes());
    out[2..4].copy_from_slice(&pkey);
    out[8..24].copy_from_slice(&gid);
    out[24..32].copy_from_slice(&service_id.to_be_bytes());
    (out, SOCKADDR_IB_LEN)
}

/// The port of an address; 0 for none.
pub fn port(address: Option<SocketAddr>) -> u16 {
    address.map_or(0, |address| address.port())
}

/// The GID of an address; zero for none.
pub fn gid(address: Option<SocketAddr>) -> Gid {
    address.map_or(Gid::default(), |address| Gid::from(address.ip()))
}

/// The wildcard of the family of `like`, with port 0.
pub fn wildcard(like: SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(v6) => SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, v6.scope_id()).into(),
    }
}

/// Whether an address stands for every address of the adapter. In Linux loopback addresses do, as no adapter has one. Here
/// they do unless the adapter has one.
pub fn is_any(local: &Local, ip: IpAddr) -> bool {
    ip.is_unspecified() || (ip.is_loopback() && !local.address.is_loopback())
}

/// The address that a program binds to. Any loopback address is that of an adapter that has one: libraries take the kernel's choice,
/// 127.0.0.1, for their source.
pub fn bound(local: &Local, mut source: SocketAddr) -> SocketAddr {
    if source.ip().is_loopback() && local.address.is_loopback() && source.is_ipv4() == local.address.is_ipv4() {
        source.set_ip(local.address);
    }
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_being_written_and_read() {
        let v4 = SocketAddr::from(([192, 168, 77, 1], 7174));
        let v6 = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 7471, 0x1234, 3));
        for address in [v4, v6] {
            assert_eq!(read(&write(Some(address))), Some(address));
            assert_eq!(read(&write_storage(Some(address))), Some(address));
        }
        assert_eq!(write(Some(v4))[..8], [2, 0, 0x1C, 0x06, 192, 168, 77, 1]);
        assert_eq!((size(&write(Some(v4))), size(&write(Some(v6)))), (16, 28));
        assert_eq!((read(&write(None)), size(&write(None))), (None, 0));
        assert_eq!((read(&[]), read(&[2, 0]), family(&[2])), (None, None, 0));
    }
}
