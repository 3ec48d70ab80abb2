//! The places of I/Os in a namespace, and whether each reads or writes.

use super::plan::NvmePlan;

/// Whether an I/O reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read,
    Write,
}

/// Pseudo-random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ value >> 31
    }

    /// The next number below `end`; 0 if that is 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// Chooses the I/Os of one queue. A place is a number: the namespace is divided into places of the size of an I/O.
#[derive(Debug)]
pub struct Places {
    random: bool,
    reads: u8,
    /// Places in the namespace.
    count: u64,
    numbers: Random,
    /// The next place, in sequence.
    next: u64,
    lanes: Option<Lanes>,
}

/// Places that slots share out: lane `n` of `total` has the places `n`, `n + total` and so on. Two outstanding I/Os of different
/// slots then never overlap.
#[derive(Debug)]
struct Lanes {
    total: u64,
    /// Lane of the first slot of this queue.
    first: u64,
    /// How often each slot has been used, in sequence.
    uses: Vec<u64>,
}

impl Places {
    /// The places of queue `index` (from 0) in a namespace of `count` places.
    ///
    /// With `plan.verify` there must be one place for each outstanding I/O at least.
    pub fn new(plan: &NvmePlan, index: u16, count: u64) -> Places {
        let (queues, depth) = (u64::from(plan.queues), u64::from(plan.depth));
        let lanes = plan.verify.then(|| Lanes {
            total: queues * depth,
            first: u64::from(index) * depth,
            uses: vec![0; usize::from(plan.depth)],
        });
        // Sequences of different queues begin at different parts.
        let next = (u128::from(count) * u128::from(index) / u128::from(queues.max(1))) as u64;
        let numbers = Random(u64::from(index) << 32);
        Places { random: plan.workload.is_random(), reads: plan.reads, count: count.max(1), numbers, next, lanes }
    }

    /// Kind and place of the next I/O of `slot`.
    #[inline]
    pub fn next(&mut self, slot: u16) -> (Kind, u64) {
        let kind = match self.reads {
            0 => Kind::Write,
            100 => Kind::Read,
            percent if self.numbers.below(100) < u64::from(percent) => Kind::Read,
            _ => Kind::Write,
        };
        if let Some(lanes) = &mut self.lanes
            && let Some(uses) = lanes.uses.get_mut(usize::from(slot))
        {
            let lane = lanes.first + u64::from(slot);
            let places = self.count.saturating_sub(lane).div_ceil(lanes.total).max(1);
            let nth = if self.random { self.numbers.below(places) } else { *uses % places };
            *uses += 1;
            return (kind, lane + nth * lanes.total);
        }
        if self.random {
            return (kind, self.numbers.below(self.count));
        }
        let place = self.next;
        self.next = if place + 1 >= self.count { 0 } else { place + 1 };
        (kind, place)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::nvme::plan::Workload;
    use crate::nvme::plan::tests::plan;

    fn take(places: &mut Places, slot: u16, count: usize) -> Vec<u64> {
        (0..count).map(|_| places.next(slot).1).collect()
    }

    #[test]
    fn sequences_wrap_and_begin_at_the_part_of_their_queue() {
        let plan = NvmePlan { workload: Workload::Read, queues: 2, ..plan() };
        assert_eq!(take(&mut Places::new(&plan, 0, 5), 3, 6), [0, 1, 2, 3, 4, 0]);
        assert_eq!(take(&mut Places::new(&plan, 1, 5), 0, 4), [2, 3, 4, 0]);
        assert_eq!(take(&mut Places::new(&plan, 1, 1), 0, 2), [0, 0]);
    }

    #[test]
    fn random_places_cover_the_namespace_and_differ_between_queues() {
        let plan = NvmePlan { queues: 2, ..plan() };
        let found = take(&mut Places::new(&plan, 0, 20), 0, 1000);
        assert_eq!(found.iter().copied().collect::<BTreeSet<_>>(), (0..20).collect());
        assert_ne!(found, take(&mut Places::new(&plan, 1, 20), 0, 1000));
    }

    #[test]
    fn the_share_of_reads_is_that_of_the_plan() {
        for percent in [0, 1, 30, 99, 100] {
            let plan = NvmePlan { reads: percent, ..plan() };
            let mut places = Places::new(&plan, 0, 100);
            let reads = (0..10_000).filter(|_| places.next(0).0 == Kind::Read).count();
            let wanted = usize::from(percent) * 100;
            assert!(reads.abs_diff(wanted) <= if percent % 100 == 0 { 0 } else { 200 }, "{percent}: {reads}");
        }
    }

    #[test]
    fn verified_slots_never_share_a_place_and_use_all() {
        for workload in [Workload::Write, Workload::RandWrite] {
            let plan = NvmePlan { workload, verify: true, queues: 3, depth: 4, ..plan() };
            let mut all = BTreeSet::new();
            for queue in 0..3 {
                let mut places = Places::new(&plan, queue, 50);
                for slot in 0..4 {
                    let of_slot: BTreeSet<u64> = take(&mut places, slot, 100).into_iter().collect();
                    assert!(of_slot.iter().all(|place| *place < 50));
                    assert!(of_slot.iter().all(|place| all.insert(*place)), "{queue} {slot}");
                }
            }
            assert_eq!(all.len(), 50, "{workload:?}");
        }
    }
}
