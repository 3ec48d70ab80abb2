//! A host's connection to one subsystem: the commands of the admin queue, and the order in which queues are connected.

use rxe_proto::Duration;
use zerocopy::FromBytes;

use super::step::Step;
use crate::wire::identify::{
    IDENTIFY_LEN, IdentifyController, IdentifyNamespace, NamespaceDescriptor, SglSupport, parse_active_list,
    parse_descriptors,
};
use crate::wire::log::{DISCOVERY_ENTRY_LEN, DiscoveryEntry, DiscoveryHeader};
use crate::wire::private_data::QueueRequest;
use crate::wire::{
    AsyncEvent, CONNECT_DATA_LEN, Capabilities, ConnectData, Cqe, HostBuffer, Nqn, SQE_LEN, ShutdownStatus, Sqe,
    Status, StatusRegister,
};

/// Entries of the admin queue, as Linux has.
pub(super) const ADMIN_QUEUE_SIZE: u16 = 32;
/// Command id of the Asynchronous Event Request, as Linux has.
pub(super) const EVENT_REQUEST_ID: u16 = 0x001F;
/// Number of the other commands, of which one is outstanding at a time.
const COMMAND_TAG: u16 = 1;
/// Most reads of the status register in one state.
const MAX_POLLS: u32 = 1000;
/// Most records of a discovery log that are read.
const MAX_RECORDS: u64 = 4096;
/// Most reads of a discovery log that changes meanwhile.
const MAX_LOG_READS: u32 = 16;

/// The host, and what it wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostConfig {
    /// The host's name.
    pub host_nqn: Nqn,
    /// The host's UUID.
    pub host_id: [u8; 16],
    /// The subsystem; with the discovery subsystem the session reads its log.
    pub subsystem: Nqn,
    /// Keep alive timeout in milliseconds; 0 is none.
    pub kato_ms: u32,
    /// Wanted I/O queues.
    pub io_queues: u16,
    /// Wanted entries of an I/O queue, at least 2.
    pub queue_size: u16,
}

/// The next step of the embedder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Connect a queue, then call [`Session::queue_opened`].
    OpenQueue {
        /// The queue's number.
        qid: u16,
        /// Private data of the REQ.
        request: QueueRequest,
    },
    /// Send a command; call [`Session::completed`] with each completion.
    Send {
        /// The queue.
        qid: u16,
        /// Wait this long before.
        delay: Duration,
        /// The entry.
        sqe: Sqe,
        /// Data behind the entry in the capsule.
        capsule: Option<Box<ConnectData>>,
        /// Data to put into the session's buffer before.
        buffer: Option<Box<ConnectData>>,
    },
    /// Disconnect a queue, then call [`Session::queue_closed`].
    CloseQueue {
        /// The queue's number.
        qid: u16,
    },
}

/// A namespace, as the target describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceInfo {
    /// NSID.
    pub nsid: u32,
    /// Size in blocks.
    pub blocks: u64,
    /// log2 of the block size in bytes.
    pub block_shift: u8,
    /// Identifiers.
    pub descriptors: Vec<NamespaceDescriptor>,
}

/// What the host learned about the controller.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ControllerInfo {
    /// The granted id.
    pub controller_id: u16,
    /// Most entries of an I/O queue.
    pub max_queue_size: u16,
    /// Most data in a command capsule of an I/O queue in bytes.
    pub capsule_data: u32,
    /// Most data of a command in bytes; 0 is no limit.
    pub max_transfer: u32,
    /// Connected I/O queues.
    pub io_queues: u16,
    /// Entries of each I/O queue.
    pub queue_size: u16,
    /// The namespaces.
    pub namespaces: Vec<NamespaceInfo>,
    /// Records of the discovery log.
    pub records: Vec<DiscoveryEntry>,
}

