//! The configuration of the running target as a file, for `rxe-ctl config dump`.

use super::Managed;
use crate::config::Config;

/// A configuration file that would start the target as it runs.
pub fn dump(managed: &Managed) -> Result<String, String> {
    let config = running(managed);
    if config.services.is_empty() {
        return Err("all services are stopped, which no configuration file can say: start one before".to_owned());
    }
    let prefix = &managed.prefix;
    let version = env!("CARGO_PKG_VERSION");
    Ok(format!("# The running target {prefix}, by rxe-ctl config dump {version}.\n\n{}", config.to_toml()))
}

/// The configuration with what management has changed elsewhere.
fn running(managed: &Managed) -> Config {
    let mut config = managed.config.lock().clone();
    let stopped = managed.inspector.services().into_iter().filter(|service| service.stopped);
    let stopped: Vec<String> = stopped.map(|service| service.name).collect();
    config.services.retain(|name| !stopped.contains(name));
    config.faults = managed.inspector.fault_rules();
    // Queue pairs have other numbers after a restart.
    let capture = managed.capture.status().ok().filter(|status| status.running && status.settings.qpns.is_empty());
    config.capture = capture.map(|status| status.settings);
    config
}
