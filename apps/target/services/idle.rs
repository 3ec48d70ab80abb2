//! Clients from which nothing comes any more: a program that was stopped, a host that is gone.

use std::collections::HashMap;
use std::hash::Hash;

use rxe_proto::{Duration, Instant};

/// When clients were last heard of. `K` names one.
pub struct Idle<K> {
    limit: Duration,
    heard: HashMap<K, Instant>,
}

impl<K: Copy + Eq + Hash> Idle<K> {
    /// Nobody yet. Who says nothing for `limit` is to go.
    pub fn new(limit: Duration) -> Idle<K> {
        Idle { limit, heard: HashMap::new() }
    }

    /// Something came from `client`.
    pub fn heard(&mut self, client: K, now: Instant) {
        self.heard.insert(client, now);
    }

    /// `client` has gone, or is to be left alone.
    pub fn forget(&mut self, client: K) {
        self.heard.remove(&client);
    }

    /// Forgets those from which nothing came for too long, and returns them.
    pub fn take_expired(&mut self, now: Instant) -> Vec<K> {
        let limit = self.limit;
        self.heard.extract_if(|_, last| now.saturating_since(*last) >= limit).map(|(client, _)| client).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_silent_are_given_up_once() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
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
}
