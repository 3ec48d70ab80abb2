//! Mutated RoCE frames with correct ICRCs, at queue pairs, regions and keys that exist: none of them changes memory that
//! its connection may not write, other connections are served, and counters say where each frame went.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rxe_dpdk::rxe_proto::wire::{DropReason, PathMtu};

use super::attacker::{Attacker, OWN_V6, Place, Service, Victim, address};
use super::mutate::Mutator;
use super::rng::Rng;
use super::{accounting, check_log, from_env};
use crate::Target;
use crate::initiator::{Connection, Initiator};

/// Frames in `make test`; RXE_HOSTILE_FRAMES is another number.
const FRAMES: u64 = 200_000;

/// Frames between two checks.
const ROUND: u64 = 20_000;

/// Numbers of frames that are sent before the target's responses are read: after few frames the PSNs of the next ones are
/// those that the target expects, and many fill its queues.
const BURSTS: [u64; 3] = [16, 64, 256];

/// Numbered regions in one file. Each occupies [`STRIDE`] bytes; those behind its end belong to no region.
const REGIONS: usize = 16;
const REGION: usize = 4036;
const STRIDE: usize = 4096;

/// Length of the region that may only be READ.
const PUBLIC: usize = 8192;

/// The regions that the attacker may write, by number.
const GRANTED: [usize; 2] = [5, 10];
const GRANTED_NAMES: [&str; 2] = ["pool5", "pool10"];

/// Reasons of drops that show how deep the frames reach.
const REACHED: [DropReason; 22] = {
    use DropReason::*;
    [
        VlanMismatch,
        IpFragment,
        UdpLengthMismatch,
        HeaderTruncated,
        PadExceedsPayload,
        IcrcMismatch,
        QpnUnknown,
        QpWrongTransport,
        QpInError,
        QpWrongAddress,
        PkeyMismatch,
        QkeyMismatch,
        PsnOutOfSequence,
        OpcodeOutOfSequence,
        RemoteAccess,
        PayloadLength,
        NoReceive,
        UcMessageBroken,
        UcPsnStale,
        ResponseUnexpected,
        ResponseStale,
        HostChecksum,
    ]
};

/// The files behind the regions, removed when dropped.
pub struct Files {
    /// Numbered regions, two of which the attacker may write.
    pool: PathBuf,
    /// A region that it may READ.
    public: PathBuf,
}

impl Files {
    pub fn new() -> Files {
        let path = |name: &str| PathBuf::from(format!("/dev/shm/rxe-hostile-{}-{name}", std::process::id()));
        Files { pool: path("pool"), public: path("public") }
    }

    pub fn options(&self) -> Vec<String> {
        let pool = format!("pool={REGION}*{REGIONS},file={}", self.pool.display());
        let public = format!("public={PUBLIC},read-only,file={}", self.public.display());
        ["--address", "fd00:77::1/64", "--region", &pool, "--region", &public].map(str::to_owned).to_vec()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for file in [&self.pool, &self.public] {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// The bytes of a file, in, in front of and behind regions.
struct Canaries<'a> {
    file: &'a Path,
    bytes: Vec<u8>,
}

impl Canaries<'_> {
    /// Fills the file.
    fn write<'a>(file: &'a Path, rng: &Rng) -> Canaries<'a> {
        let mut bytes = vec![0; std::fs::metadata(file).unwrap().len() as usize];
        rng.fill(&mut bytes);
        // In place: the target has the file mapped.
        let target = std::fs::OpenOptions::new().write(true).open(file).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&target, &bytes, 0).unwrap();
        Canaries { file, bytes }
    }

    /// The first byte that has changed, of those that `which` selects.
    fn changed(&self, which: impl Fn(usize) -> bool) -> Option<usize> {
        let now = std::fs::read(self.file).unwrap();
        assert_eq!(now.len(), self.bytes.len());
        (0..now.len()).find(|&at| which(at) && now[at] != self.bytes[at])
    }
}

/// Whether a byte of the numbered regions' file belongs to region number `region`.
fn belongs_to(region: usize, at: usize) -> bool {
    at / STRIDE == region && at % STRIDE < REGION
}

fn victims() -> Vec<Victim> {
    let mtus = [PathMtu::Mtu1024, PathMtu::Mtu4096, PathMtu::Mtu256];
    let services = [
        Service::Region(GRANTED_NAMES[0]),
        Service::Region(GRANTED_NAMES[1]),
        Service::Region(GRANTED_NAMES[0]),
        Service::Rping,
        Service::Region(GRANTED_NAMES[1]),
        Service::Message,
        Service::Udaddy,
        Service::Pingpong,
    ];
    let of = |index: usize| {
        let service = services[index % services.len()];
        // A quarter over IPv6; pingpong's address is the one that its stream comes from.
        let local = if index / services.len() == 1 { OWN_V6.into() } else { address(index) };
        Victim::new(service, local, mtus[index % mtus.len()])
    };
    (0..4 * services.len()).map(of).collect()
}

