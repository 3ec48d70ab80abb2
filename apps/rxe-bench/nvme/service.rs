//! The service around the [`Host`]: connects its queues, sends its commands, takes the responses, and measures.

use std::sync::Arc;

use rxe::CliError;
use rxe_nvmf::host::Action;
use rxe_nvmf::wire::private_data::RejectStatus;
use rxe_nvmf::wire::{CONNECT_DATA_LEN, HostBuffer};
use rxe_proto::cm::{ConnId, ConnectFailure, ConnectReply};
use rxe_proto::mem::Memory;
use rxe_proto::verbs::{Access, MemoryRegion, ProtectionDomain, Qpn, WorkCompletion};
use rxe_proto::wire::PathMtu;
use rxe_proto::wire::cm::{Rej, RejReason};
use rxe_proto::{Duration, Instant};
use rxe_service::{Context, EndReason, Listen, Service, ServiceFactory};
use zerocopy::IntoBytes;

use super::host::{Host, Stage, memory_len};
use super::measurement::{Mark, Measurement};
use super::plan::NvmePlan;
use super::report::NvmeOutcome;
use super::wires::{SESSION_SLOT, Wires, WorkId};
use crate::outcome::End;
use crate::session::{Ended, Session, broken, path_mtu, succeeded, why_not};

/// Interval of the timer.
const TICK: Duration = Duration::from_millis(1);
/// The run fails if the target does not answer for this long.
const PATIENCE: Duration = Duration::from_secs(20);
/// The queues are disconnected within this time, or all at once.
const CLOSING: Duration = Duration::from_secs(5);
/// Delay before a rejected connection is requested again, and the maximum number of attempts.
const RETRY_DELAY: Duration = Duration::from_millis(100);
const ATTEMPTS: u32 = 30;

/// State that the service shares with the program.
pub type NvmeSession = Session<NvmePlan, NvmeOutcome>;

/// Makes the service.
pub struct HostFactory(pub Arc<NvmeSession>);

impl ServiceFactory for HostFactory {
    fn name(&self) -> &'static str {
        "bench"
    }

    fn listen(&self) -> Vec<Listen> {
        Vec::new()
    }

    fn create(&self, _worker: usize) -> Box<dyn Service> {
        Box::new(HostService {
            session: Arc::clone(&self.0),
            clock: Clock(std::time::Instant::now()),
            parts: None,
            wires: Vec::new(),
            closing: None,
            later: None,
            retry: None,
            attempts: 0,
            warm_until: None,
            measurement: None,
            outcome: None,
            refusal: None,
            path_mtu: PathMtu::Mtu256,
            heard: Instant::ZERO,
            over: false,
        })
    }
}

/// The time of a batch of completions: that of the context is the beginning of the turn, before packets were received.
struct Clock(std::time::Instant);

impl Clock {
    #[inline]
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.elapsed().as_nanos() as u64)
    }
}

/// Objects that exist from the start on.
struct Parts {
    host: Host,
    pd: ProtectionDomain,
    /// Memory for the data, which the target reads and writes.
    region: MemoryRegion,
    memory: Memory,
}

/// The service on one lcore.
struct HostService {
    session: Arc<NvmeSession>,
    clock: Clock,
    /// On the worker that measures.
    parts: Option<Parts>,
    /// By queue number.
    wires: Vec<Wires>,
    /// The queue that is being disconnected.
    closing: Option<u16>,
    /// An action and its time.
    later: Option<(Instant, Action)>,
    /// When to request the connection of the last queue again.
    retry: Option<Instant>,
    attempts: u32,
    /// End of the warm-up.
    warm_until: Option<Instant>,
    measurement: Option<Measurement>,
    outcome: Option<NvmeOutcome>,
    /// Text of a rejection.
    refusal: Option<String>,
    path_mtu: PathMtu,
    /// When the target has answered last: an I/O, while there are any, as a target that answers Keep Alive may have lost one.
    heard: Instant,
    over: bool,
}

