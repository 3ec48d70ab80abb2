//! Writing packets: a template of everything before the BTH, and a builder for the rest.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::icrc::ICRC_LEN;
use super::net::{
    ETH_LEN, EthHeader, IP_PROTO_UDP, IPV4_DONT_FRAGMENT, IPV4_LEN, IPV6_LEN, Ipv4Header, Ipv6Header, ROCE_UDP_PORT,
    UDP_LEN, UdpHeader, VLAN_LEN, VlanTag, ethertype,
};
use super::opcode::{Headers, OpcodeInfo};
use super::{
    Aeth, AtomicAckEth, AtomicEth, BTH_LEN, Bth, BthFields, BthOpcode, Checksum, Deth, Feth, Ieth, ImmDt, Path, PortId,
    Reth, Seal, Syndrome,
};

/// Largest path_len: Ethernet, VLAN tag, IPv6, UDP.
const TEMPLATE_LEN: usize = ETH_LEN + VLAN_LEN + IPV6_LEN + UDP_LEN;

/// path_len without VLAN tag.
const IPV4_PATH: usize = ETH_LEN + IPV4_LEN + UDP_LEN;

/// The precomputed bytes of a [`Path`] before the BTH. Lengths and IPv4 header checksum are filled in for each packet.
#[derive(Clone, Debug)]
pub struct HeaderTemplate {
    bytes: [u8; TEMPLATE_LEN],
    len: u8,
    ip_at: u8,
    is_ipv4: bool,
    port: PortId,
    /// IPv4: sum of the header without total length, folded to 16 bits.
    partial_sum: u16,
}

