//! Every operation, size, path MTU and loss rate between two engines: the right bytes, one completion each, in time.

use crate::harness::pair::{Link, Pair};
use crate::harness::{Agreed, Rng};
use rxe_proto::Duration;
use rxe_proto::transport::{RemoteAddr, SendOp, WcOpcode, WcStatus};
use rxe_proto::wire::{PathMtu, Psn};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Send,
    SendImm,
    SendInvalidate,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
}

impl Op {
    const ALL: [Op; 8] =
        [Op::Send, Op::SendImm, Op::SendInvalidate, Op::Write, Op::WriteImm, Op::Read, Op::CompareSwap, Op::FetchAdd];

    fn receives(self) -> bool {
        matches!(self, Op::Send | Op::SendImm | Op::SendInvalidate | Op::WriteImm)
    }

    fn is_atomic(self) -> bool {
        matches!(self, Op::CompareSwap | Op::FetchAdd)
    }
}

const LARGEST: usize = 1 << 20;
/// Where the source begins, and where the destination does, in the region of either end.
const SRC: usize = 64;
const DST: usize = SRC + LARGEST + 64;
const MEMORY: usize = DST + LARGEST + 64;

/// One operation of `len` bytes. Returns how long it took.
fn run(pair: &mut Pair, op: Op, len: usize) -> Duration {
    let [_, b] = &mut pair.nodes;
    let remote = |offset: usize| RemoteAddr { addr: b.region.addr() + offset as u64, rkey: b.region.rkey() };
    let imm = 0xCAFE_0000 | len as u32;
    // The expected bytes afterwards, on the end that receives them; and nothing behind them.
    let (from, to) = if op == Op::Read || op.is_atomic() { (1, 0) } else { (0, 1) };
    let before = 0x0102_0304_0506_0708_u64.wrapping_add(len as u64);
    let mut invalidated = None;
    let (send_op, local, opcode) = match op {
        Op::Send => (SendOp::Send { imm: None }, SRC, WcOpcode::Send),
        Op::SendImm => (SendOp::Send { imm: Some(imm) }, SRC, WcOpcode::Send),
        Op::SendInvalidate => {
            let rkey = b.fast_region(8);
            invalidated = Some(rkey);
            (SendOp::SendInvalidate { rkey }, SRC, WcOpcode::Send)
        }
        Op::Write => (SendOp::Write { remote: remote(DST), imm: None }, SRC, WcOpcode::RdmaWrite),
        Op::WriteImm => (SendOp::Write { remote: remote(DST), imm: Some(imm) }, SRC, WcOpcode::RdmaWrite),
        Op::Read => (SendOp::Read { remote: remote(SRC) }, DST, WcOpcode::RdmaRead),
        Op::CompareSwap => {
            (SendOp::CompareSwap { remote: remote(SRC), compare: before, swap: !before }, DST, WcOpcode::CompSwap)
        }
        Op::FetchAdd => (SendOp::FetchAdd { remote: remote(SRC), add: 3 }, DST, WcOpcode::FetchAdd),
    };
    if op.is_atomic() {
        b.write(SRC, &before.to_ne_bytes());
    }
    let expected = pair.nodes[from].read(SRC, len);
    pair.nodes[to].region.memory().fill(DST - 8, len + 16, 0xEE).unwrap();
    let [a, b] = &mut pair.nodes;
    if op.receives() {
        // A receive larger than the message, in uneven pieces.
        let third = len / 3;
        let sges = [b.sge(DST, third), b.sge(DST + third, third), b.sge(DST + 2 * third, len - 2 * third), b.sge(0, 9)];
        b.post_recv(len as u64 + 1000, &sges);
    }
    let half = len / 2;
    a.post_send(len as u64, send_op, &[a.sge(local, half), a.sge(local + half, len - half)]);

    let receives = usize::from(op.receives());
    let start = pair.now;
    pair.drive(Duration::from_secs(2), |pair| {
        !pair.nodes[0].completions.is_empty() && pair.nodes[1].completions.len() >= receives
    });
    let took = pair.now - start;
    // Whatever is still under way must change nothing.
    pair.drain(Duration::from_secs(2));

    let sent = pair.nodes[0].take_completions();
    let [wc] = sent[..] else { panic!("{op:?} {len}: {sent:?}") };
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (len as u64, WcStatus::Success, opcode), "{op:?} {len}");
    let received = pair.nodes[1].take_completions();
    assert_eq!(received.len(), receives, "{op:?} {len}: {received:?}");
    if let [wc] = received[..] {
        let opcode = if op == Op::WriteImm { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (len as u64 + 1000, WcStatus::Success, opcode));
        assert_eq!(wc.byte_len as usize, len);
        assert_eq!(wc.imm, matches!(op, Op::SendImm | Op::WriteImm).then_some(imm));
        assert_eq!(wc.invalidated_rkey, invalidated);
        assert!(invalidated.is_none_or(|key| pair.nodes[1].engine.keys().region(key).is_none()));
    }
    let mut landed = pair.nodes[to].read(DST - 8, len + 16);
    assert!(landed[..8] == [0xEE; 8] && landed[len + 8..] == [0xEE; 8], "{op:?} {len}: wrote beyond its buffer");
    landed.truncate(len + 8);
    assert!(landed[8..] == expected, "{op:?} {len}: wrong bytes");
    if op.is_atomic() {
        let after = if op == Op::CompareSwap { !before } else { before + 3 };
        assert_eq!(pair.nodes[1].read(SRC, 8), after.to_ne_bytes(), "{op:?} must happen once");
    }
    took
}

