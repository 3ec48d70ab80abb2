//! Random programs: the key table agrees with a simple model, call by call.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use proptest::prelude::*;
use proptest::sample::Index;
use rxe_proto::mem::{
    Access, BindError, DeregisterError, FastRegMrError, InvalidateError, KeyDomain, KeyError, KeyTable, Memory, PdId,
    RenewError, Span, UnknownKey, WindowBind, WindowKind,
};

const QPNS: [u32; 2] = [5, 6];
const LEN: u64 = 64;
const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
const RIGHTS: [Access; 7] = [
    Access::empty(),
    Access::LOCAL_WRITE.union(Access::MW_BIND),
    Access::LOCAL_WRITE.union(REMOTE).union(Access::MW_BIND),
    Access::REMOTE_READ.union(Access::MW_BIND),
    Access::REMOTE_READ.union(Access::ZERO_BASED).union(Access::MW_BIND),
    Access::REMOTE_READ.union(Access::ZERO_BASED),
    REMOTE,
];

/// Bytes at an address, with rights: what can be reached. The pointer tells which bytes.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    addr: u64,
    len: u64,
    access: Access,
    pointer: usize,
}

#[derive(Clone, Debug)]
enum Kind {
    Region(Bytes),
    Fast {
        staged: Option<(u64, usize)>,
        valid: Option<Bytes>,
    },
    /// Its binding: region, queue pair, bytes.
    Window {
        kind: WindowKind,
        bound: Option<(u32, u32, Bytes)>,
    },
}

/// The expected content of the table, by key.
#[derive(Clone, Debug, Default)]
struct Model {
    objects: BTreeMap<u32, (PdId, Kind)>,
}

impl Model {
    /// The bytes of a region that can be reached.
    fn region(&self, key: u32) -> Option<(PdId, Bytes)> {
        match self.objects.get(&key)? {
            (pd, Kind::Region(bytes) | Kind::Fast { valid: Some(bytes), .. }) => Some((*pd, *bytes)),
            _ => None,
        }
    }

    fn has_windows(&self, key: u32) -> bool {
        let on_it = |kind: &Kind| matches!(kind, Kind::Window { bound: Some((region, ..)), .. } if *region == key);
        self.objects.values().any(|(_, kind)| on_it(kind))
    }

    fn reach(&self, bytes: Bytes, va: u64, len: u64, need: Access) -> Result<usize, KeyError> {
        if !bytes.access.contains(need) {
            return Err(KeyError::NoAccess);
        }
        let inside = va >= bytes.addr && va + len <= bytes.addr + bytes.len;
        if inside { Ok(bytes.pointer + (va - bytes.addr) as usize) } else { Err(KeyError::OutOfRange) }
    }

    fn check_local(&self, key: u32, pd: PdId, va: u64, len: u64, need: Access) -> Result<usize, KeyError> {
        let (of, bytes) = self.region(key).ok_or(KeyError::Unknown)?;
        if of == pd { self.reach(bytes, va, len, need) } else { Err(KeyError::WrongPd) }
    }

    fn check_remote(&self, key: u32, pd: PdId, qpn: u32, va: u64, len: u64, need: Access) -> Result<usize, KeyError> {
        let Some((of, Kind::Window { kind, bound: Some((_, on, bytes)) })) = self.objects.get(&key) else {
            return self.check_local(key, pd, va, len, need);
        };
        match kind {
            _ if *of != pd => Err(KeyError::WrongPd),
            WindowKind::Type2 if *on != qpn => Err(KeyError::WrongQp),
            _ => self.reach(*bytes, va, len, need),
        }
    }

    fn map(&mut self, key: u32, len: u64, max: u64, pointer: usize) -> Result<(), FastRegMrError> {
        match self.objects.get_mut(&key) {
            Some((_, Kind::Fast { valid: Some(_), .. })) => Err(FastRegMrError::NotFree),
            Some((_, Kind::Fast { .. })) if len > max => Err(FastRegMrError::TooLong),
            Some((_, Kind::Fast { staged, .. })) => {
                *staged = Some((len, pointer));
                Ok(())
            }
            _ => Err(FastRegMrError::Unknown),
        }
    }

