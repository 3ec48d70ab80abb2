//! Random programs: the key table agrees with a simple model, call by call.

use std::collections::BTreeSet;
use std::fmt::Debug;

use proptest::prelude::*;
use proptest::sample::Index;
use rxe_proto::mem::{Access, KeyDomain, KeyLayout, KeyTable, Memory, PdId, Reregister, Span, WindowBind, WindowKind};

use crate::support::key_model::{Bytes, Kind, Model, REMOTE};

const QPNS: [u32; 2] = [5, 6];
const LEN: u64 = 64;
/// Bytes that binds put into keys: few, so that they come back.
const KEY_BYTES: [u8; 3] = [0, 1, 255];
const RIGHTS: [Access; 7] = [
    Access::empty(),
    Access::LOCAL_WRITE.union(Access::MW_BIND),
    Access::LOCAL_WRITE.union(REMOTE).union(Access::MW_BIND),
    Access::REMOTE_READ.union(Access::MW_BIND),
    Access::REMOTE_READ.union(Access::ZERO_BASED).union(Access::MW_BIND),
    Access::REMOTE_READ.union(Access::ZERO_BASED),
    REMOTE,
];

/// Choice of the key for a call: mostly one of the kind that the call is for.
#[derive(Clone, Debug)]
struct Pick {
    index: Index,
    /// Any key that there has ever been.
    wild: bool,
}

/// One call.
#[derive(Clone, Debug)]
enum Step {
    Register { pd: bool, access: Index, iova: u64 },
    AllocFast { pd: bool },
    AllocWindow { pd: bool, two: bool },
    Map { key: Pick, len: u64 },
    FastRegister { key: Pick, pd: bool, access: Index, iova: u64 },
    Bind { key: Pick, byte: Option<u8>, region: Pick, pd: bool, qp: bool, access: Index, addr: u64, len: u64 },
    Reregister { key: Pick, bytes: Option<(u64, u64)>, pd: Option<bool>, access: Option<Index> },
    Invalidate { key: Pick, pd: bool, by: Option<bool> },
    Renew { key: Pick },
    Deregister { key: Pick },
    DeallocWindow { key: Pick },
    UnbindWindowsOf { qp: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let key = || (any::<Index>(), prop::bool::weighted(0.1)).prop_map(|(index, wild)| Pick { index, wild });
    // Mostly the first protection domain, so that most calls get past that check.
    let pd = || prop::bool::weighted(0.15);
    let iova = || (0u64..4).prop_map(|n| n * 16);
    let key_byte = || prop::option::weighted(0.2, prop::sample::select(KEY_BYTES.to_vec()));
    let (access, qp) = (any::<Index>, any::<bool>);
    prop_oneof![
        2 => (pd(), access(), iova()).prop_map(|(pd, access, iova)| Step::Register { pd, access, iova }),
        2 => pd().prop_map(|pd| Step::AllocFast { pd }),
        2 => (pd(), any::<bool>()).prop_map(|(pd, two)| Step::AllocWindow { pd, two }),
        4 => (key(), 0..LEN + 8).prop_map(|(key, len)| Step::Map { key, len }),
        4 => (key(), pd(), access(), iova())
            .prop_map(|(key, pd, access, iova)| Step::FastRegister { key, pd, access, iova }),
        12 => (key(), key_byte(), key(), pd(), qp(), access(), 0u64..80, 0u64..24).prop_map(
            |(key, byte, region, pd, qp, access, addr, len)| Step::Bind { key, byte, region, pd, qp, access, addr, len }
        ),
        3 => (key(), prop::option::of((iova(), 0..LEN + 8)), prop::option::of(pd()), prop::option::of(access()))
            .prop_map(|(key, bytes, pd, access)| Step::Reregister { key, bytes, pd, access }),
        3 => (key(), pd(), prop::option::of(qp())).prop_map(|(key, pd, by)| Step::Invalidate { key, pd, by }),
        2 => key().prop_map(|key| Step::Renew { key }),
        1 => key().prop_map(|key| Step::Deregister { key }),
        1 => key().prop_map(|key| Step::DeallocWindow { key }),
        1 => qp().prop_map(|qp| Step::UnbindWindowsOf { qp }),
    ]
}

/// Window rights, mostly such that a window can have.
fn window_access(pick: Index) -> Access {
    *pick.get(&[Access::REMOTE_READ, REMOTE, Access::REMOTE_READ | Access::ZERO_BASED, Access::LOCAL_WRITE])
}

/// Table and model side by side.
struct Both {
    keys: KeyTable,
    model: Model,
    pds: [PdId; 2],
    /// All keys that there have ever been.
    known: BTreeSet<u32>,
    /// The upper 24 bits of all keys that were drawn, if consumers set the lowest byte.
    indexes: BTreeSet<u32>,
    /// Outcomes of the calls so far.
    outcomes: BTreeSet<String>,
}

impl Both {
    fn new(seed: u8, layout: KeyLayout) -> Both {
        let mut keys = match layout {
            KeyLayout::Random => KeyTable::new([seed; 32], KeyDomain::Local),
            KeyLayout::ConsumerByte => KeyTable::with_consumer_byte([seed; 32]),
        };
        let pds = [keys.alloc_pd(), keys.alloc_pd()];
        let model = Model { consumer_byte: layout == KeyLayout::ConsumerByte, ..Model::default() };
        let (known, indexes, outcomes) = (BTreeSet::from([2]), BTreeSet::new(), BTreeSet::new());
        Both { keys, model, pds, known, indexes, outcomes }
    }

