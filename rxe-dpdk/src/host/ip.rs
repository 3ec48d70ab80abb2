//! IPv4 and IPv6 headers, as far as a host that neither fragments nor forwards needs them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rxe_proto::wire::DropReason;

use super::checksum::Sum;
use super::ethernet;

/// IPv6 hop-by-hop options.
pub(super) const HOP_BY_HOP: u8 = 0;
/// ICMP for IPv4.
pub(super) const ICMP: u8 = 1;
/// IGMP.
pub(super) const IGMP: u8 = 2;
/// TCP.
pub(super) const TCP: u8 = 6;
/// UDP.
pub(super) const UDP: u8 = 17;
/// ICMP for IPv6.
pub(super) const ICMPV6: u8 = 58;

/// Hop limit of all we send, unless a protocol asks for another.
pub(super) const HOP_LIMIT: u8 = 64;

/// Bytes of an IPv4 header without options.
pub(super) const IPV4_HEADER: usize = 20;
/// The IPv4 option "router alert", which IGMP messages carry.
pub(super) const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];
/// Bytes of an IPv6 header.
pub(super) const IPV6_HEADER: usize = 40;

/// Source and destination of a packet: of one family, by type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pair {
    V4 { src: Ipv4Addr, dst: Ipv4Addr },
    V6 { src: Ipv6Addr, dst: Ipv6Addr },
}

impl Pair {
    /// The pair, when both are of one family.
    pub(super) fn new(src: IpAddr, dst: IpAddr) -> Option<Pair> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Pair::V4 { src, dst }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Pair::V6 { src, dst }),
            _ => None,
        }
    }

    pub(super) fn src(self) -> IpAddr {
        match self {
            Pair::V4 { src, .. } => src.into(),
            Pair::V6 { src, .. } => src.into(),
        }
    }

    pub(super) fn dst(self) -> IpAddr {
        match self {
            Pair::V4 { dst, .. } => dst.into(),
            Pair::V6 { dst, .. } => dst.into(),
        }
    }

    pub(super) fn ethertype(self) -> u16 {
        match self {
            Pair::V4 { .. } => ethernet::IPV4,
            Pair::V6 { .. } => ethernet::IPV6,
        }
    }

    pub(super) fn header_len(self) -> usize {
        match self {
            Pair::V4 { .. } => IPV4_HEADER,
            Pair::V6 { .. } => IPV6_HEADER,
        }
    }
}

/// A received packet whose header was found right.
#[derive(Clone, Copy)]
pub(super) struct Ip<'a> {
    pub(super) pair: Pair,
    /// What follows the header.
    pub(super) protocol: u8,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    /// Header and payload, no Ethernet padding.
    pub(super) packet: &'a [u8],
    pub(super) payload: &'a [u8],
}

