//! The service under hosts on a virtual network.

mod analyser;
mod disks_model;
mod host;
mod model;

use std::any::Any;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use rxe_nvmf::controller::TargetConfig;
use rxe_nvmf::subsystem::AllowedHosts;
use rxe_nvmf::wire::log::{ErrorEntry, LogId};
use rxe_nvmf::wire::{AsyncEvent, Status, StatusCode};
use rxe_proto::Duration;
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::mem::HeapAllocator;
use rxe_proto::verbs::{Qpn, WorkCompletion};
use rxe_proto::wire::cm::Rej;
use rxe_service::{Context, Decision, EndReason, Listen, Outstanding, Service};
use rxe_storage::BlockSize;
use rxe_storage::simulated::{Faults, SimulatedKernel};
use rxe_testkit::rng::Rng;
use rxe_testkit::temp::TempDir;
use zerocopy::FromBytes;

use self::host::{Answer, Host, IoKind, Order};
use super::factory::NAME;
use super::instance::Nvmf;
use super::shared::Shared;
use crate::config::nvmf::{Backing, NamespaceConfig, NvmfConfig, SubsystemConfig};
use crate::services::metrics::MetricsRegistry;
use crate::services::network::{Network, address};

const SUBSYSTEM: &str = "nqn.2026-01.test:disk";
const BLOCKS: u64 = 256;
/// Staging of the target: the share of an address is half.
const STAGING: usize = 8 << 20;
/// The number of the target's adapter.
const TARGET: u8 = 1;
const MIB: u32 = 256;
const NO_ZEROING: Faults = Faults {
    io_error: 0,
    no_space: 0,
    short: 0,
    flush_error: 0,
    spared_flushes: 0,
    failing_flushes: 0,
    slow: 0,
    no_holes: true,
    no_zero_range: true,
};

/// A service that the test can look into, with requests of management for it.
struct Probe<S>(Arc<Mutex<S>>, Requests);

type Requests = Arc<Mutex<Vec<String>>>;

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
        let mut service = lock(&self.0);
        for request in lock(&self.1).drain(..) {
            service.manage(cx, &request).expect("it follows");
        }
        service.poll(cx)
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
    requests: Requests,
}

impl Env {
    fn new(seed: u64) -> Env {
        Env::of(seed, config_of(vec![Backing::Ram { size: BLOCKS as usize * 4096 }], false), None)
    }

    /// The disk is a file of a simulated kernel, which zeroes ranges only by writing.
    fn on_file(seed: u64) -> (Env, SimulatedKernel, TempDir) {
        let folder = TempDir::new(shm());
        let path = folder.path().join("disk");
        std::fs::File::create(&path).and_then(|file| file.set_len(BLOCKS * 4096)).expect("a file");
        let kernel = SimulatedKernel::new(seed, NO_ZEROING);
        let config = config_of(vec![Backing::File { path, direct: false }], false);
        (Env::of(seed, config, Some(kernel.clone())), kernel, folder)
    }

    fn of(seed: u64, config: NvmfConfig, kernel: Option<SimulatedKernel>) -> Env {
        let mut network = Network::new(seed);
        let requests = Requests::default();
        let (target, shared, registry) = start_target(&mut network, &config, kernel, &requests);
        Env { network, target, shared, registry, requests }
    }

    /// Ends the target, which was cut off: what is in its storage completes, and its files are still open.
    fn stop(&mut self, config: &NvmfConfig) {
        let none = Arc::new(Shared::new(TargetConfig::default()));
        self.target = Arc::new(Mutex::new(Nvmf::new(none, config, self.registry.open(NAME))));
    }

    /// Starts it again.
    fn restart(&mut self, config: &NvmfConfig, kernel: Option<SimulatedKernel>) {
        // The files are closed before they are opened again.
        self.shared = Arc::new(Shared::new(TargetConfig::default()));
        (self.target, self.shared, self.registry) = start_target(&mut self.network, config, kernel, &self.requests);
    }

    /// Whether a flush of a disk failed.
    fn is_failed(&self, nsid: u32) -> bool {
        let target = self.shared.target();
        target.subsystems().flat_map(|of| &of.namespaces).any(|of| of.nsid == nsid && of.failed)
    }

    /// The worker follows a change of the disks, as management makes it.
    fn follow(&mut self) {
        lock(&self.requests).push(SUBSYSTEM.to_owned());
        self.network.turn();
    }

