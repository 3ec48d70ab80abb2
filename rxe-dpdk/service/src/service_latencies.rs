//! Times of the operations of one service's queue pairs.

use std::sync::Arc;

use rxe_proto::transport::Latencies;

/// The times of one service's operations on one worker. Services that share a port are one, and have several names.
#[derive(Clone, Debug)]
pub struct ServiceLatencies(Vec<(&'static str, Arc<Latencies>)>);

impl ServiceLatencies {
    /// None counted yet. `names` is the name of the service's factory.
    pub(crate) fn new(names: &'static str) -> ServiceLatencies {
        ServiceLatencies(names.split(',').map(|name| (name, Arc::default())).collect())
    }

    /// Those of queue pairs that have been given `name`; the first ones if they have none.
    pub(crate) fn of(&self, name: Option<&str>) -> Option<&Arc<Latencies>> {
        let (_, latencies) = match name {
            Some(name) => self.0.iter().find(|(other, _)| *other == name)?,
            None => self.0.first()?,
        };
        Some(latencies)
    }

    /// By the name that users see.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Arc<Latencies>)> {
        self.0.iter().map(|(name, latencies)| (*name, latencies))
    }
}
