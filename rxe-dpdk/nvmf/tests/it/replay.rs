//! Recorded hosts against this target, configured as the recorded one. Every answer is compared with nvmet's.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use rxe_nvmf::controller::{
    AdminReply, ControllerId, Event, FenceId, FirstCommand, Portal, QueueKey, Target, TargetConfig, TeardownReason,
    first_command,
};
use rxe_nvmf::io::{IoOperation, IoQueue, IoRequest, Submission, dsm_ranges};
use rxe_nvmf::subsystem::{BlockSize, Limits, Namespace, Subsystem};
use rxe_nvmf::wire::identify::OptionalCommands;
use rxe_nvmf::wire::private_data::{QueueAccept, QueueRequest};
use rxe_nvmf::wire::{ConnectData, Cqe, DataLocation, FABRICS_OPCODE, Nqn, Response, Sqe, Status};
use rxe_proto::Instant;
use zerocopy::FromBytes;

use crate::capture::{Recorded, recorded};
use crate::replay_differences::{DIFFERENCES, Part};
use crate::rig::CLIENT;

/// Blocks of the recorded RAM disks of 256 MiB.
const BLOCKS: u64 = 0x8_0000;

fn nqn() -> Nqn {
    "nqn.2024-01.test:ram".parse().expect("an NQN")
}

/// UUIDs of the recorded namespaces, in the order of the NSIDs.
const UUIDS: [&str; 2] = ["a321fe3a-b2bc-4c3b-9815-40f60dd1c9ab", "c1219597-141e-489e-9188-d1d43f0dc8de"];

fn namespace(nsid: u32) -> Namespace {
    let mut namespace = Namespace::new(&nqn(), nsid, BLOCKS, BlockSize::B512);
    namespace.uuid = UUIDS[nsid as usize - 1].parse().expect("a UUID");
    namespace
}

/// The recorded target.
fn target() -> Target {
    let config = TargetConfig {
        limits: Limits { queues_per_controller: 128, error_entries: 128, ..Limits::default() },
        commands: OptionalCommands::DATASET_MANAGEMENT | OptionalCommands::WRITE_ZEROES,
        write_cache: true,
        firmware: "6.1.0-56".into(),
        portals: vec![Portal { address: IpAddr::from([192, 168, 77, 1]), port: 4420 }],
    };
    let mut target = Target::new(config);
    let mut subsystem = Subsystem::new(nqn());
    subsystem.serial = "ROCETEST01".into();
    subsystem.model = "Linux".into();
    subsystem.namespaces.push(namespace(1));
    target.add_subsystem(subsystem).expect("a valid subsystem");
    target
}

/// What this target answered.
enum Answer {
    Held(Sqe),
    Given { sqe: Sqe, response: Response, data: Option<Vec<u8>> },
}

#[derive(Default)]
struct Queue {
    qid: u16,
    controller: Option<ControllerId>,
    io: Option<IoQueue>,
    fence: Option<FenceId>,
}

struct Replay {
    target: Target,
    /// Whether the host connects to the discovery subsystem.
    discovery: bool,
    queues: Vec<Queue>,
    answers: HashMap<(usize, u16), Answer>,
    /// Commands whose data are being fetched.
    fetching: HashMap<(usize, u32), (Sqe, Option<IoRequest>)>,
    written: HashMap<(usize, u32), Vec<u8>>,
    /// Blocks that are not zero.
    disk: HashMap<(u32, u64), Vec<u8>>,
    compared: usize,
    used: BTreeSet<usize>,
    unlisted: Vec<String>,
}

impl Replay {
    fn run(name: &str) -> Replay {
        let mut replay = Replay {
            target: target(),
            discovery: name.contains("discover"),
            queues: Vec::new(),
            answers: HashMap::new(),
            fetching: HashMap::new(),
            written: HashMap::new(),
            disk: HashMap::new(),
            compared: 0,
            used: BTreeSet::new(),
            unlisted: Vec::new(),
        };
        while replay.target.next_event().is_some() {}
        for message in recorded(name) {
            replay.step(message);
        }
        assert!(replay.fetching.is_empty() && replay.written.is_empty());
        let left: Vec<u8> = replay.answers.values().map(|answer| answer.sqe().opcode()).collect();
        assert!(left.iter().all(|&opcode| opcode == 0x0C), "{name}: unanswered commands {left:02x?}");
        assert_eq!((replay.target.controller_count(), replay.target.queue_count()), (0, 0), "{name}");
        replay
    }

