//! Replies of queue pairs that were destroyed before they were sent.
//!
//! A queue pair may be destroyed as soon as it is in error, while the NAK that says why, or a response before it, still
//! waits for the scheduler or the port. These replies are kept for [`REPLY_TIMEOUT`] and sent as if the queue pair
//! still existed. For its owner and for packets from its peer it no longer exists.

use std::collections::VecDeque;

use crate::time::{Duration, Instant};
use crate::transport::Qpn;
use crate::transport::common::Common;
use crate::transport::context::Context;
use crate::transport::link::Link;
use crate::transport::qp::Qp;
use crate::transport::recv_queue::RecvQueue;
use crate::transport::responder::Responder;
use crate::transport::send_policy::Left;
use crate::wire::TxQueue;

use super::Engine;

/// How long replies wait for the port: less than any peer's total retry time, so a reply that is sent is still of use.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// Destroyed queue pairs kept at a time. One more displaces the one that has waited, or sent READ responses, the
/// longest.
const MAX_DESTROYED: usize = 4096;

/// The parts of a destroyed queue pair that its pending replies need.
#[derive(Debug)]
struct DestroyedQp {
    common: Common,
    link: Link,
    responder: Responder,
    expires: Instant,
}

impl DestroyedQp {
    /// Writes up to a quantum of pending replies.
    fn reply(&mut self, cx: &mut Context, tx: &mut impl TxQueue) -> (usize, Left) {
        let quantum = cx.config.read_quantum;
        // The region of a READ may be gone: a NAK ends the responses, and there is no queue pair left to go to error.
        let done = self.responder.reply(&self.common, &self.link, cx, tx, quantum, u32::MAX);
        (done.packets as usize, done.left)
    }
}

/// Destroyed queue pairs with pending replies, by port.
#[derive(Debug, Default)]
pub(super) struct DestroyedQps {
    ports: Vec<PortQueues>,
    count: usize,
}

/// The destroyed queue pairs of one port, the oldest first.
#[derive(Debug, Default)]
struct PortQueues {
    /// Have an ACK or a NAK to send; served before the others.
    acks: VecDeque<Box<DestroyedQp>>,
    /// Have READ or atomic responses to send; served round robin.
    responses: VecDeque<Box<DestroyedQp>>,
}

impl PortQueues {
    fn len(&self) -> usize {
        self.acks.len() + self.responses.len()
    }
}

impl DestroyedQps {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn push(&mut self, qp: DestroyedQp) {
        let port = usize::from(qp.link.template.port().0);
        if self.ports.len() <= port {
            self.ports.resize_with(port + 1, PortQueues::default);
        }
        if let Some(queues) = self.ports.get_mut(port) {
            let queue = if qp.responder.has_responses_due() { &mut queues.responses } else { &mut queues.acks };
            queue.push_back(Box::new(qp));
            self.count += 1;
        }
    }

    /// Drops one queue pair of the port that has the most.
    fn displace(&mut self) {
        if let Some(queues) = self.ports.iter_mut().max_by_key(|queues| queues.len())
            && queues.responses.pop_front().or_else(|| queues.acks.pop_front()).is_some()
        {
            self.count -= 1;
        }
    }

    /// Drops the replies under a queue pair number that is about to be reused.
    #[cold]
    pub(super) fn remove(&mut self, qpn: Qpn) {
        for queues in &mut self.ports {
            queues.acks.retain(|qp| qp.common.qpn != qpn);
            queues.responses.retain(|qp| qp.common.qpn != qpn);
        }
        self.count = self.ports.iter().map(PortQueues::len).sum();
    }
}

impl Engine {
    /// Keeps the pending replies of a queue pair that has been removed from the table.
    pub(super) fn keep_replies(&mut self, now: Instant, qp: Box<Qp>) {
        let Qp { common, link, mut responder, .. } = *qp;
        let Some(link) = link.filter(|_| responder.has_replies()) else { return };
        responder.rq = RecvQueue::new(0, 0);
        if self.destroyed.count >= MAX_DESTROYED {
            self.destroyed.displace();
            self.cx.stats.lingering_displaced.inc();
        }
        self.destroyed.push(DestroyedQp { common, link, responder, expires: now + REPLY_TIMEOUT });
        self.cx.stats.qps_lingered.inc();
    }

    /// Writes the replies of destroyed queue pairs, about one quantum per port: the port is shared with existing queue
    /// pairs.
    #[cold]
    #[inline(never)]
    pub(super) fn transmit_destroyed(&mut self, now: Instant, tx: &mut impl TxQueue) -> usize {
        let quantum = self.cx.config.read_quantum as usize;
        let mut written = 0;
        for queues in &mut self.destroyed.ports {
            let mut budget = quantum;
            while budget > 0 {
                let (queue, next) = match queues.acks.pop_front() {
                    Some(next) => (&mut queues.acks, next),
                    None => match queues.responses.pop_front() {
                        Some(next) => (&mut queues.responses, next),
                        None => break,
                    },
                };
                let mut qp = next;
                if qp.expires <= now {
                    self.destroyed.count -= 1;
                    self.cx.stats.lingering_expired.inc();
                    continue;
                }
                let (frames, left) = qp.reply(&mut self.cx, tx);
                written += frames;
                budget = budget.saturating_sub(frames);
                match left {
                    Left::Nothing | Left::Later => self.destroyed.count -= 1,
                    Left::More => queues.responses.push_back(qp),
                    Left::Refused => {
                        queue.push_front(qp);
                        self.cx.stats.transmit_stalls.inc();
                        break;
                    }
                }
            }
        }
        written
    }
}
