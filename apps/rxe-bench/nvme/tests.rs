//! The host against a target without IO, whose namespaces are in memory.

use rxe::CliError;
use rxe_nvmf::controller::{AdminReply, ControllerId, FirstCommand, QueueKey, Target, TargetConfig, first_command};
use rxe_nvmf::host::Action;
use rxe_nvmf::io::{IoOperation, IoQueue, Submission as Submitted};
use rxe_nvmf::subsystem::{AllowedHosts, BlockSize, Limits, Namespace, NamespaceView, Subsystem};
use rxe_nvmf::wire::{ConnectData, Cqe, DataLocation, HostBuffer, SQE_LEN, Status, StatusCode};
use rxe_proto::mem::Memory;
use rxe_proto::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

use super::host::{Host, Stage, memory_len, offset_of};
use super::plan::tests::plan;
use super::plan::{NvmePlan, Workload};
use super::queue::Submission;
use crate::measurement::latencies;

/// Address of the memory of the host as the target knows it.
const BASE: u64 = 0x10_0000;
const RKEY: u32 = 5;
/// Blocks of 4096 bytes of namespace 1.
const BLOCKS: u64 = 64;
/// Time between the submission of a command and its response.
const TIME: Duration = Duration::from_micros(10);

/// A host, and a target with two namespaces.
struct Rig {
    plan: NvmePlan,
    host: Host,
    memory: Memory,
    target: Target,
    controller: Option<ControllerId>,
    queues: Vec<IoQueue>,
    views: Vec<NamespaceView>,
    disk: Vec<u8>,
    now: Instant,
    /// Submitted and not executed.
    running: Vec<(u16, Submission)>,
    /// Writes that the target loses although it reports success, from this one on.
    writes_until_loss: Option<u32>,
    writes: u32,
}

impl Rig {
    fn new(plan: NvmePlan) -> Rig {
        Rig::with(plan, TargetConfig::default())
    }

    fn with(plan: NvmePlan, config: TargetConfig) -> Rig {
        let mut target = Target::new(config);
        let mut subsystem = Subsystem::new(plan.subsystem.clone());
        // The host of the plan, and its name only.
        subsystem.hosts = AllowedHosts::Only(["nqn.2024-01.host:one".parse().unwrap()].into());
        subsystem.namespaces = vec![
            Namespace::new(&subsystem.nqn, 1, BLOCKS, BlockSize::B4096),
            Namespace { read_only: true, ..Namespace::new(&subsystem.nqn, 3, 1000, BlockSize::B512) },
        ];
        let views = subsystem.views();
        target.add_subsystem(subsystem).unwrap();
        let remote = HostBuffer { addr: BASE, len: 0, rkey: RKEY, invalidate: false };
        Rig {
            host: Host::new(&plan, remote),
            memory: Memory::heap(memory_len(&plan)),
            plan,
            target,
            controller: None,
            queues: Vec::new(),
            views,
            disk: vec![0; BLOCKS as usize * 4096],
            now: Instant::ZERO,
            running: Vec::new(),
            writes_until_loss: None,
            writes: 0,
        }
    }