    fn pick(&self, pick: &Pick, fits: fn(&Kind) -> bool) -> u32 {
        let fitting = self.model.objects.iter().filter(|(_, (_, kind))| fits(kind)).map(|(&key, _)| key);
        let fitting: Vec<u32> = fitting.collect();
        if pick.wild || fitting.is_empty() {
            *pick.index.get(&self.known.iter().copied().collect::<Vec<_>>())
        } else {
            *pick.index.get(&fitting)
        }
    }

    /// Compares the outcome of a call with that of the model.
    fn agree<T: PartialEq + Debug>(&mut self, call: &str, found: T, expected: T) {
        assert_eq!(found, expected, "{call}");
        self.outcomes.insert(format!("{call}: {found:?}"));
    }

    fn made(&mut self, key: u32, pd: PdId, kind: Kind) {
        assert!(self.known.insert(key), "a key came back");
        assert!(!self.model.consumer_byte || self.indexes.insert(key >> 8), "upper bits came back");
        self.model.objects.insert(key, (pd, kind));
    }

    fn run(&mut self, step: &Step) {
        let pd_of = |pd: &bool| self.pds[usize::from(*pd)];
        let qpn_of = |qp: &bool| QPNS[usize::from(*qp)];
        match step {
            Step::Register { pd, access, iova } => {
                let (pd, access, memory) = (pd_of(pd), *access.get(&RIGHTS), Memory::heap(LEN as usize));
                let pointer = memory.as_ptr() as usize;
                let made = self.keys.register(pd, memory, *iova, access);
                assert_eq!(made.is_err(), access == REMOTE);
                if let Ok(region) = made {
                    let bytes = Bytes { addr: region.addr(), len: LEN, access, pointer };
                    self.made(region.rkey(), pd, Kind::Region(bytes));
                }
            }
            Step::AllocFast { pd } => {
                let pd = pd_of(pd);
                let key = self.keys.alloc_fast_reg_mr(pd, LEN as usize).unwrap();
                self.made(key, pd, Kind::Fast { staged: None, valid: None });
            }
            Step::AllocWindow { pd, two } => {
                let pd = pd_of(pd);
                let kind = if *two { WindowKind::Type2 } else { WindowKind::Type1 };
                let key = self.keys.alloc_window(pd, kind).unwrap();
                self.made(key, pd, Kind::Window { kind, bound: None });
            }
            Step::Map { key, len } => {
                let key = self.pick(key, |kind| matches!(kind, Kind::Fast { .. }));
                let memory = Memory::heap(*len as usize);
                let expected = self.model.map(key, *len, LEN, memory.as_ptr() as usize);
                let found = self.keys.map_fast_reg_mr(key, memory);
                self.agree("map_fast_reg_mr", found, expected);
            }
            Step::FastRegister { key, pd, access, iova } => {
                let (pd, access) = (pd_of(pd), *access.get(&RIGHTS));
                let key = self.pick(key, |kind| matches!(kind, Kind::Fast { .. }));
                let found = self.keys.fast_register(key, pd, *iova, access);
                let expected = self.model.fast_register(key, pd, *iova, access);
                self.agree("fast_register", found, expected);
            }
            Step::Bind { key, byte, region, pd, qp, access, addr, len } => {
                let (pd, qpn, access) = (pd_of(pd), qpn_of(qp), window_access(*access));
                let key = self.pick(key, |kind| matches!(kind, Kind::Window { .. }));
                let region_key = self.pick(region, |kind| !matches!(kind, Kind::Window { .. }));
                let bind = WindowBind { region_key, addr: *addr, len: *len, access };
                let found = self.keys.bind_window_as(key, *byte, pd, qpn, &bind);
                let expected = self.model.bind(key, *byte, pd, qpn, &bind);
                assert_eq!(found, expected);
                self.known.extend(found);
                self.agree("bind_window", found.map(|_| ()), expected.map(|_| ()));
            }
            Step::Reregister { key, bytes, pd, access } => {
                let (pd, access) = (pd.as_ref().map(pd_of), access.map(|access| *access.get(&RIGHTS)));
                let key = self.pick(key, |kind| matches!(kind, Kind::Region(_)));
                let translation = bytes.map(|(addr, len)| (Memory::heap(len as usize), addr));
                let place = |(memory, addr): &(Memory, u64)| (*addr, memory.len() as u64, memory.as_ptr() as usize);
                let expected = self.model.reregister(key, translation.as_ref().map(place), pd, access);
                let found = self.keys.reregister(key, Reregister { translation, pd, access });
                if let Ok(region) = &found {
                    assert_eq!(self.keys.region(key).unwrap().addr(), region.addr());
                }
                self.agree("reregister", found.map(|_| ()), expected);
            }
            Step::Invalidate { key, pd, by } => {
                let (pd, by) = (pd_of(pd), by.as_ref().map(qpn_of));
                let key = self.pick(key, |_| true);
                let expected = self.model.invalidate(key, pd, by);
                let (call, found) = match by {
                    None => ("invalidate_local", self.keys.invalidate_local(key, pd)),
                    Some(qpn) => ("invalidate_remote", self.keys.invalidate_remote(key, pd, qpn)),
                };
                self.agree(call, found, expected);
            }
            Step::Renew { key } => {
                let key = self.pick(key, |_| true);
                let renewed = self.keys.renew_key(key);
                let expected = self.model.renewable(key);
                self.agree("renew_key", renewed.map(|_| ()), expected);
                if let Ok(fresh) = renewed {
                    let (pd, kind) = self.model.objects.remove(&key).unwrap();
                    self.made(fresh, pd, kind);
                }
            }
            Step::Deregister { key } => {
                let key = self.pick(key, |kind| !matches!(kind, Kind::Window { .. }));
                let found = self.keys.deregister(key).map(|_| ());
                let expected = self.model.deregister(key);
                self.agree("deregister", found, expected);
            }
            Step::DeallocWindow { key } => {
                let key = self.pick(key, |kind| matches!(kind, Kind::Window { .. }));
                let found = self.keys.dealloc_window(key);
                let expected = self.model.dealloc_window(key);
                self.agree("dealloc_window", found, expected);
            }
            Step::UnbindWindowsOf { qp } => {
                let qpn = qpn_of(qp);
                assert_eq!(self.keys.unbind_windows_of(qpn), self.model.unbind_windows_of(qpn));
            }
        }
        assert_eq!(self.keys.len(), self.model.objects.len());
    }

