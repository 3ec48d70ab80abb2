//! The target: private data of connection requests, capsules of queues in any state, the data of Connect commands, changes of the
//! configuration, and time.
//!
//! Every command is answered or held exactly once, what is executed is inside its namespace, tables stay bounded, the embedder's
//! view of queues and controllers is the target's, and nothing is left when all queues are gone. An input consists of steps,
//! each an [`op`] and its arguments.

use std::collections::BTreeMap;

use rxe_nvmf::controller::{
    AdminReply, ControllerId, Event, FenceId, FirstCommand, Portal, QueueKey, Target, TargetConfig, first_command,
};
use rxe_nvmf::io::{BlockRange, IoOperation, IoQueue, IoRequest, Submission, dsm_ranges};
use rxe_nvmf::subsystem::{BlockSize, Limits, Namespace, NamespaceView, Subsystem};
use rxe_nvmf::wire::private_data::{QueueRequest, RejectStatus};
use rxe_nvmf::wire::{
    CONNECT_DATA_LEN, ConnectData, DSM_RANGE_LEN, DataLocation, NSID_ALL, Nqn, Response, SQE_LEN, Sqe, Status,
};
use rxe_proto::{Duration, Instant};
use zerocopy::FromBytes;

use super::message;
use crate::input::Input;

/// The steps of an input.
pub mod op {
    /// A connection request: its private data.
    pub const OPEN: u8 = 0;
    /// A capsule: queue, capsule, changes.
    pub const CAPSULE: u8 = 1;
    /// The data that the target fetches for a Connect: queue, data, changes.
    pub const FETCHED: u8 = 2;
    /// The storage completes a command: queue, number of the command, ranges of a Dataset Management.
    pub const STORED: u8 = 3;
    /// A queue is disconnected: queue.
    pub const CLOSE: u8 = 4;
    /// Time passes: milliseconds.
    pub const WAIT: u8 = 5;
    /// A namespace is added: NSID.
    pub const ADD: u8 = 6;
    /// A namespace is removed: NSID.
    pub const REMOVE: u8 = 7;
    /// A namespace gets another size: NSID, blocks.
    pub const RESIZE: u8 = 8;
    /// A transfer fails: queue.
    pub const FAIL: u8 = 9;
    /// Number of steps.
    pub const COUNT: u8 = 10;
}

/// The subsystem of the recordings.
pub const SUBSYSTEM: &str = "nqn.2024-01.test:ram";
/// Blocks of its first namespace.
const BLOCKS: u64 = 0x8_0000;
/// Longest private data of a REQ.
const PRIVATE_DATA: usize = 56;
const LIMITS: Limits = Limits {
    admin_queue_size: 32,
    queue_size: 128,
    queues_per_controller: 4,
    controllers_per_host: 2,
    controllers: 3,
    waiting_queues: 4,
    max_transfer_shift: 8,
    capsule_data: 4096,
    event_requests: 4,
    error_entries: 8,
    connect_timeout: Duration::from_secs(10),
};
const STEPS: usize = 400;

/// The embedder's view of a queue.
struct Queue {
    depth: u16,
    controller: Option<ControllerId>,
    io: Option<IoQueue>,
    fence: Option<FenceId>,
    /// A Connect whose data are being fetched.
    connect: Option<Sqe>,
    /// Command ids of held Asynchronous Event Requests.
    held: Vec<u16>,
    /// Commands in the storage.
    running: Vec<IoRequest>,
}

struct Env {
    target: Target,
    now: Instant,
    subsystem: Nqn,
    next_key: u64,
    queues: BTreeMap<QueueKey, Queue>,
    /// The admin queues of live controllers.
    controllers: BTreeMap<ControllerId, QueueKey>,
}

/// Runs a program.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut env = Env::new();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        env.step(&mut input);
        env.follow();
        env.check();
    }
    while let Some(&key) = env.queues.keys().next() {
        env.close(key);
        env.follow();
        env.check();
    }
    assert_eq!((env.target.controller_count(), env.target.next_deadline()), (0, None));
}

/// A namespace with a size that depends on its number.
fn namespace(subsystem: &Nqn, nsid: u32) -> Namespace {
    let block_size = if nsid % 2 == 1 { BlockSize::B512 } else { BlockSize::B4096 };
    let mut namespace = Namespace::new(subsystem, nsid, BLOCKS >> (nsid % 8), block_size);
    namespace.read_only = nsid % 4 == 3;
    namespace
}

