//! Clients that come, stay silent and go, on a virtual network.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rxe_proto::Duration;
use rxe_proto::cm::ConnId;
use rxe_proto::verbs::{Access, Qpn, QueuePair, Rc, RecvWr, RemoteAddr};
use rxe_service::{Connect, Context, EndReason, Listen, Service, ServiceFactory};

use super::client::CAPS;
use super::data::{Buffer, ConnData, ENTRIES};
use super::factory;
use crate::services::metrics::MetricsRegistry;
use crate::services::network::{Network, address};
use crate::services::port7471::PORT;

const TARGET: u8 = 1;

/// What a host has seen, and whether its connections are to end.
#[derive(Clone, Default)]
struct Seen {
    connected: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    leave: Arc<AtomicBool>,
}

impl Seen {
    fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }
}

/// A host that requests connections as rstream does.
struct Host {
    count: usize,
    seen: Seen,
    conns: Vec<ConnId>,
}

const TICK: Duration = Duration::from_millis(10);

impl Service for Host {
    fn start(&mut self, cx: &mut Context<'_>) {
        let pd = cx.device().alloc_pd();
        let memory = cx.alloc_memory(4096).expect("memory");
        let region = cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("a region");
        let at = RemoteAddr { addr: region.addr(), rkey: region.rkey() };
        let data = ConnData {
            big_endian: false,
            iomap: true,
            credits: 384,
            iomap_entries: 0,
            list: at,
            entries: ENTRIES,
            buffer: Buffer { at, length: 4096 },
        };
        for _ in 0..self.count {
            let attr = cx.qp_attr().with_caps(CAPS);
            let qp: QueuePair<Rc> =
                cx.device().create_qp_in_init(pd, attr, Access::REMOTE_WRITE).expect("a queue pair");
            for _ in 0..8 {
                cx.device().post_recv(qp, RecvWr { wr_id: 0, sges: &[] }).expect("a receive");
            }
            let to = SocketAddr::new(address(TARGET), PORT);
            cx.connect(Connect { private_data: data.write(), ..Connect::new(to, qp) });
        }
        cx.set_timer(TICK, 0);
    }

    fn connected(&mut self, _cx: &mut Context<'_>, conn: ConnId, _qp: Qpn) {
        self.conns.push(conn);
        self.seen.connected.fetch_add(1, Ordering::Relaxed);
    }

    fn disconnected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, _qp: Qpn, _reason: EndReason) {
        self.seen.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        if self.seen.leave.load(Ordering::Relaxed) {
            self.conns.drain(..).for_each(|conn| cx.disconnect(conn));
        }
        cx.set_timer(TICK, 0);
    }
}

/// A network with the service.
fn network() -> Network {
    let registry = MetricsRegistry::default();
    let factory = factory(Duration::from_secs(60), &registry);
    let listens: Vec<(usize, Listen)> = factory.listen().into_iter().map(|listen| (0, listen)).collect();
    let mut network = Network::new(1);
    network.start(TARGET, listens, factory.create(0));
    network
}

fn join(network: &mut Network, number: u8, count: usize) -> Seen {
    let seen = Seen::default();
    network.start(number, Vec::new(), Box::new(Host { count, seen: seen.clone(), conns: Vec::new() }));
    seen
}

/// Keys that the target has.
fn keys(network: &Network) -> usize {
    network.adapter(TARGET).engine.keys().len()
}

#[test]
fn a_connection_that_has_ended_leaves_no_memory() {
    let mut network = network();
    let before = keys(&network);
    let seen = join(&mut network, 2, 21);
    network.settle();
    assert_eq!((seen.connected(), keys(&network)), (21, before + 42));
    seen.leave.store(true, Ordering::Relaxed);
    network.advance(Duration::from_millis(100));
    assert_eq!((seen.ended.load(Ordering::Relaxed), keys(&network)), (21, before));
}

#[test]
fn requests_without_a_confirmation_leave_room_for_clients_and_then_nothing() {
    let mut network = network();
    let before = keys(&network);
    // Their answers get lost: the hosts vanish when their requests have left.
    for number in 2..8 {
        join(&mut network, number, 300);
        for _ in 0..2 {
            network.turn();
        }
        network.cut(number);
        network.settle();
    }
    let silent = (keys(&network) - before) / 2;
    assert!((1..=512).contains(&silent), "{silent} of 1,800 requests hold memory");
    let seen = join(&mut network, 9, 3);
    network.settle();
    assert_eq!(seen.connected(), 3);
    network.advance(Duration::from_secs(10));
    assert_eq!(keys(&network), before + 6, "only the clients that answered are left");
}
