//! What peers and our own work requests are told when the file behind a region is cut short: the fault comes amid the copy
//! of a packet, or the region is known to be lost already.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::harness::pair::{Link, Pair};
use crate::harness::{ALL_ACCESS, Agreed, Node};
use rxe_dpdk::eal::FileMemory;
use rxe_proto::mem::{Access, Memory, MemoryRegion};
use rxe_proto::transport::{QpState, RemoteAddr, SendOp, WcStatus};

/// Eight pages.
const LEN: usize = 8 * 4096;
/// In a page that is cut off.
const GONE: usize = 5 * 4096;

/// Two ends; the second has a region in a file, whose tail is cut off by [`cut`](World::cut).
struct World {
    pair: Pair,
    region: MemoryRegion,
    path: PathBuf,
}

impl World {
    fn new(name: &str) -> World {
        let path = PathBuf::from(format!("/dev/shm/rxe-lost-{}-{name}", std::process::id()));
        let access = ALL_ACCESS | Access::FLUSH_GLOBAL;
        let agreed = Agreed { access, ..Agreed::default() };
        let mut pair = Pair::new(7, &agreed, 16, 1 << 16, Link::default());
        let memory = Memory::new(Arc::new(FileMemory::open(&path, LEN).unwrap()));
        let pd = pair.nodes[1].pd;
        let region = pair.nodes[1].engine.keys_mut().register(pd, memory, 0, access).unwrap();
        World { pair, region, path }
    }

    fn cut(&self) {
        std::fs::File::options().write(true).open(&self.path).unwrap().set_len(4096).unwrap();
    }

    fn at(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: offset as u64, rkey: self.region.rkey() }
    }

    /// The status of the one work request that `post` makes at an end, and of the first one at the other end.
    fn status(&mut self, end: usize, post: impl FnOnce(&mut Node)) -> (WcStatus, Option<WcStatus>) {
        post(&mut self.pair.nodes[end]);
        self.pair.drive(Duration::from_secs(1), |pair| !pair.nodes[end].completions.is_empty());
        let [wc] = self.pair.nodes[end].take_completions()[..] else { panic!("one completion") };
        (wc.status, self.pair.nodes[1 - end].take_completions().first().map(|wc| wc.status))
    }
}

#[test]
fn a_peers_request_that_meets_what_was_cut_off_gets_a_remote_access_nak() {
    type Operation = (&'static str, fn(RemoteAddr) -> SendOp, usize);
    let operations: [Operation; 4] = [
        ("write", |remote| SendOp::Write { remote, imm: None }, 3000),
        ("read", |remote| SendOp::Read { remote }, 3000),
        ("add", |remote| SendOp::FetchAdd { remote, add: 1 }, 8),
        ("swap", |remote| SendOp::CompareSwap { remote, compare: 0, swap: 1 }, 8),
    ];
    for (name, op, len) in operations {
        let mut world = World::new(name);
        let remote = world.at(GONE);
        let try_it = |world: &mut World, remote| {
            world.status(0, |node| {
                let sge = node.sge(0, len);
                node.write(0, &vec![9; len]);
                node.post_send(1, op(remote), &[sge]);
            })
        };
        assert_eq!(try_it(&mut world, remote).0, WcStatus::Success, "{name}");
        world.cut();
        assert_eq!(try_it(&mut world, remote).0, WcStatus::RemAccessErr, "{name}");
        assert!(world.region.memory().is_lost());
        assert_eq!(world.pair.nodes[0].read(0, len)[..8.min(len)], [9; 8], "{name}: nothing of the answer is taken in");
        assert_eq!(world.pair.nodes[1].dropped("remote_access"), u64::from(name != "read"), "{name}");
        assert_eq!(world.pair.nodes[1].state(), QpState::Error, "{name}");
    }
}

#[test]
fn a_region_that_is_known_to_be_lost_is_refused_at_once_wherever_the_request_goes() {
    for (name, op) in [("write", true), ("read", false)] {
        let mut world = World::new(&format!("known-{name}"));
        world.cut();
        assert!(world.region.memory().read(GONE, &mut [0]).is_err());
        let remote = world.at(0);
        let op = if op { SendOp::Write { remote, imm: None } } else { SendOp::Read { remote } };
        let (status, _) = world.status(0, |node| {
            let sge = node.sge(0, 8);
            node.post_send(1, op, &[sge]);
        });
        assert_eq!(status, WcStatus::RemAccessErr, "{name}");
        let listed: Vec<bool> = world.pair.nodes[1].engine.keys().list(0..usize::MAX).map(|key| key.lost).collect();
        assert!(listed.contains(&true) && listed.contains(&false), "{name}: the other region is as it was");
    }
}

#[test]
fn our_own_work_request_that_meets_what_was_cut_off_is_a_local_protection_error() {
    let sge = |world: &World| rxe_proto::transport::Sge { addr: GONE as u64, length: 3000, lkey: world.region.lkey() };
    // What is to be sent. The frame was begun when the bytes were found to be gone: the peer must not take it.
    let mut world = World::new("gather");
    let (own, remote) = (sge(&world), world.pair.nodes[0].region.addr());
    let remote = RemoteAddr { addr: remote, rkey: world.pair.nodes[0].region.rkey() };
    world.pair.nodes[0].write(0, &[5; 3000]);
    world.cut();
    let (status, _) = world.status(1, |node| node.post_send(1, SendOp::Write { remote, imm: None }, &[own]));
    assert_eq!(status, WcStatus::LocProtErr);
    assert_eq!(world.pair.nodes[0].read(0, 3000), [5; 3000], "the peer's memory is as it was");

    // What a READ brings.
    let mut world = World::new("scatter");
    let own = sge(&world);
    let remote = RemoteAddr { addr: remote.addr, rkey: world.pair.nodes[0].region.rkey() };
    world.cut();
    let (status, _) = world.status(1, |node| node.post_send(1, SendOp::Read { remote }, &[own]));
    assert_eq!(status, WcStatus::LocProtErr);

    // What a peer sends.
    let mut world = World::new("receive");
    let own = sge(&world);
    world.pair.nodes[1].post_recv(4, &[own]);
    world.cut();
    let (status, received) = world.status(0, |node| {
        let sge = node.sge(0, 100);
        node.post_send(1, SendOp::Send { imm: None }, &[sge]);
    });
    assert_eq!((status, received), (WcStatus::RemOpErr, Some(WcStatus::LocProtErr)));
}
