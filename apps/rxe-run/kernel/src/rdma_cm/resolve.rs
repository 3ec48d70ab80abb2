//! The way to a peer: RESOLVE_ADDR and RESOLVE_ROUTE.

use std::net::SocketAddr;

use nix::errno::Errno;
use rxe_proto::wire::cm::PortSpace;

use super::abi::event;
use super::events::{Param, status};
use super::id::{Id, PathRecord, State};
use super::{Host, RdmaCm, abi, address};
use crate::local::Local;

/// Packet lifetime of a path, as Linux assumes it on Ethernet: 4.096 us * 2^18.
const PACKET_LIFE_TIME: u8 = 18;

impl RdmaCm {
    /// RESOLVE_IP.
    pub(super) fn resolve_ip(&mut self, host: &mut Host<'_>, file: u32, command: &abi::ResolveIp) -> Result<(), Errno> {
        let has_source = address::family(&command.src_addr) != 0;
        if (has_source && address::size(&command.src_addr) == 0) || address::size(&command.dst_addr) == 0 {
            return Err(Errno::EINVAL);
        }
        self.resolve_sockaddr(host, file, command.id, &command.src_addr, &command.dst_addr)
    }

    /// RESOLVE_ADDR.
    pub(super) fn resolve_addr(
        &mut self,
        host: &mut Host<'_>,
        file: u32,
        command: &abi::ResolveAddr,
    ) -> Result<(), Errno> {
        let (source_size, dest_size) = (address::size(&command.src_addr), address::size(&command.dst_addr));
        if command.reserved != 0
            || (command.src_size != 0 && command.src_size != source_size)
            || command.dst_size == 0
            || command.dst_size != dest_size
        {
            return Err(Errno::EINVAL);
        }
        self.resolve_sockaddr(host, file, command.id, &command.src_addr, &command.dst_addr)
    }

    fn resolve_sockaddr(
        &mut self,
        host: &mut Host<'_>,
        file: u32,
        handle: u32,
        source: &[u8],
        dest: &[u8],
    ) -> Result<(), Errno> {
        let id = self.id(file, handle)?;
        let bound = id.state == State::Bound;
        self.check_events(file)?;
        let dest = address::read(dest).ok_or(Errno::EAFNOSUPPORT)?;
        if bound {
            // Its address stays.
            self.id_mut(file, handle)?.dest = Some(dest);
        } else {
            let source = match address::family(source) {
                0 => address::wildcard(dest),
                _ => address::read(source).ok_or(Errno::EAFNOSUPPORT)?,
            };
            self.bind_id(host, handle, source, dest)?;
        }
        let id = self.id_mut(file, handle)?;
        if id.source.is_none_or(|source| source.is_ipv4() != dest.is_ipv4()) {
            return Err(Errno::EINVAL);
        }
        match resolve(host, id, dest) {
            Ok(()) => self.queue(handle, event::ADDR_RESOLVED, 0, Param::None),
            Err(errno) => self.queue(handle, event::ADDR_ERROR, status(errno), Param::None),
        }
        Ok(())
    }

    /// RESOLVE_ROUTE.
    pub(super) fn resolve_route(
        &mut self,
        host: &mut Host<'_>,
        file: u32,
        command: &abi::ResolveRoute,
    ) -> Result<(), Errno> {
        self.attached(file, command.id)?;
        self.check_events(file)?;
        let id = self.id_mut(file, command.id)?;
        if command.timeout_ms == 0 || id.state != State::AddressResolved {
            return Err(Errno::EINVAL);
        }
        id.path = Some(path(host.local, id));
        id.state = State::RouteResolved;
        self.queue(command.id, event::ROUTE_RESOLVED, 0, Param::None);
        Ok(())
    }
}

/// Finds the way to `dest`, and gives the id the adapter's address if it has none yet.
fn resolve(host: &Host<'_>, id: &mut Id, dest: SocketAddr) -> Result<(), Errno> {
    let own = host.local.address;
    let mut dest = dest;
    if address::is_any(host.local, dest.ip()) {
        dest.set_ip(own);
    }
    // A multicast group needs no route: the adapter sends to it from its interface.
    let source = if dest.ip() == own || dest.ip().is_multicast() {
        own
    } else {
        host.routes.route(dest.ip()).ok_or(Errno::ENETUNREACH)?
    };
    // There is no IP over InfiniBand on Ethernet.
    if id.space == PortSpace::Ipoib {
        return Err(Errno::EINVAL);
    }
    // Another adapter may reach it, or none.
    if own.is_ipv4() != dest.is_ipv4() || (source != own && !id.attached) {
        return Err(Errno::ENODEV);
    }
    if let Some(bound) = &mut id.source {
        bound.set_ip(own);
    }
    (id.dest, id.attached, id.state) = (Some(dest), true, State::AddressResolved);
    Ok(())
}

/// The path of an id with resolved addresses.
fn path(local: &Local, id: &Id) -> PathRecord {
    PathRecord {
        source: address::gid(id.source),
        dest: address::gid(id.dest),
        flow_label: flow_label(id),
        traffic_class: id.type_of_service.unwrap_or(0),
        mtu: local.path_mtu,
        life_time: id.ack_timeout.filter(|&timeout| timeout > 0).map_or(PACKET_LIFE_TIME, |timeout| timeout - 1),
    }
}

/// The flow label that the program has chosen with an IPv6 address, or one of the ports, as in Linux.
fn flow_label(id: &Id) -> u32 {
    match id.source {
        Some(SocketAddr::V6(v6)) if v6.flowinfo() & 0xF_FFFF != 0 => v6.flowinfo() & 0xF_FFFF,
        source => (u32::from(address::port(source)) * 31 + u32::from(address::port(id.dest))) & 0xF_FFFF,
    }
}
