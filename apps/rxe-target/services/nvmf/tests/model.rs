//! Random programs of several hosts, with faults of the storage, against a model of the disks.
//!
//! A program connects, disconnects, sends commands, changes disks and hosts, kills the target and cuts its power. The storage
//! fails, delays and shortens requests. Every read finds what [`DiskModel`] allows, every command completes once, with a status
//! that has a cause, and at the end nothing of any host is left.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rxe_nvmf::subsystem::AllowedHosts;
use rxe_nvmf::wire::{Nqn, StatusCode};
use rxe_proto::Duration;
use rxe_proto::mem::HeapAllocator;
use rxe_storage::simulated::{Faults, SimulatedKernel};
use rxe_testkit::rng::Rng;
use rxe_testkit::temp::TempDir;

use super::disks_model::{DiskModel, Moment};
use super::host::{Answer, Host, IoKind, Order, TRACKED};
use super::{Env, SUBSYSTEM, TARGET, config_of, lock, shm};
use crate::config::nvmf::Backing;

/// Blocks of a disk at its start, and the most that it grows to.
const BLOCKS: u64 = 48;
const MOST: u64 = 64;
/// The longest command.
const LONGEST: u64 = 8;
const HOSTS: [u8; 3] = [2, 3, 4];
const DISKS: [u32; 2] = [1, 2];

/// Where the disks are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    File,
}

/// A command without an answer.
struct Pending {
    host: usize,
    session: usize,
    nsid: u32,
    kind: IoKind,
    place: (u64, u64),
    began: Moment,
    /// The host has been started again since.
    is_forgotten: bool,
}

/// A host of the program.
struct Client {
    number: u8,
    service: Arc<Mutex<Host>>,
    session: Option<usize>,
    io_queues: u16,
}

struct Program {
    seed: u64,
    rng: Rng,
    env: Env,
    kind: Kind,
    checksums: bool,
    kernel: SimulatedKernel,
    faults: Faults,
    folder: TempDir,
    generation: u32,
    clients: Vec<Client>,
    disks: BTreeMap<u32, DiskModel>,
    /// Disks that are not there, or were not a while ago.
    removed: BTreeMap<u32, bool>,
    pending: BTreeMap<u64, Pending>,
    /// Writes of hosts that have vanished: they may still be carried out.
    unanswered: BTreeMap<u64, Pending>,
    now: Moment,
    tokens: u64,
    seen: Seen,
}

/// What programs have seen, so that they cannot pass without having done it.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    blocks_read: u64,
    flushes: u64,
    errors: u64,
    read_only: u64,
    restarts: u64,
    power_failures: u64,
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Seen) {
        self.blocks_read += other.blocks_read;
        self.flushes += other.flushes;
        self.errors += other.errors;
        self.read_only += other.read_only;
        self.restarts += other.restarts;
        self.power_failures += other.power_failures;
    }
}

fn subsystem() -> Nqn {
    SUBSYSTEM.parse().expect("an NQN")
}

fn faults(rng: &mut Rng) -> Faults {
    let mut chance = |of: u64, ppm: u32| if rng.below(of) == 0 { ppm } else { 0 };
    Faults {
        io_error: chance(4, 20_000),
        no_space: chance(4, 20_000),
        short: chance(2, 200_000),
        flush_error: chance(4, 100_000),
        spared_flushes: 0,
        failing_flushes: 0,
        slow: chance(2, 700_000).max(chance(4, 980_000)),
        no_holes: rng.below(2) == 0,
        no_zero_range: rng.below(2) == 0,
    }
}

fn path(folder: &TempDir, generation: u32, nsid: u32) -> PathBuf {
    folder.path().join(format!("disk{nsid}-{generation}"))
}

