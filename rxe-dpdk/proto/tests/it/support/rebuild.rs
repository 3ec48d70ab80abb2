//! Writes a parsed packet again from its parts, through the API that the protocol itself uses.

use rxe_proto::wire::{BthFields, HeaderTemplate, Path, PortId, RocePacket};

/// The path that a packet came along, as its sender saw it.
pub fn path(packet: &RocePacket<'_>) -> Path {
    Path {
        port: PortId(0),
        src_mac: packet.src_mac(),
        dst_mac: packet.dst_mac(),
        vlan: packet.vlan(),
        src: packet.src_gid(),
        dst: packet.dst_gid(),
        udp_src_port: packet.udp_src_port(),
        traffic_class: packet.traffic_class(),
        flow_label: packet.flow_label(),
        hop_limit: packet.hop_limit(),
    }
}

/// The packet again, along `path`.
pub fn rebuild(packet: &RocePacket<'_>, path: &Path) -> Vec<u8> {
    let template = HeaderTemplate::new(path);
    let bth = packet.bth();
    let fields = BthFields {
        opcode: packet.info().opcode,
        dest_qp: packet.dest_qp(),
        psn: packet.psn(),
        solicited: packet.solicited(),
        ack_req: packet.ack_req(),
        pkey: bth.pkey(),
    };
    let payload = packet.payload();
    // Rubbish below: a byte that is not written shows up.
    let mut frame = vec![0xA5; template.frame_len(fields.opcode, payload.len())];
    let mut builder = template.build(&mut frame, packet.ip_id(), fields, payload.len());
    builder.mig_req(bth.migreq()).congestion(bth.fecn(), bth.becn());
    // Back to front, since the order of calls must not matter.
    builder.payload_mut().copy_from_slice(payload);
    if let Some(rkey) = packet.invalidate_rkey() {
        builder.ieth(rkey);
    }
    if let Some(imm) = packet.imm() {
        builder.imm(imm);
    }
    if let Some(original) = packet.atomic_ack() {
        builder.atomic_ack(original);
    }
    if let Some(aeth) = packet.aeth() {
        builder.aeth(aeth.syndrome(), aeth.msn());
    }
    if let Some(eth) = packet.atomic_eth() {
        builder.atomic_eth(eth.va(), eth.rkey(), eth.swap_or_add(), eth.compare());
    }
    if let Some(reth) = packet.reth() {
        builder.reth(reth.va(), reth.rkey(), reth.dma_len());
    }
    if let Some(feth) = packet.feth() {
        builder.feth(feth.level(), feth.placement());
    }
    if let Some(deth) = packet.deth() {
        builder.deth(deth.qkey(), deth.src_qp());
    }
    builder.finish();
    frame
}
