//! The server of ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong and ibv_srq_pingpong.
//!
//! Client and server exchange a [line](line) over TCP, then the server sends each message of the client back. The lines do not
//! name the program: a queue pair [detects the type of its peer](rxe_proto::verbs::Device::detect_peer_type). Only
//! ibv_srq_pingpong sends many lines; its queue pairs share their receives at both ends. The client closes the stream when it
//! has the answer, and does not announce the end of the test: the service ends a client that is idle, that acknowledges
//! nothing any more, or whose memory another client needs.

mod batch;
mod budget;
mod line;
mod talk;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use rxe_proto::verbs::{
    Access, AnyQueuePair, AsyncEvent, Device, ProtectionDomain, QpCaps, QpErrorCause, Qpn, Rc, RecvWr, RemoteAddr,
    SrqInitAttr, WcOpcode, WcStatus, WorkCompletion,
};
use rxe_proto::wire::{Gid, PathMtu};
use rxe_proto::{Duration, Instant};
use rxe_service::{Context, Lease, Ledger, PeerPath, QpMap, Shares, Standing, StreamId};

use self::batch::{Batch, EchoQp, SLOTS};
use self::budget::{Budget, slot_of, slots_in};
use self::line::Line;
use self::talk::{Next, Talk};
use super::metrics::ServiceMetrics;
use super::out_of_band::{Peer, no_way};
use crate::config::PingpongConfig;

/// The name that users select the service by.
pub const NAME: &str = "pingpong";
/// Time to wait for more lines after the first one.
const LINGER: Duration = Duration::from_millis(20);
/// The clients' default path MTU, which they never announce; a client's first packet shows its own.
const ASSUMED_MTU: PathMtu = PathMtu::Mtu1024;
/// Idle time after which a client may be ended to make room for another one.
const SPARED: Duration = Duration::from_secs(1);
/// Number of lines of an answer that fit into one TCP segment.
const LINES_AT_ONCE: usize = 28;
const CAPS: QpCaps = QpCaps {
    max_send_wr: 2 * SLOTS as u32,
    max_recv_wr: SLOTS as u32,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 0,
};

struct Client {
    /// The stream, until the client closes it.
    stream: Option<StreamId>,
    from: SocketAddr,
    talk: Talk,
    path: Option<PeerPath>,
    /// Lines that are answered when the path is resolved.
    waiting: Vec<Line>,
    batches: Vec<Batch>,
    /// Time of the last data on the stream.
    heard: Instant,
}

/// The pingpong clients of one worker.
pub struct Pingpong {
    config: PingpongConfig,
    /// Marks our timers and path requests.
    tag: u64,
    pd: Option<ProtectionDomain>,
    /// `None` before the start.
    budget: Option<Budget>,
    clients: HashMap<u64, Client>,
    streams: HashMap<StreamId, u64>,
    qps: QpMap<EchoQp>,
    next: u64,
    metrics: ServiceMetrics,
}

impl Pingpong {
    /// Without clients. `tag` is a bit above our numbers.
    pub fn new(config: PingpongConfig, tag: u64, metrics: ServiceMetrics) -> Pingpong {
        let (clients, streams, qps) = (HashMap::new(), HashMap::new(), QpMap::default());
        Pingpong { config, tag, pd: None, budget: None, clients, streams, qps, next: 0, metrics }
    }

    /// Opens the account of the clients.
    pub fn start(&mut self, cx: &mut Context<'_>) {
        let total = self.config.budget;
        let id = cx.open_memory_budget("pingpong messages", total, Shares::HALF);
        self.budget = Some(Budget { total, id });
    }

    /// Handles a new stream that begins like a pingpong's.
    pub fn stream_opened(&mut self, cx: &mut Context<'_>, stream: StreamId, from: SocketAddr) {
        self.metrics.connections.inc();
        let number = self.next;
        self.next += 1;
        self.streams.insert(stream, number);
        let (talk, path, waiting, batches) = (Talk::default(), None, Vec::new(), Vec::new());
        let client = Client { stream: Some(stream), from, talk, path, waiting, batches, heard: cx.now() };
        self.clients.insert(number, client);
    }

