//! Controllers from Connect to their end: ids, limits, timers, shutdown, reset.

use std::collections::BTreeSet;

use rxe_nvmf::controller::{AdminReply, Event, IoCounts, QueueKey, Refusal, TargetConfig, TeardownReason};
use rxe_nvmf::subsystem::Limits;
use rxe_nvmf::wire::log::{LogFields, LogId};
use rxe_nvmf::wire::private_data::{QueueRequest, RejectStatus};
use rxe_nvmf::wire::{AdminOpcode, ConnectCommand, Sqe, Status, StatusCode};
use rxe_proto::Duration;

use crate::rig::{Admin, HOST, OPEN, OTHER_HOST, Rig, buffer, connect, nqn, set_feature};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn torn_down(admin: Admin, reason: TeardownReason, queues: Vec<QueueKey>) -> Event {
    Event::TearDown { controller: Some(admin.controller), reason, queues }
}

#[test]
fn ids_are_unique_and_not_used_again_soon() {
    let mut rig = Rig::new();
    let mut seen = BTreeSet::new();
    for _ in 0..100 {
        let admin = rig.connect(OPEN, HOST);
        assert!(seen.insert(admin.controller), "{} again", admin.controller);
        assert!((1..=0xFFEF).contains(&admin.controller.get()));
        rig.target.disconnected(admin.key);
    }
    let both = [rig.connect(OPEN, HOST), rig.connect(OPEN, HOST)];
    assert_ne!(both[0].controller, both[1].controller, "the same host twice");
}

#[test]
fn ids_start_again_after_the_largest_one_and_skip_live_controllers() {
    let mut rig = Rig::new();
    let lasting = rig.connect_only(OPEN, OTHER_HOST).expect("connected");
    assert_eq!(lasting.controller.get(), 1);
    for expected in (2..=0xFFEF).chain(2..4) {
        let admin = rig.connect_only(OPEN, HOST).expect("connected");
        assert_eq!(admin.controller.get(), expected);
        rig.target.disconnected(admin.key);
        rig.events();
    }
}

#[test]
fn silence_of_twice_the_timeout_ends_a_controller_and_all_its_queues() {
    let mut rig = Rig::new();
    let (silent, alive) = (rig.connect(OPEN, HOST), rig.connect(OPEN, OTHER_HOST));
    let (io, _) = rig.connect_io(silent, 1, OPEN, HOST);
    for _ in 0..3 {
        rig.advance(seconds(3));
        rig.complete(alive, &Sqe::new(AdminOpcode::KeepAlive.code(), 1));
    }
    assert_eq!(rig.events(), [], "9 s of twice 5 s");
    assert_eq!(rig.target.next_deadline(), Some(rig.now + seconds(1)));
    rig.advance(seconds(1));
    assert_eq!(rig.events(), [torn_down(silent, TeardownReason::KeepAliveTimeout, vec![silent.key, io])]);
    assert_eq!((rig.target.controller_count(), rig.target.queue_count()), (1, 1));
    let keep_alive = Sqe::new(AdminOpcode::KeepAlive.code(), 1);
    assert_eq!(rig.target.admin(rig.now, silent.controller, &keep_alive), AdminReply::Gone);
    rig.complete(alive, &keep_alive);
}

#[test]
fn a_changed_timeout_holds_from_its_change() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    rig.complete(admin, &set_feature(0x0F, 60_000));
    rig.advance(seconds(119));
    assert_eq!(rig.events(), []);
    rig.advance(seconds(1));
    assert_eq!(rig.events(), [torn_down(admin, TeardownReason::KeepAliveTimeout, vec![admin.key])]);
}

#[test]
fn a_host_without_timeout_stays_until_its_admin_queue_is_disconnected() {
    let mut rig = Rig::new();
    let key = rig.open(0);
    let command = ConnectCommand { kato_ms: 0, ..connect(0, 31) };
    let controller = rig.try_connect(key, command, 0xFFFF, OPEN, HOST).expect("connected").controller;
    let admin = Admin { key, controller };
    rig.advance(seconds(100_000));
    assert_eq!((rig.events(), rig.target.next_deadline()), (vec![], None));
    rig.target.disconnected(key);
    assert_eq!(rig.events(), [torn_down(admin, TeardownReason::AdminQueueLost, vec![])]);
}

#[test]
fn a_queue_without_connect_is_torn_down() {
    let mut rig = Rig::new();
    let key = rig.open(1);
    rig.advance(seconds(9));
    assert_eq!(rig.events(), []);
    rig.advance(seconds(1));
    let reason = TeardownReason::ConnectTimeout;
    assert_eq!(rig.events(), [Event::TearDown { controller: None, reason, queues: vec![key] }]);
    assert_eq!((rig.target.queue_count(), rig.target.next_deadline()), (0, None));
}

