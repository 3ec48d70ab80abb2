//! Reports of the ports.

use std::sync::{Arc, Mutex, PoisonError};

use rxe_inspect::report::{AddressConflict, Port};
use rxe_proto::wire::PortId;
use rxe_service::LocalPort;

use super::link_watch::LinkStates;
use crate::eal::PortMonitor;
use crate::host::AddressConflicts;
use rxe_adapter::counters;
use rxe_adapter::manage::{PortEntry, PortList};

/// Monitors of the open ports. The runtime clears the list before it closes them.
pub(super) type Monitors = Arc<Mutex<Vec<PortMonitor>>>;

/// One report per port.
pub(super) fn ports(list: &PortList, monitors: &Monitors, links: &LinkStates) -> Vec<Port> {
    let monitors = monitors.lock().unwrap_or_else(PoisonError::into_inner);
    let port = |entry: &PortEntry| {
        let monitor = monitors.iter().find(|m| m.info().id == entry.local.id);
        let report = port(&entry.local, monitor, monitor.map(|monitor| links.of(monitor)));
        Port { conflicts: entry.conflicts.iter().filter_map(|conflicts| conflict(conflicts)).collect(), ..report }
    };
    list.all().iter().map(port).collect()
}

/// The index of the kernel interface of a port, if it has one.
pub(super) fn interface(monitors: &Monitors, port: PortId) -> Option<u32> {
    let monitors = monitors.lock().unwrap_or_else(PoisonError::into_inner);
    monitors.iter().find(|monitor| monitor.info().id == port)?.interface()
}

/// `None` for an address that no other station uses.
fn conflict(conflicts: &AddressConflicts) -> Option<AddressConflict> {
    let mac = conflicts.station()?.to_string();
    Some(AddressConflict { address: conflicts.ip().to_string(), mac, frames: conflicts.frames() })
}

/// `state` has the reason if the port is down.
fn port(local: &LocalPort, monitor: Option<&PortMonitor>, state: Option<Result<(), String>>) -> Port {
    let link = monitor.map(PortMonitor::link);
    let stats = monitor.and_then(PortMonitor::stats).unwrap_or_default();
    let (mbufs_in_use, mbufs) = monitor.map(PortMonitor::mbufs).unwrap_or_default();
    Port {
        port: u32::from(local.id.0),
        netdev: monitor.map(|monitor| monitor.info().name.clone()).unwrap_or_default(),
        driver: monitor.map(|monitor| monitor.info().driver.clone()).unwrap_or_default(),
        up: state == Some(Ok(())),
        reason: state.and_then(Result::err),
        speed_mbps: link.and_then(|link| link.speed_mbps),
        mac: local.mac.to_string(),
        vlan: local.vlan.map(|tci| tci & 0x0FFF),
        mtu: local.mtu,
        active_mtu: local.path_mtu.bytes() as u32,
        addresses: local.addresses.iter().map(ToString::to_string).collect(),
        conflicts: Vec::new(),
        mbufs_in_use: mbufs_in_use as u64,
        mbufs: mbufs as u64,
        counters: counters::report(
            [
                ("rx_frames", stats.rx_frames),
                ("tx_frames", stats.tx_frames),
                ("rx_bytes", stats.rx_bytes),
                ("tx_bytes", stats.tx_bytes),
                ("rx_missed", stats.rx_missed),
                ("rx_errors", stats.rx_errors),
                ("tx_errors", stats.tx_errors),
                ("rx_no_mbuf", stats.rx_no_mbuf),
            ]
            .into_iter(),
        ),
    }
}
