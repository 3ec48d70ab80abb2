//! Regions whose file is truncated: the errors of peers' requests and of our own work requests, when the copy of a packet
//! faults and when the region is already known to be lost.

use std::path::PathBuf;
use std::sync::Arc;

use crate::harness::pair::{Link, Pair};
use crate::harness::{ALL_ACCESS, Agreed};
use rxe_adapter::memory::FileMemory;
use rxe_proto::mem::{Access, Memory, MemoryRegion};
use rxe_proto::transport::{QpState, RemoteAddr, SendOp, WcStatus};

/// Eight pages.
const LEN: usize = 8 * 4096;
/// An offset in a page that is cut off.
const GONE: usize = 5 * 4096;

/// Two ends; the second has a region in a file, which [`cut`](TestEnv::cut) truncates.
struct TestEnv {
    pair: Pair,
    region: MemoryRegion,
    path: PathBuf,
}

impl TestEnv {
    fn new(name: &str) -> TestEnv {
        let path = PathBuf::from(format!("/dev/shm/rxe-lost-{}-{name}", std::process::id()));
        let access = ALL_ACCESS | Access::FLUSH_GLOBAL;
        let agreed = Agreed { access, ..Agreed::default() };
        let mut pair = Pair::new(7, &agreed, 16, 1 << 16, Link::default());
        let memory = Memory::new(Arc::new(FileMemory::open(&path, LEN).unwrap()));
        let pd = pair.nodes[1].pd;
        let region = pair.nodes[1].engine.keys_mut().register(pd, memory, 0, access).unwrap();
        TestEnv { pair, region, path }
    }

    fn cut(&self) {
        std::fs::File::options().write(true).open(&self.path).unwrap().set_len(4096).unwrap();
    }

    fn at(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: offset as u64, rkey: self.region.rkey() }
    }
}

#[test]
fn peers_request_to_a_truncated_region_gets_a_remote_access_nak() {
    type Operation = (&'static str, fn(RemoteAddr) -> SendOp, usize);
    let operations: [Operation; 4] = [
        ("write", |remote| SendOp::Write { remote, imm: None }, 3000),
        ("read", |remote| SendOp::Read { remote }, 3000),
        ("add", |remote| SendOp::FetchAdd { remote, add: 1 }, 8),
        ("swap", |remote| SendOp::CompareSwap { remote, compare: 0, swap: 1 }, 8),
    ];
    for (name, op, len) in operations {
        let mut env = TestEnv::new(name);
        let remote = env.at(GONE);
        let attempt = |env: &mut TestEnv, remote| {
            env.pair.status_of(0, |node| {
                let sge = node.sge(0, len);
                node.write(0, &vec![9; len]);
                node.post_send(1, op(remote), &[sge]);
            })
        };
        assert_eq!(attempt(&mut env, remote).0, WcStatus::Success, "{name}");
        env.cut();
        assert_eq!(attempt(&mut env, remote).0, WcStatus::RemAccessErr, "{name}");
        assert!(env.region.memory().is_lost());
        assert_eq!(env.pair.nodes[0].read(0, len)[..8.min(len)], [9; 8], "{name}: nothing of the response is written");
        assert_eq!(env.pair.nodes[1].dropped("remote_access"), u64::from(name != "read"), "{name}");
        assert_eq!(env.pair.nodes[1].state(), QpState::Error, "{name}");
    }
}

#[test]
fn every_request_to_a_lost_region_is_refused() {
    for (name, op) in [("write", true), ("read", false)] {
        let mut env = TestEnv::new(&format!("known-{name}"));
        env.cut();
        assert!(env.region.memory().read(GONE, &mut [0]).is_err());
        let remote = env.at(0);
        let op = if op { SendOp::Write { remote, imm: None } } else { SendOp::Read { remote } };
        let (status, _) = env.pair.status_of(0, |node| {
            let sge = node.sge(0, 8);
            node.post_send(1, op, &[sge]);
        });
        assert_eq!(status, WcStatus::RemAccessErr, "{name}");
        let listed: Vec<bool> = env.pair.nodes[1].engine.keys().list(0..usize::MAX).map(|key| key.lost).collect();
        assert!(listed.contains(&true) && listed.contains(&false), "{name}: the other region is not affected");
    }
}

#[test]
fn own_work_request_on_a_truncated_region_is_a_local_protection_error() {
    let sge = |env: &TestEnv| rxe_proto::transport::Sge { addr: GONE as u64, length: 3000, lkey: env.region.lkey() };
    // Gather: the frame was begun when its bytes turned out to be lost, and the peer must not accept it.
    let mut env = TestEnv::new("gather");
    let (own, remote) = (sge(&env), env.pair.nodes[0].region.addr());
    let remote = RemoteAddr { addr: remote, rkey: env.pair.nodes[0].region.rkey() };
    env.pair.nodes[0].write(0, &[5; 3000]);
    env.cut();
    let (status, _) = env.pair.status_of(1, |node| node.post_send(1, SendOp::Write { remote, imm: None }, &[own]));
    assert_eq!(status, WcStatus::LocProtErr);
    assert_eq!(env.pair.nodes[0].read(0, 3000), [5; 3000], "the peer's memory is unchanged");

    // Scatter of a READ response.
    let mut env = TestEnv::new("scatter");
    let own = sge(&env);
    let remote = RemoteAddr { addr: remote.addr, rkey: env.pair.nodes[0].region.rkey() };
    env.cut();
    let (status, _) = env.pair.status_of(1, |node| node.post_send(1, SendOp::Read { remote }, &[own]));
    assert_eq!(status, WcStatus::LocProtErr);

    // Scatter of a received SEND.
    let mut env = TestEnv::new("receive");
    let own = sge(&env);
    env.pair.nodes[1].post_recv(4, &[own]);
    env.cut();
    let (status, received) = env.pair.status_of(0, |node| {
        let sge = node.sge(0, 100);
        node.post_send(1, SendOp::Send { imm: None }, &[sge]);
    });
    assert_eq!((status, received), (WcStatus::RemOpErr, Some(WcStatus::LocProtErr)));
}
