//! Every command and every refusal, one queue.

use proptest::prelude::*;

use super::*;
use crate::wire::identify::OptionalCommands;
use crate::wire::{
    Cqe, DataLocation, DatasetManagement, DsmRange, FabricsType, HostBuffer, IoOpcode, NSID_ALL, RwFields,
    SglDescriptor, Sqe, Status, StatusCode,
};
use zerocopy::IntoBytes;

const NAMESPACES: [NamespaceView; 3] = [
    NamespaceView { nsid: 1, blocks: 1000, block_shift: 9, read_only: false },
    NamespaceView { nsid: 2, blocks: 100, block_shift: 12, read_only: true },
    NamespaceView { nsid: 9, blocks: 1 << 20, block_shift: 9, read_only: false },
];

const CONFIG: IoQueueConfig = IoQueueConfig {
    qid: 3,
    size: 4,
    flow_control: true,
    ready: true,
    commands: OptionalCommands::all(),
    max_transfer: 1 << 20,
};

fn host(len: u32) -> SglDescriptor {
    SglDescriptor::Keyed(HostBuffer { addr: 0xBE40, len, rkey: 77, invalidate: true })
}

fn transfer(opcode: IoOpcode, nsid: u32, slba: u64, blocks: u32, data: SglDescriptor) -> Sqe {
    let fields = RwFields { slba, blocks, fua: false, deallocate: false };
    Sqe::new(opcode.code(), 0x5001).with_nsid(nsid).with_cdws(fields.to_cdws()).with_sgl(data)
}

fn submit(queue: &mut IoQueue, sqe: &Sqe, data: usize) -> Submission {
    let mut capsule = sqe.as_bytes().to_vec();
    capsule.resize(64 + data, 0);
    queue.submit(&capsule, &NAMESPACES).expect("no fault")
}

fn accepted(sqe: &Sqe, data: usize) -> IoOperation {
    match submit(&mut IoQueue::new(CONFIG), sqe, data) {
        Submission::Execute(request) => request.operation,
        Submission::Refuse(response) => panic!("{}", response.cqe.status()),
    }
}

fn refused_with(config: IoQueueConfig, sqe: &Sqe, data: usize) -> (StatusCode, Option<u32>) {
    match submit(&mut IoQueue::new(config), sqe, data) {
        Submission::Execute(request) => panic!("{request:?}"),
        Submission::Refuse(response) => {
            let status = response.cqe.status();
            assert!(status.dnr && response.cqe.command_id() == sqe.command_id());
            (status.code, response.invalidate)
        }
    }
}

fn refused(sqe: &Sqe, data: usize) -> StatusCode {
    refused_with(CONFIG, sqe, data).0
}

#[test]
fn each_command_becomes_its_operation() {
    let range = BlockRange { slba: 992, blocks: 8 };
    let SglDescriptor::Keyed(to) = host(4096) else { panic!("keyed") };
    assert_eq!(accepted(&transfer(IoOpcode::Read, 1, 992, 8, host(4096)), 0), IoOperation::Read { range, to });
    let from = DataLocation::Host(to);
    let write = IoOperation::Write { range, from, fua: false };
    assert_eq!(accepted(&transfer(IoOpcode::Write, 1, 992, 8, host(4096)), 0), write);
    let capsule = SglDescriptor::Capsule { offset: 0, len: 4096 };
    let write = IoOperation::Write { range, from: DataLocation::Capsule { offset: 0, len: 4096 }, fua: false };
    assert_eq!(accepted(&transfer(IoOpcode::Write, 1, 992, 8, capsule), 4096), write);
    assert_eq!(accepted(&transfer(IoOpcode::Compare, 1, 992, 8, host(4096)), 0), IoOperation::Compare { range, from });
    let none = SglDescriptor::NO_DATA;
    assert_eq!(accepted(&transfer(IoOpcode::Verify, 1, 992, 8, none), 0), IoOperation::Verify { range });
    let zeroes = IoOperation::WriteZeroes { range, deallocate: false, fua: false };
    assert_eq!(accepted(&transfer(IoOpcode::WriteZeroes, 1, 992, 8, none), 0), zeroes);
    for nsid in [1, NSID_ALL] {
        assert_eq!(accepted(&Sqe::new(IoOpcode::Flush.code(), 1).with_nsid(nsid), 0), IoOperation::Flush);
    }
    let fields = DatasetManagement { ranges: 2, deallocate: true };
    let dsm = Sqe::new(IoOpcode::DatasetManagement.code(), 1).with_nsid(1).with_cdws(fields.to_cdws());
    assert_eq!(
        accepted(&dsm.with_sgl(host(4096)), 0),
        IoOperation::Dsm { ranges: 2, deallocate: true, from: DataLocation::Host(to) }
    );
}

