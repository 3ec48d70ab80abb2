//! Addresses and routes that come and go while the target runs.

use std::net::IpAddr;

use rxe_adapter::addressing::Addressing;
use rxe_inspect::report::Address;
use rxe_proto::wire::PortId;

use super::Managed;
use crate::config::{Config, HostAddress, OnPort, Port, with_another_address, without_address};

/// The addresses of all ports.
pub fn list(managed: &Managed) -> Result<Vec<Address>, String> {
    managed.inspector.addresses().map_err(|error| error.to_string())
}

/// Adds an address, written as for `--address`.
pub fn add(managed: &Managed, text: &str) -> Result<(), String> {
    let address: OnPort<HostAddress> = text.parse().map_err(|error: rxe::CliError| error.to_string())?;
    let mut config = managed.config.lock();
    let ports = with_another_address(&config.ports, &address).map_err(|error| error.to_string())?;
    set(managed, &mut config, address.port, &ports[usize::from(address.port)], false)
}

/// Removes an address.
pub fn remove(managed: &Managed, text: &str, force: bool) -> Result<(), String> {
    let ip: IpAddr = text.parse().map_err(|_| format!("'{}' is not an IP address", text.escape_debug()))?;
    let mut config = managed.config.lock();
    let (number, ports) = without_address(&config.ports, ip).map_err(|error| error.to_string())?;
    set(managed, &mut config, number, &ports[usize::from(number)], force)
}

/// Gives port `number` of the running target and of its configuration the addresses and routes of `wanted`.
pub fn set(managed: &Managed, config: &mut Config, number: u16, wanted: &Port, force: bool) -> Result<(), String> {
    let Port { addresses, gateways, routes, .. } = wanted.clone();
    let addressing = Addressing { addresses, gateways, routes };
    let done = managed.inspector.set_addressing(PortId(number), &addressing, force);
    done.map_err(|error| error.to_string())?;
    let texts: Vec<String> = addressing.addresses.iter().map(ToString::to_string).collect();
    tracing::info!("port {number} has the addresses {} now", texts.join(" "));
    if let Some(port) = config.ports.get_mut(usize::from(number)) {
        Addressing { addresses: port.addresses, gateways: port.gateways, routes: port.routes } = addressing;
    }
    Ok(())
}
