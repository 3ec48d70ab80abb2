//! Paths: from the route of an address handle or queue pair to headers.

use nix::errno::Errno;
use rxe_proto::wire::{Gid, MacAddr, Path, PortId, ROCE_UDP_PORT};

use super::PORT;
use super::abi::{AhAttr, GlobalRouteAv, QpDest};
use crate::local::Local;

/// The hop limit of packets to one host, which the kernel takes from its routing table whatever the program asks for.
const HOP_LIMIT: u8 = 64;

/// A global route: where packets go, and by which of our addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Route {
    pub(super) dgid: [u8; 16],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

impl Route {
    /// The route in a work request of a provider that knows no numbers of address handles.
    pub(super) fn of_av(av: &GlobalRouteAv) -> Route {
        Route {
            dgid: av.dgid,
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        }
    }
}

/// The route of an address handle's attributes.
///
/// # Errors
/// `EINVAL` for another port, or without a global route, which RoCE needs.
pub(super) fn route_of_ah(attr: &AhAttr) -> Result<Route, Errno> {
    if attr.port_num != PORT || attr.is_global == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(Route {
        dgid: attr.grh.dgid,
        flow_label: attr.grh.flow_label,
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
    })
}

/// The route of a queue pair's destination.
///
/// # Errors
/// As for [`route_of_ah`].
pub(super) fn route_of_qp(dest: &QpDest) -> Result<Route, Errno> {
    if dest.port_num != PORT || dest.is_global == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(Route {
        dgid: dest.dgid,
        flow_label: dest.flow_label,
        sgid_index: dest.sgid_index,
        hop_limit: dest.hop_limit,
        traffic_class: dest.traffic_class,
    })
}

/// The path along a route.
///
/// # Errors
/// `EINVAL` when there is no such source GID, or the destination is of another address family.
pub(super) fn path(local: &Local, route: &Route) -> Result<Path, Errno> {
    let src = *local.gids.get(usize::from(route.sgid_index)).ok_or(Errno::EINVAL)?;
    let dst = Gid(route.dgid);
    if src.is_ipv4() != dst.is_ipv4() {
        tracing::warn!("{dst} cannot be reached from {}: use an address of the same family", local.address);
        return Err(Errno::EINVAL);
    }
    let hop_limit = if dst.ip().is_multicast() { route.hop_limit.max(1) } else { HOP_LIMIT };
    Ok(Path {
        port: PortId(0),
        src_mac: MacAddr::default(),
        dst_mac: MacAddr::default(),
        vlan: None,
        src,
        dst,
        udp_src_port: ROCE_UDP_PORT,
        traffic_class: route.traffic_class,
        flow_label: route.flow_label & 0xF_FFFF,
        hop_limit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_proto::wire::PathMtu;
    use std::net::IpAddr;

    fn local(address: &str) -> Local {
        let address: IpAddr = address.parse().unwrap();
        Local::new(address, "lo".into(), 1, PathMtu::Mtu4096)
    }

    fn route(dst: &str, sgid_index: u8) -> Route {
        let ip: IpAddr = dst.parse().unwrap();
        Route { dgid: Gid::from(ip).0, flow_label: 0xFFF0_0001, sgid_index, hop_limit: 1, traffic_class: 0x20 }
    }

    #[test]
    fn a_path_has_the_sockets_address_and_port() {
        let path4 = path(&local("127.0.0.2"), &route("10.0.0.9", 1)).unwrap();
        assert_eq!((path4.src.ip().to_string(), path4.dst.ip().to_string()), ("127.0.0.2".into(), "10.0.0.9".into()));
        assert_eq!((path4.udp_src_port, path4.hop_limit, path4.flow_label, path4.traffic_class), (4791, 64, 1, 0x20));
        assert!(path4.is_ipv4());
        assert_eq!(path(&local("127.0.0.2"), &route("10.0.0.9", 0)).unwrap(), path4, "both GIDs are the address");
        let path6 = path(&local("fd00::1"), &route("fd00::2", 1)).unwrap();
        assert!(!path6.is_ipv4());
        assert!(path(&local("fe80::7"), &route("fe80::8", 0)).is_ok(), "a link-local address is its own GID");
        assert_eq!(path(&local("127.0.0.2"), &route("239.1.2.3", 1)).unwrap().hop_limit, 1);
    }

    #[test]
    fn a_route_that_the_socket_cannot_take_is_refused() {
        let v4 = local("127.0.0.2");
        for route in [route("fe80::8", 0), route("fd00::2", 1), route("10.0.0.9", 2)] {
            assert_eq!(path(&v4, &route), Err(Errno::EINVAL), "{route:?}");
        }
        assert_eq!(path(&local("fd00::1"), &route("10.0.0.9", 1)), Err(Errno::EINVAL));
    }
}
