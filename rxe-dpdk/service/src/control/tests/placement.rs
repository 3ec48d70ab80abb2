//! Workers of connections, as factories choose them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rxe_proto::cm::{ConnectParams, ConnectRequest};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::{PathMtu, Psn};

use crate::messages::ToWorker;
use crate::service::{Listen, Service, ServiceFactory};
use crate::test_env::{TestEnv, peer_path};

const PORT: u16 = 7174;
const WORKERS: usize = 3;
const NO_CHOICE: u8 = u8::MAX;

/// Chooses the worker that the first byte of a request's private data names, unless that is [`NO_CHOICE`].
#[derive(Default)]
struct Choosing {
    calls: Arc<AtomicUsize>,
}

/// Leaves the choice to the adapter.
struct Indifferent;

impl ServiceFactory for Choosing {
    fn name(&self) -> &'static str {
        "choosing"
    }

    fn listen(&self) -> Vec<Listen> {
        Vec::new()
    }

    fn create(&self, _worker: usize) -> Box<dyn Service> {
        Box::new(Instance)
    }

    fn worker_for(&self, request: &ConnectRequest, workers: usize) -> Option<usize> {
        assert_eq!(workers, WORKERS);
        self.calls.fetch_add(1, Relaxed);
        Some(request.private_data[0]).filter(|first| *first != NO_CHOICE).map(usize::from)
    }
}

impl ServiceFactory for Indifferent {
    fn name(&self) -> &'static str {
        "indifferent"
    }

    fn listen(&self) -> Vec<Listen> {
        Vec::new()
    }

    fn create(&self, _worker: usize) -> Box<dyn Service> {
        Box::new(Instance)
    }
}

struct Instance;

impl Service for Instance {}

/// Service 0 is indifferent, service 1 chooses.
fn env() -> (TestEnv, Arc<AtomicUsize>) {
    let mut env = TestEnv::new(WORKERS, vec![(0, Listen::cm(PORT)), (1, Listen::cm(PORT + 1))]);
    let choosing = Choosing::default();
    let calls = Arc::clone(&choosing.calls);
    env.control.factories = Arc::from([Box::new(Indifferent) as Box<dyn ServiceFactory>, Box::new(choosing)]);
    (env, calls)
}

/// The worker that gets a request from the peer's queue pair `qpn` to `service`, with this first byte of private data.
fn offered_to(env: &mut TestEnv, service: usize, qpn: u32, first: u8) -> usize {
    let ports = (40_000, PORT + service as u16);
    let params = ConnectParams::new(peer_path(), ports, Qpn::new(qpn), Psn::new(5), PathMtu::Mtu1024);
    env.peer.connect(env.now, ConnectParams { private_data: vec![first], ..params }).unwrap();
    env.exchange();
    let mail: Vec<Vec<ToWorker>> = (0..WORKERS).map(|worker| env.mail(worker)).collect();
    assert_eq!(mail.iter().map(Vec::len).sum::<usize>(), 1, "{mail:?}");
    let worker = mail.iter().position(|mail| !mail.is_empty()).unwrap();
    assert!(matches!(&mail[worker][..], [ToWorker::ConnectRequest { service: to, .. }] if *to == service), "{mail:?}");
    worker
}

#[test]
fn a_factory_chooses_the_worker_of_a_connection() {
    let (mut env, calls) = env();
    for (qpn, worker) in [(0x11, 2), (0x12, 2), (0x13, 0), (0x14, 1)] {
        assert_eq!(offered_to(&mut env, 1, qpn, worker as u8), worker);
    }
    assert_eq!(calls.load(Relaxed), 4, "once per request");
}

#[test]
fn connections_without_a_choice_go_to_the_workers_in_turn() {
    let (mut env, _) = env();
    assert_eq!(offered_to(&mut env, 0, 0x11, 2), 0);
    assert_eq!(offered_to(&mut env, 1, 0x12, 2), 2, "a choice, which does not count as a turn");
    assert_eq!(offered_to(&mut env, 1, 0x13, NO_CHOICE), 1);
    assert_eq!(offered_to(&mut env, 0, 0x14, 2), 2);
    assert_eq!(offered_to(&mut env, 0, 0x15, 2), 0);
    assert_eq!(env.control.stats.worker_choice_invalid.get(), 0);
}

#[test]
fn a_worker_that_does_not_exist_is_counted_and_not_used() {
    let (mut env, _) = env();
    assert_eq!(offered_to(&mut env, 1, 0x11, WORKERS as u8), 0);
    assert_eq!(offered_to(&mut env, 1, 0x12, 200), 1);
    assert_eq!(env.control.stats.worker_choice_invalid.get(), 2);
}
