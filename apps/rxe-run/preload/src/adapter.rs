//! The adapter of this process.
//!
//! It takes its address; opening a device of it is refused.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockaddrStorage;
use rxe_proto::wire::{PathMtu, ROCE_UDP_PORT};
use rxe_uverbs::address;
use rxe_uverbs::backend::{Answer, Backend, Device, Opened};
use rxe_uverbs::descriptors::{Descriptors, File, out_of_the_way};
use rxe_uverbs::local::Local;
use rxe_uverbs::settings::Settings;

struct Adapter {
    local: Local,
    socket: OwnedFd,
}

/// The adapter with these settings.
///
/// # Errors
/// Its address cannot be taken.
pub fn new(settings: &Settings, _: &'static Descriptors) -> Result<Box<dyn Backend>, Box<dyn std::error::Error>> {
    let in_use = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    let (local, socket) = address::take(settings.address, bind, in_use)?;
    Ok(Box::new(Adapter { local, socket: out_of_the_way(socket.into()) }))
}

fn bind(address: IpAddr) -> io::Result<(Local, UdpSocket)> {
    let interface = interface_of(address)?;
    let socket = UdpSocket::bind((address, ROCE_UDP_PORT))?;
    let ifindex = if_nametoindex(interface.as_str())?;
    Ok((Local::new(address, interface, ifindex, PathMtu::Mtu1024), socket))
}

/// The interface with the address. All addresses in the network of a loopback interface are the machine's, as 127.0.0.2 is.
fn interface_of(address: IpAddr) -> io::Result<String> {
    let mut loopback = None;
    for candidate in getifaddrs()? {
        let Some(ip) = candidate.address.as_ref().and_then(ip) else { continue };
        if ip == address {
            return Ok(candidate.interface_name);
        }
        let mask = candidate.netmask.as_ref().and_then(self::ip);
        let same_network =
            mask.is_some_and(|mask| network(ip, mask).is_some_and(|own| network(address, mask) == Some(own)));
        if candidate.flags.contains(InterfaceFlags::IFF_LOOPBACK) && same_network {
            loopback = Some(candidate.interface_name);
        }
    }
    loopback.ok_or_else(|| io::Error::other(format!("no interface of this machine has the address {address}")))
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
        (_, Some(v6)) => Some(IpAddr::V6(v6.ip())),
        _ => None,
    }
}

/// The network of `address`; `None` when the mask is one of the other family.
fn network(address: IpAddr, mask: IpAddr) -> Option<u128> {
    match (address, mask) {
        (IpAddr::V4(address), IpAddr::V4(mask)) => Some(u128::from((address & mask).to_bits())),
        (IpAddr::V6(address), IpAddr::V6(mask)) => Some((address & mask).to_bits()),
        _ => None,
    }
}

impl Backend for Adapter {
    fn local(&self) -> &Local {
        &self.local
    }

    fn open(&self, _: Device) -> Result<Opened, Errno> {
        Err(Errno::ENXIO)
    }

    fn write(&self, _: File, _: &[u8], _: bool) -> Result<Answer, Errno> {
        Err(Errno::EBADF)
    }

    fn close(&self, _: File) {}

    fn forked(&self) {
        // An error would say that the descriptor is closed.
        let _ = nix::unistd::close(self.socket.as_raw_fd());
    }

    fn shutdown(&self) {}
}
