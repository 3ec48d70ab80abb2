//! Makes the instances of the service.

use std::sync::Arc;

use rxe_nvmf::controller::TargetConfig;
use rxe_nvmf::subsystem::Limits;
use rxe_proto::mem::Allocator;
use rxe_service::{Listen, Service, ServiceFactory};

use super::disks::Disks;
use super::instance::Nvmf;
use super::shared::Shared;
use crate::config::nvmf::NvmfConfig;
use crate::services::metrics::MetricsRegistry;

/// The name that users select the service by.
pub const NAME: &str = "nvmf";
/// The port of discovery, besides the service's own.
const DISCOVERY_PORT: u16 = 8009;

struct Factory {
    config: NvmfConfig,
    shared: Arc<Shared>,
    registry: MetricsRegistry,
}

/// The factory, whose disks `disks` then has for management; `None` without subsystems.
pub fn factory(config: &NvmfConfig, registry: &MetricsRegistry, disks: &Disks) -> Option<Box<dyn ServiceFactory>> {
    if config.subsystems.is_empty() {
        return None;
    }
    let NvmfConfig { controllers, controllers_per_host, .. } = *config;
    let limits = Limits { controllers, controllers_per_host, ..Limits::default() };
    let shared = Arc::new(Shared::new(TargetConfig { limits, ..TargetConfig::default() }));
    disks.set(&shared);
    Some(Box::new(Factory { config: config.clone(), shared, registry: registry.clone() }))
}

impl ServiceFactory for Factory {
    fn name(&self) -> &'static str {
        NAME
    }

    fn listen(&self) -> Vec<Listen> {
        let own = Listen::cm(self.config.port);
        if self.config.port == DISCOVERY_PORT { vec![own] } else { vec![own, Listen::cm(DISCOVERY_PORT)] }
    }

    fn prepare(&self, allocator: &dyn Allocator) -> Result<(), String> {
        self.shared.open_all(&self.config, allocator).map_err(|error| format!("[service.nvmf] {error}"))
    }

    fn create(&self, _worker: usize) -> Box<dyn Service> {
        Box::new(Nvmf::new(Arc::clone(&self.shared), &self.config, self.registry.open(NAME)))
    }
}
