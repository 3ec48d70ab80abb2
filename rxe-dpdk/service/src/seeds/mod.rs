//! Derives any number of independent secret seeds from one.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rxe_proto::wire::Psn;

/// Source of the seeds of engines, hosts and the connection manager, and of PSNs.
pub struct Seeds(ChaCha20Rng);

impl Seeds {
    /// Starts from a secret seed.
    pub fn new(seed: [u8; 32]) -> Seeds {
        Seeds(ChaCha20Rng::from_seed(seed))
    }

    /// The next seed.
    pub fn next_seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        self.0.fill_bytes(&mut seed);
        seed
    }

    /// A starting PSN that peers cannot guess.
    pub fn psn(&mut self) -> Psn {
        Psn::new(self.0.next_u32())
    }
}

#[cfg(test)]
mod tests;
