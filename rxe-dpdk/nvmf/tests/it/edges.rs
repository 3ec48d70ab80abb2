//! Commands at the edges of the protocol: each has one answer with the right status.

use rxe_nvmf::controller::{AdminReply, FirstCommand, Refusal, first_command};
use rxe_nvmf::wire::identify::{Cns, IdentifyFields, IdentifyNamespace, NamespaceDescriptor, parse_descriptors};
use rxe_nvmf::wire::log::{LogFields, LogId};
use rxe_nvmf::wire::{
    AdminOpcode, ConnectAttributes, ConnectCommand, ConnectData, FabricsType, InvalidParameter, NSID_ALL, PropertyGet,
    Register, SglDescriptor, Sqe, Status, StatusCode,
};
use zerocopy::FromBytes;

use crate::rig::{CLIENT, HOST, LISTED, OPEN, OTHER_HOST, Rig, buffer, connect, nqn, set_feature};

fn identify(cns: Cns, nsid: u32) -> Sqe {
    IdentifyFields::new(cns, nsid).to_sqe(5, buffer(4096))
}

/// Status and result of a refused Connect on a new queue.
fn refused(command: ConnectCommand, controller: u16, subsystem: &str, host: &str) -> (Status, u64) {
    let mut rig = Rig::new();
    let key = rig.open(command.qid);
    let error = rig.try_connect(key, command, controller, subsystem, host).expect_err("refused");
    assert_eq!(error.response.invalidate, Some(42));
    let cqe = error.response.cqe;
    assert_eq!((cqe.status(), cqe.result()), error.refusal.status());
    (cqe.status(), cqe.result())
}

fn parameter(field: InvalidParameter) -> (Status, u64) {
    (Status::permanent(StatusCode::ConnectInvalidParameters), field.result())
}

#[test]
fn a_refused_connect_names_the_field() {
    let unknown = refused(connect(0, 31), 0xFFFF, "nqn.2024-01.test:none", HOST);
    assert_eq!(unknown, parameter(InvalidParameter::SubsystemNqn));
    assert_eq!(unknown.1, 0x10100, "nvmf-rdma-cmds.pcap");
    assert_eq!(refused(connect(0, 31), 1, OPEN, HOST), parameter(InvalidParameter::ControllerId));
    for sqsize in [0, 32, 0xFFFF] {
        assert_eq!(refused(connect(0, sqsize), 0xFFFF, OPEN, HOST), parameter(InvalidParameter::SqSize), "{sqsize}");
    }
    for id in [0, 1, 0xFFF0, 0xFFFF] {
        assert_eq!(refused(connect(1, 127), id, OPEN, HOST), parameter(InvalidParameter::ControllerId), "{id}");
    }
}

#[test]
fn the_queue_id_of_connect_must_be_that_of_the_connection() {
    let mut rig = Rig::new();
    let key = rig.open(0);
    let error = rig.try_connect(key, connect(1, 31), 0xFFFF, OPEN, HOST).expect_err("refused");
    assert_eq!(error.refusal, Refusal::Parameter(InvalidParameter::QueueId));
    assert!(rig.try_connect(key, connect(0, 31), 0xFFFF, OPEN, HOST).is_ok(), "the queue may try again");
}

#[test]
fn a_host_that_is_not_listed_is_refused_by_name() {
    let mut rig = Rig::new();
    let key = rig.open(0);
    let error = rig.try_connect(key, connect(0, 31), 0xFFFF, LISTED, OTHER_HOST).expect_err("refused");
    assert_eq!(error.response.cqe.status(), Status::permanent(StatusCode::ConnectInvalidHost));
    assert_eq!(error.response.cqe.result(), 0x10200);
    assert_eq!(error.to_string(), format!("host {OTHER_HOST} is not allowed to use {LISTED}"));
    assert!(rig.connect_only(LISTED, HOST).is_ok());
}

