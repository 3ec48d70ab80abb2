//! Which services take new clients, and of which peers, as `rxe-ctl` changes it while the target runs.

use rxe_adapter::manage::{AddressError, RegionError};
use rxe_inspect::report::AllowedPeers;
use rxe_proto::wire::{PortId, PrefixList};

use super::{Managed, regions};
use crate::config::{Config, PeerNetwork, RegionSpec, allowed_peers};
use crate::services;

/// Stops a service.
pub fn stop(managed: &Managed, name: &str, force: bool) -> Result<(), String> {
    let _changes = managed.config.lock();
    managed.inspector.stop_service(name, force).map_err(|error| error.to_string())?;
    let clients = if force { ", and its clients are disconnected" } else { "" };
    tracing::info!("the service {name} was stopped{clients}");
    Ok(())
}

/// Starts a service that was stopped.
pub fn start(managed: &Managed, name: &str) -> Result<(), String> {
    let _changes = managed.config.lock();
    managed.inspector.start_service(name).map_err(|error| error.to_string())?;
    tracing::info!("the service {name} was started");
    Ok(())
}

/// A port, service or region.
#[derive(PartialEq, Eq, Debug)]
enum Place<'a> {
    Port(u16),
    Service(&'a str),
    Region(&'a str),
}

impl Place<'_> {
    fn parse(text: &str) -> Result<Place<'_>, String> {
        if let Some(name) = text.strip_prefix("service:") {
            return Ok(Place::Service(name));
        }
        if let Some(name) = text.strip_prefix("region:") {
            return Ok(Place::Region(name));
        }
        match text.strip_prefix("port").map(str::parse) {
            Some(Ok(number)) => Ok(Place::Port(number)),
            _ => Err(format!(
                "'{text}' has no list of peers: write port0 (or another number), service:NAME or region:NAME"
            )),
        }
    }
}

/// The allowed peers of everything that has such a list.
pub fn peers(managed: &Managed) -> Vec<AllowedPeers> {
    let config = managed.config.lock();
    let entry = |of: String, peers: Option<&PrefixList>| AllowedPeers {
        of,
        peers: peers.into_iter().flat_map(PrefixList::networks).map(ToString::to_string).collect(),
    };
    let ports = config.ports.iter().enumerate();
    let ports = ports.map(|(number, port)| entry(format!("port{number}"), port.restrictions.peers.as_ref()));
    let services = config.services.iter();
    let services = services.map(|name| entry(format!("service:{name}"), config.service_peers.get(name.as_str())));
    let regions = config.regions.iter().map(|region| entry(format!("region:{}", region.name), region.peers.as_ref()));
    ports.chain(services).chain(regions).collect()
}

/// Sets the allowed peers of a port, service or region; none serves everyone.
pub fn set_peers(managed: &Managed, of: &str, networks: &[String]) -> Result<(), String> {
    let networks: Vec<PeerNetwork> = networks
        .iter()
        .map(|network| network.parse())
        .collect::<Result<_, rxe::CliError>>()
        .map_err(|error| error.to_string())?;
    let peers = allowed_peers(&networks).map_err(|error| error.to_string())?;
    let place = Place::parse(of)?;
    let mut config = managed.config.lock();
    match place {
        Place::Port(number) => set_port(managed, &mut config, number, peers)?,
        Place::Service(name) => set_service(managed, &mut config, name, peers)?,
        Place::Region(name) => set_region(managed, &mut config, name, peers)?,
    }
    tracing::info!("the allowed peers of {of} were changed");
    Ok(())
}

/// Sets the allowed peers of a port, in the running target and its configuration.
pub fn set_port(managed: &Managed, config: &mut Config, number: u16, peers: Option<PrefixList>) -> Result<(), String> {
    let ports = config.ports.len();
    let port = config
        .ports
        .get_mut(usize::from(number))
        .ok_or_else(|| AddressError::NoSuchPort { port: number, ports }.to_string())?;
    let done = managed.inspector.set_port_peers(PortId(number), peers.as_ref());
    done.map_err(|error| error.to_string())?;
    port.restrictions.peers = peers;
    Ok(())
}

/// Sets the allowed peers of a service, in the running target and its configuration.
pub fn set_service(
    managed: &Managed,
    config: &mut Config,
    name: &str,
    peers: Option<PrefixList>,
) -> Result<(), String> {
    managed.inspector.set_service_peers(name, peers.clone()).map_err(|error| error.to_string())?;
    // Services that share a port have one list.
    for name in services::sharing(name) {
        match &peers {
            Some(peers) => config.service_peers.insert(name, peers.clone()),
            None => config.service_peers.remove(name),
        };
    }
    Ok(())
}

fn set_region(managed: &Managed, config: &mut Config, name: &str, peers: Option<PrefixList>) -> Result<(), String> {
    let spec = config.regions.iter().find(|region| region.name == name).cloned();
    let spec = spec.ok_or_else(|| RegionError::NoSuchRegion(name.to_owned()).to_string())?;
    regions::change_options(managed, config, RegionSpec { peers, ..spec })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_ports_services_and_regions() {
        assert_eq!(Place::parse("port1"), Ok(Place::Port(1)));
        assert_eq!(Place::parse("service:rping"), Ok(Place::Service("rping")));
        assert_eq!(Place::parse("region:a:b"), Ok(Place::Region("a:b")));
        for wrong in ["port", "portx", "rping", "", "port70000"] {
            let said = Place::parse(wrong).unwrap_err();
            assert!(said.starts_with(&format!("'{wrong}' has no list of peers")), "{said}");
        }
    }
}
