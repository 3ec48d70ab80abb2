//! The serving end of the [protocol](crate::protocol).

mod clients;

use crate::protocol::{Reply, Request, RequestReader};

pub use clients::{Client, ClientStats, Clients, DESCRIPTIONS, Deadlines, Stream};

/// Serves one client until it disconnects or misses a deadline. `answer` has the reply to each request; a client that wants events
/// is passed to `send_events`.
pub fn converse<S: Stream>(
    mut client: Client<S>,
    answer: impl Fn(Request) -> Reply,
    send_events: impl FnOnce(Client<S>),
) {
    let mut requests = RequestReader::default();
    let mut part = [0; 2048];
    loop {
        let (reply, more) = match requests.next_request() {
            Ok(Some(request)) => {
                client.answering();
                if request == Ok(Request::Events) {
                    return send_events(client);
                }
                (request.map_or_else(Reply::Error, &answer), true)
            }
            Ok(None) => match client.read(&mut part) {
                Ok(0) | Err(_) => return,
                Ok(n) => {
                    requests.push(&part[..n]);
                    continue;
                }
            },
            Err(too_long) => {
                client.answering();
                (Reply::Error(too_long.to_string()), false)
            }
        };
        let Ok(mut text) = serde_json::to_string(&reply) else { return };
        text.push('\n');
        if client.answer(text.as_bytes()).is_err() || !more {
            return;
        }
    }
}
