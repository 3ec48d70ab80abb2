//! Ethernet, IP and UDP headers around a datagram, which the kernel strips and adds: what the engine reads in front of a received
//! payload, and where the kernel is to send a staged frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rxe_proto::wire::ROCE_UDP_PORT;
use rxe_proto::wire::net::{
    ETH_LEN, EthHeader, Header, IP_PROTO_UDP, IPV4_DONT_FRAGMENT, IPV4_LEN, IPV6_LEN, Ipv4Header, Ipv6Header, UDP_LEN,
    UdpHeader, ethertype,
};

/// Longest UDP payload of a RoCE packet: the largest path MTU, and more than the longest headers and ICRC.
pub(crate) const MAX_PAYLOAD: usize = 4096 + 64;

/// Longest headers in front of a UDP payload.
pub(crate) const MAX_HEADERS: usize = ETH_LEN + IPV6_LEN + UDP_LEN;

/// Longest frame.
pub(crate) const MAX_FRAME: usize = MAX_HEADERS + MAX_PAYLOAD;

/// Bytes in front of a UDP payload to or from `address`.
#[inline]
pub(crate) fn headers_len(address: IpAddr) -> usize {
    ETH_LEN + UDP_LEN + if address.is_ipv4() { IPV4_LEN } else { IPV6_LEN }
}

/// Properties of a received datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram {
    pub(crate) addresses: Addresses,
    pub(crate) src_port: u16,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// Source and destination.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Addresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl Addresses {
    #[inline]
    pub(crate) fn source(self) -> IpAddr {
        match self {
            Addresses::V4(source, _) => source.into(),
            Addresses::V6(source, _) => source.into(),
        }
    }
}

impl Datagram {
    /// Writes the headers of a packet with `payload_len` bytes of UDP payload to the front of `frame`. The MAC addresses, the UDP
    /// checksum, the IPv4 identification and the IPv6 flow label are 0: the socket does not show them.
    #[inline]
    pub(crate) fn write_headers(&self, frame: &mut [u8], payload_len: usize) {
        let udp_len = (UDP_LEN + payload_len) as u16;
        let mut udp = UdpHeader::default();
        udp.src_port.set(self.src_port);
        udp.dst_port.set(ROCE_UDP_PORT);
        udp.len.set(udp_len);
        let mut eth = EthHeader::default();
        match self.addresses {
            Addresses::V4(src, dst) => {
                eth.ethertype.set(ethertype::IPV4);
                let mut ip = Ipv4Header {
                    version_ihl: 0x45,
                    tos: self.traffic_class,
                    ttl: self.hop_limit,
                    protocol: IP_PROTO_UDP,
                    src: src.octets(),
                    dst: dst.octets(),
                    ..Ipv4Header::default()
                };
                ip.total_len.set(IPV4_LEN as u16 + udp_len);
                ip.fragment.set(IPV4_DONT_FRAGMENT);
                ip.fill_checksum();
                put(frame, &eth, &ip, &udp);
            }
            Addresses::V6(src, dst) => {
                eth.ethertype.set(ethertype::IPV6);
                let mut ip = Ipv6Header {
                    version_class_flow: Ipv6Header::first_word(self.traffic_class, 0),
                    next_header: IP_PROTO_UDP,
                    hop_limit: self.hop_limit,
                    src: src.octets(),
                    dst: dst.octets(),
                    ..Ipv6Header::default()
                };
                ip.payload_len.set(udp_len);
                put(frame, &eth, &ip, &udp);
            }
        }
    }
}

#[inline]
fn put(frame: &mut [u8], eth: &EthHeader, ip: &impl Header, udp: &UdpHeader) {
    let written = eth.put(frame).and_then(|rest| ip.put(rest)).and_then(|rest| udp.put(rest));
    debug_assert!(written.is_some(), "no room for headers");
}

/// Destination of a frame, and the properties of its packet that the socket can set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outgoing {
    pub(crate) destination: IpAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// Reads where a frame goes; `None` when it is not a RoCEv2 packet from `source`.
#[inline]
pub(crate) fn outgoing(frame: &[u8], source: IpAddr) -> Option<Outgoing> {
    let (eth, packet) = EthHeader::split(frame)?;
    let (outgoing, datagram) = match source {
        IpAddr::V4(source) => {
            let (ip, datagram) = Ipv4Header::split(packet)?;
            let ours = eth.ethertype.get() == ethertype::IPV4
                && ip.version_ihl == 0x45
                && ip.protocol == IP_PROTO_UDP
                && ip.src == source.octets();
            if !ours {
                return None;
            }
            // The kernel sends identification 0, and the ICRC covers it.
            if ip.id.get() != 0 {
                return None;
            }
            let destination = IpAddr::from(ip.dst);
            (Outgoing { destination, traffic_class: ip.tos, hop_limit: ip.ttl }, datagram)
        }
        IpAddr::V6(source) => {
            let (ip, datagram) = Ipv6Header::split(packet)?;
            let ours =
                eth.ethertype.get() == ethertype::IPV6 && ip.next_header == IP_PROTO_UDP && ip.src == source.octets();
            if !ours {
                return None;
            }
            let destination = IpAddr::from(ip.dst);
            (Outgoing { destination, traffic_class: ip.traffic_class(), hop_limit: ip.hop_limit }, datagram)
        }
    };
    let (udp, _) = UdpHeader::split(datagram)?;
    // The kernel sends from the port that the socket is bound to, and the ICRC covers it.
    (udp.src_port.get() == ROCE_UDP_PORT && udp.dst_port.get() == ROCE_UDP_PORT).then_some(outgoing)
}
