//! Answers to `rxe-ctl`'s requests.

use std::time::Duration;

use rxe_inspect::protocol::{Reply, Request};
use rxe_inspect::report::{Counter, Service};

use super::{Managed, addresses, admission, digest, dump, faults, nvmf, regions, reload};
use crate::config::LogLevel;

/// The reply to a request. Events are sent by [`events::send_all`](super::events::send_all).
pub fn answer(managed: &Managed, request: Request) -> Reply {
    let inspector = &managed.inspector;
    match request {
        Request::Device => Reply::of(Ok(managed.device())),
        Request::Resources => Reply::of(text_error(inspector.resources())),
        Request::Qps { start } => Reply::of(text_error(inspector.qps(start))),
        Request::Qp { qpn } => Reply::of(text_error(inspector.qp(qpn))),
        Request::Mrs { start } => Reply::of(text_error(inspector.mrs(start))),
        Request::Digest { name, offset, length } => Reply::of(digest::of(inspector, &name, offset, length)),
        Request::Regions => Reply::of(regions::list(managed)),
        Request::AddRegion { region } => Reply::of(regions::add(managed, &region)),
        Request::RemoveRegion { name, force } => Reply::of(regions::remove(managed, &name, force)),
        Request::Addresses => Reply::of(addresses::list(managed)),
        Request::AddAddress { address } => Reply::of(addresses::add(managed, &address)),
        Request::RemoveAddress { address, force } => Reply::of(addresses::remove(managed, &address, force)),
        Request::Config => Reply::of(dump::dump(managed)),
        Request::Reload => Reply::of(reload::reload(managed)),
        Request::Counters => Reply::of(Ok(managed.counters())),
        Request::Latency => Reply::of(Ok(managed.latency())),
        Request::Services => Reply::of(Ok(services(managed))),
        Request::StopService { name, force } => Reply::of(admission::stop(managed, &name, force)),
        Request::StartService { name } => Reply::of(admission::start(managed, &name)),
        Request::Peers => Reply::of(Ok(admission::peers(managed))),
        Request::SetPeers { of, peers } => Reply::of(admission::set_peers(managed, &of, &peers)),
        Request::Disconnect { qpn } => {
            let done = inspector.disconnect(qpn);
            if done.is_ok() {
                tracing::info!("rxe-ctl disconnected queue pair {qpn:#x}");
            }
            Reply::of(text_error(done))
        }
        Request::Drain { seconds } => {
            // Longer than any time that matters, and no overflow.
            let patience = Duration::from_secs(seconds.min(1 << 30));
            Reply::of(managed.drain.start(inspector, patience))
        }
        Request::Faults => Reply::of(Ok(inspector.faults())),
        Request::AddFault { rule } => Reply::of(faults::add(managed, &rule)),
        Request::RemoveFault { id } => Reply::of(faults::remove(managed, id)),
        Request::ClearFaults => Reply::of(faults::clear(managed)),
        Request::SetLog { level } => Reply::of(set_log(managed, &level)),
        Request::CaptureStart { settings } => {
            Reply::of(text_error(managed.capture.start(settings).and_then(|()| managed.capture.status())))
        }
        Request::CaptureStop => Reply::of(text_error(managed.capture.stop())),
        Request::CaptureStatus => Reply::of(text_error(managed.capture.status())),
        Request::Nvmf(request) => nvmf::answer(managed, request),
        Request::Events => Reply::Error("events are no answer".to_owned()),
    }
}

fn text_error<T>(result: Result<T, impl ToString>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn set_log(managed: &Managed, level: &str) -> Result<(), String> {
    let LogLevel(level) = text_error(level.parse())?;
    managed.set_log(&mut managed.config.lock(), level)
}

/// The services with their counters.
fn services(managed: &Managed) -> Vec<Service> {
    let mut services = managed.inspector.services();
    for (name, sums) in managed.registry.sums() {
        let counters: Vec<Counter> =
            sums.into_iter().map(|(name, value)| Counter { name: name.to_owned(), value }).collect();
        match services.iter_mut().find(|service| service.name == name) {
            Some(service) => service.counters = counters,
            // Counters that belong to no service, for example of silent clients of a shared port: listed if above zero.
            None if counters.iter().any(|counter| counter.value > 0) => {
                services.push(Service { name: name.to_owned(), listens: Vec::new(), stopped: false, counters });
            }
            None => {}
        }
    }
    services
}
