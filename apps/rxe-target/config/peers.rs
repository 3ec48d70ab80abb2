//! Allowed peers: lists of networks, for ports and services.

use std::net::IpAddr;
use std::str::FromStr;

use rxe::{CliError, cli_error};
use rxe_adapter::texts::Text;
use rxe_proto::wire::{Cidr, PrefixList};
use serde::de::{Deserialize, Deserializer, Error};

/// Maximum number of networks in one list: each packet may be compared with all of them.
const MAX_NETWORKS: usize = 64;

/// A network whose hosts are served, written `NETWORK/PREFIX`, or one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerNetwork(pub Cidr);

impl FromStr for PeerNetwork {
    type Err = CliError;

    fn from_str(text: &str) -> Result<PeerNetwork, CliError> {
        let Ok(network) = text.parse::<Cidr>() else {
            return cli_error!("'{text}' is not a network: write NETWORK/PREFIX or an address, as 10.0.0.0/24");
        };
        if matches!(network.ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()) {
            return cli_error!("'{text}' is a network of IPv4-mapped addresses: write the IPv4 network");
        }
        Ok(PeerNetwork(network))
    }
}

/// The list of a section: at least one network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peers(pub Vec<PeerNetwork>);

impl<'de> Deserialize<'de> for Peers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Peers, D::Error> {
        let networks = Vec::<Text<PeerNetwork>>::deserialize(deserializer)?;
        let networks: Vec<PeerNetwork> = networks.into_iter().map(|Text(network)| network).collect();
        if networks.is_empty() {
            return Err(D::Error::custom(
                "the list of peers is empty, so that nobody is served: leave it out to serve all",
            ));
        }
        Ok(Peers(networks))
    }
}

/// The checked list; `None` if there is none, which serves everyone.
pub fn resolve(peers: &[PeerNetwork]) -> Result<Option<PrefixList>, CliError> {
    if peers.len() > MAX_NETWORKS {
        return cli_error!(
            "there are {} networks of peers, and {MAX_NETWORKS} is the most: use wider ones",
            peers.len()
        );
    }
    Ok((!peers.is_empty()).then(|| peers.iter().map(|peer| peer.0).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_peers_are_read_or_refused_with_a_sentence() {
        let read = |text: &str| text.parse::<PeerNetwork>().map(|peer| peer.0.to_string()).map_err(|e| e.to_string());
        assert_eq!(read("10.0.0.0/24"), Ok("10.0.0.0/24".to_owned()));
        assert_eq!(read("fd00::7"), Ok("fd00::7/128".to_owned()));
        let wrong = "'10.0.0/24' is not a network: write NETWORK/PREFIX or an address, as 10.0.0.0/24";
        assert_eq!(read("10.0.0/24"), Err(wrong.to_owned()));
        let mapped = "'::ffff:10.0.0.0/120' is a network of IPv4-mapped addresses: write the IPv4 network";
        assert_eq!(read("::ffff:10.0.0.0/120"), Err(mapped.to_owned()));
    }

    #[test]
    fn a_list_of_peers_has_bounds() {
        let peer = |n: u8| PeerNetwork(Cidr::new([10, 0, n, 1].into(), 32));
        assert_eq!(resolve(&[]).map(|list| list.is_none()).ok(), Some(true));
        let some: Vec<PeerNetwork> = (0..64).map(peer).collect();
        assert_eq!(resolve(&some).map(|list| list.map_or(0, |list| list.networks().len())).ok(), Some(64));
        let many: Vec<PeerNetwork> = (0..65).map(peer).collect();
        assert_eq!(
            resolve(&many).expect_err("too many").to_string(),
            "there are 65 networks of peers, and 64 is the most: use wider ones"
        );
    }
}