#[test]
fn invalid_names_and_formats_are_refused() {
    let mut rig = Rig::new();
    let key = rig.open(0);
    let sqe = connect(0, 31).to_sqe(1, buffer(1024));
    let mut data = [0; 1024];
    data[16..18].fill(0xFF);
    data[512..768].fill(b'x');
    let mut result = |data: &[u8; 1024], sqe: &Sqe| {
        let data = ConnectData::ref_from_bytes(data).expect("1024 bytes");
        rig.target.connect(rig.now, key, CLIENT, sqe, data).expect_err("refused").response.cqe
    };
    assert_eq!(result(&data, &sqe).result(), InvalidParameter::HostNqn.result());
    data[512..768].copy_from_slice(&nqn(HOST).to_field());
    assert_eq!(result(&data, &sqe).result(), InvalidParameter::SubsystemNqn.result());
    data[256..512].fill(b'x');
    assert_eq!(result(&data, &sqe).result(), InvalidParameter::SubsystemNqn.result());
    let format = result(&data, &sqe.with_cdws([1, 31, 0, 0, 0, 0])).status();
    assert_eq!(format, Status::permanent(StatusCode::ConnectIncompatibleFormat));
}

#[test]
fn a_host_without_a_name_may_use_subsystems_without_a_list_of_hosts() {
    let mut rig = Rig::new();
    let mut connect_to = |subsystem: &str| {
        let mut data = [0; 1024];
        data[16..18].fill(0xFF);
        data[256..512].copy_from_slice(&nqn(subsystem).to_field());
        let key = rig.open(0);
        let data = ConnectData::ref_from_bytes(&data).expect("1024 bytes");
        let granted = rig.target.connect(rig.now, key, CLIENT, &connect(0, 31).to_sqe(1, buffer(1024)), data);
        granted.map(|granted| granted.host.to_string()).map_err(|error| error.refusal)
    };
    let name = "nqn.2014-08.org.nvmexpress:unnamed:192.0.2.9";
    assert_eq!(connect_to(OPEN), Ok(name.to_owned()));
    let refused = Refusal::HostNotAllowed { host: nqn(name), subsystem: nqn(LISTED) };
    assert_eq!(connect_to(LISTED), Err(refused.clone()));
    // Nor if somebody lists that name.
    rig.target.add_host(&nqn(LISTED), nqn(name)).expect("it is there");
    let mut data = [0; 1024];
    data[16..18].fill(0xFF);
    data[256..512].copy_from_slice(&nqn(LISTED).to_field());
    let key = rig.open(0);
    let data = ConnectData::ref_from_bytes(&data).expect("1024 bytes");
    let sqe = connect(0, 31).to_sqe(1, buffer(1024));
    assert_eq!(rig.target.connect(rig.now, key, CLIENT, &sqe, data).expect_err("refused").refusal, refused);
}

#[test]
fn a_host_waits_until_no_command_of_its_earlier_queues_is_in_the_storage() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    let key = rig.open(1);
    let granted = rig.try_connect(key, connect(1, 127), admin.controller.get(), OPEN, HOST).expect("connected");
    let fence = granted.fence.expect("an I/O queue");
    // A second controller, while the first one lives.
    rig.connect(OPEN, HOST);
    rig.target.disconnected(key);
    rig.target.disconnected(admin.key);
    let error = rig.connect_only(OPEN, HOST).expect_err("refused");
    assert_eq!(error.refusal, Refusal::Draining(nqn(HOST)));
    assert_eq!(error.response.cqe.status(), Status::retryable(StatusCode::ConnectControllerBusy));
    // Others do not wait, nor does the host for another subsystem.
    assert!(rig.connect_only(OPEN, OTHER_HOST).is_ok() && rig.connect_only(LISTED, HOST).is_ok());
    rig.target.fenced(fence);
    assert!(rig.connect_only(OPEN, HOST).is_ok());
    assert_eq!(rig.target.fence_count(), 0);
}

#[test]
fn a_lost_io_queue_is_not_connected_again_before_its_commands_have_ended() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    let key = rig.open(1);
    let id = admin.controller.get();
    let fence = rig.try_connect(key, connect(1, 127), id, OPEN, HOST).expect("connected").fence.expect("an I/O queue");
    rig.target.disconnected(key);
    let key = rig.open(1);
    let error = rig.try_connect(key, connect(1, 127), id, OPEN, HOST).expect_err("refused");
    assert_eq!(error.refusal, Refusal::Draining(nqn(HOST)));
    rig.target.fenced(fence);
    assert!(rig.try_connect(key, connect(1, 127), id, OPEN, HOST).is_ok());
}