    fn step(&mut self, message: Recorded) {
        match message {
            Recorded::Request { queue, data } => {
                let request = QueueRequest::parse(&data).expect("a request");
                assert_eq!(request.to_bytes(), data[..32]);
                self.queues.push(Queue { qid: request.qid, ..Queue::default() });
                assert_eq!(queue + 1, self.queues.len());
                let accept = self.target.accept(Instant::ZERO, key(queue), &request).expect("accepted");
                assert_eq!(accept.controller_receives, request.host_sqsize + 1);
            }
            Recorded::Accept { queue, data } => {
                let expected = if self.queues[queue].qid == 0 { 32 } else { 128 };
                let accept = QueueAccept { controller_receives: expected };
                assert_eq!(data[..32], accept.to_bytes());
            }
            Recorded::Command { queue, capsule } => self.command(queue, &capsule),
            Recorded::Fetched { queue, rkey, data } => {
                match self.fetching.remove(&(queue, rkey)).expect("a command that waits for its data") {
                    (sqe, None) => self.connect(queue, &sqe, &data),
                    (sqe, Some(request)) => self.execute(queue, &sqe, request, &data),
                }
            }
            Recorded::Written { queue, rkey, data } => {
                self.written.entry((queue, rkey)).or_default().extend(data);
            }
            Recorded::Response { queue, capsule, invalidate } => self.compare(queue, &capsule, invalidate),
            Recorded::Disconnect { queue } => self.disconnect(queue),
        }
    }

    fn command(&mut self, queue: usize, capsule: &[u8]) {
        let (sqe, data) = Sqe::split(capsule).expect("an entry");
        let sqe = *sqe;
        match (self.queues[queue].controller, self.queues[queue].qid) {
            (None, _) => match first_command(&sqe, data) {
                FirstCommand::Connect(_) => self.connect(queue, &sqe, data),
                FirstCommand::Fetch(buffer) => {
                    self.fetching.insert((queue, buffer.rkey), (sqe, None));
                }
                FirstCommand::Refuse(response) => self.answer(queue, sqe, response, None),
            },
            (Some(controller), 0) => match self.target.admin(Instant::ZERO, controller, &sqe) {
                AdminReply::Complete { data, response } => {
                    self.answer(queue, sqe, response, data.map(|data| data.bytes));
                }
                AdminReply::Held => {
                    self.answers.insert((queue, sqe.command_id()), Answer::Held(sqe));
                }
                AdminReply::Gone => panic!("the controller is gone"),
            },
            (Some(_), _) => {
                let namespaces = self.target.namespace_views(&nqn());
                let io = self.queues[queue].io.as_mut().expect("an I/O queue");
                match io.submit(capsule, &namespaces).expect("no fault") {
                    Submission::Refuse(response) => self.answer(queue, sqe, response, None),
                    Submission::Execute(request) => match request.operation {
                        IoOperation::Write { from: DataLocation::Host(buffer), .. } => {
                            self.fetching.insert((queue, buffer.rkey), (sqe, Some(request)));
                        }
                        _ => self.execute(queue, &sqe, request, data),
                    },
                }
            }
        }
    }

    fn connect(&mut self, queue: usize, sqe: &Sqe, data: &[u8]) {
        let data = ConnectData::ref_from_prefix(data).expect("the data of a Connect").0;
        let response = match self.target.connect(Instant::ZERO, key(queue), CLIENT, sqe, data) {
            Ok(granted) => {
                self.queues[queue].controller = Some(granted.controller);
                self.queues[queue].fence = granted.fence;
                self.queues[queue].io = granted.io_queue.map(IoQueue::new);
                granted.response
            }
            Err(error) => error.response,
        };
        self.answer(queue, *sqe, response, None);
    }

