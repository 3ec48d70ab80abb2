//! Probes and announcements of our own addresses, at start and when the link comes back. A probe asks whether another
//! station uses the address; announcements show neighbours and switches where we are.

use std::net::IpAddr;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rxe_proto::{Duration, Instant};

/// Rounds of probes, the times between them, and the longest time before the first one after the link came back: a tenth
/// of those of RFC 5227 section 1.1. Announcements follow the probes, and peers with an outdated MAC address wait for
/// them.
const PROBE_ROUNDS: u8 = 3;
const PROBE_WAIT: Duration = Duration::from_millis(100);
const PROBE_MIN: Duration = Duration::from_millis(100);
const PROBE_MAX: Duration = Duration::from_millis(200);
/// From the last probe to the first announcement.
const ANNOUNCE_WAIT: Duration = Duration::from_millis(200);

/// Rounds of announcements, and the time between them (RFC 5227 section 2.3).
const ANNOUNCE_ROUNDS: u8 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// A frame about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Probe,
    Announce,
}

/// The probes and announcements still to be sent.
pub(super) struct Announcer {
    pending: Option<Pending>,
    random: ChaCha8Rng,
}

struct Pending {
    at: Instant,
    /// Rounds still to be sent, this one included.
    probes: u8,
    announcements: u8,
    /// Addresses that this round is done with.
    done: usize,
}

impl Announcer {
    /// The first round is due at once.
    pub(super) fn new(seed: u64) -> Announcer {
        let mut announcer = Announcer { pending: None, random: ChaCha8Rng::seed_from_u64(seed) };
        announcer.restart_at(Instant::ZERO);
        announcer
    }

    /// Probes and announces again, after a random time: the link came back, most likely to other stations too.
    pub(super) fn restart(&mut self, now: Instant) {
        let wait = self.between(Duration::ZERO, PROBE_WAIT);
        self.restart_at(now + wait);
    }

    fn restart_at(&mut self, at: Instant) {
        self.pending = Some(Pending { at, probes: PROBE_ROUNDS, announcements: ANNOUNCE_ROUNDS, done: 0 });
    }

    fn between(&mut self, low: Duration, high: Duration) -> Duration {
        low + (high - low) * (self.random.next_u32() >> 16) / (1 << 16)
    }

    /// When the next round is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.pending.as_ref().map(|pending| pending.at)
    }

    /// Calls `send` for each of `addresses` whose probe or announcement is due. Stops with `None` when `send` does, as the
    /// port takes no more: the next call continues there.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        addresses: &[IpAddr],
        mut send: impl FnMut(IpAddr, Step) -> Option<()>,
    ) -> Option<()> {
        while let Some(pending) = &mut self.pending
            && pending.at <= now
        {
            // compliance.md [HOST-PROBE]: Our addresses are probed three times at start and when the link is back, then
            // announced twice.
            let step = if pending.probes > 0 { Step::Probe } else { Step::Announce };
            if let Some(ip) = addresses.get(pending.done) {
                send(*ip, step)?;
            }
            pending.done += 1;
            if pending.done >= addresses.len() {
                self.end_round(now, step);
            }
        }
        Some(())
    }

    fn end_round(&mut self, now: Instant, step: Step) {
        let between_probes = self.between(PROBE_MIN, PROBE_MAX);
        let Some(pending) = &mut self.pending else { return };
        pending.done = 0;
        let wait = match step {
            Step::Probe => {
                pending.probes -= 1;
                if pending.probes > 0 { between_probes } else { ANNOUNCE_WAIT }
            }
            Step::Announce => {
                pending.announcements -= 1;
                ANNOUNCE_INTERVAL
            }
        };
        pending.at = now + wait;
        if pending.announcements == 0 {
            self.pending = None;
        }
    }
}