    fn fast_register(&mut self, key: u32, pd: PdId, iova: u64, access: Access) -> Result<(), FastRegMrError> {
        let Some((of, Kind::Fast { staged, valid })) = self.objects.get_mut(&key) else {
            return Err(FastRegMrError::Unknown);
        };
        match *staged {
            _ if *of != pd => Err(FastRegMrError::WrongPd),
            _ if valid.is_some() => Err(FastRegMrError::NotFree),
            None => Err(FastRegMrError::NotMapped),
            Some(_) if access == REMOTE => Err(FastRegMrError::IllegalAccess),
            Some((len, pointer)) => {
                let addr = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
                *valid = Some(Bytes { addr, len, access, pointer });
                Ok(())
            }
        }
    }

    fn bind(&mut self, key: u32, pd: PdId, qpn: u32, bind: &WindowBind) -> Result<(), BindError> {
        let Some((of, Kind::Window { kind, bound })) = self.objects.get(&key).cloned() else {
            return Err(BindError::Unknown);
        };
        let new = match (kind, bind.len) {
            _ if of != pd => return Err(BindError::WrongPd),
            (WindowKind::Type1, 0) => None,
            (WindowKind::Type2, _) if bound.is_some() => return Err(BindError::AlreadyBound),
            (WindowKind::Type2, 0) => return Err(BindError::NoBytes),
            _ => {
                let zero_based = bind.access.contains(Access::ZERO_BASED);
                let remote_only = bind.access.difference(Access::ZERO_BASED | REMOTE).is_empty();
                if !remote_only || zero_based && kind == WindowKind::Type1 {
                    return Err(BindError::IllegalAccess);
                }
                let (of, bytes) = self.region(bind.region_key).ok_or(BindError::UnknownRegion)?;
                if of != pd {
                    return Err(BindError::RegionWrongPd);
                }
                if !bytes.access.contains(Access::MW_BIND) {
                    return Err(BindError::NotBindable);
                }
                if bytes.access.contains(Access::ZERO_BASED) {
                    return Err(BindError::ZeroBasedRegion);
                }
                let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
                if writes && !bytes.access.contains(Access::LOCAL_WRITE) {
                    return Err(BindError::NoLocalWrite);
                }
                let pointer = self.reach(bytes, bind.addr, bind.len, Access::empty());
                let pointer = pointer.map_err(|_| BindError::OutOfRange)?;
                let addr = if zero_based { 0 } else { bind.addr };
                Some((bind.region_key, qpn, Bytes { addr, len: bind.len, access: bind.access, pointer }))
            }
        };
        self.objects.insert(key, (of, Kind::Window { kind, bound: new }));
        Ok(())
    }

    fn invalidate(&mut self, key: u32, pd: PdId, by: Option<u32>) -> Result<(), InvalidateError> {
        let windows = self.has_windows(key);
        let (of, kind) = self.objects.get_mut(&key).ok_or(InvalidateError::Unknown)?;
        match kind {
            _ if *of != pd => Err(InvalidateError::WrongPd),
            Kind::Region(_) | Kind::Window { kind: WindowKind::Type1, .. } => Err(InvalidateError::NotInvalidatable),
            Kind::Fast { valid: None, .. } | Kind::Window { bound: None, .. } => Err(InvalidateError::NotValid),
            Kind::Window { bound: Some((_, on, _)), .. } if by.is_some_and(|by| by != *on) => {
                Err(InvalidateError::WrongQp)
            }
            Kind::Fast { .. } if windows => Err(InvalidateError::WindowsBound),
            Kind::Fast { valid, .. } => {
                *valid = None;
                Ok(())
            }
            Kind::Window { bound, .. } => {
                *bound = None;
                Ok(())
            }
        }
    }