impl Program {
    fn new(kind: Kind, checksums: bool, seed: u64) -> Program {
        let mut rng = Rng(seed);
        let faults = if kind == Kind::File { faults(&mut rng) } else { Faults::default() };
        let kernel = SimulatedKernel::new(seed, faults);
        let folder = TempDir::new(shm());
        if kind == Kind::File {
            for nsid in DISKS {
                let file = std::fs::File::create(path(&folder, 0, nsid));
                file.and_then(|file| file.set_len(BLOCKS * 4096)).expect("a file");
            }
        }
        let backings = backings(kind, &folder, 0);
        let env = Env::of(seed, config_of(backings, checksums), (kind == Kind::File).then(|| kernel.clone()));
        let mut program = Program {
            seed,
            rng,
            env,
            kind,
            checksums,
            kernel,
            faults,
            folder,
            generation: 0,
            clients: Vec::new(),
            disks: DISKS.map(|nsid| (nsid, DiskModel::new(BLOCKS))).into(),
            removed: BTreeMap::new(),
            pending: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            now: 2,
            tokens: 0,
            seen: Seen::default(),
        };
        for number in HOSTS {
            let service = program.env.host(number);
            program.clients.push(Client { number, service, session: None, io_queues: 0 });
        }
        program
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// One turn of the network; checks the answers.
    fn turn(&mut self) {
        self.env.network.turn();
        for host in 0..self.clients.len() {
            let service = Arc::clone(&self.clients[host].service);
            let answers = std::mem::take(&mut lock(&service).answers);
            answers.into_iter().for_each(|answer| self.answered(&answer));
            let Some(session) = self.clients[host].session else { continue };
            if lock(&service).has_ended(session) {
                self.clients[host].session = None;
                self.give_up(|pending| pending.host == host && pending.session == session);
            }
            if lock(&service).is_ready(session) {
                // Its Connect has waited for the commands of its earlier sessions.
                self.ended(|pending| pending.host == host && (pending.is_forgotten || pending.session < session));
            }
        }
    }

    fn turns(&mut self, count: u64) {
        (0..count).for_each(|_| self.turn());
    }

    /// Lets time pass, in which the hosts stay.
    fn advance(&mut self, time: Duration) {
        let end = self.env.network.now + time;
        while self.env.network.now < end {
            self.env.network.now += Duration::from_millis(50);
            self.turns(2);
            if (self.env.network.now.as_nanos() / 500_000_000).is_multiple_of(2) {
                self.keep_alive();
            }
        }
    }

    fn advance_up_to(&mut self, millis: u64) {
        let millis = self.rng.below(millis);
        self.advance(Duration::from_millis(millis));
    }

    fn keep_alive(&mut self) {
        for Client { service, session, .. } in &self.clients {
            if let Some(session) = *session {
                lock(service).orders.push_back(Order::KeepAlive { session });
            }
        }
    }

    fn order(&mut self, host: usize, order: Order) {
        lock(&self.clients[host].service).orders.push_back(order);
    }

    /// Commands that are not answered any more.
    fn give_up(&mut self, is_gone: impl Fn(&Pending) -> bool) {
        let gone = self.pending.extract_if(.., |_, pending| is_gone(pending));
        self.unanswered.extend(gone);
    }

    /// Commands that were not answered have ended.
    fn ended(&mut self, has_ended: impl Fn(&Pending) -> bool) {
        let now = self.now;
        for (_, pending) in self.unanswered.extract_if(.., |_, pending| has_ended(pending)) {
            let Some(disk) = self.disks.get_mut(&pending.nsid) else { continue };
            disk.end(pending.place, pending.began, now, false, false);
        }
    }

    fn begin_session(&mut self, host: usize) {
        if self.clients[host].session.is_none() {
            let session = lock(&self.clients[host].service).sessions();
            let io_queues = 1 + self.rng.below(2) as u16;
            self.order(host, Order::Begin { io_queues });
            (self.clients[host].session, self.clients[host].io_queues) = (Some(session), io_queues);
            self.turns(30);
        }
    }

    fn is_ready(&self, host: usize) -> bool {
        self.clients[host].session.is_some_and(|session| lock(&self.clients[host].service).is_ready(session))
    }

    /// The host connects again while its commands are in the storage, and writes the same blocks.
    fn reconnect(&mut self, host: usize) {
        (0..8).for_each(|_| self.command(host));
        self.turns(4);
        let Some(session) = self.clients[host].session else { return };
        let written = self
            .pending
            .iter()
            .filter(|(token, pending)| pending.host == host && value_of(pending.kind, **token).is_some());
        let written: Vec<_> = written.map(|(_, pending)| (pending.nsid, pending.place)).collect();
        if self.rng.below(2) == 0 {
            self.order(host, Order::Disconnect { session, qid: 0 });
            self.turns(20);
        } else {
            self.restart_host(host);
        }
        self.begin_session(host);
        self.turns(30);
        let Some(session) = self.clients[host].session.filter(|_| self.is_ready(host)) else { return };
        for (nsid, place) in written {
            self.send(host, session, 1, nsid, IoKind::Write, place);
        }
    }

    fn command(&mut self, host: usize) {
        let Some(session) = self.clients[host].session.filter(|_| self.is_ready(host)) else { return };
        let outstanding = self.pending.values().filter(|pending| pending.host == host).count();
        if outstanding >= TRACKED {
            return;
        }
        let nsid = DISKS[self.rng.below(DISKS.len() as u64) as usize];
        let kinds = [
            IoKind::Read,
            IoKind::Read,
            IoKind::Write,
            IoKind::Write,
            IoKind::Write,
            IoKind::WriteDurably,
            IoKind::Flush,
            IoKind::Compare,
            IoKind::Verify,
            IoKind::WriteZeroes,
            IoKind::WriteZeroesDeallocate,
            IoKind::Deallocate,
        ];
        let kind = kinds[self.rng.below(kinds.len() as u64) as usize];
        let count = 1 + self.rng.below(LONGEST);
        let first = self.rng.below(self.disks[&nsid].len() - count + 1);
        let qid = 1 + self.rng.below(self.clients[host].io_queues.into()) as u16;
        self.send(host, session, qid, nsid, kind, (first, count));
    }

    fn send(&mut self, host: usize, session: usize, qid: u16, nsid: u32, kind: IoKind, place: (u64, u64)) {
        self.tokens += 1;
        let (token, began) = (self.tokens, self.tick());
        if let Some(value) = value_of(kind, token) {
            self.disks.get_mut(&nsid).expect("a disk").begin(place, value, began);
        }
        let (block, blocks) = (place.0, place.1 as u32);
        self.order(host, Order::Tracked { session, qid, nsid, kind, block, blocks, token });
        self.pending.insert(token, Pending { host, session, nsid, kind, place, began, is_forgotten: false });
    }

    /// An answer, which has a cause.
    fn answered(&mut self, answer: &Answer) {
        let now = self.tick();
        let pending = self.pending.remove(&answer.token);
        // After the end of its session an answer may have been there already.
        let Some(Pending { nsid, kind, place, began, .. }) = pending else { return };
        let seed = self.seed;
        let disk = self.disks.get_mut(&nsid).expect("a disk");
        let blocks = place.0..place.0 + place.1;
        let status = match answer.status {
            Some(status) => status,
            // It was not sent.
            None => return disk.end(place, began, began, false, false),
        };
        let has = |ppm: u32| ppm > 0;
        let Faults { io_error, no_space, flush_error, .. } = self.faults;
        match (status.code, kind) {
            _ if status.is_success() => match kind {
                IoKind::Read => {
                    assert_eq!(answer.values.len() as u64, place.1);
                    self.seen.blocks_read += place.1;
                    for (block, found) in blocks.zip(&answer.values) {
                        disk.check(block, *found, began, now);
                    }
                }
                IoKind::Compare => {
                    for block in blocks {
                        assert!(disk.can_be(block, answer.token, began, now).0, "Compare, block {block}, seed {seed}");
                    }
                }
                IoKind::Flush => {
                    self.seen.flushes += 1;
                    disk.flushed(began);
                }
                IoKind::Verify => {}
                // Where there are no holes it has no effect.
                IoKind::Deallocate => disk.end(place, began, now, self.kind == Kind::Memory, false),
                _ => disk.end(place, began, now, true, kind == IoKind::WriteDurably),
            },
            (StatusCode::CompareFailure, IoKind::Compare) => {
                let differs = |block| disk.can_be(block, answer.token, began, now).1;
                assert!(blocks.into_iter().any(differs), "Compare fails, seed {seed}");
            }
            (code, _) => {
                let is_allowed = match code {
                    StatusCode::WriteFault => has(io_error),
                    StatusCode::UnrecoveredReadError => {
                        has(io_error) || self.checksums && blocks.clone().any(|of| disk.is_undefined(of, began, now))
                    }
                    StatusCode::CapacityExceeded => has(no_space),
                    StatusCode::Internal => has(flush_error) || has(io_error) && self.checksums,
                    StatusCode::NamespaceWriteProtected => has(flush_error) || has(io_error) && self.checksums,
                    StatusCode::InvalidNamespace => self.removed.contains_key(&nsid),
                    _ => false,
                };
                self.seen.errors += 1;
                self.seen.read_only += u64::from(code == StatusCode::NamespaceWriteProtected);
                assert!(is_allowed, "{kind:?} of {place:?} is answered {status:?}, seed {seed}");
                if matches!(code, StatusCode::Internal | StatusCode::NamespaceWriteProtected) {
                    disk.flush_failed();
                }
                let was_refused = matches!(code, StatusCode::NamespaceWriteProtected | StatusCode::InvalidNamespace);
                disk.end(place, began, if was_refused { began } else { now }, false, false);
            }
        }
    }

    /// A removed disk comes back; a failed one can be written again.
    fn restore(&mut self) {
        for nsid in DISKS {
            if self.removed.get(&nsid) == Some(&true) {
                if self.env.shared.reap() > 0 {
                    continue;
                }
                let config = config_of(backings(self.kind, &self.folder, self.generation), self.checksums);
                let namespace = config.subsystems[0].namespaces.iter().find(|of| of.nsid == nsid).expect("a disk");
                self.env.shared.add_namespace(&subsystem(), namespace, &HeapAllocator).expect("it is free");
                self.env.follow();
                self.removed.insert(nsid, false);
                if self.kind == Kind::Memory {
                    self.renew(nsid);
                }
            } else if self.env.shared.recover(&subsystem(), nsid).is_ok() {
                self.env.follow();
                self.disks.get_mut(&nsid).expect("a disk").flush_failed();
            }
        }
    }

    /// A disk in memory has come back: it is empty, but for what is still to be carried out.
    fn renew(&mut self, nsid: u32) {
        let mut disk = DiskModel::new(BLOCKS);
        let sent = self.pending.iter().map(|(token, pending)| (*token, pending));
        let all = sent.chain(self.unanswered.iter().map(|(token, pending)| (*token, pending)));
        for (token, pending) in all.filter(|(_, pending)| pending.nsid == nsid) {
            if let Some(value) = value_of(pending.kind, token) {
                disk.begin(pending.place, value, pending.began);
            }
        }
        self.disks.insert(nsid, disk);
    }

    fn remove_disk(&mut self) {
        let nsid = DISKS[self.rng.below(2) as usize];
        if self.removed.get(&nsid) != Some(&true) {
            self.env.shared.remove_namespace(&subsystem(), nsid).expect("it is there");
            self.env.follow();
            self.removed.insert(nsid, true);
            self.advance_up_to(600);
        }
    }

    fn grow(&mut self) {
        let nsid = DISKS[self.rng.below(2) as usize];
        let disk = self.disks.get_mut(&nsid).expect("a disk");
        let blocks = (disk.len() + 1 + self.rng.below(4)).min(MOST);
        // The simulated kernel does not see what is written to the file of checksums then.
        if self.kind == Kind::Memory || self.checksums || self.removed.get(&nsid) == Some(&true) {
            return;
        }
        let file = std::fs::File::options().write(true).open(path(&self.folder, self.generation, nsid));
        file.and_then(|file| file.set_len(blocks * 4096)).expect("it grows");
        assert_eq!(self.env.shared.grow(&subsystem(), nsid).ok(), Some(blocks * 4096));
        self.env.follow();
        self.disks.get_mut(&nsid).expect("a disk").grow(blocks);
    }

    /// Only one host may use the subsystem for a while.
    fn remove_hosts(&mut self) {
        let host = format!("nqn.2026-01.test:host{}", HOSTS[self.rng.below(3) as usize]);
        let only = AllowedHosts::Only([host.parse().expect("an NQN")].into());
        self.env.shared.set_hosts(&subsystem(), only).expect("it is there");
        self.env.follow();
        self.advance_up_to(600);
        self.env.shared.set_hosts(&subsystem(), AllowedHosts::Any).expect("it is there");
    }

    /// The host loses its power, and starts again.
    fn restart_host(&mut self, host: usize) {
        let number = self.clients[host].number;
        self.env.network.cut(number);
        self.clients[host] = Client { number, service: self.env.host(number), session: None, io_queues: 0 };
        self.give_up(|pending| pending.host == host);
        for pending in self.unanswered.values_mut().filter(|pending| pending.host == host) {
            pending.is_forgotten = true;
        }
    }

    /// The target is killed, or loses its power, and starts again.
    fn restart_target(&mut self, loses_power: bool) {
        if self.kind == Kind::Memory {
            return;
        }
        self.seen.restarts += u64::from(!loses_power);
        self.seen.power_failures += u64::from(loses_power);
        drop(self.env.network.cut(TARGET));
        let from = self.generation;
        if loses_power {
            self.generation += 1;
            for nsid in DISKS {
                let [from, to] = [from, self.generation].map(|generation| path(&self.folder, generation, nsid));
                self.kernel.power_failure(&from, &to).expect("both files");
                if self.checksums {
                    let [from, to] = [from, to].map(|path| PathBuf::from(format!("{}.crc32c", path.display())));
                    self.kernel.power_failure(&from, &to).expect("both files");
                }
            }
        }
        for host in 0..self.clients.len() {
            self.restart_host(host);
        }
        let config = config_of(backings(self.kind, &self.folder, self.generation), self.checksums);
        self.env.stop(&config);
        // A flush may fail at the end, and a restart ends what follows from that.
        self.env.shared.note_failed_flushes();
        for nsid in DISKS.into_iter().filter(|nsid| self.env.is_failed(*nsid)) {
            self.disks.get_mut(&nsid).expect("a disk").flush_failed();
        }
        self.env.restart(&config, Some(self.kernel.clone()));
        self.removed.clear();
        self.ended(|_| true);
        if loses_power {
            for nsid in DISKS {
                let bytes = std::fs::read(path(&self.folder, self.generation, nsid)).expect("the file");
                let disk = self.disks.get_mut(&nsid).expect("a disk");
                for (block, bytes) in (0..disk.len()).zip(bytes.chunks(4096)) {
                    let (words, _) = bytes.as_chunks::<8>();
                    let value = words.iter().all(|word| *word == words[0]).then(|| u64::from_le_bytes(words[0]));
                    disk.after_power_failure(block, value);
                }
            }
        }
    }

    fn step(&mut self) {
        let host = self.rng.below(HOSTS.len() as u64) as usize;
        match self.rng.below(64) {
            0..12 => self.begin_session(host),
            12 => {
                if let Some(session) = self.clients[host].session {
                    self.order(host, Order::ShutDown { session });
                }
            }
            13..15 => {
                if let Some(session) = self.clients[host].session {
                    let qid = self.rng.below(2) as u16;
                    self.order(host, Order::Disconnect { session, qid });
                }
            }
            15 => self.order(host, Order::Connects { qid: 0, count: 2 }),
            16 => self.restart_host(host),
            17 => self.remove_disk(),
            18..20 => self.restore(),
            20 => self.grow(),
            21 => self.remove_hosts(),
            22 => self.restart_target(false),
            23..25 => self.restart_target(true),
            25..27 => self.advance_up_to(700),
            27..30 => self.reconnect(host),
            _ => (0..1 + self.rng.below(8)).for_each(|_| self.command(host)),
        }
        let turns = self.rng.below(12);
        self.turns(turns);
        if self.rng.below(4) == 0 {
            self.keep_alive();
        }
    }

    /// Every command of a session that is left is answered, and what the disks have is what they may have.
    fn finish(&mut self) {
        self.faults = Faults { io_error: 0, no_space: 0, flush_error: 0, slow: 0, ..self.faults };
        let allowed = self.faults;
        self.kernel.set_faults(self.faults);
        // Requests that have failed may be answered still.
        self.faults = Faults { io_error: 1, no_space: 1, flush_error: 1, ..allowed };
        self.wait(|program| program.pending.is_empty());
        self.wait(|program| {
            program.restore();
            DISKS.into_iter().all(|nsid| !program.env.is_failed(nsid))
                && program.removed.values().all(|is_gone| !is_gone)
        });
        self.faults = allowed;
        self.begin_session(0);
        self.wait(|program| {
            program.begin_session(0);
            program.is_ready(0)
        });
        let session = self.clients[0].session.expect("it is ready");
        for nsid in DISKS {
            let blocks = self.disks[&nsid].len();
            for first in (0..blocks).step_by(LONGEST as usize) {
                let place = (first, LONGEST.min(blocks - first));
                self.send(0, session, 1, nsid, IoKind::Read, place);
                self.wait(|program| program.pending.is_empty());
            }
        }
        for host in 0..self.clients.len() {
            if let Some(session) = self.clients[host].session {
                self.order(host, Order::ShutDown { session });
            }
        }
        self.env.network.settle();
        self.env.expect_nothing_left();
    }

    fn wait(&mut self, mut is_done: impl FnMut(&mut Program) -> bool) {
        for _ in 0..400 {
            if is_done(self) {
                return;
            }
            self.turns(20);
            self.advance(Duration::from_millis(50));
        }
        panic!(
            "it does not end, seed {}: {} commands are not answered, {}",
            self.seed,
            self.pending.len(),
            self.env.registry
        );
    }
}

fn backings(kind: Kind, folder: &TempDir, generation: u32) -> Vec<Backing> {
    let backing = |nsid| match kind {
        Kind::Memory => Backing::Ram { size: BLOCKS as usize * 4096 },
        Kind::File => Backing::File { path: path(folder, generation, nsid), direct: false },
    };
    DISKS.map(backing).into()
}

/// The value of the blocks after a command; `None` if it does not change them.
fn value_of(kind: IoKind, token: u64) -> Option<u64> {
    match kind {
        IoKind::Write | IoKind::WriteDurably => Some(token),
        IoKind::WriteZeroes | IoKind::WriteZeroesDeallocate | IoKind::Deallocate => Some(0),
        _ => None,
    }
}

fn run(kind: Kind, checksums: bool, seed: u64) -> Seen {
    let mut program = Program::new(kind, checksums, seed);
    for _ in 0..30 + program.rng.below(60) {
        program.step();
    }
    program.finish();
    program.seen
}

/// Runs programs: 2,000 in all tests together, 200,000 in the nightly run.
fn programs(kind: Kind, checksums: bool) {
    let nightly = std::env::var_os("RXE_NIGHTLY").is_some_and(|value| !value.is_empty());
    let (first, count) = match std::env::var("RXE_SEED") {
        Ok(seed) => (seed.parse().expect("RXE_SEED is a number"), 1),
        Err(_) => (1, if nightly { 50_000 } else { 500 }),
    };
    let mut seen = Seen::default();
    for seed in first..first + count {
        match std::panic::catch_unwind(|| run(kind, checksums, seed)) {
            Ok(of) => seen += of,
            Err(panic) => {
                eprintln!("the program of RXE_SEED={seed} fails");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{count} programs: {seen:?}");
    if count > 1 {
        assert!(seen.blocks_read > 100 * count && seen.flushes > count, "{seen:?}");
        let of_files = [seen.errors, seen.read_only, seen.restarts, seen.power_failures];
        assert!(kind == Kind::Memory || of_files.into_iter().all(|number| number > count / 2), "{seen:?}");
    }
}

#[test]
fn programs_on_memory_find_what_the_standard_allows() {
    programs(Kind::Memory, false);
}

#[test]
fn programs_on_memory_with_checksums_find_what_the_standard_allows() {
    programs(Kind::Memory, true);
}

#[test]
fn programs_on_files_find_what_the_standard_allows() {
    programs(Kind::File, false);
}

#[test]
fn programs_on_files_with_checksums_find_what_the_standard_allows() {
    programs(Kind::File, true);
}