impl Env {
    fn new() -> Env {
        let portals = vec![Portal { address: [192, 168, 77, 1].into(), port: 4420 }];
        let mut target = Target::new(TargetConfig { limits: LIMITS, portals, ..TargetConfig::default() });
        let mut subsystem = Subsystem::new(SUBSYSTEM.parse().expect("an NQN"));
        subsystem.namespaces.push(namespace(&subsystem.nqn, 1));
        let name = subsystem.nqn.clone();
        target.add_subsystem(subsystem).expect("a valid subsystem");
        Env {
            target,
            now: Instant::ZERO,
            subsystem: name,
            next_key: 0,
            queues: BTreeMap::new(),
            controllers: BTreeMap::new(),
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % op::COUNT {
            op::OPEN => {
                let data = message(input, PRIVATE_DATA);
                self.open(&data);
            }
            op::CAPSULE => {
                let key = self.pick(input);
                let mut capsule = message(input, SQE_LEN + LIMITS.capsule_data as usize);
                input.change(&mut capsule);
                if let Some(key) = key {
                    self.capsule(key, &capsule);
                }
            }
            op::FETCHED => {
                let key = self.pick(input);
                let mut data = message(input, CONNECT_DATA_LEN);
                input.change(&mut data);
                data.resize(CONNECT_DATA_LEN, 0);
                let sqe = key.and_then(|key| Some((key, self.queues.get_mut(&key)?.connect.take()?)));
                if let (Some((key, sqe)), Ok(data)) = (sqe, ConnectData::ref_from_bytes(&data)) {
                    self.connect(key, &sqe, data);
                }
            }
            op::STORED => {
                let (key, number) = (self.pick(input), input.u8());
                let ranges = message(input, LIMITS.capsule_data as usize);
                if let Some(key) = key {
                    self.stored(key, number, &ranges);
                }
            }
            op::CLOSE => {
                if let Some(key) = self.pick(input) {
                    self.close(key);
                }
            }
            op::WAIT => {
                self.now += Duration::from_millis(input.u16().into());
                self.target.poll(self.now);
                assert!(self.target.next_deadline().is_none_or(|deadline| deadline > self.now));
            }
            // Identifiers and sizes may be refused.
            op::ADD => {
                let namespace = namespace(&self.subsystem, u32::from(input.u8() % 8));
                let _ = self.target.add_namespace(&self.subsystem, namespace);
            }
            op::REMOVE => {
                let _ = self.target.remove_namespace(&self.subsystem, u32::from(input.u8() % 8));
            }
            op::RESIZE => {
                let (nsid, blocks) = (u32::from(input.u8() % 8), input.u64());
                let _ = self.target.resize_namespace(&self.subsystem, nsid, blocks);
            }
            _ => {
                if let Some(controller) = self.pick(input).and_then(|key| self.queues[&key].controller) {
                    self.target.fail(controller);
                }
            }
        }
    }

    fn pick(&self, input: &mut Input<'_>) -> Option<QueueKey> {
        let number = input.below(self.queues.len());
        self.queues.keys().nth(number).copied()
    }

    fn open(&mut self, data: &[u8]) {
        let request = match QueueRequest::parse(data) {
            Ok(request) => request,
            Err(status) => return assert_eq!(RejectStatus::parse(&status.to_bytes()), Some(status)),
        };
        assert_eq!(QueueRequest::parse(&request.to_bytes()), Ok(request));
        let key = QueueKey(self.next_key);
        let Ok(accept) = self.target.accept(self.now, key, &request) else { return };
        self.next_key += 1;
        let largest = if request.qid == 0 { LIMITS.admin_queue_size } else { LIMITS.queue_size };
        assert!((2..=largest).contains(&accept.controller_receives));
        let (depth, held, running) = (accept.controller_receives, Vec::new(), Vec::new());
        self.queues.insert(key, Queue { depth, controller: None, io: None, fence: None, connect: None, held, running });
    }

    fn close(&mut self, key: QueueKey) {
        let queue = self.queues.remove(&key);
        self.target.disconnected(key);
        if let Some(fence) = queue.and_then(|queue| queue.fence) {
            self.target.fenced(fence);
        }
    }

    fn capsule(&mut self, key: QueueKey, capsule: &[u8]) {
        let Some(queue) = self.queues.get(&key) else { return };
        if let Some(io) = &queue.io {
            return self.io(key, capsule, io.outstanding());
        }
        let Some((sqe, data)) = Sqe::split(capsule) else {
            // Without a command id there is no response: the service disconnects the queue.
            return self.close(key);
        };
        match queue.controller {
            None => self.first(key, sqe, data),
            Some(controller) => self.admin(key, controller, sqe),
        }
    }

    fn first(&mut self, key: QueueKey, sqe: &Sqe, data: &[u8]) {
        match first_command(sqe, data) {
            FirstCommand::Connect(data) => self.connect(key, sqe, data),
            FirstCommand::Fetch(buffer) => {
                assert_eq!(buffer.len as usize, CONNECT_DATA_LEN);
                self.queues.get_mut(&key).expect("an open queue").connect = Some(*sqe);
            }
            FirstCommand::Refuse(response) => is_refusal(sqe, &response),
        }
    }

    fn connect(&mut self, key: QueueKey, sqe: &Sqe, data: &ConnectData) {
        let granted = match self.target.connect(self.now, key, [192, 0, 2, 9].into(), sqe, data) {
            Ok(granted) => granted,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return is_refusal(sqe, &error.response);
            }
        };
        assert!(granted.response.cqe.status().is_success());
        assert_eq!(granted.response.cqe.command_id(), sqe.command_id());
        let queue = self.queues.get_mut(&key).expect("an open queue");
        assert_eq!(queue.controller.replace(granted.controller), None, "a second Connect succeeds");
        match granted.io_queue {
            Some(config) => {
                assert!(config.size <= queue.depth && self.controllers.contains_key(&granted.controller));
                queue.io = Some(IoQueue::new(config));
                queue.fence = granted.fence;
            }
            None => assert_eq!(self.controllers.insert(granted.controller, key), None, "the id of a live controller"),
        }
    }