#[test]
fn a_shutdown_and_a_loss_of_the_admin_queue_have_different_reasons() {
    let mut rig = Rig::new();
    let (polite, lost) = (rig.connect(OPEN, HOST), rig.connect(OPEN, HOST));
    let (io, _) = rig.connect_io(polite, 1, OPEN, HOST);
    rig.target.disconnected(io);
    rig.configure(polite, 0x0046_4061);
    rig.target.disconnected(polite.key);
    let (io, _) = rig.connect_io(lost, 1, OPEN, HOST);
    rig.target.disconnected(lost.key);
    assert_eq!(
        rig.events(),
        [
            torn_down(polite, TeardownReason::HostShutdown, vec![]),
            torn_down(lost, TeardownReason::AdminQueueLost, vec![io])
        ]
    );
}

#[test]
fn the_loss_of_an_io_queue_leaves_the_controller() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    let (io, _) = rig.connect_io(admin, 1, OPEN, HOST);
    rig.lose_io(io);
    assert_eq!(rig.events(), []);
    rig.connect_io(admin, 1, OPEN, HOST);
    rig.configure(admin, 0x0046_4061);
}

#[test]
fn a_fatal_error_ends_one_controller_only() {
    let mut rig = Rig::new();
    let (bad, good) = (rig.connect(OPEN, HOST), rig.connect(OPEN, OTHER_HOST));
    let (io, _) = rig.connect_io(bad, 1, OPEN, HOST);
    rig.target.fail(bad.controller);
    rig.target.fail(bad.controller);
    assert_eq!(rig.events(), [torn_down(bad, TeardownReason::QueueError, vec![bad.key, io])]);
    rig.complete(good, &Sqe::new(AdminOpcode::KeepAlive.code(), 1));
}

#[test]
fn io_queues_follow_ready() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    let (io, _) = rig.connect_io(admin, 1, OPEN, HOST);
    let ready = |ready| Event::Ready { controller: admin.controller, queues: vec![io], ready };
    rig.configure(admin, 0x0046_4061);
    assert_eq!(rig.events(), [ready(false)]);
    rig.configure(admin, 0x0046_0060);
    rig.configure(admin, 0x0046_0061);
    assert_eq!(rig.events(), [ready(false), ready(true)]);
}

#[test]
fn controllers_are_limited_per_host_and_in_all() {
    let limits = Limits { controllers_per_host: 2, controllers: 3, ..Limits::default() };
    let mut rig = Rig::with(TargetConfig { limits, ..TargetConfig::default() });
    rig.connect(OPEN, HOST);
    let second = rig.connect(OPEN, HOST);
    let error = rig.connect_only(OPEN, HOST).expect_err("refused");
    assert!(matches!(error.refusal, Refusal::HostLimit(_, 2)));
    assert_eq!(error.response.cqe.status(), Status::retryable(StatusCode::ConnectControllerBusy));
    rig.connect(OPEN, OTHER_HOST);
    let error = rig.connect_only(OPEN, OTHER_HOST).expect_err("refused");
    assert_eq!(error.refusal, Refusal::ControllerLimit(3));
    rig.target.disconnected(second.key);
    assert!(rig.connect_only(OPEN, HOST).is_ok());
}

#[test]
fn waiting_queues_are_limited_and_a_key_is_used_once() {
    let limits = Limits { waiting_queues: 2, ..Limits::default() };
    let mut rig = Rig::with(TargetConfig { limits, ..TargetConfig::default() });
    let request = QueueRequest { qid: 1, host_receives: 128, host_sqsize: 127 };
    let accept = |rig: &mut Rig, key| rig.target.accept(rig.now, QueueKey(key), &request).err();
    assert_eq!(accept(&mut rig, 100), None);
    assert_eq!(accept(&mut rig, 100), Some(RejectStatus::NoResources));
    assert_eq!(accept(&mut rig, 101), None);
    assert_eq!(accept(&mut rig, 102), Some(RejectStatus::NoResources));
    rig.target.disconnected(QueueKey(100));
    assert_eq!(accept(&mut rig, 102), None);
}

#[test]
fn the_traffic_that_workers_report_is_in_the_smart_log() {
    let mut rig = Rig::new();
    let one = rig.connect(OPEN, HOST);
    let counts = IoCounts { bytes_read: 600_000, bytes_written: 1, reads: 3, writes: 4, media_errors: 1 };
    for _ in 0..2 {
        rig.target.record_io(&nqn(OPEN), counts);
    }
    let log = rig.data(one, &LogFields::new(LogId::Smart, 512).to_sqe(1, buffer(512)));
    assert_eq!((log[32], log[48], log[64], log[80], log[160]), (3, 1, 6, 8, 2));
}

#[test]
fn sixteen_hosts_have_controllers_of_their_own() {
    let mut rig = Rig::new();
    let hosts: Vec<String> = (0..16).map(|number| format!("nqn.2024-01.host:{number}")).collect();
    let admins: Vec<Admin> = hosts.iter().map(|host| rig.connect(OPEN, host)).collect();
    for (admin, host) in admins.iter().zip(&hosts) {
        for qid in 1..=4 {
            rig.connect_io(*admin, qid, OPEN, host);
        }
    }
    assert_eq!((rig.target.controller_count(), rig.target.queue_count()), (16, 80));
    rig.target.disconnected(admins[3].key);
    assert_eq!((rig.target.controller_count(), rig.target.queue_count()), (15, 75));
}
