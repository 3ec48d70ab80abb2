//! The host without IO: the session with the controller, the checks of what the target offers, the I/O queues, and what they
//! have completed.
//!
//! ```text
//! Connecting ──> Running ──> Draining ──> Closing ──> Closed
//! ```

use hdrhistogram::Histogram;
use rxe::{CliError, cli_error};
use rxe_nvmf::host::{Action, ControllerInfo, HostConfig, Session, SessionError};
use rxe_nvmf::wire::{Cqe, HostBuffer, InvalidParameter, StatusCode};
use rxe_proto::mem::Memory;
use rxe_proto::{Duration, Instant};

use super::places::{Kind, Places};
use super::plan::NvmePlan;
use super::queue::{Layout, Queue, QueueError, Submission};

/// Length of the session's buffer, at the start of the memory that the target can access.
pub const SESSION_BUFFER: usize = 4096;
/// Keep alive timeout of the controller, requested in Connect.
const KATO: Duration = Duration::from_secs(15);
/// Interval of Keep Alive commands.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Most blocks of a command.
const MAX_BLOCKS: u32 = 1 << 16;

/// Stage of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The queues are being connected.
    Connecting,
    /// I/Os are outstanding.
    Running,
    /// The last I/Os are outstanding.
    Draining,
    /// The queues are being disconnected.
    Closing,
    /// All queues are disconnected.
    Closed,
}

/// What was completed since the start.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Successful reads.
    pub reads: u64,
    /// Successful writes.
    pub writes: u64,
    /// Blocks that were checked.
    pub checked: u64,
    /// Failed commands by status.
    pub errors: Vec<(StatusCode, u64)>,
}

impl Counts {
    /// Successful I/Os.
    pub fn done(&self) -> u64 {
        self.reads + self.writes
    }

    #[cold]
    fn fail(&mut self, code: StatusCode) {
        match self.errors.iter_mut().find(|(known, _)| *known == code) {
            Some((_, count)) => *count += 1,
            None => self.errors.push((code, 1)),
        }
    }
}

/// A host that runs the load of a plan.
#[derive(Debug)]
pub struct Host {
    plan: NvmePlan,
    session: Session,
    /// First byte of the memory that the target can access: the session's buffer, then the slots of each queue.
    remote: HostBuffer,
    queues: Vec<Queue>,
    stage: Stage,
    /// Time of the last Keep Alive.
    kept_alive: Instant,
    /// The parameters that the target allows, when connected.
    layout: Option<Layout>,
    /// I/Os completed since the start, reads and writes.
    pub counts: Counts,
    /// Latencies, during the measurement.
    pub latency: Option<Histogram<u64>>,
}

impl Host {
    /// A host that begins with the admin queue. `remote` is the memory of [`memory_len`] bytes, as the target names it.
    pub fn new(plan: &NvmePlan, remote: HostBuffer) -> Host {
        let config = HostConfig {
            host_nqn: plan.host_nqn.clone(),
            host_id: plan.host_id,
            subsystem: plan.subsystem.clone(),
            kato_ms: KATO.as_millis() as u32,
            io_queues: plan.queues,
            queue_size: plan.depth + 1,
        };
        let buffer = HostBuffer { len: SESSION_BUFFER as u32, ..remote };
        Host {
            plan: plan.clone(),
            session: Session::new(config, buffer),
            remote,
            queues: Vec::new(),
            stage: Stage::Connecting,
            kept_alive: Instant::ZERO,
            layout: None,
            counts: Counts::default(),
            latency: None,
        }
    }

    /// Stage of the run.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// What the commands have in common, when connected.
    pub fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    /// The next action of the session.
    pub fn next_action(&mut self) -> Option<Action> {
        self.session.next_action()
    }

    /// A queue is connected.
    ///
    /// # Errors
    /// The run fails.
    pub fn queue_opened(&mut self, qid: u16) -> Result<(), CliError> {
        let opened = self.session.queue_opened(qid);
        opened.map_err(|error| self.session_failure(&error))
    }

    /// A queue is disconnected, as the session's action says.
    ///
    /// # Errors
    /// The run fails.
    pub fn queue_closed(&mut self, qid: u16) -> Result<(), CliError> {
        self.session.queue_closed(qid).map_err(|error| self.session_failure(&error))?;
        if self.session.is_closed() {
            self.stage = Stage::Closed;
        }
        Ok(())
    }

