//! Random programs between two engines over a bad link: both ends post at the same time, everything completes once and
//! in order, and memory ends up as if the link had been perfect.

mod harness;

use harness::pair::{Link, Pair};
use harness::{Agreed, Node, Rng};
use proptest::prelude::*;
use rxe_proto::Duration;
use rxe_proto::transport::{RemoteAddr, SendFlags, SendOp, WcStatus};
use rxe_proto::wire::{PathMtu, Psn};

/// A step of one end.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send { len: usize, imm: bool },
    Write { len: usize, imm: bool },
    Read { len: usize },
    FetchAdd { add: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    step: Step,
    signaled: bool,
    fence: bool,
    /// How many buffers the message is cut into.
    cuts: usize,
}

#[derive(Clone, Debug)]
struct Program {
    seed: u64,
    mtu: PathMtu,
    psn: [u32; 2],
    rd_atomic: u8,
    loss: u32,
    duplicate: u32,
    reorder: u32,
    corrupt: u32,
    /// Receives are posted late.
    lazy: bool,
    steps: [Vec<Posted>; 2],
}

fn step() -> impl Strategy<Value = Posted> {
    let len = || prop_oneof![Just(0), 1..40usize, 200..5000usize];
    let step = prop_oneof![
        (len(), any::<bool>()).prop_map(|(len, imm)| Step::Send { len, imm }),
        (len(), any::<bool>()).prop_map(|(len, imm)| Step::Write { len, imm }),
        len().prop_map(|len| Step::Read { len }),
        any::<u32>().prop_map(|add| Step::FetchAdd { add }),
    ];
    (step, any::<bool>(), prop::bool::weighted(0.2), 1..5usize).prop_map(|(step, signaled, fence, cuts)| Posted {
        step,
        signaled,
        fence,
        cuts,
    })
}

fn program() -> impl Strategy<Value = Program> {
    let psn = || prop_oneof![0..0x100_0000u32, 0xFF_FF00..0x100_0000u32];
    let ppm = || prop_oneof![Just(0), 0..100_000u32];
    let steps = || prop::collection::vec(step(), 0..24);
    (
        any::<u64>(),
        prop::sample::select(&PathMtu::ALL[..3]),
        [psn(), psn()],
        1..9u8,
        (ppm(), ppm(), ppm(), 0..20_000u32),
        any::<bool>(),
        [steps(), steps()],
    )
        .prop_map(|(seed, mtu, psn, rd_atomic, (loss, duplicate, reorder, corrupt), lazy, steps)| Program {
            seed,
            mtu,
            psn,
            rd_atomic,
            loss,
            duplicate,
            reorder,
            corrupt,
            lazy,
            steps,
        })
}

/// Each step has a place of its own: sources and landing places in the poster's region, and the same in the peer's.
const PLACE: usize = 8192;
const STEPS: usize = 24;
const SOURCE: [usize; 2] = [0, STEPS * PLACE];
const LANDING: usize = 2 * STEPS * PLACE;
const RECEIVES: usize = 3 * STEPS * PLACE;
const COUNTER: usize = 4 * STEPS * PLACE;
const MEMORY: usize = COUNTER + 64;

fn cut(node: &Node, offset: usize, len: usize, cuts: usize) -> Vec<rxe_proto::transport::Sge> {
    let piece = len / cuts;
    (0..cuts).map(|i| node.sge(offset + i * piece, if i + 1 == cuts { len - i * piece } else { piece })).collect()
}

fn takes_receive(step: Step) -> bool {
    matches!(step, Step::Send { .. } | Step::Write { imm: true, .. })
}

fn run(program: &Program) {
    let agreed = Agreed {
        mtu: program.mtu,
        sq_psn: Psn::new(program.psn[0]),
        rq_psn: Psn::new(program.psn[1]),
        rd_atomic: program.rd_atomic,
        ..Agreed::default()
    };
    let link = Link {
        loss: program.loss,
        duplicate: program.duplicate,
        reorder: program.reorder,
        corrupt: program.corrupt,
        ..Link::default()
    };
    let mut pair = Pair::new(program.seed, &agreed, 32, MEMORY, link);
    let mut rng = Rng(program.seed ^ 1);
    let mut pattern = vec![0; 2 * STEPS * PLACE];
    for node in &pair.nodes {
        rng.fill(&mut pattern);
        node.write(0, &pattern);
    }
    if !program.lazy {
        post_receives(&mut pair, program);
    }
    for end in 0..2 {
        for (i, posted) in program.steps[end].iter().enumerate() {
            post(&mut pair, end, i, *posted);
        }
    }
    if program.lazy {
        for _ in 0..50 {
            pair.step();
        }
        post_receives(&mut pair, program);
    }
    pair.drain(Duration::from_secs(20));
    for end in 0..2 {
        check(&mut pair, program, end);
    }
}

