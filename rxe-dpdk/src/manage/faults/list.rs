//! The list of fault rules in force, and changes to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::worker::injector::{ActiveFault, FaultRule, Faults, MAX_FAULTS};

/// The rules of an adapter, and who may change them: one at a time.
#[derive(Debug)]
pub(crate) struct FaultList(Mutex<FaultBook>);

/// What is in a [`FaultList`].
#[derive(Debug)]
pub(crate) struct FaultBook {
    next: u32,
    rules: Faults,
}

impl FaultList {
    pub(crate) fn new(rules: &[FaultRule]) -> FaultList {
        let rules = (1..).zip(rules).map(|(id, rule)| Arc::new(ActiveFault::new(id, rule.clone())));
        let rules: Faults = rules.collect();
        FaultList(Mutex::new(FaultBook { next: rules.len() as u32 + 1, rules }))
    }

    /// Keeps others from changing it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, FaultBook> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultBook {
    /// The rules in force.
    pub(crate) fn rules(&self) -> &Faults {
        &self.rules
    }

    /// With one more rule; `None` when there are [`MAX_FAULTS`]. Returns its number.
    pub(crate) fn add(&mut self, rule: FaultRule) -> Option<u32> {
        if self.rules.len() >= MAX_FAULTS {
            return None;
        }
        let id = self.next;
        self.next += 1;
        self.rules = self.rules.iter().cloned().chain([Arc::new(ActiveFault::new(id, rule))]).collect();
        Some(id)
    }

    /// Without those that `keep` does not want. Whether that changed something.
    pub(crate) fn retain(&mut self, keep: impl Fn(u32) -> bool) -> bool {
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
    fn numbers_are_never_given_twice() {
        let list = FaultList::new(&[drops(None), drops(Some(1))]);
        let mut book = list.lock();
        let ids = |book: &FaultBook| book.rules().iter().map(|fault| fault.id).collect::<Vec<_>>();
        assert_eq!(book.add(drops(None)), Some(3));
        assert_eq!(ids(&book), [1, 2, 3]);
        assert!(book.retain(|id| id != 3) && !book.retain(|id| id != 3));
        assert_eq!((book.add(drops(None)), ids(&book)), (Some(4), vec![1, 2, 4]));
        assert!(book.retain(|_| false));
        assert!(book.rules().is_empty());
        for id in 5..5 + MAX_FAULTS as u32 {
            assert_eq!(book.add(drops(None)), Some(id));
        }
        assert_eq!(book.add(drops(None)), None);
    }
}