#[test]
fn io_queues_belong_to_the_host_and_subsystem_of_their_controller() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    let id = admin.controller.get();
    for (subsystem, host) in [(OPEN, OTHER_HOST), (LISTED, HOST)] {
        let key = rig.open(1);
        let error = rig.try_connect(key, connect(1, 127), id, subsystem, host).expect_err("refused");
        assert!(matches!(error.refusal, Refusal::UnknownController { .. }), "{error}");
    }
    rig.connect_io(admin, 1, OPEN, HOST);
    let key = rig.open(1);
    let error = rig.try_connect(key, connect(1, 127), id, OPEN, HOST).expect_err("refused");
    assert_eq!(error.refusal, Refusal::QueueExists(admin.controller, 1));
    assert_eq!(error.response.cqe.status(), Status::permanent(StatusCode::CommandSequenceError));
}

#[test]
fn io_queues_need_an_enabled_controller() {
    let mut rig = Rig::new();
    let admin = rig.connect_only(OPEN, HOST).expect("connected");
    let key = rig.open(1);
    let error = rig.try_connect(key, connect(1, 127), admin.controller.get(), OPEN, HOST).expect_err("refused");
    assert_eq!(error.refusal, Refusal::NotEnabled(admin.controller));
}

#[test]
fn a_second_connect_on_a_queue_is_out_of_sequence() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    let sqe = connect(0, 31).to_sqe(1, buffer(1024));
    assert_eq!(rig.status(admin, &sqe).code, StatusCode::CommandSequenceError);
    let error = rig.try_connect(admin.key, connect(0, 31), 0xFFFF, OPEN, HOST).expect_err("refused");
    assert_eq!(error.refusal, Refusal::AlreadyConnected);
    let unknown = rxe_nvmf::controller::QueueKey(999);
    let error = rig.try_connect(unknown, connect(0, 31), 0xFFFF, OPEN, HOST).expect_err("refused");
    assert_eq!(error.refusal, Refusal::UnknownQueue);
}

#[test]
fn only_a_connect_with_its_data_starts_a_queue() {
    let status = |sqe: &Sqe, data: &[u8]| match first_command(sqe, data) {
        FirstCommand::Refuse(response) => response.cqe.status().code,
        other => panic!("{other:?}"),
    };
    let data = [0; 1024];
    assert_eq!(status(&identify(Cns::Controller, 0), &[]), StatusCode::InvalidOpcode);
    assert_eq!(status(&Sqe::fabrics(FabricsType::PropertyGet, 1), &[]), StatusCode::InvalidOpcode);
    let sqe = |descriptor| connect(1, 127).to_sqe(1, descriptor);
    assert_eq!(status(&sqe(buffer(1023)), &[]), StatusCode::DataSglLengthInvalid);
    assert_eq!(status(&sqe(SglDescriptor::NO_DATA), &[]), StatusCode::DataSglLengthInvalid);
    let capsule = |offset| sqe(SglDescriptor::Capsule { offset, len: 1024 });
    assert_eq!(status(&capsule(0), &data[1..]), StatusCode::SglOffsetInvalid);
    assert_eq!(status(&capsule(1), &data), StatusCode::SglOffsetInvalid);
    assert_eq!(status(&capsule(0).with_flags(0), &data), StatusCode::InvalidField);
    assert!(matches!(first_command(&capsule(0), &data), FirstCommand::Connect(_)));
    assert!(matches!(first_command(&sqe(buffer(1024)), &[]), FirstCommand::Fetch(buffer) if buffer.len == 1024));
}

#[test]
fn admin_commands_need_a_ready_controller() {
    let mut rig = Rig::new();
    let admin = rig.connect_only(OPEN, HOST).expect("connected");
    let refused = |rig: &mut Rig| {
        let status = rig.status(admin, &identify(Cns::Controller, 0));
        assert_eq!((status.code, status.dnr), (StatusCode::CommandSequenceError, true));
    };
    refused(&mut rig);
    rig.configure(admin, 0x0046_0061);
    rig.data(admin, &identify(Cns::Controller, 0));
    rig.configure(admin, 0x0046_4061);
    assert_eq!(rig.register(admin, Register::Status), 8);
    refused(&mut rig);
    rig.configure(admin, 0x0046_0060);
    refused(&mut rig);
    rig.configure(admin, 0x0046_0061);
    rig.data(admin, &identify(Cns::Controller, 0));
}