    /// Executes an I/O command on the disk.
    fn execute(&mut self, queue: usize, sqe: &Sqe, request: IoRequest, data: &[u8]) {
        let IoRequest { tag, nsid, block_shift, operation } = request;
        let block = 1 << block_shift;
        let mut read = None;
        match operation {
            IoOperation::Read { range, .. } => {
                let blocks = range.slba..range.slba + u64::from(range.blocks);
                let bytes = blocks.flat_map(|lba| self.disk.get(&(nsid, lba)).cloned().unwrap_or(vec![0; block]));
                read = Some(bytes.collect());
            }
            IoOperation::Write { range, .. } => {
                for (lba, bytes) in (range.slba..).zip(data.chunks(block)) {
                    self.disk.insert((nsid, lba), bytes.to_vec());
                }
            }
            IoOperation::WriteZeroes { range, .. } => {
                self.disk.retain(|&(of, lba), _| {
                    of != nsid || !(range.slba..range.slba + u64::from(range.blocks)).contains(&lba)
                });
            }
            IoOperation::Dsm { ranges, deallocate, .. } => {
                assert!(deallocate);
                let view = namespace(nsid).view();
                let ranges: Vec<_> = dsm_ranges(data, ranges, view).expect("in range").collect();
                // nvmf-rdma-cmds: 64 KiB at 2 MiB.
                assert_eq!(ranges.iter().map(|range| (range.slba, range.blocks)).collect::<Vec<_>>(), [(4096, 128)]);
            }
            IoOperation::Flush | IoOperation::Verify { .. } | IoOperation::Compare { .. } => {}
        }
        let io = self.queues[queue].io.as_mut().expect("an I/O queue");
        let response = io.complete(tag, Status::SUCCESS);
        self.answer(queue, *sqe, response, read);
    }

    fn answer(&mut self, queue: usize, sqe: Sqe, response: Response, data: Option<Vec<u8>>) {
        let previous = self.answers.insert((queue, sqe.command_id()), Answer::Given { sqe, response, data });
        assert!(previous.is_none(), "two answers to one command");
    }

    fn compare(&mut self, queue: usize, capsule: &[u8], invalidate: Option<u32>) {
        let theirs = Cqe::read_from_bytes(capsule).expect("a completion");
        let answer = self.answers.remove(&(queue, theirs.command_id())).expect("an answer to the same command");
        let (sqe, ours, data) = match answer {
            Answer::Given { sqe, response, data } => (sqe, response, data),
            Answer::Held(sqe) => {
                // The recorded target got its second namespace here.
                self.target.add_namespace(&nqn(), namespace(2)).expect("a valid namespace");
                let events: Vec<Event> = std::iter::from_fn(|| self.target.next_event()).collect();
                let [Event::NamespacesChanged { .. }, Event::Respond { response, .. }] = events[..] else {
                    panic!("{events:?}")
                };
                (sqe, response, None)
            }
        };
        self.compared += 1;
        let label = self.label(queue, &sqe);
        assert_eq!(ours.invalidate, invalidate, "{label}: invalidated key");
        let place = |cqe: &Cqe| (cqe.sq_head(), cqe.sq_id(), cqe.command_id());
        assert_eq!(place(&ours.cqe), place(&theirs), "{label}: head, queue and command id");
        if ours.cqe.result() != theirs.result() {
            let what = format!("{:#x} instead of {:#x}", ours.cqe.result(), theirs.result());
            self.differs(&label, Part::Result, &what);
        }
        if ours.cqe.status() != theirs.status() {
            let what = format!("{:?} instead of {:?}", ours.cqe.status(), theirs.status());
            self.differs(&label, Part::Status, &what);
        }
        let rkey = sqe.sgl().ok().and_then(|descriptor| descriptor.invalidate_key());
        let recorded = rkey.and_then(|rkey| self.written.remove(&(queue, rkey)));
        match (data, recorded) {
            (Some(ours), Some(theirs)) => self.compare_data(&label, &ours, &theirs),
            (None, Some(theirs)) => self.differs(&label, Part::NoData, &format!("{} bytes missing", theirs.len())),
            (Some(_), None) => panic!("{label}: data that nvmet did not send"),
            (None, None) => {}
        }
    }

