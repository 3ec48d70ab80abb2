//! Headers before the BTH: Ethernet, VLAN tag, IPv4, IPv6, UDP.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Checksum, MacAddr};

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
/// The "don't fragment" bit of [`Ipv4Header::fragment`].
pub const IPV4_DONT_FRAGMENT: u16 = 0x4000;
/// The UDP destination port of RoCEv2.
pub const ROCE_UDP_PORT: u16 = 4791;

/// A header of fixed layout, read and written in place.
pub trait Header: Sized + FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {
    /// The header at the front of `bytes` and what follows it; `None` when `bytes` is too short.
    #[inline]
    fn split(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(bytes).ok()
    }

    /// Writes the header to the front of `bytes` and returns the rest; `None`, and nothing written, when `bytes` is too
    /// short.
    #[inline]
    fn put<'b>(&self, bytes: &'b mut [u8]) -> Option<&'b mut [u8]> {
        let (header, rest) = bytes.split_at_mut_checked(size_of::<Self>())?;
        header.copy_from_slice(self.as_bytes());
        Some(rest)
    }
}

impl Header for EthHeader {}
impl Header for VlanTag {}
impl Header for Ipv4Header {}
impl Header for Ipv6Header {}
impl Header for UdpHeader {}

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
    /// Identification; means nothing in a packet with "don't fragment" (RFC 6864).
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

impl Ipv4Header {
    /// Length of the header in bytes, options included, from its IHL field.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0x0F) * 4
    }

    /// Whether the packet is a fragment: more follow, or it has an offset.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment.get() & 0x3FFF != 0
    }

    /// Sets the checksum of a header without options.
    pub fn fill_checksum(&mut self) {
        self.checksum.set(0);
        let sum = Checksum::default().with(self.as_bytes()).finish();
        self.checksum.set(sum);
    }
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

impl Ipv6Header {
    /// First word of a header: version 6, traffic class, flow label (20 bits).
    #[inline]
    pub fn first_word(traffic_class: u8, flow_label: u32) -> U32 {
        U32::new(6 << 28 | u32::from(traffic_class) << 20 | flow_label & 0xF_FFFF)
    }

    /// IP version, 6 in a well-formed header.
    #[inline]
    pub fn version(&self) -> u8 {
        (self.version_class_flow.get() >> 28) as u8
    }

    /// DSCP (6 bits) and ECN (2 bits).
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.version_class_flow.get() >> 20) as u8
    }
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
