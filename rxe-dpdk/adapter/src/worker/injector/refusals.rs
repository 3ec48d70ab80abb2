//! Refuses requests (fault injection), at the worker that owns their queue pair.

use std::sync::Arc;

use rxe_proto::transport::RequestRefusal;
use rxe_proto::wire::RocePacket;

use super::FaultStats;
use super::list::{ActiveFault, RuleState, rule_states};
use super::rule::{FaultAction, FaultRule};

/// The refusing rules of a worker.
pub struct Refusals {
    rules: Vec<RuleState>,
    stats: Arc<FaultStats>,
}

impl Refusals {
    /// For worker number `worker`; `None` without a refusing rule. Rules in `before` continue their random sequences.
    pub fn new(
        before: Option<Box<Refusals>>,
        faults: &[Arc<ActiveFault>],
        worker: usize,
        stats: &Arc<FaultStats>,
    ) -> Option<Box<Refusals>> {
        let before = before.map(|refusals| refusals.rules).unwrap_or_default();
        let refuses = |rule: &FaultRule| matches!(rule.action, FaultAction::Refuse(_));
        let rules = rule_states(before, faults, refuses, worker, None);
        (!rules.is_empty()).then(|| Box::new(Refusals { rules, stats: Arc::clone(stats) }))
    }

    /// The refusal for `packet`, if a rule applies.
    pub fn choose(&mut self, packet: &RocePacket<'_>) -> Option<RequestRefusal> {
        let rule = self.rules.iter_mut().find_map(|rule| {
            let FaultAction::Refuse(refusal) = rule.fault.rule.action else { return None };
            rule.hits(Some(packet), true).then_some(refusal)
        });
        if rule.is_some() {
            self.stats.refused.inc();
        }
        rule
    }
}
