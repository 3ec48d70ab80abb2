//! Clients from which nothing comes any more: a program that was stopped, a host that is gone.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

use rxe_proto::verbs::{AnyQueuePair, Qpn};
use rxe_proto::wire::Psn;
use rxe_proto::{Duration, Instant};
use rxe_service::Context;

use super::metrics::ServiceMetrics;

/// Interval of sweeps for idle clients.
pub const SWEEP: Duration = Duration::from_secs(1);

/// The last sign of life of a client.
struct Last {
    heard: Instant,
    /// The PSN that its queue pair sends next, and the oldest of ours that it has not acknowledged.
    progress: (Psn, Psn),
}

/// When clients were last heard of. `K` names one.
pub struct Idle<K> {
    limit: Duration,
    clients: HashMap<K, Last>,
}

impl<K: Copy + Eq + Hash> Idle<K> {
    /// No clients yet. Those that are silent for `limit` expire.
    pub fn new(limit: Duration) -> Idle<K> {
        Idle { limit, clients: HashMap::new() }
    }

    /// Time after which a silent client is idle.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Something came from `client`.
    pub fn heard(&mut self, client: K, now: Instant) {
        self.clients.entry(client).or_insert(Last { heard: now, progress: Default::default() }).heard = now;
    }

    /// `client` has gone, or is to be left alone.
    pub fn forget(&mut self, client: K) {
        self.clients.remove(&client);
    }

    /// Forgets those from which nothing came for too long, and returns them.
    pub fn take_expired(&mut self, now: Instant) -> Vec<K> {
        let limit = self.limit;
        let expired = self.clients.extract_if(|_, last| now.saturating_since(last.heard) >= limit);
        expired.map(|(client, _)| client).collect()
    }

    /// Gives up clients from which nothing came for too long: forgets them, counts and logs each in `metrics` under the name
    /// that `who` returns, and returns them for the service to end. Those without a name have ended otherwise.
    pub fn give_up<C: fmt::Display>(
        &mut self,
        now: Instant,
        metrics: &ServiceMetrics,
        who: impl Fn(K) -> Option<C>,
    ) -> Vec<K> {
        let mut silent = self.take_expired(now);
        silent.retain(|&client| match who(client) {
            Some(name) => {
                metrics.give_up(now, name, self.limit);
                true
            }
            None => false,
        });
        silent
    }

    /// Records the progress of `client`; a change is a sign of life.
    fn saw(&mut self, client: K, progress: (Psn, Psn), now: Instant) {
        if let Some(last) = self.clients.get_mut(&client).filter(|last| last.progress != progress) {
            *last = Last { heard: now, progress };
        }
    }
}

impl Idle<Qpn> {
    /// [`give_up`](Self::give_up), after a look at what the clients' queue pairs have done: what completes nothing here
    /// (READs, WRITEs, atomics) and acknowledgements are signs of life, too.
    pub fn sweep<C: fmt::Display>(
        &mut self,
        cx: &mut Context<'_>,
        metrics: &ServiceMetrics,
        who: impl Fn(Qpn) -> Option<C>,
    ) -> Vec<Qpn> {
        let now = cx.now();
        let qps: Vec<Qpn> = self.clients.keys().copied().collect();
        let dev = cx.device();
        for qp in qps {
            if let Ok(info) = dev.query_qp(AnyQueuePair::from(qp)) {
                self.saw(qp, (info.expected_psn, info.unacked_psn), now);
            }
        }
        self.give_up(now, metrics, who)
    }
}

#[cfg(test)]
mod tests {
    use super::super::metrics::MetricsRegistry;
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn the_silent_are_given_up_once() {
        let mut idle = Idle::new(Duration::from_secs(10));
        for client in 1..=3 {
            idle.heard(client, at(1));
        }
        idle.heard(2, at(5));
        idle.forget(3);
        assert!(idle.take_expired(at(10)).is_empty());
        assert_eq!(idle.take_expired(at(11)), [1]);
        assert!(idle.take_expired(at(14)).is_empty());
        assert_eq!(idle.take_expired(at(20)), [2]);
        assert!(idle.take_expired(at(100)).is_empty());
    }

    #[test]
    fn the_silent_are_counted_unless_they_have_gone() {
        let registry = MetricsRegistry::default();
        let metrics = registry.open("rping");
        let mut idle = Idle::new(Duration::from_secs(10));
        for client in 1..=3 {
            idle.heard(client, at(0));
        }
        let mut given_up = idle.give_up(at(10), &metrics, |client| (client != 2).then_some("10.0.0.2:7"));
        given_up.sort_unstable();
        assert_eq!(given_up, [1, 3]);
        assert_eq!(registry.to_string(), "service rping: idle_ended=2\n");
    }

    #[test]
    fn what_a_queue_pair_does_is_a_sign_of_life() {
        let psns = |theirs, ours| (Psn::new(theirs), Psn::new(ours));
        let mut idle = Idle::new(Duration::from_secs(10));
        idle.heard(1, at(0));
        idle.saw(1, psns(7, 9), at(1));
        idle.saw(1, psns(7, 9), at(5));
        assert!(idle.take_expired(at(10)).is_empty());
        idle.saw(1, psns(8, 9), at(10));
        idle.saw(1, psns(8, 10), at(12));
        // Not a client.
        idle.saw(2, psns(1, 1), at(12));
        assert!(idle.take_expired(at(21)).is_empty());
        assert_eq!(idle.take_expired(at(22)), [1]);
    }
}
