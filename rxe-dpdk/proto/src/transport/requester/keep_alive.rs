//! Keep-alive: probing a silent peer, as TCP does.
//!
//! A queue pair that only serves requests does not notice that its peer has died. The probe is a SEND without bytes,
//! with the PSN before the first unused one. The peer handles it as a duplicate: it acknowledges again and executes
//! nothing, and no receive is used up.

use crate::time::Instant;
use crate::transport::common::Failure;
use crate::transport::context::Context;
use crate::transport::link::{Flags, Link};
use crate::transport::{KeepAlive, QpErrorCause};
use crate::wire::{BthOpcode, Opcode, TxQueue};

use super::Requester;

/// Keep-alive state.
#[derive(Debug)]
pub(super) struct PeerProbe {
    settings: KeepAlive,
    /// The next check.
    at: Instant,
    /// Packets served and acknowledged at the last check. Comparing them at each check costs nothing per packet.
    seen: (u64, u64),
    unanswered: u8,
    /// A probe is to be written.
    due: bool,
}

impl Requester {
    /// Enables or disables keep-alive. `served` is the count of the peer's packets served.
    pub(in crate::transport) fn set_keep_alive(&mut self, now: Instant, settings: Option<KeepAlive>, served: u64) {
        let seen = (served, self.una.count());
        self.keep_alive = settings
            .map(|settings| Box::new(PeerProbe { settings, at: now + settings.idle, seen, unanswered: 0, due: false }));
    }

    /// The time of the next check.
    pub(in crate::transport) fn keep_alive_at(&self) -> Option<Instant> {
        self.keep_alive.as_ref().map(|watched| watched.at)
    }

    /// Checks for news from the peer, and schedules a probe if there is none.
    ///
    /// # Errors
    /// The peer has answered none of the probes.
    pub(in crate::transport) fn probe_peer(&mut self, cx: &Context, now: Instant, served: u64) -> Result<(), Failure> {
        // Outstanding requests detect a dead peer by their own timeout, if they have one.
        let timed = self.una < self.sent && self.timer.ack_timeout().is_some();
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
            return Err(Failure::of_none(QpErrorCause::PeerSilent));
        }
        Ok(())
    }

    /// Handles a response to an acknowledged PSN. Returns whether it may be the answer to a probe.
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

    /// Writes the probe; false when there is no room. It affects neither PSNs nor timers nor posted work.
    #[cold]
    pub(in crate::transport) fn write_probe(&mut self, link: &Link, cx: &mut Context, tx: &mut impl TxQueue) -> bool {
        let flags = Flags { solicited: false, ack_req: true };
        let psn = self.una.prev().psn();
        // compliance.md [RC-REQ-KEEP-ALIVE]: With keep-alive enabled, a silent peer gets a SEND without bytes at the
        // PSN before the first unused one, which it acknowledges as a duplicate.
        let opcode = BthOpcode::rc(Opcode::SendOnly);
        let Some(packet) = link.begin(tx, &cx.stats, opcode, psn, flags, 0) else { return false };
        packet.finish();
        cx.stats.keep_alive_probes.inc();
        if let Some(watched) = &mut self.keep_alive {
            watched.due = false;
        }
        true
    }
}

impl PeerProbe {
    /// The peer is alive.
    fn heard(&mut self, now: Instant) {
        self.unanswered = 0;
        self.due = false;
        self.at = now + self.settings.idle;
    }
}