    /// Handles data of a stream; `false` if it is not ours.
    pub fn stream_data(&mut self, cx: &mut Context<'_>, stream: StreamId, data: &[u8]) -> bool {
        let Some(&number) = self.streams.get(&stream) else { return false };
        let Some(client) = self.clients.get_mut(&number) else { return true };
        client.heard = cx.now();
        match client.talk.feed(data) {
            Ok(Next::Wait | Next::Done) => {}
            Ok(Next::Linger) => cx.set_timer(LINGER, self.tag | number),
            Ok(Next::Answer) => {
                let lines = client.talk.take();
                self.answer(cx, number, lines);
            }
            Err(_) => {
                self.metrics.nonsense(cx.now(), client.from, "it sent what is no line of a pingpong");
                self.end(cx, number, "it made no sense");
            }
        }
        true
    }

    /// Handles the end of a stream; `false` if it is not ours.
    pub fn stream_closed(&mut self, cx: &mut Context<'_>, stream: StreamId) -> bool {
        let Some(number) = self.streams.remove(&stream) else { return false };
        if let Some(client) = self.clients.get_mut(&number) {
            client.stream = None;
            if !client.talk.is_done() {
                self.end(cx, number, "it closed its stream before it began");
            }
        }
        true
    }

    /// Handles a timer that had our tag, which the caller has removed.
    pub fn timer(&mut self, cx: &mut Context<'_>, number: u64) {
        if let Some(line) = self.clients.get_mut(&number).and_then(|client| client.talk.take_single()) {
            self.answer(cx, number, vec![line]);
        }
    }

    /// Handles the result of a path request that had our tag.
    pub fn path_resolved(&mut self, cx: &mut Context<'_>, number: u64, path: Option<&PeerPath>) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let lines = std::mem::take(&mut client.waiting);
        match path {
            Some(path) => {
                client.path = Some(path.clone());
                self.answer(cx, number, lines);
            }
            None => {
                let gid = lines.iter().find(|line| line.is_used()).map_or(Gid::default(), |line| line.gid);
                let why = no_way(client.from.ip(), gid.ip());
                self.refuse(cx, number, &why);
            }
        }
    }