    /// Whether the key can be renewed.
    fn renewable(&self, key: u32) -> Result<(), RenewError> {
        match self.objects.get(&key).ok_or(RenewError::Unknown)?.1 {
            Kind::Region(_) => Err(RenewError::NotRenewable),
            Kind::Fast { valid: Some(_), .. } | Kind::Window { kind: WindowKind::Type2, bound: Some(_) } => {
                Err(RenewError::Valid)
            }
            _ => Ok(()),
        }
    }

    fn deregister(&mut self, key: u32) -> Result<(), DeregisterError> {
        match self.objects.get(&key) {
            None | Some((_, Kind::Window { .. })) => Err(DeregisterError::Unknown),
            Some(_) if self.has_windows(key) => Err(DeregisterError::WindowsBound),
            Some(_) => {
                self.objects.remove(&key);
                Ok(())
            }
        }
    }

    fn dealloc_window(&mut self, key: u32) -> Result<(), UnknownKey> {
        match self.objects.get(&key) {
            Some((_, Kind::Window { .. })) => {
                self.objects.remove(&key);
                Ok(())
            }
            _ => Err(UnknownKey),
        }
    }

    fn unbind_windows_of(&mut self, qpn: u32) -> usize {
        let mut count = 0;
        for (_, kind) in self.objects.values_mut() {
            if let Kind::Window { kind: WindowKind::Type2, bound } = kind
                && bound.is_some_and(|(_, on, _)| on == qpn)
            {
                *bound = None;
                count += 1;
            }
        }
        count
    }
}

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
    Bind { key: Pick, region: Pick, pd: bool, qp: bool, access: Index, addr: u64, len: u64 },
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
    let (access, qp) = (any::<Index>, any::<bool>);
    prop_oneof![
        2 => (pd(), access(), iova()).prop_map(|(pd, access, iova)| Step::Register { pd, access, iova }),
        2 => pd().prop_map(|pd| Step::AllocFast { pd }),
        2 => (pd(), any::<bool>()).prop_map(|(pd, two)| Step::AllocWindow { pd, two }),
        4 => (key(), 0..LEN + 8).prop_map(|(key, len)| Step::Map { key, len }),
        4 => (key(), pd(), access(), iova())
            .prop_map(|(key, pd, access, iova)| Step::FastRegister { key, pd, access, iova }),
        12 => (key(), key(), pd(), qp(), access(), 0u64..80, 0u64..24).prop_map(
            |(key, region, pd, qp, access, addr, len)| Step::Bind { key, region, pd, qp, access, addr, len }
        ),
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
    /// Outcomes of the calls so far.
    outcomes: BTreeSet<String>,
}

impl Both {
    fn new(seed: u8) -> Both {
        let mut keys = KeyTable::new([seed; 32], KeyDomain::Local);
        let pds = [keys.alloc_pd(), keys.alloc_pd()];
        Both { keys, model: Model::default(), pds, known: BTreeSet::from([2]), outcomes: BTreeSet::new() }
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
            Step::Bind { key, region, pd, qp, access, addr, len } => {
                let (pd, qpn, access) = (pd_of(pd), qpn_of(qp), window_access(*access));
                let key = self.pick(key, |kind| matches!(kind, Kind::Window { .. }));
                let region_key = self.pick(region, |kind| !matches!(kind, Kind::Window { .. }));
                let bind = WindowBind { region_key, addr: *addr, len: *len, access };
                let found = self.keys.bind_window(key, pd, qpn, &bind);
                let expected = self.model.bind(key, pd, qpn, &bind);
                self.agree("bind_window", found, expected);
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
    fn agrees_with_the_model(seed: u8, steps in prop::collection::vec(step(), 0..120)) {
        let mut both = Both::new(seed);
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
    for _ in 0..200 {
        let mut both = Both::new(1);
        for step in prop::collection::vec(step(), 120).new_tree(&mut runner).unwrap().current() {
            both.run(&step);
        }
        seen.append(&mut both.outcomes);
    }
    insta::assert_snapshot!(seen.into_iter().collect::<Vec<_>>().join("\n"));
}
