//! Allocation of queue pair numbers.
//!
//! A number is drawn at random, so that it cannot be guessed, and so that a peer from before a restart does not hit a
//! new queue pair with an old number. A released number is quarantined before it can be drawn again: by then packets of
//! the former connection, and the peer's timewait, are over.

use std::collections::VecDeque;

use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

use crate::time::{Duration, Instant};

use super::Qpn;

/// How long a released number is quarantined.
const QUARANTINE: Duration = Duration::from_secs(10);

/// Numbers of one worker: slot and generation.
const NUMBERS: u32 = 1 << 20;

/// Most numbers in quarantine: half of them, so that few draws find a free one. Beyond that the oldest one is released
/// early.
const MAX_QUARANTINED: usize = 1 << 19;

/// Random draws before free slots are searched one by one.
const DRAWS: usize = 64;

/// The generator's stream; memory keys use another stream of the same seed.
const STREAM: u64 = 1;

/// The numbers of one worker's queue pairs.
#[derive(Debug)]
pub(super) struct Numbers {
    worker: u8,
    rng: ChaCha12Rng,
    /// Numbers in quarantine, with the time of their release, the oldest first.
    quarantined: VecDeque<(Instant, u32)>,
    /// One bit per number: whether it is in quarantine.
    quarantine_bits: Vec<u64>,
    /// Numbers released from quarantine early, not counted elsewhere yet.
    pub(super) cut_short: u64,
}

impl Numbers {
    /// `seed` must be secret and fresh for every start.
    pub(super) fn new(worker: u8, seed: [u8; 32]) -> Numbers {
        let mut rng = ChaCha12Rng::from_seed(seed);
        rng.set_stream(STREAM);
        Numbers {
            worker,
            rng,
            quarantined: VecDeque::new(),
            quarantine_bits: vec![0; NUMBERS as usize / 64],
            cut_short: 0,
        }
    }

    /// A random number that is not in quarantine, in a slot that `is_free`. If there is none, the oldest one in
    /// quarantine of such a slot.
    pub(super) fn draw(&mut self, now: Instant, is_free: impl Fn(u16) -> bool) -> Option<Qpn> {
        while let Some(&(since, _)) = self.quarantined.front()
            && since + QUARANTINE <= now
        {
            self.release_oldest();
        }
        let number = (0..DRAWS).find_map(|_| {
            let number = self.rng.next_u32() % NUMBERS;
            (is_free(number as u16) && self.is_usable(number)).then_some(number)
        });
        let number = number.or_else(|| self.search(&is_free)).or_else(|| self.cut_quarantine(&is_free))?;
        Some(Qpn::from_parts(self.worker, (number >> 16) as u8, number as u16))
    }

    /// Puts the number of a destroyed queue pair into quarantine.
    pub(super) fn release(&mut self, now: Instant, qpn: Qpn) {
        if self.quarantined.len() >= MAX_QUARANTINED {
            self.release_oldest();
            self.cut_short += 1;
        }
        let number = qpn.get() % NUMBERS;
        self.quarantined.push_back((now, number));
        self.mark(number, true);
    }

    fn is_usable(&self, number: u32) -> bool {
        // Numbers 0 and 1 are the management queue pairs.
        // compliance.md [QP-NUMBER-MANAGEMENT]: Numbers 0 and 1 belong to the management queue pairs and are never
        // allocated.
        let reserved = self.worker == 0 && number < 2;
        let quarantined =
            self.quarantine_bits.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 != 0);
        !reserved && !quarantined
    }

    /// Searches slot by slot: most slots are in use, or most numbers in quarantine.
    #[cold]
    fn search(&mut self, is_free: impl Fn(u16) -> bool) -> Option<u32> {
        // Tries all numbers of a slot before those of the next slot.
        let start = self.rng.next_u32() % NUMBERS;
        let slots = (0..1 << 16).map(|step| (start + step) & 0xFFFF).filter(|&slot| is_free(slot as u16));
        let mut numbers = slots.flat_map(|slot| (0..16).map(move |step| (start + (step << 16)) & 0xF_0000 | slot));
        numbers.find(|&number| self.is_usable(number))
    }

    /// Ends the quarantine of the oldest number in a free slot: all numbers of all free slots are in quarantine.
    #[cold]
    fn cut_quarantine(&mut self, is_free: impl Fn(u16) -> bool) -> Option<u32> {
        let longest = self.quarantined.iter().position(|&(_, number)| is_free(number as u16))?;
        let (_, number) = self.quarantined.remove(longest)?;
        self.mark(number, false);
        self.cut_short += 1;
        Some(number)
    }

    fn release_oldest(&mut self) {
        if let Some((_, number)) = self.quarantined.pop_front() {
            self.mark(number, false);
        }
    }

    fn mark(&mut self, number: u32, quarantined: bool) {
        if let Some(word) = self.quarantine_bits.get_mut(number as usize / 64) {
            *word = *word & !(1 << (number % 64)) | u64::from(quarantined) << (number % 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const START: Instant = Instant::from_nanos(1 << 40);

    #[test]
    fn a_released_number_is_reused_after_the_quarantine() {
        let mut numbers = Numbers::new(3, [7; 32]);
        // One slot is free, so its 16 numbers are used one after the other.
        let is_free = |slot| slot == 0x1234;
        let mut seen = HashSet::new();
        for round in 0..16 {
            let now = START + Duration::from_millis(round);
            let qpn = numbers.draw(now, is_free).unwrap();
            assert_eq!((qpn.worker(), qpn.slot()), (3, 0x1234));
            assert!(seen.insert(qpn), "{qpn:?} again");
            numbers.release(now, qpn);
        }
        assert_eq!(numbers.cut_short, 0);
        let after = START + QUARANTINE;
        let first = numbers.quarantined[0].1;
        assert_eq!(numbers.draw(after, is_free).unwrap().get() % NUMBERS, first);
        assert_eq!(numbers.cut_short, 0);
    }

    #[test]
    fn the_oldest_number_leaves_quarantine_early_when_no_other_is_left() {
        let mut numbers = Numbers::new(3, [7; 32]);
        let is_free = |slot| slot == 0xFFFF;
        let mut order = Vec::new();
        for _ in 0..40 {
            let qpn = numbers.draw(START, is_free).unwrap();
            numbers.release(START, qpn);
            order.push(qpn);
        }
        assert_eq!(numbers.cut_short, 24);
        assert!(order.iter().zip(&order[16..]).all(|(before, after)| before == after));
        assert_eq!(numbers.draw(START, |_| false), None);
    }

    #[test]
    fn a_full_quarantine_releases_its_oldest_number() {
        let mut numbers = Numbers::new(0, [7; 32]);
        let qpns: Vec<Qpn> = (0..MAX_QUARANTINED as u32 + 5).map(|number| Qpn::new(number + 2)).collect();
        for &qpn in &qpns {
            numbers.release(START, qpn);
        }
        assert_eq!((numbers.quarantined.len(), numbers.cut_short), (MAX_QUARANTINED, 5));
        assert!(numbers.is_usable(qpns[4].get()) && !numbers.is_usable(qpns[5].get()));
        // The others are still drawn, those of the management queue pairs never.
        for _ in 0..1000 {
            let qpn = numbers.draw(START, |_| true).unwrap();
            assert!(numbers.is_usable(qpn.get()), "{qpn:?} is in quarantine");
        }
        assert!(!numbers.is_usable(0) && !numbers.is_usable(1) && Numbers::new(1, [7; 32]).is_usable(0));
    }
}
