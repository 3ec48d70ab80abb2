//! Networks, and lists of them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::Gid;

/// An address with the length of its network prefix, or a network when the host bits do not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    /// The address.
    pub ip: IpAddr,
    /// Leading bits that all addresses of the network share: up to 32 for IPv4, up to 128 for IPv6.
    pub prefix: u8,
}

impl Cidr {
    /// `ip` in a network of `prefix` bits.
    pub const fn new(ip: IpAddr, prefix: u8) -> Cidr {
        Cidr { ip, prefix }
    }

    /// Whether `other` is in the same network; never across address families.
    pub fn contains(&self, other: IpAddr) -> bool {
        self.ip.is_ipv4() == other.is_ipv4() && common_prefix(self.ip, other) >= self.prefix
    }

    /// Whether an address of this family has that many bits.
    pub const fn has_valid_prefix(&self) -> bool {
        self.prefix <= if self.ip.is_ipv4() { 32 } else { 128 }
    }

    /// The broadcast address of an IPv4 network; `None` where there is none.
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        match self.ip {
            IpAddr::V4(ip) if self.prefix <= 30 => Some(Ipv4Addr::from_bits(ip.to_bits() | (u32::MAX >> self.prefix))),
            _ => None,
        }
    }

    /// The network without its host bits.
    #[must_use]
    pub fn network(&self) -> Cidr {
        let ip = match self.ip {
            IpAddr::V4(ip) => {
                Ipv4Addr::from_bits(ip.to_bits() & u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0))
                    .into()
            }
            IpAddr::V6(ip) => {
                Ipv6Addr::from_bits(ip.to_bits() & u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0))
                    .into()
            }
        };
        Cidr { ip, prefix: self.prefix }
    }
}

/// Number of leading bits that two addresses of one family share; 0 across families.
pub fn common_prefix(a: IpAddr, b: IpAddr) -> u8 {
    // At most 128, so the casts keep the value.
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() as u8,
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() as u8,
        _ => 0,
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

/// Text that is not `ADDRESS` or `ADDRESS/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an IP address with an optional prefix length, as 192.168.1.2/24")]
pub struct CidrParseError(String);

impl FromStr for Cidr {
    type Err = CidrParseError;

    /// Reads `ADDRESS/PREFIX`; a bare address is a network of its own.
    fn from_str(text: &str) -> Result<Cidr, CidrParseError> {
        let error = || CidrParseError(text.to_owned());
        let (ip, prefix) = text.split_once('/').map_or((text, None), |(ip, prefix)| (ip, Some(prefix)));
        let ip: IpAddr = ip.parse().map_err(|_| error())?;
        let prefix = match prefix {
            Some(prefix) => prefix.parse().map_err(|_| error())?,
            None if ip.is_ipv4() => 32,
            None => 128,
        };
        let cidr = Cidr { ip, prefix };
        if cidr.has_valid_prefix() { Ok(cidr) } else { Err(error()) }
    }
}

/// A set of addresses, given by networks: the peers that a port, service or region serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixList {
    /// Value and mask of each network, as GIDs: IPv4 addresses are in `::ffff:0:0/96`, so the families never meet.
    masked: Box<[(u128, u128)]>,
    networks: Box<[Cidr]>,
}

impl PrefixList {
    /// The networks as they were given, without their host bits.
    pub fn networks(&self) -> &[Cidr] {
        &self.networks
    }

    /// Whether the address is in one of the networks.
    #[inline]
    pub fn contains(&self, gid: Gid) -> bool {
        let bits = u128::from_be_bytes(gid.0);
        self.masked.iter().any(|&(value, mask)| bits & mask == value)
    }
}

impl FromIterator<Cidr> for PrefixList {
    fn from_iter<T: IntoIterator<Item = Cidr>>(networks: T) -> PrefixList {
        let networks: Box<[Cidr]> = networks.into_iter().map(|network| network.network()).collect();
        let masked = networks.iter().map(|network| {
            let mapped = if network.ip.is_ipv4() { 96 } else { 0 };
            let prefix = mapped + u32::from(network.prefix);
            let mask = u128::MAX.checked_shl(128 - prefix.min(128)).unwrap_or(0);
            (u128::from_be_bytes(Gid::from(network.ip).0) & mask, mask)
        });
        PrefixList { masked: masked.collect(), networks }
    }
}

/// The networks, separated by commas.
impl fmt::Display for PrefixList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, network) in self.networks.iter().enumerate() {
            write!(f, "{}{network}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_network_contains_its_addresses_only() {
        let net: Cidr = "192.168.77.1/24".parse().expect("a network");
        assert!(net.contains(ip("192.168.77.255")) && !net.contains(ip("192.168.78.1")));
        assert!(!net.contains(ip("::ffff:192.168.77.2")));
        assert_eq!(net.broadcast(), Some([192, 168, 77, 255].into()));
        assert_eq!(net.network().to_string(), "192.168.77.0/24");
        let all: Cidr = "::/0".parse().expect("a network");
        assert!(all.contains(ip("2001:db8::1")) && !all.contains(ip("10.0.0.1")));
        let one: Cidr = "10.0.0.1".parse().expect("an address");
        assert_eq!((one.prefix, one.broadcast()), (32, None));
        assert!(one.contains(ip("10.0.0.1")) && !one.contains(ip("10.0.0.2")));
        assert_eq!("fd00::1".parse::<Cidr>().map(|one| one.prefix), Ok(128));
        for wrong in ["", "10.0.0.1/33", "10.0.0.1/128", "10.0.0.1/", "fd00::/129", "10.0.0/8"] {
            assert!(wrong.parse::<Cidr>().is_err(), "{wrong}");
        }
    }

    /// Each prefix length of both families, against the definition.
    #[test]
    fn a_list_contains_what_its_networks_contain() {
        for (base, bits) in [("10.17.33.65", 32), ("fd00:77:1:2:3:4:5:6", 128)] {
            let base = ip(base);
            for prefix in 0..=bits {
                let network = Cidr::new(base, prefix);
                let list: PrefixList = [network].into_iter().collect();
                for flipped in 0..bits {
                    let other = match base {
                        IpAddr::V4(base) => IpAddr::from((base.to_bits() ^ (1 << (31 - flipped))).to_be_bytes()),
                        IpAddr::V6(base) => IpAddr::from((base.to_bits() ^ (1 << (127 - flipped))).to_be_bytes()),
                    };
                    assert_eq!(list.contains(other.into()), flipped >= prefix, "{network} {other}");
                    assert_eq!(network.contains(other), flipped >= prefix, "{network} {other}");
                }
                assert!(list.contains(base.into()));
            }
        }
    }

    #[test]
    fn the_families_of_a_list_do_not_meet() {
        let list =
            |texts: &[&str]| -> PrefixList { texts.iter().map(|text| text.parse().expect("a network")).collect() };
        let v4 = list(&["0.0.0.0/0"]);
        assert!(v4.contains(ip("10.0.0.1").into()) && !v4.contains(ip("fd00::1").into()));
        let v6 = list(&["fd00::/8", "fe80::/10"]);
        assert!(v6.contains(ip("fe80::1").into()) && !v6.contains(ip("10.0.0.1").into()));
        assert!(!list(&[]).contains(ip("10.0.0.1").into()));
        assert_eq!(list(&["10.0.0.9/24", "fd00::1"]).to_string(), "10.0.0.0/24,fd00::1/128");
    }
}
