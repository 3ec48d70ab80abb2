//! Small windows and quanta, for a host that sends and receives by way of sockets: two ends that take turns, each with a
//! bounded buffer of received frames. What does not fit is lost.

use std::collections::VecDeque;
use std::fmt::Write;

use crate::harness::{Agreed, Node, PORT, Rng};
use rxe_proto::transport::{EngineConfig, RemoteAddr, SendOp, WcStatus};
use rxe_proto::wire::{Frame, PathMtu, TxFrames, classify};
use rxe_proto::{Duration, Instant};

const LARGEST: usize = 1 << 20;

/// What an end of a pair of sockets does in one turn.
#[derive(Clone, Copy)]
struct Turn {
    /// Frames that it takes from its buffer.
    receives: usize,
    /// Frames that its buffer holds.
    buffer: usize,
    /// Time for each frame that it takes or writes.
    per_frame: Duration,
}

struct Sockets {
    nodes: [Node; 2],
    turns: [Turn; 2],
    now: Instant,
    buffers: [VecDeque<Vec<u8>>; 2],
    /// Frames that were written, and those that did not fit, or were lost on the way.
    written: u64,
    overflowed: u64,
    loss: u32,
    rng: Rng,
}

impl Sockets {
    fn new(config: &EngineConfig, turns: [Turn; 2], loss: u32) -> Sockets {
        let agreed = Agreed { mtu: PathMtu::Mtu4096, timeout: 14, rd_atomic: 16, ..Agreed::default() };
        Sockets {
            nodes: Node::connected(config, &agreed, 128, LARGEST),
            turns,
            now: Instant::from_nanos(1_000_000),
            buffers: [VecDeque::new(), VecDeque::new()],
            written: 0,
            overflowed: 0,
            loss,
            rng: Rng(7),
        }
    }

    /// Both ends take a turn at the same time. When both are idle, time passes until a deadline.
    fn turn(&mut self) {
        let mut longest = 0;
        for end in 0..2 {
            let (node, turn) = (&mut self.nodes[end], self.turns[end]);
            let mut frames = 0;
            for _ in 0..turn.receives {
                let Some(frame) = self.buffers[end].pop_front() else { break };
                let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!("not a RoCE frame") };
                node.engine.receive(self.now, PORT, &packet);
                frames += 1;
            }
            node.engine.handle_timeout(self.now);
            let mut tx = TxFrames::default();
            node.engine.transmit(self.now, &mut tx);
            node.collect();
            frames += tx.frames.len();
            longest = longest.max(frames);
            for (_, frame) in tx.frames {
                self.written += 1;
                if self.rng.chance(self.loss) {
                    continue;
                }
                let (buffer, room) = (&mut self.buffers[1 - end], self.turns[1 - end].buffer);
                if buffer.len() < room { buffer.push_back(frame) } else { self.overflowed += 1 }
            }
        }
        self.now += self.turns[0].per_frame * longest as u32;
        if longest == 0 {
            let deadline = self.nodes.iter().filter_map(|node| node.engine.next_timeout()).min();
            self.now = self.now.max(deadline.expect("something to wait for"));
        }
    }

    /// Does `count` operations of `len` bytes, 16 at a time. Returns the payload's rate in Gb/s.
    fn run(&mut self, op: fn(RemoteAddr) -> SendOp, len: usize, count: usize) -> f64 {
        let start = self.now;
        let (mut posted, mut done) = (0, 0);
        let [a, b] = &self.nodes;
        let (remote, here, there) =
            (RemoteAddr { addr: b.region.addr(), rkey: b.region.rkey() }, a.sge(0, len), b.sge(0, len));
        for _ in 0..32 {
            self.nodes[1].post_recv(0, &[there]);
        }
        while done < count {
            while posted < count && posted - done < 16 {
                self.nodes[0].post_send(0, op(remote), &[here]);
                posted += 1;
            }
            self.turn();
            let took = self.now - start;
            assert!(took < Duration::from_secs(60), "{:?}", self.nodes[0].engine.stats());
            for wc in std::mem::take(&mut self.nodes[0].completions) {
                assert_eq!(wc.status, WcStatus::Success);
                done += 1;
            }
            for wc in std::mem::take(&mut self.nodes[1].completions) {
                assert_eq!(wc.status, WcStatus::Success);
                self.nodes[1].post_recv(0, &[there]);
            }
        }
        (len * count * 8) as f64 / (self.now - start).as_nanos() as f64
    }
}

