//! Foreign memory whose pages are gone: the errors of peers' requests and of our own work requests, over a link.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::harness::ops::completed;
use crate::harness::pair::{Link, Pair};
use crate::harness::scripted_peer::{AckReq, PEER_QPN, ScriptedPeer};
use crate::harness::{ALL_ACCESS, Agreed, Node};
use crate::support::program::{PAGE, Program, Protection};
use rxe_proto::Duration;
use rxe_proto::mem::{Access, Fault, ForeignMemory, Memory, MemoryRegion, Part};
use rxe_proto::transport::{EngineConfig, QpState, QpType, RemoteAddr, SendOp, Sge, WcStatus};
use rxe_proto::wire::{Opcode, Psn, TxFrames, classify};

const ADDR: usize = 0x7F00_0000_0000;
const LEN: usize = 8 * PAGE;
/// An offset in a page that is taken away.
const GONE: usize = 5 * PAGE;

/// Two ends; the second one has a region in a program's memory.
struct TestEnv {
    pair: Pair,
    program: Arc<Program>,
    region: MemoryRegion,
}

impl TestEnv {
    fn new() -> TestEnv {
        TestEnv::with_config(EngineConfig::default())
    }

    fn with_config(config: EngineConfig) -> TestEnv {
        let nodes = Node::connected(&config, &Agreed::default(), 16, 1 << 16);
        let mut pair = Pair::of(7, nodes, Link::default());
        let program = Program::new(ADDR, LEN);
        let pd = pair.nodes[1].pd;
        let keys = pair.nodes[1].engine.keys_mut();
        let region = keys.register(pd, program.memory(), ADDR as u64, ALL_ACCESS).unwrap();
        TestEnv { pair, program, region }
    }

    /// The program unmaps the pages from [`GONE`] on.
    fn unmap(&self) {
        self.program.protect(GONE..LEN, Protection::Unmapped);
    }

    fn at(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: (ADDR + offset) as u64, rkey: self.region.rkey() }
    }

    fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { addr: (ADDR + offset) as u64, length, lkey: self.region.lkey() }
    }
}