    /// A response arrived on queue `qid`. `invalidated` is the key that it invalidated; `memory` is all that the target can access.
    ///
    /// # Errors
    /// The run fails.
    #[inline]
    pub fn response(
        &mut self,
        qid: u16,
        cqe: &Cqe,
        invalidated: Option<u32>,
        now: Instant,
        memory: &Memory,
    ) -> Result<(), CliError> {
        let index = usize::from(qid).wrapping_sub(1);
        let Some(queue) = self.queues.get_mut(index) else {
            return self.session_response(cqe, now, memory);
        };
        let completion = queue.completed(cqe, invalidated, now, memory).map_err(|error| self.queue_failure(error))?;
        match completion.io {
            Some((Kind::Read, _)) => self.counts.reads += 1,
            Some((Kind::Write, _)) => self.counts.writes += 1,
            None => {}
        }
        if let (Some((_, time)), Some(latency)) = (completion.io, &mut self.latency) {
            // Saturates at the histogram's bound.
            latency.saturating_record(time.as_nanos() as u64);
        }
        self.counts.checked += u64::from(completion.checked);
        if let Some(code) = completion.failed {
            self.counts.fail(code);
        }
        if self.stage == Stage::Draining {
            self.drained();
        }
        Ok(())
    }

    /// The capsule with the data of a slot of queue `qid` is acknowledged.
    #[inline]
    pub fn sent(&mut self, qid: u16, slot: u16) {
        if let Some(queue) = self.queues.get_mut(usize::from(qid).wrapping_sub(1)) {
            queue.sent(slot);
        }
        if self.stage == Stage::Draining {
            self.drained();
        }
    }

    /// The next command of I/O queue `qid`.
    ///
    /// # Errors
    /// The run fails.
    #[inline]
    pub fn submit(&mut self, qid: u16, now: Instant, memory: &Memory) -> Result<Option<Submission>, CliError> {
        let index = usize::from(qid).wrapping_sub(1);
        let Some(queue) = self.queues.get_mut(index) else { return Ok(None) };
        queue.submit(now, memory).map_err(|error| self.queue_failure(error))
    }

    /// Sends a Keep Alive next, if it is time for it.
    pub fn tick(&mut self, now: Instant) {
        if self.session.is_ready() && now.saturating_since(self.kept_alive) >= KEEP_ALIVE {
            self.kept_alive = now;
            self.session.keep_alive();
        }
        // It had to wait for a Keep Alive.
        if self.stage == Stage::Draining {
            self.drained();
        }
    }

    /// Starts no further I/Os, and disconnects when the outstanding ones have completed.
    pub fn stop(&mut self) {
        self.queues.iter_mut().for_each(Queue::stop);
        if self.stage == Stage::Running {
            self.stage = Stage::Draining;
            self.drained();
        }
    }

    fn drained(&mut self) {
        if self.session.is_ready() && self.queues.iter().all(|queue| queue.in_flight() == 0) {
            self.stage = Stage::Closing;
            self.session.shut_down();
        }
    }

    /// A completion of the session's commands.
    #[cold]
    fn session_response(&mut self, cqe: &Cqe, now: Instant, memory: &Memory) -> Result<(), CliError> {
        let mut data = [0; SESSION_BUFFER];
        memory.read(0, &mut data).map_err(|_| no_memory())?;
        // Events need no reaction: the namespace is that of the start.
        self.session.completed(cqe, &data).map_err(|error| self.session_failure(&error))?;
        if self.stage == Stage::Connecting && self.session.is_ready() {
            self.start(now)?;
        }
        Ok(())
    }

    /// Prepares the I/Os when the session is ready.
    fn start(&mut self, now: Instant) -> Result<(), CliError> {
        let layout = layout(&self.plan, self.session.info())?;
        let queue = |index: u16| {
            let offset = offset_of(&self.plan, usize::from(index));
            let remote = HostBuffer { addr: self.remote.addr + offset as u64, ..self.remote };
            Queue::new(index + 1, layout, Places::new(&self.plan, index, layout.places), offset, remote)
        };
        self.queues = (0..self.plan.queues).map(queue).collect();
        (self.layout, self.stage, self.kept_alive) = (Some(layout), Stage::Running, now);
        Ok(())
    }

