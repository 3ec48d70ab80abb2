//! Queue pair 1: reading MADs from packets, and writing MADs as frames.

use super::MadPath;
use super::path::is_host;
use crate::transport::Qpn;
use crate::wire::mad::{GSI_QKEY, MAD_LEN};
use crate::wire::{
    BthFields, BthOpcode, DEFAULT_PKEY, DropReason, HeaderTemplate, Opcode, Path, PortId, Psn, RocePacket, Transport,
    TxQueue, udp_source_port_ud,
};

/// The longest frame that [`write_mad`] writes: Ethernet with a VLAN tag, IPv6, UDP, BTH, DETH, MAD, ICRC.
pub const MAD_FRAME_LEN_MAX: usize = 14 + 4 + 40 + 8 + 12 + 8 + MAD_LEN + 4;

/// Hop limit of our MADs.
const HOP_LIMIT: u8 = 64;

/// The UDP source port of MADs, for hosts that can send from any port.
pub const GSI_UDP_SRC_PORT: u16 = udp_source_port_ud(Qpn::GSI.get());

/// The MAD in a packet to queue pair 1, and its path. The caller has verified the ICRC.
///
/// PSN, solicited, migration and ACK request bits are ignored; so is the source queue pair, since answers always go to
/// queue pair 1.
///
/// # Errors
///
/// Why the packet is not for queue pair 1, or [`DropReason::MadMalformed`] when it does not hold 256 bytes.
pub fn read_mad<'a>(port: PortId, packet: &RocePacket<'a>) -> Result<(MadPath, &'a [u8]), DropReason> {
    if packet.dest_qp() != Qpn::GSI.get() {
        return Err(DropReason::QpnUnknown);
    }
    if packet.transport() != Transport::Ud || packet.opcode() != Opcode::SendOnly {
        return Err(DropReason::QpWrongTransport);
    }
    // The answer needs the same IP version and a single host.
    let (local, peer) = (packet.dst_gid(), packet.src_gid());
    if peer.is_ipv4() != packet.is_ipv4() || local.is_ipv4() != packet.is_ipv4() || !is_host(peer.ip()) {
        return Err(DropReason::GsiSource);
    }
    if peer.ip().is_loopback() && !local.ip().is_loopback() {
        return Err(DropReason::GsiSource);
    }
    // Full and limited members of the default partition.
    if packet.bth().pkey() & 0x7FFF != DEFAULT_PKEY & 0x7FFF {
        return Err(DropReason::PkeyMismatch);
    }
    if packet.deth().is_none_or(|deth| deth.qkey() != GSI_QKEY) {
        return Err(DropReason::QkeyMismatch);
    }
    // compliance.md [CM-QP1]: Queue pair 1 accepts UD SEND_ONLY of the default partition with the well-known Q_Key and
    // exactly 256 bytes.
    if packet.payload().len() != MAD_LEN {
        return Err(DropReason::MadMalformed);
    }
    let path = MadPath {
        port,
        local_mac: packet.dst_mac(),
        peer_mac: packet.src_mac(),
        vlan: packet.vlan(),
        local,
        peer,
        traffic_class: packet.traffic_class(),
    };
    Ok((path, packet.payload()))
}

/// Writes a MAD as a frame to the peer's queue pair 1, from UDP port `udp_src_port`: [`GSI_UDP_SRC_PORT`], or the port of
/// the host's socket. `psn` is a counter of the caller's for all packets of queue pair 1. False when `tx` has no room:
/// nothing was written.
///
/// A MAD is exactly 256 bytes by its type; Linux peers never recover from a longer one.
#[must_use]
pub fn write_mad(tx: &mut impl TxQueue, path: &MadPath, udp_src_port: u16, psn: Psn, mad: &[u8; MAD_LEN]) -> bool {
    let template = HeaderTemplate::new(&Path {
        port: path.port,
        src_mac: path.local_mac,
        dst_mac: path.peer_mac,
        vlan: path.vlan,
        src: path.local,
        dst: path.peer,
        udp_src_port,
        traffic_class: path.traffic_class,
        flow_label: 0,
        hop_limit: HOP_LIMIT,
    });
    let opcode = BthOpcode::ud(Opcode::SendOnly);
    let Some(frame) = tx.push(path.port, template.frame_len(opcode, MAD_LEN)) else { return false };
    let fields =
        BthFields { opcode, dest_qp: Qpn::GSI.get(), psn, solicited: false, ack_req: false, pkey: DEFAULT_PKEY };
    let mut packet = template.build(frame, fields, MAD_LEN);
    packet.deth(GSI_QKEY, Qpn::GSI.get());
    packet.payload_mut().copy_from_slice(mad);
    packet.finish();
    true
}
