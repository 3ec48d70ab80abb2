//! Two connection managers, active and passive, over a link that loses, repeats, delays and reorders.

use std::collections::BTreeMap;

use crate::cm_support::{Addresses, CLIENT_GUID, CLIENT_IP, SERVER_GUID, SERVER_IP, connect_params, ms, path};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use rxe_proto::cm::{
    AcceptParams, Cm, CmConfig, CmEvent, ConnId, ConnState, ConnectParams, DisconnectReason, MadPath, ResolveParams,
    SidrReply,
};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::{CmTransport, RejReason, SidrStatus};
use rxe_proto::wire::mad::MAD_LEN;
use rxe_proto::wire::{PathMtu, Psn};
use rxe_proto::{Duration, Instant};

/// A user's view of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    Asked,
    Established,
    Failed,
    Over,
    /// Rejected by this user: no further event.
    Rejected,
}

/// One end: a connection manager and its user.
struct End {
    cm: Cm,
    local: Addresses,
    seen: BTreeMap<ConnId, Seen>,
    /// The other end's communication id.
    remote: BTreeMap<ConnId, u32>,
    next_qpn: u32,
    resolved: usize,
    unresolved: usize,
}

impl End {
    fn new(guid: u64, seed: u8, local: Addresses) -> End {
        // No end sends data, so only RTUs confirm REPs.
        let config = CmConfig::new(guid, [seed; 32]);
        End {
            cm: Cm::new(CmConfig { max_rep_resends: 15, unconfirmed_timeout: ms(70_000), ..config }),
            local,
            seen: BTreeMap::new(),
            remote: BTreeMap::new(),
            next_qpn: 0x100,
            resolved: 0,
            unresolved: 0,
        }
    }

    fn turn_to(&mut self, conn: ConnId, from: &[Seen], to: Seen) {
        let before = self.seen.insert(conn, to);
        assert!(before.is_some_and(|before| from.contains(&before)), "{conn:?}: {before:?} to {to:?}");
    }

    fn count(&self, seen: Seen) -> usize {
        self.seen.values().filter(|&&is| is == seen).count()
    }

    /// Answers all requests: `whim`, 0 to 99, decides; nine in ten are accepted.
    fn serve(&mut self, now: Instant, mut whim: impl FnMut() -> u32) {
        while let Some(event) = self.cm.poll_event() {
            match event {
                CmEvent::ConnectRequest(request) => {
                    let conn = request.conn;
                    assert_eq!(self.seen.insert(conn, Seen::Asked), None);
                    self.remote.insert(conn, request.remote_comm_id);
                    if whim() < 90 {
                        self.next_qpn += 1;
                        let params = AcceptParams::for_request(&request, Qpn::new(self.next_qpn), Psn::new(1), 16, 16);
                        self.cm.accept(now, conn, params).unwrap();
                    } else {
                        self.cm.reject(conn, RejReason::ConsumerDefined, &[], b"no").unwrap();
                        self.turn_to(conn, &[Seen::Asked], Seen::Rejected);
                    }
                }
                CmEvent::ConnectReply(reply) => {
                    self.remote.insert(reply.conn, reply.remote_comm_id);
                    if whim() < 90 {
                        self.cm.confirm(reply.conn, &[]).unwrap();
                    } else {
                        self.cm.reject(reply.conn, RejReason::ConsumerDefined, &[], b"no").unwrap();
                        self.turn_to(reply.conn, &[Seen::Asked], Seen::Rejected);
                    }
                }
                CmEvent::Established { conn } => self.turn_to(conn, &[Seen::Asked], Seen::Established),
                CmEvent::ConnectFailed { conn, .. } => self.turn_to(conn, &[Seen::Asked], Seen::Failed),
                CmEvent::Disconnected { conn, reason } => {
                    let given_up = reason == DisconnectReason::Local;
                    let from = if given_up { &[Seen::Established, Seen::Asked][..] } else { &[Seen::Established] };
                    self.turn_to(conn, from, Seen::Over);
                }
                CmEvent::SidrRequest(request) => {
                    let valid = SidrReply::valid(Qpn::new(0x33));
                    let reply = if whim() < 90 { valid } else { SidrReply::refuse(SidrStatus::Rejected) };
                    self.cm.reply_sidr(now, request.id, reply).unwrap();
                }
                CmEvent::DatagramResolved(_) => self.resolved += 1,
                CmEvent::ResolveFailed { .. } => self.unresolved += 1,
            }
        }
    }
}

