//! A queue pair: its two halves and what they have in common.

use std::fmt;

use crate::mem::{Access, PdId};
use crate::time::Instant;
use crate::wire::{Path, PathMtu, Psn, TxQueue};

use super::context::{Context, Turn};
use super::link::Link;
use super::requester::{Requester, SendQueue};
use super::responder::{RecvQueue, RecvRefused, Resources, Responder};
use super::state::{QpState, QpTransition};
use super::{CqId, EngineConfig, QpErrorCause, QpEvent, Qpn, RecvWr, SendWr, WcOpcode, WcStatus};

/// What a queue pair is made of.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Protection domain: the queue pair reaches regions of this domain only.
    pub pd: PdId,
    /// Where send queue work requests complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// Outstanding work requests of the send queue.
    pub max_send_wr: u32,
    /// Outstanding work requests of the receive queue.
    pub max_recv_wr: u32,
    /// Buffers of one work request of the send queue.
    pub max_send_sge: u32,
    /// Buffers of one receive.
    pub max_recv_sge: u32,
    /// Every send queue work request completes with a work completion, signalled or not.
    pub sq_sig_all: bool,
}

impl QpInit {
    /// The sizes of the queues.
    pub fn caps(&self) -> QpCaps {
        QpCaps {
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
        }
    }
}

/// Sizes of the queues of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpCaps {
    /// Outstanding work requests of the send queue.
    pub max_send_wr: u32,
    /// Outstanding work requests of the receive queue.
    pub max_recv_wr: u32,
    /// Buffers of one work request of the send queue.
    pub max_send_sge: u32,
    /// Buffers of one receive.
    pub max_recv_sge: u32,
}

impl QpCaps {
    /// Bytes of memory that a queue pair with these queues and `rd_atomic` READ and atomic resources takes.
    pub fn footprint(&self, rd_atomic: u8) -> usize {
        let depth = if rd_atomic == 0 { 0 } else { usize::from(rd_atomic).next_power_of_two() };
        size_of::<Qp>()
            + size_of::<Path>()
            + SendQueue::footprint(self.max_send_wr, self.max_send_sge)
            + RecvQueue::footprint(self.max_recv_wr, self.max_recv_sge)
            + Resources::footprint(depth)
    }
}

/// Why a queue pair could not be made or changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QpError {
    /// The engine holds no more queue pairs.
    #[error("no more queue pairs: the limit is {0}")]
    TooMany(u32),
    /// There is no such queue pair here.
    #[error("no such queue pair: {0}")]
    Unknown(Qpn),
    /// There is no such completion queue here.
    #[error("no such completion queue")]
    UnknownCq,
    /// There is no such protection domain here.
    #[error("no such protection domain")]
    UnknownPd,
    /// A queue size or attribute is beyond what the engine or the standard allows.
    #[error("{name} is {value}, the limit is {limit}")]
    Limit {
        /// Which one, in verbs terms.
        name: &'static str,
        /// What was asked for.
        value: u32,
        /// The most there can be.
        limit: u32,
    },
    /// The state diagram has no such way.
    #[error("a queue pair in {from} cannot go to {to}")]
    Transition {
        /// The present state.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// The queue pair has no path in its present state.
    #[error("the queue pair has no path yet")]
    NoPath,
}

/// Why a work request was not posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// There is no such queue pair here.
    #[error("no such queue pair: {0}")]
    Unknown(Qpn),
    /// Not allowed in this state.
    #[error("not in state {0}")]
    State(QpState),
    /// As many work requests as the queue holds are outstanding.
    #[error("the queue is full")]
    QueueFull,
    /// More buffers than agreed when the queue pair was made.
    #[error("too many buffers")]
    TooManySges,
    /// Longer than 2^31 bytes, or than half the PSNs.
    #[error("the message is too long")]
    MessageTooLong,
    /// The buffers of an atomic must hold 8 bytes.
    #[error("an atomic needs buffers of 8 bytes")]
    AtomicLength,
    /// A READ or atomic with `max_rd_atomic` 0.
    #[error("the peer takes no READs and atomics")]
    NoReadResources,
}

/// What can be asked of a queue pair.
#[derive(Clone, Debug)]
pub struct QpInfo {
    /// Its number.
    pub qpn: Qpn,
    /// Its state.
    pub state: QpState,
    /// Its protection domain.
    pub pd: PdId,
    /// Where send queue work requests complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// Sizes of its queues.
    pub caps: QpCaps,
    /// Which remote operations the peer may do.
    pub access: Access,
    /// The way to the peer, from RTR on.
    pub path: Option<Path>,
    /// The peer's queue pair, from RTR on.
    pub dest_qpn: Option<Qpn>,
    /// Most payload of one packet, from RTR on.
    pub path_mtu: Option<PathMtu>,
    /// The PSN expected next from the peer.
    pub expected_psn: Psn,
    /// The PSN of the next packet of new work.
    pub next_psn: Psn,
    /// The oldest PSN of ours without an answer.
    pub unacked_psn: Psn,
    /// Send queue work requests not completed.
    pub send_queued: u32,
    /// Receives not completed.
    pub recv_queued: u32,
    /// Whether communication is established (told or seen).
    pub established: bool,
}

