//! A received frame: checked once from the outside in, then read without further checks.

use zerocopy::FromBytes;

use super::icrc::{ICRC_LEN, icrc};
use super::net::{
    ETH_LEN, EthHeader, IP_PROTO_UDP, IPV4_LEN, IPV6_LEN, Ipv4Header, Ipv6Header, ROCE_UDP_PORT, UDP_LEN, UdpHeader,
    VLAN_LEN, VlanTag, checksum_add, checksum_finish, ethertype,
};
use super::opcode::{Headers, OPCODES, OpcodeInfo};
use super::{
    Aeth, AtomicAckEth, AtomicEth, BTH_LEN, Bth, Deth, DropReason, Feth, Gid, Ieth, ImmDt, MacAddr, Opcode, Psn, Reth,
    Transport,
};

/// What [`classify`] made of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Frame<'a> {
    /// A RoCEv2 packet, well formed as far as one can tell without knowing the queue pair. Its ICRC is not yet checked.
    Roce(RocePacket<'a>),
    /// ARP or IP that is not RoCEv2: business of the host stack, which checks it further.
    Host,
}

/// A RoCEv2 packet whose lengths have been checked.
#[derive(Clone, Copy)]
pub struct RocePacket<'a> {
    frame: &'a [u8],
    bth: &'a Bth,
    payload: &'a [u8],
    info: &'static OpcodeInfo,
    /// Where in the frame the ICRC starts.
    icrc_at: u32,
    /// Where in the frame the IP header starts.
    ip_at: u8,
    /// Where in the frame the BTH starts.
    bth_at: u8,
}

/// Sorts a frame: RoCEv2, something for the host stack, or a named reason to drop it.
///
/// Addresses are not looked at: the caller knows which are its own. The IPv4 header checksum is not checked either: the
/// ICRC covers every field of that header that RoCEv2 acts upon.
///
/// # Errors
/// The reason to drop the frame.
#[inline]
pub fn classify(frame: &[u8]) -> Result<Frame<'_>, DropReason> {
    let (eth, mut rest) = EthHeader::ref_from_prefix(frame).map_err(|_| DropReason::FrameTooShort)?;
    let mut kind = eth.ethertype.get();
    let mut ip_at = ETH_LEN;
    if kind == ethertype::VLAN {
        let (tag, inner) = VlanTag::ref_from_prefix(rest).map_err(|_| DropReason::VlanMalformed)?;
        kind = tag.ethertype.get();
        if kind == ethertype::VLAN {
            return Err(DropReason::VlanMalformed);
        }
        rest = inner;
        ip_at += VLAN_LEN;
    }
    match kind {
        ethertype::IPV4 => classify_ipv4(frame, rest, ip_at),
        ethertype::IPV6 => classify_ipv6(frame, rest, ip_at),
        ethertype::ARP => Ok(Frame::Host),
        _ => Err(DropReason::UnknownEthertype),
    }
}

#[inline]
fn classify_ipv4<'a>(frame: &'a [u8], packet: &'a [u8], ip_at: usize) -> Result<Frame<'a>, DropReason> {
    let (ip, rest) = Ipv4Header::ref_from_prefix(packet).map_err(|_| DropReason::FrameTooShort)?;
    if ip.version_ihl < 0x45 || ip.version_ihl > 0x4F {
        return Err(DropReason::IpHeaderMalformed);
    }
    if ip.protocol != IP_PROTO_UDP {
        return Ok(Frame::Host);
    }
    if ip.version_ihl != 0x45 {
        return Err(DropReason::IpOptions);
    }
    // [PKT-NO-FRAGMENTS]
    if ip.fragment.get() & 0x3FFF != 0 {
        return Err(DropReason::IpFragment);
    }
    // [PKT-LENGTH]
    let udp = usize::from(ip.total_len.get())
        .checked_sub(IPV4_LEN)
        .and_then(|len| rest.get(..len))
        .ok_or(DropReason::IpLengthMismatch)?;
    classify_udp(frame, udp, ip_at, IPV4_LEN, || checksum_add(0, &packet[12..IPV4_LEN]))
}

