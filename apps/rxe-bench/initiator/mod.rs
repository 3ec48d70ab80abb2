//! The service of the tests with messages: connects to the peer, posts the messages, measures, and disconnects.
//! [`Connections`] has the connections.
//!
//! ```text
//! Greeting ──> Connecting ──> Listing ──> Warming ──> Measuring ──> Draining ──┬──> Parting ──> Disconnecting ──> end
//!  (perftest only)          (--regions only)  ^                                │  (perftest only)
//!                                             └───────── the next size ────────┘
//! ```

mod measuring;

use std::sync::Arc;

use rxe::CliError;
use rxe_proto::cm::{ConnId, ConnectFailure, ConnectReply};
use rxe_proto::verbs::{Access, MemoryRegion, ProtectionDomain, Qpn, WorkCompletion};
use rxe_proto::wire::PathMtu;
use rxe_proto::wire::cm::Rej;
use rxe_proto::{Duration, Instant};
use rxe_service::{Context, EndReason, Listen, Service, ServiceFactory};

use crate::bulk::Bulk;
use crate::connections::{Connection, Connections};
use crate::control::Control;
use crate::load::{self, RemoteMemory};
use crate::measurement::Measurement;
use crate::outcome::{End, Outcome};
use crate::perftest::{Exchange, Next};
use crate::plan::{Length, Protocol, Verb};
use crate::region::Directory;
use crate::session::{Session, broken, connect, path_mtu, succeeded, why_not, words_of};
use crate::work::Work;

/// Interval of the timer.
const TICK: Duration = Duration::from_millis(1);
/// The run fails if no message completes for this long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Makes the service.
pub struct InitiatorFactory {
    /// State of the run.
    pub session: Arc<Session>,
    /// Operation of the messages.
    pub verb: Verb,
}

impl ServiceFactory for InitiatorFactory {
    fn name(&self) -> &'static str {
        "bench"
    }

    fn listen(&self) -> Vec<Listen> {
        Vec::new()
    }

    fn create(&self, _worker: usize) -> Box<dyn Service> {
        Box::new(Initiator {
            session: Arc::clone(&self.session),
            verb: self.verb,
            stage: Stage::Idle,
            memory: None,
            directory: None,
            regions: Vec::new(),
            talk: None,
            connections: Connections::new(Arc::clone(&self.session)),
            path_mtu: PathMtu::Mtu256,
            work: None,
            bulk: None,
            next_size: 0,
            measurement: None,
            outcomes: Vec::new(),
            refusal: None,
            failure: None,
            heard: (Instant::ZERO, 0),
        })
    }
}

/// Stage of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// On all workers but the one that measures.
    Idle,
    /// First part of perftest's parameter exchange.
    Greeting,
    Connecting,
    /// Reads the directory of the numbered regions.
    Listing,
    Warming {
        until: Instant,
    },
    Measuring,
    Draining,
    /// Last part of perftest's parameter exchange.
    Parting,
    Disconnecting,
}

/// perftest's parameter exchange and its control connection.
struct Talk {
    exchange: Exchange,
    control: Control,
}

/// The service on one lcore.
struct Initiator {
    session: Arc<Session>,
    verb: Verb,
    stage: Stage,
    memory: Option<MemoryRegion>,
    /// The directory during its READ, and then the numbered regions.
    directory: Option<Directory>,
    regions: Vec<RemoteMemory>,
    talk: Option<Talk>,
    connections: Connections,
    path_mtu: PathMtu,
    work: Option<Work>,
    /// The additional load, from the first size on.
    bulk: Option<Bulk>,
    /// Index of the plan's next size.
    next_size: usize,
    /// Of the present size, from the end of its warm-up on.
    measurement: Option<Measurement>,
    outcomes: Vec<Outcome>,
    /// Text of a rejection by the peer.
    refusal: Option<String>,
    /// Why the run ends early.
    failure: Option<CliError>,
    /// Time of the last completion, and the number of completed messages at that time.
    heard: (Instant, u64),
}

