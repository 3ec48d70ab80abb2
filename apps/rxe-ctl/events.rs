//! The verb `events`: what happens in the target, as it happens.

use std::io::{self, Write};

use rxe::CliError;
use rxe::signals::Signals;
use rxe_inspect::client::Client;
use rxe_inspect::event::{Event, EventKind, EventQp};
use rxe_inspect::protocol::Request;
use rxe_inspect::report::Device;

/// Prints events until there were `count`, the user ends the program, or the target ends, which is an error.
pub fn run(mut target: Client, json: bool, count: Option<u64>) -> Result<(), CliError> {
    // The stream may be silent for ever, so the signal ends the process.
    Signals::install()?.stop(|| std::process::exit(0));
    let device: Device = target.ask(&Request::Device)?;
    let mut events = target.events()?;
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "rxe-ctl: events of {}; Ctrl-C ends", device.name);
    let mut left = count;
    while left != Some(0) {
        let Some(event) = events.next_event()? else {
            return Err(CliError::failed(format!("the target {} has ended", device.file_prefix)));
        };
        let line = if json { serde_json::to_string(&event).unwrap_or_default() } else { text(&event) };
        let mut stdout = io::stdout().lock();
        if writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_err() {
            // Closed, as by `head`.
            return Ok(());
        }
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// One line: the time, what happened, then names and values as in other verbs; a sentence comes last.
fn text(event: &Event) -> String {
    let what = match &event.kind {
        EventKind::Connected { qp } => format!("connected {}", queue_pair(qp)),
        EventKind::Disconnected { qp, reason, after_ms } => {
            format!("disconnected {} after_ms {after_ms}: {reason}", queue_pair(qp))
        }
        EventKind::QpError { qp, cause, text } => format!("qp-error {} cause {cause}: {text}", queue_pair(qp)),
        EventKind::Link { port, up: true, .. } => format!("link port {port} state ACTIVE"),
        EventKind::Link { port, up: false, reason } => {
            let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("link port {port} state DOWN{reason}")
        }
        EventKind::AddressAdded { port, address } => format!("address-added port {port} address {address}"),
        EventKind::AddressRemoved { port, address } => format!("address-removed port {port} address {address}"),
        EventKind::AddressConflict { port, address, mac, frames } => {
            format!("address-conflict port {port} address {address} mac {mac} frames {frames}")
        }
        EventKind::CaptureStarted { file } => format!("capture-started file {}", file.display()),
        EventKind::CaptureStopped { file, frames, reason } => {
            format!("capture-stopped file {} frames {frames}: {reason}", file.display())
        }
        EventKind::FaultAdded { id, rule } => format!("fault-added id {id}: {rule}"),
        EventKind::FaultRemoved { id, rule } => format!("fault-removed id {id}: {rule}"),
        EventKind::Lost { events } => format!("lost {events} events: they came faster than they were read"),
    };
    // A file's name may have any character, and the line must stay one.
    let what: String = what.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    format!("{} {what}", event.time)
}

fn queue_pair(qp: &EventQp) -> String {
    let EventQp { lqpn, service, peer, rqpn } = qp;
    let mut text = format!("lqpn {lqpn:#x}");
    for (name, value) in
        [("service", service.clone()), ("peer", peer.clone()), ("rqpn", rqpn.map(|qpn| format!("{qpn:#x}")))]
    {
        if let Some(value) = value {
            text += &format!(" {name} {value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let qp = EventQp {
            lqpn: 0x11,
            service: Some("rping".to_owned()),
            peer: Some("10.0.0.2:5".to_owned()),
            rqpn: Some(0x12),
        };
        let shown = |kind| text(&Event { time: "T".to_owned(), kind });
        assert_eq!(
            shown(EventKind::Connected { qp: qp.clone() }),
            "T connected lqpn 0x11 service rping peer 10.0.0.2:5 rqpn 0x12"
        );
        let bare = EventQp { service: None, peer: None, rqpn: None, ..qp };
        assert_eq!(
            shown(EventKind::Disconnected { qp: bare, reason: "the peer disconnected".to_owned(), after_ms: 7 }),
            "T disconnected lqpn 0x11 after_ms 7: the peer disconnected"
        );
        assert_eq!(shown(EventKind::Link { port: 1, up: true, reason: None }), "T link port 1 state ACTIVE");
        assert_eq!(shown(EventKind::CaptureStarted { file: "/tmp/a\nb".into() }), "T capture-started file /tmp/a?b");
        assert_eq!(shown(EventKind::Lost { events: 3 }), "T lost 3 events: they came faster than they were read");
    }
}
