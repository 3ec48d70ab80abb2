//! Checks of the addresses of both ends.

use std::net::IpAddr;

use rxe::{CliError, cli_error};
use rxe_proto::wire::Cidr;

use crate::values::{OwnAddress, Peer, Router};

/// A UDP socket has nothing of DPDK.
pub fn check_udp(udp: Option<IpAddr>, eal_args: &[String]) -> Result<(), CliError> {
    if udp.is_some() && !eal_args.is_empty() {
        return cli_error!("--udp needs no DPDK: leave EAL's arguments out ({})", eal_args.join(" "));
    }
    Ok(())
}

/// The addresses of the bench and of the target.
pub fn addresses(
    udp: Option<IpAddr>,
    address: Option<OwnAddress>,
    peer: Option<Peer>,
) -> Result<(Cidr, Peer), CliError> {
    let own = udp.map(|ip| Cidr::new(ip, if ip.is_ipv4() { 32 } else { 128 }));
    let own = own.or(address.map(|OwnAddress(address)| address));
    let (address, peer) = match (own, peer) {
        (Some(address), Some(peer)) => (address, peer),
        (None, _) => {
            return cli_error!(
                "--address is missing: give the address of the bench as --address IP/PREFIX, or --udp ADDRESS"
            );
        }
        (_, None) => return cli_error!("--peer is missing: give the address of the target as --peer IP"),
    };
    if address.ip == peer.ip {
        return cli_error!("--peer {} is the address of the bench itself: give the target's", peer.ip);
    }
    if address.ip.is_ipv4() != peer.ip.is_ipv4() {
        return cli_error!(
            "--address and --peer are of different address families: give two IPv4 or two IPv6 addresses"
        );
    }
    Ok((address, peer))
}

/// The router, which must be there where the target is in another network, unless it is `routed` without it.
pub fn gateway(gateway: Option<Router>, address: Cidr, peer: IpAddr, routed: bool) -> Result<Option<IpAddr>, CliError> {
    if let Some(Router(router)) = gateway {
        if router == address.ip || !(is_link_local(router) || address.contains(router)) {
            return cli_error!(
                "--gateway {router}: no other host of the network {} has that address",
                address.network()
            );
        }
        return Ok(Some(router));
    }
    if routed || is_link_local(peer) || address.contains(peer) {
        return Ok(None);
    }
    cli_error!(
        "--peer {peer}: there is no route, as it is not in the network {} of --address: give a router with --gateway, or correct \
         one of the addresses",
        address.network()
    )
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}
