//! Mutated RoCE frames with correct ICRCs, at queue pairs, regions and keys that exist: none of them changes memory that
//! its connection may not write, other connections are served, and counters say where each frame went.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::PathBuf;
use std::rc::Rc;

use rxe_dpdk::rxe_proto::wire::{DropReason, PathMtu};

use super::attacker::{Attacker, OWN_V6, Place, Service, Victim, address};
use super::mutate::Mutator;
use super::rng::{Rng, from_env};
use super::{Bed, accounting, calm_log};
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

/// Values in front of, in and behind the regions. Only those in granted regions may change.
struct Canaries {
    file: PathBuf,
    bytes: Vec<u8>,
}

impl Canaries {
    fn write(file: PathBuf, rng: &Rng) -> Canaries {
        let mut bytes = vec![0; std::fs::metadata(&file).unwrap().len() as usize];
        assert!(bytes.len() >= (REGIONS - 1) * STRIDE + REGION);
        rng.fill(&mut bytes);
        // In place: the target has the file mapped.
        let target = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&target, &bytes, 0).unwrap();
        Canaries { file, bytes }
    }

    #[track_caller]
    fn check(&self) {
        let now = std::fs::read(&self.file).unwrap();
        assert_eq!(now.len(), self.bytes.len());
        let is_granted = |at: usize| GRANTED.contains(&(at / STRIDE)) && at % STRIDE < REGION;
        let changed = (0..now.len()).find(|&at| now[at] != self.bytes[at] && !is_granted(at));
        if let Some(at) = changed {
            panic!("byte {} of region {} has changed ({REGION} belong to it)", at % STRIDE, at / STRIDE);
        }
    }

    /// Whether frames have changed each of the granted regions.
    fn granted_are_written(&self) -> bool {
        let now = std::fs::read(&self.file).unwrap();
        GRANTED.iter().all(|region| (0..REGION).any(|at| now[region * STRIDE + at] != self.bytes[region * STRIDE + at]))
    }
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

pub fn hostile_frames_change_no_foreign_memory() {
    let frames = from_env("RXE_HOSTILE_FRAMES", FRAMES);
    let rng = Rng::seeded();
    let pool = PathBuf::from(format!("/dev/shm/rxe-hostile-{}-pool", std::process::id()));
    let region = format!("pool={REGION}*{REGIONS},file={}", pool.display());
    let mut bed = Bed::start("frames", &["--address", "fd00:77::1/64", "--region", &region]);
    let canaries = Canaries::write(pool, &rng);
    let (mac, initiator) = (bed.mac(), &mut bed.initiator);

    let mut listed = initiator.connect(4792, "pool*", PathMtu::Mtu4096);
    let entries = listed.read(initiator, 0, 24 * REGIONS);
    let places = places(&entries);
    let read_only = Place { addr: listed.address(), len: listed.region_len(), rkey: listed.rkey() };
    let mut connection = initiator.connect(4792, "demo", PathMtu::Mtu4096);
    let mut secret_keys: HashSet<u32> = places.iter().map(|place| place.rkey).collect();
    secret_keys.insert(connection.rkey());
    GRANTED.iter().for_each(|&region| assert!(secret_keys.remove(&places[region].rkey)));
    let mutator = Mutator { rng, secret_keys, legitimate_qpn: connection.peer_qpn(), read_only };

    let attacker = Rc::new(RefCell::new(Attacker::new(bed.port.id(), mac, victims())));
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
        canaries.check();
        is_served(initiator, &mut connection, &mutator.rng);
        assert!(listed.read(initiator, 0, 24 * REGIONS) == entries, "the directory may only be READ");
    }
    println!("{frames} frames in {:?}, on {} connections of the attacker", began.elapsed(), attacker.borrow().opened);
    assert!(canaries.granted_are_written(), "frames reach regions");
    assert_eq!(attacker.borrow().sent, frames);
    initiator.neighbour = None;
    drop(attacker);
    connection.disconnect(initiator);
    listed.disconnect(initiator);
    calm_log(&bed.target);
    let _ = std::fs::remove_file(&canaries.file);
    accounting(bed, &REACHED);
}
