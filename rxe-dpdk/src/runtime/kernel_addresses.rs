//! Addresses of ours that the kernel has too, and packets to them that it forwards.
//!
//! The kernel sees the frames of an interface that net_af_packet, net_af_xdp, net_pcap or net_tap takes, and answers those
//! to its addresses, whichever interface they are on: with TCP resets and "port unreachable" for services that it does not
//! have. Its MAC address there is ours, so address conflict detection cannot tell its packets from our own. Packets to addresses
//! that it does not have it forwards, if it is a router (Docker makes it one): they leave once more, and those that come back to
//! the interface go round until their hop limit is used up.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::error::RuntimeError;
use super::rtnetlink::{self, Address, DATAGRAM, Message};
use crate::eal::{LinkEvents, Port, Woken, interface_name, wait_for_links};
use rxe_adapter::settings::PortSettings;

/// Drivers of ports whose frames the kernel sees as well.
const DRIVERS: [&str; 4] = ["net_af_packet", "net_af_xdp", "net_pcap", "net_tap"];

/// How long the kernel may take to list its addresses.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether the kernel must not have the addresses of `port`. In a VLAN it may: its untagged addresses are in another
/// network.
pub(super) fn is_exclusive(port: &Port, settings: &PortSettings) -> bool {
    settings.vlan.is_none() && DRIVERS.contains(&port.info().driver.as_str())
}

/// The addresses of `port` that the kernel must not have.
fn exclusive(port: &Port, settings: &PortSettings) -> Vec<IpAddr> {
    let addresses = settings.addresses.iter().filter(|_| is_exclusive(port, settings));
    addresses.map(|address| address.ip).collect()
}

/// Checks that the kernel has no address of `ports`; on an interface that no port takes this is a warning.
///
/// # Errors
/// [`RuntimeError::KernelAddress`].
pub(super) fn check(ports: &[Port], settings: &[PortSettings]) -> Result<(), RuntimeError> {
    let own: Vec<(Option<u32>, Vec<IpAddr>)> = ports
        .iter()
        .zip(settings)
        .map(|(port, settings)| (port.monitor().interface(), exclusive(port, settings)))
        .collect();
    if own.iter().all(|(_, addresses)| addresses.is_empty()) {
        return Ok(());
    }
    for (interface, addresses) in &own {
        interface.and_then(interface_name).iter().for_each(|interface| warn_of_forwarding(interface, addresses));
    }
    let kernel = match list() {
        Ok(kernel) => kernel,
        Err(error) => {
            tracing::warn!("the kernel does not list its addresses, which must not be the target's: {error}");
            return Ok(());
        }
    };
    own.iter().enumerate().try_for_each(|(port, (interface, own))| check_port(port, *interface, own, &kernel))
}

/// Checks that the kernel has no address of `own`, of a running port on `interface`.
///
/// # Errors
/// [`RuntimeError::KernelAddress`].
pub(super) fn check_running(port: usize, interface: Option<u32>, own: &[IpAddr]) -> Result<(), RuntimeError> {
    match list() {
        Ok(kernel) => check_port(port, interface, own, &kernel),
        Err(error) => {
            tracing::warn!("the kernel does not list its addresses, which must not be the target's: {error}");
            Ok(())
        }
    }
}

fn check_port(
    port: usize,
    interface: Option<u32>,
    own: &[IpAddr],
    kernel: &HashSet<Address>,
) -> Result<(), RuntimeError> {
    for address in shared(own, kernel) {
        if interface == Some(address.index) {
            let interface = interface_name(address.index).unwrap_or_default();
            return Err(RuntimeError::KernelAddress { port, address: address.cidr, interface });
        }
        warn(address);
    }
    Ok(())
}

/// The kernel's addresses among `own`.
pub(super) fn shared<'k>(
    own: &'k [IpAddr],
    kernel: impl IntoIterator<Item = &'k Address>,
) -> impl Iterator<Item = &'k Address> {
    kernel.into_iter().filter(|address| own.contains(&address.cidr.ip))
}

/// Warns that the kernel has an address of ours.
pub(super) fn warn(address: &Address) {
    let interface = interface_name(address.index).unwrap_or_default();
    let cidr = address.cidr;
    tracing::warn!(
        "the kernel has our address {} on interface {interface} too, and answers its packets: remove it there (ip addr del \
         {cidr} dev {interface})",
        cidr.ip
    );
}

/// Warns if the kernel forwards packets to `own` addresses that arrive at `interface`.
fn warn_of_forwarding(interface: &str, own: &[IpAddr]) {
    for (ip, name) in [(own.iter().find(|ip| ip.is_ipv4()), interface), (own.iter().find(|ip| ip.is_ipv6()), "all")] {
        let Some(ip) = ip else { continue };
        let version = if ip.is_ipv4() { 4 } else { 6 };
        let setting = std::fs::read_to_string(format!("/proc/sys/net/ipv{version}/conf/{name}/forwarding"));
        // A kernel without this protocol has no such setting, and forwards nothing.
        let forwards = setting.is_ok_and(|setting| setting.trim() != "0");
        // Nor does one without a route, as in a network namespace with nothing but our port. For IPv6 there always are some.
        let has_routes = || std::fs::read_to_string("/proc/net/route").is_ok_and(|table| table.lines().count() > 1);
        if forwards && (ip.is_ipv6() || has_routes()) {
            tracing::warn!(
                "the kernel forwards packets (net.ipv{version}.conf.{name}.forwarding is not 0), also those to our address {ip} that \
                 arrive at interface {interface}: set it to 0, or have them dropped (ip rule add iif {interface} to {ip} blackhole)"
            );
        }
    }
}

/// All addresses of the kernel, in this network namespace.
fn list() -> io::Result<HashSet<Address>> {
    let events = LinkEvents::open()?;
    events.send(&rtnetlink::address_list_request())?;
    // Nobody closes it.
    let (stopped, _stop) = io::pipe()?;
    let mut addresses = HashSet::new();
    let mut buffer = vec![0; DATAGRAM];
    loop {
        let len = match events.receive(&mut buffer) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match wait_for_links(Some(&events), &stopped, PATIENCE) {
                    Woken::Messages => continue,
                    Woken::Stopped | Woken::TimedOut => return Err(io::ErrorKind::TimedOut.into()),
                }
            }
            // Events were lost, which the list does not need.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => continue,
            Err(error) => return Err(error),
        };
        for message in rtnetlink::parse(&buffer[..len]) {
            match message {
                Message::NewAddress(address) | Message::TentativeAddress(address) => _ = addresses.insert(address),
                Message::Done => return Ok(addresses),
                Message::Refused(errno) => return Err(io::Error::from_raw_os_error(errno)),
                Message::New(_) | Message::Deleted(_) | Message::DeletedAddress(_) => {}
            }
        }
    }
}
