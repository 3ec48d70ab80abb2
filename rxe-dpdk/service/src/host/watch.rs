//! Whether the peer of an established connection still uses it, for a request that would replace the connection.

use rxe_proto::cm::ConnId;
use rxe_proto::transport::{Engine, Qpn};
use rxe_proto::wire::Psn;
use rxe_proto::{Duration, Instant};

use super::ServiceHost;
use crate::messages::ToControl;

/// How long a connection is watched. A peer that has lost it asks again much later, so this costs it nothing.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often watched connections are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What only packets in sequence change: packets of requests served, the PSN expected next, our oldest PSN without an
/// answer.
type Progress = (u64, Psn, Psn);

/// A connection that `request` would replace.
struct Watch {
    request: ConnId,
    qpn: Qpn,
    was: Progress,
    until: Instant,
}

/// Watched connections; the control side bounds how many there are.
#[derive(Default)]
pub(super) struct Watches {
    list: Vec<Watch>,
    next_look: Option<Instant>,
}

fn progress(engine: &Engine, qpn: Qpn) -> Option<Progress> {
    let info = engine.query_qp(qpn)?;
    Some((info.packets_served, info.expected_psn, info.unacked_psn))
}

impl ServiceHost {
    /// Begins to watch a connection.
    pub(super) fn watch(&mut self, now: Instant, engine: &Engine, conn: ConnId, request: ConnId) {
        let qpn = self.connections.get(&conn).map(|connection| connection.qpn);
        match qpn.and_then(|qpn| Some((qpn, progress(engine, qpn)?))) {
            Some((qpn, was)) => {
                self.watches.list.push(Watch { request, qpn, was, until: now + PATIENCE });
                self.watches.next_look.get_or_insert(now + LOOK_EVERY);
            }
            None => self.tell(ToControl::Watched { request, in_use: false }),
        }
    }

    /// Looks at the watched connections, when it is time.
    #[inline]
    pub(super) fn poll_watches(&mut self, now: Instant, engine: &Engine) {
        if self.watches.next_look.is_some_and(|at| at <= now) {
            self.look_at_watched(now, engine);
        }
    }

    #[cold]
    fn look_at_watched(&mut self, now: Instant, engine: &Engine) {
        let mut list = std::mem::take(&mut self.watches.list);
        list.retain(|&Watch { request, qpn, was, until }| {
            // A queue pair that is gone is in nobody's way.
            let moved = progress(engine, qpn).map(|is| is != was);
            let over = now >= until || moved != Some(false);
            if over {
                self.tell(ToControl::Watched { request, in_use: moved == Some(true) });
            }
            !over
        });
        self.watches.next_look = (!list.is_empty()).then_some(now + LOOK_EVERY);
        self.watches.list = list;
    }
}
