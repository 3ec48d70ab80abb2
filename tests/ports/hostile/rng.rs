//! Random choices of hostile traffic and of the soak test, from a seed that the tests print.

use std::cell::Cell;

use rxe_testkit::rng::Rng as SplitMix64;

/// Random numbers, and the state of the generator.
pub struct Rng(Cell<u64>);

impl Rng {
    /// From `RXE_HOSTILE_SEED`, else another seed for each run. Prints it.
    pub fn seeded() -> Rng {
        let given = std::env::var("RXE_HOSTILE_SEED").ok();
        let clock = || std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
        let seed = given.map_or_else(clock, |text| text.parse().expect("RXE_HOSTILE_SEED is a whole number"));
        println!("RXE_HOSTILE_SEED={seed}");
        Rng(Cell::new(seed))
    }

    pub fn next(&self) -> u64 {
        let mut rng = SplitMix64(self.0.get());
        let number = rng.next();
        self.0.set(rng.0);
        number
    }

    /// A number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.next() % end
    }

    /// True in `percent` of all cases.
    pub fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    pub fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}
