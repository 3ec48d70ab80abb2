//! IPv4 and IPv6 headers, as far as a host that neither fragments nor forwards needs them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rxe_proto::wire::net::{
    Header, IP_PROTO_UDP, IPV4_DONT_FRAGMENT, IPV4_LEN, IPV6_LEN, Ipv4Header, Ipv6Header, ethertype,
};
use rxe_proto::wire::{Checksum, DropReason};

/// IPv6 hop-by-hop options.
pub(super) const HOP_BY_HOP: u8 = 0;
/// ICMP for IPv4.
pub(super) const ICMP: u8 = 1;
/// IGMP.
pub(super) const IGMP: u8 = 2;
/// TCP.
pub(super) const TCP: u8 = 6;
/// UDP.
pub(super) const UDP: u8 = IP_PROTO_UDP;
/// ICMP for IPv6.
pub(super) const ICMPV6: u8 = 58;

/// Hop limit of all packets sent, unless a protocol asks for another.
pub(super) const HOP_LIMIT: u8 = 64;

/// The IPv4 option "router alert", which IGMP messages carry.
pub(super) const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];

/// Source and destination address of a packet, of one family by type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddrPair {
    V4 { src: Ipv4Addr, dst: Ipv4Addr },
    V6 { src: Ipv6Addr, dst: Ipv6Addr },
}

impl AddrPair {
    /// The pair, when both are of one family.
    pub(super) fn new(src: IpAddr, dst: IpAddr) -> Option<AddrPair> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(AddrPair::V4 { src, dst }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(AddrPair::V6 { src, dst }),
            _ => None,
        }
    }

    pub(super) fn src(self) -> IpAddr {
        match self {
            AddrPair::V4 { src, .. } => src.into(),
            AddrPair::V6 { src, .. } => src.into(),
        }
    }

    pub(super) fn dst(self) -> IpAddr {
        match self {
            AddrPair::V4 { dst, .. } => dst.into(),
            AddrPair::V6 { dst, .. } => dst.into(),
        }
    }

    /// The pair of a reply.
    pub(super) fn reversed(self) -> AddrPair {
        match self {
            AddrPair::V4 { src, dst } => AddrPair::V4 { src: dst, dst: src },
            AddrPair::V6 { src, dst } => AddrPair::V6 { src: dst, dst: src },
        }
    }

    pub(super) fn ethertype(self) -> u16 {
        match self {
            AddrPair::V4 { .. } => ethertype::IPV4,
            AddrPair::V6 { .. } => ethertype::IPV6,
        }
    }

    /// The sum that a transport checksum over `len` bytes starts from.
    pub(super) fn pseudo_header(self, protocol: u8, len: usize) -> Checksum {
        match self {
            AddrPair::V4 { src, dst } => Checksum::pseudo_header(&src.octets(), &dst.octets(), protocol, len),
            AddrPair::V6 { src, dst } => Checksum::pseudo_header(&src.octets(), &dst.octets(), protocol, len),
        }
    }
}

/// A received packet with a valid header.
#[derive(Clone, Copy)]
pub(super) struct IpPacket<'a> {
    pub(super) pair: AddrPair,
    /// Protocol of the payload.
    pub(super) protocol: u8,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    /// Header and payload, without Ethernet padding.
    pub(super) packet: &'a [u8],
    pub(super) payload: &'a [u8],
}

