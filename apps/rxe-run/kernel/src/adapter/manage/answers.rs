//! Answers to the requests of `rxe-ctl`.

use std::collections::BTreeMap;

use rxe_adapter::manage::{Capture, Inspector};
use rxe_adapter::texts::fault_rule;
use rxe_inspect::protocol::{Reply, Request};
use rxe_inspect::report::{Device, Service};
use rxe_inspect::server::Client;

use super::connection::Connection;
use crate::instance::Info;

/// The managed adapter, as the requests see it.
pub struct Managed {
    /// The adapter.
    pub inspector: Inspector,
    /// Captures of the adapter.
    pub capture: Capture,
    /// Description of the process that has the adapter.
    pub info: Info,
}

/// The reply to a request.
pub fn answer(managed: &Managed, request: Request) -> Reply {
    let Managed { inspector, capture, info } = managed;
    match request {
        Request::Device => Reply::of(Ok(Device {
            name: info.device.clone(),
            file_prefix: info.pid.to_string(),
            fw_ver: env!("CARGO_PKG_VERSION").to_owned(),
            pid: info.pid,
            ..inspector.device()
        })),
        Request::Resources => Reply::of(text_error(inspector.resources())),
        Request::Qps { start } => Reply::of(text_error(inspector.qps(start))),
        Request::Qp { qpn } => Reply::of(text_error(inspector.qp(qpn))),
        Request::Mrs { start } => Reply::of(text_error(inspector.mrs(start))),
        Request::Counters => Reply::of(Ok(inspector.counters())),
        Request::Latency => Reply::of(Ok(inspector.latency())),
        Request::Services => Reply::of(Ok(Vec::<Service>::new())),
        Request::Disconnect { qpn } => Reply::of(text_error(inspector.disconnect(qpn))),
        Request::Faults => Reply::of(Ok(inspector.faults())),
        Request::AddFault { rule } => Reply::of(add_fault(inspector, &rule)),
        Request::RemoveFault { id } => Reply::of(text_error(inspector.remove_fault(id))),
        Request::ClearFaults => Reply::of(text_error(inspector.clear_faults())),
        Request::CaptureStart { settings } => {
            Reply::of(text_error(capture.start(settings).and_then(|()| capture.status())))
        }
        Request::CaptureStop => Reply::of(text_error(capture.stop())),
        Request::CaptureStatus => Reply::of(text_error(capture.status())),
        Request::Digest { .. }
        | Request::Regions
        | Request::AddRegion { .. }
        | Request::Nvmf(_)
        | Request::RemoveRegion { .. }
        | Request::Addresses
        | Request::AddAddress { .. }
        | Request::RemoveAddress { .. }
        | Request::Config
        | Request::Reload
        | Request::StopService { .. }
        | Request::StartService { .. }
        | Request::Peers
        | Request::SetPeers { .. }
        | Request::Drain { .. }
        | Request::SetLog { .. }
        | Request::Events => unavailable(),
    }
}

/// Answers a request for events: there are none.
pub fn refuse_events(mut client: Client<Connection>) {
    if let Ok(mut text) = serde_json::to_string(&unavailable()) {
        text.push('\n');
        // The client may have gone.
        let _ = client.answer(text.as_bytes());
    }
}

fn unavailable() -> Reply {
    Reply::Error(
        "a program under rxe-run has no services, named regions, configuration and events of its own: ask for its device, queue \
         pairs, memory, counters, faults and captures"
            .to_owned(),
    )
}

fn add_fault(inspector: &Inspector, keys: &BTreeMap<String, String>) -> Result<u32, String> {
    let rule = text_error(fault_rule(keys))?;
    let text = rule.to_string();
    let id = text_error(inspector.add_fault(rule))?;
    tracing::warn!("the fault {id} was added: {text}");
    Ok(id)
}

fn text_error<T>(result: Result<T, impl ToString>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}
