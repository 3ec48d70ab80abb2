//! The stream of events for `rxe-ctl events`, and its counters.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use rxe_adapter::manage::{EventStats, Events};
use rxe_inspect::protocol::Reply;
use rxe_inspect::report::Counter;
use rxe_inspect::server::Client;

/// Interval between two looks for events.
const INTERVAL: Duration = Duration::from_millis(20);

/// Names and descriptions of the counters.
const DESCRIPTIONS: [(&str, &str); 3] = [
    ("events_sent", "Events sent to clients of rxe-ctl events, each counted once per client."),
    (
        "events_lost",
        "Events that a client of rxe-ctl events did not get, because it read too slowly or there were too many at once.",
    ),
    ("events_refused", "Requests for events that were refused, because too many clients received them."),
];

/// The counters.
pub fn counters(stats: EventStats) -> impl Iterator<Item = Counter> {
    let values = [stats.sent, stats.lost, stats.refused];
    DESCRIPTIONS.into_iter().zip(values).map(|((name, _), value)| Counter { name: name.to_owned(), value })
}

/// Description of the counter `name`.
pub fn describe(name: &str) -> Option<&'static str> {
    DESCRIPTIONS.iter().find(|(counter, _)| *counter == name).map(|(_, text)| *text)
}

/// Sends events to `client` until it closes the connection. A client that does not read blocks only this thread: its events
/// wait in its queue, and are lost when that is full.
pub fn send_all(mut client: Client<UnixStream>, events: &Events) {
    let subscription = events.subscribe();
    let reply = Reply::of(subscription.as_ref().map(|_| ()).map_err(ToString::to_string));
    let Some(line) = line(&reply) else { return };
    let (Ok(()), Ok(subscription)) = (client.answer(line.as_bytes()), subscription) else { return };
    client.start_stream();
    loop {
        let lines: String =
            subscription.take().into_iter().filter_map(|event| self::line(&Reply::Event(event))).collect();
        let open = if lines.is_empty() { client.is_silent(INTERVAL) } else { client.stream(lines.as_bytes()).is_ok() };
        if !open {
            return;
        }
    }
}

fn line(reply: &Reply) -> Option<String> {
    serde_json::to_string(reply).ok().map(|text| text + "\n")
}