/// A MAD, and whether it goes to the passive end.
type OnTheWay = (bool, Box<[u8; MAD_LEN]>);

/// Both ends and what is between them. Percentages of MADs lost and repeated.
struct Net {
    asker: End,
    asked: End,
    now: Instant,
    rng: ChaCha12Rng,
    loss: u32,
    repeated: u32,
    /// By time of arrival and a number for order.
    wire: BTreeMap<(Instant, u64), OnTheWay>,
    sent: u64,
}

impl Net {
    fn new(seed: u8, loss: u32, repeated: u32) -> Net {
        Net {
            asker: End::new(SERVER_GUID, seed, Addresses(vec![SERVER_IP.into()], PathMtu::Mtu1024)),
            asked: End::new(CLIENT_GUID, seed ^ 0x77, Addresses(vec![CLIENT_IP.into()], PathMtu::Mtu1024)),
            now: Instant::from_nanos(1_000_000_000),
            rng: ChaCha12Rng::from_seed([seed ^ 0x5A; 32]),
            loss,
            repeated,
            wire: BTreeMap::new(),
            sent: 0,
        }
    }

    fn connect(&mut self, qpn: u32) -> ConnId {
        let params = ConnectParams { qpn: Qpn::new(qpn), ..connect_params() };
        let conn = self.asker.cm.connect(self.now, params).unwrap();
        self.asker.seen.insert(conn, Seen::Asked);
        conn
    }

    fn put(&mut self, to_asked: bool, mad: &[u8; MAD_LEN]) {
        let copies = 1 + u32::from(self.rng.next_u32() % 100 < self.repeated);
        for _ in 0..copies {
            if self.rng.next_u32() % 100 >= self.loss {
                // One in eight takes longer than a retransmission.
                let late = self.rng.next_u32().is_multiple_of(8);
                let delay = u64::from(self.rng.next_u32()) % if late { 9000 } else { 20 };
                self.sent += 1;
                self.wire.insert((self.now + ms(delay), self.sent), (to_asked, Box::new(*mad)));
            }
        }
    }

    fn step(&mut self) {
        let rng = &mut self.rng;
        self.asker.serve(self.now, || rng.next_u32() % 100);
        self.asked.serve(self.now, || rng.next_u32() % 100);
        while let Some(transmit) = self.asker.cm.poll_transmit() {
            self.put(true, &transmit.mad);
        }
        while let Some(transmit) = self.asked.cm.poll_transmit() {
            self.put(false, &transmit.mad);
        }
    }

    /// Runs until nothing is on its way and no timer runs, or for `limit`.
    fn run(&mut self, limit: Duration) {
        let end = self.now + limit;
        let there = path();
        let back = MadPath {
            local: there.peer,
            peer: there.local,
            local_mac: there.peer_mac,
            peer_mac: there.local_mac,
            ..there.clone()
        };
        for _ in 0..1_000_000 {
            self.step();
            let arrival = self.wire.first_key_value().map(|(&(at, _), _)| at);
            let timers = [self.asker.cm.next_timeout(), self.asked.cm.next_timeout()];
            let Some(next) = timers.into_iter().flatten().chain(arrival).min().filter(|&at| at <= end) else { return };
            self.now = self.now.max(next);
            while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (to_asked, mad) = entry.remove();
                let (end, path) = if to_asked { (&mut self.asked, &back) } else { (&mut self.asker, &there) };
                let _dropped = end.cm.handle_mad(self.now, path, &*mad, &end.local);
            }
            self.asker.cm.handle_timeout(self.now);
            self.asked.cm.handle_timeout(self.now);
        }
        panic!("never settles");
    }

    /// Connections that one end has and the other has not, by communication ids.
    fn one_sided(&self) -> Vec<(ConnId, &'static str)> {
        let up = |end: &End| -> BTreeMap<(u32, u32), ConnId> {
            let established = end.seen.iter().filter(|&(_, &seen)| seen == Seen::Established);
            established.map(|(&conn, _)| ((conn.comm_id(), end.remote[&conn]), conn)).collect()
        };
        let (asker, asked) = (up(&self.asker), up(&self.asked));
        let alone = asker.iter().filter(|((ours, theirs), _)| !asked.contains_key(&(*theirs, *ours)));
        let mut out: Vec<_> = alone.map(|(_, &conn)| (conn, "the asker alone")).collect();
        let alone = asked.iter().filter(|((ours, theirs), _)| !asker.contains_key(&(*theirs, *ours)));
        out.extend(alone.map(|(_, &conn)| (conn, "the asked alone")));
        out
    }

    fn assert_clean(&self, what: &str) {
        for end in [&self.asker, &self.asked] {
            assert_eq!((end.cm.len(), end.cm.next_timeout(), end.cm.resolving()), (0, None, 0), "{what}");
            assert_eq!((end.count(Seen::Asked), end.count(Seen::Established)), (0, 0), "{what}");
        }
    }
}

