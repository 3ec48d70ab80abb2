//! The state of an I/O queue.

use super::request::{Checks, IoRequest};
use super::tag::CommandTag;
use crate::subsystem::NamespaceView;
use crate::wire::identify::OptionalCommands;
use crate::wire::{Cqe, FABRICS_OPCODE, FabricsType, Response, Sqe, Status, StatusCode};

/// What Connect granted to an I/O queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoQueueConfig {
    /// The queue's number, from 1.
    pub qid: u16,
    /// Entries of the submission queue.
    pub size: u16,
    /// Whether completions have the head of the submission queue.
    pub flow_control: bool,
    /// Whether the controller is ready, see [`IoQueue::set_ready`].
    pub ready: bool,
    /// Optional commands that the queue executes.
    pub commands: OptionalCommands,
    /// Most data of a command in bytes.
    pub max_transfer: u32,
}

/// A connected I/O queue, owned by one worker.
///
/// [`submit`](Self::submit) is called for each received capsule. A command that it returns must be completed with
/// [`complete`](Self::complete), unless the queue is destroyed first.
#[derive(Debug)]
pub struct IoQueue {
    qid: u16,
    size: u16,
    /// Completed commands modulo `size`. A command keeps its entry until its completion, as its receive is reposted
    /// then.
    head: u16,
    flow_control: bool,
    ready: bool,
    outstanding: u16,
    commands: OptionalCommands,
    max_transfer: u32,
}

/// What to do with a received command.
#[derive(PartialEq, Eq, Debug)]
pub enum Submission {
    /// Execute it, then call [`IoQueue::complete`].
    Execute(IoRequest),
    /// Send this response.
    Refuse(Response),
}

/// A host that breaks the rules of the queue: its controller must be torn down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueueFault {
    /// The capsule is shorter than a submission queue entry, so that there is no command id to answer.
    #[error("command capsule of {0} bytes")]
    ShortCapsule(usize),
    /// More commands are outstanding than the queue has entries.
    #[error("more than {0} outstanding commands")]
    QueueOverflow(u16),
}

impl IoQueue {
    /// A queue whose Connect has been answered.
    #[must_use]
    pub const fn new(config: IoQueueConfig) -> IoQueue {
        let size = if config.size == 0 { 1 } else { config.size };
        IoQueue {
            qid: config.qid,
            size,
            head: 1 % size,
            flow_control: config.flow_control,
            ready: config.ready,
            outstanding: 0,
            commands: config.commands,
            max_transfer: config.max_transfer,
        }
    }

    /// The queue's number.
    #[must_use]
    pub const fn qid(&self) -> u16 {
        self.qid
    }

    /// Commands that were submitted and are not completed.
    #[must_use]
    pub const fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Follows CSTS.RDY: commands of a controller that is not ready are refused. Running commands go on.
    pub const fn set_ready(&mut self, ready: bool) {
        self.ready = ready;
    }

    /// Checks a received capsule. `namespaces` are those of the subsystem, in ascending order of the NSID.
    ///
    /// # Errors
    /// The controller must be torn down.
    #[inline]
    pub fn submit(&mut self, capsule: &[u8], namespaces: &[NamespaceView]) -> Result<Submission, QueueFault> {
        let Some((sqe, data)) = Sqe::split(capsule) else { return Err(QueueFault::ShortCapsule(capsule.len())) };
        if self.outstanding >= self.size {
            return Err(QueueFault::QueueOverflow(self.size));
        }
        self.outstanding += 1;
        let mut tag = CommandTag { command_id: sqe.command_id(), invalidate: None };
        let descriptor = match sqe.sgl() {
            Ok(descriptor) => descriptor,
            Err(error) => return Ok(Submission::Refuse(self.refuse(tag, error.status_code()))),
        };
        // Also on an error status: the request ends at once then.
        tag.invalidate = descriptor.invalidate_key();
        if !self.ready || sqe.opcode() == FABRICS_OPCODE {
            let code = not_executed(sqe);
            return Ok(Submission::Refuse(self.refuse(tag, code)));
        }
        let checks = Checks { commands: self.commands, max_transfer: self.max_transfer };
        Ok(match checks.check(sqe, descriptor, data.len(), namespaces) {
            Ok((block_shift, operation)) => {
                Submission::Execute(IoRequest { tag, nsid: sqe.nsid(), block_shift, operation })
            }
            Err(code) => Submission::Refuse(self.refuse(tag, code)),
        })
    }

    /// Completes a command.
    #[inline]
    pub fn complete(&mut self, tag: CommandTag, status: Status) -> Response {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.head += 1;
        if self.head >= self.size {
            self.head = 0;
        }
        let head = if self.flow_control { self.head } else { Cqe::NO_FLOW_CONTROL };
        Response { cqe: Cqe::new(tag.command_id, status).with_queue(self.qid, head), invalidate: tag.invalidate }
    }

    #[cold]
    fn refuse(&mut self, tag: CommandTag, code: StatusCode) -> Response {
        self.complete(tag, Status::permanent(code))
    }
}

/// The status of a command of a controller that is not ready, or of a fabrics command.
#[cold]
fn not_executed(sqe: &Sqe) -> StatusCode {
    let is_fabrics = sqe.opcode() == FABRICS_OPCODE;
    if is_fabrics && sqe.fabrics_type() != FabricsType::Connect.code() {
        StatusCode::InvalidOpcode
    } else {
        StatusCode::CommandSequenceError
    }
}
