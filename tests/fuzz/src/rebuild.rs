//! A received packet, written again from its parts.

use rxe_proto::wire::{BthFields, HeaderTemplate, Path, PortId, RocePacket, icrc};

/// The path of a received packet.
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

/// Writes the packet along its own path, with the padding and checksums of a sender of ours.
pub fn rebuild(packet: &RocePacket<'_>) -> Vec<u8> {
    rebuild_along(packet, &path(packet), packet.dest_qp())
}

/// Writes the packet along `path`, to queue pair `dest_qp`.
pub fn rebuild_along(packet: &RocePacket<'_>, path: &Path, dest_qp: u32) -> Vec<u8> {
    let template = HeaderTemplate::new(path);
    let bth = packet.bth();
    let fields = BthFields {
        opcode: packet.info().opcode,
        dest_qp,
        psn: packet.psn(),
        solicited: packet.solicited(),
        ack_req: packet.ack_req(),
        pkey: bth.pkey(),
    };
    let payload = packet.payload();
    // Two packets of different initial bytes are equal only if the builder writes every byte.
    let write = |initial: u8| {
        let mut frame = vec![initial; template.frame_len(fields.opcode, payload.len())];
        let mut builder = template.build(&mut frame, fields, payload.len());
        builder.mig_req(bth.migreq()).congestion(bth.fecn(), bth.becn());
        builder.payload_mut().copy_from_slice(payload);
        if let Some(deth) = packet.deth() {
            builder.deth(deth.qkey(), deth.src_qp());
        }
        if let Some(feth) = packet.feth() {
            builder.feth(feth.level(), feth.placement());
        }
        if let Some(reth) = packet.reth() {
            builder.reth(reth.va(), reth.rkey(), reth.dma_len());
        }
        if let Some(eth) = packet.atomic_eth() {
            builder.atomic_eth(eth.va(), eth.rkey(), eth.swap_or_add(), eth.compare());
        }
        if let Some(aeth) = packet.aeth() {
            builder.aeth(aeth.syndrome(), aeth.msn());
        }
        if let Some(original) = packet.atomic_ack() {
            builder.atomic_ack(original);
        }
        if let Some(imm) = packet.imm() {
            builder.imm(imm);
        }
        if let Some(rkey) = packet.invalidate_rkey() {
            builder.ieth(rkey);
        }
        builder.finish();
        frame
    };
    let frame = write(0);
    assert_eq!(frame, write(0xFF), "the builder leaves bytes unwritten");
    frame
}

/// Writes the ICRC of a packet, which begins with its IP header.
pub fn seal(packet: &mut [u8], is_ipv4: bool) {
    let (covered, stored) = packet.split_at_mut(packet.len() - 4);
    stored.copy_from_slice(&icrc(covered, is_ipv4).to_le_bytes());
}