    fn compare_data(&mut self, label: &str, ours: &[u8], theirs: &[u8]) {
        assert_eq!(ours.len(), theirs.len(), "{label}: length of the data");
        for (at, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            if ours != theirs {
                self.differs(label, Part::Data(at..at + 1), &format!("{ours:#04x} instead of {theirs:#04x}"));
            }
        }
    }

    /// Looks a difference up in the table.
    fn differs(&mut self, label: &str, part: Part, what: &str) {
        let covers = |listed: &Part| match (listed, &part) {
            (Part::Data(listed), Part::Data(at)) => listed.contains(&at.start),
            (listed, part) => listed == part,
        };
        match DIFFERENCES.iter().position(|(command, listed, _)| *command == label && covers(listed)) {
            Some(index) => {
                self.used.insert(index);
            }
            None => self.unlisted.push(format!("{label} {part:?}: {what}")),
        }
    }

    fn disconnect(&mut self, queue: usize) {
        self.target.disconnected(key(queue));
        if let Some(fence) = self.queues[queue].fence.take() {
            self.target.fenced(fence);
        }
        let events: Vec<Event> = std::iter::from_fn(|| self.target.next_event()).collect();
        match (self.queues[queue].qid, self.queues[queue].controller) {
            (0, controller @ Some(_)) => {
                let torn_down = Event::TearDown { controller, reason: TeardownReason::HostShutdown, queues: vec![] };
                assert_eq!(events, [torn_down]);
            }
            _ => assert_eq!(events, []),
        }
    }

    /// The command's name in the table of differences.
    fn label(&self, queue: usize, sqe: &Sqe) -> String {
        let [cdw10, offset, ..] = sqe.cdws();
        let name = match (self.queues[queue].qid, sqe.opcode()) {
            (_, FABRICS_OPCODE) => match sqe.fabrics_type() {
                0x00 => format!("Property Set {offset:02x}"),
                0x01 => "Connect".into(),
                _ => format!("Property Get {offset:02x}"),
            },
            (0, 0x02) => format!("Get Log {:02x}", cdw10 as u8),
            (0, 0x06) => format!("Identify {:02x}", cdw10 as u8),
            (0, 0x09) => format!("Set Features {:02x}", cdw10 as u8),
            (0, 0x0A) => format!("Get Features {:02x}", cdw10 as u8),
            (0, 0x0C) => "Asynchronous Event Request".into(),
            (0, 0x18) => "Keep Alive".into(),
            (_, opcode) => format!("I/O {opcode:02x}"),
        };
        if self.discovery { format!("discovery {name}") } else { name }
    }
}

impl Answer {
    fn sqe(&self) -> &Sqe {
        match self {
            Answer::Held(sqe) | Answer::Given { sqe, .. } => sqe,
        }
    }
}

fn key(queue: usize) -> QueueKey {
    QueueKey(queue as u64)
}

fn check(name: &str, compared: usize) {
    let replay = Replay::run(name);
    assert!(replay.unlisted.is_empty(), "{name}:\n{}", replay.unlisted.join("\n"));
    assert_eq!(replay.compared, compared, "{name}: compared answers");
}

#[test]
fn connect_io_and_disconnect_are_answered_as_recorded() {
    check("nvmf-rdma.pcap", 34);
}

#[test]
fn discovery_is_answered_as_recorded() {
    check("nvmf-rdma-discover.pcap", 15);
}

#[test]
fn management_commands_and_events_are_answered_as_recorded() {
    check("nvmf-rdma-cmds.pcap", 63);
}

#[test]
fn every_listed_difference_occurs() {
    let used: BTreeSet<usize> = ["nvmf-rdma.pcap", "nvmf-rdma-discover.pcap", "nvmf-rdma-cmds.pcap"]
        .into_iter()
        .flat_map(|name| Replay::run(name).used)
        .collect();
    let unused: Vec<_> =
        (0..DIFFERENCES.len()).filter(|index| !used.contains(index)).map(|index| &DIFFERENCES[index]).collect();
    assert!(unused.is_empty(), "{unused:#?}");
}
