//! Random programs between two engines over a bad link: how they are generated, executed and checked.

pub mod check;
pub mod plan;
pub mod test_env;

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use rxe_proto::Duration;
use rxe_proto::transport::{CongestionControl, QpType};

use plan::{Program, RecvTiming, SETTLING};
use test_env::{TIMEOUT_TIME, TestEnv};

/// Programs that `make test` runs, of all kinds together, and that a nightly run does.
const PROGRAMS: u32 = 2_000;
const NIGHTLY: u32 = 100_000;

/// Counters that a run of programs must have counted, else it has proved nothing: their sums over all ends may not be zero.
pub type Must = &'static [&'static str];

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// Runs this kind's share of the programs, one of `kinds`. `RXE_PROGRAMS` says how many programs there are in all,
/// `RXE_SEED` which ones.
pub fn run(name: &str, kinds: u32, types: &'static [QpType], must: Must) {
    let nightly = std::env::var_os("RXE_NIGHTLY").is_some_and(|value| !value.is_empty());
    let programs = variable("RXE_PROGRAMS").map_or(if nightly { NIGHTLY } else { PROGRAMS }, |n| n as u32);
    // Every night others.
    let fresh = || if nightly { RandomState::new().build_hasher().finish() } else { 1 };
    let seed = variable("RXE_SEED").unwrap_or_else(fresh);
    let cases = programs / kinds;
    println!("{name}: {cases} programs, RXE_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8] = types.len() as u8;
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let met = Met { slowest: Cell::default(), counts: must.iter().map(|_| Cell::new(0)).collect() };
    let outcome = runner.run(&plan::program(types), |program| {
        judge(&program, must, &met);
        Ok::<(), TestCaseError>(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, program)) => panic!("{name}, RXE_SEED={seed}: {why}\nsmallest program: {program:?}"),
        Err(TestError::Abort(why)) => panic!("{name}, RXE_SEED={seed}: aborted: {why}"),
    }
    let (share, took) = met.slowest.get();
    println!("{name}: slowest {took:?} of virtual time, {:.0} % of its bound", share * 100.0);
    for (counter, count) in must.iter().zip(&met.counts) {
        println!("{name}: {counter} {}", count.get());
        assert!(count.get() > 0 || cases < 200, "{counter} never happened");
    }
}

struct Met {
    /// The program that took the largest share of the time that it may take: the share, and how long it took.
    slowest: Cell<(f64, Duration)>,
    counts: Vec<Cell<u64>>,
}

fn judge(program: &Program, must: Must, met: &Met) {
    let mut env = TestEnv::new(program);
    let took = env.run(program);
    let bound = bound(program, &env);
    assert!(took <= bound, "took {took:?}, more than {bound:?}");
    let share = took.as_secs_f64() / bound.as_secs_f64();
    if share > met.slowest.get().0 {
        met.slowest.set((share, took));
    }
    for (name, count) in must.iter().zip(&met.counts) {
        count.set(count.get() + env.pair.nodes.iter().map(|node| node.stat(name)).sum::<u64>());
    }
    // Packets that are missing because frames changed places within one burst, or because a port refused the answer, are
    // retransmitted after an answer: no timeout is needed. But an answer may be late: of a host that pauses, or by its rate.
    let link = program.link;
    let is_prompt = link.pause == 0 && link.mark == 0;
    if link.is_lossless() && link.arrives_in_order() && link.shuffle_pause >= SETTLING && is_prompt {
        let timeouts = [0, 1].map(|end| env.pair.nodes[end].stat("timeouts"));
        assert_eq!(timeouts, [0, 0], "nothing was lost, and a requester waited for a timeout");
    }
    check::check(&mut env, program);
}

/// How long a program may take: a timeout for each frame that was lost, corrupted or overtaken, the time until all
/// receives are there, twice, the pauses of programs and hosts, the time in which ports refuse frames, what congestion control may take, a round trip for each burst whose frames
/// change places, and for each work request two round trips and its packets one by one through a narrow port.
fn bound(program: &Program, env: &TestEnv) -> Duration {
    let harmed = TIMEOUT_TIME * (env.pair.harmed + env.pair.overtaken) as u32;
    let receives = env.receives.iter().map(Vec::len).max().unwrap_or(0) as u32;
    let receives_at = match program.recv_timing {
        RecvTiming::Early => Duration::ZERO,
        RecvTiming::Late(after) => after,
        RecvTiming::Trickle(every) => every * receives,
    };
    // A requester that retries for ever doubles its wait after each RNR NAK: just before the receive is there it may have
    // begun a wait as long as all waits before.
    let receives_at = 2 * receives_at;
    let steps: usize = program.connections.iter().flat_map(|c| &c.steps).map(|steps| steps.len() + 1).sum();
    let link = program.link;
    let round_trip = 2 * (10 * link.delay + link.jitter + link.poll);
    // A retransmission that is reordered, too, may need a timeout.
    let shuffled = if link.shuffle_pause >= SETTLING { round_trip } else { TIMEOUT_TIME };
    let bursts = env.pair.refused + env.pair.shuffled as u32 * shuffled;
    let steps_of = |end: usize| program.connections.iter().flat_map(move |c| &c.steps[end]);
    // At the lowest rate, where something was marked, and with the longest wait of delay-based control for each packet.
    let rated = |end: usize| match program.ends[end].congestion {
        CongestionControl::Notifications(_) if link.mark > 0 => {
            Duration::from_nanos(800 * env.pair.nodes[end].stat("sent_bytes"))
        }
        CongestionControl::Delay(_) => env.pair.nodes[end].stat("sent_pkts") as u32 * Duration::from_millis(10),
        _ => Duration::ZERO,
    };
    let rated = rated(0) + rated(1);
    let pauses: Duration = (0..2).flat_map(steps_of).map(|step| step.pause).sum();
    // A host that pauses may be taken for lost, and what is sent again for the next pause, too.
    let paused = 2 * env.pair.paused + env.pair.pauses * 2 * TIMEOUT_TIME;
    harmed
        + receives_at
        + pauses
        + bursts
        + paused
        + rated
        + steps as u32 * (2 * round_trip + Duration::from_micros(100))
}
