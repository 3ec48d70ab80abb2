//! Named regions that `rxe-ctl` lists, adds and removes while the target runs.

use rxe_inspect::report::Region;

use super::Managed;
use crate::config::{Config, REGION_SERVICE, RegionSpec, with_another_region};
use crate::services::{RegionOptions, RegionRequest};

/// The regions, in the order of the configuration.
pub fn list(managed: &Managed) -> Result<Vec<Region>, String> {
    let config = managed.config.lock();
    let mut regions = managed.inspector.regions().map_err(|error| error.to_string())?;
    for region in &mut regions {
        let Some(spec) = config.regions.iter().find(|spec| spec.name == region.name) else { continue };
        region.watch = spec.watch;
        region.peers = spec.peers.iter().flat_map(|peers| peers.networks()).map(ToString::to_string).collect();
    }
    Ok(regions)
}

/// Adds a region, written as for `--region`.
pub fn add(managed: &Managed, text: &str) -> Result<(), String> {
    let spec: RegionSpec = text.parse().map_err(|error: rxe::CliError| error.to_string())?;
    let mut config = managed.config.lock();
    add_spec(managed, &mut config, spec)
}

/// Removes a region.
pub fn remove(managed: &Managed, name: &str, force: bool) -> Result<(), String> {
    remove_from(managed, &mut managed.config.lock(), name, force)
}

/// Adds a region to the running target and its configuration.
pub fn add_spec(managed: &Managed, config: &mut Config, spec: RegionSpec) -> Result<(), String> {
    let regions = with_another_region(&config.regions, spec.clone()).map_err(|error| error.to_string())?;
    // Before the region, which is watched from its first moment on, and never serves a peer that is not allowed.
    set_options(managed, config, &spec)?;
    managed.inspector.add_region(&spec.settings()).map_err(|error| error.to_string())?;
    tracing::info!("{spec} was added");
    config.regions = regions;
    Ok(())
}

/// Removes a region from the running target and its configuration.
pub fn remove_from(managed: &Managed, config: &mut Config, name: &str, force: bool) -> Result<(), String> {
    managed.inspector.remove_region(name, force).map_err(|error| error.to_string())?;
    tracing::info!("region {} was removed", name.escape_debug());
    config.regions.retain(|region| region.name != name);
    // Options without a region have no effect, and a region that is added under the name gets its own.
    let _ = tell(managed, config, RegionRequest::Forget { region: name.to_owned() });
    Ok(())
}

/// Changes what the region service must know about a region, in the running target and its configuration.
pub fn change_options(managed: &Managed, config: &mut Config, spec: RegionSpec) -> Result<(), String> {
    set_options(managed, config, &spec)?;
    if let Some(region) = config.regions.iter_mut().find(|region| region.name == spec.name) {
        *region = spec;
    }
    Ok(())
}

/// Gives the region service what it must know about a region.
fn set_options(managed: &Managed, config: &Config, spec: &RegionSpec) -> Result<(), String> {
    tell(managed, config, RegionRequest::Set { region: spec.name.clone(), options: RegionOptions::of(spec) })
}

fn tell(managed: &Managed, config: &Config, request: RegionRequest) -> Result<(), String> {
    if !config.services.iter().any(|service| service == REGION_SERVICE) {
        return Ok(());
    }
    let answers = managed.inspector.manage_service(REGION_SERVICE, &request.text());
    answers.map(|_| ()).map_err(|error| error.to_string())
}
