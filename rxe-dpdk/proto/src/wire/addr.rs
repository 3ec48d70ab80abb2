//! Addresses: Ethernet MAC and RoCEv2 GID.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: MacAddr = MacAddr([0xFF; 6]);

    /// Whether the group bit is set (broadcast included).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The modified EUI-64 that this MAC expands to, as used in link-local addresses and node GUIDs. `flip_local`
    /// inverts the universal/local bit, as RFC 4291 requires for interface identifiers; rxe's GUIDs do too.
    pub const fn eui64(self, flip_local: bool) -> [u8; 8] {
        let m = self.0;
        [if flip_local { m[0] ^ 2 } else { m[0] }, m[1], m[2], 0xFF, 0xFE, m[3], m[4], m[5]]
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = self.0;
        write!(f, "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", m[0], m[1], m[2], m[3], m[4], m[5])
    }
}

impl FromStr for MacAddr {
    type Err = ();
    fn from_str(s: &str) -> Result<MacAddr, ()> {
        let mut out = [0; 6];
        let mut parts = s.split(':');
        for byte in &mut out {
            *byte = u8::from_str_radix(parts.next().ok_or(())?, 16).map_err(|_| ())?;
        }
        if parts.next().is_some() { Err(()) } else { Ok(MacAddr(out)) }
    }
}

/// A RoCEv2 global identifier: an IPv6 address, or an IPv4 address mapped as `::ffff:a.b.c.d`.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address that this GID stands for.
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// Whether this is an IPv4-mapped GID.
    pub fn is_ipv4(self) -> bool {
        self.0[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF]
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Gid {
        Gid(ip.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Gid {
        Gid(ip.octets())
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Gid {
        match ip {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => ip.into(),
        }
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_maps_ipv4_and_back() {
        let gid = Gid::from(Ipv4Addr::new(10, 77, 0, 1));
        assert!(gid.is_ipv4());
        assert_eq!(gid.ip(), IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)));
        assert!(!Gid::from(Ipv6Addr::LOCALHOST).is_ipv4());
        assert_eq!(gid.to_string(), "::ffff:10.77.0.1");
    }

    #[test]
    fn mac_parses_what_it_prints() {
        let mac = MacAddr([0x52, 0x54, 0, 0, 0, 0x0B]);
        assert_eq!(mac.to_string().parse(), Ok(mac));
        assert_eq!(mac.eui64(true), [0x50, 0x54, 0, 0xFF, 0xFE, 0, 0, 0x0B]);
        assert!("52:54:00:00:00".parse::<MacAddr>().is_err());
        assert!("52:54:00:00:00:0b:0c".parse::<MacAddr>().is_err());
    }
}
