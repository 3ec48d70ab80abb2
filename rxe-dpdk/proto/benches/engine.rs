//! Nanoseconds per packet of the pure layers, from frame in memory to frame in memory, ICRC included: `classify`,
//! `Engine::receive` and `Engine::transmit` in bursts of 32. Only the named side is measured.
//!
//! "responder" is per request, with the replies included; "requester" is per packet written, with the handling of
//! responses included.

mod programs;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use programs::{Program, TestEnv, Work};
use rxe_proto::wire::PathMtu;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Responder,
    Requester,
}

/// The time that `side` takes for one round, and how many packets it is for.
fn timed_round(env: &mut TestEnv, side: Side) -> (Duration, usize) {
    let began = Instant::now();
    env.request();
    let requested = began.elapsed();
    let packets = env.frames()[0].len();
    let began = Instant::now();
    env.respond();
    let responded = began.elapsed();
    let responses = env.frames()[1].len();
    let began = Instant::now();
    env.complete();
    let completed = began.elapsed();
    match side {
        // For one READ request many responses are written.
        Side::Responder => (responded, packets.max(responses)),
        Side::Requester => (requested + completed, packets.max(responses)),
    }
}

fn bench(c: &mut Criterion) {
    let mut add = |side: Side, name: &str, program: Program| {
        let mut group = c.benchmark_group(if side == Side::Responder { "responder" } else { "requester" });
        group.throughput(Throughput::Elements(1));
        let mut env = TestEnv::new(program);
        group.bench_function(name, |b| {
            b.iter_custom(|packets| {
                let (mut time, mut done) = (Duration::ZERO, 0);
                while done < packets {
                    let (round, packets) = timed_round(&mut env, side);
                    time += round;
                    done += packets as u64;
                }
                time.mul_f64(packets as f64 / done as f64)
            });
        });
    };
    for side in [Side::Responder, Side::Requester] {
        add(side, "64 B WRITE", Program::small(Work::Write, 64));
        add(side, "64 B READ", Program::small(Work::Read, 64));
        add(side, "64 B SEND", Program::small(Work::Send, 64));
        add(side, "8 B FETCH_ADD", Program::small(Work::FetchAdd, 8));
        for mtu in [PathMtu::Mtu1024, PathMtu::Mtu4096] {
            let packets = format!("in packets of {}", mtu.bytes());
            add(side, &format!("64 KiB WRITE {packets}"), Program::large(Work::Write, 64 << 10, mtu));
            add(side, &format!("64 KiB READ {packets}"), Program::large(Work::Read, 64 << 10, mtu));
        }
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
