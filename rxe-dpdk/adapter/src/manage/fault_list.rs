//! The list of fault rules in force, and changes to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::worker::injector::{ActiveFault, FaultRule, Faults, MAX_FAULTS};

/// The rules of an adapter. One thread at a time changes them.
#[derive(Debug)]
pub struct FaultList(Mutex<FaultRules>);

/// The locked content of a [`FaultList`].
#[derive(Debug)]
pub struct FaultRules {
    next: u32,
    rules: Faults,
}

impl FaultList {
    /// The rules of the start, numbered from 1.
    pub fn new(rules: &[FaultRule]) -> FaultList {
        let rules = (1..).zip(rules).map(|(id, rule)| Arc::new(ActiveFault::new(id, rule.clone())));
        let rules: Faults = rules.collect();
        FaultList(Mutex::new(FaultRules { next: rules.len() as u32 + 1, rules }))
    }

    /// Locks the list until the workers have applied a change.
    pub fn lock(&self) -> MutexGuard<'_, FaultRules> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultRules {
    /// The rules in force.
    pub fn rules(&self) -> &Faults {
        &self.rules
    }

    /// Adds a rule and returns its number; `None` if there are [`MAX_FAULTS`] already.
    pub fn add(&mut self, rule: FaultRule) -> Option<u32> {
        if self.rules.len() >= MAX_FAULTS {
            return None;
        }
        let id = self.next;
        self.next += 1;
        self.rules = self.rules.iter().cloned().chain([Arc::new(ActiveFault::new(id, rule))]).collect();
        Some(id)
    }

    /// Removes the rules that `keep` rejects. Returns whether there were any.
    pub fn retain(&mut self, keep: impl Fn(u32) -> bool) -> bool {
        let kept: Faults = self.rules.iter().filter(|fault| keep(fault.id)).cloned().collect();
        let changed = kept.len() < self.rules.len();
        self.rules = kept;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::injector::{Direction, FaultAction};

    fn drops(count: Option<u64>) -> FaultRule {
        FaultRule { count, ..FaultRule::new(FaultAction::Drop, Direction::Rx) }
    }

    #[test]
    fn numbers_are_never_reused() {
        let list = FaultList::new(&[drops(None), drops(Some(1))]);
        let mut locked = list.lock();
        let ids = |list: &FaultRules| list.rules().iter().map(|fault| fault.id).collect::<Vec<_>>();
        assert_eq!(locked.add(drops(None)), Some(3));
        assert_eq!(ids(&locked), [1, 2, 3]);
        assert!(locked.retain(|id| id != 3) && !locked.retain(|id| id != 3));
        assert_eq!((locked.add(drops(None)), ids(&locked)), (Some(4), vec![1, 2, 4]));
        assert!(locked.retain(|_| false));
        assert!(locked.rules().is_empty());
        for id in 5..5 + MAX_FAULTS as u32 {
            assert_eq!(locked.add(drops(None)), Some(id));
        }
        assert_eq!(locked.add(drops(None)), None);
    }
}
