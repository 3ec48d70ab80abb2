//! Announcements of our own addresses, at start and when the link comes back: neighbours and switches learn where we are.

use std::net::IpAddr;

use rxe_proto::{Duration, Instant};

/// Rounds of announcements, and the time between them (RFC 5227 section 2.3).
const ROUNDS: u8 = 2;
const INTERVAL: Duration = Duration::from_secs(2);

/// The announcements still to be sent.
pub(super) struct Announcer {
    pending: Option<Pending>,
}

struct Pending {
    at: Instant,
    rounds: u8,
    /// Addresses already announced in this round.
    done: usize,
}

impl Announcer {
    /// The first round is due at `at`.
    pub(super) fn new(at: Instant) -> Announcer {
        Announcer { pending: Some(Pending { at, rounds: ROUNDS, done: 0 }) }
    }

    /// When the next announcement is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.pending.as_ref().map(|pending| pending.at)
    }

    /// Calls `announce` for each of `addresses` whose announcement is due. Stops with `None` when `announce` does, as
    /// the port takes no more: the next call continues there.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        addresses: &[IpAddr],
        mut announce: impl FnMut(IpAddr) -> Option<()>,
    ) -> Option<()> {
        while let Some(pending) = &mut self.pending
            && pending.at <= now
        {
            if let Some(ip) = addresses.get(pending.done) {
                announce(*ip)?;
            }
            pending.done += 1;
            if pending.done >= addresses.len() {
                pending.rounds -= 1;
                pending.done = 0;
                pending.at = now + INTERVAL;
                if pending.rounds == 0 {
                    self.pending = None;
                }
            }
        }
        Some(())
    }
}
