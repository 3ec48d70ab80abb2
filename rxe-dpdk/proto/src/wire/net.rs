//! What is in front of the BTH: Ethernet, VLAN tag, IPv4, IPv6, UDP.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::MacAddr;

/// Ethertypes.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// IEEE 802.1Q VLAN tag.
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86DD;
}

/// Length of an Ethernet header without VLAN tag.
pub const ETH_LEN: usize = 14;
/// Length of a VLAN tag.
pub const VLAN_LEN: usize = 4;
/// Length of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
/// Length of the fixed IPv6 header.
pub const IPV6_LEN: usize = 40;
/// Length of a UDP header.
pub const UDP_LEN: usize = 8;
/// IP protocol number of UDP.
pub const IP_PROTO_UDP: u8 = 17;
/// The UDP destination port of RoCEv2.
pub const ROCE_UDP_PORT: u16 = 4791;

/// Ethernet header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EthHeader {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// Ethertype, one of [`ethertype`] or another.
    pub ethertype: U16,
}

/// VLAN tag: what follows ethertype 0x8100.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VlanTag {
    /// Tag control information: priority (3 bits), drop eligible (1), VLAN id (12).
    pub tci: U16,
    /// Ethertype of what is inside.
    pub ethertype: U16,
}

/// IPv4 header without options.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv4Header {
    /// Version (4 bits) and header length in 32-bit words (4 bits).
    pub version_ihl: u8,
    /// DSCP (6 bits) and ECN (2 bits).
    pub tos: u8,
    /// Length of header and payload in bytes.
    pub total_len: U16,
    /// Identification.
    pub id: U16,
    /// Reserved, don't fragment (0x4000), more fragments (0x2000), fragment offset (13 bits).
    pub fragment: U16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Header checksum.
    pub checksum: U16,
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
}

/// Fixed IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv6Header {
    /// Version (4 bits), traffic class (8 bits), flow label (20 bits).
    pub version_class_flow: U32,
    /// Length of what follows this header in bytes.
    pub payload_len: U16,
    /// Protocol of what follows.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
}

/// UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UdpHeader {
    /// Source port.
    pub src_port: U16,
    /// Destination port.
    pub dst_port: U16,
    /// Length of header and payload in bytes.
    pub len: U16,
    /// Checksum; zero when the sender made none.
    pub checksum: U16,
}

/// Adds `bytes`, taken as big-endian 16-bit words (an odd last byte is the high half of its word), to the running
/// sum of an Internet checksum. Only the last piece of a sum may be of odd length.
pub(super) fn checksum_add(mut sum: u64, bytes: &[u8]) -> u64 {
    // Words of 32 bits add up to the same ones' complement sum, and 2^32 of them fit before the accumulator wraps.
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        sum += u64::from(u32::from_be_bytes(*word));
    }
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    sum + u64::from(u32::from_be_bytes(last))
}

/// The Internet checksum of a running sum: folded to 16 bits and complemented.
#[inline]
pub(super) fn checksum_finish(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum >> 16) + (sum & 0xFFFF);
    }
    !(sum as u16)
}
