//! Faults made on purpose: which there are, and other ones.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use rxe_inspect::fault::Fault;
use rxe_proto::transport::RequestRefusal;

use super::reports::nanos;
use super::{InspectError, Inspector};
use crate::worker::faults::FaultChange;
use crate::worker::injector::Faults;
use crate::worker::orders::Order;
use crate::worker::{ActiveFault, FaultAction, FaultRule, FaultScope, nak_name};

impl Inspector {
    /// The rules in force, and what they have done.
    pub fn faults(&self) -> Vec<Fault> {
        self.fault_list().lock().rules().iter().map(|fault| report(fault)).collect()
    }

    /// Makes a fault from now on; returns its number. All lcores go by it when this returns.
    ///
    /// # Errors
    /// [`InspectError::TooManyFaults`], [`InspectError::Stopped`]. With [`InspectError::NoAnswer`] the rule is in force, or
    /// will be when the lcore comes to it.
    pub fn add_fault(&self, rule: FaultRule) -> Result<u32, InspectError> {
        let mut book = self.fault_list().lock();
        let id = book.add(rule).ok_or(InspectError::TooManyFaults)?;
        self.go_by(book.rules())?;
        Ok(id)
    }

    /// Ends a fault.
    ///
    /// # Errors
    /// [`InspectError::NoSuchFault`], [`InspectError::Stopped`], and [`InspectError::NoAnswer`] as for
    /// [`add_fault`](Self::add_fault).
    pub fn remove_fault(&self, id: u32) -> Result<(), InspectError> {
        let mut book = self.fault_list().lock();
        if !book.retain(|other| other != id) {
            return Err(InspectError::NoSuchFault(id));
        }
        self.go_by(book.rules())
    }

    /// Ends all faults.
    ///
    /// # Errors
    /// [`InspectError::Stopped`], and [`InspectError::NoAnswer`] as for [`add_fault`](Self::add_fault).
    pub fn clear_faults(&self) -> Result<(), InspectError> {
        let mut book = self.fault_list().lock();
        if book.retain(|_| false) { self.go_by(book.rules()) } else { Ok(()) }
    }

    /// Has all workers go by these rules: told first, then waited for.
    fn go_by(&self, rules: &Faults) -> Result<(), InspectError> {
        let told = (0..self.workers()).map(|worker| {
            let (reply, answer) = sync_channel(1);
            self.order(worker, Order::Faults(FaultChange { rules: rules.clone(), reply: Some(reply) }))?;
            Ok((worker, answer))
        });
        let told: Vec<_> = told.collect::<Result<_, InspectError>>()?;
        told.into_iter().try_for_each(|(worker, answer)| self.wait(worker, &answer))
    }
}

fn report(fault: &ActiveFault) -> Fault {
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
        matched: fault.matched(),
        hits: fault.hits(),
    }
}