const CONNECTIONS: u32 = 200;
/// Longer than all retries of a message.
const LONG: Duration = Duration::from_secs(600);

#[test]
fn connections_are_up_on_both_ends_or_on_none() {
    for (seed, loss, repeated) in [(1, 0, 0), (2, 5, 5), (3, 20, 20), (4, 30, 50), (5, 0, 100)] {
        let what = format!("loss {loss}, repeated {repeated}");
        let mut net = Net::new(seed, loss, repeated);
        for qpn in 1..=CONNECTIONS {
            net.connect(qpn);
        }
        net.run(LONG);
        assert_eq!(net.one_sided(), [], "{what}");
        let up = net.asker.count(Seen::Established);
        assert_eq!(net.asked.count(Seen::Established), up, "{what}");
        // Both sides accept four in five.
        assert!((120..=190).contains(&up), "{what}: {up}");
        assert_eq!((net.asker.count(Seen::Asked), net.asked.count(Seen::Asked)), (0, 0), "{what}: all decided");
        assert_eq!(net.asker.cm.stats().req_timeout.get(), 0, "{what}");

        // A third ends from one side, a third from the other, a third from both.
        let both: Vec<_> =
            net.asker.seen.iter().filter(|&(_, &seen)| seen == Seen::Established).map(|(&c, _)| c).collect();
        let asked: BTreeMap<u32, ConnId> = net.asked.remote.iter().map(|(&conn, &remote)| (remote, conn)).collect();
        for (number, conn) in both.into_iter().enumerate() {
            if number % 3 != 0 {
                net.asker.cm.disconnect(net.now, conn).unwrap();
            }
            if number % 3 != 1 {
                net.asked.cm.disconnect(net.now, asked[&conn.comm_id()]).unwrap();
            }
        }
        net.run(LONG);
        net.assert_clean(&what);
        if loss == 0 && repeated == 0 {
            let (asker, asked) = (net.asker.cm.stats(), net.asked.cm.stats());
            // Late messages are repeated by their senders, and that is all that can go wrong here.
            assert_eq!((asker.stale.get(), asked.stale.get(), asker.tx_queue_full.get()), (0, 0, 0));
        }
    }
}

#[test]
fn total_loss_leaves_no_state() {
    for (seed, loss) in [(6, 60), (7, 80), (8, 95), (9, 100)] {
        let mut net = Net::new(seed, loss, 10);
        for qpn in 1..=CONNECTIONS {
            net.connect(qpn);
        }
        net.run(LONG);
        assert_eq!(net.asker.count(Seen::Asked), 0, "loss {loss}: everybody knows");
        for end in [&mut net.asker, &mut net.asked] {
            let conns: Vec<_> = end.cm.connections().map(|info| info.conn).collect();
            for conn in conns {
                end.cm.disconnect(net.now, conn).unwrap();
            }
        }
        net.run(LONG);
        net.assert_clean(&format!("loss {loss}"));
    }
}

#[test]
fn cancelled_attempts_leave_no_state() {
    for seed in 10..20 {
        let mut net = Net::new(seed, 20, 20);
        for qpn in 1..=CONNECTIONS {
            net.connect(qpn);
        }
        // At any time, on either side, in any state of the connection.
        for _ in 0..CONNECTIONS * 2 {
            net.run(ms(40));
            let pick = net.rng.next_u32() as usize;
            let end = if pick.is_multiple_of(2) { &mut net.asker } else { &mut net.asked };
            let conns: Vec<_> = end.cm.connections().map(|info| info.conn).collect();
            if let Some(&conn) = conns.get(pick / 2 % conns.len().max(1)) {
                end.cm.disconnect(net.now, conn).unwrap();
            }
        }
        net.run(LONG);
        assert_eq!(net.one_sided(), [], "seed {seed}");
        let (asker, asked) = (net.asker.count(Seen::Established), net.asked.count(Seen::Established));
        assert_eq!(asker, asked, "seed {seed}");
        let conns: Vec<_> = net.asker.cm.connections().map(|info| info.conn).collect();
        for conn in conns {
            net.asker.cm.disconnect(net.now, conn).unwrap();
        }
        net.run(LONG);
        net.assert_clean(&format!("seed {seed}"));
    }
}

