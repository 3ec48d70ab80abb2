//! Floods of SIDR requests whose senders do not answer, and a client beside them, on a virtual network.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rxe_proto::Duration;
use rxe_service::{Context, DatagramPeer, ResolveError, Service, ServiceFactory};

use super::network::{Network, address};

const TARGET: u8 = 1;

/// A host that asks for datagram queue pairs.
struct Asker {
    port: u16,
    count: usize,
    answered: Arc<AtomicUsize>,
}

impl Service for Asker {
    fn start(&mut self, cx: &mut Context<'_>) {
        for token in 0..self.count as u64 {
            cx.resolve_datagram(SocketAddr::new(address(TARGET), self.port), token, Vec::new());
        }
    }

    fn datagram_resolved(&mut self, _cx: &mut Context<'_>, _token: u64, result: Result<&DatagramPeer, ResolveError>) {
        self.answered.fetch_add(usize::from(result.is_ok()), Ordering::Relaxed);
    }
}

/// A network with the service of `factory`.
pub fn network(factory: &dyn ServiceFactory) -> Network {
    let listens = factory.listen().into_iter().map(|listen| (0, listen)).collect();
    let mut network = Network::new(1);
    network.start(TARGET, listens, factory.create(0));
    network
}

/// Queue pairs, keys and address handles that the target has.
pub fn held(network: &Network) -> (usize, usize, usize) {
    let engine = &network.adapter(TARGET).engine;
    (engine.qp_count(), engine.keys().len(), engine.ah_count())
}

/// Host `number` asks the target's `port` for `count` queue pairs. Returns how many it has got after a second.
pub fn ask(network: &mut Network, number: u8, port: u16, count: usize) -> usize {
    let answered = Arc::new(AtomicUsize::new(0));
    network.start(number, Vec::new(), Box::new(Asker { port, count, answered: Arc::clone(&answered) }));
    network.advance(Duration::from_secs(1));
    answered.load(Ordering::Relaxed)
}

/// Hosts ask, and are gone before they are answered.
pub fn flood(network: &mut Network, hosts: std::ops::Range<u8>, port: u16, count: usize) {
    for number in hosts {
        ask(network, number, port, count);
        network.cut(number);
    }
}