impl HostService {
    fn prepare(&mut self, cx: &mut Context<'_>) -> Result<(), CliError> {
        let plan = &self.session.plan;
        self.path_mtu = path_mtu(plan.path_mtu, cx.ports().first().map_or(PathMtu::Mtu1024, |port| port.path_mtu))?;
        let pd = cx.device().alloc_pd();
        let memory = cx.alloc_memory(memory_len(plan)).map_err(broken)?;
        // Bytes that differ, as in real data.
        let bytes: Vec<u8> = (0..1u64 << 16).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 16) as u8).collect();
        for start in (0..memory.len()).step_by(bytes.len()) {
            memory.write(start, &bytes[..bytes.len().min(memory.len() - start)]).map_err(broken)?;
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = cx.device().reg_mr(pd, memory.clone(), access).map_err(broken)?;
        let remote = HostBuffer { addr: region.addr(), len: 0, rkey: region.rkey(), invalidate: false };
        self.parts = Some(Parts { host: Host::new(plan, remote), pd, region, memory });
        self.heard = self.clock.now();
        self.act(cx)
    }

    /// Takes the next actions of the session.
    fn act(&mut self, cx: &mut Context<'_>) -> Result<(), CliError> {
        while self.later.is_none()
            && let Some(action) = self.parts.as_mut().and_then(|parts| parts.host.next_action())
        {
            match action {
                Action::Send { delay, .. } if !delay.is_zero() => {
                    self.later = Some((self.clock.now() + delay, action));
                }
                action => self.perform(cx, action)?,
            }
        }
        Ok(())
    }

    fn perform(&mut self, cx: &mut Context<'_>, action: Action) -> Result<(), CliError> {
        let Some(parts) = &mut self.parts else { return Ok(()) };
        match action {
            Action::OpenQueue { request, .. } => {
                self.wires.push(Wires::connect(cx, &self.session.plan, parts.pd, request)?);
                Ok(())
            }
            Action::CloseQueue { qid } => {
                self.closing = Some(qid);
                if let Some(conn) = self.wires.get(usize::from(qid)).and_then(|wires| wires.conn) {
                    cx.disconnect(conn);
                }
                Ok(())
            }
            Action::Send { qid, sqe, capsule, buffer, .. } => {
                let Some(wires) = self.wires.get(usize::from(qid)) else { return Ok(()) };
                if let Some(data) = capsule.as_ref().or(buffer.as_ref()) {
                    parts.memory.write(0, data.as_bytes()).map_err(broken)?;
                }
                if capsule.is_none() {
                    return wires.send(cx, SESSION_SLOT, &sqe).map_err(broken);
                }
                let data = parts.region.sge(..CONNECT_DATA_LEN).map_err(broken)?;
                wires.send_with_data(cx, SESSION_SLOT, &sqe, data)
            }
        }
    }

    /// Sends commands on I/O queue `qid` as long as there are slots.
    #[inline]
    fn submit(&mut self, cx: &mut Context<'_>, qid: u16, now: Instant) -> Result<(), CliError> {
        let (Some(parts), Some(wires)) = (&mut self.parts, self.wires.get(usize::from(qid))) else { return Ok(()) };
        while let Some(submission) = parts.host.submit(qid, now, &parts.memory)? {
            let slot = submission.slot;
            if submission.in_capsule {
                let size = self.session.plan.size as usize;
                let start = super::host::offset_of(&self.session.plan, usize::from(qid - 1)) + usize::from(slot) * size;
                let data = parts.region.sge(start..start + size).map_err(broken)?;
                wires.send_with_data(cx, slot, &submission.sqe, data)?;
            } else {
                wires.send(cx, slot, &submission.sqe).map_err(broken)?;
            }
        }
        Ok(())
    }

    /// Handles a work request that completed at `now`.
    #[inline]
    fn complete(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion, now: Instant) -> Result<(), CliError> {
        if !succeeded(wc).map_err(broken)? {
            return Ok(());
        }
        let WorkId { qid, is_receive, slot } = WorkId::parse(wc.wr_id);
        let (Some(parts), Some(wires)) = (&mut self.parts, self.wires.get(usize::from(qid))) else { return Ok(()) };
        let before = parts.host.stage();
        if is_receive {
            let cqe = wires.take_response(cx, slot, wc.byte_len)?;
            if qid > 0 || !matches!(before, Stage::Running | Stage::Draining) {
                self.heard = now;
            }
            parts.host.response(qid, &cqe, wc.invalidated_rkey, now, &parts.memory)?;
        } else {
            parts.host.sent(qid, slot);
        }
        match parts.host.stage() {
            Stage::Running if before == Stage::Connecting => self.begin(cx, now),
            Stage::Running | Stage::Draining if qid > 0 => self.submit(cx, qid, now),
            _ => Ok(()),
        }
    }

    /// Starts the load.
    fn begin(&mut self, cx: &mut Context<'_>, now: Instant) -> Result<(), CliError> {
        self.warm_until = Some(now + self.session.plan.warm_up);
        (1..=self.session.plan.queues).try_for_each(|qid| self.submit(cx, qid, now))
    }

    /// Measures, once a millisecond.
    fn look(&mut self, now: Instant) {
        let Some(Parts { host, .. }) = &mut self.parts else { return };
        let plan = &self.session.plan;
        self.session.progress.set_done(host.counts.done());
        if self.warm_until.is_some_and(|until| now >= until) {
            self.warm_until = None;
            let mark = Mark::new(now, host, self.session.retransmissions());
            let mtu = self.path_mtu.bytes() as u32;
            self.measurement = Some(Measurement::start(host, plan, mtu, mark));
        }
        let Some(measurement) = &mut self.measurement else { return };
        if measurement.is_interval_over(now) {
            let mark = Mark::new(now, host, self.session.retransmissions());
            self.session.progress.show(measurement.interval(host, plan, mark));
        }
        if measurement.is_over(now) {
            self.record(now, End::Complete);
            if let Some(parts) = &mut self.parts {
                parts.host.stop();
            }
        }
    }

    /// Records what was measured until `now`.
    fn record(&mut self, now: Instant, end: End) {
        let Some(Parts { host, .. }) = &mut self.parts else { return };
        match self.measurement.take() {
            Some(measurement) => {
                let mark = Mark::new(now, host, self.session.retransmissions());
                self.outcome = Some(measurement.outcome(host, &self.session.plan, &mark, end));
            }
            None => {
                let outcome = self.outcome.get_or_insert_with(|| NvmeOutcome::nothing(&self.session.plan, end));
                outcome.end = end;
            }
        }
    }

    /// Ends the run. The adapter disconnects what is still connected.
    fn end(&mut self, failure: Option<CliError>) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let mut outcome = self.outcome.take();
        if let (Some(outcome), Some(parts)) = (&mut outcome, &self.parts) {
            outcome.set_totals(&parts.host);
        }
        self.session.end(Ended { outcomes: outcome.into_iter().collect(), failure });
    }

    fn check(&mut self, done: Result<(), CliError>) {
        let Err(failure) = done else { return };
        if self.over {
            return;
        }
        // What was measured ends with the last response.
        self.record(self.heard, End::Failed);
        self.end(Some(failure));
    }

    fn stage(&self) -> Option<Stage> {
        self.parts.as_ref().map(|parts| parts.host.stage())
    }

    fn qid_of(&self, qp: Qpn) -> Option<u16> {
        self.wires.iter().find(|wires| wires.qp().qpn() == qp).map(Wires::qid)
    }

    /// A queue is disconnected.
    fn lost(&mut self, cx: &mut Context<'_>, qp: Qpn, reason: EndReason) -> Result<(), CliError> {
        let Some(qid) = self.qid_of(qp) else { return Ok(()) };
        if self.closing == Some(qid) {
            self.closing = None;
            if let Some(parts) = &mut self.parts {
                parts.host.queue_closed(qid)?;
            }
            return self.act(cx);
        }
        match (self.stage(), reason) {
            // The target disconnects a controller that is shut down.
            (Some(Stage::Closing | Stage::Closed), _) => {
                self.end(None);
                Ok(())
            }
            // The target had a queue pair connected to this number, from an earlier process, and has destroyed it now.
            (_, EndReason::NotEstablished(ConnectFailure::PeerRejected(RejReason::StaleConnection)))
                if self.attempts < ATTEMPTS =>
            {
                self.attempts += 1;
                self.retry = Some(self.clock.now() + RETRY_DELAY);
                Ok(())
            }
            _ => Err(why_not(self.session.plan.peer, reason, self.refusal.as_deref())),
        }
    }

    fn tick(&mut self, cx: &mut Context<'_>, now: Instant) -> Result<(), CliError> {
        if self.retry.is_some_and(|at| now >= at) {
            self.retry = None;
            if let (Some(wires), Some(parts)) = (self.wires.pop(), &self.parts) {
                self.wires.push(wires.reconnect(cx, &self.session.plan, parts.pd)?);
            }
        }
        if let Some((_, action)) = self.later.take_if(|(at, _)| now >= *at) {
            self.perform(cx, action)?;
        }
        self.look(now);
        if let Some(parts) = &mut self.parts {
            parts.host.tick(now);
        }
        self.act(cx)?;
        let silence = now.saturating_since(self.heard);
        match self.stage() {
            Some(Stage::Closed) => self.end(None),
            Some(Stage::Closing) if silence >= CLOSING => self.end(None),
            Some(_) if silence >= PATIENCE && self.is_connected() => {
                let (peer, seconds) = (self.session.plan.peer, PATIENCE.as_secs());
                return Err(broken(format!("{peer} has not answered a command for {seconds} seconds")));
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the connection manager has nothing to do: it has timeouts of its own.
    fn is_connected(&self) -> bool {
        self.wires.iter().all(|wires| wires.conn.is_some())
    }
}

impl Service for HostService {
    fn start(&mut self, cx: &mut Context<'_>) {
        // Only one worker measures.
        if cx.worker() == 0 {
            let prepared = self.prepare(cx);
            self.check(prepared);
            cx.set_timer(TICK, 0);
        }
    }

    fn connect_reply(&mut self, _cx: &mut Context<'_>, conn: ConnId, qp: Qpn, _reply: &ConnectReply) {
        self.heard = self.clock.now();
        if let Some(wires) = self.wires.iter_mut().find(|wires| wires.qp().qpn() == qp) {
            wires.conn = Some(conn);
        }
    }

    fn connect_rejected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, _qp: Qpn, rej: &Rej) {
        self.refusal = RejectStatus::parse(&rej.private_data).map(|status| status.to_string());
    }

    fn connected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn) {
        let Some(qid) = self.qid_of(qp) else { return };
        let Some(parts) = &mut self.parts else { return };
        let done = parts.host.queue_opened(qid);
        let done = done.and_then(|()| self.act(cx));
        self.check(done);
    }

    fn completions(&mut self, cx: &mut Context<'_>, batch: &[WorkCompletion]) {
        let now = self.clock.now();
        for wc in batch {
            if self.over {
                return;
            }
            if cx.has_qp_of(wc) {
                let done = self.complete(cx, wc, now);
                self.check(done);
            }
        }
        if !self.over {
            let done = self.act(cx);
            self.check(done);
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        if !self.over {
            let done = self.lost(cx, qp, reason);
            self.check(done);
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        cx.set_timer(TICK, 0);
        if self.over {
            return;
        }
        let now = self.clock.now();
        if self.session.is_interrupted() {
            if self.outcome.is_none() {
                self.record(now, End::Interrupted);
            }
            return self.end(None);
        }
        let done = self.tick(cx, now);
        self.check(done);
    }
}