/// Why a session failed. It must be dropped, and its queues disconnected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SessionError {
    /// A command failed.
    #[error("{command} failed: {status}, result {result:#x}")]
    Failed {
        /// The command.
        command: &'static str,
        /// Status of the response.
        status: Status,
        /// Result of the response: its command-specific first eight bytes.
        result: u64,
    },
    /// A completion or report that the session does not wait for.
    #[error("unexpected completion or report, command id {0:#06x}")]
    Unexpected(u16),
    /// The data of a command are too short.
    #[error("{0} returned too little data")]
    ShortData(&'static str),
    /// The controller has a property that the host cannot work with.
    #[error("unusable controller: {0}")]
    Unusable(&'static str),
    /// The controller's status did not change in time.
    #[error("the controller did not become {0}")]
    Timeout(&'static str),
    /// The discovery log changed during each of many reads.
    #[error("the discovery log keeps changing")]
    UnstableLog,
}

/// A host's connection to one subsystem, without IO.
///
/// The embedder takes actions from [`next_action`](Self::next_action) until there are none, then waits for something to
/// report. It owns one buffer of at least 4096 bytes that the target can read and write with the same key for the whole
/// session; data that a command fetches are at its start when the completion arrives.
#[derive(Debug)]
pub struct Session {
    pub(super) config: HostConfig,
    pub(super) buffer: HostBuffer,
    pub(super) step: Step,
    /// Whether the action of `step` was handed out.
    waiting: bool,
    generation: u16,
    pub(super) polls: u32,
    /// Whether an event request is outstanding.
    event_request: bool,
    /// Records of the discovery log that are still to be read.
    records_left: u64,
    /// Generation of the discovery log that is being read.
    log_generation: Option<u64>,
    log_reads: u32,
    pub(super) info: ControllerInfo,
}

impl Session {
    /// A session that begins with the admin queue.
    #[must_use]
    pub fn new(config: HostConfig, buffer: HostBuffer) -> Session {
        Session {
            config,
            buffer,
            step: Step::OpenQueue(0),
            waiting: false,
            generation: 0,
            polls: 0,
            event_request: false,
            records_left: 0,
            log_generation: None,
            log_reads: 0,
            info: ControllerInfo::default(),
        }
    }

    /// Facts about the controller, as far as they have been read.
    #[must_use]
    pub const fn info(&self) -> &ControllerInfo {
        &self.info
    }

    /// Whether all queues are connected and all namespaces known.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.step == Step::Ready
    }

    /// Whether all queues are disconnected.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.step == Step::Closed
    }

    /// Sends a Keep Alive next, if the session is ready.
    pub fn keep_alive(&mut self) {
        if self.step == Step::Ready {
            self.enter(Step::KeepAlive);
        }
    }

    /// Disconnects in order, if the session is ready.
    pub fn shut_down(&mut self) {
        if self.step == Step::Ready {
            self.enter(if self.info.io_queues > 0 { Step::CloseQueue(1) } else { Step::Shutdown });
        }
    }

    /// The next action; `None` while the session waits for a report.
    pub fn next_action(&mut self) -> Option<Action> {
        if self.waiting {
            return None;
        }
        if self.step == Step::EventRequest || (self.step == Step::Ready && !self.event_request && self.wants_events()) {
            self.event_request = true;
            // Its completion is not awaited.
            if self.step == Step::EventRequest {
                self.step = Step::ActiveNamespaces;
            }
            return Some(self.event_request());
        }
        let command_id = (self.generation & 0xF) << 12 | COMMAND_TAG;
        let action = self.action(command_id)?;
        self.waiting = true;
        Some(action)
    }

    /// A queue is connected.
    ///
    /// # Errors
    /// [`SessionError::Unexpected`].
    pub fn queue_opened(&mut self, qid: u16) -> Result<(), SessionError> {
        if !self.waiting || self.step != Step::OpenQueue(qid) {
            return Err(SessionError::Unexpected(qid));
        }
        self.enter(match qid {
            0 => Step::ConnectQueue(0),
            _ if qid < self.info.io_queues => Step::OpenQueue(qid + 1),
            _ => Step::ConnectQueue(1),
        });
        Ok(())
    }

    /// A queue is disconnected.
    ///
    /// # Errors
    /// [`SessionError::Unexpected`].
    pub fn queue_closed(&mut self, qid: u16) -> Result<(), SessionError> {
        if !self.waiting || self.step != Step::CloseQueue(qid) {
            return Err(SessionError::Unexpected(qid));
        }
        self.enter(match qid {
            0 => Step::Closed,
            _ if qid < self.info.io_queues => Step::CloseQueue(qid + 1),
            _ => Step::Shutdown,
        });
        Ok(())
    }

    /// A completion arrived. `data` is the session's buffer. Returns the event, if it completed an event request.
    ///
    /// # Errors
    /// The session failed.
    pub fn completed(&mut self, cqe: &Cqe, data: &[u8]) -> Result<Option<AsyncEvent>, SessionError> {
        if cqe.command_id() == EVENT_REQUEST_ID && self.event_request {
            self.event_request = false;
            check("Asynchronous Event Request", cqe)?;
            return Ok(AsyncEvent::from_result(cqe.result()));
        }
        let Some(command) = self.step.command_name().filter(|_| self.waiting) else {
            return Err(SessionError::Unexpected(cqe.command_id()));
        };
        if cqe.command_id() != (self.generation & 0xF) << 12 | COMMAND_TAG {
            return Err(SessionError::Unexpected(cqe.command_id()));
        }
        check(command, cqe)?;
        self.generation = self.generation.wrapping_add(1);
        let next = self.advance(command, cqe.result(), data)?;
        self.enter(next);
        Ok(None)
    }

    fn enter(&mut self, step: Step) {
        if step != self.step {
            self.polls = 0;
        }
        self.step = step;
        self.waiting = false;
    }

    fn wants_events(&self) -> bool {
        !self.config.subsystem.is_discovery()
    }

    /// The step behind the successful command of this one.
    fn advance(&mut self, command: &'static str, result: u64, data: &[u8]) -> Result<Step, SessionError> {
        Ok(match self.step {
            Step::ConnectQueue(0) => {
                self.info.controller_id = result as u16;
                Step::GetCapabilities
            }
            Step::ConnectQueue(qid) if qid < self.info.io_queues => Step::ConnectQueue(qid + 1),
            Step::ConnectQueue(_) => Step::SetEventMask,
            Step::GetCapabilities => {
                self.info.max_queue_size = Capabilities::from_bits(result).max_queue_entries.saturating_add(1);
                Step::Configure
            }
            Step::Configure => Step::Enable,
            Step::Enable => Step::WaitReady,
            Step::WaitReady => {
                let status = StatusRegister::from_bits(result as u32);
                if status.fatal {
                    return Err(SessionError::Unusable("fatal status after enable"));
                }
                if status.ready { Step::IdentifyController } else { self.poll_again("ready")? }
            }
            Step::IdentifyController => {
                let data = IdentifyController::ref_from_prefix(data).map_err(|_| SessionError::ShortData(command))?.0;
                self.learn(data)?;
                if self.config.subsystem.is_discovery() { Step::DiscoveryHeader } else { Step::SetQueues }
            }
            Step::SetQueues => {
                let granted = (result & 0xFFFF).min(result >> 16 & 0xFFFF) as u16;
                self.info.io_queues = self.config.io_queues.min(granted.saturating_add(1));
                if self.info.io_queues == 0 { Step::SetEventMask } else { Step::OpenQueue(1) }
            }
            Step::SetEventMask => Step::EventRequest,
            Step::ActiveNamespaces => {
                let list = data.get(..IDENTIFY_LEN).ok_or(SessionError::ShortData(command))?;
                self.info.namespaces = parse_active_list(list)
                    .map(|nsid| NamespaceInfo { nsid, blocks: 0, block_shift: 0, descriptors: Vec::new() })
                    .collect();
                self.namespace_step(0)
            }
            Step::Descriptors(index) => {
                let list = data.get(..IDENTIFY_LEN).ok_or(SessionError::ShortData(command))?;
                if let Some(namespace) = self.info.namespaces.get_mut(index) {
                    namespace.descriptors = parse_descriptors(list);
                }
                Step::Namespace(index)
            }
            Step::Namespace(index) => {
                let data = IdentifyNamespace::ref_from_prefix(data).map_err(|_| SessionError::ShortData(command))?.0;
                if let Some(namespace) = self.info.namespaces.get_mut(index) {
                    namespace.blocks = data.size.get();
                    namespace.block_shift = data.block_shift();
                }
                self.namespace_step(index + 1)
            }
            Step::DiscoveryHeader => {
                let header = DiscoveryHeader::ref_from_prefix(data).map_err(|_| SessionError::ShortData(command))?.0;
                self.log_step(header)?
            }
            Step::DiscoveryRecord(_) => {
                let entry =
                    data.get(..DISCOVERY_ENTRY_LEN).and_then(|entry| DiscoveryEntry::read_from_bytes(entry).ok());
                self.info.records.push(entry.ok_or(SessionError::ShortData(command))?);
                self.records_left = self.records_left.saturating_sub(1);
                self.record_step()
            }
            Step::Shutdown => Step::WaitShutdown,
            Step::WaitShutdown => match StatusRegister::from_bits(result as u32).shutdown {
                ShutdownStatus::Complete => Step::CloseQueue(0),
                ShutdownStatus::Normal | ShutdownStatus::Occurring => self.poll_again("shut down")?,
            },
            Step::KeepAlive => Step::Ready,
            step @ (Step::OpenQueue(_) | Step::EventRequest | Step::Ready | Step::CloseQueue(_) | Step::Closed) => step,
        })
    }

    fn poll_again(&mut self, state: &'static str) -> Result<Step, SessionError> {
        self.polls += 1;
        if self.polls >= MAX_POLLS { Err(SessionError::Timeout(state)) } else { Ok(self.step) }
    }

    fn namespace_step(&self, index: usize) -> Step {
        if index < self.info.namespaces.len() { Step::Descriptors(index) } else { Step::Ready }
    }

    /// Reads the records, or ends when the log is the one whose records were read.
    fn log_step(&mut self, header: &DiscoveryHeader) -> Result<Step, SessionError> {
        if self.log_generation == Some(header.generation()) {
            return Ok(Step::Ready);
        }
        self.log_reads += 1;
        if self.log_reads > MAX_LOG_READS {
            return Err(SessionError::UnstableLog);
        }
        self.log_generation = Some(header.generation());
        self.info.records.clear();
        self.records_left = header.records().min(MAX_RECORDS);
        Ok(self.record_step())
    }

    /// The next record, or the header again: the log may have changed.
    fn record_step(&self) -> Step {
        match self.records_left {
            0 => Step::DiscoveryHeader,
            _ => Step::DiscoveryRecord(self.info.records.len()),
        }
    }

    /// Checks and keeps what Identify Controller says.
    fn learn(&mut self, data: &IdentifyController) -> Result<(), SessionError> {
        let discovery = self.config.subsystem.is_discovery();
        let keyed = data.sgl_support.get() & SglSupport::KEYED.bits() != 0;
        let required = [
            (data.controller_id.get() == self.info.controller_id, "the controller id is not that of Connect"),
            (keyed, "no keyed SGLs"),
            (discovery || data.keep_alive_granularity.get() != 0, "no keep alive"),
            (discovery || data.max_commands.get() != 0, "no outstanding commands"),
            (discovery || data.command_capsule.get() >= (SQE_LEN / 16) as u32, "command capsules are too short"),
            (discovery || data.response_capsule.get() >= 1, "response capsules are too short"),
        ];
        if let Some((_, problem)) = required.into_iter().find(|(ok, _)| !ok) {
            return Err(SessionError::Unusable(problem));
        }
        if data.sgl_support.get() & SglSupport::CAPSULE_OFFSET.bits() != 0 {
            self.info.capsule_data = data.command_capsule.get().saturating_mul(16).saturating_sub(SQE_LEN as u32);
        }
        self.info.max_transfer = match data.max_transfer {
            0 => 0,
            shift => 4096u32.checked_shl(u32::from(shift)).unwrap_or(0),
        };
        self.info.queue_size = self.config.queue_size.max(2).min(self.info.max_queue_size).min(data.max_commands.get());
        Ok(())
    }

    /// Whether the Connect of an I/O queue has its data in the capsule.
    pub(super) fn connects_in_capsule(&self) -> bool {
        self.info.capsule_data as usize >= CONNECT_DATA_LEN
    }
}

fn check(command: &'static str, cqe: &Cqe) -> Result<(), SessionError> {
    let status = cqe.status();
    if status.is_success() { Ok(()) } else { Err(SessionError::Failed { command, status, result: cqe.result() }) }
}