/// Pad bytes that bring `payload_len` to a multiple of four.
#[inline]
const fn pad_of(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

impl HeaderTemplate {
    /// The template of a path.
    pub fn new(path: &Path) -> HeaderTemplate {
        let is_ipv4 = path.is_ipv4();
        let mut bytes = [0; TEMPLATE_LEN];
        let mut len = 0;
        let mut put = |header: &[u8]| {
            bytes[len..len + header.len()].copy_from_slice(header);
            len += header.len();
        };
        let ip_type = U16::new(if is_ipv4 { ethertype::IPV4 } else { ethertype::IPV6 });
        let mut eth = EthHeader { dst: path.dst_mac, src: path.src_mac, ethertype: ip_type };
        let mut ip_at = ETH_LEN;
        if let Some(tci) = path.vlan {
            eth.ethertype = U16::new(ethertype::VLAN);
            put(eth.as_bytes());
            put(VlanTag { tci: U16::new(tci), ethertype: ip_type }.as_bytes());
            ip_at += VLAN_LEN;
        } else {
            put(eth.as_bytes());
        }
        let mut partial_sum = 0;
        if is_ipv4 {
            let [.., a, b, c, d] = path.src.0;
            let [.., e, f, g, h] = path.dst.0;
            let ip = Ipv4Header {
                version_ihl: 0x45,
                tos: path.traffic_class,
                // compliance.md [PKT-NO-FRAGMENTS]: Fragments and IPv4 options are refused.
                // compliance.md [PKT-IP-ID]: IPv4 packets are sent with identification 0, which means nothing beside
                // "don't fragment".
                id: U16::new(0),
                fragment: U16::new(IPV4_DONT_FRAGMENT),
                ttl: path.hop_limit,
                protocol: IP_PROTO_UDP,
                src: [a, b, c, d],
                dst: [e, f, g, h],
                ..Ipv4Header::default()
            };
            partial_sum = Checksum::default().with(ip.as_bytes()).folded();
            put(ip.as_bytes());
        } else {
            let ip = Ipv6Header {
                version_class_flow: Ipv6Header::first_word(path.traffic_class, path.flow_label),
                next_header: IP_PROTO_UDP,
                hop_limit: path.hop_limit,
                src: path.src.0,
                dst: path.dst.0,
                ..Ipv6Header::default()
            };
            put(ip.as_bytes());
        }
        let udp = UdpHeader {
            src_port: U16::new(path.udp_src_port),
            dst_port: U16::new(ROCE_UDP_PORT),
            ..UdpHeader::default()
        };
        put(udp.as_bytes());
        HeaderTemplate { bytes, len: len as u8, ip_at: ip_at as u8, is_ipv4, port: path.port, partial_sum }
    }

    /// The port to transmit on.
    #[inline]
    pub fn port(&self) -> PortId {
        self.port
    }

    /// Whether the packets go over IPv4.
    #[inline]
    pub(super) fn is_ipv4(&self) -> bool {
        self.is_ipv4
    }

    /// Offset of the IP header.
    #[inline]
    pub(super) fn ip_at(&self) -> usize {
        usize::from(self.ip_at)
    }

    /// The data needed to write the ICRC of a frame with these headers.
    #[inline]
    pub fn seal(&self) -> Seal {
        Seal { ip_at: self.ip_at, is_ipv4: self.is_ipv4 }
    }

    /// Bytes before the BTH.
    #[inline]
    pub fn path_len(&self) -> usize {
        usize::from(self.len)
    }

    /// Length of a whole frame, Ethernet header to ICRC.
    #[inline]
    pub fn frame_len(&self, op: BthOpcode, payload_len: usize) -> usize {
        self.path_len() + usize::from(op.row().header_len) + payload_len + pad_of(payload_len) + ICRC_LEN
    }

    /// Writes everything up to the extension headers into `frame`, which has exactly `frame_len` bytes, and returns a
    /// builder for the rest. The packet must fit into 65535 bytes of IP.
    ///
    /// # Panics
    /// When `frame` is shorter than `frame_len`.
    #[inline(always)]
    pub fn build<'b>(&self, frame: &'b mut [u8], fields: BthFields, payload_len: usize) -> PacketBuilder<'b> {
        debug_assert_eq!(frame.len(), self.frame_len(fields.opcode, payload_len));
        let pad = pad_of(payload_len);
        // Zeros for the pad; the other bytes of this word are overwritten later.
        // compliance.md [PKT-PAD]: Payload is padded with zeros to a multiple of four bytes.
        let last = frame.len() - ICRC_LEN;
        frame[last - 4..last].fill(0);
        let bth = fields.to_words(pad);
        self.write_head(frame, bth.0, bth.1);
        let info = fields.opcode.row();
        if info.headers.contains(Headers::CNP) {
            let body = self.path_len() + BTH_LEN;
            frame[body..body + Headers::CNP.byte_len()].fill(0);
        }
        PacketBuilder {
            frame,
            info,
            missing: info.headers.difference(Headers::CNP),
            payload_len: payload_len as u32,
            bth_at: self.len,
            seal: self.seal(),
            sealed_later: false,
        }
    }

    /// Writes the bytes up to the extension headers.
    // Not inlined: a loop over packets would keep everything that it needs of the template on the stack.
    #[inline(never)]
    fn write_head(&self, frame: &mut [u8], first: [u8; 8], last: [u8; 4]) {
        // The common lengths as constants, so that bounds checks and calls are optimised away.
        if usize::from(self.len) == IPV4_PATH
            && self.is_ipv4
            && let Some((head, body)) = frame.split_first_chunk_mut::<{ IPV4_PATH + BTH_LEN }>()
            && let Some(path) = self.bytes.first_chunk::<IPV4_PATH>()
        {
            let udp_len = (UDP_LEN + BTH_LEN + body.len()) as u16;
            head[..IPV4_PATH].copy_from_slice(path);
            self.complete_ipv4(&mut head[ETH_LEN..], udp_len);
            head[IPV4_PATH..IPV4_PATH + 8].copy_from_slice(&first);
            head[IPV4_PATH + 8..].copy_from_slice(&last);
        } else {
            self.write_any_head(frame, first, last);
        }
    }

    /// Writes the bytes up to the extension headers, for a path of any length.
    #[inline(never)]
    fn write_any_head(&self, frame: &mut [u8], first: [u8; 8], last: [u8; 4]) {
        let path_len = self.path_len();
        let ip_at = usize::from(self.ip_at);
        let (head, body) = frame.split_at_mut(path_len);
        head.copy_from_slice(&self.bytes[..path_len]);
        let udp_len = (UDP_LEN + body.len()) as u16;
        if self.is_ipv4 {
            self.complete_ipv4(&mut head[ip_at..], udp_len);
        } else {
            put16(head, ip_at + 4, udp_len);
            put16(head, ip_at + IPV6_LEN + 4, udp_len);
        }
        body[..8].copy_from_slice(&first);
        body[8..BTH_LEN].copy_from_slice(&last);
    }

    /// Fills in the per-packet fields of an IPv4 header and the UDP header behind it.
    #[inline]
    fn complete_ipv4(&self, ip: &mut [u8], udp_len: u16) {
        let total_len = IPV4_LEN as u16 + udp_len;
        let sum = u32::from(self.partial_sum) + u32::from(total_len);
        let sum = (sum >> 16) + (sum & 0xFFFF);
        put16(ip, 2, total_len);
        put16(ip, 10, !(sum as u16));
        put16(ip, IPV4_LEN + 4, udp_len);
    }
}

#[inline]
fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// A packet whose headers up to the BTH are written. Every extension header of its opcode and the whole payload must be
/// written too, in any order, before [`PacketBuilder::finish`]. A header that the opcode does not have is not written.
#[derive(Debug)]
#[must_use = "a packet without its ICRC is not a packet"]
pub struct PacketBuilder<'b> {
    frame: &'b mut [u8],
    info: &'static OpcodeInfo,
    missing: Headers,
    payload_len: u32,
    bth_at: u8,
    seal: Seal,
    sealed_later: bool,
}

