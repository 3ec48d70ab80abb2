//! Shares of a memory that clients use, by address.

use std::collections::HashMap;
use std::net::IpAddr;

/// What the clients of each address use, in bytes or pieces.
#[derive(Default)]
pub struct Usage(HashMap<IpAddr, usize>);

impl Usage {
    /// That of the clients of an address.
    pub fn of(&self, client: IpAddr) -> usize {
        self.0.get(&client).copied().unwrap_or(0)
    }

    /// That of all clients.
    #[cfg(test)]
    pub fn all(&self) -> usize {
        self.0.values().sum()
    }

    /// Counts `amount` as used by `client`.
    pub fn take(&mut self, client: IpAddr, amount: usize) {
        *self.0.entry(client).or_default() += amount;
    }

    /// Counts one piece more as used by `client`, unless it has `most` already. Returns whether it did.
    pub fn take_one(&mut self, client: IpAddr, most: usize) -> bool {
        let has_room = self.of(client) < most;
        if has_room {
            self.take(client, 1);
        }
        has_room
    }

    /// Counts `amount` of `client` as free again.
    pub fn give_back(&mut self, client: IpAddr, amount: usize) {
        if let Some(used) = self.0.get_mut(&client) {
            *used = used.saturating_sub(amount);
            if *used == 0 {
                self.0.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_without_usage_are_forgotten() {
        let [a, b] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let mut usage = Usage::default();
        usage.take(a, 3);
        usage.take(b, 4);
        assert_eq!((usage.of(a), usage.of(b)), (3, 4));
        usage.give_back(a, 2);
        assert_eq!((usage.of(a), usage.of(b)), (1, 4));
        usage.give_back(a, 1);
        usage.give_back(a, 1);
        assert!(usage.of(a) == 0 && !usage.0.contains_key(&a));
    }

    #[test]
    fn a_client_takes_no_more_than_its_share() {
        let [a, b] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let mut usage = Usage::default();
        assert_eq!([a, a, a, b].map(|client| usage.take_one(client, 2)), [true, true, false, true]);
        usage.give_back(a, 1);
        assert!(usage.take_one(a, 2) && usage.of(a) + usage.of(b) == 3);
    }
}
