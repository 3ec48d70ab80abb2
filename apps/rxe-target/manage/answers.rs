//! What `rxe-ctl` is answered.

use std::os::unix::net::UnixStream;

use rxe_inspect::protocol::{MAX_REQUEST, Reply, Request};
use rxe_inspect::report::{Counter, Service};

use super::clients::Client;
use super::{Managed, faults};
use crate::config::LogLevel;

/// Answers one client until it goes, or takes too long.
pub fn converse(mut client: Client<UnixStream>, managed: &Managed) {
    let mut received = Vec::new();
    while let Some(line) = next_line(&mut client, &mut received) {
        client.answering();
        let (reply, more) = match line {
            Line::Complete(line) => (parsed(&line).map_or_else(Reply::Error, |request| answer(managed, request)), true),
            Line::TooLong => (Reply::Error(format!("the request is longer than {MAX_REQUEST} bytes")), false),
        };
        let Ok(mut text) = serde_json::to_string(&reply) else { return };
        text.push('\n');
        if client.answer(text.as_bytes()).is_err() || !more {
            return;
        }
    }
}

enum Line {
    Complete(Vec<u8>),
    TooLong,
}

/// The next line; what was received behind it stays in `received`. `None` when there is no more.
fn next_line(client: &mut Client<UnixStream>, received: &mut Vec<u8>) -> Option<Line> {
    let mut part = [0; 2048];
    let mut searched = 0;
    loop {
        if let Some(at) = received[searched..].iter().position(|byte| *byte == b'\n') {
            let rest = received.split_off(searched + at + 1);
            return Some(Line::Complete(std::mem::replace(received, rest)));
        }
        if received.len() as u64 > MAX_REQUEST {
            return Some(Line::TooLong);
        }
        searched = received.len();
        match client.read(&mut part) {
            Ok(0) | Err(_) => return None,
            Ok(n) => received.extend_from_slice(&part[..n]),
        }
    }
}

fn parsed(line: &[u8]) -> Result<Request, String> {
    serde_json::from_slice(line)
        .map_err(|error| format!("the request makes no sense ({error}): rxe-ctl and rxe-target must be of one version"))
}

fn answer(managed: &Managed, request: Request) -> Reply {
    let inspector = &managed.inspector;
    match request {
        Request::Device => Reply::of(Ok(managed.device())),
        Request::Resources => Reply::of(said(inspector.resources())),
        Request::Qps { start } => Reply::of(said(inspector.qps(start))),
        Request::Qp { qpn } => Reply::of(said(inspector.qp(qpn))),
        Request::Mrs { start } => Reply::of(said(inspector.mrs(start))),
        Request::Counters => Reply::of(Ok(managed.counters())),
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
