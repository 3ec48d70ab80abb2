//! A received frame: headers are checked once, from the outermost in, then read without further checks.

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use super::icrc::{ICRC_LEN, icrc};
use super::net::{
    ETH_LEN, EthHeader, IP_PROTO_UDP, IPV4_LEN, IPV6_LEN, Ipv4Header, Ipv6Header, ROCE_UDP_PORT, UDP_LEN, UdpHeader,
    VLAN_LEN, VlanTag, ethertype,
};
use super::opcode::{Headers, OPCODES, OpcodeInfo};
use super::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Checksum, Deth, DropReason, Feth, Gid, Ieth, ImmDt, MacAddr, Opcode, Psn, Reth,
    Transport,
};

/// A frame, as classified by [`classify`].
#[derive(Clone, Copy, Debug)]
pub enum Frame<'a> {
    /// A RoCEv2 packet. All checks that do not depend on the queue pair have passed, except the ICRC.
    Roce(RocePacket<'a>),
    /// ARP or IP that is not RoCEv2: for the host stack, which checks it further.
    Host,
}

/// A RoCEv2 packet whose lengths have been checked. Its parts are located once, so that reading them needs no checks.
#[derive(Clone, Copy)]
pub struct RocePacket<'a> {
    frame: &'a [u8],
    eth: &'a EthHeader,
    vlan: Option<&'a VlanTag>,
    ip: IpHeader<'a>,
    udp: &'a UdpHeader,
    bth: &'a Bth,
    /// The headers between BTH and payload, as long as the opcode's are.
    extension: &'a [u8],
    payload: &'a [u8],
    icrc: &'a [u8; ICRC_LEN],
    /// The bytes that the ICRC covers: from the IP header to the pad.
    covered: &'a [u8],
    info: &'static OpcodeInfo,
}

/// The IP header, by version.
#[derive(Clone, Copy)]
enum IpHeader<'a> {
    V4(&'a Ipv4Header),
    V6(&'a Ipv6Header),
}

/// Source and destination address in the format of the IP header: built once per connection, compared with each of its
/// packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressPair {
    /// IPv4 source and destination.
    V4([u8; 4], [u8; 4]),
    /// IPv6 source and destination.
    V6([u8; 16], [u8; 16]),
}

impl AddressPair {
    /// Two IPv4-mapped GIDs stand for IPv4, as in a [`Path`](super::Path).
    pub fn new(src: Gid, dst: Gid) -> AddressPair {
        if src.is_ipv4() && dst.is_ipv4() {
            let ([.., a, b, c, d], [.., e, f, g, h]) = (src.0, dst.0);
            AddressPair::V4([a, b, c, d], [e, f, g, h])
        } else {
            AddressPair::V6(src.0, dst.0)
        }
    }
}

/// Classifies a frame: RoCEv2, a frame for the host stack, or a reason to drop it.
///
/// Addresses are not checked: the caller knows its own. The IPv4 header checksum is not checked either: the ICRC covers
/// every field of that header that RoCEv2 uses.
///
/// # Errors
/// The reason to drop the frame.
#[inline]
pub fn classify(frame: &[u8]) -> Result<Frame<'_>, DropReason> {
    let (eth, rest) = EthHeader::ref_from_prefix(frame).map_err(|_| DropReason::FrameTooShort)?;
    match eth.ethertype.get() {
        ethertype::IPV4 => classify_ipv4(frame, eth, None, rest),
        ethertype::VLAN => classify_tagged(frame, eth, rest),
        ethertype::IPV6 => classify_ipv6(frame, eth, None, rest),
        ethertype::ARP => Ok(Frame::Host),
        _ => Err(DropReason::UnknownEthertype),
    }
}

fn classify_tagged<'a>(frame: &'a [u8], eth: &'a EthHeader, rest: &'a [u8]) -> Result<Frame<'a>, DropReason> {
    let (tag, rest) = VlanTag::ref_from_prefix(rest).map_err(|_| DropReason::VlanMalformed)?;
    match tag.ethertype.get() {
        ethertype::IPV4 => classify_ipv4(frame, eth, Some(tag), rest),
        ethertype::IPV6 => classify_ipv6(frame, eth, Some(tag), rest),
        ethertype::VLAN => Err(DropReason::VlanMalformed),
        ethertype::ARP => Ok(Frame::Host),
        _ => Err(DropReason::UnknownEthertype),
    }
}