impl Initiator {
    fn prepare(&mut self, cx: &mut Context<'_>) -> Result<(), CliError> {
        let plan = &self.session.plan;
        let pd = cx.device().alloc_pd();
        let memory = cx.alloc_memory(load::local_memory(plan)).map_err(broken)?;
        // Bytes that differ, as in real messages.
        let bytes: Vec<u8> = (0..memory.len() as u64).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 16) as u8).collect();
        memory.write(0, &bytes).map_err(broken)?;
        self.memory = Some(cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE).map_err(broken)?);
        self.path_mtu = path_mtu(plan.path_mtu, cx.ports().first().map_or(PathMtu::Mtu1024, |port| port.path_mtu))?;
        self.heard = (cx.now(), 0);
        if plan.protocol == Protocol::Region {
            self.stage = Stage::Connecting;
            return self.request(cx);
        }
        self.stage = Stage::Greeting;
        let control = Control::open(cx, pd).map_err(broken)?;
        cx.connect(connect(plan, control.qp, &[]));
        self.talk = Some(Talk { exchange: Exchange::new(plan, self.path_mtu), control });
        Ok(())
    }

    fn pd(&self) -> Option<ProtectionDomain> {
        self.memory.as_ref().map(|memory| memory.pd().into())
    }

    /// Requests further connections.
    fn request(&mut self, cx: &mut Context<'_>) -> Result<(), CliError> {
        self.pd().map_or(Ok(()), |pd| self.connections.request(cx, pd))
    }

    /// Requests connections again after temporary rejections.
    fn retry(&mut self, cx: &mut Context<'_>) -> Result<(), CliError> {
        let Some(pd) = self.pd() else { return Ok(()) };
        if self.connections.retry(cx, pd)?
            && let Some(talk) = &mut self.talk
        {
            talk.control.reopen(cx).map_err(broken)?;
            cx.connect(connect(&self.session.plan, talk.control.qp, &[]));
        }
        Ok(())
    }

    /// Takes the next step of perftest's parameter exchange.
    fn talk(&mut self, cx: &mut Context<'_>) -> Result<(), CliError> {
        let Some(Talk { exchange, control }) = &mut self.talk else { return Ok(()) };
        match exchange.next() {
            Next::Say(message) => control.say(cx, &message).map_err(broken),
            Next::Connect => {
                self.stage = Stage::Connecting;
                self.request(cx)
            }
            Next::Traffic => {
                for (index, connection) in self.connections.list_mut().iter_mut().enumerate() {
                    connection.remote = exchange.memory(index);
                }
                self.next(cx)
            }
            Next::End => {
                self.disconnect(cx);
                Ok(())
            }
        }
    }

    /// Handles a completion on the control connection.
    fn hear(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) -> Result<(), CliError> {
        let peer = self.session.plan.peer;
        let Some(Talk { exchange, control }) = &mut self.talk else { return Ok(()) };
        if !succeeded(wc).map_err(|why| broken(format!("{peer} is not a perftest server with -R: {why}")))? {
            return Ok(());
        }
        let Some(answer) = control.heard(wc) else { return Ok(()) };
        self.heard.0 = cx.now();
        let taken = exchange.answered(&answer);
        taken.map_err(|why| broken(format!("{peer} is not a perftest server with -R: {why}")))?;
        self.talk(cx)
    }

    /// Continues when all connections are established.
    fn all_up(&mut self, cx: &mut Context<'_>) -> Result<(), CliError> {
        let Some(Talk { exchange, .. }) = &mut self.talk else {
            return if self.session.plan.regions.is_some() { self.list(cx) } else { self.next(cx) };
        };
        exchange.connected(self.connections.list().iter().map(|connection| connection.qp.qpn()).collect());
        self.stage = Stage::Greeting;
        self.talk(cx)
    }

    /// Reads the directory of the numbered regions on the first queue pair; every queue pair has the same one.
    fn list(&mut self, cx: &mut Context<'_>) -> Result<(), CliError> {
        let told = self.connections.list().first().and_then(|first| Some((first.qp, first.remote?)));
        let (Some(count), Some(memory), Some(told)) = (self.session.plan.regions, &self.memory, told) else {
            return Ok(());
        };
        self.stage = Stage::Listing;
        self.directory = Some(Directory::read(cx, memory.pd().into(), told, count).map_err(CliError::new)?);
        Ok(())
    }

    /// Handles the completion of the READ.
    fn listed(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) -> Result<(), CliError> {
        let Some(directory) = self.directory.take() else { return Ok(()) };
        if succeeded(wc).map_err(broken)? {
            self.regions = directory.regions(cx).map_err(broken)?;
            self.next(cx)?;
        }
        Ok(())
    }

    /// Starts the next size, or ends the test.
    fn next(&mut self, cx: &mut Context<'_>) -> Result<(), CliError> {
        if let Some(work) = self.work.take() {
            work.close(cx);
        }
        let plan = &self.session.plan;
        let Some(local) = &self.memory else { return Ok(()) };
        let told = |connection: &Connection| Some((connection.qp, connection.remote?));
        let mut qps: Vec<_> = self.connections.list().iter().filter_map(told).collect();
        let others = qps.split_off(qps.len().min(plan.qps as usize));
        if let Some(beside) = plan.beside().filter(|_| self.bulk.is_none()) {
            self.bulk = Some(Bulk::start(cx, &beside, local.pd().into(), &others).map_err(CliError::new)?);
        }
        let size = plan.sizes.get(self.next_size).copied();
        let mut work = match size.map(|size| Work::new(cx, plan, self.verb, size, qps, &self.regions, local)) {
            Some(Ok(work)) => work,
            Some(Err(why)) if self.outcomes.is_empty() => return Err(CliError::new(why)),
            // `--all` ends at the first size that does not fit.
            Some(Err(_)) | None => return self.part(cx),
        };
        self.next_size += 1;
        let messages = match plan.length {
            Length::Messages(messages) if plan.warm_up.is_zero() => messages,
            _ => u64::MAX,
        };
        self.heard = (cx.now(), 0);
        let started = work.start(cx, messages, plan.qps);
        self.stage = Stage::Warming { until: cx.now() + plan.warm_up };
        self.work = Some(work);
        started.map_err(broken)?;
        if self.session.plan.warm_up.is_zero() {
            self.measure(cx);
        }
        Ok(())
    }

    /// Ends the measurement.
    fn measured(&mut self, cx: &mut Context<'_>) -> Result<(), CliError> {
        self.record(cx.now(), End::Complete);
        if let Some(work) = &mut self.work {
            work.stop();
        }
        self.stage = Stage::Draining;
        self.drained(cx)
    }

    /// Continues when no message is outstanding.
    fn drained(&mut self, cx: &mut Context<'_>) -> Result<(), CliError> {
        match &self.work {
            // With SENDs, perftest's ends synchronize before each size.
            Some(work) if work.in_flight() == 0 && self.verb == Verb::Send => self.part(cx),
            Some(work) if work.in_flight() == 0 => self.next(cx),
            _ => Ok(()),
        }
    }

    /// Ends the test, or one size of SENDs.
    fn part(&mut self, cx: &mut Context<'_>) -> Result<(), CliError> {
        let Some(Talk { exchange, .. }) = &mut self.talk else {
            self.disconnect(cx);
            return Ok(());
        };
        exchange.tested();
        self.stage = Stage::Parting;
        self.talk(cx)
    }

    /// Disconnects all connections, the control connection last.
    fn disconnect(&mut self, cx: &mut Context<'_>) {
        self.stage = Stage::Disconnecting;
        if !self.connections.disconnect(cx) {
            return;
        }
        match self.talk.as_ref().and_then(|talk| talk.control.conn) {
            Some(conn) => cx.disconnect(conn),
            None => {
                let ended = self.ended();
                self.session.end(ended);
            }
        }
    }

    /// Ends the run early.
    fn fail(&mut self, cx: &mut Context<'_>, failure: CliError) {
        if self.failure.is_none() && self.stage != Stage::Disconnecting {
            // Without the time in which nothing was completed any more.
            let (last, counted) = self.heard;
            self.record(if self.done() == counted { last } else { cx.now() }, End::Failed);
        }
        self.failure.get_or_insert(failure);
        if let Some(work) = &mut self.work {
            work.stop();
        }
        self.disconnect(cx);
    }

    fn check(&mut self, cx: &mut Context<'_>, done: Result<(), CliError>) {
        if let Err(failure) = done {
            self.fail(cx, failure);
        }
    }

    fn is_control(&self, qp: Qpn) -> bool {
        self.talk.as_ref().is_some_and(|talk| talk.control.qp.qpn() == qp)
    }
}