/// What both halves need.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) qpn: Qpn,
    pub(super) pd: PdId,
    pub(super) send_cq: CqId,
    pub(super) recv_cq: CqId,
    /// Path MTU in bytes; the largest while there is no path.
    pub(super) mtu: u32,
    pub(super) sq_sig_all: bool,
}

/// A queue pair of the reliable connection service.
pub(super) struct Qp {
    pub(super) common: Common,
    pub(super) state: QpState,
    /// Whether the slot stands in the context's list of active ones.
    active: bool,
    /// Whether communication is established: the event was raised or need not be.
    pub(super) established: bool,
    /// Whether the end of draining was reported.
    pub(super) drained: bool,
    pub(super) link: Option<Link>,
    pub(super) responder: Responder,
    pub(super) requester: Requester,
    caps: QpCaps,
}

impl Qp {
    pub(super) fn new(qpn: Qpn, init: &QpInit) -> Qp {
        let caps = init.caps();
        Qp {
            common: Common {
                qpn,
                pd: init.pd,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                mtu: PathMtu::Mtu4096.bytes() as u32,
                sq_sig_all: init.sq_sig_all,
            },
            state: QpState::Reset,
            active: false,
            established: false,
            drained: false,
            link: None,
            responder: Responder::new(RecvQueue::new(caps.max_recv_wr, caps.max_recv_sge)),
            requester: Requester::new(SendQueue::new(caps.max_send_wr, caps.max_send_sge)),
            caps,
        }
    }

    pub(super) fn info(&self) -> QpInfo {
        let link = self.link.as_ref();
        let sq = &self.requester.sq;
        QpInfo {
            qpn: self.common.qpn,
            state: self.state,
            pd: self.common.pd,
            send_cq: self.common.send_cq,
            recv_cq: self.common.recv_cq,
            caps: self.caps,
            access: self.responder.access(),
            path: link.map(|link| (*link.path).clone()),
            dest_qpn: link.map(|link| link.dest_qpn),
            path_mtu: link.map(|link| link.path_mtu),
            expected_psn: self.responder.expected_psn(),
            next_psn: self.requester.next_psn(),
            unacked_psn: self.requester.una_psn(),
            send_queued: (sq.tail() - sq.head()) as u32,
            recv_queued: self.responder.rq.len(),
            established: self.established,
        }
    }

    /// Makes sure that the next transmission looks at this queue pair.
    #[inline]
    pub(super) fn activate(&mut self, cx: &mut Context) {
        if !self.active {
            self.active = true;
            cx.active.push_back(self.common.qpn.slot());
        }
    }

    /// Makes sure that the timers look at this queue pair by its deadline.
    #[inline]
    pub(super) fn watch(&self, cx: &mut Context) {
        if let Some(deadline) = self.requester.deadline {
            cx.wake_at(self.common.qpn.slot(), deadline);
        }
    }

    pub(super) fn modify(&mut self, cx: &mut Context, transition: QpTransition) -> Result<(), QpError> {
        let to = transition.target();
        let wrong = QpError::Transition { from: self.state, to };
        if !self.state.may_become(to) {
            return Err(wrong);
        }
        match transition {
            QpTransition::ToInit { access } => self.responder.set_access(access),
            QpTransition::ToRtr(attr) => {
                check_limit("max_dest_rd_atomic", attr.max_dest_rd_atomic.into(), cx.config.max_rd_atomic.into())?;
                check_limit("min_rnr_timer", attr.min_rnr_timer.into(), 31)?;
                self.responder.start(&attr);
                self.common.mtu = attr.path_mtu.bytes() as u32;
                self.link = Some(Link::new(attr.path, attr.dest_qpn, attr.path_mtu));
            }
            QpTransition::ToRts(attr) => {
                if self.state != QpState::Rtr {
                    return Err(wrong);
                }
                check_limit("max_rd_atomic", attr.max_rd_atomic.into(), cx.config.max_rd_atomic.into())?;
                check_limit("timeout", attr.timeout.into(), 31)?;
                check_limit("retry_cnt", attr.retry_cnt.into(), 7)?;
                check_limit("rnr_retry", attr.rnr_retry.into(), 7)?;
                self.requester.start(&attr);
            }
            QpTransition::Resume => {
                if self.state == QpState::Rtr {
                    return Err(wrong);
                }
                self.drained = false;
                self.activate(cx);
            }
            QpTransition::ToSqd => {
                if self.state == QpState::Rts && self.requester.is_drained() {
                    self.drained = true;
                    cx.events.push_back(QpEvent::SendQueueDrained { qpn: self.common.qpn });
                }
            }
            QpTransition::ToError => {
                if self.state != QpState::Error {
                    self.state = QpState::Error;
                    self.flush(cx, None, None);
                    self.responder.abandon_replies();
                }
            }
            QpTransition::ToReset => {
                self.responder.reset();
                self.requester.reset();
                self.link = None;
                self.established = false;
                self.drained = false;
            }
        }
        self.state = to;
        Ok(())
    }

