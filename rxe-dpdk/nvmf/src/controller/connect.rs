//! Connect: the first command of a queue.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rxe_proto::Instant;
use zerocopy::FromBytes;

use super::error_log::ErrorLog;
use super::event_requests::EventRequests;
use super::fence::{Association, FenceId};
use super::keep_alive::KeepAlive;
use super::queues::QueueState;
use super::registers::Registers;
use super::state::{AdminQueue, Controller};
use super::{ControllerId, MAX_CONTROLLER_ID, QueueKey, Target};
use crate::io::IoQueueConfig;
use crate::subsystem::AllowedHosts;
use crate::wire::{
    CONNECT_DATA_LEN, ConnectAttributes, ConnectCommand, ConnectData, Cqe, DYNAMIC_CONTROLLER, DataLength,
    DataLocation, Direction, FABRICS_OPCODE, FabricsType, HostBuffer, InvalidParameter, Nqn, Response, Sqe, Status,
    StatusCode,
};

/// What to do with the first command of a queue.
#[derive(PartialEq, Eq, Debug)]
pub enum FirstCommand<'a> {
    /// A Connect with its data: pass it to [`Target::connect`].
    Connect(&'a ConnectData),
    /// A Connect whose 1024 bytes of data must be fetched from the host first.
    Fetch(HostBuffer),
    /// Not a Connect that could succeed: send this response.
    Refuse(Response),
}

/// Classifies a command on a queue without a successful Connect. `data` are the bytes behind the entry.
pub fn first_command<'a>(sqe: &Sqe, data: &'a [u8]) -> FirstCommand<'a> {
    let refuse = |code, invalidate| {
        let cqe = Cqe::new(sqe.command_id(), Status::permanent(code));
        FirstCommand::Refuse(Response { cqe, invalidate })
    };
    let descriptor = match sqe.sgl() {
        Ok(descriptor) => descriptor,
        Err(error) => return refuse(error.status_code(), None),
    };
    let invalidate = descriptor.invalidate_key();
    if let Err(code) = sqe.check_flags() {
        return refuse(code, invalidate);
    }
    if sqe.opcode() != FABRICS_OPCODE || sqe.fabrics_type() != FabricsType::Connect.code() {
        return refuse(StatusCode::InvalidOpcode, invalidate);
    }
    let length = DataLength::Exactly(CONNECT_DATA_LEN as u32);
    match DataLocation::check(descriptor, Direction::ToController, length, data.len()) {
        Ok(DataLocation::Host(buffer)) => FirstCommand::Fetch(buffer),
        Ok(DataLocation::Capsule { offset, .. }) => {
            match data.get(offset as usize..).and_then(|data| ConnectData::ref_from_prefix(data).ok()) {
                Some((data, _)) => FirstCommand::Connect(data),
                None => refuse(StatusCode::SglOffsetInvalid, invalidate),
            }
        }
        Ok(DataLocation::None) => refuse(StatusCode::DataSglLengthInvalid, invalidate),
        Err(error) => refuse(error.status_code(), invalidate),
    }
}

/// A successful Connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Granted {
    /// The controller.
    pub controller: ControllerId,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The host.
    pub host: Nqn,
    /// The queue's part of a worker; `None` for an admin queue.
    pub io_queue: Option<IoQueueConfig>,
    /// The commands of an I/O queue; [`Target::fenced`] is called when none is left after its end.
    pub fence: Option<FenceId>,
    /// The response to send.
    pub response: Response,
}

/// A refused Connect. The queue may try again until the host or [`Target::poll`] ends it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{refusal}")]
pub struct ConnectError {
    /// Why.
    pub refusal: Refusal,
    /// The response to send.
    pub response: Response,
}

/// Why a Connect is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The target does not know the queue's connection.
    #[error("the queue's connection is not known")]
    UnknownQueue,
    /// The queue is connected already.
    #[error("the queue is connected already")]
    AlreadyConnected,
    /// The record format is not 0.
    #[error("unknown record format")]
    RecordFormat,
    /// A field is invalid.
    #[error("invalid value of {0:?}")]
    Parameter(InvalidParameter),
    /// No subsystem has this name.
    #[error("host {host} asks for unknown subsystem {subsystem}")]
    UnknownSubsystem {
        /// The host's name.
        host: Nqn,
        /// The name that it asked for.
        subsystem: Nqn,
    },
    /// The host may not use the subsystem.
    #[error("host {host} is not allowed to use {subsystem}")]
    HostNotAllowed {
        /// The host's name.
        host: Nqn,
        /// The subsystem.
        subsystem: Nqn,
    },
    /// No controller of this id belongs to this host and subsystem.
    #[error("host {host} has no controller {id} of {subsystem}")]
    UnknownController {
        /// The host's name.
        host: Nqn,
        /// The subsystem.
        subsystem: Nqn,
        /// The id that it asked for.
        id: u16,
    },
    /// The controller is not enabled.
    #[error("controller {0} is not enabled")]
    NotEnabled(ControllerId),
    /// The controller has a queue with this number.
    #[error("controller {0} has a queue {1} already")]
    QueueExists(ControllerId, u16),
    /// The host has as many controllers as it may.
    #[error("host {0} has {1} controllers, as many as it may")]
    HostLimit(Nqn, usize),
    /// The target has as many controllers as it may.
    #[error("the target has {0} controllers, as many as it may")]
    ControllerLimit(usize),
    /// Commands of an earlier connection of the host are still in the storage.
    #[error("commands of an earlier connection of host {0} are still in the storage")]
    Draining(Nqn),
}

