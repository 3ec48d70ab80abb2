//! The section `[transport]`: limits and timers of the queue pairs.

use std::time::Duration;

use rxe_adapter::texts::{Congestion, Span, Text};
use rxe_proto::transport::{EngineConfig, KeepAlive};
use serde::Deserialize;

/// The section as the file has it.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TransportSection {
    flush: Option<bool>,
    atomic_write: Option<bool>,
    credits: Option<bool>,
    cnp_interval: Option<Text<Span>>,
    congestion: Option<Text<Congestion>>,
    short_messages_first: Option<bool>,
    early_retransmission: Option<bool>,
    keep_alive: Option<u32>,
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
            congestion: self.congestion.as_ref().map_or(default.congestion, |text| text.0.0.clone()),
            short_messages_first: self.short_messages_first.unwrap_or(default.short_messages_first),
            early_retransmission: self.early_retransmission.unwrap_or(default.early_retransmission),
            keep_alive: self.keep_alive.map_or(default.keep_alive, keep_alive),
            ..default
        }
    }
}

/// After `idle` seconds without a packet the peer is probed six times within as long again; 0 disables probes.
fn keep_alive(idle: u32) -> Option<KeepAlive> {
    let probes = KeepAlive::default().probes;
    let idle = Duration::from_secs(idle.into());
    (idle > Duration::ZERO).then(|| KeepAlive { idle, interval: idle / u32::from(probes), probes })
}
