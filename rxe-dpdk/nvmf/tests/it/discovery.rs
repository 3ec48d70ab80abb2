//! The discovery subsystem.

use rxe_nvmf::controller::{AdminReply, Event};
use rxe_nvmf::subsystem::Subsystem;
use rxe_nvmf::wire::identify::{Cns, IdentifyController, IdentifyFields};
use rxe_nvmf::wire::log::{DiscoveryHeader, LogFields, LogId, discovery_entries};
use rxe_nvmf::wire::{AdminOpcode, AsyncEvent, DISCOVERY_NQN, Sqe, StatusCode};
use zerocopy::FromBytes;

use crate::rig::{Admin, HOST, LISTED, OPEN, OTHER_HOST, Rig, buffer, connect, nqn, set_feature};

/// Generation and names of the log.
fn log(rig: &mut Rig, admin: Admin) -> (u64, Vec<String>) {
    let page = rig.data(admin, &LogFields::new(LogId::Discovery, 8192).to_sqe(1, buffer(8192)));
    let header = DiscoveryHeader::ref_from_prefix(&page).expect("a header").0;
    let entries = discovery_entries(&page).take(header.records() as usize);
    let names = entries.map(|entry| entry.subsystem_nqn().expect("a name").to_string()).collect();
    (header.generation(), names)
}

#[test]
fn the_log_has_what_the_host_may_use() {
    let mut rig = Rig::new();
    let (one, two) = (rig.connect(DISCOVERY_NQN, HOST), rig.connect(DISCOVERY_NQN, OTHER_HOST));
    assert_eq!(log(&mut rig, one).1, [DISCOVERY_NQN, LISTED, OPEN]);
    assert_eq!(log(&mut rig, two).1, [DISCOVERY_NQN, OPEN]);
    let part = LogFields { offset: 1024, ..LogFields::new(LogId::Discovery, 1024) };
    let page = rig.data(two, &part.to_sqe(1, buffer(1024)));
    assert_eq!(page[256..256 + DISCOVERY_NQN.len()], *DISCOVERY_NQN.as_bytes());
}

#[test]
fn each_change_of_subsystems_and_hosts_changes_the_generation_and_is_reported() {
    let mut rig = Rig::new();
    let admin = rig.connect(DISCOVERY_NQN, HOST);
    rig.complete(admin, &set_feature(0x0B, 1 << 31));
    let mut generation = log(&mut rig, admin).0;
    let mut check = |rig: &mut Rig| {
        let events = rig.events();
        let [Event::Respond { queue, response }] = events[..] else { panic!("{events:?}") };
        assert_eq!((queue, response.cqe.result()), (admin.key, AsyncEvent::DiscoveryChanged.result()));
        let now = log(rig, admin).0;
        assert!(now > generation);
        generation = now;
    };
    let added = nqn("nqn.2024-01.test:added");
    let request = |rig: &mut Rig| assert_eq!(rig.request_event(admin, 1), AdminReply::Held);
    request(&mut rig);
    rig.target.add_subsystem(Subsystem::new(added.clone())).expect("valid");
    check(&mut rig);
    request(&mut rig);
    rig.target.add_host(&nqn(LISTED), nqn(OTHER_HOST)).expect("exists");
    check(&mut rig);
    request(&mut rig);
    rig.target.remove_subsystem(&added).expect("exists");
    check(&mut rig);
}

#[test]
fn a_discovery_controller_has_few_commands_and_no_io_queues() {
    let mut rig = Rig::new();
    let admin = rig.connect(DISCOVERY_NQN, HOST);
    let identify = |cns| IdentifyFields::new(cns, 0).to_sqe(1, buffer(4096));
    let data = rig.data(admin, &identify(Cns::Controller));
    let data = IdentifyController::ref_from_bytes(&data).expect("4096 bytes");
    assert_eq!((data.controller_type, data.controller_id.get()), (2, admin.controller.get()));
    assert_eq!(data.subsystem_nqn, nqn(DISCOVERY_NQN).to_field());
    assert_eq!(rig.status(admin, &identify(Cns::ActiveNamespaces)).code, StatusCode::InvalidField);
    let smart = LogFields::new(LogId::Smart, 512).to_sqe(1, buffer(512));
    assert_eq!(rig.status(admin, &smart).code, StatusCode::InvalidLogPage);
    assert_eq!(rig.status(admin, &set_feature(0x07, 0)).code, StatusCode::InvalidField);
    assert_eq!(rig.status(admin, &Sqe::new(AdminOpcode::Abort.code(), 1)).code, StatusCode::InvalidOpcode);
    let key = rig.open(1);
    let id = admin.controller.get();
    assert!(rig.try_connect(key, connect(1, 127), id, DISCOVERY_NQN, HOST).is_err());
}
