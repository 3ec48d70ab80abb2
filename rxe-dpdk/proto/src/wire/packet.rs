//! A received RoCEv2 packet: its headers are checked once, then read without further checks.

use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::icrc::{ICRC_LEN, icrc};
use super::net::{ETH_LEN, EthHeader, Ipv4Header, Ipv6Header, UDP_LEN, UdpHeader, VLAN_LEN, VlanTag, ethertype};
use super::opcode::{Headers, OPCODES, OpcodeInfo};
use super::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Gid, Ieth, ImmDt, MacAddr, Opcode, Psn, Reth, Transport};

/// A RoCEv2 packet whose lengths have been checked. Its parts are located once, so that reading them needs no checks.
#[derive(Clone, Copy)]
pub struct RocePacket<'a> {
    frame: &'a [u8],
    ip: IpHeader<'a>,
    bth: &'a Bth,
    /// The headers between BTH and payload, as long as the opcode's are, and the payload without pad.
    body: &'a [u8],
    /// From the IP header to the ICRC.
    packet: &'a [u8],
    info: &'static OpcodeInfo,
}

/// The IP header, by version.
#[derive(Clone, Copy)]
pub(super) enum IpHeader<'a> {
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

impl<'a> RocePacket<'a> {
    /// The packet, unless what begins with its BTH is malformed. `packet` begins with the IP header, `behind_bth` behind the
    /// BTH; both end with the ICRC.
    #[inline(always)]
    pub(super) fn new(
        frame: &'a [u8],
        ip: IpHeader<'a>,
        packet: &'a [u8],
        bth: &'a Bth,
        behind_bth: &'a [u8],
    ) -> Option<RocePacket<'a>> {
        let info = OPCODES[usize::from(bth.opcode_byte())].as_ref()?;
        let body = behind_bth.get(..behind_bth.len().checked_sub(ICRC_LEN + bth.pad())?)?;
        let is_whole = bth.tver() == 0 && body.len() >= usize::from(info.extension_len);
        is_whole.then_some(RocePacket { frame, ip, bth, body, packet, info })
    }

    /// The whole frame as received, Ethernet padding included.
    #[inline]
    pub fn frame(&self) -> &'a [u8] {
        self.frame
    }

    #[inline]
    fn eth(&self) -> Option<&'a EthHeader> {
        EthHeader::ref_from_prefix(self.frame).ok().map(|(eth, _)| eth)
    }

    /// Ethernet source address.
    #[inline]
    pub fn src_mac(&self) -> MacAddr {
        self.eth().map_or_else(MacAddr::default, |eth| eth.src)
    }

    /// Ethernet destination address.
    #[inline]
    pub fn dst_mac(&self) -> MacAddr {
        self.eth().map_or_else(MacAddr::default, |eth| eth.dst)
    }

    /// Tag control information of the VLAN tag, if there is one.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        let is_tagged = self.eth()?.ethertype.get() == ethertype::VLAN;
        let (tag, _) = VlanTag::ref_from_prefix(self.frame.get(ETH_LEN..)?).ok()?;
        is_tagged.then(|| tag.tci.get())
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
        let udp = self.packet.get(self.ip_header().len()..).map(UdpHeader::ref_from_prefix);
        udp.and_then(Result::ok).map_or(0, |(udp, _)| udp.src_port.get())
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
        self.body.get(usize::from(self.info.extension_len)..).unwrap_or_default()
    }

    /// Range of the payload in the frame, without pad.
    pub fn payload_range(&self) -> Range<usize> {
        let start = self.ip_at() + self.ip_header().len() + UDP_LEN + usize::from(self.info.header_len);
        start..start + self.payload().len()
    }

    /// Range of the ICRC in the frame.
    pub fn icrc_range(&self) -> Range<usize> {
        let start = self.payload_range().end + self.pad();
        start..start + ICRC_LEN
    }

    /// Offset of the IP header in the frame.
    pub fn ip_at(&self) -> usize {
        ETH_LEN + if self.vlan().is_some() { VLAN_LEN } else { 0 }
    }

    /// The extension header `which` (one bit), if the opcode has it.
    #[inline]
    fn extension<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self, which: Headers) -> Option<&'a T> {
        let at = self.info.place_of(which)?;
        T::ref_from_prefix(self.body.get(at..)?).ok().map(|(header, _)| header)
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
        self.packet.last_chunk().map_or(0, |stored| u32::from_le_bytes(*stored))
    }

    /// Whether the stored ICRC is right.
    #[inline(always)]
    pub fn icrc_ok(&self) -> bool {
        let Some((covered, stored)) = self.packet.split_last_chunk() else { return false };
        icrc(covered, self.is_ipv4()) == u32::from_le_bytes(*stored)
    }
}

#[inline]
fn mapped([a, b, c, d]: [u8; 4]) -> Gid {
    Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, a, b, c, d])
}