impl Refusal {
    /// Status and result of the completion.
    #[must_use]
    pub const fn status(&self) -> (Status, u64) {
        match self {
            Refusal::UnknownQueue | Refusal::AlreadyConnected | Refusal::NotEnabled(_) | Refusal::QueueExists(..) => {
                (Status::permanent(StatusCode::CommandSequenceError), 0)
            }
            Refusal::RecordFormat => (Status::permanent(StatusCode::ConnectIncompatibleFormat), 0),
            Refusal::Parameter(field) => (Status::permanent(StatusCode::ConnectInvalidParameters), field.result()),
            Refusal::UnknownSubsystem { .. } => {
                (Status::permanent(StatusCode::ConnectInvalidParameters), InvalidParameter::SubsystemNqn.result())
            }
            Refusal::UnknownController { .. } => {
                (Status::permanent(StatusCode::ConnectInvalidParameters), InvalidParameter::ControllerId.result())
            }
            Refusal::HostNotAllowed { .. } => {
                (Status::permanent(StatusCode::ConnectInvalidHost), InvalidParameter::HostNqn.result())
            }
            Refusal::HostLimit(..) | Refusal::ControllerLimit(_) | Refusal::Draining(_) => {
                (Status::retryable(StatusCode::ConnectControllerBusy), 0)
            }
        }
    }
}

/// The names in the data of a Connect.
struct Names {
    subsystem: Nqn,
    host: Nqn,
    host_id: [u8; 16],
}

impl Names {
    fn association(&self) -> Association {
        Association { subsystem: self.subsystem.clone(), host: self.host.clone(), host_id: self.host_id }
    }
}

/// A connected queue.
struct Connected {
    controller: ControllerId,
    io_queue: Option<IoQueueConfig>,
    /// Head of the submission queue behind the Connect.
    head: u16,
}

impl Target {
    /// Executes the Connect that [`first_command`] found on the accepted queue `key` of a host at the address `client`. A host
    /// without a name is known by its address, and may use subsystems without a list of hosts.
    ///
    /// # Errors
    /// The refusal, with the response to send. After [`Refusal::Draining`] the Connect can be tried again.
    pub fn connect(
        &mut self,
        now: Instant,
        key: QueueKey,
        client: IpAddr,
        sqe: &Sqe,
        data: &ConnectData,
    ) -> Result<Granted, ConnectError> {
        let invalidate = sqe.sgl().ok().and_then(|descriptor| descriptor.invalidate_key());
        self.try_connect(now, (key, client), sqe, data, invalidate).map_err(|refusal| {
            let (status, result) = refusal.status();
            let cqe = Cqe::new(sqe.command_id(), status).with_result(result);
            ConnectError { refusal, response: Response { cqe, invalidate } }
        })
    }

    fn try_connect(
        &mut self,
        now: Instant,
        (key, client): (QueueKey, IpAddr),
        sqe: &Sqe,
        data: &ConnectData,
        invalidate: Option<u32>,
    ) -> Result<Granted, Refusal> {
        let queue = *self.queues.get(&key).ok_or(Refusal::UnknownQueue)?;
        if let QueueState::Connected(_) = queue.state {
            return Err(Refusal::AlreadyConnected);
        }
        let command = ConnectCommand::parse(sqe).map_err(|_| Refusal::RecordFormat)?;
        let host = match data.has_host_nqn() {
            true => data.host_nqn().map_err(|_| Refusal::Parameter(InvalidParameter::HostNqn))?,
            false => Nqn::of_unnamed_host(client),
        };
        let subsystem = data.subsystem_nqn().map_err(|_| Refusal::Parameter(InvalidParameter::SubsystemNqn))?;
        if command.qid != queue.qid {
            return Err(Refusal::Parameter(InvalidParameter::QueueId));
        }
        if command.sqsize == 0 || command.sqsize >= queue.depth {
            return Err(Refusal::Parameter(InvalidParameter::SqSize));
        }
        self.check_host(&subsystem, &host, data.has_host_nqn())?;
        let names = Names { subsystem, host, host_id: data.host_id() };
        let is_draining = match queue.qid {
            0 => self.fences.holds(&names.association()),
            _ => self.fences.holds_queue_of(ControllerId(data.controller_id())),
        };
        if is_draining {
            return Err(Refusal::Draining(names.host));
        }
        let Connected { controller, io_queue, head } = if queue.qid == 0 {
            self.connect_admin(now, key, command, data, &names)?
        } else {
            self.connect_io(key, queue.qid, command, data.controller_id(), &names)?
        };
        let fence = io_queue.is_some().then(|| self.fences.open(names.association(), controller));
        self.set_connected(key, controller, fence);
        let result = u64::from(controller.0);
        let cqe = Cqe::new(sqe.command_id(), Status::SUCCESS).with_result(result).with_queue(queue.qid, head);
        let Names { subsystem, host, .. } = names;
        Ok(Granted { controller, subsystem, host, io_queue, fence, response: Response { cqe, invalidate } })
    }

