//! Writes a parsed packet again from its parts, through the API that the protocol itself uses.

use rxe_proto::wire::{BthFields, Checksum, HeaderTemplate, Path, PortId, RocePacket, icrc};

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

/// The packet again, along `path`, with the IPv4 identification that it has. Ours have none.
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
    let mut builder = template.build(&mut frame, fields, payload.len());
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
    if path.is_ipv4() {
        let ip_at = template.path_len() - 28;
        set_identification(&mut frame[ip_at..], packet.ip_id());
    }
    frame
}

/// Gives an IPv4 packet of ours, which has identification 0, another one, as peers that count them write it.
pub fn set_identification(ip: &mut [u8], id: u16) {
    assert_eq!(ip[4..6], [0, 0], "a packet of ours has an identification");
    ip[4..6].copy_from_slice(&id.to_be_bytes());
    ip[10..12].fill(0);
    let checksum = Checksum::default().with(&ip[..20]).finish();
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let (covered, stored) = ip.split_at_mut(ip.len() - 4);
    stored.copy_from_slice(&icrc(covered, true).to_le_bytes());
}
