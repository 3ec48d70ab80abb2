//! Random sequences of several hosts: every command is answered or held exactly once, and nothing is left at the end.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rxe_nvmf::controller::{
    AdminReply, ControllerId, Event, FenceId, FirstCommand, IoCounts, QueueKey, Target, TargetConfig, first_command,
};
use rxe_nvmf::io::{IoQueue, Submission};
use rxe_nvmf::subsystem::{BlockSize, Limits, Namespace, Subsystem};
use rxe_nvmf::wire::private_data::QueueRequest;
use rxe_nvmf::wire::{
    ConnectAttributes, ConnectCommand, ConnectData, DISCOVERY_NQN, HostBuffer, Nqn, SglDescriptor, Sqe, Status,
};
use rxe_proto::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

use crate::rig::CLIENT;

const SUBSYSTEMS: [&str; 3] = ["nqn.2024-01.test:a", "nqn.2024-01.test:b", DISCOVERY_NQN];
const HOSTS: [&str; 3] = ["nqn.2024-01.host:a", "nqn.2024-01.host:b", "nqn.2024-01.host:c"];

fn nqn(text: &str) -> Nqn {
    text.parse().expect("an NQN")
}

/// One step. `queue` chooses among the open queues.
#[derive(Clone, Debug)]
enum Step {
    Open {
        qid: u16,
        size: u16,
    },
    Connect {
        queue: usize,
        command: ConnectCommand,
        controller: u16,
        subsystem: usize,
        host: usize,
    },
    /// A whole capsule as first or later command.
    Capsule {
        queue: usize,
        capsule: Vec<u8>,
    },
    Disconnect {
        queue: usize,
    },
    Advance {
        millis: u64,
    },
    AddNamespace {
        subsystem: usize,
        nsid: u32,
    },
    RemoveNamespace {
        subsystem: usize,
        nsid: u32,
    },
    Resize {
        subsystem: usize,
        nsid: u32,
        blocks: u64,
    },
    AddSubsystem {
        subsystem: usize,
    },
    RemoveSubsystem {
        subsystem: usize,
    },
    Fail {
        controller: u16,
    },
    RecordIo {
        controller: u16,
    },
}

/// Command entries that pass the first checks more often than random bytes.
fn capsules() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![
        8 => prop::sample::select(vec![0x00u8, 0x01, 0x02, 0x05, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x0C, 0x18, 0x7F]),
        1 => any::<u8>()
    ];
    let nsid = prop_oneof![4 => 0u32..6, 1 => any::<u32>()];
    let cdw = || prop_oneof![3 => 0u32..0x20, 1 => prop::sample::select(vec![0x70, 0x81, 0x0046_0060, 0x0046_0061, 0x0046_4061]), 1 => any::<u32>()];
    let len = prop_oneof![2 => Just(0u32), 2 => Just(4096), 1 => Just(512), 1 => 0u32..0x100_0000];
    let entry = (opcode, any::<u16>(), nsid, [cdw(), cdw(), cdw(), cdw(), cdw(), cdw()], len, any::<bool>()).prop_map(
        |(opcode, id, nsid, cdws, len, invalidate)| {
            let data = SglDescriptor::Keyed(HostBuffer { addr: 1, len, rkey: 3, invalidate });
            Sqe::new(opcode, id).with_nsid(nsid).with_cdws(cdws).with_sgl(data).as_bytes().to_vec()
        },
    );
    // Writes of CC and event requests decide about much of the state, so they are frequent.
    let configure = prop::sample::select(vec![0x0046_0060u32, 0x0046_0061, 0x0046_0061, 0x0046_0061, 0x0046_4061])
        .prop_map(|value| Sqe::new(0x7F, 1).with_cdws([0, 0x14, value, 0, 0, 0]).as_bytes().to_vec());
    let events = any::<u16>().prop_map(|id| Sqe::new(0x0C, id).as_bytes().to_vec());
    let mask = Just(Sqe::new(0x09, 2).with_cdws([0x0B, 1 << 8 | 1 << 31, 0, 0, 0, 0]).as_bytes().to_vec());
    let bytes = prop::collection::vec(any::<u8>(), 64..256);
    prop_oneof![6 => entry, 3 => configure, 2 => events, 1 => mask, 1 => bytes]
}

