//! Asynchronous events, and changes of the configuration under connected hosts.

use rxe_nvmf::controller::{AdminReply, Event, QueueKey, TeardownReason};
use rxe_nvmf::subsystem::{AllowedHosts, BlockSize, ConfigError, Namespace};
use rxe_nvmf::wire::log::{LogFields, LogId};
use rxe_nvmf::wire::{AsyncEvent, Cqe, Sqe, Status, StatusCode};

use crate::rig::{Admin, HOST, LISTED, OPEN, OTHER_HOST, Rig, buffer, nqn, set_feature};

const NAMESPACE_EVENTS: u32 = 1 << 8;

fn third() -> Namespace {
    Namespace::new(&nqn(OPEN), 3, 10, BlockSize::B512)
}

/// A controller that reports changes of namespaces.
fn watching(rig: &mut Rig, host: &str) -> Admin {
    let admin = rig.connect(OPEN, host);
    rig.complete(admin, &set_feature(0x0B, NAMESPACE_EVENTS));
    admin
}

/// The admin queues whose event requests are completed, and the completions.
fn responses(rig: &mut Rig) -> Vec<(QueueKey, Cqe)> {
    let events = rig.events().into_iter();
    let responses = events.filter_map(|event| match event {
        Event::Respond { queue, response } => Some((queue, response.cqe)),
        _ => None,
    });
    responses.collect()
}

fn changed_log(rig: &mut Rig, admin: Admin, retain_event: bool) -> Vec<u8> {
    let fields = LogFields { retain_event, ..LogFields::new(LogId::ChangedNamespaces, 4096) };
    rig.data(admin, &fields.to_sqe(8, buffer(4096)))[..8].to_vec()
}

