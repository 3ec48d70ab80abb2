//! The path between a queue pair and its peer.

use crate::wire::{
    AckTemplate, AddressPair, AtomicAckIcrc, BthFields, BthOpcode, DEFAULT_PKEY, HeaderTemplate, MacAddr, Opcode,
    PacketBuilder, Path, PathMtu, PortId, Psn, ReadRequestIcrc, RocePacket, Syndrome, TxQueue,
};

use super::context::{begin_bare_packet, begin_packet};
use super::{Qpn, RemoteAddr, TransportStats};

/// The peer and the path to it: known from RTR on.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) template: HeaderTemplate,
    pub(super) acks: AckTemplate,
    read_requests: ReadRequestIcrc,
    atomic_acks: AtomicAckIcrc,
    /// Source and destination address of the peer's packets.
    from_peer: AddressPair,
    pub(super) dest_qpn: Qpn,
    pub(super) path_mtu: PathMtu,
    /// For queries and changes; the data path uses the template.
    pub(super) path: Box<Path>,
}

impl Link {
    pub(super) fn new(path: Path, dest_qpn: Qpn, path_mtu: PathMtu) -> Link {
        let template = HeaderTemplate::new(&path);
        Link {
            acks: AckTemplate::new(&template, dest_qpn.get()),
            read_requests: ReadRequestIcrc::new(&template, dest_qpn.get()),
            atomic_acks: AtomicAckIcrc::new(&template, dest_qpn.get()),
            template,
            from_peer: AddressPair::new(path.dst, path.src),
            dest_qpn,
            path_mtu,
            path: Box::new(path),
        }
    }

    /// Whether a packet came along this path, in the other direction. MAC addresses and the UDP source port may differ:
    /// routes change, and peers are free to choose the port.
    #[inline]
    pub(super) fn leads_here(&self, port: PortId, packet: &RocePacket<'_>) -> bool {
        // compliance.md [PKT-ADDRESS]: A packet of a connection comes from the peer's address to ours, by the
        // connection's port.
        packet.is_between(&self.from_peer) && port == self.template.port()
    }

    /// Changes the next hop.
    pub(super) fn set_dst_mac(&mut self, mac: MacAddr) {
        self.path.dst_mac = mac;
        self.template = HeaderTemplate::new(&self.path);
        self.acks = AckTemplate::new(&self.template, self.dest_qpn.get());
    }

    /// Begins a packet to the peer; `None` when `tx` has no room.
    // Inlined: most callers pass a constant opcode, which makes most of the headers constant.
    #[inline(always)]
    pub(super) fn begin<'t>(
        &self,
        tx: &'t mut impl TxQueue,
        stats: &TransportStats,
        opcode: BthOpcode,
        psn: Psn,
        flags: Flags,
        payload_len: usize,
    ) -> Option<PacketBuilder<'t>> {
        begin_packet(tx, stats, &self.template, self.fields(opcode, psn, flags), payload_len)
    }

    /// Writes the request for a READ of `len` bytes; false when `tx` has no room.
    #[inline(always)]
    pub(super) fn write_read_request(
        &self,
        tx: &mut impl TxQueue,
        stats: &TransportStats,
        psn: Psn,
        remote: RemoteAddr,
        len: u32,
    ) -> bool {
        let flags = Flags { solicited: false, ack_req: true };
        let fields = self.fields(BthOpcode::rc(Opcode::ReadRequest), psn, flags);
        let Some(mut packet) = begin_bare_packet(tx, stats, &self.template, fields) else { return false };
        packet.reth(remote.addr, remote.rkey, len);
        packet.finish_with(self.read_requests.of(psn, remote.addr, remote.rkey, len));
        true
    }

    /// Writes the answer to an atomic; false when `tx` has no room.
    #[inline(always)]
    pub(super) fn write_atomic_ack(
        &self,
        tx: &mut impl TxQueue,
        stats: &TransportStats,
        psn: Psn,
        syndrome: Syndrome,
        msn: u32,
        original: u64,
    ) -> bool {
        let fields = self.fields(BthOpcode::rc(Opcode::AtomicAcknowledge), psn, Flags::default());
        let Some(mut packet) = begin_bare_packet(tx, stats, &self.template, fields) else { return false };
        packet.aeth(syndrome, msn).atomic_ack(original);
        packet.finish_with(self.atomic_acks.of(psn, syndrome, msn, original));
        true
    }

    #[inline(always)]
    fn fields(&self, opcode: BthOpcode, psn: Psn, flags: Flags) -> BthFields {
        BthFields {
            opcode,
            dest_qp: self.dest_qpn.get(),
            psn,
            solicited: flags.solicited,
            ack_req: flags.ack_req,
            pkey: DEFAULT_PKEY,
        }
    }
}

/// The two flags that a sender may set in the BTH.
#[derive(Clone, Copy, Default)]
pub(super) struct Flags {
    pub(super) solicited: bool,
    pub(super) ack_req: bool,
}