    fn admin(&mut self, key: QueueKey, controller: ControllerId, sqe: &Sqe) {
        let reply = self.target.admin(self.now, controller, sqe);
        let queue = self.queues.get_mut(&key).expect("an open queue");
        match reply {
            AdminReply::Complete { data, response } => {
                assert_eq!(response.cqe.command_id(), sqe.command_id());
                if let Some(data) = data {
                    assert!(response.cqe.status().is_success() && data.bytes.len() == data.to.len as usize);
                    assert!(data.bytes.len() <= LIMITS.max_transfer() as usize, "{} bytes", data.bytes.len());
                }
            }
            AdminReply::Held => queue.held.push(sqe.command_id()),
            AdminReply::Gone => panic!("the controller of an open queue is gone"),
        }
        assert!(queue.held.len() <= LIMITS.event_requests.into());
    }

    fn io(&mut self, key: QueueKey, capsule: &[u8], outstanding: u16) {
        let views = self.target.namespace_views(&self.subsystem);
        let queue = self.queues.get_mut(&key).expect("an open queue");
        let io = queue.io.as_mut().expect("an I/O queue");
        match io.submit(capsule, &views) {
            Ok(Submission::Execute(request)) => {
                inside(&request, capsule.len() - SQE_LEN, &views);
                assert_eq!(io.outstanding(), outstanding + 1);
                queue.running.push(request);
            }
            Ok(Submission::Refuse(response)) => {
                let (sqe, _) = Sqe::split(capsule).expect("an entry");
                is_refusal(sqe, &response);
                assert_eq!(io.outstanding(), outstanding);
            }
            Err(fault) => {
                assert!(!fault.to_string().is_empty());
                self.target.fail(queue.controller.expect("connected"));
            }
        }
    }

    fn stored(&mut self, key: QueueKey, number: u8, ranges: &[u8]) {
        let views = self.target.namespace_views(&self.subsystem);
        let queue = self.queues.get_mut(&key).expect("an open queue");
        let (Some(io), false) = (&mut queue.io, queue.running.is_empty()) else { return };
        let request = queue.running.remove(usize::from(number) % queue.running.len());
        // The namespace may be gone by now.
        let view = views.into_iter().find(|view| view.nsid == request.nsid);
        if let (IoOperation::Dsm { ranges: count, .. }, Some(view)) = (request.operation, view)
            && let Ok(found) = dsm_ranges(ranges, count, view)
        {
            let mut left = count;
            for range in found {
                in_namespace(range, &view);
                left -= 1;
            }
            assert!(left <= count && ranges.len() >= count as usize * DSM_RANGE_LEN);
        }
        let before = io.outstanding();
        let response = io.complete(request.tag, Status::SUCCESS);
        assert!(response.cqe.status().is_success() && io.outstanding() + 1 == before);
    }