impl PacketBuilder<'_> {
    #[inline(always)]
    fn put<T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned>(
        &mut self,
        which: Headers,
        header: T,
    ) -> &mut Self {
        debug_assert!(self.info.headers.contains(which), "the opcode has no {which:?}");
        let at = usize::from(self.bth_at) + BTH_LEN;
        if let Some(place) = self.info.place_of(which)
            && let Some(Ok((there, _))) = self.frame.get_mut(at + place..).map(T::mut_from_prefix)
        {
            // In place, field by field.
            *there = header;
            self.missing.remove(which);
        }
        self
    }

    /// RDMA extended transport header.
    #[inline]
    pub fn reth(&mut self, va: u64, rkey: u32, dma_len: u32) -> &mut Self {
        self.put(Headers::RETH, Reth::new(va, rkey, dma_len))
    }

    /// ACK extended transport header.
    #[inline]
    pub fn aeth(&mut self, syndrome: Syndrome, msn: u32) -> &mut Self {
        self.put(Headers::AETH, Aeth::new(syndrome, msn))
    }

    /// Atomic extended transport header.
    #[inline]
    pub fn atomic_eth(&mut self, va: u64, rkey: u32, swap_or_add: u64, compare: u64) -> &mut Self {
        self.put(Headers::ATOMIC, AtomicEth::new(va, rkey, swap_or_add, compare))
    }

    /// Atomic ACK extended transport header.
    #[inline]
    pub fn atomic_ack(&mut self, original: u64) -> &mut Self {
        self.put(Headers::ATOMIC_ACK, AtomicAckEth::new(original))
    }

    /// Datagram extended transport header.
    #[inline]
    pub fn deth(&mut self, qkey: u32, src_qp: u32) -> &mut Self {
        self.put(Headers::DETH, Deth::new(qkey, src_qp))
    }

    /// FLUSH extended transport header.
    #[inline]
    pub fn feth(&mut self, level: u8, placement: u8) -> &mut Self {
        self.put(Headers::FETH, Feth::new(level, placement))
    }

    /// Immediate data, in host order.
    #[inline]
    pub fn imm(&mut self, imm: u32) -> &mut Self {
        self.put(Headers::IMM, ImmDt::new(imm))
    }

    /// Invalidate extended transport header.
    #[inline]
    pub fn ieth(&mut self, rkey: u32) -> &mut Self {
        self.put(Headers::IETH, Ieth::new(rkey))
    }

    #[inline]
    fn bth_mut(&mut self) -> Option<&mut Bth> {
        let at = usize::from(self.bth_at);
        Bth::mut_from_prefix(self.frame.get_mut(at..)?).ok().map(|(bth, _)| bth)
    }

    /// Sets the BTH's migration request bit.
    #[inline]
    pub fn mig_req(&mut self, on: bool) -> &mut Self {
        if let Some(bth) = self.bth_mut() {
            bth.set_migreq(on);
        }
        self
    }

    /// Sets the BTH's congestion bits.
    #[inline]
    pub fn congestion(&mut self, fecn: bool, becn: bool) -> &mut Self {
        if let Some(bth) = self.bth_mut() {
            bth.set_congestion(fecn, becn);
        }
        self
    }

    /// Makes every receiver drop the packet: for a payload that turned out to be lost after the room in the
    /// [`TxQueue`](super::TxQueue) was reserved, as reserved room is sent. The payload becomes zeros.
    #[cold]
    pub fn make_void(&mut self) {
        self.payload_mut().fill(0);
        if let Some(bth) = self.bth_mut() {
            bth.set_void();
        }
    }

    /// The payload, with the length passed to `build`.
    #[inline(always)]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let at = usize::from(self.bth_at) + usize::from(self.info.header_len);
        &mut self.frame[at..at + self.payload_len as usize]
    }

    /// Leaves the ICRC to the transmit queue, after `finish`.
    #[inline]
    pub(crate) fn sealed_later(mut self, later: bool) -> Self {
        self.sealed_later = later;
        self
    }

    /// Writes the ICRC.
    #[inline]
    pub fn finish(self) {
        debug_assert!(self.missing.is_empty(), "not written: {:?}", self.missing);
        if !self.sealed_later {
            self.seal.apply(self.frame);
        }
    }

    /// As [`finish`](Self::finish) when the ICRC is known, unless it is `None`.
    #[inline(always)]
    pub(crate) fn finish_with(self, icrc: Option<u32>) {
        match icrc {
            Some(icrc) => {
                debug_assert!(self.missing.is_empty(), "not written: {:?}", self.missing);
                if let Some(stored) = self.frame.last_chunk_mut::<ICRC_LEN>() {
                    *stored = icrc.to_le_bytes();
                }
            }
            None => self.finish(),
        }
    }
}