fn post_receives(pair: &mut Pair, program: &Program) {
    for end in 0..2 {
        let receives = program.steps[1 - end].iter().filter(|posted| takes_receive(posted.step)).count();
        for i in 0..receives {
            let sges = cut(&pair.nodes[end], RECEIVES + i * PLACE, PLACE, 1 + i % 3);
            pair.nodes[end].post_recv(1000 + i as u64, &sges);
        }
    }
}

fn post(pair: &mut Pair, end: usize, i: usize, posted: Posted) {
    let peer = &pair.nodes[1 - end].region;
    // What this end sends comes from its first half, what is read from it from the second.
    let remote = |offset: usize| RemoteAddr { addr: peer.addr() + offset as u64, rkey: peer.rkey() };
    let place = i * PLACE;
    let (op, offset, len) = match posted.step {
        Step::Send { len, imm } => (SendOp::Send { imm: imm.then_some(i as u32) }, SOURCE[0] + place, len),
        Step::Write { len, imm } => {
            let remote = remote(LANDING + place + PLACE / 2);
            (SendOp::Write { remote, imm: imm.then_some(i as u32) }, SOURCE[0] + place, len.min(PLACE / 2))
        }
        Step::Read { len } => (SendOp::Read { remote: remote(SOURCE[1] + place) }, LANDING + place, len.min(PLACE / 2)),
        Step::FetchAdd { add } => {
            (SendOp::FetchAdd { remote: remote(COUNTER), add: u64::from(add) }, LANDING + place, 8)
        }
    };
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::SIGNALED, posted.signaled);
    flags.set(SendFlags::FENCE, posted.fence);
    let node = &mut pair.nodes[end];
    let cuts = if len == 8 { 1 } else { posted.cuts };
    let sges = cut(node, offset, len, cuts);
    node.post_flags(i as u64, op, &sges, flags);
}

/// What `end` posted has happened, exactly once and in order.
fn check(pair: &mut Pair, program: &Program, end: usize) {
    let completions = pair.nodes[end].take_completions();
    assert!(completions.iter().all(|wc| wc.status == WcStatus::Success), "{completions:?}");
    let sent: Vec<u64> = completions.iter().map(|wc| wc.wr_id).filter(|&id| id < 1000).collect();
    let steps = &program.steps[end];
    let signaled: Vec<u64> = (0..).zip(steps).filter(|(_, posted)| posted.signaled).map(|(i, _)| i).collect();
    assert_eq!(sent, signaled);
    let received: Vec<_> = completions.into_iter().filter(|wc| wc.wr_id >= 1000).collect();
    let theirs = &program.steps[1 - end];
    let expected: Vec<(usize, Step)> =
        theirs.iter().map(|posted| posted.step).enumerate().filter(|(_, step)| takes_receive(*step)).collect();
    assert_eq!(received.len(), expected.len());
    let [ours, peer] = [&pair.nodes[end], &pair.nodes[1 - end]];
    for (n, (wc, (i, step))) in received.iter().zip(expected).enumerate() {
        assert_eq!(wc.wr_id, 1000 + n as u64);
        let (len, imm) = match step {
            Step::Send { len, imm } => {
                assert_eq!(ours.read(RECEIVES + n * PLACE, len), peer.read(SOURCE[0] + i * PLACE, len));
                (len, imm)
            }
            Step::Write { len, .. } => (len.min(PLACE / 2), true),
            _ => unreachable!(),
        };
        assert_eq!((wc.byte_len as usize, wc.imm), (len, imm.then_some(i as u32)));
    }
    let mut sum = 0u64;
    for (i, posted) in steps.iter().enumerate() {
        let place = i * PLACE;
        match posted.step {
            Step::Send { .. } => {}
            Step::Write { len, .. } => {
                let len = len.min(PLACE / 2);
                let landed = peer.read(LANDING + place + PLACE / 2, len);
                assert_eq!(landed, ours.read(SOURCE[0] + place, len));
            }
            Step::Read { len } => {
                let len = len.min(PLACE / 2);
                assert_eq!(ours.read(LANDING + place, len), peer.read(SOURCE[1] + place, len));
            }
            // Each returns the sum of those before it.
            Step::FetchAdd { add } => {
                assert_eq!(ours.read(LANDING + place, 8), sum.to_ne_bytes());
                sum += u64::from(add);
            }
        }
    }
    assert_eq!(peer.read(COUNTER, 8), sum.to_ne_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_end_as_on_a_perfect_link(program in program()) {
        run(&program);
    }
}
