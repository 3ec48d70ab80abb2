//! Paths: the header fields before the BTH, and the UDP source port.

use super::{Gid, MacAddr, PortId};

/// The path of a queue pair's packets: all header fields before the BTH.
///
/// With two IPv4-mapped GIDs the packets are IPv4, else IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The port to transmit on.
    pub port: PortId,
    /// Our Ethernet address.
    pub src_mac: MacAddr,
    /// Ethernet address of the next hop.
    pub dst_mac: MacAddr,
    /// Tag control information (priority and VLAN id), for a tagged port.
    pub vlan: Option<u16>,
    /// Our address.
    pub src: Gid,
    /// The peer's address.
    pub dst: Gid,
    /// UDP source port, for the hashes of switches; see [`udp_source_port`].
    pub udp_src_port: u16,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits. Unused with IPv4.
    pub flow_label: u32,
    /// IPv6 hop limit or IPv4 time to live.
    pub hop_limit: u8,
}

impl Default for Path {
    /// No VLAN, no priority, hop limit 64, UDP source port 0xC000. The addresses are for the caller to fill in.
    fn default() -> Path {
        Path {
            port: PortId::default(),
            src_mac: MacAddr::default(),
            dst_mac: MacAddr::default(),
            vlan: None,
            src: Gid::default(),
            dst: Gid::default(),
            udp_src_port: 0xC000,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
        }
    }
}

impl Path {
    /// Whether packets on this path are IPv4.
    #[inline]
    pub fn is_ipv4(&self) -> bool {
        self.src.is_ipv4() && self.dst.is_ipv4()
    }
}

/// The UDP source port of a connection's packets, 0xC000 to 0xFFFF, as Linux and hardware choose it: from the flow
/// label, or when that is zero from the two queue pair numbers. Both ends compute the same port.
pub fn udp_source_port(flow_label: u32, local: u32, remote: u32) -> u16 {
    let mut label = flow_label & 0xF_FFFF;
    if label == 0 {
        let mut v = u64::from(local) * u64::from(remote);
        v ^= v >> 20;
        v ^= v >> 40;
        label = (v & 0xF_FFFF) as u32;
    }
    // compliance.md [PKT-SOURCE-PORT]: The UDP source port is computed from the flow label, or from the two queue pair
    // numbers, the same on both ends.
    0xC000 | ((label & 0x3FFF) ^ (label >> 14)) as u16
}

/// The UDP source port of datagrams from queue pair `qpn`, QP1 included.
pub const fn udp_source_port_ud(qpn: u32) -> u16 {
    // 2^32 divided by the golden ratio: spreads neighbouring numbers over the whole range.
    // compliance.md [PKT-SOURCE-PORT]: The UDP source port is computed from the flow label, or from the two queue pair
    // numbers, the same on both ends.
    0xC000 + (qpn.wrapping_mul(0x61C8_8647) >> 18) as u16
}
