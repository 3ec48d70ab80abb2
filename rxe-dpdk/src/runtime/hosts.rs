//! The IP hosts of the ports.

use rxe_proto::wire::{MacAddr, PathMtu};
use rxe_service::seeds::Seeds;

use super::error::RuntimeError;
use crate::eal::Port;
use crate::host::{Host, HostConfig};
use crate::worker::port_host::PortHost;
use rxe_adapter::settings::RuntimeConfig;

/// Drivers of ports whose peer may be the kernel of this machine or of its guest. Such a kernel leaves the checksums of
/// TCP segments to a device that does not exist here.
const UNFINISHED_CHECKSUMS: [&str; 7] =
    ["net_af_packet", "net_af_xdp", "net_pcap", "net_tap", "net_vhost", "net_virtio", "net_virtio_user"];

/// Bytes of a packet besides its payload and in front of the frame's IP header: IPv6, UDP, BTH, RETH, immediate, ICRC.
const PACKET_OVERHEAD: u16 = 40 + 8 + 12 + 16 + 4 + 4;

/// One host per port.
pub(super) fn make(ports: &[Port], config: &RuntimeConfig, seeds: &mut Seeds) -> Result<Vec<PortHost>, RuntimeError> {
    let mut hosts = Vec::new();
    for (number, (port, own)) in ports.iter().zip(&config.ports).enumerate() {
        let mac = station_address(port.mac(), seeds);
        let host = Host::new(&HostConfig {
            port: port.id(),
            mac,
            mtu: port.mtu(),
            vlan: own.vlan.map(|id| id | u16::from(config.traffic_class.pcp) << 13),
            addresses: own.addresses.clone(),
            gateways: own.gateways.clone(),
            routes: own.routes.clone(),
            peers: own.restrictions.peers.clone(),
            verify_tcp_checksums: !UNFINISHED_CHECKSUMS.contains(&port.info().driver.as_str()),
            seed: seeds.next_seed(),
            ..HostConfig::default()
        })
        .map_err(|error| RuntimeError::Host { port: number, error })?;
        hosts.push(PortHost::new(host, port.multicast_filter(), path_mtu(port.mtu()), own.restrictions.clone())?);
    }
    Ok(hosts)
}

/// The port's own address, or a random one for devices that have none (net_ring).
fn station_address(own: MacAddr, seeds: &mut Seeds) -> MacAddr {
    if own != MacAddr::default() {
        return own;
    }
    let [a, b, c, d, e, ..] = seeds.next_seed();
    // 02: locally administered, one station.
    MacAddr([0x02, a, b, c, d, e])
}

/// The largest path MTU whose every packet fits an IP MTU.
fn path_mtu(ip_mtu: u16) -> PathMtu {
    PathMtu::at_most(usize::from(ip_mtu.saturating_sub(PACKET_OVERHEAD))).unwrap_or(PathMtu::Mtu256)
}
