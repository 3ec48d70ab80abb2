//! The crate's host against the crate's target.

use proptest::prelude::*;
use rxe_nvmf::controller::{
    AdminReply, ControllerId, Event, FenceId, FirstCommand, QueueKey, TargetConfig, first_command,
};
use rxe_nvmf::host::{Action, HostConfig, IoCommand, IoCommands, Session, SessionError};
use rxe_nvmf::io::{IoOperation, IoQueue, Submission};
use rxe_nvmf::subsystem::Limits;
use rxe_nvmf::wire::identify::NamespaceDescriptor;
use rxe_nvmf::wire::{
    AsyncEvent, ConnectData, Cqe, DISCOVERY_NQN, DataLocation, HostBuffer, Response, Sqe, Status, StatusCode,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::rig::{CLIENT, HOST, LISTED, OPEN, OTHER_HOST, Rig, nqn};

const BUFFER: HostBuffer = HostBuffer { addr: 0x7000, len: 4096, rkey: 5, invalidate: false };

/// Changes a completion and the session's buffer.
type Corrupt = Box<dyn FnMut(&mut [u8; 16], &mut [u8])>;

/// A host, its queues at the target, and its buffer.
struct Pair {
    rig: Rig,
    session: Session,
    keys: Vec<Option<QueueKey>>,
    io: Vec<IoQueue>,
    buffer: Vec<u8>,
    controller: Option<ControllerId>,
    events: Vec<AsyncEvent>,
    /// Of the I/O queues.
    fences: Vec<FenceId>,
    /// Changes a completion and the data before the session gets them.
    corrupt: Option<Corrupt>,
}

impl Pair {
    fn new(rig: Rig, subsystem: &str, host: &str, io_queues: u16) -> Pair {
        let config = HostConfig {
            host_nqn: nqn(host),
            host_id: [9; 16],
            subsystem: nqn(subsystem),
            kato_ms: 5000,
            io_queues,
            queue_size: 128,
        };
        let session = Session::new(config, BUFFER);
        let buffer = vec![0; 4096];
        let (keys, io, events) = (Vec::new(), Vec::new(), Vec::new());
        Pair { rig, session, keys, io, fences: Vec::new(), buffer, controller: None, events, corrupt: None }
    }

    /// Takes actions until there are none.
    fn run(&mut self) -> Result<(), SessionError> {
        for _ in 0..200 {
            let Some(action) = self.session.next_action() else { return Ok(()) };
            match action {
                Action::OpenQueue { qid, request } => {
                    let key = QueueKey(1000 + u64::from(qid));
                    let accept = self.rig.target.accept(self.rig.now, key, &request).expect("accepted");
                    assert_eq!(accept.controller_receives, request.host_sqsize + 1);
                    self.keys.push(Some(key));
                    self.session.queue_opened(qid)?;
                }
                Action::CloseQueue { qid } => {
                    let key = self.keys[usize::from(qid)].take().expect("an open queue");
                    self.rig.target.disconnected(key);
                    if qid > 0 {
                        self.rig.target.fenced(self.fences.remove(0));
                    }
                    self.session.queue_closed(qid)?;
                }
                Action::Send { qid, sqe, capsule, buffer, .. } => {
                    if let Some(data) = buffer {
                        self.buffer[..1024].copy_from_slice(data.as_bytes());
                    }
                    self.send(qid, &sqe, capsule.as_ref().map_or(&[], |data| data.as_bytes()))?;
                }
            }
        }
        panic!("no end of actions")
    }

    fn send(&mut self, qid: u16, sqe: &Sqe, capsule: &[u8]) -> Result<(), SessionError> {
        let key = self.keys[usize::from(qid)].expect("an open queue");
        let connected = qid == 0 && self.controller.is_some();
        if connected {
            let controller = self.controller.expect("connected");
            return match self.rig.target.admin(self.rig.now, controller, sqe) {
                AdminReply::Complete { data, response } => {
                    if let Some(data) = data {
                        self.buffer[..data.bytes.len()].copy_from_slice(&data.bytes);
                    }
                    self.receive(response)
                }
                AdminReply::Held => Ok(()),
                AdminReply::Gone => panic!("the controller is gone"),
            };
        }
        let data = match first_command(sqe, capsule) {
            FirstCommand::Connect(data) => *data,
            FirstCommand::Fetch(buffer) => {
                assert_eq!((buffer.rkey, buffer.len), (BUFFER.rkey, 1024));
                ConnectData::read_from_bytes(&self.buffer[..1024]).expect("1024 bytes")
            }
            FirstCommand::Refuse(response) => return self.receive(response),
        };
        match self.rig.target.connect(self.rig.now, key, CLIENT, sqe, &data) {
            Ok(granted) => {
                self.controller = Some(granted.controller);
                self.fences.extend(granted.fence);
                self.io.extend(granted.io_queue.map(IoQueue::new));
                self.receive(granted.response)
            }
            Err(error) => self.receive(error.response),
        }
    }

    fn receive(&mut self, response: Response) -> Result<(), SessionError> {
        assert_eq!(response.invalidate, None, "the session's key is used again");
        let mut bytes: [u8; 16] = zerocopy::transmute!(response.cqe);
        if let Some(corrupt) = &mut self.corrupt {
            corrupt(&mut bytes, &mut self.buffer);
        }
        let event = self.session.completed(&zerocopy::transmute!(bytes), &self.buffer)?;
        self.events.extend(event);
        Ok(())
    }

    fn deliver_events(&mut self) -> Result<(), SessionError> {
        for event in self.rig.events() {
            if let Event::Respond { response, .. } = event {
                self.receive(response)?;
            }
        }
        Ok(())
    }
}

#[test]
fn a_session_connects_finds_its_namespaces_and_shuts_down() {
    let mut pair = Pair::new(Rig::new(), OPEN, HOST, 4);
    pair.run().expect("connected");
    assert!(pair.session.is_ready());
    let info = pair.session.info().clone();
    assert_eq!((info.io_queues, info.queue_size, info.capsule_data, info.max_transfer), (4, 128, 4096, 1 << 20));
    let sizes: Vec<_> = info.namespaces.iter().map(|one| (one.nsid, one.blocks, one.block_shift)).collect();
    assert_eq!(sizes, [(1, 1000, 9), (2, 100, 12)]);
    for namespace in &info.namespaces {
        assert!(matches!(namespace.descriptors[..], [NamespaceDescriptor::Nguid(_), NamespaceDescriptor::Uuid(_)]));
    }
    pair.session.keep_alive();
    pair.run().expect("answered");
    assert!(pair.session.is_ready());
    pair.session.shut_down();
    pair.run().expect("shut down");
    assert!(pair.session.is_closed());
    assert_eq!((pair.rig.target.controller_count(), pair.rig.target.queue_count()), (0, 0));
}

#[test]
fn queues_are_limited_by_the_target_and_connect_data_may_be_fetched() {
    let limits = Limits { queues_per_controller: 2, queue_size: 16, capsule_data: 0, ..Limits::default() };
    let rig = Rig::with(TargetConfig { limits, ..TargetConfig::default() });
    let mut pair = Pair::new(rig, OPEN, HOST, 8);
    pair.run().expect("connected");
    let info = pair.session.info();
    assert_eq!((info.io_queues, info.queue_size, info.capsule_data), (2, 16, 0));
}

#[test]
fn a_session_receives_events_and_arms_the_next_one() {
    let mut pair = Pair::new(Rig::new(), OPEN, HOST, 1);
    pair.run().expect("connected");
    pair.rig.target.resize_namespace(&nqn(OPEN), 1, 10).expect("valid");
    pair.deliver_events().expect("an event");
    assert_eq!(pair.events, [AsyncEvent::NamespaceChanged]);
    assert_eq!(pair.rig.target.held_event_requests(), 0);
    pair.run().expect("armed");
    assert_eq!(pair.rig.target.held_event_requests(), 1);
}

#[test]
fn a_refused_session_says_why() {
    let mut pair = Pair::new(Rig::new(), LISTED, OTHER_HOST, 1);
    let error = pair.run().expect_err("refused");
    let status = Status::permanent(StatusCode::ConnectInvalidHost);
    assert_eq!(error, SessionError::Failed { command: "Connect", status, result: 0x10200 });
}

#[test]
fn a_session_reads_the_discovery_log() {
    let mut pair = Pair::new(Rig::new(), DISCOVERY_NQN, OTHER_HOST, 0);
    pair.run().expect("connected");
    assert!(pair.session.is_ready());
    let records = pair.session.info().records.iter();
    let names: Vec<String> = records.map(|record| record.subsystem_nqn().expect("a name").to_string()).collect();
    assert_eq!(names, [DISCOVERY_NQN, OPEN]);
    assert_eq!(pair.session.info().records[1].port(), Some(4420));
    pair.session.shut_down();
    pair.run().expect("shut down");
    assert!(pair.session.is_closed());
}

#[test]
fn a_discovery_log_that_changes_is_read_again() {
    // The log of the first header differs from that of the second one; or all differ.
    for (changed, expected) in [(1, Ok(())), (usize::MAX, Err(SessionError::UnstableLog))] {
        let mut pair = Pair::new(Rig::new(), DISCOVERY_NQN, OTHER_HOST, 0);
        let mut headers = 0;
        pair.corrupt = Some(Box::new(move |_, data| {
            // A header has no subsystem name, and the number of records in bytes 8 to 15.
            if data[8] == 2 && data[9..1024].iter().all(|&byte| byte == 0) {
                headers += 1;
                if headers <= changed {
                    data[1] = headers as u8;
                }
            }
        }));
        assert_eq!(pair.run(), expected);
        if expected.is_ok() {
            assert!(pair.session.is_ready());
            assert_eq!(pair.session.info().records.len(), 2);
        }
    }
}

#[test]
fn unexpected_completions_end_a_session() {
    let mut pair = Pair::new(Rig::new(), OPEN, HOST, 1);
    pair.run().expect("connected");
    let stale = Cqe::new(0x0001, Status::SUCCESS);
    assert_eq!(pair.session.completed(&stale, &[]), Err(SessionError::Unexpected(1)));
    assert!(pair.session.queue_opened(3).is_err() && pair.session.queue_closed(1).is_err());
}

#[test]
fn the_target_executes_what_the_host_builds_at_full_depth() {
    let mut pair = Pair::new(Rig::new(), OPEN, HOST, 1);
    pair.run().expect("connected");
    let views = pair.rig.target.namespace_views(&nqn(OPEN));
    let queue = &mut pair.io[0];
    let mut commands = IoCommands::new(1, 127);
    let key = |number: u32| HostBuffer { addr: 0, len: 4096, rkey: number, invalidate: true };
    for round in 0..3u32 {
        let mut running = Vec::new();
        for number in 0..127 {
            let command = match number % 5 {
                0 => IoCommand::read(1, u64::from(number), 8, key(round << 8 | number)),
                1 => IoCommand::write(1, u64::from(number), 8, key(round << 8 | number)),
                2 => IoCommand::write_in_capsule(1, u64::from(number), 8, 4096),
                3 => IoCommand::write_zeroes(1, u64::from(number), 8),
                _ => IoCommand::flush(1),
            };
            let sqe = commands.submit(&command).expect("a free number");
            let mut capsule = sqe.as_bytes().to_vec();
            if number % 5 == 2 {
                capsule.resize(64 + 4096, 0);
            }
            let Ok(Submission::Execute(request)) = queue.submit(&capsule, &views) else { panic!("{command:?}") };
            let matches = match number % 5 {
                0 => matches!(request.operation, IoOperation::Read { to, .. } if to == key(round << 8 | number)),
                1 => matches!(request.operation, IoOperation::Write { from: DataLocation::Host(_), .. }),
                2 => matches!(request.operation, IoOperation::Write { from: DataLocation::Capsule { .. }, .. }),
                3 => matches!(request.operation, IoOperation::WriteZeroes { .. }),
                _ => request.operation == IoOperation::Flush,
            };
            assert!(matches, "{request:?}");
            running.push(request.tag);
        }
        assert_eq!(commands.submit(&IoCommand::flush(1)), None);
        // Completions in another order than the commands.
        for tag in running.into_iter().rev() {
            let Response { cqe, invalidate } = queue.complete(tag, Status::SUCCESS);
            assert!(commands.complete(&cqe, invalidate).expect("a valid completion").status.is_success());
        }
        assert_eq!((commands.outstanding(), queue.outstanding()), (0, 0));
    }
}

/// Changes of one answer: whether it is changed, bits of the completion, bytes of the data.
type Fault = (bool, prop::sample::Index, u8, Vec<(prop::sample::Index, u8)>);

proptest! {
    #[test]
    fn a_session_ends_in_order_whatever_the_target_answers(
        discovery: bool,
        faults in prop::collection::vec((prop::bool::weighted(0.1), any::<prop::sample::Index>(), any::<u8>(), prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20)), 40),
    ) {
        let subsystem = if discovery { DISCOVERY_NQN } else { OPEN };
        let mut pair = Pair::new(Rig::new(), subsystem, HOST, 3);
        let mut faults: std::vec::IntoIter<Fault> = faults.into_iter();
        pair.corrupt = Some(Box::new(move |cqe, data| {
            if let Some((true, at, value, bytes)) = faults.next() {
                // The data more often than the completion, which ends a session at once.
                // Not the command id: the session would go on waiting for the right one.
                if value < 64 {
                    cqe[[0, 1, 2, 3, 8, 9, 10, 11, 14, 15][at.index(10)]] ^= value;
                }
                for (at, value) in bytes {
                    data[at.index(data.len())] = value;
                }
            }
        }));
        let result = pair.run();
        let info = pair.session.info();
        prop_assert!(info.namespaces.len() <= 1024 && info.records.len() <= 4096 && info.io_queues <= 3);
        prop_assert!(result.is_err() || pair.session.is_ready());
    }
}
