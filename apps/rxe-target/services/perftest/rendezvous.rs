//! State that workers share about one client.
//!
//! With `-R` a client has a control connection and others for its tests, each possibly on another worker. Its records arrive
//! on the control connection and name the queue pairs of the others. The lock is taken when connections are established or
//! closed, when records are exchanged, and by timers, never per packet.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rxe_proto::Instant;
use rxe_proto::verbs::Qpn;

use super::record::Record;

/// A test connection as both ends see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meeting {
    /// Our record for it.
    pub ours: Record,
    /// The client's latest record, with the time of its arrival.
    pub theirs: Option<(Record, Instant)>,
    /// Number of records received.
    pub records: u32,
}

/// Test connections by client and the client's queue pair.
#[derive(Default)]
struct Clients {
    meetings: HashMap<(IpAddr, Qpn), Meeting>,
    /// Time of the latest activity of a client's tests.
    heard: HashMap<IpAddr, Instant>,
}

/// The test connections of all clients, for all workers.
#[derive(Default)]
pub struct Rendezvous(Mutex<Clients>);

impl Rendezvous {
    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the accepted connection from the client's queue pair `qpn`; `ours` is its record.
    pub fn accepted(&self, client: IpAddr, qpn: Qpn, ours: Record) {
        self.clients().meetings.insert((client, qpn), Meeting { ours, theirs: None, records: 0 });
    }

    /// Removes a closed connection.
    pub fn closed(&self, client: IpAddr, qpn: Qpn) {
        let mut clients = self.clients();
        clients.meetings.remove(&(client, qpn));
        if !clients.meetings.keys().any(|(ip, _)| *ip == client) {
            clients.heard.remove(&client);
        }
    }

    /// Stores the client's record of its queue pair; returns ours, if there is a connection from that.
    pub fn record(&self, client: IpAddr, theirs: Record, now: Instant) -> Option<Record> {
        let mut clients = self.clients();
        let meeting = clients.meetings.get_mut(&(client, theirs.qpn))?;
        meeting.theirs = Some((theirs, now));
        meeting.records += 1;
        Some(meeting.ours)
    }

    /// The state of a connection.
    pub fn meeting(&self, client: IpAddr, qpn: Qpn) -> Option<Meeting> {
        self.clients().meetings.get(&(client, qpn)).copied()
    }

    /// Records activity of a client's tests at time `at`.
    pub fn touch(&self, client: IpAddr, at: Instant) {
        let mut clients = self.clients();
        let heard = clients.heard.entry(client).or_insert(at);
        *heard = at.max(*heard);
    }

    /// Time of the latest activity of a client's tests.
    pub fn heard(&self, client: IpAddr) -> Option<Instant> {
        self.clients().heard.get(&client).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn records_find_their_connection() {
        let place = Rendezvous::default();
        let (client, other) = (IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::from(Ipv4Addr::new(10, 0, 0, 2)));
        let (qpn, now) = (Qpn::new(0x11), Instant::from_nanos(5));
        let ours = Record { rkey: 7, ..Record::default() };
        let theirs = Record { qpn, rkey: 9, ..Record::default() };
        assert_eq!(place.record(client, theirs, now), None);
        place.accepted(client, qpn, ours);
        assert_eq!((place.record(client, theirs, now), place.record(other, theirs, now)), (Some(ours), None));
        assert_eq!(place.meeting(client, qpn), Some(Meeting { ours, theirs: Some((theirs, now)), records: 1 }));
        place.touch(client, now);
        place.touch(client, Instant::ZERO);
        assert_eq!((place.heard(client), place.heard(other)), (Some(now), None));
        place.closed(client, qpn);
        assert_eq!((place.meeting(client, qpn), place.heard(client)), (None, None));
    }
}