    /// Takes the actions of the session until there are none.
    fn act(&mut self) -> Result<(), CliError> {
        while let Some(action) = self.host.next_action() {
            match action {
                Action::OpenQueue { qid, request } => {
                    self.target.accept(self.now, QueueKey(u64::from(qid)), &request).unwrap();
                    self.host.queue_opened(qid)?;
                }
                Action::CloseQueue { qid } => {
                    self.target.disconnected(QueueKey(u64::from(qid)));
                    self.host.queue_closed(qid)?;
                }
                Action::Send { qid, sqe, capsule, buffer, .. } => {
                    if let Some(data) = &buffer {
                        self.memory.write(0, data.as_bytes()).unwrap();
                    }
                    let capsule = capsule.as_ref().map_or(&[][..], |data| data.as_bytes());
                    let response = match self.controller.filter(|_| qid == 0) {
                        Some(controller) => match self.target.admin(self.now, controller, &sqe) {
                            AdminReply::Complete { data, response } => {
                                if let Some(data) = data {
                                    self.memory.write(0, &data.bytes).unwrap();
                                }
                                response
                            }
                            AdminReply::Held => continue,
                            AdminReply::Gone => panic!("the controller is gone"),
                        },
                        None => {
                            let data = match first_command(&sqe, capsule) {
                                FirstCommand::Connect(data) => *data,
                                FirstCommand::Fetch(_) => ConnectData::read_from_bytes(&self.bytes(0, 1024)).unwrap(),
                                FirstCommand::Refuse(response) => panic!("{response:?}"),
                            };
                            let client = [192, 0, 2, 9].into();
                            match self.target.connect(self.now, QueueKey(u64::from(qid)), client, &sqe, &data) {
                                Ok(granted) => {
                                    self.controller = Some(granted.controller);
                                    self.queues.extend(granted.io_queue.map(IoQueue::new));
                                    granted.response
                                }
                                Err(error) => error.response,
                            }
                        }
                    };
                    self.host.response(qid, &response.cqe, None, self.now, &self.memory)?;
                }
            }
        }
        Ok(())
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes).unwrap();
        bytes
    }

    /// Submits on all queues as long as the host has slots.
    fn submit(&mut self) -> Result<(), CliError> {
        for qid in 1..=self.plan.queues {
            while let Some(submission) = self.host.submit(qid, self.now, &self.memory)? {
                self.running.push((qid, submission));
            }
        }
        Ok(())
    }

    /// Executes the running command with this index, and reports response and acknowledgement in one of both orders.
    fn execute(&mut self, index: usize) -> Result<(), CliError> {
        let (qid, submission) = self.running.swap_remove(index);
        let size = self.plan.size as usize;
        let data = self.bytes(offset_of(&self.plan, usize::from(qid - 1)) + usize::from(submission.slot) * size, size);
        let mut capsule = submission.sqe.as_bytes().to_vec();
        if submission.in_capsule {
            capsule.extend(&data);
        }
        let queue = &mut self.queues[usize::from(qid - 1)];
        let response = match queue.submit(&capsule, &self.views).unwrap() {
            Submitted::Refuse(response) => response,
            Submitted::Execute(request) => {
                match request.operation {
                    IoOperation::Read { range, to } => {
                        assert_eq!((to.rkey, to.invalidate, to.len), (RKEY, false, self.plan.size));
                        let start = range.byte_offset(request.block_shift) as usize;
                        self.memory.write((to.addr - BASE) as usize, &self.disk[start..start + size]).unwrap();
                    }
                    IoOperation::Write { range, from, .. } => {
                        let data = match from {
                            DataLocation::Capsule { offset, len } => {
                                capsule[SQE_LEN + offset as usize..][..len as usize].to_vec()
                            }
                            DataLocation::Host(from) => {
                                let mut data = vec![0; from.len as usize];
                                self.memory.read((from.addr - BASE) as usize, &mut data).unwrap();
                                data
                            }
                            DataLocation::None => panic!("a write without data"),
                        };
                        self.writes += 1;
                        if self.writes_until_loss.is_none_or(|until| self.writes <= until) {
                            let start = range.byte_offset(request.block_shift) as usize;
                            self.disk[start..start + data.len()].copy_from_slice(&data);
                        }
                    }
                    other => panic!("{other:?}"),
                }
                self.queues[usize::from(qid - 1)].complete(request.tag, Status::SUCCESS)
            }
        };
        self.now += TIME;
        // Others are not signaled.
        let acknowledged_first = submission.in_capsule && index.is_multiple_of(2);
        if acknowledged_first {
            self.host.sent(qid, submission.slot);
        }
        self.host.response(qid, &response.cqe, response.invalidate, self.now, &self.memory)?;
        if submission.in_capsule && !acknowledged_first {
            // The slot is still in use.
            self.submit()?;
            assert!(self.running.iter().all(|(other, running)| (*other, running.slot) != (qid, submission.slot)));
            self.host.sent(qid, submission.slot);
        }
        Ok(())
    }

    /// Connects, and runs until `ios` I/Os are complete.
    fn run(&mut self, ios: u64) -> Result<(), CliError> {
        self.act()?;
        assert_eq!(self.host.stage(), Stage::Running);
        let mut turn = 0;
        while self.host.counts.done() < ios {
            self.submit()?;
            let outstanding = usize::from(self.plan.queues) * usize::from(self.plan.depth);
            assert_eq!(self.running.len(), outstanding, "the depth is constant");
            turn += 7;
            self.execute(turn % outstanding)?;
        }
        Ok(())
    }

    /// Stops, and runs until all queues are disconnected.
    fn finish(&mut self) -> Result<(), CliError> {
        self.host.stop();
        while !self.running.is_empty() {
            self.execute(0)?;
            if self.host.stage() == Stage::Draining {
                self.submit()?;
            }
        }
        assert_eq!(self.host.stage(), Stage::Closing);
        self.act()?;
        assert_eq!(self.host.stage(), Stage::Closed);
        assert_eq!((self.target.controller_count(), self.target.queue_count()), (0, 0));
        Ok(())
    }
}

