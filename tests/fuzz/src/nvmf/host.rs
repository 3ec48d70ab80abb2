//! The host: its session and an I/O queue against completions and data that say anything.
//!
//! A session hands out a bounded number of actions before it waits, collects a bounded number of namespaces and records, and never
//! has more queues than it wants. Each I/O command completes at most once. An input is a byte with the kind of subsystem and then
//! steps, each an [`op`] and its arguments.

use std::collections::BTreeMap;

use rxe_nvmf::host::{Action, HostConfig, IoCommand, IoCommands, Session};
use rxe_nvmf::wire::private_data::{QueueAccept, QueueRequest, RejectStatus};
use rxe_nvmf::wire::{CQE_LEN, Cqe, DISCOVERY_NQN, HostBuffer};
use zerocopy::{FromBytes, IntoBytes};

use super::message;
use crate::input::Input;

/// The steps of an input.
pub mod op {
    /// A completion on the admin queue: [`AIM`](super::AIM), 16 bytes, the session's buffer.
    pub const ANSWER: u8 = 0;
    /// A queue is connected: [`AIM`](super::AIM), number, private data of the REP.
    pub const OPENED: u8 = 1;
    /// A queue is disconnected: [`AIM`](super::AIM), number.
    pub const CLOSED: u8 = 2;
    /// A Keep Alive is wanted.
    pub const KEEP_ALIVE: u8 = 3;
    /// The end is wanted.
    pub const SHUT_DOWN: u8 = 4;
    /// An I/O command: kind, block.
    pub const SUBMIT: u8 = 5;
    /// A completion on the I/O queue: [`AIM`](super::AIM), which command, 16 bytes, key that the response invalidated.
    pub const COMPLETE: u8 = 6;
    /// A connection is rejected: private data of the REJ.
    pub const REJECTED: u8 = 7;
    /// Number of steps.
    pub const COUNT: u8 = 8;
}

/// Flag of a step: it names the command or queue that the host waits for.
pub const AIM: u8 = 1;
/// Flag of the first byte: the subsystem is the discovery subsystem.
pub const FLAG_DISCOVERY: u8 = 1;

/// Wanted I/O queues.
pub const IO_QUEUES: u16 = 2;
/// The session's buffer.
const BUFFER: HostBuffer = HostBuffer { addr: 0x7000, len: 4096, rkey: 5, invalidate: false };
const DEPTH: u16 = 8;
/// Actions between two reports: an event request and a command.
const ACTIONS: usize = 3;
const STEPS: usize = 400;

struct Env {
    session: Session,
    /// Command id, or number of the queue, of the last action.
    command: u16,
    queue: u16,
    commands: IoCommands,
    /// Key of each outstanding I/O command.
    outstanding: BTreeMap<u16, Option<u32>>,
}

/// The host of a session with the subsystem of the recordings, or with the discovery subsystem.
pub fn session(discovery: bool) -> Session {
    let subsystem = if discovery { DISCOVERY_NQN } else { super::target::SUBSYSTEM };
    let nqn = |text: &str| text.parse().expect("an NQN");
    let config = HostConfig {
        host_nqn: nqn("nqn.2024-01.host:one"),
        host_id: [9; 16],
        subsystem: nqn(subsystem),
        kato_ms: 5000,
        io_queues: IO_QUEUES,
        queue_size: 128,
    };
    Session::new(config, BUFFER)
}

/// Runs a program.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let session = session(input.u8() & FLAG_DISCOVERY != 0);
    let mut env =
        Env { session, command: 0, queue: 0, commands: IoCommands::new(1, DEPTH), outstanding: BTreeMap::new() };
    env.act();
    for _ in 0..STEPS {
        // The host disconnects after a failure.
        if input.is_empty() || !env.step(&mut input) {
            break;
        }
        env.act();
        let info = env.session.info();
        assert!(info.namespaces.len() <= 1024 && info.records.len() <= 4096 && info.io_queues <= IO_QUEUES);
        assert_eq!(env.commands.outstanding(), env.outstanding.len());
    }
}

