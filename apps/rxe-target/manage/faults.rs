//! Faults that `rxe-ctl` makes and ends while the target runs.

use std::collections::BTreeMap;

use super::Managed;
use crate::config::fault_rule;

/// Makes one; returns its number.
pub fn add(managed: &Managed, keys: &BTreeMap<String, String>) -> Result<u32, String> {
    let rule = fault_rule(keys).map_err(|error| error.to_string())?;
    let text = rule.to_string();
    let id = managed.inspector.add_fault(rule).map_err(|error| error.to_string())?;
    tracing::warn!("a fault is made on purpose, by rxe-ctl: {id}: {text}");
    Ok(id)
}

/// Ends one.
pub fn remove(managed: &Managed, id: u32) -> Result<(), String> {
    managed.inspector.remove_fault(id).map_err(|error| error.to_string())?;
    tracing::info!("fault {id} is ended by rxe-ctl");
    Ok(())
}

/// Ends all.
pub fn clear(managed: &Managed) -> Result<(), String> {
    managed.inspector.clear_faults().map_err(|error| error.to_string())?;
    tracing::info!("all faults are ended by rxe-ctl");
    Ok(())
}
