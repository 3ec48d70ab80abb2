//! The rules in force, what each has done, and what one worker needs to go by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rxe_proto::wire::{PortId, RocePacket};

use super::rule::{FaultRule, Probability};

/// Most rules at a time: an injector notes in one word which of them hit a frame.
pub const MAX_FAULTS: usize = 64;

/// A rule in force. Its counters are shared by all workers, and touched for the frames that it is for only.
#[derive(Debug)]
pub struct ActiveFault {
    /// Its number, from 1.
    pub id: u32,
    /// What it says.
    pub rule: FaultRule,
    matched: AtomicU64,
    hits: AtomicU64,
}

impl ActiveFault {
    pub(crate) fn new(id: u32, rule: FaultRule) -> ActiveFault {
        ActiveFault { id, rule, matched: AtomicU64::new(0), hits: AtomicU64::new(0) }
    }

    /// Frames that it was for, as long as it was not used up.
    pub fn matched(&self) -> u64 {
        self.matched.load(Ordering::Relaxed)
    }

    /// Frames to which it happened.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    fn is_used_up(&self) -> bool {
        self.rule.count.is_some_and(|count| self.hits() >= count)
    }

    /// One more hit, if there may be one.
    fn claim(&self) -> bool {
        let more = |hits: u64| self.rule.count.is_none_or(|count| hits < count).then_some(hits + 1);
        self.hits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// The rules in force, as workers are told of them.
pub(crate) type Faults = Arc<[Arc<ActiveFault>]>;

/// A rule, and the choices that one place makes by it.
pub(super) struct Chooser {
    pub(super) fault: Arc<ActiveFault>,
    rng: ChaCha8Rng,
}

impl Chooser {
    /// For worker number `worker` at one direction of `port`, or at all of them.
    fn new(fault: &Arc<ActiveFault>, worker: usize, port: Option<PortId>) -> Chooser {
        let rule = &fault.rule;
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&rule.seed.to_le_bytes());
        seed[8..16].copy_from_slice(&(worker as u64).to_le_bytes());
        seed[16..18].copy_from_slice(&port.map_or(u16::MAX, |port| port.0).to_le_bytes());
        seed[18] = rule.direction as u8;
        seed[19] = rule.action.order();
        Chooser { fault: Arc::clone(fault), rng: ChaCha8Rng::from_seed(seed) }
    }

    /// Whether it happens to a frame that it is for. What else has to hold is `fits`.
    pub(super) fn hits(&mut self, packet: Option<&RocePacket<'_>>, fits: bool) -> bool {
        if !fits || self.fault.is_used_up() || !self.fault.rule.matches.takes(packet) {
            return false;
        }
        self.fault.matched.fetch_add(1, Ordering::Relaxed);
        self.chance() && self.fault.claim()
    }

    /// Draws only where both outcomes are possible.
    fn chance(&mut self) -> bool {
        match self.fault.rule.probability {
            Probability::NEVER => false,
            Probability::ALWAYS => true,
            probability => probability.hits(self.rng.next_u32()),
        }
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.rng.next_u64()) * u128::from(end)) >> 64) as u64
    }
}

/// What goes by those of `faults` that `wanted` wants, in the order in which they act. Those that went by one before go on
/// with their choices.
pub(super) fn choosers(
    before: Vec<Chooser>,
    faults: &[Arc<ActiveFault>],
    wanted: impl Fn(&FaultRule) -> bool,
    worker: usize,
    port: Option<PortId>,
) -> Vec<Chooser> {
    let mut before = before;
    let mut now: Vec<Chooser> = faults
        .iter()
        .filter(|fault| wanted(&fault.rule))
        .map(|fault| match before.iter().position(|chooser| chooser.fault.id == fault.id) {
            Some(at) => before.swap_remove(at),
            None => Chooser::new(fault, worker, port),
        })
        .collect();
    now.sort_by_key(|chooser| (chooser.fault.rule.action.order(), chooser.fault.id));
    now
}

#[cfg(test)]
mod tests {
    use super::super::rule::{Direction, FaultAction};
    use super::*;

    fn drops(count: Option<u64>) -> FaultRule {
        FaultRule { count, ..FaultRule::new(FaultAction::Drop, Direction::Rx) }
    }

    #[test]
    fn a_count_is_for_all_who_go_by_the_rule() {
        let fault = Arc::new(ActiveFault::new(1, FaultRule { count: Some(5), ..all_frames() }));
        let mut workers: Vec<Chooser> = (0..3).map(|worker| Chooser::new(&fault, worker, None)).collect();
        let hits = (0..12).filter(|turn| workers[turn % 3].hits(None, true)).count();
        assert_eq!((hits, fault.hits(), fault.matched()), (5, 5, 5));
    }

    fn all_frames() -> FaultRule {
        let mut rule = drops(None);
        rule.matches.scope = super::super::FaultScope::All;
        rule
    }

    #[test]
    fn who_stays_goes_on_with_its_choices() {
        let half = FaultRule { probability: Probability::from_share(0.5).unwrap(), ..all_frames() };
        let faults =
            |count: u32| (1..=count).map(|id| Arc::new(ActiveFault::new(id, half.clone()))).collect::<Vec<_>>();
        let draw = |choosers: &mut Vec<Chooser>| (0..100).map(|_| choosers[0].hits(None, true)).collect::<Vec<_>>();
        let make = |before, faults: &[Arc<ActiveFault>]| choosers(before, faults, |_| true, 0, None);
        let mut alone = make(Vec::new(), &faults(1));
        let (first, second) = (draw(&mut alone), draw(&mut alone));
        let mut joined = make(Vec::new(), &faults(1));
        assert_eq!(draw(&mut joined), first);
        let mut joined = make(joined, &faults(2));
        assert_eq!((draw(&mut joined), joined.len()), (second, 2));
    }
}
