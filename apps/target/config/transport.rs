//! The section `[transport]`: what the queue pairs offer and do.

use rxe_dpdk::rxe_proto::transport::EngineConfig;
use serde::Deserialize;

use super::fault::Span;
use super::values::Text;

/// What the file says of the transport; what it does not say is left as it is.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TransportSection {
    flush: Option<bool>,
    atomic_write: Option<bool>,
    credits: Option<bool>,
    cnp_interval: Option<Text<Span>>,
}

impl TransportSection {
    /// The settings of the workers' engines.
    pub fn engine(&self) -> EngineConfig {
        let default = EngineConfig::default();
        EngineConfig {
            flush: self.flush.unwrap_or(default.flush),
            atomic_write: self.atomic_write.unwrap_or(default.atomic_write),
            credits: self.credits.unwrap_or(default.credits),
            cnp_interval: self.cnp_interval.as_ref().map_or(default.cnp_interval, |span| span.0.0),
            ..default
        }
    }
}
