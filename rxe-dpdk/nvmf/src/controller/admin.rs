//! Admin commands: dispatch and replies.

use std::collections::{BTreeMap, VecDeque};

use rxe_proto::Instant;

use super::config::TargetConfig;
use super::error_log::Failure;
use super::event::Event;
use super::event_requests::Hold;
use super::registers::Transition;
use super::state::{Controller, IoCounts, SubsystemState};
use super::{ControllerId, Target};
use crate::wire::{
    AdminOpcode, DataLength, DataLocation, Direction, FABRICS_OPCODE, FabricsType, HostBuffer, Nqn, PropertyGet,
    PropertySet, Response, SglDescriptor, Sqe, Status, StatusCode,
};

/// Result of an Abort: the command was not aborted.
const NOT_ABORTED: u64 = 1;

/// Data for the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdminData {
    /// The bytes, as many as the buffer has.
    pub bytes: Vec<u8>,
    /// Destination of the RDMA WRITE.
    pub to: HostBuffer,
}

/// The reply to an admin command.
///
/// No supported admin command has data from the host; a Connect, which has, goes through
/// [`first_command`](super::first_command).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AdminReply {
    /// Send the data, then the response.
    Complete {
        /// Data, if the command has some and succeeded.
        data: Option<AdminData>,
        /// The response.
        response: Response,
    },
    /// Keep the command: [`Event::Respond`] answers it, or its queue ends first.
    Held,
    /// The controller does not exist any more: drop the command.
    Gone,
}

/// A command that was executed.
pub(super) enum Outcome {
    Done { result: u64, data: Option<AdminData> },
    Held,
}

impl Outcome {
    pub(super) const fn result(result: u64) -> Outcome {
        Outcome::Done { result, data: None }
    }

    pub(super) const fn data(data: AdminData) -> Outcome {
        Outcome::Done { result: 0, data: Some(data) }
    }
}

/// A command with its parsed descriptor.
#[derive(Clone, Copy)]
pub(super) struct Command<'a> {
    pub(super) sqe: &'a Sqe,
    descriptor: SglDescriptor,
}

impl Command<'_> {
    /// The buffer for `len` bytes of data to the host.
    pub(super) fn buffer(&self, len: u64) -> Result<HostBuffer, StatusCode> {
        let len = u32::try_from(len).map_err(|_| StatusCode::DataSglLengthInvalid)?;
        match self.check(Direction::ToHost, len)? {
            DataLocation::Host(buffer) => Ok(buffer),
            DataLocation::None | DataLocation::Capsule { .. } => Err(StatusCode::DataSglLengthInvalid),
        }
    }

    /// Checks that the command has no data.
    pub(super) fn no_data(&self) -> Result<(), StatusCode> {
        self.check(Direction::None, 0).map(|_| ())
    }

    fn check(&self, direction: Direction, len: u32) -> Result<DataLocation, StatusCode> {
        // Capsules of an admin queue have no data.
        DataLocation::check(self.descriptor, direction, DataLength::Exactly(len), 0)
            .map_err(|error| error.status_code())
    }
}

/// What a command of one controller works on.
pub(super) struct Context<'a> {
    pub(super) now: Instant,
    pub(super) config: &'a TargetConfig,
    pub(super) subsystems: &'a BTreeMap<Nqn, SubsystemState>,
    pub(super) generation: u64,
    pub(super) controller: &'a mut Controller,
    events: &'a mut VecDeque<Event>,
}

impl Target {
    /// Executes a command of the controller's admin queue, other than its Connect.
    pub fn admin(&mut self, now: Instant, id: ControllerId, sqe: &Sqe) -> AdminReply {
        let Some(controller) = self.controllers.get_mut(&id) else { return AdminReply::Gone };
        controller.keep_alive.restart(now);
        let descriptor = sqe.sgl();
        let invalidate = descriptor.as_ref().ok().and_then(|descriptor| descriptor.invalidate_key());
        let mut context = Context {
            now,
            config: &self.config,
            subsystems: &self.subsystems,
            generation: self.generation,
            controller,
            events: &mut self.events,
        };
        let outcome = match descriptor {
            Ok(descriptor) => context.execute(Command { sqe, descriptor }),
            Err(error) => Err(error.status_code()),
        };
        let (status, result, data) = match outcome {
            Ok(Outcome::Held) => return AdminReply::Held,
            Ok(Outcome::Done { result, data }) => (Status::SUCCESS, result, data),
            Err(code) => {
                let status = Status { more: true, ..Status::permanent(code) };
                let (command_id, nsid) = (sqe.command_id(), sqe.nsid());
                controller.errors.push(Failure { queue: 0, command_id, status, nsid, lba: 0 });
                (status, 0, None)
            }
        };
        let response = controller.admin.respond(sqe.command_id(), status, result, invalidate);
        AdminReply::Complete { data, response }
    }

