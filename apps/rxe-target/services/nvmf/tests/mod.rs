//! The service under hosts on a virtual network.

mod host;
mod network;

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard};

use rxe_nvmf::controller::TargetConfig;
use rxe_nvmf::subsystem::AllowedHosts;
use rxe_nvmf::wire::Status;
use rxe_proto::Duration;
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::mem::HeapAllocator;
use rxe_proto::verbs::{Qpn, WorkCompletion};
use rxe_proto::wire::cm::Rej;
use rxe_service::{Context, Decision, EndReason, Listen, Outstanding, Service};
use rxe_storage::BlockSize;
use rxe_testkit::rng::Rng;

use self::host::{Host, IoKind, Order};
use self::network::{Network, address};
use super::factory::NAME;
use super::instance::Nvmf;
use super::shared::Shared;
use crate::config::nvmf::{Backing, NamespaceConfig, NvmfConfig, SubsystemConfig};
use crate::services::metrics::MetricsRegistry;

const SUBSYSTEM: &str = "nqn.2026-01.test:disk";
const BLOCKS: u64 = 256;
/// Staging of the target: the share of an address is half.
const STAGING: usize = 8 << 20;
/// The number of the target's adapter.
const TARGET: u8 = 1;
const MIB: u32 = 256;

/// A service that the test can look into.
struct Probe<S>(Arc<Mutex<S>>);

impl<S: Service> Service for Probe<S> {
    fn start(&mut self, cx: &mut Context<'_>) {
        lock(&self.0).start(cx);
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        lock(&self.0).connect_request(cx, request)
    }

    fn connect_rejected(&mut self, cx: &mut Context<'_>, conn: ConnId, qp: Qpn, rej: &Rej) {
        lock(&self.0).connect_rejected(cx, conn, qp, rej);
    }

    fn connected(&mut self, cx: &mut Context<'_>, conn: ConnId, qp: Qpn) {
        lock(&self.0).connected(cx, conn, qp);
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, conn: ConnId, qp: Qpn, reason: EndReason) {
        lock(&self.0).disconnected(cx, conn, qp, reason);
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        lock(&self.0).completion(cx, wc);
    }

    fn timer(&mut self, cx: &mut Context<'_>, token: u64) {
        lock(&self.0).timer(cx, token);
    }

    fn instance_message(&mut self, cx: &mut Context<'_>, from: usize, message: Box<dyn Any + Send>) {
        lock(&self.0).instance_message(cx, from, message);
    }

    fn wants_poll(&self) -> bool {
        lock(&self.0).wants_poll()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Outstanding {
        lock(&self.0).poll(cx)
    }
}

fn lock<S>(service: &Arc<Mutex<S>>) -> MutexGuard<'_, S> {
    service.lock().expect("no test has failed")
}

/// The commands of a host that have completed, and those without a completion.
fn progress(host: &Arc<Mutex<Host>>) -> (u64, usize) {
    let host = lock(host);
    (host.completed, host.outstanding())
}

/// The target, its hosts, and the network.
struct Env {
    network: Network,
    target: Arc<Mutex<Nvmf>>,
    shared: Arc<Shared>,
    registry: MetricsRegistry,
}

impl Env {
    fn new(seed: u64) -> Env {
        let namespace = NamespaceConfig {
            nsid: 1,
            backing: Backing::Ram { size: BLOCKS as usize * 4096 },
            block_size: BlockSize::B4096,
            read_only: false,
            checksums: false,
            uuid: None,
        };
        let subsystem = SubsystemConfig {
            nqn: SUBSYSTEM.parse().expect("an NQN"),
            serial: "1".to_owned(),
            model: "test".to_owned(),
            hosts: AllowedHosts::Any,
            namespaces: vec![namespace],
        };
        let config = NvmfConfig { staging: STAGING, subsystems: vec![subsystem], ..NvmfConfig::default() };
        let shared = Arc::new(Shared::new(TargetConfig::default()));
        shared.open_all(&config, &HeapAllocator).expect("memory for the disk");
        let registry = MetricsRegistry::default();
        let service = Nvmf::new(Arc::clone(&shared), &config, registry.open(NAME));
        let target = Arc::new(Mutex::new(service));
        let mut network = Network::new(seed);
        network.start(TARGET, vec![(0, Listen::cm(config.port))], Box::new(Probe(Arc::clone(&target))));
        Env { network, target, shared, registry }
    }

    /// Starts a host.
    fn host(&mut self, number: u8) -> Arc<Mutex<Host>> {
        let host = Arc::new(Mutex::new(Host::new(address(TARGET), number, SUBSYSTEM)));
        self.network.start(number, Vec::new(), Box::new(Probe(Arc::clone(&host))));
        host
    }

    fn order(&mut self, host: &Arc<Mutex<Host>>, order: Order) {
        lock(host).orders.push_back(order);
    }