#[test]
fn questions_for_datagram_queue_pairs_are_answered() {
    for (seed, loss) in [(30, 0), (31, 30), (32, 50)] {
        let mut net = Net::new(seed, loss, 20);
        for port in 1..=CONNECTIONS as u16 {
            net.asker.cm.resolve_datagram(net.now, ResolveParams::new(path(), (port, 7174))).unwrap();
        }
        net.run(LONG);
        net.assert_clean(&format!("loss {loss}"));
        assert_eq!(net.asker.resolved + net.asker.unresolved, CONNECTIONS as usize);
        assert!((160..=196).contains(&net.asker.resolved), "loss {loss}: {}", net.asker.resolved);
        assert_eq!(net.asker.cm.stats().resolve_timeout.get(), 0);
        assert_eq!(net.asked.cm.sidr_len(), 0);
    }
}

/// The life of one connection of each transport, without losses.
#[test]
fn the_ends_agree_on_what_they_have() {
    for transport in [CmTransport::Rc, CmTransport::Uc] {
        let mut net = Net::new(40, 0, 0);
        let params = ConnectParams { transport, responder_resources: 3, initiator_depth: 5, ..connect_params() };
        let conn = net.asker.cm.connect(net.now, params).unwrap();
        let back = MadPath { local: CLIENT_IP.into(), peer: SERVER_IP.into(), ..path() };
        let pass = |from: &mut Cm, to: &mut End, path: &MadPath, now: Instant| {
            while let Some(transmit) = from.poll_transmit() {
                to.cm.handle_mad(now, path, &*transmit.mad, &to.local).unwrap();
            }
        };
        pass(&mut net.asker.cm, &mut net.asked, &back, net.now);
        let Some(CmEvent::ConnectRequest(request)) = net.asked.cm.poll_event() else { panic!() };
        assert_eq!((request.transport, request.responder_resources, request.initiator_depth), (transport, 3, 5));
        let params = AcceptParams::for_request(&request, Qpn::new(0x99), Psn::new(77), 4, 2);
        net.asked.cm.accept(net.now, request.conn, params).unwrap();
        pass(&mut net.asked.cm, &mut net.asker, &path(), net.now);
        let Some(CmEvent::ConnectReply(reply)) = net.asker.cm.poll_event() else { panic!() };
        assert_eq!((reply.conn, reply.remote_qpn, reply.starting_psn), (conn, 0x99, Psn::new(77)));
        // The initiator depth of one end is the responder resources of the other.
        assert_eq!((reply.responder_resources, reply.initiator_depth), (4, 2));
        net.asker.cm.confirm(conn, &[]).unwrap();
        pass(&mut net.asker.cm, &mut net.asked, &back, net.now);
        assert_eq!(net.asker.cm.poll_event(), Some(CmEvent::Established { conn }));
        assert_eq!(net.asked.cm.poll_event(), Some(CmEvent::Established { conn: request.conn }));
        let states = (net.asker.cm.connection(conn), net.asked.cm.connection(request.conn));
        let (Some(asker), Some(asked)) = states else { panic!() };
        assert_eq!((asker.state, asked.state), (ConnState::Established, ConnState::Established));
        assert_eq!((asker.remote_qpn, asked.remote_qpn), (0x99, crate::cm_support::SERVER_QPN));
    }
}

/// A server that is killed between REP and RTU, and restarts with the same numbers.
#[test]
fn a_peer_that_starts_again_is_not_confused_with_itself() {
    let mut net = Net::new(41, 0, 0);
    let first = net.connect(1);
    net.run(ms(100));
    let fresh = End::new(CLIENT_GUID, 42, Addresses(vec![CLIENT_IP.into()], PathMtu::Mtu1024));
    net.asked = fresh;
    // The new server's first queue pair has the number of the old one's first.
    let second = net.connect(2);
    net.run(LONG);
    let stale = |seen: Option<&Seen>| matches!(seen, Some(Seen::Over | Seen::Failed | Seen::Rejected));
    assert!(stale(net.asker.seen.get(&first)), "{:?}", net.asker.seen);
    assert!(net.asker.seen.contains_key(&second));
    assert_eq!(net.one_sided(), []);
}