/// Settings for a socket whose buffer holds some 50 frames, as Linux's default does.
fn small() -> EngineConfig {
    EngineConfig {
        window: 16,
        ack_every: 8,
        send_quantum: 8,
        read_quantum: 8,
        transmit_quantum: 16,
        min_timeout: Duration::from_millis(1),
        initial_timeout: Duration::from_millis(4),
        ..EngineConfig::default()
    }
}

type Op = (&'static str, fn(RemoteAddr) -> SendOp);

const OPS: [Op; 3] = [
    ("WRITE", |remote| SendOp::Write { remote, imm: None }),
    ("SEND", |_| SendOp::Send { imm: None }),
    ("READ", |remote| SendOp::Read { remote }),
];

const SIZES: [(&str, usize, usize); 3] = [("64 B", 64, 2000), ("4 KiB", 4096, 1000), ("1 MiB", LARGEST, 8)];

const FRAME: Duration = Duration::from_nanos(2_500);

/// Small READs are faster with few losses than without: the ends no longer wait for each other in step.
#[test]
fn goodput_with_a_small_window_and_a_small_buffer() {
    let mut table = String::from(
        "\
Two ends take turns; a frame costs each 2.5 us, and a buffer holds 48. Path MTU 4096, window 16, quantum 16, 16 work
requests at once. Gb/s without loss, frames that did not fit, and what is left of the rate with losses in both directions.

                 Gb/s  overflow  0.1 %    1 %    5 %
",
    );
    let turn = Turn { receives: 32, buffer: 48, per_frame: FRAME };
    for (op_name, op) in OPS {
        for (size, len, count) in SIZES {
            let mut even = Sockets::new(&small(), [turn; 2], 0);
            let lossless = even.run(op, len, count);
            write!(table, "{op_name:5} {size:>5} {lossless:>9.3} {:>9}", even.overflowed).unwrap();
            for loss in [1_000, 10_000, 50_000] {
                let rate = Sockets::new(&small(), [turn; 2], loss).run(op, len, count);
                write!(table, " {:>5.1}%", 100.0 * rate / lossless).unwrap();
            }
            table.push('\n');
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn a_window_keeps_what_it_bounds_within_the_buffer() {
    let turn = Turn { receives: 32, buffer: 16, per_frame: FRAME };
    // The receiver takes one frame a turn, and nothing is lost.
    let slow = Turn { receives: 1, ..turn };
    for (name, op) in &OPS[..2] {
        let mut sockets = Sockets::new(&small(), [turn, slow], 0);
        sockets.run(*op, LARGEST, 2);
        assert_eq!(sockets.overflowed, 0, "{name}");
    }
}

#[test]
fn windows_and_quanta_of_one_work() {
    let config = EngineConfig {
        window: 1,
        ack_every: 1,
        send_quantum: 1,
        read_quantum: 1,
        transmit_quantum: 1,
        ..EngineConfig::default()
    };
    let turn = Turn { receives: 1, buffer: 4, per_frame: FRAME };
    for (name, op) in OPS {
        for (_, len, count) in SIZES {
            let mut sockets = Sockets::new(&config, [turn; 2], 0);
            sockets.run(op, len, count.min(100));
            assert!(sockets.overflowed == 0 || name == "READ", "{name} {len}: {}", sockets.overflowed);
        }
    }
}