impl<'a> IpPacket<'a> {
    /// Checks an IPv4 header: length, version, no options (except IGMP's router alert), total length, checksum, no
    /// fragment, a possible source. IGMP may come from 0.0.0.0: that is how switches without an address query.
    pub(super) fn parse_v4(data: &'a [u8]) -> Result<IpPacket<'a>, DropReason> {
        let (header, _) = Ipv4Header::split(data).ok_or(DropReason::IpHeaderMalformed)?;
        let header_len = header.header_len();
        if header.version_ihl >> 4 != 4 || header_len < IPV4_LEN {
            return Err(DropReason::IpHeaderMalformed);
        }
        let total_len = usize::from(header.total_len.get());
        if total_len < header_len || total_len > data.len() {
            return Err(DropReason::IpLengthMismatch);
        }
        let (packet, igmp) = (&data[..total_len], header.protocol == IGMP);
        let (all_headers, payload) = packet.split_at(header_len);
        if header_len > IPV4_LEN && !(igmp && all_headers[IPV4_LEN..] == ROUTER_ALERT) {
            return Err(DropReason::IpOptions);
        }
        if Checksum::default().with(all_headers).finish() != 0 {
            return Err(DropReason::HostChecksum);
        }
        if header.is_fragment() {
            return Err(DropReason::IpFragment);
        }
        let (src, dst) = (Ipv4Addr::from(header.src), Ipv4Addr::from(header.dst));
        // No host sends from these, so no answer may go there.
        let no_sender = src.is_unspecified() && !igmp;
        if src.is_multicast() || src.is_broadcast() || no_sender || src.is_loopback() {
            return Err(DropReason::IpHeaderMalformed);
        }
        Ok(IpPacket {
            pair: AddrPair::V4 { src, dst },
            protocol: header.protocol,
            traffic_class: header.tos,
            hop_limit: header.ttl,
            packet,
            payload,
        })
    }

    /// Checks an IPv6 header: length, version, payload length, no extension header except hop-by-hop options (which the
    /// caller may know), a possible source. An unspecified source passes: duplicate address detection uses it.
    pub(super) fn parse_v6(data: &'a [u8]) -> Result<IpPacket<'a>, DropReason> {
        const ROUTING: u8 = 43;
        const FRAGMENT: u8 = 44;
        const DESTINATION_OPTIONS: u8 = 60;

        let (header, rest) = Ipv6Header::split(data).ok_or(DropReason::IpHeaderMalformed)?;
        if header.version() != 6 {
            return Err(DropReason::IpHeaderMalformed);
        }
        let payload = rest.get(..usize::from(header.payload_len.get())).ok_or(DropReason::IpLengthMismatch)?;
        match header.next_header {
            ROUTING | DESTINATION_OPTIONS => return Err(DropReason::IpOptions),
            FRAGMENT => return Err(DropReason::IpFragment),
            _ => {}
        }
        let (src, dst) = (Ipv6Addr::from(header.src), Ipv6Addr::from(header.dst));
        if src.is_multicast() || src.is_loopback() {
            return Err(DropReason::IpHeaderMalformed);
        }
        Ok(IpPacket {
            pair: AddrPair::V6 { src, dst },
            protocol: header.next_header,
            traffic_class: header.traffic_class(),
            hop_limit: header.hop_limit,
            packet: &data[..IPV6_LEN + payload.len()],
            payload,
        })
    }

    /// Whether the transport checksum over the payload is right.
    pub(super) fn transport_checksum_ok(&self, protocol: u8) -> bool {
        self.pair.pseudo_header(protocol, self.payload.len()).with(self.payload).finish() == 0
    }
}

/// A header to send.
#[derive(Clone, Copy)]
pub(super) struct IpHeader {
    pub(super) pair: AddrPair,
    pub(super) protocol: u8,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

impl IpHeader {
    /// The header of an ordinary packet.
    pub(super) fn new(pair: AddrPair, protocol: u8) -> IpHeader {
        IpHeader { pair, protocol, traffic_class: 0, hop_limit: HOP_LIMIT }
    }

    /// Bytes of the header.
    pub(super) fn len(&self) -> usize {
        match self.pair {
            AddrPair::V4 { .. } => IPV4_LEN,
            AddrPair::V6 { .. } => IPV6_LEN,
        }
    }

    /// Writes the header to the front of `packet`, which is exactly as long as the whole packet, and returns the rest.
    /// `id` identifies an IPv4 packet; fragmenting is forbidden.
    pub(super) fn emit<'b>(&self, packet: &'b mut [u8], id: u16) -> &'b mut [u8] {
        let len = packet.len();
        match self.pair {
            AddrPair::V4 { src, dst } => {
                let mut header = Ipv4Header {
                    version_ihl: 0x45,
                    tos: self.traffic_class,
                    total_len: (len as u16).into(),
                    id: id.into(),
                    fragment: IPV4_DONT_FRAGMENT.into(),
                    ttl: self.hop_limit,
                    protocol: self.protocol,
                    checksum: 0.into(),
                    src: src.octets(),
                    dst: dst.octets(),
                };
                header.fill_checksum();
                header.put(packet)
            }
            AddrPair::V6 { src, dst } => {
                let header = Ipv6Header {
                    version_class_flow: Ipv6Header::first_word(self.traffic_class, 0),
                    payload_len: (len.saturating_sub(IPV6_LEN) as u16).into(),
                    next_header: self.protocol,
                    hop_limit: self.hop_limit,
                    src: src.octets(),
                    dst: dst.octets(),
                };
                header.put(packet)
            }
        }
        .unwrap_or_default()
    }

    /// As [`emit`](Self::emit) for IPv4, with a router alert option behind the header.
    pub(super) fn emit_router_alert<'b>(&self, packet: &'b mut [u8], id: u16) -> &'b mut [u8] {
        self.emit(packet, id);
        let (header, payload) = packet.split_at_mut(IPV4_LEN + ROUTER_ALERT.len());
        // Version 4, six words.
        header[0] = 0x46;
        header[IPV4_LEN..].copy_from_slice(&ROUTER_ALERT);
        fill_v4_checksum(header);
        payload
    }
}

