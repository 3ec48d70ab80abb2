//! Requests that are refused on purpose, by the worker that owns their queue pair.

use std::sync::Arc;

use rxe_proto::transport::RequestRefusal;
use rxe_proto::wire::RocePacket;

use super::FaultStats;
use super::list::{ActiveFault, Chooser, choosers};
use super::rule::{FaultAction, FaultRule};

/// What a worker goes by when it refuses requests.
pub(crate) struct Refusals {
    rules: Vec<Chooser>,
    stats: Arc<FaultStats>,
}

impl Refusals {
    /// For worker number `worker`, which went by `before`; `None` when nothing shall be refused.
    pub(crate) fn new(
        before: Option<Box<Refusals>>,
        faults: &[Arc<ActiveFault>],
        worker: usize,
        stats: &Arc<FaultStats>,
    ) -> Option<Box<Refusals>> {
        let before = before.map(|refusals| refusals.rules).unwrap_or_default();
        let wanted = |rule: &FaultRule| matches!(rule.action, FaultAction::Refuse(_));
        let rules = choosers(before, faults, wanted, worker, None);
        (!rules.is_empty()).then(|| Box::new(Refusals { rules, stats: Arc::clone(stats) }))
    }

    /// How `packet` is to be refused, if it is.
    pub(crate) fn choose(&mut self, packet: &RocePacket<'_>) -> Option<RequestRefusal> {
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