    /// Creates queue pairs for `lines` and answers them, as soon as the path is resolved.
    fn answer(&mut self, cx: &mut Context<'_>, number: u64, lines: Vec<Line>) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let Some(path) = client.path.clone() else {
            let asked = !client.waiting.is_empty();
            let used = lines.iter().find(|line| line.is_used()).copied();
            client.waiting.extend(lines);
            match used {
                Some(line) if !asked => cx.resolve_path_of(client.from.ip(), line.gid.ip(), self.tag | number),
                Some(_) => {}
                None => self.refuse(cx, number, "it names no queue pair"),
            }
            return;
        };
        match self.open(cx, number, &path, &lines) {
            Ok(answers) => {
                let stream = self.clients.get(&number).and_then(|client| client.stream);
                if let Some(stream) = stream {
                    for some in answers.chunks(LINES_AT_ONCE) {
                        let text: Vec<u8> = some.iter().flat_map(Line::write).collect();
                        cx.stream_send(stream, &text);
                    }
                }
            }
            Err(why) => self.refuse(cx, number, &why),
        }
    }

    /// Creates a batch of queue pairs for `lines`; returns the lines of the answer.
    fn open(
        &mut self,
        cx: &mut Context<'_>,
        number: u64,
        path: &PeerPath,
        lines: &[Line],
    ) -> Result<Vec<Line>, String> {
        let used = lines.iter().filter(|line| line.is_used()).count();
        // Each queue pair of several has one message under way, and they share the others' receives.
        let (slots, parts) = if lines.len() > 1 { (used + SLOTS, 2 * SLOTS) } else { (SLOTS, SLOTS) };
        let wanted = self.config.memory / parts * slots;
        let from = self.clients.get(&number).map(|client| client.from.ip()).ok_or("it has left")?;
        let pd = *self.pd.get_or_insert_with(|| cx.device().alloc_pd());
        let (lease, slot) = self.lend(cx, from, wanted, slots)?;
        let memory = lease.memory();
        let memory = memory.slice(0, slots * slot).unwrap_or_else(|| memory.clone());
        let region = match cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE) {
            Ok(region) => region,
            Err(error) => {
                cx.take_back(lease);
                return Err(error.to_string());
            }
        };
        let reduced = slot < slot_of(wanted, slots);
        let mut batch = Batch { region, lease, slot, reduced, srq: None, qps: Vec::with_capacity(used) };
        let answers = self.fill(cx, number, pd, &mut batch, path, lines);
        // Also after an error: the client's end frees the memory and destroys the queue pairs created so far.
        if let Some(client) = self.clients.get_mut(&number) {
            client.batches.push(batch);
        }
        answers
    }

    /// Memory for `slots` receives of a client, and the length of each.
    fn lend(
        &mut self,
        cx: &mut Context<'_>,
        client: IpAddr,
        wanted: usize,
        slots: usize,
    ) -> Result<(Lease, usize), String> {
        let budget = self.budget.ok_or("the service has not started")?;
        let mut offer = budget.offer(cx.ledger(), client, wanted, slots);
        if offer.as_ref().map_or(true, |bytes| *bytes < wanted) {
            let enough =
                |ledger: &Ledger| budget.offer(ledger, client, wanted, slots).is_ok_and(|bytes| bytes >= wanted);
            self.make_room(cx, enough);
            offer = budget.offer(cx.ledger(), client, wanted, slots);
        }
        let offer = offer?;
        let mut memory = slots_in(offer, slots, |len| cx.lend(budget.id, client, len, Standing::Proven));
        if memory.as_ref().map_or(true, |(_, slot)| *slot < slot_of(offer, slots)) {
            // The adapter has less than the budget.
            self.make_room(cx, |_| false);
            if let Ok((less, _)) = memory {
                cx.take_back(less);
            }
            memory = slots_in(offer, slots, |len| cx.lend(budget.id, client, len, Standing::Proven));
        }
        memory.map_err(|error| {
            format!("{error}: give the target more hugepages, or lower memory and budget of [service.pingpong]")
        })
    }

    fn fill(
        &mut self,
        cx: &mut Context<'_>,
        number: u64,
        pd: ProtectionDomain,
        batch: &mut Batch,
        path: &PeerPath,
        lines: &[Line],
    ) -> Result<Vec<Line>, String> {
        let shared = lines.len() > 1;
        let slots = (batch.region.len() / batch.slot as u64) as u32;
        if shared {
            let mut dev = cx.device();
            let attr = SrqInitAttr { max_wr: slots, ..SrqInitAttr::default() };
            let srq = dev.create_srq(pd, attr).map_err(|error| error.to_string())?;
            batch.srq = Some(srq);
            for slot in 0..u64::from(slots) {
                let wr = RecvWr { wr_id: slot, sges: &[batch.sge(slot)] };
                dev.post_srq_recv(srq, wr).map_err(|error| error.to_string())?;
            }
        }
        let index = self.clients.get(&number).map_or(0, |client| client.batches.len());
        let mut answers = Vec::with_capacity(lines.len());
        for line in lines {
            if !line.is_used() {
                answers.push(Line::default());
                continue;
            }
            let attr = cx.qp_attr().with_caps(CAPS);
            let attr = batch.srq.map_or(attr, |srq| attr.with_srq(srq));
            let created = cx.device().create_qp_in_init::<Rc>(pd, attr, Access::empty());
            let qp = created.map_err(|error| error.to_string())?;
            batch.qps.push(qp.into());
            cx.set_name(qp, NAME);
            let peer = Peer {
                path: path.clone(),
                qpn: line.qpn,
                psn: line.psn,
                path_mtu: ASSUMED_MTU,
                rd_atomic: 0,
                remote: RemoteAddr::default(),
            };
            if !shared {
                for slot in 0..u64::from(slots) {
                    batch.post_recv(&mut cx.device(), qp.into(), slot).map_err(|error| error.to_string())?;
                }
            }
            let psn = cx.random_psn();
            peer.open(&mut cx.device(), qp, psn).map_err(|error| error.to_string())?;
            answers.push(Line { qpn: qp.qpn(), psn, gid: peer.path.path.src });
            self.qps.insert(qp.qpn(), EchoQp::new(cx, number, index, peer));
        }
        Ok(answers)
    }

    /// Handles a completion; `false` if its queue pair is not ours.
    pub fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) -> bool {
        let Some(echo) = self.qps.get_mut(&wc.qpn) else { return false };
        if wc.status != WcStatus::Success {
            // An RC queue pair is in ERROR, and its event follows; the idle timeout ends the clients of others.
            tracing::debug!(qp = %wc.qpn, status = %wc.status, "pingpong work request failed");
            return true;
        }
        let number = echo.client;
        let Some(batch) = self.clients.get(&number).and_then(|client| client.batches.get(echo.batch)) else {
            return true;
        };
        echo.heard = cx.now();
        let done = match wc.opcode {
            WcOpcode::Recv => {
                self.metrics.exchanges.inc();
                echo.send_back(&mut cx.device(), batch, wc)
            }
            WcOpcode::Send => echo.acknowledged(&mut cx.device(), batch, wc),
            _ => Ok(()),
        };
        if let Err(why) = done {
            if let Some(client) = self.clients.get(&number) {
                self.metrics.fail(cx.now(), client.from, &why);
            }
            self.end(cx, number, &why);
        }
        true
    }

    /// Handles an asynchronous event; `false` if its queue pair is not ours.
    pub fn async_event(&mut self, cx: &mut Context<'_>, event: &AsyncEvent) -> bool {
        let AsyncEvent::QpError { qpn, cause } = *event else {
            // A shared receive queue outlives the errors of its queue pairs; other events need no action.
            return false;
        };
        let Some(echo) = self.qps.get(&qpn) else { return false };
        let number = echo.client;
        let batch = self.clients.get(&number).and_then(|client| client.batches.get(echo.batch));
        match batch.filter(|_| cause == QpErrorCause::ReceiveTooSmall).map(Batch::too_long) {
            Some(why) => self.refuse(cx, number, &why),
            None => {
                tracing::debug!(%qpn, %cause, "pingpong queue pair in error");
                self.close_one(cx, number, qpn, cause.name());
            }
        }
        true
    }

    /// Destroys a queue pair, and ends its client with the last one.
    fn close_one(&mut self, cx: &mut Context<'_>, number: u64, qpn: Qpn, why: &str) {
        self.close_qp(&mut cx.device(), qpn.into());
        let Some(client) = self.clients.get_mut(&number) else { return };
        for batch in &mut client.batches {
            batch.qps.retain(|qp| qp.qpn() != qpn);
        }
        if client.batches.iter().all(|batch| batch.qps.is_empty()) {
            self.end(cx, number, why);
        }
    }

    /// Ends clients that have left, and those that are idle for longer than the timeout.
    pub fn sweep(&mut self, cx: &mut Context<'_>) {
        let (now, dev) = (cx.now(), cx.device());
        self.qps.iter_mut().for_each(|(qpn, echo)| echo.look(&dev, *qpn));
        // The client has closed its stream, so it had its answer and has begun.
        let begun = |number| self.clients.get(&number).is_some_and(|client| client.stream.is_none());
        let left = self.qps.iter().filter(|(_, echo)| echo.has_left(now) && begun(echo.client));
        let left: Vec<(Qpn, u64)> = left.map(|(qpn, echo)| (*qpn, echo.client)).collect();
        for (qpn, number) in left {
            self.close_one(cx, number, qpn, "it has left");
        }
        for (number, quiet) in self.quiet(now, self.config.idle_timeout) {
            if let Some(client) = self.clients.get(&number) {
                self.metrics.give_up(cx.now(), client.from, quiet);
            }
            self.end(cx, number, "it was silent");
        }
    }

    /// Ends clients that have begun and are idle for a moment, the longest first, until there is enough: most have finished.
    fn make_room(&mut self, cx: &mut Context<'_>, enough: impl Fn(&Ledger) -> bool) {
        let mut quiet = self.quiet(cx.now(), SPARED);
        quiet.sort_unstable_by_key(|(_, idle)| std::cmp::Reverse(*idle));
        for (number, _) in quiet {
            if enough(cx.ledger()) {
                return;
            }
            if let Some(client) = self.clients.get(&number).filter(|client| client.talk.is_done()) {
                self.metrics.evicted.inc();
                if self.metrics.admits(cx.now()) {
                    let client = client.from;
                    tracing::info!(%client, "{NAME}: client given up: its memory is wanted for another one");
                }
                self.end(cx, number, "it made room");
            }
        }
    }

    /// Clients that are idle for at least `limit`, with their idle times.
    fn quiet(&self, now: Instant, limit: Duration) -> Vec<(u64, Duration)> {
        let mut heard: HashMap<u64, Instant> = self.clients.iter().map(|(n, client)| (*n, client.heard)).collect();
        for echo in self.qps.values() {
            if let Some(last) = heard.get_mut(&echo.client) {
                *last = echo.heard.max(*last);
            }
        }
        let quiet = heard.into_iter().map(|(number, last)| (number, now.saturating_since(last)));
        quiet.filter(|(_, quiet)| *quiet >= limit).collect()
    }

    fn refuse(&mut self, cx: &mut Context<'_>, number: u64, why: &str) {
        if let Some(client) = self.clients.get_mut(&number) {
            self.metrics.refuse(cx.now(), client.from, "a pingpong", why);
            // All clients report an error; at the mere end of its stream ibv_srq_pingpong would read for ever.
            if let Some(stream) = client.stream.take() {
                self.streams.remove(&stream);
                cx.stream_reset(stream);
            }
        }
        self.end(cx, number, why);
    }

    fn close_qp(&mut self, dev: &mut Device<'_>, qp: AnyQueuePair) {
        if let Some(to) = self.qps.remove(&qp.qpn()).and_then(|echo| echo.to) {
            to.close(dev);
        }
        let _ = dev.destroy_qp(qp);
    }

    /// Releases all resources of a client.
    fn end(&mut self, cx: &mut Context<'_>, number: u64, why: &str) {
        let Some(client) = self.clients.remove(&number) else { return };
        tracing::debug!(client = %client.from, "pingpong client gone: {why}");
        if let Some(stream) = client.stream {
            self.streams.remove(&stream);
            cx.stream_close(stream);
        }
        let mut leases = Vec::new();
        let mut dev = cx.device();
        for batch in client.batches {
            for qp in batch.qps {
                self.close_qp(&mut dev, qp);
            }
            if let Some(srq) = batch.srq {
                // Its queue pairs are gone, so it goes too.
                let _ = dev.destroy_srq(srq);
            }
            let _ = dev.dereg_mr(&batch.region);
            leases.push(batch.lease);
        }
        leases.into_iter().for_each(|lease| cx.take_back(lease));
    }
}

/// Whether a stream that begins like this is a pingpong's; `None` while that cannot be told.
pub fn recognise(first: &[u8]) -> Option<bool> {
    if first.iter().take(4).any(|b| !b.is_ascii_hexdigit()) {
        return Some(false);
    }
    first.get(4).map(|b| *b == b':')
}