#[test]
fn read_ahead_hints_are_ignored_and_fua_is_kept() {
    // nvmf-rdma.pcap: limited retry, and a hint in dword 13.
    let cdws = [0, 0, 1 << 31 | 1 << 30 | 7, 7, 0, 0];
    let sqe = Sqe::new(IoOpcode::Write.code(), 1).with_nsid(1).with_cdws(cdws).with_sgl(host(4096));
    assert!(matches!(accepted(&sqe, 0), IoOperation::Write { fua: true, .. }));
}

#[test]
fn ranges_end_with_the_namespace() {
    let read = |slba, blocks, len| refused(&transfer(IoOpcode::Read, 1, slba, blocks, host(len)), 0);
    assert_eq!(read(1000, 1, 512), StatusCode::LbaOutOfRange);
    assert_eq!(read(993, 8, 4096), StatusCode::LbaOutOfRange);
    assert_eq!(read(u64::MAX, 8, 4096), StatusCode::LbaOutOfRange);
    assert_eq!(read(0, 65536, 0xFF_FFFF), StatusCode::LbaOutOfRange);
    assert!(matches!(accepted(&transfer(IoOpcode::Read, 1, 999, 1, host(512)), 0), IoOperation::Read { .. }));
}

#[test]
fn lengths_that_do_not_match_the_blocks_are_refused() {
    for len in [0, 511, 513, 0xFF_FFFF] {
        let sqe = transfer(IoOpcode::Read, 1, 0, 1, host(len));
        assert_eq!(refused(&sqe, 0), StatusCode::DataSglLengthInvalid, "{len}");
    }
    let with_data = transfer(IoOpcode::Verify, 1, 0, 1, host(512));
    assert_eq!(refused(&with_data, 0), StatusCode::DataSglLengthInvalid);
    let flush = Sqe::new(0, 1).with_nsid(NSID_ALL).with_sgl(host(512));
    assert_eq!(refused(&flush, 0), StatusCode::DataSglLengthInvalid);
    // 2^24 bytes do not fit in a descriptor, and are more than a transfer.
    let large = transfer(IoOpcode::Read, 9, 0, 32768, host(0));
    assert_eq!(refused(&large, 0), StatusCode::InvalidField);
}

#[test]
fn capsule_data_must_be_there_and_go_to_the_controller() {
    let capsule = |offset, len| SglDescriptor::Capsule { offset, len };
    let write = |descriptor, data| refused(&transfer(IoOpcode::Write, 1, 0, 1, descriptor), data);
    assert_eq!(write(capsule(0, 512), 511), StatusCode::SglOffsetInvalid);
    assert_eq!(write(capsule(1, 512), 512), StatusCode::SglOffsetInvalid);
    assert_eq!(write(capsule(u64::MAX - 511, 512), 512), StatusCode::SglOffsetInvalid);
    assert_eq!(write(capsule(0, 511), 512), StatusCode::DataSglLengthInvalid);
    let read = transfer(IoOpcode::Read, 1, 0, 1, capsule(0, 512));
    assert_eq!(refused(&read, 512), StatusCode::InvalidField);
}

#[test]
fn namespaces_must_exist_and_be_writable() {
    for nsid in [0, 3, 10, NSID_ALL] {
        let sqe = transfer(IoOpcode::Read, nsid, 0, 1, host(512));
        assert_eq!(refused(&sqe, 0), StatusCode::InvalidNamespace, "{nsid}");
    }
    assert_eq!(refused(&Sqe::new(0, 1), 0), StatusCode::InvalidNamespace, "flush of namespace 0");
    for opcode in [IoOpcode::Write, IoOpcode::WriteZeroes] {
        let data = if opcode == IoOpcode::Write { host(4096) } else { SglDescriptor::NO_DATA };
        assert_eq!(refused(&transfer(opcode, 2, 0, 1, data), 0), StatusCode::NamespaceWriteProtected);
    }
    let fields = DatasetManagement { ranges: 1, deallocate: true };
    let dsm = Sqe::new(IoOpcode::DatasetManagement.code(), 1).with_nsid(2).with_cdws(fields.to_cdws());
    assert_eq!(refused(&dsm.with_sgl(host(4096)), 0), StatusCode::NamespaceWriteProtected);
    assert!(matches!(accepted(&transfer(IoOpcode::Read, 2, 99, 1, host(4096)), 0), IoOperation::Read { .. }));
    assert!(matches!(accepted(&transfer(IoOpcode::Read, 9, 0, 1, host(512)), 0), IoOperation::Read { .. }));
}