impl Env {
    /// Takes the session's actions.
    fn act(&mut self) {
        for _ in 0..ACTIONS {
            let Some(action) = self.session.next_action() else { return };
            match action {
                Action::OpenQueue { qid, request } => {
                    assert!(qid <= IO_QUEUES && request.qid == qid);
                    assert_eq!(QueueRequest::parse(&request.to_bytes()), Ok(request));
                    self.queue = qid;
                }
                Action::CloseQueue { qid } => self.queue = qid,
                Action::Send { qid, sqe, .. } => {
                    assert!(qid <= IO_QUEUES && sqe.check_flags().is_ok() && sqe.sgl().is_ok());
                    self.command = sqe.command_id();
                }
            }
        }
        assert_eq!(self.session.next_action(), None, "the session never waits");
    }

    /// Returns whether the host goes on.
    fn step(&mut self, input: &mut Input<'_>) -> bool {
        match input.u8() % op::COUNT {
            op::ANSWER => {
                let aim = input.u8() & AIM != 0;
                let mut cqe: [u8; CQE_LEN] = input.array();
                let data = message(input, BUFFER.len as usize);
                if aim {
                    cqe[12..14].copy_from_slice(&self.command.to_le_bytes());
                }
                let mut buffer = [0; BUFFER.len as usize];
                buffer[..data.len()].copy_from_slice(&data);
                self.session.completed(&parse(&cqe), &buffer).is_ok()
            }
            op::OPENED => {
                let (aim, qid) = (input.u8() & AIM != 0, input.u8());
                if let Some(accept) = QueueAccept::parse(&message(input, 64)) {
                    assert_eq!(QueueAccept::parse(&accept.to_bytes()), Some(accept));
                }
                self.session.queue_opened(if aim { self.queue } else { qid.into() }).is_ok()
            }
            op::CLOSED => {
                let (aim, qid) = (input.u8() & AIM != 0, input.u8());
                self.session.queue_closed(if aim { self.queue } else { qid.into() }).is_ok()
            }
            op::KEEP_ALIVE => {
                self.session.keep_alive();
                true
            }
            op::SHUT_DOWN => {
                self.session.shut_down();
                true
            }
            op::SUBMIT => {
                let (kind, block) = (input.u8(), input.u32());
                self.submit(kind, block);
                true
            }
            op::COMPLETE => self.complete(input),
            _ => {
                if let Some(status) = RejectStatus::parse(&message(input, 64)) {
                    assert_eq!(RejectStatus::parse(&status.to_bytes()), Some(status));
                }
                true
            }
        }
    }

    fn submit(&mut self, kind: u8, block: u32) {
        let data = HostBuffer { addr: 0, len: 512, rkey: block, invalidate: kind & 8 != 0 };
        let command = match kind % 4 {
            0 => IoCommand::read(1, block.into(), 1, data),
            1 => IoCommand::write(1, block.into(), 1, data),
            2 => IoCommand::write_zeroes(1, block.into(), 1),
            _ => IoCommand::flush(1),
        };
        let Some(sqe) = self.commands.submit(&command) else {
            return assert_eq!(self.outstanding.len(), usize::from(DEPTH));
        };
        let key = sqe.sgl().expect("a descriptor").invalidate_key();
        assert!(self.outstanding.insert(sqe.command_id(), key).is_none(), "an id that is in use");
    }

    fn complete(&mut self, input: &mut Input<'_>) -> bool {
        let (aim, number) = (input.u8() & AIM != 0, input.u8());
        let mut bytes: [u8; CQE_LEN] = input.array();
        let mut invalidated = Some(input.u32()).filter(|&key| key != 0);
        if aim && let Some((id, key)) = self.outstanding.iter().nth(usize::from(number) % self.outstanding.len().max(1))
        {
            bytes[10..12].copy_from_slice(&1_u16.to_le_bytes());
            bytes[12..14].copy_from_slice(&id.to_le_bytes());
            invalidated = invalidated.and(*key);
        }
        let cqe = parse(&bytes);
        let Ok(completed) = self.commands.complete(&cqe, invalidated) else { return false };
        let key = self.outstanding.remove(&cqe.command_id()).expect("an outstanding command");
        assert!(invalidated.is_none_or(|invalidated| key == Some(invalidated)));
        assert!(completed.tag < DEPTH && completed.status == cqe.status());
        true
    }
}

fn parse(bytes: &[u8; CQE_LEN]) -> Cqe {
    let cqe = Cqe::read_from_bytes(bytes).expect("16 bytes");
    assert_eq!(cqe.as_bytes(), bytes);
    cqe
}
