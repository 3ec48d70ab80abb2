//! The factory of most services here: it registers the metrics of each instance.

use rxe_service::{Listen, Service, ServiceFactory};

use super::metrics::{MetricsRegistry, ServiceMetrics};

/// Makes one instance.
type Create = Box<dyn Fn(ServiceMetrics) -> Box<dyn Service> + Send + Sync>;

/// Makes the instances of one service.
pub struct Factory {
    name: &'static str,
    listens: Vec<Listen>,
    create: Create,
    registry: MetricsRegistry,
}

impl Factory {
    /// The factory of the service `name`, whose instances listen to `listens` and count in `registry`.
    pub fn new(
        name: &'static str,
        listens: Vec<Listen>,
        create: impl Fn(ServiceMetrics) -> Box<dyn Service> + Send + Sync + 'static,
        registry: &MetricsRegistry,
    ) -> Factory {
        Factory { name, listens, create: Box::new(create), registry: registry.clone() }
    }
}

impl ServiceFactory for Factory {
    fn name(&self) -> &'static str {
        self.name
    }

    fn listen(&self) -> Vec<Listen> {
        self.listens.clone()
    }

    fn create(&self, _worker: usize) -> Box<dyn Service> {
        (self.create)(self.registry.open(self.name))
    }
}
