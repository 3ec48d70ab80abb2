//! Reports of the port.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use rxe_adapter::counters;
use rxe_adapter::manage::PortList;
use rxe_inspect::report::Port;
use rxe_service::LocalPort;

use crate::stats::UdpStats;

/// Whether an interface is up, or the reason why not.
fn link(interface: &str) -> Result<(), &'static str> {
    let wanted = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    let mut addresses = getifaddrs().map_err(|_| "the interfaces of this machine cannot be listed")?;
    match addresses.find(|address| address.interface_name == interface) {
        Some(address) if address.flags.contains(wanted) => Ok(()),
        Some(address) if address.flags.contains(InterfaceFlags::IFF_UP) => Err("the interface has no carrier"),
        Some(_) => Err("the interface is down"),
        None => Err("the interface has been removed"),
    }
}

/// Names the port type in reports.
const DRIVER: &str = "udp";

/// The reports of the only port.
pub(super) fn ports(list: &PortList, interface: &str, stats: &UdpStats) -> Vec<Port> {
    list.all().iter().map(|entry| port(&entry.local, interface, stats)).collect()
}

/// The report of a port on `interface`.
pub fn port(local: &LocalPort, interface: &str, stats: &UdpStats) -> Port {
    let link = link(interface);
    Port {
        port: u32::from(local.id.0),
        netdev: interface.to_owned(),
        driver: DRIVER.to_owned(),
        up: link.is_ok(),
        reason: link.err().map(str::to_owned),
        speed_mbps: None,
        mac: local.mac.to_string(),
        vlan: None,
        mtu: local.mtu,
        active_mtu: local.path_mtu.bytes() as u32,
        addresses: local.addresses.iter().map(ToString::to_string).collect(),
        conflicts: Vec::new(),
        mbufs_in_use: 0,
        mbufs: 0,
        counters: counters::report(counts(stats).into_iter()),
    }
}

/// The counters under the names that ports of all kinds have.
fn counts(stats: &UdpStats) -> [(&'static str, u64); 8] {
    let rx_errors = [&stats.rcvd_bad_length, &stats.rcvd_incomplete];
    let tx_errors = [
        &stats.oversize,
        &stats.foreign,
        &stats.send_unreachable,
        &stats.send_too_big,
        &stats.send_refused,
        &stats.send_denied,
        &stats.send_no_buffers,
        &stats.send_failed,
    ];
    [
        ("rx_frames", stats.rcvd_packets.get()),
        ("tx_frames", stats.sent_packets.get()),
        ("rx_bytes", stats.rcvd_bytes.get()),
        ("tx_bytes", stats.sent_bytes.get()),
        ("rx_missed", 0),
        ("rx_errors", rx_errors.iter().map(|counter| counter.get()).sum()),
        ("tx_errors", tx_errors.iter().map(|counter| counter.get()).sum()),
        ("rx_no_mbuf", 0),
    ]
}
