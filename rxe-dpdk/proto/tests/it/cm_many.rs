//! Many connections: at once, one after the other, and over a link that loses packets.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::cm_support::client::{Client, ClientState};
use crate::cm_support::{Addresses, SERVER_GUID, SERVER_QPN, Target, dreq, mad_of, ms, path, req, rtu};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use rxe_proto::Instant;
use rxe_proto::cm::{AcceptParams, Cm, CmConfig, CmEvent, ConnId, ConnState};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::Psn;
use rxe_proto::wire::cm::{CmMessage, Req};

fn numbered(number: u32) -> Req {
    Req { local_qpn: number, ..req(number) }
}

#[test]
fn a_thousand_connections_at_once() {
    let mut target = Target::default();
    for number in 1..=1000 {
        target.feed(&CmMessage::Req(numbered(number))).unwrap();
    }
    let requests: Vec<_> = target.events();
    assert_eq!(requests.len(), 1000);
    let mut conns = Vec::new();
    for (number, event) in (1..).zip(&requests) {
        let CmEvent::ConnectRequest(request) = event else { panic!("{event:?}") };
        assert_eq!(request.remote_comm_id, number);
        target.accept(request.conn);
        conns.push(request.conn);
    }
    assert_eq!(conns.iter().map(|conn| conn.comm_id()).collect::<BTreeSet<_>>().len(), 1000, "unique ids");
    assert_eq!(target.sent().len(), 1000);
    for (number, conn) in (1..).zip(&conns) {
        target.feed(&rtu(number, conn.comm_id())).unwrap();
    }
    assert_eq!(target.events().len(), 1000);
    assert!(target.cm.connections().all(|info| info.state == ConnState::Established));
    assert_eq!(target.cm.next_timeout(), None);

    // Half of them end from either side.
    for (number, conn) in (1..).zip(&conns).step_by(2) {
        target.feed(&dreq(number, conn.comm_id(), SERVER_QPN)).unwrap();
    }
    for &conn in conns.iter().skip(1).step_by(2) {
        target.cm.disconnect(target.now, conn).unwrap();
    }
    assert_eq!(target.sent().len(), 1000);
    target.advance(ms(100_000));
    assert_eq!(target.events().len(), 1000, "every connection has one end");
    assert_eq!((target.cm.len(), target.cm.next_timeout()), (0, None));
}

#[test]
fn ten_thousand_connections_in_a_row_leave_nothing() {
    let mut target = Target::default();
    let mut most = 0;
    for round in 0..10_000u32 {
        // A client with few ids and queue pairs uses each again and again.
        let client = round % 7 + 1;
        let conn = target.established(Req { starting_psn: Psn::new(round), ..numbered(client) });
        if round % 2 == 0 {
            target.feed(&dreq(client, conn.comm_id(), SERVER_QPN)).unwrap();
        } else {
            target.cm.disconnect(target.now, conn).unwrap();
            target.feed(&crate::cm_support::drep(client, conn.comm_id())).unwrap();
        }
        assert!(matches!(target.events().as_slice(), [CmEvent::Disconnected { .. }]));
        assert_eq!(target.sent().len(), 1);
        target.advance(ms(10));
        most = most.max(target.cm.len());
    }
    // Timewait is 2.1 s, a connection 10 ms.
    assert!((200..=220).contains(&most), "{most}");
    target.advance(ms(3000));
    assert_eq!((target.cm.len(), target.cm.next_timeout()), (0, None));
    let stats = target.cm.stats();
    assert_eq!((stats.established.get(), stats.stale.get(), stats.rx_unexpected.get()), (10_000, 0, 0));
}

/// A target and clients on a link that loses every `loss`-th message, by a seed.
struct Lossy {
    cm: Cm,
    local: Addresses,
    now: Instant,
    rng: ChaCha12Rng,
    loss: u32,
    clients: BTreeMap<u32, Client>,
    /// Messages on their way, with their time of arrival. `true` is to the target.
    wire: VecDeque<(Instant, bool, CmMessage)>,
    /// The service's view: established, ended, by connection.
    ends: BTreeMap<ConnId, (bool, bool)>,
    next_qpn: u32,
}