    /// Starts a host.
    fn host(&mut self, number: u8) -> Arc<Mutex<Host>> {
        let host = Arc::new(Mutex::new(Host::new(address(TARGET), number, SUBSYSTEM)));
        self.network.start(number, Vec::new(), Box::new(Probe(Arc::clone(&host), Requests::default())));
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
        for _ in 0..9 {
            self.network.advance(Duration::from_secs(10));
            if self.network.adapter(TARGET).engine.qp_count() == 0 {
                break;
            }
        }
        let target = lock(&self.target);
        assert!(target.queues.is_empty() && target.connects.is_empty(), "{} queues", target.queues.len());
        assert_eq!(target.commands.len(), 0, "commands");
        assert_eq!((target.admission.in_use(), target.admission.has_hosts()), ((0, 0), false), "admission");
        assert_eq!(self.shared.target().controller_count(), 0, "controllers");
        assert_eq!(self.shared.target().queue_count(), 0, "queues");
        assert_eq!(self.shared.target().fence_count(), 0, "queues whose commands may be in the storage");
        assert!(
            target.deferred.is_empty() && target.fences.is_empty() && target.awaited.is_empty(),
            "Connects that wait"
        );
        assert_eq!(self.shared.waiting().all(), 0, "queues without Connect");
        assert_eq!(self.network.adapter(TARGET).engine.qp_count(), 0, "queue pairs");
    }
}

/// A folder for files in memory, if there is one.
fn shm() -> &'static Path {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { shm } else { Path::new("/tmp") }
}

/// A subsystem with these disks, numbered from 1.
fn config_of(backings: Vec<Backing>, checksums: bool) -> NvmfConfig {
    let namespace = |(nsid, backing)| NamespaceConfig {
        nsid,
        backing,
        block_size: BlockSize::B4096,
        read_only: false,
        checksums,
        uuid: None,
    };
    let subsystem = SubsystemConfig {
        nqn: SUBSYSTEM.parse().expect("an NQN"),
        serial: "1".to_owned(),
        model: "test".to_owned(),
        hosts: AllowedHosts::Any,
        namespaces: (1..).zip(backings).map(namespace).collect(),
    };
    NvmfConfig { staging: STAGING, subsystems: vec![subsystem], ..NvmfConfig::default() }
}

