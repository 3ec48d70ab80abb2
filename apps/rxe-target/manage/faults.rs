//! Faults that `rxe-ctl` adds and removes while the target runs.

use std::collections::BTreeMap;

use rxe_adapter::texts::fault_rule;
use rxe_adapter::worker::FaultRule;

use super::Managed;

/// Adds a fault; returns its number.
pub fn add(managed: &Managed, keys: &BTreeMap<String, String>) -> Result<u32, String> {
    add_rule(managed, fault_rule(keys).map_err(|error| error.to_string())?)
}

/// Adds a fault rule; returns its number.
pub fn add_rule(managed: &Managed, rule: FaultRule) -> Result<u32, String> {
    let text = rule.to_string();
    let id = managed.inspector.add_fault(rule).map_err(|error| error.to_string())?;
    tracing::warn!("the fault {id} was added: {text}");
    Ok(id)
}

/// Removes a fault.
pub fn remove(managed: &Managed, id: u32) -> Result<(), String> {
    managed.inspector.remove_fault(id).map_err(|error| error.to_string())?;
    tracing::info!("the fault {id} was removed");
    Ok(())
}

/// Removes all faults.
pub fn clear(managed: &Managed) -> Result<(), String> {
    managed.inspector.clear_faults().map_err(|error| error.to_string())?;
    tracing::info!("all faults were removed");
    Ok(())
}