    /// Goes to the error state for a cause that is not the consumer's wish. `send` is the work request to blame,
    /// `receive` the status of a receive in use.
    #[cold]
    pub(super) fn fail(
        &mut self,
        cx: &mut Context,
        cause: QpErrorCause,
        send: Option<(u64, WcStatus)>,
        receive: Option<WcStatus>,
    ) {
        if self.state == QpState::Error {
            return;
        }
        self.state = QpState::Error;
        cx.stats.link_downed.inc();
        cx.events.push_back(QpEvent::QpError { qpn: self.common.qpn, cause });
        self.flush(cx, send, receive);
        // A NAK must still go out, and everything before it. So must the ACK of a SEND whose invalidation failed.
        if !self.responder.has_last_word() && cause != QpErrorCause::Invalidate {
            self.responder.abandon_replies();
        }
        if self.responder.owes() {
            self.activate(cx);
        }
    }

    fn flush(&mut self, cx: &mut Context, send: Option<(u64, WcStatus)>, receive: Option<WcStatus>) {
        self.requester.flush(&self.common, cx, send);
        self.responder.flush(&self.common, cx, receive);
    }

    pub(super) fn post_send(&mut self, cx: &mut Context, wr: &SendWr<'_>) -> Result<(), PostError> {
        match self.state {
            QpState::Rts | QpState::Sqd => {
                self.requester.post(wr, self.common.mtu)?;
                self.activate(cx);
                Ok(())
            }
            QpState::Error | QpState::Sqe => {
                let wqe = self.requester.check(wr, self.common.mtu)?;
                let status = WcStatus::WrFlushErr;
                cx.complete(self.common.send_cq, self.common.failed(wqe.wr_id, wqe.op.wc_opcode(), status));
                Ok(())
            }
            state => Err(PostError::State(state)),
        }
    }

    pub(super) fn post_recv(&mut self, cx: &mut Context, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.state == QpState::Reset {
            return Err(PostError::State(self.state));
        }
        self.responder.rq.push(wr).map_err(|refused| match refused {
            RecvRefused::Full => PostError::QueueFull,
            RecvRefused::Sges => PostError::TooManySges,
            RecvRefused::Length => PostError::MessageTooLong,
        })?;
        if self.state == QpState::Error
            && let Some(wqe) = self.responder.rq.pop()
        {
            let status = WcStatus::WrFlushErr;
            cx.complete(self.common.recv_cq, self.common.failed(wqe.wr_id, WcOpcode::Recv, status));
        }
        Ok(())
    }

    /// One turn: replies first, as the peer waits for them, then requests.
    pub(super) fn transmit(&mut self, cx: &mut Context, now: Instant, tx: &mut impl TxQueue) -> (usize, Turn) {
        let (replies, turn) = self.reply(cx, tx, cx.config.read_quantum);
        if turn == Turn::Refused || !self.state.sends() {
            return (replies, turn);
        }
        let (requests, after) = self.send_requests(cx, now, tx, cx.config.send_quantum);
        (replies + requests, if after == Turn::Idle { turn } else { after })
    }

    /// The slot was taken from the list of active ones.
    pub(super) fn set_inactive(&mut self) {
        self.active = false;
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp").field("qpn", &self.common.qpn).field("state", &self.state).finish_non_exhaustive()
    }
}

fn check_limit(name: &'static str, value: u32, limit: u32) -> Result<(), QpError> {
    if value > limit { Err(QpError::Limit { name, value, limit }) } else { Ok(()) }
}

impl QpCaps {
    /// Checks the sizes against the engine's limits.
    pub(super) fn check(&self, config: &EngineConfig) -> Result<(), QpError> {
        check_limit("max_send_wr", self.max_send_wr, config.max_qp_wr)?;
        check_limit("max_recv_wr", self.max_recv_wr, config.max_qp_wr)?;
        check_limit("max_send_sge", self.max_send_sge, config.max_sge)?;
        check_limit("max_recv_sge", self.max_recv_sge, config.max_sge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::requester::SendWqe;
    use crate::transport::responder::Resource;

    #[test]
    fn an_idle_queue_pair_is_small() {
        let caps = QpCaps { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1 };
        let bytes = caps.footprint(4);
        println!(
            "Qp {} (Responder {}, Requester {}, Link {}), SendWqe {}, Resource {}; idle with small queues {bytes}",
            size_of::<Qp>(),
            size_of::<Responder>(),
            size_of::<Requester>(),
            size_of::<Link>(),
            size_of::<SendWqe>(),
            size_of::<Resource>(),
        );
        assert!(bytes <= 2048, "{bytes} bytes");
    }
}