    /// Begins a session, and waits until it is ready.
    fn session(&mut self, host: &Arc<Mutex<Host>>, io_queues: u16) -> usize {
        let session = lock(host).sessions();
        self.order(host, Order::Begin { io_queues });
        self.network.settle();
        assert!(lock(host).is_ready(session), "the session is not ready: {}", self.registry);
        session
    }

    fn counter(&self, name: &str) -> u64 {
        self.registry.sums()[NAME].iter().find(|(counter, _)| *counter == name).expect("a counter").1
    }

    /// Waits until hosts that have vanished are given up; nothing of any host is left then.
    fn expect_nothing_left(&mut self) {
        self.network.loss = 0;
        self.network.advance(Duration::from_secs(90));
        let target = lock(&self.target);
        assert!(target.queues.is_empty() && target.connects.is_empty(), "{} queues", target.queues.len());
        assert_eq!((target.commands.len(), target.waiting_for_room.len()), (0, 0), "commands");
        assert_eq!((target.staging.in_use(), target.staging.waiting()), (0, 0), "staging");
        assert_eq!(self.shared.target().controller_count(), 0, "controllers");
        assert_eq!(self.shared.target().queue_count(), 0, "queues");
        assert_eq!(self.shared.waiting().all(), 0, "queues without Connect");
        assert_eq!(self.network.adapter(TARGET).engine.qp_count(), 0, "queue pairs");
    }
}

fn io(session: usize, kind: IoKind, blocks: u32) -> Order {
    Order::Io { session, qid: 1, kind, block: 0, blocks }
}

#[test]
fn a_host_connects_uses_every_command_and_leaves_nothing() {
    let mut env = Env::new(1);
    let host = env.host(2);
    let session = env.session(&host, 2);
    let kinds = [IoKind::Write, IoKind::Read, IoKind::Compare, IoKind::WriteZeroes, IoKind::Flush, IoKind::OutOfRange];
    for kind in kinds {
        env.order(&host, io(session, kind, 8));
    }
    env.network.settle();
    assert_eq!(progress(&host), (6, 0));
    env.order(&host, Order::ShutDown { session });
    env.network.settle();
    env.expect_nothing_left();
}

#[test]
fn a_removed_disk_is_closed_although_the_last_responses_were_not_signaled() {
    let mut env = Env::new(4);
    let host = env.host(2);
    let session = env.session(&host, 1);
    for _ in 0..11 {
        env.order(&host, io(session, IoKind::Read, 8));
    }
    env.network.settle();
    assert_eq!(progress(&host), (11, 0));
    env.shared.remove_namespace(&SUBSYSTEM.parse().expect("an NQN"), 1).expect("it has that disk");
    assert_eq!(env.shared.reap(), 1, "the worker has it open");
    env.network.advance(Duration::from_secs(1));
    assert_eq!(env.shared.reap(), 0);
    env.order(&host, Order::ShutDown { session });
    env.network.settle();
    env.expect_nothing_left();
}

#[test]
fn a_second_connect_ends_the_queue_and_its_data_reach_no_staging_of_others() {
    let mut env = Env::new(5);
    // In each turn, the frames of the writer arrive before those of the intruder.
    let (writer, intruder) = (env.host(2), env.host(3));
    let session = env.session(&writer, 1);
    env.order(&intruder, Order::Connects { qid: 0, count: 2 });
    while env.counter("connections") < 3 || lock(&env.target).connects.is_empty() {
        env.network.turn();
    }
    // It has been asked for the data of the Connects, and does not answer yet.
    let adapter = env.network.cut(3).expect("it runs");
    env.network.settle();
    let tracked = |kind, token| Order::Tracked { session, qid: 1, nsid: 1, kind, block: 7, blocks: 1, token };
    env.order(&writer, tracked(IoKind::Write, 77));
    while lock(&env.target).commands.is_empty() {
        env.network.turn();
    }
    env.network.join(3, adapter);
    env.network.settle();
    env.order(&writer, tracked(IoKind::Read, 78));
    env.network.settle();
    let answers = std::mem::take(&mut lock(&writer).answers);
    assert_eq!(answers.iter().map(|answer| answer.token).collect::<Vec<_>>(), [77, 78]);
    assert!(answers.iter().all(|answer| answer.status == Some(Status::SUCCESS)), "{answers:?}");
    assert_eq!(answers[1].values, [Some(77)], "foreign bytes in the block");
    assert_eq!(env.counter("malformed"), 1);
    env.order(&writer, Order::ShutDown { session });
    env.network.settle();
    env.expect_nothing_left();
}

#[test]
fn queues_of_one_address_that_send_no_connect_are_limited() {
    let mut env = Env::new(2);
    let (greedy, other) = (env.host(2), env.host(3));
    for _ in 0..130 {
        env.order(&greedy, Order::OpenOnly { qid: 0 });
    }
    env.network.settle();
    let opened = lock(&greedy).opened;
    assert_eq!((opened, lock(&greedy).rejected), (128, 2));
    assert_eq!((env.counter("share_refused"), env.counter("refused")), (2, 2));
    // Others connect, and so does the address when its queues have been given up.
    let session = env.session(&other, 1);
    env.order(&other, Order::ShutDown { session });
    env.network.advance(Duration::from_secs(12));
    env.session(&greedy, 1);
    env.network.cut(2);
    env.expect_nothing_left();
}