fn steps() -> impl Strategy<Value = Step> {
    let queue = || 0usize..64;
    let size = || prop_oneof![3 => Just(32u16), 1 => any::<u16>()];
    let command = (
        prop_oneof![3 => Just(0u16), 2 => 1u16..4, 1 => any::<u16>()],
        prop_oneof![4 => 1u16..32, 1 => any::<u16>()],
        any::<u8>(),
        0u32..10_000,
    )
        .prop_map(|(qid, sqsize, attributes, kato_ms)| {
            let attributes = ConnectAttributes::from_bits_retain(attributes);
            ConnectCommand { qid, sqsize, attributes, kato_ms }
        });
    let controller = prop_oneof![6 => 0u16..8, 1 => any::<u16>()];
    let connect = (queue(), command, controller, 0usize..3, 0usize..3).prop_map(
        |(queue, command, controller, subsystem, host)| Step::Connect { queue, command, controller, subsystem, host },
    );
    let subsystem = || 0usize..2;
    prop_oneof![
        6 => (prop_oneof![2 => Just(0u16), 2 => 1u16..4, 1 => any::<u16>()], size()).prop_map(|(qid, size)| Step::Open { qid, size }),
        10 => connect,
        24 => (queue(), capsules()).prop_map(|(queue, capsule)| Step::Capsule { queue, capsule }),
        1 => queue().prop_map(|queue| Step::Disconnect { queue }),
        1 => prop_oneof![4 => 0u64..2_000, 1 => 0u64..15_000].prop_map(|millis| Step::Advance { millis }),
        1 => (subsystem(), 0u32..6).prop_map(|(subsystem, nsid)| Step::AddNamespace { subsystem, nsid }),
        1 => (subsystem(), 0u32..6).prop_map(|(subsystem, nsid)| Step::RemoveNamespace { subsystem, nsid }),
        1 => (subsystem(), 0u32..6, 0u64..2000).prop_map(|(subsystem, nsid, blocks)| Step::Resize { subsystem, nsid, blocks }),
        1 => subsystem().prop_map(|subsystem| Step::AddSubsystem { subsystem }),
        1 => subsystem().prop_map(|subsystem| Step::RemoveSubsystem { subsystem }),
        1 => (0u16..20).prop_map(|controller| Step::Fail { controller }),
        1 => (0u16..20).prop_map(|controller| Step::RecordIo { controller }),
    ]
}

/// The embedder's view of a queue.
#[derive(Default)]
struct Queue {
    qid: u16,
    controller: Option<ControllerId>,
    /// Names of subsystem and host.
    names: Option<(Nqn, Nqn)>,
    io: Option<IoQueue>,
    fence: Option<FenceId>,
    /// Command ids of held requests.
    held: Vec<u16>,
}

struct Embedder {
    target: Target,
    now: Instant,
    next_key: u64,
    queues: BTreeMap<QueueKey, Queue>,
    /// The queues and ids of live controllers.
    controllers: BTreeMap<ControllerId, QueueKey>,
}

impl Embedder {
    fn new() -> Embedder {
        let limits = Limits {
            controllers_per_host: 3,
            controllers: 6,
            waiting_queues: 8,
            queues_per_controller: 3,
            ..Limits::default()
        };
        let target = Target::new(TargetConfig { limits, ..TargetConfig::default() });
        let mut embedder =
            Embedder { target, now: Instant::ZERO, next_key: 0, queues: BTreeMap::new(), controllers: BTreeMap::new() };
        for subsystem in 0..2 {
            embedder.step(Step::AddSubsystem { subsystem });
        }
        embedder
    }

    /// The open queue with this number, modulo their count.
    fn pick(&self, queue: usize) -> Option<QueueKey> {
        let count = self.queues.len();
        (count > 0).then(|| *self.queues.keys().nth(queue % count).expect("below the count"))
    }

    fn controller(&self, number: u16) -> Option<ControllerId> {
        self.controllers.keys().nth(usize::from(number)).copied()
    }

