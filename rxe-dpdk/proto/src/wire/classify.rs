//! Classifies received frames: headers are checked from the outermost in.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::icrc::ICRC_LEN;
use super::net::{
    ETH_LEN, EthHeader, IP_PROTO_UDP, IPV4_LEN, IPV6_LEN, Ipv4Header, Ipv6Header, ROCE_UDP_PORT, UDP_LEN, UdpHeader,
    VlanTag, ethertype,
};
use super::opcode::OPCODES;
use super::packet::{IpHeader, RocePacket};
use super::{BTH_LEN, Bth, Checksum, DropReason};

/// A frame, as classified by [`classify`].
#[derive(Clone, Copy, Debug)]
pub enum Frame<'a> {
    /// A RoCEv2 packet. All checks that do not depend on the queue pair have passed, except the ICRC.
    Roce(RocePacket<'a>),
    /// ARP or IP that is not RoCEv2: for the host stack, which checks it further.
    Host,
}

/// The headers of most frames, before those of the opcode.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct UsualHeaders {
    eth: EthHeader,
    ip: Ipv4Header,
    udp: UdpHeader,
    bth: Bth,
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
    match classify_usual(frame) {
        Some(packet) => Ok(Frame::Roce(packet)),
        None => classify_any(frame),
    }
}

/// Most packets, with few checks: no VLAN tag, IPv4 without options, no UDP checksum. `None` for all other frames, good or
/// bad.
#[inline]
fn classify_usual(frame: &[u8]) -> Option<RocePacket<'_>> {
    let (UsualHeaders { eth, ip, udp, bth }, _) = UsualHeaders::ref_from_prefix(frame).ok()?;
    let total_len = usize::from(ip.total_len.get());
    let is_usual = eth.ethertype.get() == ethertype::IPV4
        && ip.version_ihl == 0x45
        && ip.protocol == IP_PROTO_UDP
        && !ip.is_fragment()
        && udp.dst_port.get() == ROCE_UDP_PORT
        && IPV4_LEN + usize::from(udp.len.get()) == total_len
        && udp.checksum.get() == 0;
    if !is_usual {
        return None;
    }
    let packet = frame.get(ETH_LEN..ETH_LEN + total_len)?;
    let behind_bth = packet.get(IPV4_LEN + UDP_LEN + BTH_LEN..)?;
    RocePacket::new(frame, IpHeader::V4(ip), packet, bth, behind_bth)
}

/// Classifies any frame.
#[inline(never)]
fn classify_any(frame: &[u8]) -> Result<Frame<'_>, DropReason> {
    let (eth, rest) = EthHeader::ref_from_prefix(frame).map_err(|_| DropReason::FrameTooShort)?;
    match eth.ethertype.get() {
        ethertype::IPV4 => classify_ipv4(frame, rest),
        ethertype::VLAN => classify_tagged(frame, rest),
        ethertype::IPV6 => classify_ipv6(frame, rest),
        ethertype::ARP => Ok(Frame::Host),
        _ => Err(DropReason::UnknownEthertype),
    }
}

fn classify_tagged<'a>(frame: &'a [u8], rest: &'a [u8]) -> Result<Frame<'a>, DropReason> {
    let (tag, rest) = VlanTag::ref_from_prefix(rest).map_err(|_| DropReason::VlanMalformed)?;
    match tag.ethertype.get() {
        ethertype::IPV4 => classify_ipv4(frame, rest),
        ethertype::IPV6 => classify_ipv6(frame, rest),
        ethertype::VLAN => Err(DropReason::VlanMalformed),
        ethertype::ARP => Ok(Frame::Host),
        _ => Err(DropReason::UnknownEthertype),
    }
}

