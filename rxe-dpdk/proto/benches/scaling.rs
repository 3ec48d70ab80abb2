//! Two engines at the same time, one per thread, beside one alone, fed from memory: what they share is a region, whose key
//! both have from the shared table, and the machine. Prints packets per second of the responders and the ratio, two to one.
//!
//! `cargo bench -p rxe-proto --bench scaling`, on two CPUs without other load.

mod programs;

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use programs::{Program, SharedRegion, TestEnv, Work};
use rxe_proto::wire::PathMtu;

/// Of one measurement, and how many there are of each kind, in turns.
const TIME: Duration = Duration::from_millis(200);
const TURNS: usize = 9;

/// Packets per second of one engine, from the time that all of them need together.
fn rate(env: &mut TestEnv) -> f64 {
    let began = Instant::now();
    let mut packets = 0;
    while began.elapsed() < TIME {
        env.round();
        let [there, back] = env.frames();
        packets += there.len().max(back.len());
    }
    packets as f64 / began.elapsed().as_secs_f64()
}

/// The rates of all engines, at the same time.
fn together(envs: &mut [TestEnv]) -> f64 {
    let start = Barrier::new(envs.len());
    thread::scope(|scope| {
        let run = |env| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                rate(env)
            })
        };
        let running: Vec<_> = envs.iter_mut().map(run).collect();
        running.into_iter().map(|engine| engine.join().unwrap_or(0.0)).sum()
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    println!("packets/s           one engine     two engines  ratio");
    for (name, program) in [
        ("64 B WRITE", Program::small(Work::Write, 64)),
        ("64 B READ", Program::small(Work::Read, 64)),
        ("64 B SEND", Program::small(Work::Send, 64)),
        ("64 KiB WRITE", Program::large(Work::Write, 64 << 10, PathMtu::Mtu4096)),
    ] {
        let shared = SharedRegion::new(2);
        let mut envs: Vec<TestEnv> = (0..2).map(|part| TestEnv::on(program, Some((&shared, part)))).collect();
        let (mut alone, mut both) = (Vec::new(), Vec::new());
        for turn in 0..TURNS {
            alone.push(together(&mut envs[turn % 2..][..1]));
            both.push(together(&mut envs));
        }
        let (alone, both) = (median(alone), median(both));
        println!("{name:<16} {alone:>13.0} {both:>15.0} {:>6.2}", both / alone);
    }
}