#[test]
fn a_host_that_holds_its_share_of_staging_leaves_the_rest_to_others() {
    let mut env = Env::new(3);
    let (greedy, other) = (env.host(2), env.host(3));
    let (hoarder, session) = (env.session(&greedy, 1), env.session(&other, 1));
    for _ in 0..6 {
        env.order(&greedy, io(hoarder, IoKind::Write, MIB));
    }
    // The commands reach the target, which fetches their data from a host that does not answer.
    while env.counter("share_waits") < 2 {
        env.network.turn();
    }
    let adapter = env.network.cut(2).expect("it runs");
    assert_eq!(lock(&env.target).staging.in_use(), 4 << 20);
    for _ in 0..3 {
        env.order(&other, io(session, IoKind::Write, MIB));
    }
    env.network.settle();
    assert_eq!(progress(&other), (3, 0));
    assert_eq!(lock(&greedy).completed, 0);
    // An admin command has room beside the share.
    env.network.join(2, adapter);
    env.order(&greedy, Order::KeepAlive { session: hoarder });
    env.network.advance(Duration::from_secs(2));
    assert_eq!(progress(&greedy), (6, 0));
    for (host, session) in [(&greedy, hoarder), (&other, session)] {
        env.order(host, Order::ShutDown { session });
    }
    env.network.settle();
    env.expect_nothing_left();
}

/// Hosts that do anything, and vanish anywhere.
fn random(seed: u64) -> u64 {
    let mut env = Env::new(seed);
    let mut rng = Rng(seed);
    let mut hosts: Vec<(u8, Arc<Mutex<Host>>)> = (2..5).map(|number| (number, env.host(number))).collect();
    let mut completed = 0;
    env.network.loss = 200;
    for _ in 0..rng.below(120) + 40 {
        let which = rng.below(hosts.len() as u64) as usize;
        let (number, host) = hosts[which].clone();
        let sessions = lock(&host).sessions();
        let session = rng.below(sessions as u64 + 1) as usize;
        let qid = rng.below(3) as u16;
        match rng.below(24) {
            0..4 => env.order(&host, Order::Begin { io_queues: rng.below(3) as u16 + 1 }),
            4 => env.order(&host, Order::OpenOnly { qid }),
            5 => env.order(&host, Order::ShutDown { session }),
            6 => env.order(&host, Order::Disconnect { session, qid }),
            7 => {
                // It loses its power, and starts again.
                completed += lock(&host).completed;
                env.network.cut(number);
                hosts[which].1 = env.host(number);
            }
            8 => env.network.advance(Duration::from_millis(rng.below(3000))),
            9 => {
                for session in 0..sessions {
                    env.order(&host, Order::KeepAlive { session });
                }
            }
            _ => {
                for _ in 0..rng.below(20) {
                    let kinds = [
                        IoKind::Read,
                        IoKind::Write,
                        IoKind::Write,
                        IoKind::Compare,
                        IoKind::WriteZeroes,
                        IoKind::Flush,
                        IoKind::OutOfRange,
                    ];
                    let kind = kinds[rng.below(7) as usize];
                    let blocks = [1, 8, 32, MIB][rng.below(4) as usize];
                    let block = rng.below(BLOCKS - u64::from(blocks) + 1);
                    env.order(&host, Order::Io { session, qid: qid.max(1), kind, block, blocks });
                }
            }
        }
        for _ in 0..rng.below(12) {
            env.network.turn();
        }
    }
    // Every command of a queue that is still connected completes.
    env.network.loss = 0;
    for _ in 0..6 {
        for (_, host) in &hosts {
            let sessions = lock(host).sessions();
            for session in 0..sessions {
                lock(host).orders.push_back(Order::KeepAlive { session });
            }
        }
        env.network.advance(Duration::from_secs(1));
    }
    for (number, host) in &hosts {
        let host = lock(host);
        assert_eq!(host.outstanding(), 0, "commands of host {number}, seed {seed}");
        completed += host.completed;
    }
    for (number, _) in &hosts {
        env.network.cut(*number);
    }
    env.expect_nothing_left();
    completed
}

#[test]
fn hosts_that_die_anywhere_leave_nothing_and_every_command_completes_once() {
    let nightly = std::env::var_os("RXE_NIGHTLY").is_some_and(|value| !value.is_empty());
    let first = std::env::var("RXE_SEED").map_or(1, |seed| seed.parse().expect("RXE_SEED is a number"));
    let completed: u64 = (first..first + if nightly { 200 } else { 4 }).map(random).sum();
    assert!(completed > 100, "{completed} commands completed");
}
