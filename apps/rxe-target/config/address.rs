//! Addresses that are added to a running target, or removed from it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rxe::{CliError, cli_error};
use rxe_adapter::manage::AddressError;

use super::peers::PeerNetwork;
use super::settings::PortSettings;
use super::sourced::{Origin, Sourced};
use super::values::{Gateway, HostAddress, Mtu, OnPort, RouteSpec, UdpAddress, Vlan};
use super::{Port, resolve_ports};

/// The settings that give `port`; an error about them names `origin`.
fn settings_of(port: &Port, origin: &Origin) -> PortSettings {
    fn all<T>(origin: &Origin, values: impl Iterator<Item = T>) -> Vec<Sourced<T>> {
        values.map(|value| Sourced { value, origin: origin.clone() }).collect()
    }
    let one = |value: Option<u16>| value.map(|value| Sourced { value, origin: origin.clone() });
    let udp = port.addresses.first().filter(|_| port.udp).map(|address| UdpAddress(address.ip));
    PortSettings {
        udp: udp.map(|value| Sourced { value, origin: origin.clone() }),
        addresses: all(origin, port.addresses.iter().filter(|_| !port.udp).copied().map(HostAddress)),
        gateways: all(origin, port.gateways.iter().copied().map(Gateway)),
        routes: all(origin, port.routes.iter().copied().map(RouteSpec)),
        peers: port.restrictions.peers.iter().flat_map(|peers| peers.networks()).copied().map(PeerNetwork).collect(),
        strict_pkey: Some(port.restrictions.full_members_only),
        pin_mac: Some(port.restrictions.pin_mac),
        vlan: one(port.vlan).map(|Sourced { value, origin }| Sourced { value: Vlan(value), origin }),
        mtu: one(port.mtu).map(|Sourced { value, origin }| Sourced { value: Mtu(value), origin }),
    }
}

/// All settings that give `ports`.
fn settings(ports: &[Port], origin: &Origin) -> BTreeMap<u16, PortSettings> {
    // At most 32.
    ports.iter().enumerate().map(|(number, port)| (number as u16, settings_of(port, origin))).collect()
}

/// `ports` with one more address, checked as a whole.
pub fn with_another(ports: &[Port], address: &OnPort<HostAddress>) -> Result<Vec<Port>, CliError> {
    let OnPort { port: number, value: address } = *address;
    let ip = address.0.ip;
    let count = ports.len();
    if usize::from(number) >= count {
        return Err(CliError::new(AddressError::NoSuchPort { port: number, ports: count }.to_string()));
    }
    if let Some(owner) = owner(ports, ip) {
        return cli_error!("port{owner} has the address {ip} already");
    }
    if ports[usize::from(number)].udp {
        return cli_error!("port{number} is a UDP socket, which has one address: start another target with --udp {ip}");
    }
    let origin = Origin::Flag("address add");
    let mut all = settings(ports, &origin);
    all.entry(number).or_default().addresses.push(Sourced { value: address, origin });
    resolve_ports(&all)
}

/// `ports` without an address, checked as a whole, and the port that had it.
pub fn without(ports: &[Port], ip: IpAddr) -> Result<(u16, Vec<Port>), CliError> {
    let Some(number) = owner(ports, ip) else {
        return cli_error!(
            "no port has the address {ip} by its configuration: rxe-ctl address list shows the addresses"
        );
    };
    let mut all = settings(ports, &Origin::Flag("address remove"));
    let addresses = &mut all.entry(number).or_default().addresses;
    addresses.retain(|address| address.value.0.ip != ip);
    if addresses.is_empty() {
        return cli_error!("{ip} is the only address of port{number}: add another one before");
    }
    Ok((number, resolve_ports(&all)?))
}

/// The port with the address `ip`.
fn owner(ports: &[Port], ip: IpAddr) -> Option<u16> {
    let at = ports.iter().position(|port| port.addresses.iter().any(|address| address.ip == ip))?;
    u16::try_from(at).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports() -> Vec<Port> {
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().expect("a CIDR")).collect();
        let first = Port {
            addresses: addresses(&["10.0.0.1/24", "fd00::1/64"]),
            gateways: vec!["fd00::fe".parse().expect("an address")],
            vlan: Some(7),
            mtu: Some(1500),
            ..Port::default()
        };
        vec![first, Port { addresses: addresses(&["10.1.0.1/24"]), ..Port::default() }]
    }

    fn add(text: &str) -> Result<Vec<Port>, String> {
        let address = text.parse::<OnPort<HostAddress>>().map_err(|error| error.to_string())?;
        with_another(&ports(), &address).map_err(|error| error.to_string())
    }

    fn remove(text: &str) -> Result<(u16, Vec<Port>), String> {
        without(&ports(), text.parse().expect("an address")).map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_is_added_to_its_port_and_nothing_else_changes() {
        let mut expected = ports();
        expected[1].addresses.push("fd01::1/64".parse().expect("a CIDR"));
        assert_eq!(add("port1:fd01::1/64"), Ok(expected));
        for (text, sentence) in [
            ("10.1.0.1/24", "port1 has the address 10.1.0.1 already"),
            ("port2:10.2.0.1/24", "there is no port2: the target has 2 port(s), of which the first is port0"),
            ("10.0.0.5", "'10.0.0.5' lacks its prefix length: write 10.0.0.5/24, or what your network uses"),
            ("fd00::fe/64", "address add: the router fd00::fe is the target's own address: name another machine"),
        ] {
            assert_eq!(add(text), Err(sentence.to_owned()));
        }
    }

    #[test]
    fn an_address_is_removed_unless_its_port_needs_it() {
        let mut expected = ports();
        expected[0].addresses.remove(0);
        assert_eq!(remove("10.0.0.1"), Ok((0, expected)));
        for (text, sentence) in [
            ("10.1.0.1", "10.1.0.1 is the only address of port1: add another one before"),
            (
                "fd00::1",
                "address remove: the router fd00::fe is in no network of port 0: check it against the prefixes of the addresses",
            ),
            (
                "10.9.0.1",
                "no port has the address 10.9.0.1 by its configuration: rxe-ctl address list shows the addresses",
            ),
        ] {
            assert_eq!(remove(text), Err(sentence.to_owned()));
        }
    }
}
