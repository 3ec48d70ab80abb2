use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;

use rxe_proto::Instant;
use rxe_proto::cm::{Cm, CmConfig, ConnectParams, MadPath};
use rxe_proto::mem::{KeyDomain, KeyTable, WindowKind};
use rxe_proto::transport::{Engine, EngineConfig, QpCaps, QpInit, QpType, Qpn};
use rxe_proto::wire::{MacAddr, PathMtu, PortId};

use super::*;

const COUNT: usize = 10_000;

/// Numbers that peers see, in the order in which they were made.
struct Sequence {
    kind: &'static str,
    /// The lowest bit that is not given, and how many there are from there on.
    shift: u32,
    bits: u32,
    /// Whether a number may come twice.
    repeats: bool,
    numbers: Vec<u32>,
}

/// All kinds, as a start of the adapter with this seed makes them.
fn sequences(seed: [u8; 32]) -> Vec<Sequence> {
    let mut seeds = Seeds::new(seed);
    let (engine, keys, cm) = (seeds.next_seed(), seeds.next_seed(), seeds.next_seed());
    vec![
        Sequence { kind: "queue pair", shift: 0, bits: 20, repeats: false, numbers: qpns(engine) },
        Sequence { kind: "key", shift: 1, bits: 31, repeats: false, numbers: rkeys(keys) },
        Sequence { kind: "communication id", shift: 0, bits: 32, repeats: false, numbers: comm_ids(cm) },
        Sequence {
            kind: "PSN",
            shift: 0,
            bits: 24,
            repeats: true,
            numbers: (0..COUNT).map(|_| seeds.psn().get()).collect(),
        },
    ]
}

fn qpns(seed: [u8; 32]) -> Vec<u32> {
    let mut engine = Engine::new(EngineConfig { worker: 3, seed, ..EngineConfig::default() });
    let cq = engine.create_cq(1).unwrap();
    let pd = engine.keys_mut().alloc_pd();
    let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init = QpInit { qp_type: QpType::Rc, pd, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: false };
    let mut last = None;
    let mut made = || {
        // Some stay, some go: as connections come and go.
        let qpn = engine.create_qp(Instant::ZERO, &init).unwrap();
        if let Some(last) = last.take() {
            engine.destroy_qp(Instant::ZERO, last).unwrap();
        } else {
            last = Some(qpn);
        }
        assert_eq!(qpn.worker(), 3);
        qpn.get()
    };
    (0..COUNT).map(|_| made()).collect()
}

fn rkeys(seed: [u8; 32]) -> Vec<u32> {
    let mut keys = KeyTable::new(seed, KeyDomain::Local);
    let pd = keys.alloc_pd();
    (0..COUNT).map(|_| keys.alloc_window(pd, WindowKind::Type1).unwrap()).collect()
}

fn comm_ids(seed: [u8; 32]) -> Vec<u32> {
    let limits = CmConfig { max_connections: 2 * COUNT, max_pending: 2 * COUNT, ..CmConfig::new(1, seed) };
    let mut cm = Cm::new(limits);
    let path = MadPath {
        port: PortId(0),
        local_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        peer_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        local: Ipv4Addr::new(10, 0, 0, 1).into(),
        peer: Ipv4Addr::new(10, 0, 0, 2).into(),
        traffic_class: 0,
    };
    let asked = |number| ConnectParams::new(path.clone(), (1, 2), Qpn::new(number), Psn::new(1), PathMtu::Mtu1024);
    (0..COUNT as u32).map(|number| cm.connect(Instant::ZERO, asked(number + 2)).unwrap().comm_id()).collect()
}

impl Sequence {
    /// The parts that are drawn.
    fn drawn(&self) -> Vec<u32> {
        let mask = u32::MAX >> (32 - self.bits);
        self.numbers.iter().map(|number| number >> self.shift & mask).collect()
    }

    fn check(&self) {
        let kind = self.kind;
        let drawn = self.drawn();
        let half = |share: usize, of: usize| share * 100 > of * 45 && share * 100 < of * 55;
        let distinct = drawn.iter().collect::<HashSet<_>>().len();
        assert!(distinct == COUNT || self.repeats && distinct > COUNT - 20, "{kind}: {distinct} distinct ones");

        // No order, and no step that comes often.
        let ascents = drawn.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!(half(ascents, COUNT), "{kind}: {ascents} times up");
        let mut steps = HashMap::new();
        for pair in drawn.windows(2) {
            *steps.entry(pair[1].wrapping_sub(pair[0]) % (1 << (self.bits - 1))).or_insert(0) += 1;
        }
        let most = steps.into_values().max().unwrap();
        assert!(most <= 8, "{kind}: one step comes {most} times");

        // Each bit is as often set as not, and neither it nor its inverse follows from a bit of the number before: what
        // fits best in the first half does not fit in the second one.
        let bit = |number: u32, bit: u32| number >> bit & 1;
        for of in 0..self.bits {
            let set = drawn.iter().filter(|&&number| bit(number, of) == 1).count();
            assert!(half(set, COUNT), "{kind}: bit {of} is set in {set}");
            let fits =
                |part: &[u32], by: u32| part.windows(2).filter(|pair| bit(pair[1], of) == bit(pair[0], by)).count();
            let (first, second) = drawn.split_at(COUNT / 2);
            let best = (0..self.bits).max_by_key(|&by| fits(first, by).abs_diff(COUNT / 4)).unwrap();
            let fit = fits(second, best);
            assert!(half(fit, COUNT / 2), "{kind}: bit {of} follows from bit {best} in {fit}");
        }
    }
}

#[test]
fn ten_thousand_numbers_of_each_kind_predict_nothing() {
    let one = sequences([1; 32]);
    let other = sequences([2; 32]);
    for (one, other) in one.iter().zip(&other) {
        one.check();
        other.check();
        // After a restart there is nothing to recognise: no more at the same place, or at all, than by chance.
        let kind = one.kind;
        let same = one.numbers.iter().zip(&other.numbers).filter(|(a, b)| a == b).count();
        assert!(same <= 3, "{kind}: {same} are the same after a restart");
        let before: HashSet<u32> = one.numbers.iter().copied().collect();
        let known = other.numbers.iter().filter(|number| before.contains(number)).count();
        let by_chance = (COUNT * COUNT) >> one.bits;
        assert!(known <= 2 * by_chance + 10, "{kind}: {known} of before, {by_chance} by chance");
    }
}

#[test]
fn the_first_queue_pairs_of_two_starts_are_not_the_same() {
    let first = |seed| sequences([seed; 32])[0].numbers[..8].to_vec();
    let (one, other) = (first(1), first(2));
    assert!(one.iter().all(|qpn| !other.contains(qpn)), "{one:x?} {other:x?}");
}