#[inline]
fn classify_ipv4<'a>(
    frame: &'a [u8],
    eth: &'a EthHeader,
    vlan: Option<&'a VlanTag>,
    packet: &'a [u8],
) -> Result<Frame<'a>, DropReason> {
    let (ip, _) = Ipv4Header::ref_from_prefix(packet).map_err(|_| DropReason::FrameTooShort)?;
    if ip.version_ihl != 0x45 || ip.protocol != IP_PROTO_UDP {
        return unusual_ipv4(ip);
    }
    // compliance.md [PKT-NO-FRAGMENTS]: Fragments and IPv4 options are refused.
    if ip.fragment.get() & 0x3FFF != 0 {
        return Err(DropReason::IpFragment);
    }
    // compliance.md [PKT-LENGTH]: The IP length says where a packet ends.
    let packet = packet.get(..usize::from(ip.total_len.get())).ok_or(DropReason::IpLengthMismatch)?;
    let (_, datagram) = packet.split_at_checked(IPV4_LEN).ok_or(DropReason::IpLengthMismatch)?;
    classify_udp(frame, eth, vlan, IpHeader::V4(ip), packet, datagram)
}

/// Classifies an IPv4 header with options, of another protocol, or malformed.
#[cold]
fn unusual_ipv4(ip: &Ipv4Header) -> Result<Frame<'static>, DropReason> {
    if ip.version_ihl < 0x45 || ip.version_ihl > 0x4F {
        Err(DropReason::IpHeaderMalformed)
    } else if ip.protocol != IP_PROTO_UDP {
        Ok(Frame::Host)
    } else {
        Err(DropReason::IpOptions)
    }
}

#[inline]
fn classify_ipv6<'a>(
    frame: &'a [u8],
    eth: &'a EthHeader,
    vlan: Option<&'a VlanTag>,
    packet: &'a [u8],
) -> Result<Frame<'a>, DropReason> {
    let (ip, _) = Ipv6Header::ref_from_prefix(packet).map_err(|_| DropReason::FrameTooShort)?;
    if ip.version_class_flow.get() >> 28 != 6 {
        return Err(DropReason::IpHeaderMalformed);
    }
    if ip.next_header != IP_PROTO_UDP {
        return Ok(Frame::Host);
    }
    // compliance.md [PKT-LENGTH]: The IP length says where a packet ends.
    let packet = packet.get(..IPV6_LEN + usize::from(ip.payload_len.get())).ok_or(DropReason::IpLengthMismatch)?;
    let (_, datagram) = packet.split_at_checked(IPV6_LEN).ok_or(DropReason::IpLengthMismatch)?;
    classify_udp(frame, eth, vlan, IpHeader::V6(ip), packet, datagram)
}

/// Classifies a UDP datagram. `packet` begins with the IP header, `datagram` is the IP payload.
#[inline]
fn classify_udp<'a>(
    frame: &'a [u8],
    eth: &'a EthHeader,
    vlan: Option<&'a VlanTag>,
    ip: IpHeader<'a>,
    packet: &'a [u8],
    datagram: &'a [u8],
) -> Result<Frame<'a>, DropReason> {
    let (udp, roce) = UdpHeader::ref_from_prefix(datagram).map_err(|_| DropReason::IpLengthMismatch)?;
    // compliance.md [PKT-UDP-PORT]: UDP to port 4791 is RoCEv2.
    if udp.dst_port.get() != ROCE_UDP_PORT {
        return Ok(Frame::Host);
    }
    if usize::from(udp.len.get()) != datagram.len() {
        return Err(DropReason::UdpLengthMismatch);
    }
    // compliance.md [PKT-UDP-CHECKSUM]: A UDP checksum of 0 or a correct one is accepted.
    if udp.checksum.get() != 0 && !udp_checksum_ok(ip, datagram) {
        return Err(DropReason::UdpChecksum);
    }
    let (bth, rest) = Bth::ref_from_prefix(roce).map_err(|_| DropReason::RoceTooShort)?;
    let (body, icrc) = rest.split_last_chunk().ok_or(DropReason::RoceTooShort)?;
    let (covered, _) = packet.split_last_chunk::<ICRC_LEN>().ok_or(DropReason::RoceTooShort)?;
    // compliance.md [PKT-TVER]: A transport header version other than 0 is dropped silently.
    if bth.tver() != 0 {
        return Err(DropReason::BthVersion);
    }
    // compliance.md [PKT-OPCODE-RESERVED]: A reserved opcode, or one of an unsupported transport, is dropped silently.
    let info = OPCODES[usize::from(bth.opcode_byte())].as_ref().ok_or(DropReason::UnknownOpcode)?;
    let (extension, padded) =
        body.split_at_checked(usize::from(info.extension_len)).ok_or(DropReason::HeaderTruncated)?;
    let payload =
        padded.len().checked_sub(bth.pad()).and_then(|len| padded.get(..len)).ok_or(DropReason::PadExceedsPayload)?;
    Ok(Frame::Roce(RocePacket { frame, eth, vlan, ip, udp, bth, extension, payload, icrc, covered, info }))
}

