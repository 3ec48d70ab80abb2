//! Asking a silent peer whether it is still there, as TCP does it.
//!
//! A queue pair that only serves never misses a peer that is gone without a word: its READs go on to their end, and the queue
//! pair stays. The probe is a SEND without bytes, one PSN before the first unused one. The peer takes it for a repetition:
//! it acknowledges again and executes nothing, and no receive is used up.

use crate::time::{Duration, Instant};
use crate::transport::QpErrorCause;
use crate::transport::common::Failure;
use crate::transport::context::Context;
use crate::transport::link::{Flags, Link};
use crate::wire::{Opcode, TxQueue};

use super::Requester;

/// When to ask a peer whether it is still there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepAlive {
    /// Nothing has come from the peer, or only what it had sent before, for this long at least and twice as long at most.
    pub idle: Duration,
    /// From one probe to the next, and from the last one to giving up.
    pub interval: Duration,
    /// Probes without an answer before the peer is given up.
    pub probes: u8,
}

impl Default for KeepAlive {
    /// After half a minute, every five seconds, six times: a peer that is gone is given up within a minute and a half.
    fn default() -> KeepAlive {
        KeepAlive { idle: Duration::from_secs(30), interval: Duration::from_secs(5), probes: 6 }
    }
}

/// A peer that is looked after.
#[derive(Debug)]
pub(super) struct PeerProbe {
    settings: KeepAlive,
    /// When to look next.
    at: Instant,
    /// What the peer had sent and acknowledged at the last look. Looking costs packets nothing.
    seen: (u64, u64),
    unanswered: u8,
    /// A probe is to be written.
    due: bool,
}

impl Requester {
    /// Looks after the peer from now on, or no more. `served` counts what the peer has asked for.
    pub(in crate::transport) fn set_keep_alive(&mut self, now: Instant, settings: Option<KeepAlive>, served: u64) {
        let seen = (served, self.una.count());
        self.keep_alive = settings
            .map(|settings| Box::new(PeerProbe { settings, at: now + settings.idle, seen, unanswered: 0, due: false }));
    }

    /// When to look at the peer next.
    pub(in crate::transport) fn keep_alive_at(&self) -> Option<Instant> {
        self.keep_alive.as_ref().map(|watched| watched.at)
    }

    /// The time to look at the peer has come.
    ///
    /// # Errors
    /// It has answered none of the probes.
    pub(in crate::transport) fn probe_peer(&mut self, cx: &Context, now: Instant, served: u64) -> Result<(), Failure> {
        // What waits for an answer finds out by its own timeout, unless it has none.
        let timed = self.una < self.sent && self.ack_timeout.is_some();
        let seen = (served, self.una.count());
        let Some(watched) = &mut self.keep_alive else { return Ok(()) };
        if watched.seen != seen || timed {
            watched.seen = seen;
            watched.heard(now);
        } else if watched.unanswered < watched.settings.probes {
            watched.unanswered += 1;
            watched.due = true;
            watched.at = now + watched.settings.interval;
        } else {
            cx.stats.silent_peers.inc();
            return Err(Failure { wqe: None, cause: QpErrorCause::PeerSilent });
        }
        Ok(())
    }

    /// A response came to what is answered already: the answer to a probe is one. Whether it may be that.
    #[cold]
    pub(in crate::transport) fn heard_again(&mut self, now: Instant) -> bool {
        let Some(watched) = &mut self.keep_alive else { return false };
        let asked = watched.unanswered > 0;
        if asked {
            watched.heard(now);
        }
        asked
    }

    /// Whether a probe is to be written.
    #[inline]
    pub(in crate::transport) fn probe_due(&self) -> bool {
        self.keep_alive.as_ref().is_some_and(|watched| watched.due)
    }

    /// Writes the probe; false when there is no room. PSNs, timers and what was posted know nothing of it.
    #[cold]
    pub(in crate::transport) fn write_probe(&mut self, link: &Link, cx: &mut Context, tx: &mut impl TxQueue) -> bool {
        let flags = Flags { solicited: false, ack_req: true };
        let psn = self.una.prev().psn();
        // [RC-REQ-KEEP-ALIVE]
        let Some(packet) = link.begin(tx, &mut cx.emitter, Opcode::SendOnly, psn, flags, 0) else { return false };
        packet.finish();
        cx.stats.keep_alive_probes.inc();
        if let Some(watched) = &mut self.keep_alive {
            watched.due = false;
        }
        true
    }
}

impl PeerProbe {
    /// The peer is there.
    fn heard(&mut self, now: Instant) {
        self.unanswered = 0;
        self.due = false;
        self.at = now + self.settings.idle;
    }
}