    /// Takes the actions that the target wants.
    fn follow(&mut self) {
        while let Some(event) = self.target.next_event() {
            match event {
                Event::Respond { queue, response } => {
                    let held = &mut self.queues.get_mut(&queue).expect("an open queue").held;
                    let at = held.iter().position(|&id| id == response.cqe.command_id());
                    held.remove(at.expect("a held request"));
                }
                Event::TearDown { controller, queues, .. } => {
                    if let Some(controller) = controller {
                        assert!(self.controllers.remove(&controller).is_some(), "a live controller");
                    }
                    for key in queues {
                        assert!(self.queues.contains_key(&key), "an open queue");
                        self.close(key);
                    }
                }
                Event::Ready { queues, ready, .. } => {
                    for key in queues {
                        let queue = self.queues.get_mut(&key).expect("an open queue");
                        queue.io.as_mut().expect("an I/O queue").set_ready(ready);
                    }
                }
                Event::NamespacesChanged { queues, .. } => {
                    assert!(queues.iter().all(|key| self.queues[key].io.is_some()), "an I/O queue");
                }
            }
        }
    }

    /// The embedder and the target agree, and nothing has more than its limit.
    fn check(&self) {
        assert_eq!(self.target.queue_count(), self.queues.len());
        assert_eq!(self.target.controller_count(), self.controllers.len());
        let held: usize = self.queues.values().map(|queue| queue.held.len()).sum();
        assert_eq!(self.target.held_event_requests(), held);
        let waiting = self.queues.values().filter(|queue| queue.controller.is_none()).count();
        assert!(waiting <= LIMITS.waiting_queues && self.controllers.len() <= LIMITS.controllers);
        for queue in self.queues.values() {
            let outstanding = queue.io.as_ref().map_or(0, |io| usize::from(io.outstanding()));
            assert!(outstanding == queue.running.len() && outstanding <= queue.depth.into());
        }
    }
}

fn is_refusal(sqe: &Sqe, response: &Response) {
    assert!(!response.cqe.status().is_success());
    assert_eq!(response.cqe.command_id(), sqe.command_id());
}

/// A command that is executed is inside its namespace, and its data inside the capsule or as long as its blocks.
fn inside(request: &IoRequest, capsule_data: usize, views: &[NamespaceView]) {
    if request.nsid == NSID_ALL {
        return assert_eq!(request.operation, IoOperation::Flush);
    }
    let view = views.iter().find(|view| view.nsid == request.nsid).expect("a namespace");
    assert_eq!(request.block_shift, view.block_shift);
    let data = |range: BlockRange, location: DataLocation| {
        in_namespace(range, view);
        let expected = range.byte_len(view.block_shift);
        assert!(expected <= LIMITS.max_transfer().into());
        match location {
            DataLocation::None => panic!("no data"),
            DataLocation::Host(buffer) => assert_eq!(u64::from(buffer.len), expected),
            DataLocation::Capsule { offset, len } => {
                assert_eq!(u64::from(len), expected);
                assert!(offset as usize + len as usize <= capsule_data);
            }
        }
    };
    match request.operation {
        IoOperation::Flush => {}
        IoOperation::Read { range, to } => data(range, DataLocation::Host(to)),
        IoOperation::Write { range, from, .. } => {
            assert!(!view.read_only);
            data(range, from);
        }
        IoOperation::Compare { range, from } => data(range, from),
        IoOperation::Verify { range } => in_namespace(range, view),
        IoOperation::WriteZeroes { range, .. } => {
            assert!(!view.read_only);
            in_namespace(range, view);
        }
        IoOperation::Dsm { deallocate, ranges, from } => {
            assert!(!(deallocate && view.read_only) && (1..=256).contains(&ranges));
            if let DataLocation::Capsule { offset, len } = from {
                assert!(offset as usize + len as usize <= capsule_data);
            }
        }
    }
}

fn in_namespace(range: BlockRange, view: &NamespaceView) {
    let end = range.slba.checked_add(range.blocks.into());
    assert!(end.is_some_and(|end| end <= view.blocks), "{range:?} of {} blocks", view.blocks);
}
