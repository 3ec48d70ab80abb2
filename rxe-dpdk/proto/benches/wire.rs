//! The cost of parsing a frame (`classify`, without the ICRC) and of writing one, payload and ICRC included.

use std::hint::black_box;
use std::net::IpAddr;

use criterion::{Criterion, criterion_group, criterion_main};
use rxe_proto::wire::{
    AckTemplate, BthFields, BthOpcode, DEFAULT_PKEY, Frame, Gid, HeaderTemplate, MacAddr, Opcode, Path, PortId, Psn,
    Syndrome, classify,
};

fn path(src: &str, dst: &str, vlan: Option<u16>) -> Path {
    Path {
        port: PortId(0),
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan,
        src: Gid::from(src.parse::<IpAddr>().unwrap()),
        dst: Gid::from(dst.parse::<IpAddr>().unwrap()),
        udp_src_port: 0xC121,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
    }
}

fn fields(op: Opcode) -> BthFields {
    let opcode = BthOpcode::rc(op);
    BthFields { opcode, dest_qp: 0x11, psn: Psn::new(7), solicited: false, ack_req: true, pkey: DEFAULT_PKEY }
}

fn build_ack(template: &HeaderTemplate, frame: &mut [u8]) {
    let mut builder = template.build(frame, fields(Opcode::Acknowledge), 0);
    builder.aeth(Syndrome::ACK, 1);
    builder.finish();
}

fn build_write(template: &HeaderTemplate, frame: &mut [u8], payload: &[u8]) {
    let mut builder = template.build(frame, fields(Opcode::WriteOnly), payload.len());
    builder.reth(0x1_0000, 0x77, payload.len() as u32).payload_mut().copy_from_slice(payload);
    builder.finish();
}

fn bench(c: &mut Criterion) {
    let v4 = HeaderTemplate::new(&path("10.77.0.2", "10.77.0.1", None));
    let v6 = HeaderTemplate::new(&path("fd00:77::2", "fd00:77::1", None));
    let tagged = HeaderTemplate::new(&path("10.77.0.2", "10.77.0.1", Some(100)));

    let mut group = c.benchmark_group("classify");
    for (name, template) in [("IPv4", &v4), ("IPv6", &v6), ("IPv4, VLAN", &tagged)] {
        let mut write = vec![0; template.frame_len(BthOpcode::rc(Opcode::WriteOnly), 64)];
        build_write(template, &mut write, &[0x5A; 64]);
        assert!(matches!(classify(&write), Ok(Frame::Roce(packet)) if packet.icrc_ok()));
        group.bench_function(format!("64 B WRITE, {name}"), |b| b.iter(|| classify(black_box(&write))));
    }
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert!(matches!(classify(&arp), Ok(Frame::Host)));
    group.bench_function("ARP", |b| b.iter(|| classify(black_box(&arp)).is_ok()));
    group.finish();

    let mut group = c.benchmark_group("build");
    for len in [0, 64, 1024, 4096] {
        let payload = vec![0x5A; len];
        let op = BthOpcode::rc(if len == 0 { Opcode::Acknowledge } else { Opcode::WriteOnly });
        // One after the other, as from a pool: the ICRC has to wait for what was just written.
        let mut frames = vec![vec![0u8; v4.frame_len(op, len)]; 32];
        let mut next = 0;
        let name = if len == 0 { "ACK".to_owned() } else { format!("{len} B WRITE") };
        group.bench_function(name, |b| {
            b.iter(|| {
                let frame = black_box(&mut frames[next]);
                if len == 0 {
                    build_ack(&v4, frame)
                } else {
                    build_write(&v4, frame, &payload)
                }
                next = (next + 1) % 32;
            });
        });
    }
    let acks = AckTemplate::new(&v4, 0x11);
    let mut frames = vec![vec![0u8; acks.frame_len()]; 32];
    let mut next = 0;
    group.bench_function("ACK from its template", |b| {
        b.iter(|| {
            acks.write(black_box(&mut frames[next]), Psn::new(next as u32), Syndrome::ACK, 1);
            next = (next + 1) % 32;
        });
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