#[inline]
fn classify_ipv6<'a>(frame: &'a [u8], packet: &'a [u8], ip_at: usize) -> Result<Frame<'a>, DropReason> {
    let (ip, rest) = Ipv6Header::ref_from_prefix(packet).map_err(|_| DropReason::FrameTooShort)?;
    if ip.version_class_flow.get() >> 28 != 6 {
        return Err(DropReason::IpHeaderMalformed);
    }
    if ip.next_header != IP_PROTO_UDP {
        return Ok(Frame::Host);
    }
    // [PKT-LENGTH]
    let udp = rest.get(..usize::from(ip.payload_len.get())).ok_or(DropReason::IpLengthMismatch)?;
    classify_udp(frame, udp, ip_at, IPV6_LEN, || checksum_add(0, &packet[8..IPV6_LEN]))
}

/// `datagram` is all that IP carries; `addresses` sums the two IP addresses for the UDP checksum.
#[inline]
fn classify_udp<'a>(
    frame: &'a [u8],
    datagram: &'a [u8],
    ip_at: usize,
    ip_len: usize,
    addresses: impl FnOnce() -> u64,
) -> Result<Frame<'a>, DropReason> {
    let (udp, roce) = UdpHeader::ref_from_prefix(datagram).map_err(|_| DropReason::IpLengthMismatch)?;
    // [PKT-UDP-PORT]
    if udp.dst_port.get() != ROCE_UDP_PORT {
        return Ok(Frame::Host);
    }
    if usize::from(udp.len.get()) != datagram.len() {
        return Err(DropReason::UdpLengthMismatch);
    }
    // [PKT-UDP-CHECKSUM]
    if udp.checksum.get() != 0 {
        let pseudo = addresses() + u64::from(IP_PROTO_UDP) + datagram.len() as u64;
        if checksum_finish(checksum_add(pseudo, datagram)) != 0 {
            return Err(DropReason::UdpChecksum);
        }
    }
    let (bth, rest) = Bth::ref_from_prefix(roce).map_err(|_| DropReason::RoceTooShort)?;
    let body = rest.len().checked_sub(ICRC_LEN).ok_or(DropReason::RoceTooShort)?;
    // [PKT-TVER]
    if bth.tver() != 0 {
        return Err(DropReason::BthVersion);
    }
    // [PKT-OPCODE-RESERVED]
    let info = OPCODES[usize::from(bth.opcode_byte())].as_ref().ok_or(DropReason::UnknownOpcode)?;
    let extension = usize::from(info.header_len) - BTH_LEN;
    if body < extension {
        return Err(DropReason::HeaderTruncated);
    }
    let unpadded = body.checked_sub(bth.pad()).ok_or(DropReason::PadExceedsPayload)?;
    let payload = rest.get(extension..unpadded).ok_or(DropReason::PadExceedsPayload)?;
    let bth_at = ip_at + ip_len + UDP_LEN;
    Ok(Frame::Roce(RocePacket {
        frame,
        bth,
        payload,
        info,
        icrc_at: (bth_at + BTH_LEN + body) as u32,
        ip_at: ip_at as u8,
        bth_at: bth_at as u8,
    }))
}