#[test]
fn the_data_of_dataset_management_may_be_longer_than_its_ranges() {
    let fields = DatasetManagement { ranges: 256, deallocate: false };
    let dsm = Sqe::new(IoOpcode::DatasetManagement.code(), 1).with_nsid(2).with_cdws(fields.to_cdws());
    assert!(matches!(accepted(&dsm.with_sgl(host(4096)), 0), IoOperation::Dsm { ranges: 256, .. }));
    assert_eq!(refused(&dsm.with_sgl(host(4095)), 0), StatusCode::DataSglLengthInvalid);
    assert_eq!(refused(&dsm.with_sgl(host((1 << 20) + 1)), 0), StatusCode::InvalidField);
}

#[test]
fn dataset_management_ranges_are_checked_before_the_first_one_is_used() {
    let data: Vec<u8> = [DsmRange::new(0, 8), DsmRange::new(5, 0), DsmRange::new(992, 8), DsmRange::new(1000, 1)]
        .iter()
        .flat_map(|range| range.as_bytes().to_vec())
        .collect();
    let ranges: Vec<BlockRange> = dsm_ranges(&data, 3, NAMESPACES[0]).expect("in range").collect();
    assert_eq!(ranges, [BlockRange { slba: 0, blocks: 8 }, BlockRange { slba: 992, blocks: 8 }]);
    assert_eq!(dsm_ranges(&data, 4, NAMESPACES[0]).err(), Some(StatusCode::LbaOutOfRange));
    assert_eq!(dsm_ranges(&data, 5, NAMESPACES[0]).err(), Some(StatusCode::DataSglLengthInvalid));
}

#[test]
fn flags_opcodes_and_descriptors_are_checked() {
    let read = transfer(IoOpcode::Read, 1, 0, 1, host(512));
    for flags in [0x00, 0x41, 0x42, 0x80, 0xC0] {
        assert_eq!(refused(&read.with_flags(flags), 0), StatusCode::InvalidField, "{flags:#x}");
    }
    for opcode in [0x03, 0x0D, 0x7E, 0xFF] {
        assert_eq!(refused(&Sqe::new(opcode, 1).with_nsid(1), 0), StatusCode::InvalidOpcode, "{opcode:#x}");
    }
    let mut unknown = read.as_bytes().to_vec();
    unknown[39] = 0x50;
    let Ok(Submission::Refuse(response)) = IoQueue::new(CONFIG).submit(&unknown, &NAMESPACES) else {
        panic!("refused")
    };
    assert_eq!((response.cqe.status().code, response.invalidate), (StatusCode::SglTypeInvalid, None));
}

#[test]
fn optional_commands_can_be_turned_off() {
    let config = IoQueueConfig { commands: OptionalCommands::empty(), ..CONFIG };
    for opcode in [IoOpcode::Compare, IoOpcode::Verify, IoOpcode::WriteZeroes, IoOpcode::DatasetManagement] {
        let (code, _) = refused_with(config, &transfer(opcode, 1, 0, 1, SglDescriptor::NO_DATA), 0);
        assert_eq!(code, StatusCode::InvalidOpcode);
    }
}

#[test]
fn a_controller_that_is_not_ready_refuses_commands_until_it_is() {
    let read = transfer(IoOpcode::Read, 1, 0, 1, host(512));
    let mut queue = IoQueue::new(CONFIG);
    queue.set_ready(false);
    let Submission::Refuse(response) = submit(&mut queue, &read, 0) else { panic!("refused") };
    assert_eq!(response.cqe.status(), Status::permanent(StatusCode::CommandSequenceError));
    queue.set_ready(true);
    assert!(matches!(submit(&mut queue, &read, 0), Submission::Execute(_)));
}

#[test]
fn fabrics_commands_are_refused_on_a_connected_queue() {
    assert_eq!(refused(&Sqe::fabrics(FabricsType::Connect, 1), 0), StatusCode::CommandSequenceError);
    assert_eq!(refused(&Sqe::fabrics(FabricsType::PropertyGet, 1), 0), StatusCode::InvalidOpcode);
}

#[test]
fn a_refusal_invalidates_the_key_of_its_command() {
    let (_, invalidate) = refused_with(CONFIG, &transfer(IoOpcode::Read, 3, 0, 1, host(512)), 0);
    assert_eq!(invalidate, Some(77));
    let (_, none) = refused_with(CONFIG, &transfer(IoOpcode::Read, 3, 0, 1, SglDescriptor::NO_DATA), 0);
    assert_eq!(none, None);
}