impl Service for Initiator {
    fn start(&mut self, cx: &mut Context<'_>) {
        // Only one worker measures.
        if cx.worker() == 0 {
            let prepared = self.prepare(cx);
            self.check(cx, prepared);
            cx.set_timer(TICK, 0);
        }
    }

    fn connect_reply(&mut self, _cx: &mut Context<'_>, conn: ConnId, qp: Qpn, reply: &ConnectReply) {
        if !self.connections.accepted(conn, qp, reply)
            && let Some(talk) = &mut self.talk
        {
            talk.control.conn = Some(conn);
        }
    }

    fn connect_rejected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, _qp: Qpn, rej: &Rej) {
        self.refusal = words_of(rej);
    }

    fn connected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn) {
        if self.is_control(qp) {
            let done = self.talk(cx);
            return self.check(cx, done);
        }
        self.connections.established();
        if self.stage != Stage::Connecting {
            return self.disconnect(cx);
        }
        let done = if self.talk.is_none() && !self.connections.has_remote(qp) {
            let peer = self.session.plan.peer;
            Err(CliError::new(format!("{peer} does not name its memory: it is not a region service")))
        } else if self.connections.all_established() {
            self.all_up(cx)
        } else {
            self.request(cx)
        };
        self.check(cx, done);
    }

    fn completions(&mut self, cx: &mut Context<'_>, batch: &[WorkCompletion]) {
        if self.failure.is_some() {
            return;
        }
        let done = match (self.stage, &mut self.work) {
            (Stage::Warming { .. } | Stage::Measuring | Stage::Draining, Some(work)) => {
                let done = match &mut self.bulk {
                    None => work.completed(cx, batch),
                    Some(bulk) => bulk.completed(cx, work, batch),
                };
                done.map_err(broken)
            }
            (Stage::Listing, _) => batch.iter().try_for_each(|wc| self.listed(cx, wc)),
            (Stage::Greeting | Stage::Parting, _) => batch.iter().try_for_each(|wc| self.hear(cx, wc)),
            _ => Ok(()),
        };
        let enough = self.measurement.as_ref().is_some_and(|measurement| measurement.has_enough(self.done()));
        let done = done.and_then(|()| match self.stage {
            Stage::Measuring if enough => self.measured(cx),
            Stage::Draining => self.drained(cx),
            _ => Ok(()),
        });
        self.check(cx, done);
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        if self.is_control(qp) {
            if let Some(talk) = &mut self.talk {
                talk.control.conn = None;
            }
        } else {
            self.connections.closed(qp);
        }
        if self.stage == Stage::Disconnecting {
            return self.disconnect(cx);
        }
        if let EndReason::NotEstablished(ConnectFailure::PeerRejected(why)) = reason
            && self.connections.schedule_retry(cx.now(), qp, self.is_control(qp), why)
        {
            return;
        }
        let failure = why_not(self.session.plan.peer, reason, self.refusal.as_deref());
        self.fail(cx, failure);
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        cx.set_timer(TICK, 0);
        let now = cx.now();
        if self.session.is_interrupted() {
            return self.interrupt(now);
        }
        let over = self.progress(now);
        let done = match self.stage {
            Stage::Warming { until } if now >= until => {
                self.measure(cx);
                Ok(())
            }
            Stage::Measuring if over => self.measured(cx),
            Stage::Greeting | Stage::Connecting if self.connections.is_retry_due(now) => self.retry(cx),
            _ => Ok(()),
        };
        self.check(cx, done);
        let done = self.done();
        if done != self.heard.1 || self.stage == Stage::Connecting {
            self.heard = (now, done);
        } else if self.stage != Stage::Disconnecting && now.saturating_since(self.heard.0) >= PATIENCE {
            let (peer, seconds) = (self.session.plan.peer, PATIENCE.as_secs());
            self.fail(cx, broken(format!("no message was completed by {peer} for {seconds} seconds")));
        }
    }
}