impl<'a> RocePacket<'a> {
    /// The whole frame as received, Ethernet padding included.
    #[inline]
    pub fn frame(&self) -> &'a [u8] {
        self.frame
    }

    #[inline]
    fn eth(&self) -> EthHeader {
        EthHeader::read_from_prefix(self.frame).map_or_else(|_| EthHeader::default(), |(eth, _)| eth)
    }

    /// Ethernet source address.
    #[inline]
    pub fn src_mac(&self) -> MacAddr {
        self.eth().src
    }

    /// Ethernet destination address.
    #[inline]
    pub fn dst_mac(&self) -> MacAddr {
        self.eth().dst
    }

    /// Tag control information of the VLAN tag, if there is one.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        if usize::from(self.ip_at) == ETH_LEN {
            return None;
        }
        let tag = self.frame.get(ETH_LEN..)?;
        VlanTag::read_from_prefix(tag).ok().map(|(tag, _)| tag.tci.get())
    }

    /// Whether the packet came over IPv4.
    #[inline]
    pub fn is_ipv4(&self) -> bool {
        usize::from(self.bth_at - self.ip_at) == IPV4_LEN + UDP_LEN
    }

    /// The IP header: 20 bytes (IPv4) or 40 (IPv6).
    #[inline]
    pub fn ip_header(&self) -> &'a [u8] {
        self.frame.get(usize::from(self.ip_at)..usize::from(self.bth_at) - UDP_LEN).unwrap_or_default()
    }

    #[inline]
    fn ip(&self) -> IpView<'a> {
        if self.is_ipv4() {
            Ipv4Header::ref_from_bytes(self.ip_header()).map_or(IpView::None, IpView::V4)
        } else {
            Ipv6Header::ref_from_bytes(self.ip_header()).map_or(IpView::None, IpView::V6)
        }
    }

    /// Source address.
    #[inline]
    pub fn src_gid(&self) -> Gid {
        match self.ip() {
            IpView::V4(ip) => mapped(ip.src),
            IpView::V6(ip) => Gid(ip.src),
            IpView::None => Gid::default(),
        }
    }

    /// Destination address.
    #[inline]
    pub fn dst_gid(&self) -> Gid {
        match self.ip() {
            IpView::V4(ip) => mapped(ip.dst),
            IpView::V6(ip) => Gid(ip.dst),
            IpView::None => Gid::default(),
        }
    }

    /// DSCP and ECN bits: IPv4 type of service or IPv6 traffic class.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        match self.ip() {
            IpView::V4(ip) => ip.tos,
            IpView::V6(ip) => (ip.version_class_flow.get() >> 20) as u8,
            IpView::None => 0,
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
        match self.ip() {
            IpView::V4(ip) => ip.ttl,
            IpView::V6(ip) => ip.hop_limit,
            IpView::None => 0,
        }
    }

    /// IPv6 flow label; 0 for IPv4.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        match self.ip() {
            IpView::V6(ip) => ip.version_class_flow.get() & 0xF_FFFF,
            _ => 0,
        }
    }

    /// IPv4 identification; 0 for IPv6.
    #[inline]
    pub fn ip_id(&self) -> u16 {
        match self.ip() {
            IpView::V4(ip) => ip.id.get(),
            _ => 0,
        }
    }

    /// UDP source port.
    #[inline]
    pub fn udp_src_port(&self) -> u16 {
        let udp = self.frame.get(usize::from(self.bth_at) - UDP_LEN..).unwrap_or_default();
        UdpHeader::read_from_prefix(udp).map_or(0, |(udp, _)| udp.src_port.get())
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

    /// The sender asks for an acknowledgement.
    #[inline]
    pub fn ack_req(&self) -> bool {
        self.bth.ack_req()
    }

    /// The sender asks for a solicited event.
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

    #[inline]
    fn extension<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned>(
        &self,
        which: Headers,
    ) -> Option<&'a T> {
        if !self.info.headers.contains(which) {
            return None;
        }
        let at = usize::from(self.bth_at) + BTH_LEN + self.info.headers.offset_of(which);
        T::ref_from_prefix(self.frame.get(at..)?).ok().map(|(header, _)| header)
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

    /// The key that a SEND with invalidate names.
    #[inline]
    pub fn invalidate_rkey(&self) -> Option<u32> {
        self.extension::<Ieth>(Headers::IETH).map(Ieth::rkey)
    }

    /// The ICRC as stored in the packet.
    #[inline]
    pub fn icrc(&self) -> u32 {
        let stored = self.frame.get(self.icrc_at as usize..).and_then(<[u8]>::first_chunk::<ICRC_LEN>);
        stored.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    /// Whether the stored ICRC is right. `headroom` says how many initialised bytes lie in front of the frame; see
    /// [`icrc`].
    #[inline]
    pub fn icrc_ok(&self, headroom: usize) -> bool {
        let covered = self.frame.get(usize::from(self.ip_at)..self.icrc_at as usize).unwrap_or_default();
        icrc(covered, self.is_ipv4(), headroom + usize::from(self.ip_at)) == self.icrc()
    }
}

/// The IP header as one or the other; `None` cannot happen after [`classify`] but spares a panic path.
enum IpView<'a> {
    V4(&'a Ipv4Header),
    V6(&'a Ipv6Header),
    None,
}

#[inline]
fn mapped([a, b, c, d]: [u8; 4]) -> Gid {
    Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, a, b, c, d])
}
