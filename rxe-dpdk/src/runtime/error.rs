//! Why an adapter cannot be built.

use rxe_adapter::BuildError;
use rxe_proto::wire::Cidr;

use super::MAX_WORKERS;
use crate::eal::EalError;
use crate::host::HostConfigError;

/// Why an adapter cannot be built. Each message is one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A DPDK call failed.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// DPDK has no port.
    #[error(
        "DPDK found no port: name one before `--`, for example --vdev=net_af_packet0,iface=veth1, or bind a PCI NIC \
         to vfio-pci"
    )]
    NoPort,
    /// Settings for ports that do not exist.
    #[error("there are settings for port {port}, but DPDK found only {found} port(s)")]
    UnknownPort {
        /// The port of the settings.
        port: usize,
        /// Number of ports found.
        found: usize,
    },
    /// A port without an address.
    #[error("port {port} ({name}) has no address: give it one with --address port{port}:IP/PREFIX{}", no_pci(name))]
    NoAddress {
        /// The port.
        port: usize,
        /// Name of the device.
        name: String,
    },
    /// Addresses, routes or MTU are invalid.
    #[error("port {port}: {error}")]
    Host {
        /// The port.
        port: usize,
        /// The problem.
        error: HostConfigError,
    },
    /// The kernel has an address of a port, on the interface that the port takes.
    #[error(
        "port {port}: the kernel has the address {} on interface {interface} too, and would answer its packets: remove it \
         there (ip addr del {address} dev {interface}), or choose another --address", address.ip
    )]
    KernelAddress {
        /// The port.
        port: usize,
        /// The address, with the kernel's prefix.
        address: Cidr,
        /// The interface.
        interface: String,
    },
    /// More lcores than queue pair numbers can address.
    #[error("{0} lcores are too many: choose at most {MAX_WORKERS} with EAL's -l, as -l 0-{last}", last = MAX_WORKERS - 1)]
    TooManyWorkers(usize),
    /// What does not depend on the ports is wrong.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// What to do, too, about a PCI device that DPDK has found without being told to.
fn no_pci(name: &str) -> &'static str {
    if name.contains(':') { ", or, if it is not to be used, add --no-pci in front of `--`" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_devices_that_were_not_meant_are_explained() {
        let said = |name: &str| RuntimeError::NoAddress { port: 1, name: name.to_owned() }.to_string();
        assert_eq!(
            said("0000:00:05.0"),
            "port 1 (0000:00:05.0) has no address: give it one with --address port1:IP/PREFIX, or, if it is not to be used, \
             add --no-pci in front of `--`"
        );
        assert_eq!(said("net_null1"), "port 1 (net_null1) has no address: give it one with --address port1:IP/PREFIX");
    }
}
