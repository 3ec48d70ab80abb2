//! Memory of tests: a pool with a budget for all clients of a worker, of which those of one address have at most half.
//!
//! Memory that a client has used is reused for the same address as it is. For another address it is zeroed first, a piece in
//! each iteration of the worker's loop, so that no packet waits for the zeroing of megabytes.

use std::net::IpAddr;

use rxe_proto::verbs::Memory;
use rxe_service::Context;

use crate::services::usage::Usage;

/// Maximum number of bytes kept for later clients.
const KEPT: usize = 64 << 20;
/// Bytes zeroed in one iteration of the loop.
const PIECE: usize = 64 << 10;

/// Unused memory.
struct Free {
    memory: Memory,
    /// The client whose bytes it holds.
    client: IpAddr,
    /// Number of bytes zeroed, from the start.
    zeroed: usize,
}

impl Free {
    fn is_clean(&self) -> bool {
        self.zeroed >= self.memory.len()
    }

    fn zero(&mut self, len: usize) {
        let len = len.min(self.memory.len() - self.zeroed);
        // The range is inside the memory.
        let _ = self.memory.fill(self.zeroed, len, 0);
        self.zeroed += len;
    }
}

/// The pool of one worker; all its pieces have the same length.
pub struct Sinks {
    len: usize,
    /// Maximum number of bytes for all clients.
    budget: usize,
    free: Vec<Free>,
    /// Pieces in use.
    used: Usage,
}

impl Sinks {
    /// A pool of pieces of `len` bytes, `budget` bytes in all.
    pub fn new(len: usize, budget: usize) -> Sinks {
        Sinks { len, budget, free: Vec::new(), used: Usage::default() }
    }

    /// Number of pieces in `budget` bytes; at least one.
    fn pieces(&self, budget: usize) -> usize {
        (budget / self.len.max(1)).max(1)
    }

    /// Memory for a client, unless a budget is exhausted.
    pub fn take(&mut self, cx: &mut Context<'_>, client: IpAddr) -> Result<Memory, String> {
        self.take_from(client, |len| {
            cx.alloc_memory(len).map_err(|error| {
                format!("{error}: give the target more hugepages, or lower max-message of [service.perftest]")
            })
        })
    }

    fn take_from(
        &mut self,
        client: IpAddr,
        allocate: impl FnOnce(usize) -> Result<Memory, String>,
    ) -> Result<Memory, String> {
        let budget = self.budget;
        if self.used.of(client) >= self.pieces(budget / 2) {
            return Err(format!(
                "clients of its address use half of the {budget} bytes for messages: raise budget of [service.perftest], or \
                 lower max-message"
            ));
        }
        if self.used.all() >= self.pieces(budget) {
            return Err(format!(
                "all {budget} bytes for messages are used: raise budget of [service.perftest], or lower max-message"
            ));
        }
        let usable = self.free.iter().position(|free| free.client == client || free.is_clean());
        let memory = match usable {
            Some(at) => self.free.swap_remove(at).memory,
            None => match (allocate(self.len), self.free.pop()) {
                (Ok(memory), free) => {
                    self.free.extend(free);
                    memory
                }
                (Err(_), Some(mut free)) => {
                    // No other memory is left: zero it now.
                    free.zero(usize::MAX);
                    free.memory
                }
                (Err(error), None) => return Err(error),
            },
        };
        self.used.take(client, 1);
        Ok(memory)
    }

    /// Returns memory to the pool; no key may open it any more. Returns whether [`Sinks::clean`] is to be called.
    pub fn put(&mut self, client: IpAddr, memory: Memory) -> bool {
        self.forget(client);
        if self.free.len() >= self.pieces(KEPT) {
            return false;
        }
        let cleaning = self.free.iter().any(|free| !free.is_clean());
        self.free.push(Free { memory, client, zeroed: 0 });
        !cleaning
    }

    /// Memory of a client is freed, and not returned to the pool.
    pub fn forget(&mut self, client: IpAddr) {
        self.used.give_back(client, 1);
    }

    /// Zeroes the next piece of unused memory. Returns whether more is to be zeroed.
    pub fn clean(&mut self) -> bool {
        if let Some(free) = self.free.iter_mut().find(|free| !free.is_clean()) {
            free.zero(PIECE);
        }
        self.free.iter().any(|free| !free.is_clean())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 4 << 20;

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn heap(len: usize) -> Result<Memory, String> {
        Ok(Memory::heap(len))
    }

    #[test]
    fn an_address_and_the_service_have_budgets() {
        let mut sinks = Sinks::new(LEN, 1 << 30);
        // Small pieces: only their number is checked here.
        let small = |_| heap(64);
        let mut taken: Vec<_> = (0..128).map(|_| sinks.take_from(address(1), small).expect("room")).collect();
        let refused = sinks.take_from(address(1), small).expect_err("the share is used");
        assert_eq!(
            refused,
            "clients of its address use half of the 1073741824 bytes for messages: raise budget of [service.perftest], or \
             lower max-message"
        );
        for n in 2..3 {
            (0..128).for_each(|_| drop(sinks.take_from(address(n), small).expect("room")));
        }
        let refused = sinks.take_from(address(9), small).expect_err("the budget is used");
        assert_eq!(
            refused,
            "all 1073741824 bytes for messages are used: raise budget of [service.perftest], or lower max-message"
        );
        sinks.put(address(1), taken.pop().expect("memory"));
        assert!(sinks.take_from(address(9), small).is_ok());
        assert!(sinks.take_from(address(9), small).is_err());
        sinks.forget(address(1));
        assert!(sinks.take_from(address(9), small).is_ok());
    }

    #[test]
    fn one_client_is_served_whatever_the_budget() {
        let mut sinks = Sinks::new(LEN, LEN);
        assert!(sinks.take_from(address(1), |_| heap(64)).is_ok());
        assert!(sinks.take_from(address(2), |_| heap(64)).is_err());
    }

    #[test]
    fn no_client_finds_the_bytes_of_another() {
        let mut sinks = Sinks::new(PIECE + 64, 1 << 30);
        let first = |memory: &Memory| {
            let mut byte = [0];
            memory.read(PIECE + 1, &mut byte).expect("inside");
            byte[0]
        };
        let memory = sinks.take_from(address(1), heap).expect("room");
        memory.fill(0, PIECE + 64, 7).expect("inside");
        assert!(sinks.put(address(1), memory));
        let own = sinks.take_from(address(1), |_| panic!("its own is there")).expect("memory");
        assert_eq!(first(&own), 7);
        assert!(sinks.put(address(1), own));
        let other = sinks.take_from(address(2), |_| Err("none is left".to_owned())).expect("zeroed at once");
        assert_eq!(first(&other), 0);
        other.fill(0, PIECE + 64, 7).expect("inside");
        assert!(sinks.put(address(2), other));
        assert!(sinks.clean(), "one piece per turn");
        assert!(!sinks.clean());
        let clean = sinks.take_from(address(3), |_| panic!("a clean one is there")).expect("memory");
        assert_eq!(first(&clean), 0);
    }
}
