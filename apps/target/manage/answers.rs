//! What `rxe-ctl` is answered.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use rxe_inspect::protocol::{MAX_REQUEST, Reply, Request};
use rxe_inspect::report::{Counter, Service};

use super::{Managed, faults};
use crate::config::LogLevel;

/// Answers one client until it goes.
pub fn converse(stream: UnixStream, managed: &Managed) {
    let Ok(reading) = stream.try_clone() else { return };
    let (mut reading, mut writing) = (BufReader::new(reading), stream);
    let mut line = String::new();
    loop {
        line.clear();
        match reading.by_ref().take(MAX_REQUEST).read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let reply = match serde_json::from_str(&line) {
            Ok(request) => answer(managed, request),
            Err(error) => Reply::Error(format!(
                "the request makes no sense ({error}): rxe-ctl and rxe-target must be of one version"
            )),
        };
        let Ok(mut text) = serde_json::to_string(&reply) else { return };
        text.push('\n');
        if writing.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

fn answer(managed: &Managed, request: Request) -> Reply {
    let inspector = &managed.inspector;
    match request {
        Request::Device => Reply::of(Ok(managed.device())),
        Request::Resources => Reply::of(said(inspector.resources())),
        Request::Qps { start } => Reply::of(said(inspector.qps(start))),
        Request::Qp { qpn } => Reply::of(said(inspector.qp(qpn))),
        Request::Mrs { start } => Reply::of(said(inspector.mrs(start))),
        Request::Counters => Reply::of(Ok(inspector.counters())),
        Request::Services => Reply::of(Ok(services(managed))),
        Request::Disconnect { qpn } => {
            let done = inspector.disconnect(qpn);
            if done.is_ok() {
                tracing::info!("queue pair {qpn:#x} is ended by rxe-ctl");
            }
            Reply::of(said(done))
        }
        Request::Faults => Reply::of(Ok(inspector.faults())),
        Request::AddFault { rule } => Reply::of(faults::add(managed, &rule)),
        Request::RemoveFault { id } => Reply::of(faults::remove(managed, id)),
        Request::ClearFaults => Reply::of(faults::clear(managed)),
        Request::SetLog { level } => Reply::of(set_log(managed, &level)),
        Request::CaptureStart { settings } => {
            Reply::of(said(managed.capture.start(settings).and_then(|()| managed.capture.status())))
        }
        Request::CaptureStop => Reply::of(said(managed.capture.stop())),
        Request::CaptureStatus => Reply::of(said(managed.capture.status())),
    }
}

fn said<T>(result: Result<T, impl ToString>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn set_log(managed: &Managed, level: &str) -> Result<(), String> {
    let LogLevel(level) = said(level.parse())?;
    if managed.log.set(level) { Ok(()) } else { Err("the target has no log any more".to_owned()) }
}

/// The services with their counters.
pub fn services(managed: &Managed) -> Vec<Service> {
    let mut services = managed.inspector.services();
    for (name, sums) in managed.book.sums() {
        let counters: Vec<Counter> =
            sums.into_iter().map(|(name, value)| Counter { name: name.to_owned(), value }).collect();
        match services.iter_mut().find(|service| service.name == name) {
            Some(service) => service.counters = counters,
            // What belongs to none of them, as clients of a shared port that said nothing, when there was some.
            None if counters.iter().any(|counter| counter.value > 0) => {
                services.push(Service { name: name.to_owned(), listens: Vec::new(), counters });
            }
            None => {}
        }
    }
    services
}
