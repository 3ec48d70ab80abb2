//! What services count, for the summary at the end, and say of clients that are not served.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use rxe_dpdk::service::{Decision, EndReason};
use rxe_proto::cm::ConnectRequest;
use rxe_proto::wire::cm::RejReason;
use rxe_proto::{Duration, counters};

counters! {
    /// What one service did on one worker.
    pub struct Counts {
        /// Connections accepted.
        connections,
        /// Connections refused, by our decision or for want of resources.
        refused,
        /// Requests of clients answered: pings, messages, buffers lent.
        exchanges,
        /// Messages that made no sense; each cost its client the connection.
        malformed,
        /// Work requests that the queue pair did not take; each cost its client the connection.
        post_failures,
        /// Clients given up because nothing came from them any more.
        idle_ended,
        /// Clients given up after a silence because their memory was wanted for others.
        evicted,
        /// Times that bytes had to wait because all memory for what clients have not read back was used.
        backlog_full,
        /// Datagrams of senders that have not asked for our queue pair.
        strangers,
        /// Datagrams taken from multicast groups.
        group_datagrams,
        /// Texts of watched regions that were shown.
        texts_shown,
        /// Buffers that could not be had; each cost its client the connection.
        buffer_failures,
    }
}

/// The counters of one service on one worker. A client that is not served, or no more, is counted by the reason, and a
/// line of the log says who it was, what it asked for and why not.
#[derive(Debug)]
pub struct Tally {
    service: &'static str,
    counts: Counts,
}

impl Deref for Tally {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        &self.counts
    }
}

impl Tally {
    /// What `client` asked for cannot be had.
    pub fn refuse(&self, client: impl fmt::Display, asked: impl fmt::Display, why: impl fmt::Display) {
        self.refused.inc();
        tracing::warn!(%client, "{}: {asked} refused: {why}", self.service);
    }

    /// The same of a connection: the peer's CM is told `reason`, and its program the text.
    pub fn reject(&self, request: &ConnectRequest, reason: RejReason, why: impl fmt::Display) -> Decision {
        self.refuse(caller(request), "a connection", &why);
        Decision::Reject { reason, private_data: why.to_string().into_bytes() }
    }

    /// Nothing came from `client` for `silence`: it has to go.
    pub fn give_up(&self, client: impl fmt::Display, silence: Duration) {
        self.idle_ended.inc();
        let seconds = silence.as_millis() / 1000;
        tracing::info!(%client, "{}: client given up: nothing came from it for {seconds} s", self.service);
    }

    /// What `client` said makes no sense, and it has to go.
    pub fn nonsense(&self, client: impl fmt::Display, what: impl fmt::Display) {
        self.malformed.inc();
        tracing::warn!(%client, "{}: client turned away: {what}", self.service);
    }

    /// A work request for `client` was not taken, and the client has to go.
    pub fn fail(&self, client: impl fmt::Display, why: impl fmt::Display) {
        self.post_failures.inc();
        tracing::warn!(%client, "{}: client turned away: a work request was not taken: {why}", self.service);
    }

    /// The connection of `client` is over.
    pub fn gone(&self, client: impl fmt::Display, reason: EndReason) {
        match reason {
            // The runtime counts it.
            EndReason::QueuePair(cause) => {
                tracing::info!(%client, %cause, "{}: client lost: its queue pair is in error", self.service);
            }
            _ => tracing::debug!(%client, ?reason, "{}: client gone", self.service),
        }
    }

    /// There is no buffer for `client`, and it has to go.
    pub fn no_buffer(&self, client: impl fmt::Display, asked: impl fmt::Display, why: impl fmt::Display) {
        self.buffer_failures.inc();
        tracing::warn!(%client, "{}: client turned away: no buffer for {asked}: {why}", self.service);
    }
}

/// Who asks for a connection.
pub fn caller(request: &ConnectRequest) -> SocketAddr {
    request.source.into()
}

/// The tallies of all services on all workers. Clones share the book.
#[derive(Clone, Default, Debug)]
pub struct Book(Arc<Mutex<Vec<Arc<Tally>>>>);

impl Book {
    /// A new tally of `service`, for one worker.
    pub fn open(&self, service: &'static str) -> Arc<Tally> {
        let tally = Arc::new(Tally { service, counts: Counts::default() });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&tally));
        tally
    }
}

/// What the counter `name` of a service counts, in a sentence.
pub fn describe(name: &str) -> Option<&'static str> {
    Counts::DESCRIPTIONS.iter().find(|(counter, _)| *counter == name).map(|(_, text)| *text)
}

impl Book {
    /// What each service has counted, summed over the workers.
    pub fn sums(&self) -> BTreeMap<&'static str, Vec<(&'static str, u64)>> {
        let mut sums: BTreeMap<&str, Vec<(&str, u64)>> = BTreeMap::new();
        for tally in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let sum =
                sums.entry(tally.service).or_insert_with(|| tally.iter().map(|(counter, _)| (counter, 0)).collect());
            for ((_, total), (_, value)) in sum.iter_mut().zip(tally.iter()) {
                *total += value;
            }
        }
        sums
    }
}

/// One line per service that has counted something, summed over the workers.
impl fmt::Display for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, sum) in self.sums() {
            if sum.iter().any(|(_, value)| *value > 0) {
                write!(f, "service {name}:")?;
                for (counter, value) in sum.iter().filter(|(_, value)| *value > 0) {
                    write!(f, " {counter}={value}")?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_summed_and_silence_stays_out() {
        let book = Book::default();
        let (first, second, _idle) = (book.open("rping"), book.open("rping"), book.open("region"));
        first.give_up("10.0.0.2:7", Duration::from_secs(9));
        first.refuse("10.0.0.2:7", "a connection", "no queue pair");
        second.nonsense("10.0.0.2:7", "it sent no advert");
        first.connections.inc();
        second.connections.add(2);
        second.malformed.inc();
        assert_eq!(book.to_string(), "service rping: connections=3 refused=1 malformed=2 idle_ended=1\n");
    }
}
