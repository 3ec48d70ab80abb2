//! From a configuration to a running target and its end.

use std::io::{self, IsTerminal};

use rxe_dpdk::eal::Eal;
use rxe_dpdk::worker::{IdlePolicy, Marking, PortSettings, RegionSettings, Runtime, RuntimeConfig};
use tracing::level_filters::LevelFilter;

use crate::config::{Config, Idle};
use crate::mistake::Mistake;
use crate::signals::Signals;
use crate::{print, services};

/// Serves until a signal comes. Standard output gets the ready line and, at the end, the counters.
pub fn serve(config: Config) -> Result<(), Mistake> {
    log_to_stderr(config.log);
    if let Some(faults) = &config.faults {
        tracing::warn!("faults are made on purpose: {faults}");
    }
    let (factories, book) = services::factories(&config)?;
    let signals = Signals::install()?;
    let eal = Eal::init(&config.eal_args).map_err(|error| Mistake::new(error.to_string()))?;
    let runtime =
        Runtime::new(eal, runtime_config(&config), factories).map_err(|error| Mistake::new(error.to_string()))?;
    signals.stop(runtime.stop_handle());
    print(&format!("{}\n", runtime.ready_line()));
    let summary = runtime.run().map_err(|error| Mistake::broken(error.to_string()))?;
    print(&format!("{summary}{book}"));
    Ok(())
}

fn log_to_stderr(level: LevelFilter) {
    let logger = tracing_subscriber::fmt()
        .compact()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_max_level(level);
    // It fails only where a logger is set already, which then gets the messages.
    let _ = logger.try_init();
}

fn runtime_config(config: &Config) -> RuntimeConfig {
    let ports = config.ports.iter().map(|port| PortSettings {
        addresses: port.addresses.clone(),
        gateways: port.gateways.clone(),
        routes: port.routes.clone(),
        vlan: port.vlan,
        mtu: port.mtu,
    });
    let regions = config.regions.iter().map(|region| RegionSettings {
        name: region.name.clone(),
        size: region.size,
        file: region.file.clone(),
    });
    RuntimeConfig {
        ports: ports.collect(),
        regions: regions.collect(),
        idle: match config.idle {
            Idle::Spin => IdlePolicy::Spin,
            Idle::Pause => IdlePolicy::Pause,
            Idle::Sleep(time) => IdlePolicy::Sleep(time),
        },
        engine: config.engine.clone(),
        faults: config.faults.clone(),
        marking: Marking { traffic_class: config.traffic_class, pcp: config.pcp },
        ..RuntimeConfig::default()
    }
}
