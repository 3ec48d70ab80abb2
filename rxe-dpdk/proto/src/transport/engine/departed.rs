//! Queue pairs that were destroyed while something was owed to their peers.
//!
//! Who owns a queue pair may let go of it as soon as it is in error, and the NAK that says why, or an answer before it, may
//! still wait for its turn or for the port. So what is owed stays for a while and is sent as if the queue pair were there;
//! for its owner, and for what its peer sends, it is gone.

use std::collections::VecDeque;

use crate::time::{Duration, Instant};
use crate::transport::Qpn;
use crate::transport::common::Common;
use crate::transport::context::{Context, Turn};
use crate::transport::link::Link;
use crate::transport::qp::Qp;
use crate::transport::recv_queue::RecvQueue;
use crate::transport::responder::Responder;
use crate::wire::TxQueue;

use super::Engine;

/// How long what is owed waits for the port: less than any peer takes to give up, so an answer that comes is still of use.
const LINGER: Duration = Duration::from_millis(500);

/// How many linger at most. One more takes the place of the one that has waited, or read, the longest.
const MAX_DEPARTED: usize = 4096;

/// What is left of a queue pair.
#[derive(Debug)]
struct Departed {
    common: Common,
    link: Link,
    responder: Responder,
    until: Instant,
}

impl Departed {
    /// Writes up to a quantum of what is owed.
    fn reply(&mut self, cx: &mut Context, tx: &mut impl TxQueue) -> (usize, Turn) {
        let (written, turn, broken) = self.responder.reply(&self.common, &self.link, cx, tx);
        // The memory of a READ is gone: that ends with a NAK, and there is nobody left to tell of it.
        (written, if broken.is_some() { Turn::More } else { turn })
    }
}

/// Those that linger, by port.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    ports: Vec<Lines>,
    count: usize,
}

/// Those of one port, the oldest first.
#[derive(Debug, Default)]
struct Lines {
    /// Owe an ACK or a NAK, and come before the others.
    short: VecDeque<Box<Departed>>,
    /// Owe responses to READs and atomics, and take turns.
    long: VecDeque<Box<Departed>>,
}

impl Lines {
    fn len(&self) -> usize {
        self.short.len() + self.long.len()
    }
}

impl Lingering {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, departed: Departed) {
        let port = usize::from(departed.link.template.port().0);
        if self.ports.len() <= port {
            self.ports.resize_with(port + 1, Lines::default);
        }
        if let Some(lines) = self.ports.get_mut(port) {
            let line = if departed.responder.owes_responses() { &mut lines.long } else { &mut lines.short };
            line.push_back(Box::new(departed));
            self.count += 1;
        }
    }

    /// Gives up one of the port with the most.
    fn displace(&mut self) {
        if let Some(lines) = self.ports.iter_mut().max_by_key(|lines| lines.len())
            && lines.long.pop_front().or_else(|| lines.short.pop_front()).is_some()
        {
            self.count -= 1;
        }
    }

    /// The number of one that lingers is given out again.
    #[cold]
    pub(super) fn forget(&mut self, qpn: Qpn) {
        for lines in &mut self.ports {
            lines.short.retain(|departed| departed.common.qpn != qpn);
            lines.long.retain(|departed| departed.common.qpn != qpn);
        }
        self.count = self.ports.iter().map(Lines::len).sum();
    }
}

impl Engine {
    /// A queue pair has been taken out of the table. What it owes stays.
    pub(super) fn depart(&mut self, now: Instant, qp: Box<Qp>) {
        let Qp { common, link, mut responder, .. } = *qp;
        let Some(link) = link.filter(|_| responder.owes()) else { return };
        responder.rq = RecvQueue::new(0, 0);
        if self.departed.count >= MAX_DEPARTED {
            self.departed.displace();
            self.cx.stats.lingering_displaced.inc();
        }
        self.departed.add(Departed { common, link, responder, until: now + LINGER });
        self.cx.stats.qps_lingered.inc();
    }

    /// Writes what departed queue pairs owe, about a quantum for each port: those that are there want to send, too.
    #[cold]
    #[inline(never)]
    pub(super) fn transmit_lingering(&mut self, now: Instant, tx: &mut impl TxQueue) -> usize {
        let quantum = self.cx.config.read_quantum as usize;
        let mut written = 0;
        for lines in &mut self.departed.ports {
            let mut budget = quantum;
            while budget > 0 {
                let (line, next) = match lines.short.pop_front() {
                    Some(next) => (&mut lines.short, next),
                    None => match lines.long.pop_front() {
                        Some(next) => (&mut lines.long, next),
                        None => break,
                    },
                };
                let mut departed = next;
                if departed.until <= now {
                    self.departed.count -= 1;
                    self.cx.stats.lingering_expired.inc();
                    continue;
                }
                let (frames, turn) = departed.reply(&mut self.cx, tx);
                written += frames;
                budget = budget.saturating_sub(frames);
                match turn {
                    Turn::Idle => self.departed.count -= 1,
                    Turn::More => lines.long.push_back(departed),
                    Turn::Refused => {
                        line.push_front(departed);
                        self.cx.stats.transmit_stalls.inc();
                        break;
                    }
                }
            }
        }
        written
    }
}