/// Gives a complete packet the next IPv4 id; IPv6 packets have none.
pub(super) fn set_id(packet: &mut [u8], id: u16) {
    if let Some(header) = packet.get_mut(..IPV4_LEN)
        && header[0] >> 4 == 4
    {
        header[4..6].copy_from_slice(&id.to_be_bytes());
        fill_v4_checksum(header);
    }
}

/// Sets the checksum of an IPv4 header with its options.
fn fill_v4_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = Checksum::default().with(header).finish();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(src: &str, dst: &str) -> Vec<u8> {
        let pair =
            AddrPair::new(src.parse().expect("an address"), dst.parse().expect("an address")).expect("one family");
        let mut bytes = vec![0xA5; IpHeader::new(pair, UDP).len() + 3];
        let header = IpHeader { traffic_class: 0xB9, ..IpHeader::new(pair, UDP) };
        header.emit(&mut bytes, 7).copy_from_slice(&[1, 2, 3]);
        bytes
    }

    #[test]
    fn parsed_header_is_the_one_emitted() {
        let mut v4 = packet("10.0.0.1", "10.0.0.2");
        set_id(&mut v4, 0x1234);
        assert_eq!(v4[..12], [0x45, 0xB9, 0, 23, 0x12, 0x34, 0x40, 0, 64, 17, v4[10], v4[11]]);
        v4.extend([0; 30]);
        let ip = IpPacket::parse_v4(&v4).unwrap_or_else(|e| panic!("{e:?}"));
        assert_eq!((ip.protocol, ip.traffic_class, ip.hop_limit, ip.payload), (UDP, 0xB9, 64, &[1, 2, 3][..]));
        assert_eq!(ip.packet.len(), 23, "without Ethernet padding");

        let v6 = packet("fd00::1", "fd00::2");
        assert_eq!(v6[..8], [0x6B, 0x90, 0, 0, 0, 3, UDP, 64]);
        let ip = IpPacket::parse_v6(&v6).unwrap_or_else(|e| panic!("{e:?}"));
        assert_eq!((ip.protocol, ip.traffic_class, ip.payload), (UDP, 0xB9, &[1, 2, 3][..]));
        assert_eq!((ip.pair.src(), ip.pair.dst()), ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()));
    }

    #[test]
    fn each_malformed_header_has_its_reason() {
        let v4 = |at: usize, value: u8, fix: bool| {
            let mut bytes = packet("10.0.0.1", "10.0.0.2");
            bytes[at] = value;
            if fix {
                fill_v4_checksum(&mut bytes[..IPV4_LEN]);
            }
            IpPacket::parse_v4(&bytes).err()
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
        assert_eq!(IpPacket::parse_v4(&options).err(), Some(DropReason::IpOptions));

        let v6 = |at: usize, value: u8| {
            let mut bytes = packet("fd00::1", "fd00::2");
            bytes[at] = value;
            IpPacket::parse_v6(&bytes).err()
        };
        assert_eq!(v6(0, 0x40), Some(DropReason::IpHeaderMalformed));
        assert_eq!(v6(5, 4), Some(DropReason::IpLengthMismatch));
        assert_eq!(v6(6, 44), Some(DropReason::IpFragment));
        assert_eq!(v6(6, 43), Some(DropReason::IpOptions));
        assert_eq!(v6(6, 60), Some(DropReason::IpOptions));
        assert_eq!(v6(8, 0xFF), Some(DropReason::IpHeaderMalformed));
    }
}