// [MEM-FAULT]
#[test]
fn peers_request_to_a_page_that_is_gone_gets_a_remote_access_nak() {
    type Operation = (&'static str, fn(RemoteAddr) -> SendOp, usize);
    let operations: [Operation; 5] = [
        ("write", |remote| SendOp::Write { remote, imm: None }, 3000),
        ("read", |remote| SendOp::Read { remote }, 3000),
        ("add", |remote| SendOp::FetchAdd { remote, add: 1 }, 8),
        ("swap", |remote| SendOp::CompareSwap { remote, compare: 0, swap: 1 }, 8),
        ("atomic write", |remote| SendOp::AtomicWrite { remote }, 8),
    ];
    for (name, op, len) in operations {
        let mut env = TestEnv::with_config(EngineConfig { atomic_write: true, ..EngineConfig::default() });
        let remote = env.at(GONE);
        let attempt = |env: &mut TestEnv, remote| {
            env.pair.status_of(0, |node| {
                let sge = node.sge(0, len);
                node.write(0, &vec![9; len]);
                node.post_send(1, op(remote), &[sge]);
            })
        };
        assert_eq!(attempt(&mut env, remote).0, WcStatus::Success, "{name}");
        env.unmap();
        assert_eq!(attempt(&mut env, remote).0, WcStatus::RemAccessErr, "{name}");
        assert_eq!(env.pair.nodes[0].read(0, len)[..8], [9; 8], "{name}: nothing of a response is written");
        assert_eq!(env.pair.nodes[1].dropped("remote_access"), u64::from(name != "read"), "{name}");
        assert_eq!(env.pair.nodes[1].state(), QpState::Error, "{name}");
        assert!(!env.region.memory().is_lost(), "{name}");
    }
}

#[test]
fn a_read_that_runs_into_a_missing_page_ends_there() {
    let mut env = TestEnv::new();
    env.program.poke(0, &[7; LEN]);
    env.unmap();
    let remote = env.at(GONE - 2048);
    let (status, _) = env.pair.status_of(0, |node| {
        let sge = node.sge(0, 4096);
        node.post_send(1, SendOp::Read { remote }, &[sge]);
    });
    assert_eq!(status, WcStatus::RemAccessErr);
    assert_eq!(env.pair.nodes[0].read(0, 4096), [[7; 2048], [0; 2048]].concat(), "whole responses before it arrived");
}

#[test]
fn a_write_that_runs_into_a_missing_page_has_written_what_came_before_it() {
    let mut env = TestEnv::new();
    env.unmap();
    let remote = env.at(GONE - 1500);
    let (status, _) = env.pair.status_of(0, |node| {
        let sge = node.sge(0, 4096);
        node.write(0, &[7; 4096]);
        node.post_send(1, SendOp::Write { remote, imm: None }, &[sge]);
    });
    assert_eq!(status, WcStatus::RemAccessErr);
    assert_eq!(env.program.peek(GONE - 1500, 1024), [7; 1024], "the first packet");
    assert_eq!(env.program.peek(GONE, 1500), [0; 1500]);
}

#[test]
fn peers_request_to_other_pages_is_served() {
    let mut env = TestEnv::new();
    env.unmap();
    for round in 0..3 {
        let remote = env.at(round * PAGE);
        let (status, _) = env.pair.status_of(0, |node| {
            let sge = node.sge(0, PAGE);
            node.write(0, &[7; PAGE]);
            node.post_send(1, SendOp::Write { remote, imm: None }, &[sge]);
        });
        assert_eq!(status, WcStatus::Success);
        assert_eq!(env.program.peek(round * PAGE, PAGE), [7; PAGE]);
    }
}

// [MEM-FAULT]
#[test]
fn own_work_request_on_a_page_that_is_gone_is_a_local_protection_error() {
    // Gather: the frame was begun when its bytes turned out to be gone, and the peer must not accept it.
    let mut env = TestEnv::new();
    let own = env.sge(GONE, 3000);
    let remote = RemoteAddr { addr: env.pair.nodes[0].region.addr(), rkey: env.pair.nodes[0].region.rkey() };
    env.pair.nodes[0].write(0, &[5; 3000]);
    env.unmap();
    let (status, _) = env.pair.status_of(1, |node| node.post_send(1, SendOp::Write { remote, imm: None }, &[own]));
    assert_eq!(status, WcStatus::LocProtErr);
    assert_eq!(env.pair.nodes[0].read(0, 3000), [5; 3000], "the peer's memory is unchanged");

    // Gather from several buffers, of which the last one is gone, behind work that completes.
    let mut env = TestEnv::new();
    let sges = [env.sge(0, 100), env.sge(GONE, 100)];
    let remote = RemoteAddr { addr: env.pair.nodes[0].region.addr(), rkey: env.pair.nodes[0].region.rkey() };
    env.unmap();
    let node = &mut env.pair.nodes[1];
    node.post_send(1, SendOp::Write { remote, imm: None }, &sges[..1]);
    node.post_send(2, SendOp::Write { remote, imm: None }, &sges);
    env.pair.drive(Duration::from_secs(1), |pair| pair.nodes[1].completions.len() == 2);
    let statuses: Vec<_> = env.pair.nodes[1].take_completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(statuses, [(1, WcStatus::Success), (2, WcStatus::LocProtErr)]);

    // Scatter of a READ response and of an atomic's result.
    for op in [SendOp::Read { remote }, SendOp::FetchAdd { remote, add: 1 }] {
        let mut env = TestEnv::new();
        let own = env.sge(GONE, 8);
        env.unmap();
        let (status, _) = env.pair.status_of(1, |node| node.post_send(1, op, &[own]));
        assert_eq!(status, WcStatus::LocProtErr, "{op:?}");
    }
}

// [MEM-FAULT] [RC-RSP-RECV-KEY]
#[test]
fn a_receive_into_a_page_that_is_gone_is_a_remote_operational_error() {
    let mut env = TestEnv::new();
    let own = env.sge(GONE, 3000);
    env.pair.nodes[1].post_recv(4, &[own]);
    env.unmap();
    let (status, received) = env.pair.status_of(0, |node| {
        let sge = node.sge(0, 100);
        node.post_send(1, SendOp::Send { imm: None }, &[sge]);
    });
    assert_eq!((status, received), (WcStatus::RemOpErr, Some(WcStatus::LocProtErr)));
}

#[test]
fn read_only_memory_serves_readers_and_senders() {
    let mut env = TestEnv::new();
    env.program.poke(0, &[6; LEN]);
    env.program.protect(0..LEN, Protection::ReadOnly);
    let pd = env.pair.nodes[1].pd;
    let keys = env.pair.nodes[1].engine.keys_mut();
    env.region = keys.register(pd, env.program.memory(), ADDR as u64, Access::REMOTE_READ).unwrap();
    let remote = env.at(PAGE);
    let (status, _) = env.pair.status_of(0, |node| {
        let sge = node.sge(0, 3000);
        node.post_send(1, SendOp::Read { remote }, &[sge]);
    });
    assert_eq!((status, env.pair.nodes[0].read(0, 3000)), (WcStatus::Success, vec![6; 3000]));
    let own = env.sge(0, 3000);
    let receive = env.pair.nodes[0].sge(0x4000, 4096);
    env.pair.nodes[0].post_recv(1, &[receive]);
    let (status, _) = env.pair.status_of(1, |node| node.post_send(2, SendOp::Send { imm: None }, &[own]));
    assert_eq!((status, env.pair.nodes[0].read(0x4000, 3000)), (WcStatus::Success, vec![6; 3000]));
    // Its key does not open it for writing, so no write is attempted.
    let (status, _) = env.pair.status_of(0, |node| {
        let sge = node.sge(0, 8);
        node.post_send(3, SendOp::Write { remote, imm: None }, &[sge]);
    });
    assert_eq!(status, WcStatus::RemAccessErr);
    assert_eq!(env.program.accesses().1, 0);
}

// [MEM-FAULT]
#[test]
fn a_datagram_into_a_page_that_is_gone_takes_the_queue_pair_to_error() {
    let (mut peer, _) = crate::harness::variants::ud(Agreed::default(), 0);
    peer.qp_type = QpType::Ud;
    let (program, lkey) = unmapped(&mut peer);
    let sge = Sge { addr: ADDR as u64, length: 2000, lkey };
    peer.node.post_recv(9, &[sge]);
    let frame = peer.frame(Opcode::SendOnly, Psn::new(7), AckReq::NoAck, b"hello", |packet| {
        packet.deth(0x1111, PEER_QPN);
    });
    peer.inject(&frame);
    assert_eq!(completed(&mut peer), [(9, WcStatus::LocProtErr)]);
    assert_eq!(peer.node.state(), QpState::Error);
    assert_eq!(program.peek(0, 100), [0; 100]);
}

// [MEM-FAULT]
#[test]
fn an_unreliable_send_from_a_page_that_is_gone_stops_the_send_queue() {
    let mut peer = crate::harness::variants::uc(Agreed::default(), 0);
    let (_, lkey) = unmapped(&mut peer);
    let sge = Sge { addr: ADDR as u64, length: 100, lkey };
    peer.node.post_send(3, SendOp::Send { imm: None }, &[sge]);
    let mut tx = TxFrames::default();
    while peer.node.engine.transmit(peer.now, &mut tx) > 0 {}
    assert!(tx.frames.iter().all(|(_, frame)| classify(frame).is_err()), "receivers drop what was begun");
    assert_eq!(completed(&mut peer), [(3, WcStatus::LocProtErr)]);
    assert_eq!(peer.node.state(), QpState::Sqe);
}

/// A page at [`ADDR`] that is unmapped, and the key of its region.
fn unmapped(peer: &mut ScriptedPeer) -> (Arc<Program>, u32) {
    let program = Program::new(ADDR, PAGE);
    program.protect(0..PAGE, Protection::Unmapped);
    let pd = peer.node.pd;
    let region = peer.node.engine.keys_mut().register(pd, program.memory(), ADDR as u64, ALL_ACCESS).unwrap();
    (program, region.lkey())
}

/// A program's memory that reports the error of a part with the last one only, and what the engine has said about the parts.
struct Parts {
    program: Arc<Program>,
    failed: AtomicBool,
    /// Offset, length, and whether it is the first and the last part.
    writes: Mutex<Vec<(usize, usize, bool, bool)>>,
}

impl ForeignMemory for Parts {
    fn addr(&self) -> usize {
        self.program.addr()
    }

    fn len(&self) -> usize {
        self.program.len()
    }

    fn read(&self, offset: usize, dst: &mut [u8]) -> Result<(), Fault> {
        self.program.read(offset, dst)
    }

    fn write(&self, offset: usize, src: &[u8]) -> Result<(), Fault> {
        self.program.write(offset, src)
    }

    fn write_part(&self, offset: usize, src: &[u8], part: Part) -> Result<(), Fault> {
        self.writes.lock().unwrap().push((offset, src.len(), part.is_first, part.is_last));
        let failed = self.failed.load(Relaxed) | self.write(offset, src).is_err();
        self.failed.store(failed && !part.is_last, Relaxed);
        if failed && part.is_last { Err(Fault) } else { Ok(()) }
    }
}

/// The same environment, whose region is in such memory.
fn with_parts() -> (TestEnv, Arc<Parts>) {
    let mut env = TestEnv::new();
    let program = Arc::clone(&env.program);
    let parts = Arc::new(Parts { program, failed: AtomicBool::new(false), writes: Mutex::default() });
    let memory = Memory::foreign(Arc::clone(&parts) as Arc<dyn ForeignMemory>);
    let pd = env.pair.nodes[1].pd;
    env.region = env.pair.nodes[1].engine.keys_mut().register(pd, memory, ADDR as u64, ALL_ACCESS).unwrap();
    (env, parts)
}

// [MEM-FAULT] [RC-RSP-RECV-KEY]
#[test]
fn an_error_that_memory_reports_with_the_last_part_is_the_messages() {
    for sends in [false, true] {
        for (offset, gone) in [(0, false), (GONE - 1500, true)] {
            let (mut env, parts) = with_parts();
            if gone {
                env.program.protect(GONE..GONE + 1, Protection::Unmapped);
            }
            let (remote, own) = (env.at(offset), env.sge(offset, 8000));
            if sends {
                env.pair.nodes[1].post_recv(4, &[own]);
            }
            let (status, received) = env.pair.status_of(0, |node| {
                let sge = node.sge(0, 8000);
                node.post_send(
                    1,
                    if sends { SendOp::Send { imm: None } } else { SendOp::Write { remote, imm: None } },
                    &[sge],
                );
            });
            let expected = match (sends, gone) {
                (_, false) => (WcStatus::Success, sends.then_some(WcStatus::Success)),
                (false, true) => (WcStatus::RemAccessErr, None),
                (true, true) => (WcStatus::RemOpErr, Some(WcStatus::LocProtErr)),
            };
            assert_eq!((status, received), expected, "{sends} {gone}");
            let written: Vec<_> = (0..8)
                .map(|number| (offset + 1024 * number, if number == 7 { 832 } else { 1024 }, number == 0, number == 7))
                .collect();
            assert_eq!(*parts.writes.lock().unwrap(), written, "{sends} {gone}");
        }
    }
}
