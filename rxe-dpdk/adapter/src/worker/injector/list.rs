//! The rules in force with their hit counters, and the state that one worker keeps for a rule.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rxe_proto::wire::{PortId, RocePacket};
use rxe_sync::{Counter, HitCount};

use super::rule::{FaultRule, Probability};

/// Most rules in force: an injector has one bit for each in a word.
pub const MAX_FAULTS: usize = 64;

/// More workers than an adapter may have.
const WORKERS: usize = 16;

/// A rule in force. Each worker counts the frames that it matched; all share the count of those that it was applied to.
#[derive(Debug)]
pub struct ActiveFault {
    /// Number of the rule, from 1.
    pub id: u32,
    /// The rule itself.
    pub rule: FaultRule,
    matched: [CachePadded<Counter>; WORKERS],
    hits: CachePadded<HitCount>,
}

impl ActiveFault {
    /// A rule without hits.
    pub fn new(id: u32, rule: FaultRule) -> ActiveFault {
        ActiveFault { id, rule, matched: Default::default(), hits: CachePadded::default() }
    }

    /// Frames that it matched before its count was reached, and frames that it was applied to.
    pub fn matched_and_hits(&self) -> (u64, u64) {
        // Hits first: the matches of all of them are counted.
        let hits = self.hits.get();
        (self.matched.iter().map(|matched| matched.get()).sum(), hits)
    }
}

/// The rules in force, in the form that workers get.
pub type Faults = Arc<[Arc<ActiveFault>]>;

/// A rule and the random sequence of one injector for it.
pub(super) struct RuleState {
    pub(super) fault: Arc<ActiveFault>,
    worker: usize,
    rng: ChaCha8Rng,
}

impl RuleState {
    /// For worker number `worker` and one direction of `port`, or all ports.
    fn new(fault: &Arc<ActiveFault>, worker: usize, port: Option<PortId>) -> RuleState {
        let rule = &fault.rule;
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&rule.seed.to_le_bytes());
        seed[8..16].copy_from_slice(&(worker as u64).to_le_bytes());
        seed[16..18].copy_from_slice(&port.map_or(u16::MAX, |port| port.0).to_le_bytes());
        seed[18] = rule.direction as u8;
        seed[19] = rule.action.order();
        RuleState { fault: Arc::clone(fault), worker: worker % WORKERS, rng: ChaCha8Rng::from_seed(seed) }
    }

    /// Whether the rule is applied to this frame. `fits` is false if the action cannot be.
    #[inline]
    pub(super) fn hits(&mut self, packet: Option<&RocePacket<'_>>, fits: bool) -> bool {
        let ActiveFault { rule, matched, hits, .. } = &*self.fault;
        if !fits || hits.is_used_up(rule.count) || !rule.matches.matches(packet) {
            return false;
        }
        matched[self.worker].inc();
        // A number is drawn only if both outcomes are possible.
        let chance = match rule.probability {
            Probability::NEVER => false,
            Probability::ALWAYS => true,
            probability => probability.hits(self.rng.next_u32()),
        };
        chance && hits.claim(rule.count)
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.rng.next_u64()) * u128::from(end)) >> 64) as u64
    }
}

/// States for the rules in `faults` that `applies` selects, in the order of their actions. A rule that had a state `before`
/// continues its random sequence.
pub(super) fn rule_states(
    before: Vec<RuleState>,
    faults: &[Arc<ActiveFault>],
    applies: impl Fn(&FaultRule) -> bool,
    worker: usize,
    port: Option<PortId>,
) -> Vec<RuleState> {
    let mut before = before;
    let mut now: Vec<RuleState> = faults
        .iter()
        .filter(|fault| applies(&fault.rule))
        .map(|fault| match before.iter().position(|state| state.fault.id == fault.id) {
            Some(at) => before.swap_remove(at),
            None => RuleState::new(fault, worker, port),
        })
        .collect();
    now.sort_by_key(|state| (state.fault.rule.action.order(), state.fault.id));
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
    fn a_count_is_shared_by_all_workers() {
        let fault = Arc::new(ActiveFault::new(1, FaultRule { count: Some(5), ..all_frames() }));
        let mut workers: Vec<RuleState> = (0..3).map(|worker| RuleState::new(&fault, worker, None)).collect();
        let hits = (0..12).filter(|turn| workers[turn % 3].hits(None, true)).count();
        assert_eq!((hits, fault.matched_and_hits()), (5, (5, 5)));
    }

    fn all_frames() -> FaultRule {
        let mut rule = drops(None);
        rule.matches.scope = super::super::FaultScope::All;
        rule
    }

    #[test]
    fn a_rule_that_stays_continues_its_random_sequence() {
        let half = FaultRule { probability: Probability::from_share(0.5).unwrap(), ..all_frames() };
        let faults =
            |count: u32| (1..=count).map(|id| Arc::new(ActiveFault::new(id, half.clone()))).collect::<Vec<_>>();
        let draw = |states: &mut Vec<RuleState>| (0..100).map(|_| states[0].hits(None, true)).collect::<Vec<_>>();
        let make = |before, faults: &[Arc<ActiveFault>]| rule_states(before, faults, |_| true, 0, None);
        let mut alone = make(Vec::new(), &faults(1));
        let (first, second) = (draw(&mut alone), draw(&mut alone));
        let mut joined = make(Vec::new(), &faults(1));
        assert_eq!(draw(&mut joined), first);
        let mut joined = make(joined, &faults(2));
        assert_eq!((draw(&mut joined), joined.len()), (second, 2));
    }
}