#[test]
fn unknown_commands_flags_and_descriptors_are_refused() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    let code = |rig: &mut Rig, sqe: Sqe| rig.status(admin, &sqe).code;
    assert_eq!(code(&mut rig, Sqe::new(0x0D, 1)), StatusCode::InvalidOpcode);
    assert_eq!(code(&mut rig, Sqe::new(0x7F, 1).with_nsid(0x05)), StatusCode::InvalidOpcode, "authentication");
    for flags in [0x00, 0x41, 0x80] {
        assert_eq!(code(&mut rig, identify(Cns::Controller, 0).with_flags(flags)), StatusCode::InvalidField);
    }
    let length = identify(Cns::Controller, 0).with_sgl(buffer(4095));
    assert_eq!(code(&mut rig, length), StatusCode::DataSglLengthInvalid);
    let capsule = identify(Cns::Controller, 0).with_sgl(SglDescriptor::Capsule { offset: 0, len: 4096 });
    assert_eq!(code(&mut rig, capsule), StatusCode::InvalidField);
    let keep_alive = Sqe::new(AdminOpcode::KeepAlive.code(), 1);
    assert_eq!(code(&mut rig, keep_alive.with_sgl(buffer(1))), StatusCode::DataSglLengthInvalid);
    assert_eq!(code(&mut rig, keep_alive), StatusCode::Success);
    for offset in [0x04, 0x20, u32::MAX] {
        assert_eq!(code(&mut rig, PropertyGet { size: 0, offset }.to_sqe(1)), StatusCode::InvalidField);
    }
}

#[test]
fn an_abort_does_not_abort_and_says_so() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    let (cqe, _) = rig.complete(admin, &Sqe::new(AdminOpcode::Abort.code(), 1));
    assert_eq!((cqe.status(), cqe.result()), (Status::SUCCESS, 1));
}

#[test]
fn identify_covers_namespaces_that_exist_and_those_that_do_not() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    let namespace = |bytes: Vec<u8>| IdentifyNamespace::read_from_bytes(&bytes[..]).expect("4096 bytes");
    let second = namespace(rig.data(admin, &identify(Cns::Namespace, 2)));
    assert_eq!((second.size.get(), second.block_shift(), second.sharing), (100, 12, 1));
    assert_eq!(namespace(rig.data(admin, &identify(Cns::Namespace, 3))), IdentifyNamespace::zeroed());
    for nsid in [0, NSID_ALL] {
        assert_eq!(rig.status(admin, &identify(Cns::Namespace, nsid)).code, StatusCode::InvalidNamespace);
    }
    let list = rig.data(admin, &identify(Cns::ActiveNamespaces, 1));
    assert_eq!(list[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(rig.status(admin, &identify(Cns::ActiveNamespaces, NSID_ALL)).code, StatusCode::InvalidNamespace);
    let mut ids = Vec::new();
    for nsid in [1, 2] {
        let descriptors = parse_descriptors(&rig.data(admin, &identify(Cns::Descriptors, nsid)));
        assert!(matches!(descriptors[..], [NamespaceDescriptor::Nguid(_), NamespaceDescriptor::Uuid(_)]));
        ids.extend(descriptors.into_iter().map(|descriptor| format!("{descriptor:?}")));
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4, "identifiers differ");
    assert_eq!(rig.status(admin, &identify(Cns::Descriptors, 3)).code, StatusCode::InvalidNamespace);
    let other = IdentifyFields { cns: 0x10, nsid: 0, command_set: 0 }.to_sqe(1, buffer(4096));
    assert_eq!(rig.status(admin, &other).code, StatusCode::InvalidField);
}

#[test]
fn log_pages_are_read_by_offset_and_length() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    let log = |log: LogId, offset: u64, len: u32| {
        LogFields { offset, ..LogFields::new(log, u64::from(len)) }.to_sqe(6, buffer(len))
    };
    let smart = rig.data(admin, &log(LogId::Smart, 0, 512));
    assert_eq!(rig.data(admin, &log(LogId::Smart, 4, 8)), smart[4..12]);
    assert_eq!(rig.data(admin, &log(LogId::Smart, 508, 8))[4..], [0; 4], "zeroes behind the page");
    for (offset, len) in [(516, 4), (2, 4), (u64::MAX - 3, 4), (0, (1 << 20) + 4)] {
        assert_eq!(rig.status(admin, &log(LogId::Smart, offset, len)).code, StatusCode::InvalidField, "{offset} {len}");
    }
    let short = LogFields::new(LogId::Smart, 512).to_sqe(1, buffer(511));
    assert_eq!(rig.status(admin, &short).code, StatusCode::DataSglLengthInvalid);
    let huge = LogFields::new(LogId::Smart, 1 << 34).to_sqe(1, buffer(0xFF_FFFC));
    assert_eq!(rig.status(admin, &huge).code, StatusCode::DataSglLengthInvalid);
    let of_namespace = LogFields { nsid: 1, ..LogFields::new(LogId::Smart, 512) }.to_sqe(1, buffer(512));
    assert_eq!(rig.status(admin, &of_namespace).code, StatusCode::InvalidField);
    let discovery = log(LogId::Discovery, 0, 1024);
    assert_eq!(rig.status(admin, &discovery).code, StatusCode::InvalidLogPage);
    assert_eq!(rig.data(admin, &log(LogId::Firmware, 0, 512))[0], 1);
}