    /// Every key opens the same as in the model, or is refused for the same reason.
    fn compare(&self) {
        for &key in &self.known {
            assert_eq!(self.keys.region(key).is_some(), self.model.region(key).is_some());
            for pd in self.pds {
                for need in [Access::empty(), Access::LOCAL_WRITE, Access::REMOTE_READ, REMOTE] {
                    for (va, len) in [(0, 1), (16, 8), (40, 24), (64, 16), (110, 2), (0, 64), (200, 0)] {
                        let local = self.keys.check_local(key, pd, va, len, need);
                        let place = |span: Span<'_>| {
                            assert_eq!(span.len() as u64, len);
                            span.memory().as_ptr() as usize + span.offset()
                        };
                        assert_eq!(local.map(place), self.model.check_local(key, pd, va, len, need));
                        for qpn in QPNS {
                            let remote = self.keys.check_remote(key, pd, qpn, va, len, need);
                            assert_eq!(remote.map(place), self.model.check_remote(key, pd, qpn, va, len, need));
                        }
                    }
                }
            }
        }
    }

    /// Destroys everything; nothing may be left.
    fn tear_down(mut self) {
        for qpn in QPNS {
            self.keys.unbind_windows_of(qpn);
        }
        for key in &self.known {
            let _ = self.keys.dealloc_window(*key);
        }
        for key in &self.known {
            let _ = self.keys.deregister(*key);
        }
        assert!(self.keys.is_empty());
        for pd in self.pds {
            assert_eq!(self.keys.dealloc_pd(pd), Ok(()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: if cfg!(miri) { 2 } else { 300 }, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_model(seed: u8, consumer_byte: bool, steps in prop::collection::vec(step(), 0..120)) {
        let mut both = Both::new(seed, if consumer_byte { KeyLayout::ConsumerByte } else { KeyLayout::Random });
        for (index, step) in steps.iter().enumerate() {
            both.run(step);
            if index % 8 == 0 {
                both.compare();
            }
        }
        both.compare();
        both.tear_down();
    }
}

/// Random programs prove something only if they reach every outcome of every call.
#[test]
#[cfg(not(miri))] // Too slow there.
fn random_programs_reach_every_outcome() {
    use proptest::strategy::ValueTree;

    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen = BTreeSet::new();
    for _ in 0..400 {
        let steps = prop::collection::vec(step(), 120).new_tree(&mut runner).unwrap().current();
        for layout in [KeyLayout::Random, KeyLayout::ConsumerByte] {
            let mut both = Both::new(1, layout);
            steps.iter().for_each(|step| both.run(step));
            seen.append(&mut both.outcomes);
        }
    }
    insta::assert_snapshot!(seen.into_iter().collect::<Vec<_>>().join("\n"));
}