    /// The I/O queues of the controllers that the host of a Connect of an admin queue has of the subsystem already; none for a
    /// Connect of an I/O queue. Their commands should end before the Connect is executed: the host may have crashed, and know
    /// nothing of them.
    #[must_use]
    pub fn other_queues(&self, key: QueueKey, client: IpAddr, data: &ConnectData) -> Vec<QueueKey> {
        let host = if data.has_host_nqn() { data.host_nqn().ok() } else { Some(Nqn::of_unnamed_host(client)) };
        let (Some(queue), Some(host), Ok(subsystem)) = (self.queues.get(&key), host, data.subsystem_nqn()) else {
            return Vec::new();
        };
        let is_same = |controller: &&Controller| {
            queue.qid == 0
                && controller.subsystem == subsystem
                && controller.host == host
                && controller.host_id == data.host_id()
        };
        let controllers = self.controllers.values().filter(is_same);
        controllers.flat_map(|controller| controller.io_queues.values().copied()).collect()
    }

    fn check_host(&self, subsystem: &Nqn, host: &Nqn, has_name: bool) -> Result<(), Refusal> {
        if subsystem.is_discovery() {
            return Ok(());
        }
        match self.subsystems.get(subsystem) {
            None => Err(Refusal::UnknownSubsystem { host: host.clone(), subsystem: subsystem.clone() }),
            Some(state)
                if !state.config.hosts.contains(host) || !has_name && state.config.hosts != AllowedHosts::Any =>
            {
                Err(Refusal::HostNotAllowed { host: host.clone(), subsystem: subsystem.clone() })
            }
            Some(_) => Ok(()),
        }
    }

    fn connect_admin(
        &mut self,
        now: Instant,
        key: QueueKey,
        command: ConnectCommand,
        data: &ConnectData,
        Names { subsystem, host, .. }: &Names,
    ) -> Result<Connected, Refusal> {
        if data.controller_id() != DYNAMIC_CONTROLLER {
            return Err(Refusal::Parameter(InvalidParameter::ControllerId));
        }
        let limits = self.config.limits;
        let of_host = self.controllers.values().filter(|controller| controller.host == *host).count();
        if of_host >= limits.controllers_per_host {
            return Err(Refusal::HostLimit(host.clone(), of_host));
        }
        if self.controllers.len() >= limits.controllers {
            return Err(Refusal::ControllerLimit(self.controllers.len()));
        }
        let id = self.free_id().ok_or(Refusal::ControllerLimit(self.controllers.len()))?;
        self.next_id = if id.0 == MAX_CONTROLLER_ID { 1 } else { id.0 + 1 };
        let mut admin = AdminQueue::new(key, command.sqsize.saturating_add(1), uses_flow_control(command));
        let head = admin.advance();
        let controller = Controller {
            id,
            subsystem: subsystem.clone(),
            host: host.clone(),
            host_id: data.host_id(),
            admin,
            io_queues: BTreeMap::new(),
            registers: Registers::default(),
            keep_alive: KeepAlive::new(now, command.kato_ms),
            events: EventRequests::default(),
            changed_namespaces: BTreeSet::new(),
            errors: ErrorLog::new(limits.error_entries),
        };
        self.controllers.insert(id, controller);
        Ok(Connected { controller: id, io_queue: None, head })
    }

    fn connect_io(
        &mut self,
        key: QueueKey,
        qid: u16,
        command: ConnectCommand,
        id: u16,
        Names { subsystem, host, .. }: &Names,
    ) -> Result<Connected, Refusal> {
        let controller = self
            .controllers
            .get_mut(&ControllerId(id))
            .filter(|controller| controller.subsystem == *subsystem && controller.host == *host)
            .ok_or_else(|| Refusal::UnknownController { host: host.clone(), subsystem: subsystem.clone(), id })?;
        if controller.is_discovery() {
            return Err(Refusal::Parameter(InvalidParameter::QueueId));
        }
        if !controller.registers.is_ready() {
            return Err(Refusal::NotEnabled(controller.id));
        }
        if controller.io_queues.contains_key(&qid) {
            return Err(Refusal::QueueExists(controller.id, qid));
        }
        controller.io_queues.insert(qid, key);
        let config = IoQueueConfig {
            qid,
            size: command.sqsize.saturating_add(1),
            flow_control: uses_flow_control(command),
            ready: true,
            commands: self.config.commands,
            max_transfer: self.config.limits.max_transfer(),
        };
        let head = if config.flow_control { 1 % config.size } else { Cqe::NO_FLOW_CONTROL };
        Ok(Connected { controller: controller.id, io_queue: Some(config), head })
    }
}

const fn uses_flow_control(command: ConnectCommand) -> bool {
    !command.attributes.contains(ConnectAttributes::NO_SQ_FLOW_CONTROL)
}