    /// The controller with this number, modulo their count, with the names of subsystem and host.
    fn existing(&self, number: u16) -> Option<(ControllerId, (Nqn, Nqn))> {
        let count = self.controllers.len();
        let (&id, key) = (count > 0).then(|| self.controllers.iter().nth(usize::from(number) % count)).flatten()?;
        Some((id, self.queues[key].names.clone()?))
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Open { qid, size } => {
                let key = QueueKey(self.next_key);
                self.next_key += 1;
                let request = QueueRequest { qid, host_receives: size, host_sqsize: size.wrapping_sub(1) };
                if self.target.accept(self.now, key, &request).is_ok() {
                    self.queues.insert(key, Queue { qid, ..Queue::default() });
                }
            }
            Step::Connect { queue, command, controller, subsystem, host } => {
                let Some(key) = self.pick(queue) else { return };
                // Mostly a Connect that can succeed: the queue's own number, and of a controller that exists.
                let own_qid = self.queues[&key].qid;
                let wild = command.kato_ms % 8 == 0;
                let qid = if wild { command.qid } else { own_qid };
                let existing = (own_qid != 0 && !wild).then(|| self.existing(controller)).flatten();
                let (id, subsystem, host) = match existing {
                    Some((id, (subsystem, host))) => (id.get(), subsystem, host),
                    None if own_qid == 0 && !wild => (0xFFFF, nqn(SUBSYSTEMS[subsystem]), nqn(HOSTS[host])),
                    None => (controller, nqn(SUBSYSTEMS[subsystem]), nqn(HOSTS[host])),
                };
                let data = ConnectData::new([1; 16], id, &subsystem, &host);
                let descriptor = SglDescriptor::Capsule { offset: 0, len: 1024 };
                let mut capsule = ConnectCommand { qid, ..command }.to_sqe(9, descriptor).as_bytes().to_vec();
                capsule.extend(data.as_bytes());
                self.capsule(key, &capsule);
                if !wild && self.queues[&key].controller.is_some() && self.queues[&key].io.is_none() {
                    self.capsule(key, Sqe::new(0x7F, 1).with_cdws([0, 0x14, 0x0046_0061, 0, 0, 0]).as_bytes());
                }
            }
            Step::Capsule { queue, capsule } => {
                if let Some(key) = self.pick(queue) {
                    self.capsule(key, &capsule);
                }
            }
            Step::Disconnect { queue } => {
                if let Some(key) = self.pick(queue) {
                    self.close(key);
                }
            }
            Step::Advance { millis } => {
                self.now += Duration::from_millis(millis);
                self.target.poll(self.now);
                assert!(self.target.next_deadline().is_none_or(|deadline| deadline > self.now));
            }
            Step::AddNamespace { subsystem, nsid } => {
                let name = nqn(SUBSYSTEMS[subsystem]);
                let _ = self.target.add_namespace(&name, Namespace::new(&name, nsid, 100, BlockSize::B512));
            }
            Step::RemoveNamespace { subsystem, nsid } => {
                let _ = self.target.remove_namespace(&nqn(SUBSYSTEMS[subsystem]), nsid);
            }
            Step::Resize { subsystem, nsid, blocks } => {
                let _ = self.target.resize_namespace(&nqn(SUBSYSTEMS[subsystem]), nsid, blocks);
            }
            Step::AddSubsystem { subsystem } => {
                let _ = self.target.add_subsystem(Subsystem::new(nqn(SUBSYSTEMS[subsystem])));
            }
            Step::RemoveSubsystem { subsystem } => {
                let _ = self.target.remove_subsystem(&nqn(SUBSYSTEMS[subsystem]));
            }
            Step::Fail { controller } => {
                if let Some(id) = self.controller(controller) {
                    self.target.fail(id);
                }
            }
            Step::RecordIo { controller } => {
                if let Some((_, (subsystem, _))) = self.existing(controller) {
                    let counts = IoCounts { bytes_read: u64::MAX, ..IoCounts::default() };
                    self.target.record_io(&subsystem, counts);
                }
            }
        }
        self.drain();
        self.check();
    }

    fn capsule(&mut self, key: QueueKey, capsule: &[u8]) {
        let (sqe, data) = Sqe::split(capsule).expect("long enough");
        let queue = self.queues.get_mut(&key).expect("open");
        match (&mut queue.io, queue.controller) {
            (None, None) => self.first(key, sqe, data),
            (None, Some(controller)) => match self.target.admin(self.now, controller, sqe) {
                AdminReply::Complete { data, response } => {
                    assert_eq!(response.cqe.command_id(), sqe.command_id());
                    assert!(data.as_ref().is_none_or(|data| data.bytes.len() == data.to.len as usize));
                    assert!(data.is_none() || response.cqe.status().is_success());
                }
                AdminReply::Held => queue.held.push(sqe.command_id()),
                AdminReply::Gone => panic!("controller {controller} is gone, but its queue is not"),
            },
            (Some(io), _) => {
                let (subsystem, _) = queue.names.as_ref().expect("connected");
                let views = self.target.namespace_views(subsystem);
                let id = sqe.command_id();
                let response = match io.submit(capsule, &views).expect("one command at a time") {
                    Submission::Refuse(response) => response,
                    Submission::Execute(request) => io.complete(request.tag, Status::SUCCESS),
                };
                assert_eq!((response.cqe.command_id(), io.outstanding()), (id, 0));
            }
        }
    }

    /// A queue has ended: its commands are stopped. Returns whether it was open.
    fn close(&mut self, key: QueueKey) -> bool {
        let queue = self.queues.remove(&key);
        self.target.disconnected(key);
        if let Some(fence) = queue.as_ref().and_then(|queue| queue.fence) {
            self.target.fenced(fence);
        }
        queue.is_some()
    }

    fn first(&mut self, key: QueueKey, sqe: &Sqe, data: &[u8]) {
        let data = match first_command(sqe, data) {
            FirstCommand::Connect(data) => *data,
            FirstCommand::Fetch(buffer) => {
                assert_eq!(buffer.len, 1024);
                ConnectData::read_from_bytes(&[0; 1024]).expect("1024 bytes")
            }
            FirstCommand::Refuse(response) => {
                assert!(!response.cqe.status().is_success());
                return;
            }
        };
        match self.target.connect(self.now, key, CLIENT, sqe, &data) {
            Err(error) => assert!(!error.response.cqe.status().is_success()),
            Ok(granted) => {
                assert!(granted.response.cqe.status().is_success());
                let queue = self.queues.get_mut(&key).expect("open");
                queue.controller = Some(granted.controller);
                queue.names = Some((granted.subsystem, granted.host));
                queue.fence = granted.fence;
                queue.io = granted.io_queue.map(IoQueue::new);
                if queue.io.is_none() {
                    let previous = self.controllers.insert(granted.controller, key);
                    assert_eq!(previous, None, "an id of a live controller");
                }
            }
        }
    }

    fn drain(&mut self) {
        while let Some(event) = self.target.next_event() {
            match event {
                Event::Respond { queue, response } => {
                    let held = &mut self.queues.get_mut(&queue).expect("an open queue").held;
                    let at = held.iter().position(|&id| id == response.cqe.command_id());
                    held.remove(at.expect("a held request"));
                }
                Event::TearDown { controller, queues, .. } => {
                    if let Some(id) = controller {
                        assert!(self.controllers.remove(&id).is_some(), "a live controller");
                    }
                    for key in queues {
                        assert!(self.close(key), "an open queue");
                    }
                }
                Event::Ready { queues, ready, .. } => {
                    for key in queues {
                        let queue = self.queues.get_mut(&key).expect("an open queue");
                        queue.io.as_mut().expect("an I/O queue").set_ready(ready);
                    }
                }
                Event::NamespacesChanged { queues, subsystem } => {
                    for key in queues {
                        let names = self.queues[&key].names.as_ref();
                        assert_eq!(names.map(|(subsystem, _)| subsystem), Some(&subsystem));
                    }
                }
            }
        }
    }

    /// The embedder and the target agree.
    fn check(&self) {
        assert_eq!(self.target.queue_count(), self.queues.len());
        assert_eq!(self.target.controller_count(), self.controllers.len());
        let held: usize = self.queues.values().map(|queue| queue.held.len()).sum();
        assert_eq!(self.target.held_event_requests(), held);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn every_command_is_answered_or_held_once_and_nothing_is_left(steps in prop::collection::vec(steps(), 1..200)) {
        let mut embedder = Embedder::new();
        for step in steps {
            embedder.step(step);
        }
        while let Some(key) = embedder.pick(0) {
            embedder.close(key);
            embedder.drain();
            embedder.check();
        }
        prop_assert_eq!(embedder.target.controller_count(), 0);
        prop_assert_eq!(embedder.target.fence_count(), 0);
        prop_assert_eq!(embedder.target.next_deadline(), None);
    }
}

/// The steps reach the states that the property is about.
#[test]
fn random_steps_reach_enabled_controllers_io_queues_and_held_requests() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let strategy = prop::collection::vec(steps(), 100..200);
    let (mut io, mut held, mut shared) = (0, 0, 0);
    for _ in 0..64 {
        let mut embedder = Embedder::new();
        for step in strategy.new_tree(&mut runner).expect("a value").current() {
            embedder.step(step);
            io += usize::from(embedder.queues.values().any(|queue| queue.io.is_some()));
            held += usize::from(embedder.target.held_event_requests() > 0);
            shared += usize::from(embedder.controllers.len() > 1);
        }
    }
    assert!(io > 500 && held > 1000 && shared > 1000, "io {io} held {held} shared {shared}");
}