fn start_target(
    network: &mut Network,
    config: &NvmfConfig,
    kernel: Option<SimulatedKernel>,
    requests: &Requests,
) -> (Arc<Mutex<Nvmf>>, Arc<Shared>, MetricsRegistry) {
    let shared = Arc::new(Shared::new(TargetConfig::default()));
    shared.open_all(config, &HeapAllocator).expect("the disks");
    let registry = MetricsRegistry::default();
    let mut service = Nvmf::new(Arc::clone(&shared), config, registry.open(NAME));
    service.kernel = kernel;
    let target = Arc::new(Mutex::new(service));
    network.start(
        TARGET,
        vec![(0, Listen::cm(config.port))],
        Box::new(Probe(Arc::clone(&target), Arc::clone(requests))),
    );
    (target, shared, registry)
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
fn the_file_of_a_disk_whose_last_command_took_long_is_closed_without_another_removal() {
    let (mut env, kernel, folder) = Env::on_file(11);
    let host = env.host(2);
    let session = env.session(&host, 1);
    kernel.set_faults(Faults { slow: 1_000_000, ..NO_ZEROING });
    env.order(&host, tracked(session, IoKind::Write, 0, 1, 7));
    for _ in 0..50 {
        env.network.turn();
    }
    env.shared.remove_namespace(&SUBSYSTEM.parse().expect("an NQN"), 1).expect("it has that disk");
    env.follow();
    assert_eq!(env.shared.reap(), 1, "a command is in the storage");
    env.shared.reap_later();
    kernel.set_faults(NO_ZEROING);
    env.network.advance(Duration::from_secs(1));
    let file = std::fs::File::open(folder.path().join("disk")).expect("a file");
    while file.try_lock().is_err() {
        std::thread::yield_now();
    }
    env.order(&host, Order::ShutDown { session });
    env.network.settle();
    env.expect_nothing_left();
}

#[test]
fn long_commands_on_memory_take_many_turns_and_others_are_answered_meanwhile() {
    const LARGE: u64 = 16 << 20;
    let mut env = Env::of(12, config_of(vec![Backing::Ram { size: LARGE as usize }], true), None);
    let (host, other) = (env.host(2), env.host(3));
    let (session, other_session) = (env.session(&host, 1), env.session(&other, 1));
    for kind in [IoKind::WriteZeroes, IoKind::Verify] {
        let order = |token| tracked(session, kind, 0, (LARGE / 4096) as u32, token);
        (0..8).for_each(|token| env.order(&host, order(token)));
        for _ in 0..10 {
            env.network.turn();
        }
        env.order(&other, tracked(other_session, IoKind::Write, 7, 1, 77));
        while lock(&other).answers.is_empty() {
            env.network.turn();
        }
        assert!(lock(&host).answers.is_empty(), "{kind:?} is complete within a few turns");
        assert!(lock(&other).answers.pop().is_some_and(|answer| answer.status == Some(Status::SUCCESS)));
        while lock(&host).answers.len() < 8 {
            env.network.turn();
        }
        let answers = std::mem::take(&mut lock(&host).answers);
        let is_success = |answer: &Answer| answer.status == Some(Status::SUCCESS);
        assert!(answers.iter().all(is_success), "{kind:?}: {answers:?}");
    }
    for (host, session) in [(&host, session), (&other, other_session)] {
        env.order(host, Order::ShutDown { session });
    }
    env.network.settle();
    env.expect_nothing_left();
}

#[test]
fn a_copy_of_a_disk_with_its_identifiers_is_refused() {
    let folder = TempDir::new(shm());
    let backing = |name: &str| Backing::File { path: folder.path().join(name), direct: false };
    std::fs::write(folder.path().join("disk"), [7; 8192]).expect("a file");
    let env = Env::of(13, config_of(vec![backing("disk")], false), Some(SimulatedKernel::new(13, NO_ZEROING)));
    for end in ["", ".identity"] {
        let [from, to] = ["disk", "copy"].map(|name| folder.path().join(format!("{name}{end}")));
        std::fs::copy(from, to).expect("both files");
    }
    let config = config_of(vec![backing("disk"), backing("copy")], false);
    let add =
        || env.shared.add_namespace(&config.subsystems[0].nqn, &config.subsystems[0].namespaces[1], &HeapAllocator);
    let refused = add().expect_err("it has the identifiers of the first one").to_string();
    assert!(refused.contains("if its file is a copy, delete FILE.identity beside it"), "{refused}");
    std::fs::remove_file(folder.path().join("copy.identity")).expect("it is there");
    add().expect("it is another disk");
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

fn tracked(session: usize, kind: IoKind, block: u64, blocks: u32, token: u64) -> Order {
    Order::Tracked { session, qid: 1, nsid: 1, kind, block, blocks, token }
}

/// Sends a command, and waits for its answer.
fn run(env: &mut Env, host: &Arc<Mutex<Host>>, order: Order) -> (Status, Vec<Option<u64>>) {
    env.order(host, order);
    env.network.settle();
    let answer = lock(host).answers.pop().expect("an answer");
    assert!(lock(host).answers.is_empty());
    (answer.status.expect("it was sent"), answer.values)
}

#[test]
fn zeroing_of_a_host_that_has_disconnected_ends_before_it_connects_again() {
    let (mut env, kernel, folder) = Env::on_file(6);
    let host = env.host(2);
    let session = env.session(&host, 1);
    let byte = |block: u64| std::fs::read(folder.path().join("disk")).expect("the file")[block as usize * 4096];
    for block in [0, 200] {
        assert!(run(&mut env, &host, tracked(session, IoKind::Write, block, 1, 0x0505)).0.is_success());
    }
    // The hole is refused, then the range; then parts of 256 KiB are written, from the first block on.
    kernel.set_faults(Faults { slow: 900_000, ..NO_ZEROING });
    env.order(&host, tracked(session, IoKind::WriteZeroesDeallocate, 0, MIB, 1));
    while byte(0) != 0 {
        env.network.turn();
    }
    env.order(&host, Order::Disconnect { session, qid: 0 });
    env.order(&host, Order::Begin { io_queues: 1 });
    let session = 1;
    while !lock(&host).is_ready(session) {
        env.network.turn();
    }
    kernel.set_faults(NO_ZEROING);
    assert_eq!(byte(200), 5, "the zeroing went on");
    assert!(run(&mut env, &host, tracked(session, IoKind::Write, 200, 1, 77)).0.is_success());
    assert!(run(&mut env, &host, tracked(session, IoKind::Flush, 0, 1, 2)).0.is_success());
    env.network.advance(Duration::from_millis(500));
    assert_eq!(run(&mut env, &host, tracked(session, IoKind::Read, 200, 1, 3)), (Status::SUCCESS, vec![Some(77)]));
    env.order(&host, Order::ShutDown { session });
    env.network.settle();
    env.expect_nothing_left();
}

#[test]
fn a_host_connects_again_when_its_commands_are_out_of_the_storage_or_is_refused_after_five_seconds() {
    let (mut env, kernel, _folder) = Env::on_file(7);
    let (host, other) = (env.host(2), env.host(3));
    let session = env.session(&host, 1);
    kernel.set_faults(Faults { slow: 1_000_000, ..NO_ZEROING });
    env.order(&host, tracked(session, IoKind::Write, 9, 1, 1));
    turns(&mut env, 50);
    env.order(&host, Order::Disconnect { session, qid: 0 });
    turns(&mut env, 50);
    // Another host does not wait.
    env.order(&other, Order::Begin { io_queues: 1 });
    env.order(&host, Order::Begin { io_queues: 1 });
    turns(&mut env, 100);
    assert!(lock(&other).is_ready(0) && !lock(&host).is_ready(1));
    let wait = |env: &mut Env, seconds: u64| {
        for _ in 0..seconds * 20 {
            env.network.now += Duration::from_millis(50);
            turns(env, 4);
            env.order(&other, Order::KeepAlive { session: 0 });
        }
    };
    wait(&mut env, 4);
    assert_eq!(env.counter("refused"), 0);
    wait(&mut env, 2);
    assert_eq!(env.counter("refused"), 1);
    env.order(&host, Order::Begin { io_queues: 1 });
    turns(&mut env, 100);
    assert!(!lock(&host).is_ready(2));
    kernel.set_faults(NO_ZEROING);
    env.network.settle();
    assert!(lock(&host).is_ready(2));
    for (host, session) in [(&host, 2), (&other, 0)] {
        env.order(host, Order::ShutDown { session });
    }
    env.network.settle();
    env.expect_nothing_left();
}

#[test]
fn after_a_failed_flush_the_disk_is_read_only_for_all_hosts_until_it_is_recovered() {
    let (mut env, kernel, _folder) = Env::on_file(8);
    let (host, other) = (env.host(2), env.host(3));
    let (first, second) = (env.session(&host, 1), env.session(&other, 1));
    assert!(run(&mut env, &host, tracked(first, IoKind::Write, 3, 1, 33)).0.is_success());
    kernel.set_faults(Faults { failing_flushes: 1, ..NO_ZEROING });
    for (host, session) in [(&host, first), (&host, first), (&other, second)] {
        let (status, _) = run(&mut env, host, tracked(session, IoKind::Flush, 0, 1, 1));
        assert_eq!(status, Status { more: true, ..Status::permanent(StatusCode::Internal) });
        let (status, _) = run(&mut env, host, tracked(session, IoKind::Write, 3, 1, 34));
        assert_eq!(status, Status::permanent(StatusCode::NamespaceWriteProtected));
        let read = run(&mut env, host, tracked(session, IoKind::Read, 3, 1, 2));
        assert_eq!(read, (Status::SUCCESS, vec![Some(33)]));
    }
    let subsystem = SUBSYSTEM.parse().expect("an NQN");
    env.shared.recover(&subsystem, 1).expect("it failed, and can be flushed");
    assert!(env.shared.recover(&subsystem, 1).is_err(), "there is nothing to recover from");
    env.network.advance(Duration::from_millis(300));
    for (host, session, token) in [(&other, second, 41), (&host, first, 42)] {
        assert!(run(&mut env, host, tracked(session, IoKind::WriteDurably, 3, 1, token)).0.is_success());
        assert!(run(&mut env, host, tracked(session, IoKind::Flush, 0, 1, 1)).0.is_success());
        env.order(host, Order::ShutDown { session });
    }
    env.network.settle();
    env.expect_nothing_left();
}

/// For the time in which the storage has a command, as the service is never idle then.
fn turns(env: &mut Env, count: usize) {
    for _ in 0..count {
        env.network.turn();
    }
}

/// Reads a log on the wire.
fn read_log(env: &mut Env, host: &Arc<Mutex<Host>>, session: usize, log: LogId) -> Vec<u8> {
    env.order(host, Order::ReadLog { session, log, len: 512 });
    env.network.settle();
    lock(host).logs.pop().expect("the log")
}

/// Critical warning and media errors of the SMART log.
fn smart(env: &mut Env, host: &Arc<Mutex<Host>>, session: usize) -> (u8, u8) {
    // The workers' counts are reported now and then.
    env.network.advance(Duration::from_millis(300));
    let log = read_log(env, host, session, LogId::Smart);
    (log[0], log[160])
}

/// Queue, command, namespace and status of the latest errors.
fn errors(env: &mut Env, host: &Arc<Mutex<Host>>, session: usize) -> Vec<(u8, u8, Status)> {
    let log = read_log(env, host, session, LogId::Error);
    let entries = log.chunks(64).filter(|entry| entry[0] != 0);
    let entry = |bytes: &[u8]| (bytes[8], bytes[24], ErrorEntry::read_from_bytes(bytes).expect("64 bytes").status());
    entries.map(entry).collect()
}

#[test]
fn a_failed_flush_is_in_the_logs_and_an_event_for_all_hosts() {
    let (mut env, kernel, _folder) = Env::on_file(18);
    let (host, other) = (env.host(2), env.host(3));
    let (first, second) = (env.session(&host, 1), env.session(&other, 1));
    assert_eq!((smart(&mut env, &host, first), errors(&mut env, &host, first)), ((0, 0), Vec::new()));
    kernel.set_faults(Faults { failing_flushes: 1, ..NO_ZEROING });
    let flush = |token| tracked(0, IoKind::Flush, 0, 1, token);
    let (status, _) = run(&mut env, &host, flush(1));
    assert_eq!(status.code, StatusCode::Internal);
    for (host, session) in [(&host, first), (&other, second)] {
        assert_eq!(lock(host).events, [AsyncEvent::NamespaceChanged]);
        // Reliability is degraded, and all media are read-only: there is no other disk.
        assert_eq!(smart(&mut env, host, session), (1 << 2 | 1 << 3, 1));
    }
    let entry = (1, 1, status);
    assert_eq!((errors(&mut env, &host, first), errors(&mut env, &other, second)), (vec![entry], Vec::new()));
    run(&mut env, &other, flush(2));
    assert_eq!(errors(&mut env, &other, second), [entry]);
    assert_eq!(smart(&mut env, &other, second).1, 1, "nothing more was lost");
    env.shared.recover(&SUBSYSTEM.parse().expect("an NQN"), 1).expect("it failed, and can be flushed");
    env.follow();
    assert_eq!(smart(&mut env, &other, second), (0, 1));
    assert!(run(&mut env, &other, tracked(second, IoKind::WriteDurably, 7, 1, 77)).0.is_success());
    for (host, session) in [(&host, first), (&other, second)] {
        env.order(host, Order::ShutDown { session });
    }
    env.network.settle();
    env.expect_nothing_left();
}

#[test]
fn a_flush_that_fails_after_its_host_has_gone_makes_the_disk_read_only_for_the_others() {
    let (mut env, kernel, _folder) = Env::on_file(19);
    let (host, other) = (env.host(2), env.host(3));
    let (first, second) = (env.session(&host, 1), env.session(&other, 1));
    kernel.set_faults(Faults { slow: 1_000_000, failing_flushes: 1, ..NO_ZEROING });
    env.order(&host, tracked(first, IoKind::Flush, 0, 1, 1));
    turns(&mut env, 50);
    env.order(&host, Order::Disconnect { session: first, qid: 1 });
    turns(&mut env, 50);
    assert!(!env.is_failed(1));
    kernel.set_faults(Faults { failing_flushes: 1, ..NO_ZEROING });
    env.network.settle();
    assert!(env.is_failed(1));
    let (status, _) = run(&mut env, &other, tracked(second, IoKind::Write, 3, 1, 34));
    assert_eq!(status, Status::permanent(StatusCode::NamespaceWriteProtected));
    env.order(&other, Order::ShutDown { session: second });
    env.network.settle();
    env.expect_nothing_left();
}

#[test]
fn media_errors_of_a_host_that_disconnects_are_counted_and_a_full_disk_is_none() {
    let (mut env, kernel, _folder) = Env::on_file(20);
    let (host, other) = (env.host(2), env.host(3));
    let (first, second) = (env.session(&host, 1), env.session(&other, 1));
    kernel.set_faults(Faults { no_space: 1_000_000, ..NO_ZEROING });
    let (status, _) = run(&mut env, &host, tracked(first, IoKind::Write, 3, 1, 33));
    assert_eq!(status.code, StatusCode::CapacityExceeded);
    kernel.set_faults(Faults { io_error: 1_000_000, ..NO_ZEROING });
    for token in [1, 2] {
        let (status, _) = run(&mut env, &host, tracked(first, IoKind::Read, 3, 1, token));
        assert_eq!(status.code, StatusCode::UnrecoveredReadError);
    }
    env.order(&host, Order::Disconnect { session: first, qid: 1 });
    env.network.settle();
    assert_eq!(smart(&mut env, &other, second), (0, 2));
    env.order(&other, Order::ShutDown { session: second });
    env.network.settle();
    env.expect_nothing_left();
}

#[test]
fn a_host_without_keep_alive_stays_while_its_adapter_answers_and_is_freed_when_it_does_not() {
    let mut env = Env::new(10);
    let host = env.host(2);
    lock(&host).forgo_keep_alive();
    let session = env.session(&host, 1);
    env.network.advance(Duration::from_secs(600));
    assert!(lock(&host).is_ready(session) && env.shared.target().controller_count() == 1);
    env.order(&host, io(session, IoKind::Write, 8));
    env.network.settle();
    assert_eq!(progress(&host), (1, 0));
    env.network.cut(2);
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
    // Four commands with their memory; two wait.
    assert_eq!(lock(&env.target).admission.in_use(), ((4 << 20) + 4, 2));
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

/// Turns of the network until a host has written 8 blocks so many times, one after the other, while others keep 64 writes of
/// 1 MiB outstanding each.
fn turns_of(env: &mut Env, (host, session): (&Arc<Mutex<Host>>, usize), busy: &[Arc<Mutex<Host>>], writes: u64) -> u64 {
    let mut turns = 0;
    for token in 0..writes {
        env.order(host, tracked(session, IoKind::Write, token % 31 * 8, 8, token));
        while lock(host).answers.is_empty() {
            keep_busy(env, busy);
            assert!(turns < 1_000_000, "nothing completes");
            env.network.turn();
            turns += 1;
        }
        let answer = lock(host).answers.pop().expect("an answer");
        assert_eq!(answer.status, Some(Status::SUCCESS));
    }
    turns
}

fn keep_busy(env: &mut Env, busy: &[Arc<Mutex<Host>>]) {
    for host in busy {
        for _ in progress(host).1..64 {
            env.order(host, io(0, IoKind::Write, MIB));
        }
    }
}

#[test]
fn two_hosts_with_many_long_writes_leave_a_third_a_third_of_its_rate_and_it_connects_at_once() {
    let mut env = Env::new(9);
    let third = env.host(4);
    let session = env.session(&third, 1);
    let alone = turns_of(&mut env, (&third, session), &[], 20);
    env.order(&third, Order::ShutDown { session });
    env.network.settle();
    let busy: Vec<_> = [2, 3].map(|number| env.host(number)).into();
    for host in &busy {
        env.session(host, 1);
    }
    for _ in 0..500 {
        keep_busy(&mut env, &busy);
        env.network.turn();
    }
    env.order(&third, Order::Begin { io_queues: 1 });
    let session = session + 1;
    for _ in 0..500 {
        keep_busy(&mut env, &busy);
        env.network.turn();
    }
    assert!(lock(&third).is_ready(session), "it is not connected: {}", env.registry);
    let before: u64 = busy.iter().map(|host| progress(host).0).sum();
    let beside = turns_of(&mut env, (&third, session), &busy, 20);
    let after: u64 = busy.iter().map(|host| progress(host).0).sum();
    assert!(beside <= 3 * alone, "{beside} turns beside others, {alone} alone");
    assert!(after > before, "the others are locked out");
    assert_eq!(env.counter("malformed"), 0);
    for (host, session) in [(&third, session), (&busy[0], 0), (&busy[1], 0)] {
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
