//! The ICRC by size of packet and by kernel, compared with a library that is called twice: for a masked copy of
//! the headers, then for the payload.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rxe_proto::wire::{IcrcKernel, icrc};

/// RoCEv2 packets over IPv4, and the bytes that the ICRC covers.
const PACKETS: [(&str, usize); 5] = [
    ("ACK", 20 + 8 + 12 + 4),
    ("64 B WRITE", 20 + 8 + 12 + 16 + 64),
    ("256 B WRITE", 20 + 8 + 12 + 16 + 256),
    ("1 KiB WRITE", 20 + 8 + 12 + 16 + 1024),
    ("4 KiB WRITE", 20 + 8 + 12 + 16 + 4096),
];

/// Bytes in front of the frame in a DPDK buffer, and the Ethernet header.
const IP_AT: usize = 128 + 14;

/// End of the masked bytes of an IPv4 packet.
const HEADERS: usize = 20 + 8 + 12 + 16;

/// Two calls of the library for each packet; the eight bytes of ones went into `start` before.
fn library(start: &crc32fast::Hasher, packet: &[u8]) -> u32 {
    let (headers, payload) = packet.split_at(packet.len().min(HEADERS));
    let mut masked = [0; HEADERS];
    masked[..headers.len()].copy_from_slice(headers);
    for at in [1, 8, 10, 11, 26, 27, 32] {
        masked[at] = 0xFF;
    }
    let mut hasher = start.clone();
    hasher.update(&masked[..headers.len()]);
    hasher.update(payload);
    hasher.finalize()
}

fn bench(c: &mut Criterion) {
    let mut ones = crc32fast::Hasher::new();
    ones.update(&[0xFF; 8]);
    let start = crc32fast::Hasher::new_with_initial(ones.finalize());
    for (name, len) in PACKETS {
        let frame: Vec<u8> = (0..IP_AT + len).map(|i| (i * 7) as u8).collect();
        let packet = &frame[IP_AT..];
        assert_eq!(library(&start, packet), icrc(packet, true), "{name}");
        let mut group = c.benchmark_group(format!("ICRC/{name}"));
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::from_parameter("library, two calls"), |b| {
            b.iter(|| library(&start, black_box(packet)));
        });
        for kernel in IcrcKernel::all() {
            group.bench_function(BenchmarkId::from_parameter(kernel.name()), |b| {
                b.iter(|| kernel.icrc(black_box(packet), true));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
