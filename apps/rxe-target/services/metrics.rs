//! Counters of services, for the summary at the end, and log lines about clients that are not served.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use rxe_proto::cm::ConnectRequest;
use rxe_proto::wire::cm::RejReason;
use rxe_proto::{Duration, Instant, counters};
use rxe_service::{Decision, EndReason, EventLog};

counters! {
    /// Counters of one service on one worker.
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
        /// Connections refused because their address has its share of those that have not logged in.
        share_refused,
        /// Requests that had to wait because their client uses its share of the memory for data, or others have all of it.
        share_waits,
        /// Lines about clients that came too fast to be logged.
        lines_withheld,
    }
}

/// The counters of one service on one worker. A client that is not served, or no more, is counted by the reason, and a
/// log line has the client, its request and the reason, limited in rate.
#[derive(Debug)]
pub struct ServiceMetrics {
    service: &'static str,
    counts: Arc<Counts>,
    log: RefCell<EventLog>,
}

impl Deref for ServiceMetrics {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        &self.counts
    }
}

impl ServiceMetrics {
    /// Whether a line about a client may be written now; one that may not is counted.
    pub fn admits(&self, now: Instant) -> bool {
        let admitted = self.log.borrow_mut().admits(now);
        if !admitted {
            self.lines_withheld.inc();
        }
        admitted
    }

    /// The request `asked` of `client` is refused.
    pub fn refuse(&self, now: Instant, client: impl fmt::Display, asked: impl fmt::Display, why: impl fmt::Display) {
        self.refused.inc();
        if self.admits(now) {
            tracing::warn!(%client, "{}: {asked} refused: {why}", self.service);
        }
    }

    /// Refuses a connection: the peer's CM gets `reason`, and its program the text.
    pub fn reject(
        &self,
        now: Instant,
        request: &ConnectRequest,
        reason: RejReason,
        why: impl fmt::Display,
    ) -> Decision {
        self.refuse(now, caller(request), "a connection", &why);
        Decision::Reject { reason, private_data: why.to_string().into_bytes() }
    }

    /// Gives up `client`, from which nothing came for `silence`.
    pub fn give_up(&self, now: Instant, client: impl fmt::Display, silence: Duration) {
        let seconds = silence.as_millis() / 1000;
        self.give_up_as(now, client, format_args!("nothing came from it for {seconds} s"));
    }

    /// The same where there is more to say of the silence.
    pub fn give_up_as(&self, now: Instant, client: impl fmt::Display, why: impl fmt::Display) {
        self.idle_ended.inc();
        if self.admits(now) {
            tracing::info!(%client, "{}: client given up: {why}", self.service);
        }
    }

    /// Gives up `client` because of an invalid message.
    pub fn nonsense(&self, now: Instant, client: impl fmt::Display, what: impl fmt::Display) {
        self.malformed.inc();
        if self.admits(now) {
            tracing::warn!(%client, "{}: client turned away: {what}", self.service);
        }
    }

    /// Gives up `client` because a work request for it was refused.
    pub fn fail(&self, now: Instant, client: impl fmt::Display, why: impl fmt::Display) {
        self.post_failures.inc();
        if self.admits(now) {
            tracing::warn!(%client, "{}: client turned away: a work request was not taken: {why}", self.service);
        }
    }

    /// The connection of `client` is over.
    pub fn gone(&self, now: Instant, client: impl fmt::Display, reason: EndReason) {
        match reason {
            // The runtime counts it.
            EndReason::QueuePair(cause) => {
                if self.admits(now) {
                    tracing::info!(%client, %cause, "{}: client lost: its queue pair is in error", self.service);
                }
            }
            _ => tracing::debug!(%client, %reason, "{}: client gone", self.service),
        }
    }

    /// Gives up `client` because there is no buffer for it.
    pub fn no_buffer(&self, now: Instant, client: impl fmt::Display, asked: impl fmt::Display, why: impl fmt::Display) {
        self.buffer_failures.inc();
        if self.admits(now) {
            tracing::warn!(%client, "{}: client turned away: no buffer for {asked}: {why}", self.service);
        }
    }
}

/// The address and port of the peer that requests a connection.
pub fn caller(request: &ConnectRequest) -> SocketAddr {
    request.source.into()
}

/// Name and counters of one service on one worker.
type Page = (&'static str, Arc<Counts>);

/// The counters of all services on all workers. Clones share the counters.
#[derive(Clone, Default, Debug)]
pub struct MetricsRegistry(Arc<Mutex<Vec<Page>>>);

impl MetricsRegistry {
    /// Registers the metrics of `service` on one worker.
    pub fn open(&self, service: &'static str) -> ServiceMetrics {
        let counts = Arc::<Counts>::default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((service, Arc::clone(&counts)));
        ServiceMetrics { service, counts, log: RefCell::new(EventLog::new(format!("events of clients of {service}"))) }
    }
}

/// Description of the counter `name` of a service, in a sentence.
pub fn describe(name: &str) -> Option<&'static str> {
    Counts::DESCRIPTIONS.iter().find(|(counter, _)| *counter == name).map(|(_, text)| *text)
}

/// The names of the counters of a service.
pub fn names() -> impl Iterator<Item = &'static str> {
    Counts::DESCRIPTIONS.iter().map(|(counter, _)| *counter)
}

impl MetricsRegistry {
    /// The counters of each service, summed over the workers.
    pub fn sums(&self) -> BTreeMap<&'static str, Vec<(&'static str, u64)>> {
        let mut sums: BTreeMap<&str, Vec<(&str, u64)>> = BTreeMap::new();
        for (service, counts) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let sum = sums.entry(service).or_insert_with(|| counts.iter().map(|(counter, _)| (counter, 0)).collect());
            for ((_, total), (_, value)) in sum.iter_mut().zip(counts.iter()) {
                *total += value;
            }
        }
        sums
    }
}

/// One line per service that has counted something, summed over the workers.
impl fmt::Display for MetricsRegistry {
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

    const CLIENT: &str = "10.0.0.2:7";

    #[test]
    fn workers_are_summed_and_silence_stays_out() {
        let registry = MetricsRegistry::default();
        let (first, second, _idle) = (registry.open("rping"), registry.open("rping"), registry.open("region"));
        let now = Instant::ZERO;
        first.give_up(now, CLIENT, Duration::from_secs(9));
        first.refuse(now, CLIENT, "a connection", "no queue pair");
        second.nonsense(now, CLIENT, "it sent no advert");
        first.connections.inc();
        second.connections.add(2);
        second.malformed.inc();
        assert_eq!(registry.to_string(), "service rping: connections=3 refused=1 malformed=2 idle_ended=1\n");
    }

    #[test]
    fn a_flood_of_refusals_is_counted_whole_and_not_logged_whole() {
        let registry = MetricsRegistry::default();
        let (flooded, other) = (registry.open("rping"), registry.open("region"));
        let now = Instant::ZERO;
        for _ in 0..50 {
            flooded.refuse(now, CLIENT, "a connection", "no queue pair");
            flooded.nonsense(now, CLIENT, "it sent no advert");
        }
        // The other service's clients, and the next second's, have their own lines.
        other.refuse(now, CLIENT, "a connection", "unknown region");
        flooded.fail(now + Duration::from_secs(1), CLIENT, "the queue is full");
        assert_eq!(
            registry.to_string(),
            "service region: refused=1\n\
             service rping: refused=50 malformed=50 post_failures=1 lines_withheld=80\n"
        );
    }
}