#[test]
fn every_workload_keeps_its_depth_and_ends_in_order() {
    for (workload, reads) in [
        (Workload::Read, 100),
        (Workload::Write, 0),
        (Workload::RandRead, 100),
        (Workload::RandWrite, 0),
        (Workload::Rw, 70),
        (Workload::RandRw, 30),
    ] {
        for (size, verify) in [(4096, false), (4096, true), (8192, false), (8192, true)] {
            let mut rig = Rig::new(NvmePlan { workload, reads, size, verify, queues: 2, depth: 3, ..plan() });
            rig.run(500).unwrap();
            rig.finish().unwrap();
            let counts = &rig.host.counts;
            assert!(counts.done() >= 500 && counts.errors.is_empty(), "{workload:?}: {counts:?}");
            assert_eq!((counts.reads == 0, counts.writes == 0), (reads == 0, reads == 100), "{workload:?}");
            let each = u64::from(size / 4096);
            if verify {
                // Each write is read back.
                assert!(counts.checked >= counts.writes * each, "{workload:?}: {counts:?}");
                assert!(reads == 0 || reads == 100 || counts.checked > counts.writes * each, "reads are checked too");
            } else {
                assert_eq!(counts.checked, 0);
            }
        }
    }
}

#[test]
fn data_of_writes_are_in_the_capsule_if_they_fit() {
    for (capsule_data, in_capsule) in [(4096, true), (0, false), (4080, false)] {
        let config = TargetConfig { limits: Limits { capsule_data, ..Limits::default() }, ..TargetConfig::default() };
        let mut rig = Rig::with(NvmePlan { workload: Workload::Rw, reads: 50, ..plan() }, config);
        rig.act().unwrap();
        rig.submit().unwrap();
        let mut writes = 0;
        for _ in 0..50 {
            let is_write = |submission: &Submission| submission.sqe.opcode() == 1;
            writes += rig.running.iter().filter(|(_, submission)| is_write(submission)).count();
            assert!(rig.running.iter().all(|(_, one)| one.in_capsule == (in_capsule && is_write(one))));
            rig.execute(0).unwrap();
            rig.submit().unwrap();
        }
        assert!(writes > 0);
    }
}

#[test]
fn latency_is_the_time_from_submission_to_response() {
    let mut rig = Rig::new(NvmePlan { depth: 1, ..plan() });
    rig.host.latency = latencies();
    rig.run(100).unwrap();
    let latency = rig.host.latency.take().unwrap();
    assert_eq!(latency.len(), 100);
    for nanos in [latency.min(), latency.max()] {
        assert!(nanos.abs_diff(TIME.as_nanos() as u64) < 20, "{nanos}");
    }
}

#[test]
fn a_lost_write_is_found_when_it_is_read_back() {
    for until in [0, 20] {
        let mut rig = Rig::new(NvmePlan { workload: Workload::Write, reads: 0, verify: true, ..plan() });
        rig.writes_until_loss = Some(until);
        let error = rig.run(500).expect_err("a lost write");
        let sentence = error.to_string();
        assert!(sentence.starts_with("10.0.0.1:4420: the data of block "), "{sentence}");
        // The place was empty, or had an earlier write.
        assert!(sentence.contains("its CRC-32C is ") || sentence.contains("it is from write "), "{sentence}");
        assert_eq!(error.exit_code(), 1);
    }
}

#[test]
fn a_changed_byte_is_found_when_it_is_read() {
    let mut rig = Rig::new(NvmePlan { workload: Workload::RandRw, reads: 50, verify: true, ..plan() });
    rig.run(1000).unwrap();
    // Each block is written by now, most likely; the check of a write cannot find this.
    for block in rig.disk.chunks_mut(4096) {
        block[4000] ^= 1;
    }
    let error = rig.run(2000).expect_err("a changed byte").to_string();
    assert!(error.contains("its CRC-32C is "), "{error}");
}

