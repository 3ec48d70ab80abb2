//! The connection manager: the cost of a connection on the passive side, from REQ to REP, and from REQ to the end.

#[allow(dead_code, reason = "a part of it is used here")]
#[path = "../tests/it/cm_support/mod.rs"]
mod cm_support;

use std::time::{Duration, Instant};

use cm_support::{SERVER_QPN, Target, accept_params, dreq, mad_of, ms, path, req, rtu};
use criterion::{Criterion, criterion_group, criterion_main};
use rxe_proto::cm::{CmEvent, ConnId};
use rxe_proto::wire::cm::{CmMessage, Req};

/// Connections of a round.
const CONNECTIONS: u32 = 64;

fn reqs() -> Vec<CmMessage> {
    (1..=CONNECTIONS).map(|number| CmMessage::Req(Req { local_qpn: 0x100 + number, ..req(number) })).collect()
}

/// REQ in, event, accept, REP out.
fn grant(target: &mut Target, mad: &[u8]) -> ConnId {
    target.cm.handle_mad(target.now, &path(), mad, &target.local).unwrap();
    let Some(CmEvent::ConnectRequest(request)) = target.cm.poll_event() else { panic!("no request") };
    target.cm.accept(target.now, request.conn, accept_params()).unwrap();
    target.cm.poll_transmit().unwrap();
    request.conn
}

/// RTU and DREQ in, DREP out.
fn end(target: &mut Target, client: u32, conn: ConnId) {
    for message in [rtu(client, conn.comm_id()), dreq(client, conn.comm_id(), SERVER_QPN)] {
        target.feed(&message).unwrap();
        target.cm.poll_event().unwrap();
    }
    target.cm.poll_transmit().unwrap();
}

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("CM");
    let mads: Vec<_> = reqs().iter().map(|req| mad_of(req, 7)).collect();
    for (name, to_the_end) in [("REQ to REP", false), ("REQ to DREP", true)] {
        let mut target = Target::default();
        group.bench_function(name, |b| {
            b.iter_custom(|connections| {
                let (mut time, mut done) = (Duration::ZERO, 0);
                while done < connections {
                    let began = Instant::now();
                    let conns: Vec<_> = mads.iter().map(|mad| grant(&mut target, mad)).collect();
                    let granted = began.elapsed();
                    for (client, conn) in (1..).zip(conns) {
                        end(&mut target, client, conn);
                    }
                    time += if to_the_end { began.elapsed() } else { granted };
                    done += u64::from(CONNECTIONS);
                    // Timewait passes.
                    target.advance(ms(10_000));
                    assert!(target.cm.is_empty());
                }
                time.mul_f64(connections as f64 / done as f64)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