    /// Adds what workers did for hosts to the SMART log of their subsystem.
    pub fn record_io(&mut self, subsystem: &Nqn, counts: IoCounts) {
        if let Some(state) = self.subsystems.get_mut(subsystem) {
            state.counts.add(counts);
        }
    }

    /// Adds a failed I/O command to the error log of its controller.
    pub fn record_error(&mut self, id: ControllerId, queue: u16, command_id: u16, status: Status, nsid: u32, lba: u64) {
        if let Some(controller) = self.controllers.get_mut(&id) {
            controller.errors.push(Failure { queue, command_id, status, nsid, lba });
        }
    }
}

impl Context<'_> {
    fn execute(&mut self, command: Command<'_>) -> Result<Outcome, StatusCode> {
        command.sqe.check_flags()?;
        if command.sqe.opcode() == FABRICS_OPCODE {
            return self.fabrics(command);
        }
        if !self.controller.registers.is_ready() {
            return Err(StatusCode::CommandSequenceError);
        }
        let opcode = AdminOpcode::from_code(command.sqe.opcode()).ok_or(StatusCode::InvalidOpcode)?;
        match opcode {
            AdminOpcode::GetLogPage => self.get_log(command),
            AdminOpcode::Identify => self.identify(command),
            AdminOpcode::Abort if self.controller.is_discovery() => Err(StatusCode::InvalidOpcode),
            AdminOpcode::Abort => {
                command.no_data()?;
                Ok(Outcome::result(NOT_ABORTED))
            }
            AdminOpcode::SetFeatures => self.set_feature(command),
            AdminOpcode::GetFeatures => self.get_feature(command),
            AdminOpcode::AsyncEventRequest => self.hold_event_request(command),
            AdminOpcode::KeepAlive => {
                command.no_data()?;
                Ok(Outcome::result(0))
            }
        }
    }

    fn fabrics(&mut self, command: Command<'_>) -> Result<Outcome, StatusCode> {
        match FabricsType::from_code(command.sqe.fabrics_type()) {
            Some(FabricsType::PropertyGet) => {
                command.no_data()?;
                let value = self.controller.registers.get(PropertyGet::parse(command.sqe), &self.config.limits)?;
                Ok(Outcome::result(value))
            }
            Some(FabricsType::PropertySet) => {
                command.no_data()?;
                let queues = self.controller.queue_set();
                let transition = self.controller.registers.set(PropertySet::parse(command.sqe), queues)?;
                self.follow(transition);
                Ok(Outcome::result(0))
            }
            Some(FabricsType::Connect) => Err(StatusCode::CommandSequenceError),
            None => Err(StatusCode::InvalidOpcode),
        }
    }

    /// Follows a change of the registers.
    fn follow(&mut self, transition: Transition) {
        if transition == Transition::Disabled {
            // Their receives are posted again with the responses.
            for command_id in self.controller.events.reset() {
                let status = Status::retryable(StatusCode::AbortRequested);
                let response = self.controller.admin.respond(command_id, status, 0, None);
                self.events.push_back(Event::Respond { queue: self.controller.admin.key, response });
            }
            self.controller.changed_namespaces.clear();
        }
        if transition != Transition::None && !self.controller.io_queues.is_empty() {
            self.events.push_back(Event::Ready {
                controller: self.controller.id,
                queues: self.controller.io_queues.values().copied().collect(),
                ready: self.controller.registers.is_ready(),
            });
        }
    }

    fn hold_event_request(&mut self, command: Command<'_>) -> Result<Outcome, StatusCode> {
        command.no_data()?;
        match self.controller.events.hold(command.sqe.command_id(), self.config.limits.event_requests) {
            Hold::Held => Ok(Outcome::Held),
            Hold::Complete(event) => Ok(Outcome::result(event.result())),
            Hold::Exceeded => Err(StatusCode::AsyncEventLimitExceeded),
        }
    }
}
