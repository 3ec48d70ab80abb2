//! Work requests go from the programs' queues to the engine.

use nix::errno::Errno;
use rxe_proto::transport::{Engine, PostError, QpType, Qpn, RecvWr, SendWr};

use super::Uverbs;
use super::gather::{gather, returns_data};
use super::qp::Qp;
use super::table::ContextId;
use super::wqe::{Payload, Scratch, SendLimits, SendRequest, read_recv, read_send, refusal_status, send_len};

/// Work requests that one doorbell, or one turn, passes to the engine: the rest follows in the next turns, so that other
/// queue pairs are not kept waiting.
const SENDS_PER_TURN: u32 = 256;

/// Work requests that are taken together: the payloads of short messages among them are read by one system call.
const BATCH: u32 = 32;

/// The largest path MTU.
const MAX_MTU: u32 = 4096;

/// Work requests outstanding on a queue pair from which on further ones can wait. With fewer, a program has a few messages to send,
/// like a WRITE and a SEND that announces it, and not a stream.
const WAITS_FROM: u32 = 4;

/// How taking the work requests of a queue pair ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// The ring holds no more.
    Empty,
    /// The engine is full, or enough have been taken for now.
    More,
    /// The queue pair's state allows none.
    Refused,
}

impl Uverbs {
    /// POST_SEND: the rxe provider's doorbell. The work requests are in the ring. They stay there when they
    /// [can wait](Self::take_can_wait).
    ///
    /// # Errors
    /// `EINVAL` for an unknown handle, and before RTS; the work requests posted so far are dropped then.
    #[inline]
    pub(super) fn post_send(&mut self, engine: &mut Engine, context: ContextId, handle: u32) -> Result<(), Errno> {
        let qp = self.qps.get_mut(context, handle).ok_or(Errno::EINVAL)?;
        self.can_wait = can_wait(engine, qp);
        if self.can_wait {
            if !qp.is_unsent {
                qp.is_unsent = true;
                self.unsent.push_back(handle);
            }
            return Ok(());
        }
        let (_, outcome) = self.take_sends(engine, handle);
        if outcome == Outcome::Refused { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// Takes the work requests of all queue pairs in the next turn: some may have been posted without a doorbell.
    pub fn ring_all(&mut self) {
        for handle in self.qps.handles() {
            if let Some(qp) = self.qps.at_mut(handle)
                && !qp.is_unsent
            {
                qp.is_unsent = true;
                self.unsent.push_back(handle);
            }
        }
    }

    /// Whether what the last doorbell posted can wait for that of the next ones, to be transmitted with them: it is a single packet,
    /// and an ACK for others of its queue pair will arrive.
    pub fn take_can_wait(&mut self) -> bool {
        std::mem::take(&mut self.can_wait)
    }

    /// Takes work requests that were left in the programs' send queues, or wait there. Returns whether there were any: the engine
    /// has something to transmit then. Call it once per turn, after completions have made room.
    pub fn pull_sends(&mut self, engine: &mut Engine) -> bool {
        // Before anything is read from the program, and before a peer gets an ACK.
        self.staging.flush();
        let mut any = false;
        // Those that stay in the list wait for the next turn.
        for _ in 0..self.unsent.len() {
            let Some(handle) = self.unsent.pop_front() else { break };
            if let Some(qp) = self.qps.at_mut(handle) {
                qp.is_unsent = false;
                any |= self.take_sends(engine, handle).0 > 0;
            }
        }
        any
    }

    /// Whether work requests are left in the programs' send queues, or wait there.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether the last work request that was taken is one of several packets at any path MTU.
    pub fn sends_long(&self) -> bool {
        self.last_len > MAX_MTU.into()
    }

    /// Whether the last work request that was taken is so short that its payload may have been read early.
    pub fn sends_short(&self) -> bool {
        self.last_len <= self.limits.early_data.into()
    }

    /// Takes work requests of one send queue. Returns how many.
    fn take_sends(&mut self, engine: &mut Engine, handle: u32) -> (u32, Outcome) {
        let Uverbs { qps, ahs, scratch, requests, gather: memory, limits, last_len, unsent, sending, .. } = self;
        let Some((owner, qp)) = qps.entry_mut(handle) else { return (0, Outcome::Empty) };
        let of_queue =
            SendLimits { qp_type: qp.qp_type, max_sge: qp.sends.max_sge, max_inline: qp.caps.max_inline_data };
        // What is posted from now on has a doorbell of its own.
        let producer = qp.sends.ring.producer();
        let (mut count, mut outcome) = (0, Outcome::Empty);
        while qp.sends.taken != producer && outcome == Outcome::Empty {
            if count >= SENDS_PER_TURN {
                outcome = Outcome::More;
                break;
            }
            let ring = &qp.sends.ring;
            scratch.clear();
            requests.clear();
            requests.extend((0..ring.distance(qp.sends.taken, producer).min(BATCH)).map(|number| {
                let find_ah = |destination| ahs.find(owner, qp.pd, destination);
                read_send(ring, ring.after(qp.sends.taken, number), of_queue, scratch, find_ah)
            }));
            if requests.len() > 1 && !waits_for_data(engine, qp) {
                gather(memory, requests, scratch, engine.keys(), qp.pd_id, limits.early_data);
            }
            for request in requests.iter() {
                let posted = match post(engine, qp.qpn, request, scratch) {
                    Err(error) if is_of_request(error) => {
                        post(engine, qp.qpn, &request.failing(refusal_status(error)), scratch)
                    }
                    posted => posted,
                };
                match posted {
                    Ok(()) => {
                        if returns_data(request.op) {
                            qp.last_read = Some(qp.sends.taken);
                        }
                        qp.sends.taken = qp.sends.ring.after(qp.sends.taken, 1);
                        *last_len = request.len(scratch);
                        count += 1;
                    }
                    Err(PostError::State(_)) => {
                        // Posting fails, so they must not be sent later.
                        qp.sends.taken = producer;
                        outcome = Outcome::Refused;
                        break;
                    }
                    Err(_) => {
                        outcome = Outcome::More;
                        break;
                    }
                }
            }
        }
        if outcome == Outcome::More && !qp.is_unsent {
            qp.is_unsent = true;
            unsent.push_back(handle);
        }
        if complete_sends(engine, qp) > 0 && !qp.is_sending {
            qp.is_sending = true;
            sending.push_back(handle);
        }
        (count, outcome)
    }

    /// Takes the receives that the program has posted for queue pair `qpn`: call it before the engine handles a packet for
    /// it. With [`Qpn::MULTICAST`], for all queue pairs that are in a group.
    #[inline]
    pub fn pull_receives(&mut self, engine: &mut Engine, qpn: Qpn) {
        if qpn == Qpn::MULTICAST {
            return self.pull_members(engine);
        }
        if let Some(&handle) = self.qp_of.get(&qpn) {
            self.pull_receives_of(engine, handle);
        }
    }

    #[cold]
    fn pull_members(&mut self, engine: &mut Engine) {
        for at in 0..self.members.len() {
            self.pull_receives_of(engine, self.members[at]);
        }
    }

    /// Takes the receives of a queue pair, its own or those of its shared queue.
    #[inline]
    pub(super) fn pull_receives_of(&mut self, engine: &mut Engine, handle: u32) {
        let Some(qp) = self.qps.at_mut(handle) else { return };
        let Some(receives) = &mut qp.receives else {
            if let Some(srq) = qp.srq {
                self.pull_srq(engine, srq);
            }
            return;
        };
        let producer = receives.ring.producer();
        while receives.taken != producer {
            let wr_id = read_recv(&receives.ring, receives.taken, receives.max_sge, &mut self.scratch);
            let mut posted = engine.post_recv(qp.qpn, &RecvWr { wr_id, sges: self.scratch.sges() });
            if let Err(PostError::MessageTooLong) = posted {
                self.scratch.make_bad(receives.max_sge);
                posted = engine.post_recv(qp.qpn, &RecvWr { wr_id, sges: self.scratch.sges() });
            }
            match posted {
                Ok(()) => receives.taken = receives.ring.after(receives.taken, 1),
                // Full, or in RESET: later.
                Err(_) => break,
            }
        }
        receives.complete(engine.recv_queued(qp.qpn).unwrap_or(0));
    }

    /// Takes the receives of a shared queue: all, so that the engine sees when it holds fewer than its limit.
    #[inline]
    pub(super) fn pull_srq(&mut self, engine: &mut Engine, handle: u32) {
        let Some(srq) = self.srqs.at_mut(handle) else { return };
        let receives = &mut srq.receives;
        let producer = receives.ring.producer();
        while receives.taken != producer {
            let wr_id = read_recv(&receives.ring, receives.taken, receives.max_sge, &mut self.scratch);
            let mut posted = engine.post_srq_recv(srq.id, &RecvWr { wr_id, sges: self.scratch.sges() });
            if let Err(PostError::MessageTooLong) = posted {
                self.scratch.make_bad(receives.max_sge);
                posted = engine.post_srq_recv(srq.id, &RecvWr { wr_id, sges: self.scratch.sges() });
            }
            match posted {
                Ok(()) => receives.taken = receives.ring.after(receives.taken, 1),
                Err(_) => break,
            }
        }
        srq.complete(engine);
    }

    /// Lets the program see how many of its work requests have completed without a completion, of some queue pairs.
    pub(super) fn complete_unsignaled(&mut self, engine: &Engine) {
        /// Queue pairs looked at per turn.
        const PER_TURN: usize = 16;
        for _ in 0..self.sending.len().min(PER_TURN) {
            let Some(handle) = self.sending.pop_front() else { break };
            let Some(qp) = self.qps.at_mut(handle) else { continue };
            if complete_sends(engine, qp) > 0 {
                self.sending.push_back(handle);
            } else {
                qp.is_sending = false;
            }
        }
    }
}

/// Whether the work requests of a doorbell can wait for those of the next ones: see [`Uverbs::take_can_wait`].
#[inline]
fn can_wait(engine: &Engine, qp: &Qp) -> bool {
    let ring = &qp.sends.ring;
    let producer = ring.producer();
    let untaken = ring.distance(qp.sends.taken, producer);
    qp.qp_type == QpType::Rc
        && untaken > 0
        && engine.send_queued(qp.qpn).is_some_and(|queued| queued + untaken > WAITS_FROM)
        && engine.send_unacked(qp.qpn).is_some_and(|packets| packets > 0)
        && send_len(ring, ring.before(producer, 1)) <= MAX_MTU
}

/// Whether data that the peer returns is outstanding.
fn waits_for_data(engine: &Engine, qp: &mut Qp) -> bool {
    let queued = engine.send_queued(qp.qpn).unwrap_or(0);
    qp.last_read = qp.last_read.filter(|&index| qp.sends.ring.distance(index, qp.sends.taken) <= queued);
    qp.last_read.is_some()
}

/// Posts a work request whose buffers or data are in the scratch.
#[inline]
fn post(engine: &mut Engine, qpn: Qpn, request: &SendRequest, scratch: &Scratch) -> Result<(), PostError> {
    let SendRequest { wr_id, op, flags, payload } = *request;
    let wr = |sges| SendWr { wr_id, op, sges, flags };
    match payload {
        Payload::None => engine.post_send(qpn, &wr(&[])),
        Payload::Buffers { .. } => engine.post_send(qpn, &wr(scratch.sges_of(request))),
        Payload::Inline { first, len } => {
            let data = scratch.inline().get(first..first + len).unwrap_or_default();
            engine.post_send_inline(qpn, &wr(&[]), data)
        }
    }
}

/// Whether a work request was refused for what it is, not for the state of its queue.
fn is_of_request(error: PostError) -> bool {
    !matches!(error, PostError::QueueFull | PostError::State(_) | PostError::Unknown(_))
}

/// Lets the program see that work requests have completed. Returns how many have not.
#[inline]
pub(super) fn complete_sends(engine: &Engine, qp: &mut Qp) -> u32 {
    let queued = engine.send_queued(qp.qpn).unwrap_or(0);
    qp.sends.complete(queued);
    queued
}