impl<'a> Ip<'a> {
    /// Checks an IPv4 header: length, version, no options (but the router alert of IGMP), total length, checksum, no
    /// fragment, a source that can be. IGMP may come from nobody: switches without an address ask so.
    pub(super) fn parse_v4(data: &'a [u8]) -> Result<Ip<'a>, DropReason> {
        let (header, _) = data.split_first_chunk::<IPV4_HEADER>().ok_or(DropReason::IpHeaderMalformed)?;
        let header_len = usize::from(header[0] & 0x0F) * 4;
        if header[0] >> 4 != 4 || header_len < IPV4_HEADER {
            return Err(DropReason::IpHeaderMalformed);
        }
        let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if total < header_len || total > data.len() {
            return Err(DropReason::IpLengthMismatch);
        }
        let igmp = header[9] == IGMP;
        if header_len > IPV4_HEADER && !(igmp && data[IPV4_HEADER..header_len] == ROUTER_ALERT) {
            return Err(DropReason::IpOptions);
        }
        if Sum::default().add(&data[..header_len]).finish() != 0 {
            return Err(DropReason::HostChecksum);
        }
        // More fragments, or an offset: reserved and "don't fragment" bits left out.
        if u16::from_be_bytes([header[6], header[7]]) & 0x3FFF != 0 {
            return Err(DropReason::IpFragment);
        }
        let src = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
        let dst = Ipv4Addr::new(header[16], header[17], header[18], header[19]);
        // No host sends from these, so no answer may go there.
        let nobody = src.is_unspecified() && !igmp;
        if src.is_multicast() || src.is_broadcast() || nobody || src.is_loopback() {
            return Err(DropReason::IpHeaderMalformed);
        }
        let packet = &data[..total];
        Ok(Ip {
            pair: Pair::V4 { src, dst },
            protocol: header[9],
            traffic_class: header[1],
            hop_limit: header[8],
            packet,
            payload: &packet[header_len..],
        })
    }

    /// Checks an IPv6 header: length, version, payload length, no extension header but hop-by-hop options (which the
    /// caller may know), a source that can be. An unspecified source passes: duplicate address detection has it.
    pub(super) fn parse_v6(data: &'a [u8]) -> Result<Ip<'a>, DropReason> {
        const ROUTING: u8 = 43;
        const FRAGMENT: u8 = 44;
        const DESTINATION_OPTIONS: u8 = 60;

        let (header, rest) = data.split_first_chunk::<IPV6_HEADER>().ok_or(DropReason::IpHeaderMalformed)?;
        if header[0] >> 4 != 6 {
            return Err(DropReason::IpHeaderMalformed);
        }
        let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let payload = rest.get(..len).ok_or(DropReason::IpLengthMismatch)?;
        match header[6] {
            ROUTING | DESTINATION_OPTIONS => return Err(DropReason::IpOptions),
            FRAGMENT => return Err(DropReason::IpFragment),
            _ => {}
        }
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&header[at..at + 16]);
            Ipv6Addr::from(octets)
        };
        let (src, dst) = (address(8), address(24));
        if src.is_multicast() || src.is_loopback() {
            return Err(DropReason::IpHeaderMalformed);
        }
        Ok(Ip {
            pair: Pair::V6 { src, dst },
            protocol: header[6],
            traffic_class: (header[0] << 4) | (header[1] >> 4),
            hop_limit: header[7],
            packet: &data[..IPV6_HEADER + len],
            payload,
        })
    }

    /// The sum that a transport checksum over the payload starts from.
    pub(super) fn pseudo_header(&self, protocol: u8) -> Sum {
        Sum::pseudo_header(self.pair, protocol, self.payload.len())
    }
}

/// A header to send.
#[derive(Clone, Copy)]
pub(super) struct IpHeader {
    pub(super) pair: Pair,
    pub(super) protocol: u8,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

impl IpHeader {
    /// An ordinary packet.
    pub(super) fn new(pair: Pair, protocol: u8) -> IpHeader {
        IpHeader { pair, protocol, traffic_class: 0, hop_limit: HOP_LIMIT }
    }

    /// Writes the header at the front of `packet`, which is exactly as long as the packet will be, and returns the
    /// rest. `id` identifies an IPv4 packet; fragmenting is forbidden.
    pub(super) fn emit<'b>(&self, packet: &'b mut [u8], id: u16) -> &'b mut [u8] {
        let total = packet.len();
        let (header, payload) = packet.split_at_mut(self.pair.header_len());
        match self.pair {
            Pair::V4 { src, dst } => {
                header[0] = 0x45;
                header[1] = self.traffic_class;
                header[2..4].copy_from_slice(&(total as u16).to_be_bytes());
                header[4..6].copy_from_slice(&id.to_be_bytes());
                header[6..8].copy_from_slice(&0x4000_u16.to_be_bytes());
                header[8] = self.hop_limit;
                header[9] = self.protocol;
                header[12..16].copy_from_slice(&src.octets());
                header[16..20].copy_from_slice(&dst.octets());
                fill_v4_checksum(header);
            }
            Pair::V6 { src, dst } => {
                header[0] = 0x60 | (self.traffic_class >> 4);
                header[1] = self.traffic_class << 4;
                header[2..4].fill(0);
                header[4..6].copy_from_slice(&((total - IPV6_HEADER) as u16).to_be_bytes());
                header[6] = self.protocol;
                header[7] = self.hop_limit;
                header[8..24].copy_from_slice(&src.octets());
                header[24..40].copy_from_slice(&dst.octets());
            }
        }
        payload
    }

    /// As [`emit`](Self::emit) for IPv4, with a router alert option behind the header.
    pub(super) fn emit_router_alert<'b>(&self, packet: &'b mut [u8], id: u16) -> &'b mut [u8] {
        self.emit(packet, id);
        let (header, payload) = packet.split_at_mut(IPV4_HEADER + ROUTER_ALERT.len());
        header[0] = 0x46;
        header[IPV4_HEADER..].copy_from_slice(&ROUTER_ALERT);
        fill_v4_checksum(header);
        payload
    }
}

