use std::net::IpAddr;

use rxe_proto::wire::{Gid, PortId, PrefixList};

use crate::change::ControlChange;
use crate::control::ip_host::HostEvent;
use crate::messages::{ToControl, ToWorker};
use crate::multicast::WorkerSet;
use crate::service::Listen;
use crate::test_env::TestEnv;

const GROUP: [u8; 4] = [239, 1, 2, 3];

fn member(env: &mut TestEnv, worker: usize, joined: bool) {
    let group = Gid::from(IpAddr::from(GROUP));
    env.send(ToControl::GroupMember { worker, port: PortId(0), group, joined });
}

/// The set of workers in the only message of control to a worker.
fn members(env: &mut TestEnv, worker: usize) -> WorkerSet {
    match &env.mail(worker)[..] {
        [ToWorker::GroupMembers { workers, .. }] => *workers,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_port_is_in_a_group_while_any_worker_has_members() {
    let mut env = TestEnv::new(2, Vec::new());
    let group = IpAddr::from(GROUP);
    let (first, second) = (WorkerSet::EMPTY.with(0), WorkerSet::EMPTY.with(1));
    for (worker, joined, expected) in
        [(0, true, first), (1, true, first.with(1)), (0, false, second), (1, false, WorkerSet::EMPTY)]
    {
        member(&mut env, worker, joined);
        assert_eq!(env.host().groups.contains(&group), expected != WorkerSet::EMPTY);
        assert_eq!((members(&mut env, 0), members(&mut env, 1)), (expected, expected), "every worker");
    }
}

#[test]
fn a_group_that_the_port_cannot_receive_is_counted() {
    let mut env = TestEnv::new(1, Vec::new());
    env.host().filter_fails = true;
    member(&mut env, 0, true);
    assert_eq!(env.control.stats.group_filter_refused.get(), 1);
    assert_eq!(members(&mut env, 0), WorkerSet::EMPTY.with(0), "frames may arrive nevertheless");
}

#[test]
fn stopping_leaves_every_group_for_good() {
    let mut env = TestEnv::new(1, Vec::new());
    member(&mut env, 0, true);
    env.mail(0);
    env.control.begin_stop(env.now);
    assert_eq!((env.host().groups.len(), members(&mut env, 0)), (0, WorkerSet::EMPTY));
    member(&mut env, 0, true);
    assert_eq!((env.host().groups.len(), env.mail(0).len()), (0, 0));
}

#[test]
fn a_listener_is_reported_to_one_worker_by_group_and_host() {
    let mut env = TestEnv::new(2, vec![(1, Listen::cm(1)), (4, Listen::GroupListeners)]);
    for host in 1..=16 {
        for joined in [true, false] {
            let (group, host) = (IpAddr::from(GROUP), IpAddr::from([10, 0, 0, host]));
            env.host().events.push_back(HostEvent::GroupListener { group, host, joined });
        }
    }
    env.exchange();
    for worker in 0..2 {
        let mail = env.mail(worker);
        assert_eq!(mail.len(), 16);
        for pair in mail.chunks(2) {
            let [ToWorker::GroupListener { service: 4, listener: on }, ToWorker::GroupListener { listener: off, .. }] =
                pair
            else {
                panic!("{pair:?}")
            };
            assert_eq!((on.host, on.joined, off.joined), (off.host, true, false));
        }
    }
}

/// A stopped or drained service gets no new listeners, nor those that it does not serve; that they leave it is told.
#[test]
fn listeners_are_admitted_like_other_clients() {
    let mut env = TestEnv::new(1, vec![(0, Listen::GroupListeners)]);
    let report = |env: &mut TestEnv, host: u8, joined| {
        let event = HostEvent::GroupListener { group: GROUP.into(), host: [10, 0, 0, host].into(), joined };
        env.host().events.push_back(event);
        env.exchange();
        env.mail(0).len()
    };
    let (reply, _answers) = std::sync::mpsc::sync_channel(4);
    let set_stopped = |stopped| {
        let reply = reply.clone();
        ToControl::Change(ControlChange::SetStopped { service: 0, stopped, reply })
    };
    assert_eq!(report(&mut env, 2, true), 1);
    env.send(set_stopped(true));
    assert_eq!([report(&mut env, 2, true), report(&mut env, 2, false)], [0, 1]);
    assert_eq!(env.control.stats.stopped_refused.get(), 1);
    env.send(set_stopped(false));
    let peers = Some(["10.0.0.2/32".parse().unwrap()].into_iter().collect::<PrefixList>());
    env.send(ToControl::Change(ControlChange::SetAllowed { service: 0, peers, reply: reply.clone() }));
    assert_eq!([report(&mut env, 2, true), report(&mut env, 3, true)], [1, 0]);
    assert_eq!(env.control.stats.peers_refused.get(), 1);
    env.control.begin_drain();
    assert_eq!([report(&mut env, 2, true), report(&mut env, 2, false)], [0, 1]);
    assert_eq!(env.control.stats.drain_refused.get(), 1);
}