#[test]
fn a_changed_namespace_completes_a_request_and_is_in_the_log() {
    let mut rig = Rig::new();
    let admin = watching(&mut rig, HOST);
    assert_eq!(rig.request_event(admin, 0x1F), AdminReply::Held);
    rig.target.add_namespace(&nqn(OPEN), third()).expect("valid");
    let events = rig.events();
    let [Event::NamespacesChanged { subsystem, .. }, Event::Respond { queue, response }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((subsystem, *queue), (&nqn(OPEN), admin.key));
    assert_eq!((response.cqe.command_id(), response.cqe.result()), (0x1F, AsyncEvent::NamespaceChanged.result()));
    assert_eq!(changed_log(&mut rig, admin, true), [3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(changed_log(&mut rig, admin, false), [3, 0, 0, 0, 0, 0, 0, 0], "the log was retained");
    assert_eq!(changed_log(&mut rig, admin, false), [0; 8]);
}

#[test]
fn a_namespace_whose_flush_failed_is_read_only_for_its_hosts_until_it_is_recovered() {
    let mut rig = Rig::new();
    let admin = watching(&mut rig, HOST);
    rig.request_event(admin, 7);
    let smart = |rig: &mut Rig| rig.data(admin, &LogFields::new(LogId::Smart, 512).to_sqe(8, buffer(512)))[0];
    let identify = Sqe::new(0x06, 9).with_nsid(2).with_sgl(buffer(4096));
    let attributes = |rig: &mut Rig| rig.data(admin, &identify)[99];
    for failed in [true, false] {
        assert_eq!(rig.target.set_failed(&nqn(OPEN), 2, failed), Ok(true));
        assert_eq!(rig.target.set_failed(&nqn(OPEN), 2, failed), Ok(false), "nothing new");
        let views = rig.target.namespace_views(&nqn(OPEN));
        assert_eq!(views.iter().map(|view| view.read_only).collect::<Vec<_>>(), [false, failed]);
        // Reliability is degraded; not all media are read-only.
        let warning = if failed { 1 << 2 } else { 0 };
        assert_eq!((smart(&mut rig), attributes(&mut rig)), (warning, u8::from(failed)));
    }
    let [(queue, cqe)] = responses(&mut rig)[..] else { panic!("one event") };
    assert_eq!((queue, cqe.command_id()), (admin.key, 7));
}

#[test]
fn a_failed_flush_is_a_health_event_for_hosts_that_enabled_its_warnings() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    // Media that are read-only, but no other warning.
    rig.complete(admin, &set_feature(0x0B, 1 << 3));
    for id in [3, 5, 7] {
        rig.request_event(admin, id);
    }
    let fail =
        |rig: &mut Rig, nsid, failed| rig.target.set_failed(&nqn(OPEN), nsid, failed).expect("there is such a one");
    fail(&mut rig, 1, true);
    fail(&mut rig, 2, true);
    let completed =
        |rig: &mut Rig| responses(rig).iter().map(|(_, cqe)| (cqe.command_id(), cqe.result())).collect::<Vec<_>>();
    // Type 1 (health), information 0 (reliability), log 2.
    assert_eq!(completed(&mut rig), [(3, 0x0002_0001)]);
    let smart = |rig: &mut Rig| rig.data(admin, &LogFields::new(LogId::Smart, 512).to_sqe(8, buffer(512)))[0];
    assert_eq!(smart(&mut rig), 1 << 2 | 1 << 3);
    fail(&mut rig, 1, false);
    assert_eq!((completed(&mut rig), smart(&mut rig)), (Vec::new(), 1 << 2));
    fail(&mut rig, 1, true);
    assert_eq!(completed(&mut rig), [(5, 0x0002_0001)], "the log was read");
}

#[test]
fn a_reset_ends_held_requests_so_that_their_receives_are_posted_again() {
    let mut rig = Rig::new();
    let admin = watching(&mut rig, HOST);
    for id in [3, 5] {
        rig.request_event(admin, id);
    }
    rig.events();
    rig.configure(admin, 0x0046_0060);
    let ended = responses(&mut rig);
    assert_eq!(ended.iter().map(|(_, cqe)| cqe.command_id()).collect::<Vec<_>>(), [3, 5]);
    assert!(ended.iter().all(|(queue, cqe)| *queue == admin.key && cqe.status().code == StatusCode::AbortRequested));
    assert_eq!(rig.target.held_event_requests(), 0);
}

#[test]
fn what_deallocate_does_is_a_property_of_the_namespace() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    rig.target.add_namespace(&nqn(OPEN), Namespace { releases_blocks: false, ..third() }).expect("valid");
    let features = |nsid| Sqe::new(0x06, 9).with_nsid(nsid).with_sgl(buffer(4096));
    let found: Vec<u8> = (1..=3).map(|nsid| rig.data(admin, &features(nsid))[33]).collect();
    assert_eq!(found, [9, 9, 0]);
}

#[test]
fn further_changes_wait_until_the_log_is_read() {
    let mut rig = Rig::new();
    let admin = watching(&mut rig, HOST);
    for id in [1, 2] {
        rig.request_event(admin, id);
    }
    rig.target.add_namespace(&nqn(OPEN), third()).expect("valid");
    rig.target.resize_namespace(&nqn(OPEN), 1, 2000).expect("valid");
    assert_eq!(responses(&mut rig).len(), 1);
    assert_eq!(changed_log(&mut rig, admin, false), [1, 0, 0, 0, 3, 0, 0, 0]);
    rig.target.remove_namespace(&nqn(OPEN), 3).expect("exists");
    assert_eq!(responses(&mut rig).len(), 1);
    rig.target.resize_namespace(&nqn(OPEN), 1, 2000).expect("valid");
    assert_eq!(rig.events(), [], "the same size is no change");
}

#[test]
fn a_change_without_a_request_completes_the_next_one() {
    let mut rig = Rig::new();
    let admin = watching(&mut rig, HOST);
    rig.target.resize_namespace(&nqn(OPEN), 1, 10).expect("valid");
    assert_eq!(responses(&mut rig), []);
    let AdminReply::Complete { response, data: None } = rig.request_event(admin, 9) else { panic!("completed") };
    assert_eq!(response.cqe.result(), AsyncEvent::NamespaceChanged.result());
    assert_eq!(rig.request_event(admin, 10), AdminReply::Held);
}

#[test]
fn hosts_that_did_not_enable_events_and_other_subsystems_get_none() {
    let mut rig = Rig::new();
    let quiet = rig.connect(OPEN, HOST);
    let other = rig.connect(LISTED, HOST);
    rig.complete(other, &set_feature(0x0B, NAMESPACE_EVENTS));
    let watcher = watching(&mut rig, OTHER_HOST);
    for admin in [quiet, other, watcher] {
        rig.request_event(admin, 5);
    }
    rig.target.resize_namespace(&nqn(OPEN), 1, 10).expect("valid");
    let responses = responses(&mut rig);
    assert_eq!(responses.iter().map(|&(key, _)| key).collect::<Vec<_>>(), [watcher.key]);
    assert_eq!(rig.target.held_event_requests(), 2);
}

#[test]
fn one_more_request_than_the_limit_is_refused_and_a_reset_ends_them() {
    let mut rig = Rig::new();
    let admin = watching(&mut rig, HOST);
    for id in 0..4 {
        assert_eq!(rig.request_event(admin, id), AdminReply::Held);
    }
    let AdminReply::Complete { response, .. } = rig.request_event(admin, 4) else { panic!("refused") };
    assert_eq!(response.cqe.status(), Status { more: true, ..Status::permanent(StatusCode::AsyncEventLimitExceeded) });
    rig.configure(admin, 0x0046_0060);
    assert_eq!((rig.target.held_event_requests(), responses(&mut rig).len()), (0, 4));
    rig.target.resize_namespace(&nqn(OPEN), 1, 10).expect("valid");
    assert_eq!(responses(&mut rig), [], "no completion after a reset");
}

#[test]
fn held_requests_end_with_their_queue_without_a_completion() {
    let mut rig = Rig::new();
    let admin = watching(&mut rig, HOST);
    rig.request_event(admin, 1);
    rig.target.disconnected(admin.key);
    let reason = TeardownReason::AdminQueueLost;
    assert_eq!(rig.events(), [Event::TearDown { controller: Some(admin.controller), reason, queues: vec![] }]);
    assert_eq!(rig.target.held_event_requests(), 0);
}

#[test]
fn workers_learn_of_namespaces_before_hosts() {
    let mut rig = Rig::new();
    let admin = watching(&mut rig, HOST);
    let (io, _) = rig.connect_io(admin, 1, OPEN, HOST);
    rig.target.resize_namespace(&nqn(OPEN), 1, 10).expect("valid");
    assert_eq!(rig.events(), [Event::NamespacesChanged { subsystem: nqn(OPEN), queues: vec![io] }]);
    assert_eq!(rig.target.namespace_views(&nqn(OPEN))[0].blocks, 10);
    assert_eq!(rig.target.namespace_views(&nqn("nqn.2024-01.test:none")), []);
}

#[test]
fn a_removed_subsystem_tears_its_controllers_down() {
    let mut rig = Rig::new();
    let (gone, stays) = (rig.connect(OPEN, HOST), rig.connect(LISTED, HOST));
    let (io, _) = rig.connect_io(gone, 1, OPEN, HOST);
    rig.events();
    rig.target.remove_subsystem(&nqn(OPEN)).expect("exists");
    let reason = TeardownReason::SubsystemRemoved;
    let queues = vec![gone.key, io];
    assert_eq!(rig.events(), [Event::TearDown { controller: Some(gone.controller), reason, queues }]);
    assert!(rig.connect_only(OPEN, HOST).is_err());
    rig.complete(stays, &set_feature(0x0B, 0));
    rig.target.disconnected(gone.key);
    assert_eq!(rig.events(), [], "the target has forgotten the queues");
}

#[test]
fn a_host_that_loses_its_permission_is_torn_down() {
    let mut rig = Rig::new();
    rig.target.add_host(&nqn(LISTED), nqn(OTHER_HOST)).expect("exists");
    let (first, second) = (rig.connect(LISTED, HOST), rig.connect(LISTED, OTHER_HOST));
    rig.target.remove_host(&nqn(LISTED), &nqn(OTHER_HOST)).expect("exists");
    let reason = TeardownReason::HostRemoved;
    let torn_down =
        |admin: Admin| Event::TearDown { controller: Some(admin.controller), reason, queues: vec![admin.key] };
    assert_eq!(rig.events(), [torn_down(second)]);
    rig.target.set_hosts(&nqn(LISTED), AllowedHosts::Only([].into())).expect("exists");
    assert_eq!(rig.events(), [torn_down(first)]);
    rig.target.set_hosts(&nqn(LISTED), AllowedHosts::Any).expect("exists");
    assert!(rig.connect_only(LISTED, OTHER_HOST).is_ok());
}

#[test]
fn changes_that_cannot_be_made_are_refused() {
    let mut rig = Rig::new();
    let (open, none) = (nqn(OPEN), nqn("nqn.2024-01.test:none"));
    let unknown = Err(ConfigError::UnknownSubsystem(none.clone()));
    assert_eq!(rig.target.remove_subsystem(&none), unknown);
    assert_eq!(rig.target.add_namespace(&none, third()), unknown);
    assert_eq!(rig.target.add_host(&none, nqn(HOST)), unknown);
    assert_eq!(rig.target.remove_namespace(&open, 3), Err(ConfigError::UnknownNamespace(open.clone(), 3)));
    assert_eq!(rig.target.resize_namespace(&open, 3, 1), Err(ConfigError::UnknownNamespace(open.clone(), 3)));
    assert_eq!(rig.target.resize_namespace(&open, 1, 0), Err(ConfigError::Size(1, 0)));
    let second = Namespace::new(&open, 2, 10, BlockSize::B512);
    assert_eq!(rig.target.add_namespace(&open, second), Err(ConfigError::DuplicateNsid(open.clone(), 2)));
    let mut copy = third();
    copy.uuid = Namespace::new(&nqn(LISTED), 1, 1, BlockSize::B512).uuid;
    let other_nqn = nqn(LISTED);
    let duplicate = ConfigError::DuplicateIdentifier { nqn: open.clone(), nsid: 3, other_nqn, other_nsid: 1 };
    assert_eq!(rig.target.add_namespace(&open, copy), Err(duplicate));
    let again = rig.target.subsystems().next().expect("a subsystem").clone();
    let name = again.nqn.clone();
    assert_eq!(rig.target.add_subsystem(again), Err(ConfigError::DuplicateSubsystem(name)));
    assert_eq!(rig.events(), [], "a refused change does nothing");
}
