//! Which numbers queue pairs get.
//!
//! A number is drawn at random, so that nobody can guess it and a peer that knew us before a restart does not meet its own
//! queue pair's number in a stranger. A number that was given back rests before it can be drawn again: packets of the
//! former connection, and the peer's timewait, are over by then.

use std::collections::VecDeque;

use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

use crate::time::{Duration, Instant};

use super::Qpn;

/// How long a number rests.
const REST: Duration = Duration::from_secs(10);

/// Numbers of one worker: slot and generation.
const NUMBERS: u32 = 1 << 20;

/// How many rest at most: with as many left over, few draws find one. Then the longest resting one comes back.
const MAX_RESTING: usize = 1 << 19;

/// How often is drawn before free slots are looked for one by one.
const DRAWS: usize = 64;

/// The generator's stream: the same seed makes keys by another one.
const STREAM: u64 = 1;

/// The numbers of one worker's queue pairs.
#[derive(Debug)]
pub(super) struct Numbers {
    worker: u8,
    rng: ChaCha12Rng,
    /// Since when, the longest first.
    resting: VecDeque<(Instant, u32)>,
    /// A bit for each number: whether it rests.
    rests: Vec<u64>,
    /// How many came back before their time and are not counted elsewhere yet.
    pub(super) cut_short: u64,
}

impl Numbers {
    /// `seed` must be secret and fresh for every start.
    pub(super) fn new(worker: u8, seed: [u8; 32]) -> Numbers {
        let mut rng = ChaCha12Rng::from_seed(seed);
        rng.set_stream(STREAM);
        Numbers { worker, rng, resting: VecDeque::new(), rests: vec![0; NUMBERS as usize / 64], cut_short: 0 }
    }

    /// A number that does not rest, in a slot that `is_free`. If there is none, the longest resting one in such a slot.
    pub(super) fn draw(&mut self, now: Instant, is_free: impl Fn(u16) -> bool) -> Option<Qpn> {
        while let Some(&(since, _)) = self.resting.front()
            && since + REST <= now
        {
            self.wake_longest();
        }
        let number = (0..DRAWS).find_map(|_| {
            let number = self.rng.next_u32() % NUMBERS;
            (is_free(number as u16) && self.is_usable(number)).then_some(number)
        });
        let number = number.or_else(|| self.search(&is_free)).or_else(|| self.cut_rest(&is_free))?;
        Some(Qpn::from_parts(self.worker, (number >> 16) as u8, number as u16))
    }

    /// The number of a queue pair that is gone rests from now on.
    pub(super) fn rest(&mut self, now: Instant, qpn: Qpn) {
        if self.resting.len() >= MAX_RESTING {
            self.wake_longest();
            self.cut_short += 1;
        }
        let number = qpn.get() % NUMBERS;
        self.resting.push_back((now, number));
        self.mark(number, true);
    }

    fn is_usable(&self, number: u32) -> bool {
        // Numbers 0 and 1 are the management queue pairs.
        // [QP-NUMBER-MANAGEMENT]
        let reserved = self.worker == 0 && number < 2;
        let resting = self.rests.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 != 0);
        !reserved && !resting
    }

    /// Most slots are in use, or most numbers rest.
    #[cold]
    fn search(&mut self, is_free: impl Fn(u16) -> bool) -> Option<u32> {
        // Any number of a slot before the next slot's.
        let start = self.rng.next_u32() % NUMBERS;
        let slots = (0..1 << 16).map(|step| (start + step) & 0xFFFF).filter(|&slot| is_free(slot as u16));
        let mut numbers = slots.flat_map(|slot| (0..16).map(move |step| (start + (step << 16)) & 0xF_0000 | slot));
        numbers.find(|&number| self.is_usable(number))
    }

    /// All numbers of all free slots rest.
    #[cold]
    fn cut_rest(&mut self, is_free: impl Fn(u16) -> bool) -> Option<u32> {
        let longest = self.resting.iter().position(|&(_, number)| is_free(number as u16))?;
        let (_, number) = self.resting.remove(longest)?;
        self.mark(number, false);
        self.cut_short += 1;
        Some(number)
    }

    fn wake_longest(&mut self) {
        if let Some((_, number)) = self.resting.pop_front() {
            self.mark(number, false);
        }
    }

    fn mark(&mut self, number: u32, rests: bool) {
        if let Some(word) = self.rests.get_mut(number as usize / 64) {
            *word = *word & !(1 << (number % 64)) | u64::from(rests) << (number % 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const START: Instant = Instant::from_nanos(1 << 40);

    #[test]
    fn a_number_rests_and_then_comes_back() {
        let mut numbers = Numbers::new(3, [7; 32]);
        // One slot is free, so all its numbers are used up in turn.
        let is_free = |slot| slot == 0x1234;
        let mut seen = HashSet::new();
        for round in 0..16 {
            let now = START + Duration::from_millis(round);
            let qpn = numbers.draw(now, is_free).unwrap();
            assert_eq!((qpn.worker(), qpn.slot()), (3, 0x1234));
            assert!(seen.insert(qpn), "{qpn:?} again");
            numbers.rest(now, qpn);
        }
        assert_eq!(numbers.cut_short, 0);
        let after = START + REST;
        let first = numbers.resting[0].1;
        assert_eq!(numbers.draw(after, is_free).unwrap().get() % NUMBERS, first);
        assert_eq!(numbers.cut_short, 0);
    }

    #[test]
    fn where_all_rest_the_longest_resting_one_comes_back() {
        let mut numbers = Numbers::new(3, [7; 32]);
        let is_free = |slot| slot == 0xFFFF;
        let mut order = Vec::new();
        for _ in 0..40 {
            let qpn = numbers.draw(START, is_free).unwrap();
            numbers.rest(START, qpn);
            order.push(qpn);
        }
        assert_eq!(numbers.cut_short, 24);
        assert!(order.iter().zip(&order[16..]).all(|(before, after)| before == after));
        assert_eq!(numbers.draw(START, |_| false), None);
    }

    #[test]
    fn a_full_memory_of_resting_numbers_lets_go_of_the_longest() {
        let mut numbers = Numbers::new(0, [7; 32]);
        let qpns: Vec<Qpn> = (0..MAX_RESTING as u32 + 5).map(|number| Qpn::new(number + 2)).collect();
        for &qpn in &qpns {
            numbers.rest(START, qpn);
        }
        assert_eq!((numbers.resting.len(), numbers.cut_short), (MAX_RESTING, 5));
        assert!(numbers.is_usable(qpns[4].get()) && !numbers.is_usable(qpns[5].get()));
        // The others are drawn all the same, the management queue pairs' never.
        for _ in 0..1000 {
            let qpn = numbers.draw(START, |_| true).unwrap();
            assert!(numbers.is_usable(qpn.get()), "{qpn:?} rests");
        }
        assert!(!numbers.is_usable(0) && !numbers.is_usable(1) && Numbers::new(1, [7; 32]).is_usable(0));
    }
}