impl Lossy {
    fn new(seed: u8, loss: u32) -> Lossy {
        // These clients send no data, so only their RTUs confirm REPs.
        let config = CmConfig::new(SERVER_GUID, [seed; 32]);
        Lossy {
            cm: Cm::new(CmConfig { max_rep_resends: 15, unconfirmed_timeout: ms(70_000), ..config }),
            local: Addresses::default(),
            now: Instant::from_nanos(1_000_000_000),
            rng: ChaCha12Rng::from_seed([seed ^ 0x5A; 32]),
            loss,
            clients: BTreeMap::new(),
            wire: VecDeque::new(),
            ends: BTreeMap::new(),
            next_qpn: 0x100,
        }
    }

    fn put(&mut self, to_target: bool, messages: Vec<CmMessage>) {
        for message in messages {
            if self.rng.next_u32() % 100 >= self.loss {
                self.wire.push_back((self.now + ms(1), to_target, message));
            }
        }
    }

    fn connect(&mut self, number: u32) {
        let mut out = Vec::new();
        self.clients.insert(number, Client::connect(self.now, number, number, &mut out));
        self.put(true, out);
    }

    /// Runs until nothing is on its way and no timer runs, or until `stop`.
    fn run(&mut self, stop: impl Fn(&Lossy) -> bool) {
        for _ in 0..1_000_000 {
            self.serve();
            if stop(self) {
                return;
            }
            let timers = self.clients.values().filter_map(Client::next_timeout).chain(self.cm.next_timeout()).min();
            let arrival = self.wire.front().map(|&(at, ..)| at);
            let Some(next) = timers.into_iter().chain(arrival).min() else { return };
            self.now = self.now.max(next);
            while self.wire.front().is_some_and(|&(at, ..)| at <= self.now)
                && let Some((_, to_target, message)) = self.wire.pop_front()
            {
                if to_target {
                    let _dropped = self.cm.handle_mad(self.now, &path(), &mad_of(&message, 1), &self.local);
                } else {
                    let client = match &message {
                        CmMessage::Rep(m) => m.remote_comm_id,
                        CmMessage::Rej(m) => m.remote_comm_id,
                        CmMessage::Dreq(m) => m.remote_comm_id,
                        CmMessage::Drep(m) => m.remote_comm_id,
                        other => panic!("{other:?}"),
                    };
                    let mut out = Vec::new();
                    if let Some(client) = self.clients.get_mut(&client) {
                        client.handle(&message, &mut out);
                    }
                    self.put(true, out);
                }
            }
            self.cm.handle_timeout(self.now);
            let mut out = Vec::new();
            for client in self.clients.values_mut() {
                client.handle_timeout(self.now, &mut out);
            }
            self.put(true, out);
        }
        panic!("never settles");
    }

    /// The service: accepts everything.
    fn serve(&mut self) {
        while let Some(event) = self.cm.poll_event() {
            match event {
                CmEvent::ConnectRequest(request) => {
                    assert_eq!(self.ends.insert(request.conn, (false, false)), None);
                    self.next_qpn += 1;
                    let qpn = Qpn::new(self.next_qpn);
                    let params = AcceptParams::for_request(&request, qpn, Psn::new(1), 16, 16);
                    self.cm.accept(self.now, request.conn, params).unwrap();
                }
                CmEvent::Established { conn } => {
                    let end = self.ends.get_mut(&conn).unwrap();
                    assert_eq!(*end, (false, false));
                    end.0 = true;
                }
                CmEvent::Disconnected { conn, .. } => {
                    let end = self.ends.get_mut(&conn).unwrap();
                    assert_eq!(*end, (true, false));
                    end.1 = true;
                }
                CmEvent::ConnectFailed { conn, .. } => {
                    let end = self.ends.get_mut(&conn).unwrap();
                    assert_eq!(*end, (false, false));
                    end.1 = true;
                }
                other => panic!("{other:?}"),
            }
        }
        while let Some(transmit) = self.cm.poll_transmit() {
            self.put(false, vec![CmMessage::parse(&*transmit.mad).unwrap().1]);
        }
    }