#[test]
fn the_head_counts_completions_modulo_the_size() {
    let mut queue = IoQueue::new(CONFIG);
    let read = transfer(IoOpcode::Read, 1, 0, 1, host(512));
    for head in [2, 3, 0, 1] {
        let Submission::Execute(request) = submit(&mut queue, &read, 0) else { panic!("accepted") };
        let response = queue.complete(request.tag, Status::SUCCESS);
        let expected = Cqe::new(read.command_id(), Status::SUCCESS).with_queue(3, head);
        assert_eq!((response.cqe, response.invalidate), (expected, Some(77)));
    }
    let mut without = IoQueue::new(IoQueueConfig { flow_control: false, ..CONFIG });
    let Submission::Execute(request) = submit(&mut without, &read, 0) else { panic!("accepted") };
    assert_eq!(without.complete(request.tag, Status::SUCCESS).cqe.sq_head(), 0xFFFF);
}

#[test]
fn more_commands_than_entries_and_short_capsules_are_faults() {
    let mut queue = IoQueue::new(CONFIG);
    let read = transfer(IoOpcode::Read, 1, 0, 1, host(512));
    let mut running = Vec::new();
    for _ in 0..4 {
        let Submission::Execute(request) = submit(&mut queue, &read, 0) else { panic!("accepted") };
        running.push(request);
    }
    assert_eq!(queue.submit(read.as_bytes(), &NAMESPACES), Err(QueueFault::QueueOverflow(4)));
    assert_eq!(queue.submit(&[0; 63], &NAMESPACES), Err(QueueFault::ShortCapsule(63)));
    assert_eq!(queue.outstanding(), 4);
    for request in running {
        let _ = queue.complete(request.tag, Status::SUCCESS);
    }
    assert_eq!(queue.outstanding(), 0);
}

/// Entries near valid ones, and random bytes.
fn entries() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![4 => prop::sample::select(vec![0u8, 1, 2, 5, 8, 9, 12]), 1 => any::<u8>()];
    let kind = prop_oneof![4 => prop::sample::select(vec![0x01u8, 0x40, 0x4F]), 1 => any::<u8>()];
    let small =
        (opcode, kind, 0u32..12, 0u64..1100, 0u32..20, 0u32..20).prop_map(|(opcode, kind, nsid, slba, nlb, len)| {
            let fields = RwFields { slba, blocks: nlb + 1, fua: false, deallocate: false };
            let data = SglDescriptor::Keyed(HostBuffer { addr: 0, len: len * 512, rkey: 1, invalidate: false });
            let mut bytes =
                Sqe::new(opcode, 7).with_nsid(nsid).with_cdws(fields.to_cdws()).with_sgl(data).as_bytes().to_vec();
            bytes[39] = kind;
            bytes
        });
    let capsule = prop::collection::vec(any::<u8>(), 64..700);
    prop_oneof![4 => small, 1 => capsule]
}

proptest! {
    #[test]
    fn accepted_commands_stay_inside_namespace_and_buffers(entry in entries(), extra in 0usize..8192) {
        let mut capsule = entry;
        capsule.resize(capsule.len() + extra, 0);
        let mut queue = IoQueue::new(CONFIG);
        match queue.submit(&capsule, &NAMESPACES).expect("long enough") {
            Submission::Refuse(response) => prop_assert!(!response.cqe.status().is_success()),
            Submission::Execute(request) => {
                let view = NAMESPACES.iter().find(|view| view.nsid == request.nsid);
                let received = (capsule.len() - 64) as u64;
                let check = |range: BlockRange, len: Option<u64>| {
                    let view = view.expect("exists");
                    range.slba + u64::from(range.blocks) <= view.blocks
                        && len.is_none_or(|len| len == range.byte_len(view.block_shift))
                };
                let length = |location| match location {
                    DataLocation::None => 0,
                    DataLocation::Host(buffer) => u64::from(buffer.len),
                    DataLocation::Capsule { offset, len } => {
                        assert!(u64::from(offset) + u64::from(len) <= received);
                        u64::from(len)
                    }
                };
                let ok = match request.operation {
                    IoOperation::Flush => true,
                    IoOperation::Read { range, to } => check(range, Some(u64::from(to.len))),
                    IoOperation::Write { range, from, .. } | IoOperation::Compare { range, from } => {
                        check(range, Some(length(from)))
                    }
                    IoOperation::Verify { range } | IoOperation::WriteZeroes { range, .. } => check(range, None),
                    IoOperation::Dsm { ranges, from, .. } => length(from) >= u64::from(ranges) * 16,
                };
                prop_assert!(ok, "{:?}", request);
                let _ = queue.complete(request.tag, Status::SUCCESS);
            }
        }
        prop_assert_eq!(queue.outstanding(), 0);
    }
}
