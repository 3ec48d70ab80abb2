//! Administration of fault rules: which are in force, and changes while the adapter runs.

use std::time::Duration;

use rxe_inspect::event::EventKind;
use rxe_inspect::fault::Fault;
use rxe_proto::transport::RequestRefusal;

use super::{InspectError, Inspector};
use crate::manage::reports::nanos;
use crate::worker::injector::Faults;
use crate::worker::orders::{FaultChange, Order};
use crate::worker::{ActiveFault, FaultAction, FaultRule, FaultScope, nak_name};

impl Inspector {
    /// The rules in force, with their hits.
    pub fn faults(&self) -> Vec<Fault> {
        self.fault_list().lock().rules().iter().map(|fault| report(fault)).collect()
    }

    /// The rules in force.
    pub fn fault_rules(&self) -> Vec<FaultRule> {
        self.fault_list().lock().rules().iter().map(|fault| fault.rule.clone()).collect()
    }

    /// Adds a fault rule and returns its number. It is active on all lcores when this returns.
    ///
    /// # Errors
    /// [`InspectError::TooManyFaults`], [`InspectError::Stopped`]. After [`InspectError::NoAnswer`] the lcore
    /// has the order and still applies it.
    pub fn add_fault(&self, rule: FaultRule) -> Result<u32, InspectError> {
        let mut list = self.fault_list().lock();
        let text = rule.to_string();
        let id = list.add(rule).ok_or(InspectError::TooManyFaults)?;
        self.apply(list.rules())?;
        self.events().publish(|| EventKind::FaultAdded { id, rule: text });
        Ok(id)
    }

    /// Removes a fault rule.
    ///
    /// # Errors
    /// [`InspectError::NoSuchFault`], [`InspectError::Stopped`], and [`InspectError::NoAnswer`] as for
    /// [`add_fault`](Self::add_fault).
    pub fn remove_fault(&self, id: u32) -> Result<(), InspectError> {
        if self.retain_faults(|other| other != id)? { Ok(()) } else { Err(InspectError::NoSuchFault(id)) }
    }

    /// Removes all fault rules.
    ///
    /// # Errors
    /// [`InspectError::Stopped`], and [`InspectError::NoAnswer`] as for [`add_fault`](Self::add_fault).
    pub fn clear_faults(&self) -> Result<(), InspectError> {
        self.retain_faults(|_| false).map(drop)
    }

    /// Removes the rules that `keep` rejects. Returns whether there were any.
    fn retain_faults(&self, keep: impl Fn(u32) -> bool) -> Result<bool, InspectError> {
        let mut list = self.fault_list().lock();
        let before = list.rules().clone();
        if !list.retain(&keep) {
            return Ok(false);
        }
        self.apply(list.rules())?;
        for fault in before.iter().filter(|fault| !keep(fault.id)) {
            self.events().publish(|| EventKind::FaultRemoved { id: fault.id, rule: fault.rule.to_string() });
        }
        Ok(true)
    }

    /// Sends the rules to all workers, then waits until each has applied them.
    fn apply(&self, rules: &Faults) -> Result<(), InspectError> {
        let change = |reply| FaultChange { rules: rules.clone(), reply: Some(reply) };
        self.exchange_all(|worker, reply| self.order(worker, Order::Faults(change(reply)))).map(drop)
    }
}

fn report(fault: &ActiveFault) -> Fault {
    let (matched, hits) = fault.matched_and_hits();
    let FaultRule { action, direction, matches, probability, count, seed } = &fault.rule;
    let (delay, jitter) = match *action {
        FaultAction::Delay { delay, jitter } => (Some(delay), Some(jitter)),
        _ => (None::<Duration>, None),
    };
    let (code, timer) = match *action {
        FaultAction::Refuse(RequestRefusal::NotReady { timer }) => (None, Some(timer)),
        FaultAction::Refuse(refusal) => (nak_name(refusal), None),
        _ => (None, None),
    };
    Fault {
        id: fault.id,
        direction: direction.to_string(),
        action: action.name().to_owned(),
        rule: fault.rule.to_string(),
        frames: if matches.scope == FaultScope::All { "all" } else { "roce" }.to_owned(),
        opcode: matches.opcodes.as_ref().map(ToString::to_string),
        qpn: matches.qpn.map(|qpn| qpn.get()),
        psn: matches.psn.map(|range| (range.first.get(), range.last.get())),
        probability: probability.share(),
        count: *count,
        seed: *seed,
        delay_ns: delay.map(nanos),
        jitter_ns: jitter.map(nanos),
        code: code.map(str::to_owned),
        timer,
        matched,
        hits,
    }
}