/// Addresses and keys in the directory of numbered regions.
fn places(directory: &[u8]) -> Vec<Place> {
    let number = |at: usize| u64::from_be_bytes(directory[at..at + 8].try_into().unwrap());
    let place = |at: usize| Place { addr: number(at), len: number(at + 8), rkey: (number(at + 16) >> 32) as u32 };
    (0..REGIONS).map(|region| place(24 * region)).collect()
}

/// The target serves other connections: WRITE, READ and SEND.
fn is_served(initiator: &mut Initiator, connection: &mut Connection, rng: &Rng) {
    let mut bytes = vec![0; 20_000];
    rng.fill(&mut bytes);
    connection.write(initiator, 8192, &bytes);
    assert!(connection.read(initiator, 8192, bytes.len()) == bytes);
    let message = std::array::from_fn(|_| rng.next() as u8);
    assert_eq!(initiator.exchange(message), message);
}

pub fn change_no_foreign_memory(initiator: &mut Initiator, target: Target, files: &Files) {
    let frames = from_env("RXE_HOSTILE_FRAMES", FRAMES);
    let rng = Rng::seeded();
    let pool = Canaries::write(&files.pool, &rng);
    assert!(pool.bytes.len() >= (REGIONS - 1) * STRIDE + REGION, "the regions have the expected places");
    let public = Canaries::write(&files.public, &rng);

    let mut listed = initiator.connect(4792, "pool*", PathMtu::Mtu4096);
    let entries = listed.read(initiator, 0, 24 * REGIONS);
    let places = places(&entries);
    let reader = initiator.connect(4792, "public", PathMtu::Mtu4096);
    // Both may only be READ.
    let read_only = [&listed, &reader].map(|region| Place {
        addr: region.address(),
        len: region.region_len(),
        rkey: region.rkey(),
    });
    let mut connection = initiator.connect(4792, "demo", PathMtu::Mtu4096);
    let mut secret_keys: HashSet<u32> = places.iter().map(|place| place.rkey).collect();
    secret_keys.insert(connection.rkey());
    GRANTED.iter().for_each(|&region| assert!(secret_keys.remove(&places[region].rkey)));
    let mutator = Mutator { rng, secret_keys, legitimate_qpn: connection.peer_qpn(), read_only };

    let attacker = Rc::new(RefCell::new(Attacker::new(target.mac.parse().unwrap(), victims())));
    initiator.neighbour = Some(attacker.clone());
    let began = std::time::Instant::now();
    let mut queued = 0;
    while queued < frames {
        initiator.wait_for(|| attacker.borrow().is_connected());
        let round = (queued + ROUND).min(frames);
        while queued < round {
            // Frames at queue pairs in error reach little: most connections are open again before the next burst.
            initiator.wait_for(|| attacker.borrow().is_mostly_connected());
            let mut host = attacker.borrow_mut();
            for _ in 0..mutator.rng.pick(&BURSTS).min(round - queued) {
                let frame = mutator.frame(&mut host.victims).expect("an open connection");
                host.outbox.push_back(frame);
                queued += 1;
            }
            drop(host);
            // The target handles frames in order: when this WRITE is complete, the frames before it are, too.
            initiator.wait_for(|| attacker.borrow().outbox.is_empty());
            connection.write(initiator, 0, &queued.to_ne_bytes());
        }
        attacker.borrow_mut().victims.iter_mut().for_each(Victim::abandon);
        let is_granted = |at: usize| GRANTED.iter().any(|&region| belongs_to(region, at));
        let place = |at: usize| format!("byte {} of region {}, which has {REGION}", at % STRIDE, at / STRIDE);
        assert_eq!(pool.changed(|at| !is_granted(at)).map(place), None);
        assert_eq!(public.changed(|_| true), None);
        is_served(initiator, &mut connection, &mutator.rng);
        assert!(listed.read(initiator, 0, 24 * REGIONS) == entries, "the directory may only be READ");
    }
    println!("{frames} frames in {:?}, on {} connections of the attacker", began.elapsed(), attacker.borrow().opened);
    for region in GRANTED {
        assert_ne!(pool.changed(|at| belongs_to(region, at)), None, "frames reach region {region}");
    }
    assert_eq!(attacker.borrow().sent, frames);
    initiator.neighbour = None;
    for connection in [connection, listed, reader] {
        connection.disconnect(initiator);
    }
    check_log(&target);
    accounting(initiator, target, &REACHED);
}