#[test]
fn failed_commands_are_counted_by_status_and_the_load_goes_on() {
    let mut rig = Rig::new(NvmePlan { workload: Workload::RandRw, reads: 50, size: 512, namespace: 3, ..plan() });
    rig.act().unwrap();
    rig.disk.resize(1000 * 512, 0);
    rig.run(100).unwrap();
    let counts = rig.host.counts.clone();
    let [(code, failed)] = counts.errors[..] else { panic!("{counts:?}") };
    assert_eq!((code, counts.writes), (StatusCode::NamespaceWriteProtected, 0));
    assert!(failed > 20 && counts.reads >= 100, "{counts:?}");
    rig.finish().unwrap();
}

#[test]
fn a_response_for_no_command_ends_the_run() {
    let mut rig = Rig::new(plan());
    rig.run(10).unwrap();
    let cqe = Cqe::new(0x0FFF, Status::SUCCESS).with_queue(1, 0);
    let error = rig.host.response(1, &cqe, None, rig.now, &rig.memory).expect_err("no command");
    assert!(error.to_string().contains("the target breaks the protocol"), "{error}");
}

#[test]
fn keep_alives_are_sent_during_a_long_run() {
    let mut rig = Rig::new(plan());
    rig.run(10).unwrap();
    for _ in 0..20 {
        rig.now += Duration::from_secs(2);
        rig.host.tick(rig.now);
        rig.act().unwrap();
        rig.target.poll(rig.now);
        assert_eq!(rig.target.controller_count(), 1);
    }
    rig.finish().unwrap();
}

#[test]
fn what_the_target_does_not_allow_is_named_before_the_first_command() {
    let refused = |plan: NvmePlan, config| {
        let mut rig = Rig::with(plan, config);
        let error = rig.act().expect_err("refused");
        assert_eq!(error.exit_code(), 2, "{error}");
        assert_eq!(rig.host.submit(1, rig.now, &rig.memory).unwrap(), None);
        error.to_string()
    };
    let small = TargetConfig {
        limits: Limits { queues_per_controller: 2, queue_size: 8, max_transfer_shift: 1, ..Limits::default() },
        ..TargetConfig::default()
    };
    for (plan, config, words) in [
        (
            NvmePlan { namespace: 2, ..plan() },
            None,
            "--namespace 2: nqn.2024-01.test:disk at 10.0.0.1:4420 has no such",
        ),
        (NvmePlan { namespace: 2, ..plan() }, None, "it has 1, 3"),
        (NvmePlan { size: 512, ..plan() }, None, "-o 512: the namespace has blocks of 4096 bytes"),
        (NvmePlan { size: 12_288, ..plan() }, Some(small.clone()), "-o 12288: 10.0.0.1:4420 allows 8192 bytes"),
        (NvmePlan { size: 1 << 20, verify: true, ..plan() }, None, "-o 1048576: the namespace has 64 blocks"),
        (NvmePlan { size: 1 << 17, verify: true, ..plan() }, None, "--verify: the namespace has room for 2 I/Os"),
        (NvmePlan { queues: 3, ..plan() }, Some(small.clone()), "-P 3: 10.0.0.1:4420 grants 2 I/O queues"),
        (NvmePlan { depth: 8, ..plan() }, Some(small), "-q 8: 10.0.0.1:4420 allows 7 outstanding I/Os"),
        (
            NvmePlan { host_nqn: "nqn.2024-01.host:two".parse().unwrap(), ..plan() },
            None,
            "10.0.0.1:4420 refuses Connect (connect: invalid host (0x184)): the host nqn.2024-01.host:two may not use",
        ),
    ] {
        let error = refused(plan, config.unwrap_or_default());
        assert!(error.contains(words), "{words}: {error}");
    }
    let mut rig = Rig::new(plan());
    let other = NvmePlan { subsystem: "nqn.2024-01.test:other".parse().unwrap(), ..plan() };
    rig.host = Host::new(&other, HostBuffer { addr: BASE, len: 0, rkey: RKEY, invalidate: false });
    let error = rig.act().expect_err("unknown").to_string();
    assert!(error.contains("it has no subsystem nqn.2024-01.test:other: check --nqn"), "{error}");
}