    #[cold]
    fn queue_failure(&self, error: QueueError) -> CliError {
        CliError::failed(format!("{}: {error}", self.plan.peer))
    }

    #[cold]
    fn session_failure(&self, error: &SessionError) -> CliError {
        let NvmePlan { peer, subsystem, host_nqn, .. } = &self.plan;
        let SessionError::Failed { command: "Connect", status, result } = *error else {
            let sentence = format!("{peer}: {error}");
            return if self.stage == Stage::Connecting { CliError::new(sentence) } else { CliError::failed(sentence) };
        };
        let code = status.code;
        let advice = match code {
            StatusCode::ConnectInvalidParameters if result == InvalidParameter::SubsystemNqn.result() => {
                format!("it has no subsystem {subsystem}: check --nqn")
            }
            StatusCode::ConnectInvalidHost => {
                format!("the host {host_nqn} may not use {subsystem}: allow it there, or give another --hostnqn")
            }
            _ => format!("check --nqn {subsystem} and --hostnqn {host_nqn}"),
        };
        CliError::new(format!("{peer} refuses Connect ({code}): {advice}"))
    }
}

/// Bytes of memory that the target can access: the session's buffer, and the slots of all queues.
pub fn memory_len(plan: &NvmePlan) -> usize {
    offset_of(plan, usize::from(plan.queues))
}

/// Offset of the slots of the I/O queue with this index.
pub fn offset_of(plan: &NvmePlan, index: usize) -> usize {
    SESSION_BUFFER + index * usize::from(plan.depth) * plan.size as usize
}

#[cold]
fn no_memory() -> CliError {
    CliError::failed("the memory of the bench is lost")
}

/// Checks that the target allows what the plan has.
fn layout(plan: &NvmePlan, info: &ControllerInfo) -> Result<Layout, CliError> {
    let NvmePlan { peer, subsystem, namespace, queues, depth, size, verify, .. } = plan;
    let Some(found) = info.namespaces.iter().find(|found| found.nsid == *namespace && found.blocks > 0) else {
        let all: Vec<String> = info.namespaces.iter().take(16).map(|found| found.nsid.to_string()).collect();
        let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        return cli_error!("--namespace {namespace}: {subsystem} at {peer} has no such namespace, it has {all}");
    };
    if info.io_queues < *queues {
        return cli_error!("-P {queues}: {peer} grants {} I/O queues: choose a smaller number", info.io_queues);
    }
    if info.queue_size <= *depth {
        return cli_error!(
            "-q {depth}: {peer} allows {} outstanding I/Os of a queue: choose a smaller number",
            info.queue_size.saturating_sub(1)
        );
    }
    let block_shift = found.block_shift;
    let block = match 1u32.checked_shl(u32::from(block_shift)) {
        Some(block) if block >= 512 => block,
        _ => {
            return cli_error!(
                "--namespace {namespace}: {peer} has blocks of 2^{block_shift} bytes, which are unusable"
            );
        }
    };
    if size % block != 0 {
        return cli_error!("-o {size}: the namespace has blocks of {block} bytes: choose a multiple of that");
    }
    let most = match info.max_transfer {
        0 => u32::MAX,
        most => most,
    };
    let most = most.min(block.saturating_mul(MAX_BLOCKS));
    if *size > most {
        return cli_error!("-o {size}: {peer} allows {most} bytes of a command: choose a smaller size");
    }
    let places = found.blocks / u64::from(size / block);
    let lanes = u64::from(*queues) * u64::from(*depth);
    if places == 0 {
        return cli_error!(
            "-o {size}: the namespace has {} blocks of {block} bytes only: choose a smaller size",
            found.blocks
        );
    }
    if *verify && places < lanes {
        return cli_error!(
            "--verify: the namespace has room for {places} I/Os of {size} bytes, and {lanes} are outstanding: choose a smaller \
             -q, -P or -o"
        );
    }
    Ok(Layout {
        nsid: *namespace,
        block_shift,
        size: *size,
        places,
        depth: *depth,
        lanes,
        in_capsule: *size <= info.capsule_data,
        verify: *verify,
    })
}
