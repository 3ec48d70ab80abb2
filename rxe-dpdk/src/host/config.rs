//! Configuration of a host: addresses, routes, limits.

use std::net::{IpAddr, Ipv6Addr};

use rxe_adapter::addressing::Route;
use rxe_proto::wire::{Cidr, MacAddr, PortId, PrefixList};

/// Maximum number of addresses, including the link-local one: all of them fit one multicast listener report.
pub const MAX_ADDRESSES: usize = 32;

/// Smallest IP MTU of a port: the minimum that IPv6 requires.
pub const MIN_MTU: u16 = 1280;

/// Configuration of a [`Host`](super::Host).
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The port on which frames are received and sent.
    pub port: PortId,
    /// Our MAC address.
    pub mac: MacAddr,
    /// Largest IP packet, in bytes, that the port sends: at least [`MIN_MTU`].
    pub mtu: u16,
    /// Tag control information of our VLAN: the id in the low 12 bits, the priority of frames sent in the top 3.
    /// Frames of other VLANs, and untagged ones, are dropped. `None`: only untagged and priority-tagged frames.
    pub vlan: Option<u16>,
    /// Our addresses with their on-link prefixes, preferred ones first. `fe80::EUI-64` is added.
    pub addresses: Vec<Cidr>,
    /// Default routers: the first IPv4 and the first IPv6 one are used.
    pub gateways: Vec<IpAddr>,
    /// Routes, applied by longest prefix and before the default routers.
    pub routes: Vec<Route>,
    /// The addresses whose unicast IP packets are processed; `None` for all. Neighbour discovery serves everyone, as a
    /// router need not be a peer.
    pub peers: Option<PrefixList>,
    /// Whether to drop TCP segments with a wrong checksum. Off for ports on which a local kernel sends (veth, tap), which
    /// leaves the checksum to offload hardware that does not exist.
    pub verify_tcp_checksums: bool,
    /// Capacity of the neighbour table.
    pub max_neighbours: usize,
    /// Maximum number of TCP streams, including half-open ones and those in TIME-WAIT.
    pub max_streams: usize,
    /// Seed of TCP sequence numbers, ports and IP ids.
    pub seed: [u8; 32],
}

impl Default for HostConfig {
    /// No address, MTU 1500, 1024 neighbours, 256 streams.
    fn default() -> HostConfig {
        HostConfig {
            port: PortId::default(),
            mac: MacAddr::default(),
            mtu: 1500,
            vlan: None,
            addresses: Vec::new(),
            gateways: Vec::new(),
            routes: Vec::new(),
            peers: None,
            verify_tcp_checksums: true,
            max_neighbours: 1024,
            max_streams: 256,
            seed: [0; 32],
        }
    }
}

/// Why a [`HostConfig`] is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostConfigError {
    /// The MAC address is zero or a group address.
    #[error("MAC address {0} is zero or a group address: use the address of one station")]
    Mac(MacAddr),
    /// The MTU is below [`MIN_MTU`].
    #[error("MTU {0} is too small: IPv6 needs at least {MIN_MTU} bytes")]
    Mtu(u16),
    /// A VLAN id outside 1 to 4094.
    #[error("{0} is not a VLAN id: use 1 to 4094")]
    Vlan(u16),
    /// Not a unicast address of a host, or a prefix longer than the address.
    #[error("{0} is not the unicast address of a host")]
    Address(Cidr),
    /// An address that occurs twice.
    #[error("address {0} is given twice")]
    DuplicateAddress(IpAddr),
    /// More than [`MAX_ADDRESSES`].
    #[error("{0} addresses are too many: the maximum is {MAX_ADDRESSES}, including the link-local one")]
    TooManyAddresses(usize),
    /// A router that is not on a network of ours, or is one of our addresses.
    #[error("router {0} is not on a network of this port")]
    Gateway(IpAddr),
    /// A route across address families, or with a prefix longer than the address.
    #[error("the route to {to} via {via} is invalid: both must be of one address family, with a prefix that fits it")]
    Route {
        /// The network.
        to: Cidr,
        /// The router.
        via: IpAddr,
    },
}

