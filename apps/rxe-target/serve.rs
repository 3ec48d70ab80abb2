//! Runs the target: start, service, end.

use rxe::CliError;
use rxe::adapter::Adapter;
use rxe::signals::Signals;
use rxe_adapter::output;
use rxe_adapter::settings::{PortSettings, RuntimeConfig};
use rxe_adapter::worker::IdlePolicy;
use rxe_service::TrafficClassConfig;

use crate::config::{Config, FilePrefix, Idle, RegionSpec, Source, fault_text};
use crate::manage::{Drain, HangUp, Managed, Management, Running, RuntimeFolder};
use crate::services::Chosen;
use crate::{log, services};

/// Runs the target until a signal arrives. Prints the ready line and, at the end, the counters to standard output. With a
/// `source` SIGHUP reloads it.
pub fn serve(config: Config, source: Option<Source>) -> Result<(), CliError> {
    // Before there are other threads, one of which would get the signal.
    let hang_up = source.is_some().then(HangUp::block).transpose()?;
    let log = log::start(config.log, config.log_format);
    if let Some(faults) = fault_text(&config.faults) {
        tracing::warn!("fault injection is on: {faults}");
    }
    let Chosen { factories, registry, disks } = services::factories(&config)?;
    let signals = Signals::install()?;
    let management = Management::prepare(config.metrics.as_ref(), hang_up)?;
    let prefix = file_prefix(&config)?;
    let folder = RuntimeFolder::take(&prefix)?;
    let runtime = Adapter::new(config.carrier(), runtime_config(&config), factories)?;
    let stop = runtime.stop_handle();
    let drain = Drain::new(stop.clone());
    signals.stop(move || stop.stop());
    let inspector = runtime.inspector();
    let capture = runtime.capture();
    if let Some(settings) = &config.capture {
        management.capture(capture.clone(), settings.clone())?;
    }
    let clients = management.stats();
    let (registry_of_all, config) = (registry.clone(), Running::new(config, source));
    let managed = Managed { inspector, drain, capture, registry: registry_of_all, disks, log, prefix, clients, config };
    let _managed = management.start(managed, folder);
    output::stdout().enqueue(format!("{}\n", runtime.ready_line()).as_bytes());
    // For systemd (Type=notify).
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::warn!("systemd could not be notified that the target is ready: {error}");
    }
    let summary = runtime.run()?;
    output::stdout().enqueue(format!("{summary}{registry}").as_bytes());
    Ok(())
}

/// The target's name on this machine.
fn file_prefix(config: &Config) -> Result<String, CliError> {
    match &config.file_prefix {
        Some(FilePrefix(name)) => Ok(name.clone()),
        None => rxe::adapter::eal_file_prefix(&config.eal_args),
    }
}

fn runtime_config(config: &Config) -> RuntimeConfig {
    let ports = config.ports.iter().map(|port| PortSettings {
        addresses: port.addresses.clone(),
        gateways: port.gateways.clone(),
        routes: port.routes.clone(),
        restrictions: port.restrictions.clone(),
        vlan: port.vlan,
        mtu: port.mtu,
    });
    RuntimeConfig {
        ports: ports.collect(),
        regions: config.regions.iter().map(RegionSpec::settings).collect(),
        service_peers: (config.service_peers.iter()).map(|(name, peers)| ((*name).to_owned(), peers.clone())).collect(),
        idle: match config.idle {
            Idle::Spin => IdlePolicy::Spin,
            Idle::Pause => IdlePolicy::Pause,
            Idle::Sleep(time) => IdlePolicy::Sleep(time),
        },
        max_connections: config.limits.connections as usize,
        max_connections_per_peer: config.limits.connections_per_address as usize,
        max_pending: config.limits.pending as usize,
        max_pending_per_peer: config.limits.pending_per_address as usize,
        requests_per_second: config.limits.requests_per_second.unwrap_or(0),
        engine: config.engine.clone(),
        faults: config.faults.clone(),
        traffic_class: TrafficClassConfig { value: config.traffic_class, pcp: config.pcp },
        ..RuntimeConfig::default()
    }
}