#[test]
fn the_error_log_has_refused_commands_newest_first() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    let status = rig.status(admin, &Sqe::new(0x0D, 0x77));
    assert!(status.more && status.dnr);
    rig.target.record_error(admin.controller, 1, 0x88, Status::permanent(StatusCode::WriteFault), 1, 5);
    let page = rig.data(admin, &LogFields::new(LogId::Error, 128).to_sqe(1, buffer(128)));
    assert_eq!((page[0], page[10], page[16]), (2, 0x88, 5));
    assert_eq!((page[64], page[74]), (1, 0x77));
}

#[test]
fn features_are_set_and_read() {
    let mut rig = Rig::new();
    let admin = rig.connect(OPEN, HOST);
    let get = |feature: u32| Sqe::new(AdminOpcode::GetFeatures.code(), 4).with_cdws([feature, 1, 0, 0, 0, 0]);
    let (cqe, _) = rig.complete(admin, &set_feature(0x07, 0x0003_0003));
    assert_eq!((cqe.status(), cqe.result()), (Status::SUCCESS, 0x000F_000F));
    for value in [0xFFFF, 0xFFFF_0000] {
        assert_eq!(rig.status(admin, &set_feature(0x07, value)).code, StatusCode::InvalidField);
    }
    rig.complete(admin, &set_feature(0x0F, 7001));
    assert_eq!(rig.complete(admin, &get(0x0F)).0.result(), 8000);
    rig.complete(admin, &set_feature(0x0B, 0x100));
    assert_eq!(rig.complete(admin, &get(0x0B)).0.result(), 0x100);
    assert_eq!(rig.complete(admin, &get(0x06)).0.result(), 1);
    assert_eq!(rig.data(admin, &get(0x81).with_sgl(buffer(16))), [7; 16]);
    assert_eq!(rig.status(admin, &get(0x81)).code, StatusCode::DataSglLengthInvalid);
    let short = Sqe::new(AdminOpcode::GetFeatures.code(), 4).with_cdws([0x81, 0, 0, 0, 0, 0]).with_sgl(buffer(16));
    assert_eq!(rig.status(admin, &short).code, StatusCode::InvalidField, "identifiers of 64 bits");
    for feature in [0x00, 0x06, 0x81, 0xFF] {
        assert_eq!(rig.status(admin, &set_feature(feature, 0)).code, StatusCode::InvalidField);
    }
}

#[test]
fn a_queue_without_flow_control_has_no_head() {
    let mut rig = Rig::new();
    let key = rig.open(0);
    let command = ConnectCommand { attributes: ConnectAttributes::NO_SQ_FLOW_CONTROL, ..connect(0, 31) };
    let granted = rig.try_connect(key, command, 0xFFFF, OPEN, HOST).expect("connected");
    assert_eq!(granted.response.cqe.sq_head(), 0xFFFF);
    let get = PropertyGet::new(Register::Version).to_sqe(1);
    let AdminReply::Complete { response, .. } = rig.target.admin(rig.now, granted.controller, &get) else {
        panic!("answered")
    };
    assert_eq!((response.cqe.sq_head(), response.cqe.result()), (0xFFFF, 0x0001_0300));
}