    fn in_state(&self, state: ClientState) -> usize {
        self.clients.values().filter(|client| client.state == state).count()
    }
}

#[test]
fn loss_costs_time_and_nothing_else() {
    for (seed, loss) in [(1, 0), (2, 5), (3, 20), (4, 40)] {
        let mut net = Lossy::new(seed, loss);
        const CLIENTS: u32 = 200;
        for number in 1..=CLIENTS {
            net.connect(number);
        }
        let settled = |net: &Lossy| {
            net.in_state(ClientState::Established) == CLIENTS as usize
                && net.cm.connections().all(|info| info.state == ConnState::Established)
        };
        net.run(settled);
        assert!(settled(&net), "loss {loss}");
        assert_eq!(net.cm.len(), CLIENTS as usize, "loss {loss}: one connection each");

        // A third ends from the client, a third from us, a third from both.
        let conns: Vec<_> = net.cm.connections().map(|info| (info.remote_comm_id, info.conn)).collect();
        for (number, conn) in conns {
            if number % 3 != 0 {
                let mut out = Vec::new();
                net.clients.get_mut(&number).unwrap().disconnect(net.now, &mut out);
                net.put(true, out);
            }
            if number % 3 != 1 {
                net.cm.disconnect(net.now, conn).unwrap();
            }
        }
        net.run(|_| false);
        assert_eq!(net.in_state(ClientState::Closed), CLIENTS as usize, "loss {loss}");
        assert_eq!((net.cm.len(), net.cm.next_timeout()), (0, None), "loss {loss}");
        assert!(net.ends.values().all(|&end| end == (true, true)), "loss {loss}");
        assert_eq!(net.ends.len(), CLIENTS as usize, "loss {loss}: no connection was made twice");
        if loss == 0 {
            let stats = net.cm.stats();
            assert_eq!((stats.tx_rep_retry.get(), stats.tx_dreq_retry.get(), stats.rx_unexpected.get()), (0, 0, 0));
        }
    }
}

/// With losses that 16 tries do not overcome, connections fail; but they fail on both sides in the end, and leave nothing.
#[test]
fn total_loss_leaves_no_state() {
    for (seed, loss) in [(5, 60), (6, 80), (7, 95), (8, 100)] {
        let mut net = Lossy::new(seed, loss);
        for number in 1..=200 {
            net.connect(number);
        }
        net.run(|_| false);
        assert_eq!(net.in_state(ClientState::ReqSent), 0, "loss {loss}");
        let conns: Vec<_> = net.cm.connections().map(|info| info.conn).collect();
        for conn in conns {
            net.cm.disconnect(net.now, conn).unwrap();
        }
        let mut out = Vec::new();
        for client in net.clients.values_mut().filter(|client| client.state == ClientState::Established) {
            client.disconnect(net.now, &mut out);
        }
        net.put(true, out);
        net.run(|_| false);
        assert_eq!((net.cm.len(), net.cm.next_timeout()), (0, None), "loss {loss}");
        assert!(net.ends.values().all(|&(_, over)| over), "loss {loss}");
        let waiting = [ClientState::ReqSent, ClientState::Established, ClientState::DreqSent];
        assert!(net.clients.values().all(|client| !waiting.contains(&client.state)), "loss {loss}");
    }
}

#[test]
fn a_dead_peer_is_given_up_in_the_end() {
    let mut net = Lossy::new(6, 0);
    for number in 1..=50 {
        net.connect(number);
    }
    net.run(|net| net.in_state(ClientState::Established) == 50 && net.wire.is_empty());
    net.clients.clear();
    let conns: Vec<_> = net.cm.connections().map(|info| info.conn).collect();
    let begin = net.now;
    for conn in conns {
        net.cm.disconnect(net.now, conn).unwrap();
    }
    net.run(|_| false);
    assert!(net.cm.is_empty());
    assert_eq!(net.cm.stats().dreq_timeout.get(), 50);
    // 16 times 4.3 s, and timewait.
    assert_eq!(net.now.saturating_since(begin).as_secs(), 70);
}