/// Gives a finished packet of ours the next IPv4 id; IPv6 packets have none.
pub(super) fn set_id(packet: &mut [u8], id: u16) {
    if let Some(header) = packet.get_mut(..IPV4_HEADER)
        && header[0] >> 4 == 4
    {
        header[4..6].copy_from_slice(&id.to_be_bytes());
        fill_v4_checksum(header);
    }
}

fn fill_v4_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = Sum::default().add(header).finish();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(src: &str, dst: &str) -> Vec<u8> {
        let pair = Pair::new(src.parse().expect("an address"), dst.parse().expect("an address")).expect("one family");
        let mut bytes = vec![0xA5; pair.header_len() + 3];
        let header = IpHeader { traffic_class: 0xB9, ..IpHeader::new(pair, UDP) };
        header.emit(&mut bytes, 7).copy_from_slice(&[1, 2, 3]);
        bytes
    }

    #[test]
    fn headers_come_back_as_written() {
        let mut v4 = packet("10.0.0.1", "10.0.0.2");
        set_id(&mut v4, 0x1234);
        assert_eq!(v4[..12], [0x45, 0xB9, 0, 23, 0x12, 0x34, 0x40, 0, 64, 17, v4[10], v4[11]]);
        v4.extend([0; 30]);
        let ip = Ip::parse_v4(&v4).unwrap_or_else(|e| panic!("{e:?}"));
        assert_eq!((ip.protocol, ip.traffic_class, ip.hop_limit, ip.payload), (UDP, 0xB9, 64, &[1, 2, 3][..]));
        assert_eq!(ip.packet.len(), 23, "Ethernet padding is no payload");

        let v6 = packet("fd00::1", "fd00::2");
        assert_eq!(v6[..8], [0x6B, 0x90, 0, 0, 0, 3, UDP, 64]);
        let ip = Ip::parse_v6(&v6).unwrap_or_else(|e| panic!("{e:?}"));
        assert_eq!((ip.protocol, ip.traffic_class, ip.payload), (UDP, 0xB9, &[1, 2, 3][..]));
        assert_eq!((ip.pair.src(), ip.pair.dst()), ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()));
    }

    #[test]
    fn each_fault_has_its_reason() {
        let v4 = |at: usize, value: u8, fix: bool| {
            let mut bytes = packet("10.0.0.1", "10.0.0.2");
            bytes[at] = value;
            if fix {
                fill_v4_checksum(&mut bytes[..IPV4_HEADER]);
            }
            Ip::parse_v4(&bytes).err()
        };
        assert_eq!(v4(0, 0x65, true), Some(DropReason::IpHeaderMalformed));
        assert_eq!(v4(0, 0x44, true), Some(DropReason::IpHeaderMalformed));
        assert_eq!(v4(0, 0x46, true), Some(DropReason::IpLengthMismatch));
        assert_eq!(v4(3, 19, true), Some(DropReason::IpLengthMismatch));
        assert_eq!(v4(3, 24, true), Some(DropReason::IpLengthMismatch));
        assert_eq!(v4(10, 0, false), Some(DropReason::HostChecksum));
        assert_eq!(v4(6, 0x20, true), Some(DropReason::IpFragment));
        assert_eq!(v4(7, 1, true), Some(DropReason::IpFragment));
        assert_eq!(v4(12, 127, true), Some(DropReason::IpHeaderMalformed));
        assert_eq!(v4(12, 224, true), Some(DropReason::IpHeaderMalformed));
        let mut options = packet("10.0.0.1", "10.0.0.2");
        options.extend([1; 1]);
        options[0] = 0x46;
        options[3] = 24;
        assert_eq!(Ip::parse_v4(&options).err(), Some(DropReason::IpOptions));

        let v6 = |at: usize, value: u8| {
            let mut bytes = packet("fd00::1", "fd00::2");
            bytes[at] = value;
            Ip::parse_v6(&bytes).err()
        };
        assert_eq!(v6(0, 0x40), Some(DropReason::IpHeaderMalformed));
        assert_eq!(v6(5, 4), Some(DropReason::IpLengthMismatch));
        assert_eq!(v6(6, 44), Some(DropReason::IpFragment));
        assert_eq!(v6(6, 43), Some(DropReason::IpOptions));
        assert_eq!(v6(6, 60), Some(DropReason::IpOptions));
        assert_eq!(v6(8, 0xFF), Some(DropReason::IpHeaderMalformed));
    }
}