impl HostConfig {
    /// The IPv6 link-local address, derived from the MAC address.
    pub(super) fn link_local(&self) -> Ipv6Addr {
        let mut octets = [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        octets[8..].copy_from_slice(&self.mac.eui64(true));
        octets.into()
    }

    pub(super) fn check(&self) -> Result<(), HostConfigError> {
        if self.mac.is_multicast() || self.mac == MacAddr::default() {
            return Err(HostConfigError::Mac(self.mac));
        }
        if self.mtu < MIN_MTU {
            return Err(HostConfigError::Mtu(self.mtu));
        }
        if let Some(id) = self.vlan.map(|tci| tci & 0x0FFF)
            && (id == 0 || id == 0x0FFF)
        {
            return Err(HostConfigError::Vlan(id));
        }
        if self.addresses.len() >= MAX_ADDRESSES {
            return Err(HostConfigError::TooManyAddresses(self.addresses.len()));
        }
        for (n, address) in self.addresses.iter().enumerate() {
            let ip = address.ip;
            let mapped = matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
            let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast() || address.broadcast() == Some(v4));
            // "This network" (0.0.0.0/8) and the reserved 240.0.0.0/4.
            let reserved = matches!(ip, IpAddr::V4(v4) if matches!(v4.octets()[0], 0 | 240..));
            let network = matches!(ip, IpAddr::V4(v4) if address.prefix <= 30 && v4.to_bits() & (u32::MAX >> address.prefix) == 0);
            if ip.is_unspecified()
                || ip.is_loopback()
                || ip.is_multicast()
                || mapped
                || broadcast
                || reserved
                || network
            {
                return Err(HostConfigError::Address(*address));
            }
            if address.prefix == 0 || !address.has_valid_prefix() {
                return Err(HostConfigError::Address(*address));
            }
            if self.addresses.iter().skip(n + 1).any(|other| other.ip == ip) {
                return Err(HostConfigError::DuplicateAddress(ip));
            }
        }
        for &via in self.gateways.iter().chain(self.routes.iter().map(|route| &route.via)) {
            if !self.is_neighbour(via) {
                return Err(HostConfigError::Gateway(via));
            }
        }
        for &Route { to, via } in &self.routes {
            if to.ip.is_ipv4() != via.is_ipv4() || !to.has_valid_prefix() {
                return Err(HostConfigError::Route { to, via });
            }
        }
        Ok(())
    }

    /// Whether `ip` can be the address of another station on our link.
    fn is_neighbour(&self, ip: IpAddr) -> bool {
        let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let own = ip == IpAddr::V6(self.link_local()) || self.addresses.iter().any(|a| a.ip == ip);
        !own && !ip.is_multicast() && (link_local || self.addresses.iter().any(|a| a.contains(ip)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(addresses: &[&str]) -> HostConfig {
        HostConfig {
            mac: MacAddr([0x52, 0x54, 0, 0, 0, 0x0A]),
            addresses: addresses.iter().map(|a| a.parse().expect("a CIDR")).collect(),
            ..HostConfig::default()
        }
    }

    #[test]
    fn invalid_configuration_is_refused() {
        assert_eq!(config(&["192.168.77.1/24", "fd00:77::1/64"]).check(), Ok(()));
        for address in [
            "0.0.0.0/0",
            "0.0.0.5/24",
            "240.0.0.1/24",
            "10.0.0.1/0",
            "fd00::1/0",
            "10.0.0.0/24",
            "127.0.0.1/8",
            "224.0.0.1/24",
            "10.0.0.255/24",
            "ff02::1/64",
            "::ffff:10.0.0.1/96",
        ] {
            assert!(matches!(config(&[address]).check(), Err(HostConfigError::Address(_))), "{address}");
        }
        assert!(matches!(config(&["10.0.0.1", "10.0.0.1/8"]).check(), Err(HostConfigError::DuplicateAddress(_))));
        let check = |change: fn(&mut HostConfig)| {
            let mut config = config(&["10.0.0.1/24"]);
            change(&mut config);
            config.check()
        };
        assert!(matches!(check(|c| c.mac = MacAddr::BROADCAST), Err(HostConfigError::Mac(_))));
        assert_eq!(check(|c| c.mtu = 1279), Err(HostConfigError::Mtu(1279)));
        assert_eq!(check(|c| c.vlan = Some(0x6000)), Err(HostConfigError::Vlan(0)));
        assert!(matches!(check(|c| c.gateways = vec![[10, 0, 1, 1].into()]), Err(HostConfigError::Gateway(_))));
        assert!(matches!(check(|c| c.gateways = vec![[10, 0, 0, 1].into()]), Err(HostConfigError::Gateway(_))));
        assert_eq!(check(|c| c.gateways = vec!["fe80::1".parse().expect("an address")]), Ok(()));
        let mixed = check(|c| {
            c.routes =
                vec![Route { to: Cidr::new("fd01::".parse().expect("an address"), 64), via: [10, 0, 0, 2].into() }];
        });
        assert!(matches!(mixed, Err(HostConfigError::Route { .. })));
        let many: Vec<String> = (0..32).map(|n| format!("10.0.{n}.1/24")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(config(&many).check(), Err(HostConfigError::TooManyAddresses(32)));
    }
}