/// The UDP checksum, for senders that make one.
#[inline(never)]
fn udp_checksum_ok(ip: IpHeader<'_>, datagram: &[u8]) -> bool {
    let pseudo_header = match ip {
        IpHeader::V4(ip) => Checksum::pseudo_header(&ip.src, &ip.dst, IP_PROTO_UDP, datagram.len()),
        IpHeader::V6(ip) => Checksum::pseudo_header(&ip.src, &ip.dst, IP_PROTO_UDP, datagram.len()),
    };
    pseudo_header.with(datagram).finish() == 0
}

impl<'a> RocePacket<'a> {
    /// The whole frame as received, Ethernet padding included.
    #[inline]
    pub fn frame(&self) -> &'a [u8] {
        self.frame
    }

    /// Ethernet source address.
    #[inline]
    pub fn src_mac(&self) -> MacAddr {
        self.eth.src
    }

    /// Ethernet destination address.
    #[inline]
    pub fn dst_mac(&self) -> MacAddr {
        self.eth.dst
    }

    /// Tag control information of the VLAN tag, if there is one.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        self.vlan.map(|tag| tag.tci.get())
    }

    /// Whether the packet came over IPv4.
    #[inline]
    pub fn is_ipv4(&self) -> bool {
        matches!(self.ip, IpHeader::V4(_))
    }

    /// The IP header: 20 bytes (IPv4) or 40 (IPv6).
    #[inline]
    pub fn ip_header(&self) -> &'a [u8] {
        match self.ip {
            IpHeader::V4(ip) => ip.as_bytes(),
            IpHeader::V6(ip) => ip.as_bytes(),
        }
    }

    /// Source address.
    #[inline]
    pub fn src_gid(&self) -> Gid {
        match self.ip {
            IpHeader::V4(ip) => mapped(ip.src),
            IpHeader::V6(ip) => Gid(ip.src),
        }
    }

    /// Destination address.
    #[inline]
    pub fn dst_gid(&self) -> Gid {
        match self.ip {
            IpHeader::V4(ip) => mapped(ip.dst),
            IpHeader::V6(ip) => Gid(ip.dst),
        }
    }

    /// Whether source and destination address are these.
    #[inline]
    pub fn is_between(&self, pair: &AddressPair) -> bool {
        match (self.ip, pair) {
            (IpHeader::V4(ip), AddressPair::V4(src, dst)) => ip.src == *src && ip.dst == *dst,
            (IpHeader::V6(ip), AddressPair::V6(src, dst)) => ip.src == *src && ip.dst == *dst,
            _ => false,
        }
    }

    /// DSCP and ECN bits: IPv4 type of service or IPv6 traffic class.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        match self.ip {
            IpHeader::V4(ip) => ip.tos,
            IpHeader::V6(ip) => (ip.version_class_flow.get() >> 20) as u8,
        }
    }

    /// Whether a switch marked it: ECN "congestion experienced".
    #[inline]
    pub fn is_congestion_marked(&self) -> bool {
        self.traffic_class() & 3 == 3
    }

    /// IPv4 time to live or IPv6 hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        match self.ip {
            IpHeader::V4(ip) => ip.ttl,
            IpHeader::V6(ip) => ip.hop_limit,
        }
    }

    /// IPv6 flow label; 0 for IPv4.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        match self.ip {
            IpHeader::V4(_) => 0,
            IpHeader::V6(ip) => ip.version_class_flow.get() & 0xF_FFFF,
        }
    }

    /// IPv4 identification; 0 for IPv6.
    #[inline]
    pub fn ip_id(&self) -> u16 {
        match self.ip {
            IpHeader::V4(ip) => ip.id.get(),
            IpHeader::V6(_) => 0,
        }
    }

    /// UDP source port.
    #[inline]
    pub fn udp_src_port(&self) -> u16 {
        self.udp.src_port.get()
    }

    /// The base transport header.
    #[inline]
    pub fn bth(&self) -> &'a Bth {
        self.bth
    }

    /// The opcode's row in the table.
    #[inline]
    pub fn info(&self) -> &'static OpcodeInfo {
        self.info
    }

    /// The transport service.
    #[inline]
    pub fn transport(&self) -> Transport {
        self.info.opcode.transport
    }

    /// The operation.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.info.opcode.op
    }

    /// Destination queue pair number.
    #[inline]
    pub fn dest_qp(&self) -> u32 {
        self.bth.dest_qp()
    }

    /// Packet sequence number.
    #[inline]
    pub fn psn(&self) -> Psn {
        self.bth.psn()
    }

    /// AckReq: the sender requests an acknowledgement.
    #[inline]
    pub fn ack_req(&self) -> bool {
        self.bth.ack_req()
    }

    /// SE: the sender requests a solicited event.
    #[inline]
    pub fn solicited(&self) -> bool {
        self.bth.se()
    }

    /// Pad bytes behind the payload.
    #[inline]
    pub fn pad(&self) -> usize {
        self.bth.pad()
    }

    /// The payload without pad.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Range of the payload in the frame, without pad.
    pub fn payload_range(&self) -> Range<usize> {
        let start = self.ip_at() + self.ip_header().len() + UDP_LEN + usize::from(self.info.header_len);
        start..start + self.payload.len()
    }

    /// Range of the ICRC in the frame.
    pub fn icrc_range(&self) -> Range<usize> {
        let start = self.payload_range().end + self.pad();
        start..start + ICRC_LEN
    }

    /// Offset of the IP header in the frame.
    pub fn ip_at(&self) -> usize {
        ETH_LEN + if self.vlan.is_some() { VLAN_LEN } else { 0 }
    }

    /// The extension header `which` (one bit), if the opcode has it.
    #[inline]
    fn extension<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned>(
        &self,
        which: Headers,
    ) -> Option<&'a T> {
        let at = self.info.place_of(which)?;
        T::ref_from_prefix(self.extension.get(at..)?).ok().map(|(header, _)| header)
    }

    /// RDMA extended transport header.
    #[inline]
    pub fn reth(&self) -> Option<&'a Reth> {
        self.extension(Headers::RETH)
    }

    /// Atomic extended transport header.
    #[inline]
    pub fn atomic_eth(&self) -> Option<&'a AtomicEth> {
        self.extension(Headers::ATOMIC)
    }

    /// ACK extended transport header.
    #[inline]
    pub fn aeth(&self) -> Option<&'a Aeth> {
        self.extension(Headers::AETH)
    }

    /// The original value that an atomic acknowledge returns.
    #[inline]
    pub fn atomic_ack(&self) -> Option<u64> {
        self.extension::<AtomicAckEth>(Headers::ATOMIC_ACK).map(AtomicAckEth::original)
    }

    /// Datagram extended transport header.
    #[inline]
    pub fn deth(&self) -> Option<&'a Deth> {
        self.extension(Headers::DETH)
    }

    /// FLUSH extended transport header.
    #[inline]
    pub fn feth(&self) -> Option<&'a Feth> {
        self.extension(Headers::FETH)
    }

    /// Immediate data in host order.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.extension::<ImmDt>(Headers::IMM).map(ImmDt::imm)
    }

    /// The key in a SEND with invalidate.
    #[inline]
    pub fn invalidate_rkey(&self) -> Option<u32> {
        self.extension::<Ieth>(Headers::IETH).map(Ieth::rkey)
    }

    /// The ICRC as stored in the packet.
    #[inline]
    pub fn icrc(&self) -> u32 {
        u32::from_le_bytes(*self.icrc)
    }

    /// Whether the stored ICRC is right.
    #[inline]
    pub fn icrc_ok(&self) -> bool {
        icrc(self.covered, self.is_ipv4()) == self.icrc()
    }
}

#[inline]
fn mapped([a, b, c, d]: [u8; 4]) -> Gid {
    Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, a, b, c, d])
}
