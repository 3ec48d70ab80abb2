//! IP addresses and ports in the connection manager's messages: in the service id and in the private data.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::bytes::{Reader, Writer};

/// The port space of a service id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    /// IP over InfiniBand; not used on Ethernet.
    Ipoib = 0x0002,
    /// Connected queue pairs.
    Tcp = 0x0106,
    /// Datagram queue pairs, resolved with SIDR.
    Udp = 0x0111,
    /// Native addressing; its private data has no IP addresses.
    Ib = 0x013F,
}

/// A service id: 64 bits that name a listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service id of a port.
    pub const fn new(space: PortSpace, port: u16) -> ServiceId {
        ServiceId((space as u64) << 16 | port as u64)
    }

    /// The port space, if the service id is made of one and a port and nothing else.
    pub const fn port_space(self) -> Option<PortSpace> {
        match self.0 >> 16 {
            0x0002 => Some(PortSpace::Ipoib),
            0x0106 => Some(PortSpace::Tcp),
            0x0111 => Some(PortSpace::Udp),
            0x013F => Some(PortSpace::Ib),
            _ => None,
        }
    }

    /// The port; means something only when there is a port space.
    pub const fn port(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port_space() {
            Some(space) => write!(f, "{space:?}:{}", self.port()),
            None => write!(f, "{:#018x}", self.0),
        }
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Length of [`IpAddressing`] in bytes.
pub const IP_ADDRESSING_LEN: usize = 36;

/// The IP addresses at the front of the private data of REQ and SIDR_REQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IpAddressing {
    /// Major and minor version, 0.
    pub version: u8,
    /// 4 or 6 (4 bits).
    pub ip_version: u8,
    /// Reserved, 0 (4 bits).
    pub reserved: u8,
    /// Port of the initiator.
    pub src_port: u16,
    /// Address of the initiator; an IPv4 address is in the last four bytes.
    pub src: [u8; 16],
    /// Address it connects to; an IPv4 address is in the last four bytes.
    pub dst: [u8; 16],
}

impl IpAddressing {
    /// The header for a connection from `src` to `dst`, or `None` when the two are of different families.
    pub fn new(src: (IpAddr, u16), dst: IpAddr) -> Option<IpAddressing> {
        let (ip_version, src_ip, dst) = match (src.0, dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => (4, v4_at_end(s), v4_at_end(d)),
            (IpAddr::V6(s), IpAddr::V6(d)) => (6, s.octets(), d.octets()),
            _ => return None,
        };
        Some(IpAddressing { version: 0, ip_version, reserved: 0, src_port: src.1, src: src_ip, dst })
    }

    /// Reads the front of private data; whether it makes sense show [`Self::source`] and [`Self::destination`].
    pub fn parse(private_data: &[u8; IP_ADDRESSING_LEN]) -> IpAddressing {
        let mut r = Reader::new(private_data);
        let version = r.u8();
        let ip_version = r.u8();
        IpAddressing {
            version,
            ip_version: ip_version >> 4,
            reserved: ip_version & 0x0F,
            src_port: r.u16(),
            src: r.array(),
            dst: r.array(),
        }
    }

    /// The bytes for the front of private data.
    pub fn to_bytes(&self) -> [u8; IP_ADDRESSING_LEN] {
        let mut out = [0; IP_ADDRESSING_LEN];
        let mut w = Writer::new(&mut out);
        w.u8(self.version);
        w.u8(self.ip_version << 4 | self.reserved & 0x0F);
        w.u16(self.src_port);
        w.bytes(&self.src);
        w.bytes(&self.dst);
        out
    }

    /// Address and port of the initiator, if versions are those we know.
    pub fn source(&self) -> Option<(IpAddr, u16)> {
        self.ip(&self.src).map(|ip| (ip, self.src_port))
    }

    /// The address it connects to, if versions are those we know.
    pub fn destination(&self) -> Option<IpAddr> {
        self.ip(&self.dst)
    }

    fn ip(&self, bytes: &[u8; 16]) -> Option<IpAddr> {
        let [.., a, b, c, d] = *bytes;
        match (self.version, self.ip_version) {
            (0, 4) => Some(Ipv4Addr::new(a, b, c, d).into()),
            (0, 6) => Some(Ipv6Addr::from(*bytes).into()),
            _ => None,
        }
    }
}

fn v4_at_end(ip: Ipv4Addr) -> [u8; 16] {
    let [a, b, c, d] = ip.octets();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
}
