//! What services count, for the summary at the end.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rxe_proto::counters;

counters! {
    /// What one service did on one worker.
    pub struct Tally {
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
        /// Buffers that could not be had; each cost its client the connection.
        buffer_failures,
    }
}

/// A tally and the name of its service.
type Entry = (&'static str, Arc<Tally>);

/// The tallies of all services on all workers. Clones share the book.
#[derive(Clone, Default, Debug)]
pub struct Book(Arc<Mutex<Vec<Entry>>>);

impl Book {
    /// A new tally of the service `name`, for one worker.
    pub fn open(&self, name: &'static str) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((name, Arc::clone(&tally)));
        tally
    }
}

/// One line per service that has counted something, summed over the workers.
impl fmt::Display for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sums: BTreeMap<&str, Vec<(&str, u64)>> = BTreeMap::new();
        for (name, tally) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let sum = sums.entry(name).or_insert_with(|| tally.iter().map(|(counter, _)| (counter, 0)).collect());
            for ((_, total), (_, value)) in sum.iter_mut().zip(tally.iter()) {
                *total += value;
            }
        }
        for (name, sum) in sums {
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
        first.connections.inc();
        second.connections.add(2);
        second.malformed.inc();
        assert_eq!(book.to_string(), "service rping: connections=3 malformed=1\n");
    }
}