fn classify_ipv4<'a>(frame: &'a [u8], packet: &'a [u8]) -> Result<Frame<'a>, DropReason> {
    let (ip, _) = Ipv4Header::ref_from_prefix(packet).map_err(|_| DropReason::FrameTooShort)?;
    if ip.version_ihl != 0x45 || ip.protocol != IP_PROTO_UDP {
        return unusual_ipv4(ip);
    }
    // compliance.md [PKT-NO-FRAGMENTS]: Fragments and IPv4 options are refused.
    if ip.is_fragment() {
        return Err(DropReason::IpFragment);
    }
    // compliance.md [PKT-LENGTH]: The IP length says where a packet ends.
    let packet = packet.get(..usize::from(ip.total_len.get())).ok_or(DropReason::IpLengthMismatch)?;
    let (_, datagram) = packet.split_at_checked(IPV4_LEN).ok_or(DropReason::IpLengthMismatch)?;
    classify_udp(frame, IpHeader::V4(ip), packet, datagram)
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

fn classify_ipv6<'a>(frame: &'a [u8], packet: &'a [u8]) -> Result<Frame<'a>, DropReason> {
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
    classify_udp(frame, IpHeader::V6(ip), packet, datagram)
}

/// Classifies a UDP datagram. `packet` begins with the IP header, `datagram` is the IP payload.
fn classify_udp<'a>(
    frame: &'a [u8],
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
    let (bth, behind_bth) = Bth::ref_from_prefix(roce).map_err(|_| DropReason::RoceTooShort)?;
    RocePacket::new(frame, ip, packet, bth, behind_bth).map(Frame::Roce).ok_or_else(|| malformed(bth, behind_bth))
}

/// Why [`RocePacket::new`] refuses a packet.
#[cold]
fn malformed(bth: &Bth, behind_bth: &[u8]) -> DropReason {
    let Some(body) = behind_bth.len().checked_sub(ICRC_LEN) else { return DropReason::RoceTooShort };
    // compliance.md [PKT-TVER]: A transport header version other than 0 is dropped silently.
    if bth.tver() != 0 {
        return DropReason::BthVersion;
    }
    // compliance.md [PKT-OPCODE-RESERVED]: A reserved opcode, or one of an unsupported transport, is dropped silently.
    match &OPCODES[usize::from(bth.opcode_byte())] {
        None => DropReason::UnknownOpcode,
        Some(info) if body < usize::from(info.extension_len) => DropReason::HeaderTruncated,
        Some(_) => DropReason::PadExceedsPayload,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{BthFields, BthOpcode, DEFAULT_PKEY, Gid, HeaderTemplate, Opcode, Path, Psn};

    /// Every change of one byte, and every length.
    #[test]
    fn usual_packets_are_what_the_complete_checks_make_of_them() {
        let gid = |last| Gid::from(std::net::Ipv4Addr::new(10, 0, 0, last));
        let template = HeaderTemplate::new(&Path { src: gid(1), dst: gid(2), ..Path::default() });
        let fields = BthFields {
            opcode: BthOpcode::rc(Opcode::WriteOnly),
            dest_qp: 0x11,
            psn: Psn::new(7),
            solicited: false,
            ack_req: true,
            pkey: DEFAULT_PKEY,
        };
        let mut frame = vec![0; template.frame_len(fields.opcode, 5)];
        let mut packet = template.build(&mut frame, fields, 5);
        packet.reth(0x1000, 1, 5).payload_mut().fill(9);
        packet.finish();
        let is_usual = |frame: &[u8]| match classify_usual(frame) {
            Some(packet) => {
                assert_eq!(
                    format!("{:?}", Ok::<_, DropReason>(Frame::Roce(packet))),
                    format!("{:?}", classify_any(frame))
                );
                true
            }
            None => false,
        };
        assert!(is_usual(&frame));
        let mut usual = 0;
        for at in 0..frame.len() {
            let before = frame[at];
            for value in 0..=u8::MAX {
                frame[at] = value;
                usual += usize::from(is_usual(&frame));
            }
            frame[at] = before;
            is_usual(&frame[..at]);
        }
        assert!(usual > 256, "{usual}");
    }
}