fn run_all(mtu: PathMtu, loss: u32) {
    let mut rng = Rng(u64::from(loss) << 8 | mtu.bytes() as u64);
    let mut pattern = vec![0; MEMORY];
    rng.fill(&mut pattern);
    for op in Op::ALL {
        // Near the wrap every other time.
        let mut psn = || {
            let low = rng.next() as u32;
            Psn::new(if low & 1 == 0 { low >> 1 } else { 0xFF_FFFF - (low >> 1) % 300 })
        };
        let agreed = Agreed { mtu, sq_psn: psn(), rq_psn: psn(), ..Agreed::default() };
        let link = Link { loss, ..Link::default() };
        let mut pair = Pair::new(rng.next(), &agreed, 16, MEMORY, link);
        for node in &pair.nodes {
            node.write(0, &pattern);
        }
        let mtu = mtu.bytes();
        let sizes = [0, 1, 3, 4, mtu - 1, mtu, mtu + 1, 64 << 10, LARGEST];
        let sizes = if op.is_atomic() { &[8; 50][..] } else { &sizes[..] };
        let took: Duration = sizes.iter().map(|&len| run(&mut pair, op, len)).sum();
        println!("mtu {mtu} loss {loss} ppm {op:?}: {took:?}, {} frames", pair.frames);
        if loss == 0 {
            for node in &pair.nodes {
                for name in ["timeouts", "duplicate_request", "rcvd_seq_err", "implied_naks", "read_gaps"] {
                    assert_eq!(node.stat(name), 0, "{name} without loss");
                }
            }
        }
    }
}

macro_rules! matrix {
    ($($name:ident: $mtu:ident, $loss:literal;)*) => {
        $(#[test]
        fn $name() {
            run_all(PathMtu::$mtu, $loss);
        })*
    };
}

matrix! {
    mtu_256_no_loss: Mtu256, 0;
    mtu_256_loss_1: Mtu256, 10_000;
    mtu_256_loss_10: Mtu256, 100_000;
    mtu_512_no_loss: Mtu512, 0;
    mtu_512_loss_1: Mtu512, 10_000;
    mtu_512_loss_10: Mtu512, 100_000;
    mtu_1024_no_loss: Mtu1024, 0;
    mtu_1024_loss_1: Mtu1024, 10_000;
    mtu_1024_loss_10: Mtu1024, 100_000;
    mtu_2048_no_loss: Mtu2048, 0;
    mtu_2048_loss_1: Mtu2048, 10_000;
    mtu_2048_loss_10: Mtu2048, 100_000;
    mtu_4096_no_loss: Mtu4096, 0;
    mtu_4096_loss_1: Mtu4096, 10_000;
    mtu_4096_loss_10: Mtu4096, 100_000;
}

/// The link may do everything at once.
#[test]
fn all_faults_together() {
    for mtu in PathMtu::ALL {
        for seed in 0..3 {
            let agreed = Agreed { mtu, sq_psn: Psn::new(0xFF_FFF0), rq_psn: Psn::new(5), ..Agreed::default() };
            let link = Link { loss: 20_000, duplicate: 50_000, reorder: 50_000, corrupt: 10_000, ..Link::default() };
            let mut pair = Pair::new(seed, &agreed, 16, MEMORY, link);
            for op in Op::ALL {
                let sizes = [0, 5, 3 * mtu.bytes() + 7, 64 << 10];
                for &len in if op.is_atomic() { &[8][..] } else { &sizes[..] } {
                    run(&mut pair, op, len);
                }
            }
        }
    }
}
