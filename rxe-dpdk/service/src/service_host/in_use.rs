//! Whether the peer of an established connection still uses it, for a request that would replace the connection.
//!
//! A peer that has lost its state (a reboot) may reuse its numbers; a forger may name them. The connection counts as in use
//! when a packet in sequence arrives within [`WATCH_TIME`].

use rxe_proto::cm::ConnId;
use rxe_proto::transport::{Engine, Qpn};
use rxe_proto::wire::Psn;
use rxe_proto::{Duration, Instant};

use super::ServiceHost;
use crate::messages::ToControl;

/// How long a connection is watched. A peer that has lost it retransmits its REQ later than that, so the check costs it
/// nothing.
const WATCH_TIME: Duration = Duration::from_secs(2);

/// Interval between checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// State that only packets in sequence change: packets of requests served, the PSN expected next, our oldest
/// unacknowledged PSN.
type Progress = (u64, Psn, Psn);

/// A connection that `request` would replace.
struct Check {
    request: ConnId,
    qpn: Qpn,
    was: Progress,
    until: Instant,
}

/// Checks in progress; the control side limits how many there are.
#[derive(Default)]
pub(super) struct Checks {
    list: Vec<Check>,
    next_check: Option<Instant>,
}

fn progress(engine: &Engine, qpn: Qpn) -> Option<Progress> {
    let info = engine.query_qp(qpn)?;
    Some((info.packets_served, info.expected_psn, info.unacked_psn))
}

impl ServiceHost {
    /// Starts to check a connection.
    pub(super) fn check_in_use(&mut self, now: Instant, engine: &Engine, conn: ConnId, request: ConnId) {
        let qpn = self.connections.get(&conn).map(|connection| connection.qpn);
        match qpn.and_then(|qpn| Some((qpn, progress(engine, qpn)?))) {
            Some((qpn, was)) => {
                self.in_use_checks.list.push(Check { request, qpn, was, until: now + WATCH_TIME });
                self.in_use_checks.next_check.get_or_insert(now + CHECK_INTERVAL);
            }
            None => self.send(ToControl::InUseChecked { request, in_use: false }),
        }
    }

    /// Checks the watched connections, when it is time.
    #[inline]
    pub(super) fn poll_in_use_checks(&mut self, now: Instant, engine: &Engine) {
        if self.in_use_checks.next_check.is_some_and(|at| at <= now) {
            self.run_checks(now, engine);
        }
    }

    #[cold]
    fn run_checks(&mut self, now: Instant, engine: &Engine) {
        let mut list = std::mem::take(&mut self.in_use_checks.list);
        list.retain(|&Check { request, qpn, was, until }| {
            // A queue pair that is gone does not count as in use.
            let moved = progress(engine, qpn).map(|is| is != was);
            let over = now >= until || moved != Some(false);
            if over {
                self.send(ToControl::InUseChecked { request, in_use: moved == Some(true) });
            }
            !over
        });
        self.in_use_checks.next_check = (!list.is_empty()).then_some(now + CHECK_INTERVAL);
        self.in_use_checks.list = list;
    }
}
