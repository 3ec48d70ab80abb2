//! Memory windows: the bytes that they open, the queue pairs that may access them, and when they cannot be bound.

use rxe_proto::mem::{
    Access, BindError, DeallocPdError, DeregisterError, InvalidateError, KeyDomain, KeyError, KeyTable, Memory,
    MemoryRegion, PdId, RegisterError, RenewError, UnknownKey, WindowBind, WindowKind,
};

const A: u32 = 0x11;
const B: u32 = 0x12;
const BASE: u64 = 0x4000_0000;
const LEN: u64 = 4096;
const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);
const KINDS: [WindowKind; 2] = [WindowKind::Type1, WindowKind::Type2];

/// A table with one region, which grants its peers nothing but may have windows.
struct Setup {
    keys: KeyTable,
    pd: PdId,
    region: MemoryRegion,
}

fn setup() -> Setup {
    let mut keys = KeyTable::new([9; 32], KeyDomain::Local);
    let pd = keys.alloc_pd();
    let region = keys.register(pd, Memory::heap(LEN as usize), BASE, BINDABLE).unwrap();
    Setup { keys, pd, region }
}

impl Setup {
    fn window(&mut self, kind: WindowKind) -> u32 {
        self.keys.alloc_window(self.pd, kind).unwrap()
    }

    /// A bind request for bytes 256 to 768 of the region.
    fn request(&self) -> WindowBind {
        WindowBind { region_key: self.region.lkey(), addr: BASE + 256, len: 512, access: REMOTE }
    }

    fn bound(&mut self, kind: WindowKind) -> u32 {
        let key = self.window(kind);
        self.keys.bind_window(key, self.pd, A, &self.request()).unwrap();
        key
    }

    /// Where in the region the bytes are that the peer of `qpn` reaches under `key` at `va`.
    fn reach(&self, key: u32, qpn: u32, va: u64, len: u64, need: Access) -> Result<usize, KeyError> {
        let span = self.keys.check_remote(key, self.pd, qpn, va, len, need)?;
        assert_eq!(span.len() as u64, len);
        Ok(span.memory().as_ptr() as usize + span.offset() - self.region.memory().as_ptr() as usize)
    }
}

#[test]
fn a_bound_window_opens_its_piece_of_the_region() {
    for kind in KINDS {
        let mut on = setup();
        let key = on.window(kind);
        assert!(key != 0 && key & 1 == 0);
        assert_eq!(on.reach(key, A, BASE + 256, 1, REMOTE), Err(KeyError::Unknown), "not bound yet");
        on.keys.bind_window(key, on.pd, A, &on.request()).unwrap();
        assert_eq!(on.reach(key, A, BASE + 256, 512, REMOTE), Ok(256));
        assert_eq!(on.reach(key, A, BASE + 767, 1, REMOTE), Ok(767));
        assert_eq!(on.reach(key, A, BASE + 768, 0, REMOTE), Ok(768));
        for (va, len) in
            [(BASE + 255, 1), (BASE + 256, 513), (BASE + 768, 1), (BASE + 300, u64::MAX), (0, 1), (u64::MAX, 1)]
        {
            assert_eq!(on.reach(key, A, va, len, REMOTE), Err(KeyError::OutOfRange), "{va:#x} {len}");
        }
        // The region itself grants its peers nothing.
        assert_eq!(on.reach(on.region.rkey(), A, BASE + 256, 512, REMOTE), Err(KeyError::NoAccess));

        let span = on.keys.check_remote(key, on.pd, A, BASE + 260, 4, Access::REMOTE_WRITE).unwrap();
        span.write(0, b"abcd").unwrap();
        let mut bytes = [0; 4];
        on.region.memory().read(260, &mut bytes).unwrap();
        assert_eq!(&bytes, b"abcd");
    }
}

// [MEM-WINDOW-BIND]
#[test]
fn a_window_is_no_region() {
    for kind in KINDS {
        let mut on = setup();
        let key = on.bound(kind);
        let local = on.keys.check_local(key, on.pd, BASE + 256, 8, Access::empty());
        assert_eq!(local.unwrap_err(), KeyError::Unknown, "a window has no local key");
        assert!(on.keys.region(key).is_none());
        assert_eq!(on.keys.deregister(key).unwrap_err(), DeregisterError::Unknown);
        assert_eq!(on.keys.dealloc_window(on.region.rkey()), Err(UnknownKey));
        assert_eq!(on.keys.dealloc_window(key ^ 2), Err(UnknownKey));
        // Nor can a window be bound to a window.
        let second = on.window(kind);
        let onto = WindowBind { region_key: key, ..on.request() };
        assert_eq!(on.keys.bind_window(second, on.pd, A, &onto), Err(BindError::UnknownRegion));
    }
}

// [MEM-WINDOW-1] [MEM-WINDOW-2]
#[test]
fn type_1_is_for_the_protection_domain_and_type_2_for_one_queue_pair() {
    let mut on = setup();
    let other = on.keys.alloc_pd();
    let (one, two) = (on.bound(WindowKind::Type1), on.bound(WindowKind::Type2));
    assert_eq!(on.reach(one, B, BASE + 256, 8, REMOTE), Ok(256));
    assert_eq!(on.reach(two, A, BASE + 256, 8, REMOTE), Ok(256));
    assert_eq!(on.reach(two, B, BASE + 256, 8, REMOTE), Err(KeyError::WrongQp));
    // Reasons in their order.
    let reason = |key, pd, qpn, va, need| on.keys.check_remote(key, pd, qpn, va, 8, need).unwrap_err();
    let flush = Access::FLUSH_GLOBAL;
    assert_eq!(reason(two ^ 2, other, B, 0, flush), KeyError::Unknown);
    assert_eq!(reason(two, other, B, 0, flush), KeyError::WrongPd);
    assert_eq!(reason(two, on.pd, B, 0, flush), KeyError::WrongQp);
    assert_eq!(reason(two, on.pd, A, 0, flush), KeyError::NoAccess);
    assert_eq!(reason(two, on.pd, A, 0, REMOTE), KeyError::OutOfRange);
    assert_eq!(reason(one, other, B, 0, flush), KeyError::WrongPd);
    assert_eq!(reason(one, on.pd, B, 0, flush), KeyError::NoAccess);
}

// [MEM-WINDOW-BIND]
#[test]
fn a_window_grants_what_it_was_bound_with() {
    for kind in KINDS {
        for access in [Access::empty(), Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, REMOTE] {
            let mut on = setup();
            let key = on.window(kind);
            on.keys.bind_window(key, on.pd, A, &WindowBind { access, ..on.request() }).unwrap();
            for need in [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
                let expect = if access.contains(need) { Ok(256) } else { Err(KeyError::NoAccess) };
                assert_eq!(on.reach(key, A, BASE + 256, 8, need), expect, "{access:?} {need:?}");
            }
        }
    }
}

// [MEM-WINDOW-ZERO-BASED]
#[test]
fn addresses_of_a_zero_based_window_count_from_0() {
    let mut on = setup();
    let key = on.window(WindowKind::Type2);
    let access = REMOTE | Access::ZERO_BASED;
    on.keys.bind_window(key, on.pd, A, &WindowBind { access, ..on.request() }).unwrap();
    assert_eq!(on.reach(key, A, 0, 512, REMOTE), Ok(256));
    assert_eq!(on.reach(key, A, 511, 1, REMOTE), Ok(767));
    assert_eq!(on.reach(key, A, 512, 1, REMOTE), Err(KeyError::OutOfRange));
    assert_eq!(on.reach(key, A, BASE + 256, 1, REMOTE), Err(KeyError::OutOfRange));
    // The next binding need not be.
    on.keys.invalidate_local(key, on.pd).unwrap();
    on.keys.bind_window(key, on.pd, A, &on.request()).unwrap();
    assert_eq!(on.reach(key, A, BASE + 256, 1, REMOTE), Ok(256));
    assert_eq!(on.reach(key, A, 0, 1, REMOTE), Err(KeyError::OutOfRange));
}

#[test]
fn windows_at_the_edges_of_a_region() {
    let mut on = setup();
    let top = on.keys.register(on.pd, Memory::heap(64), u64::MAX - 63, BINDABLE).unwrap();
    for kind in KINDS {
        let key = on.window(kind);
        let all = WindowBind { region_key: top.lkey(), addr: u64::MAX - 63, len: 64, access: REMOTE };
        on.keys.bind_window(key, on.pd, A, &all).unwrap();
        let reach = |keys: &KeyTable, va, len| keys.check_remote(key, on.pd, A, va, len, REMOTE).map(|span| span.len());
        assert_eq!(reach(&on.keys, u64::MAX - 63, 64), Ok(64));
        assert_eq!(reach(&on.keys, u64::MAX, 1), Ok(1));
        assert_eq!(reach(&on.keys, u64::MAX, 2), Err(KeyError::OutOfRange));
        assert_eq!(reach(&on.keys, 0, 1), Err(KeyError::OutOfRange));
        for (addr, len) in [(u64::MAX - 63, 65), (u64::MAX, 2), (u64::MAX - 64, 1), (0, 1), (u64::MAX - 62, u64::MAX)] {
            let key = on.window(kind);
            let bind = WindowBind { addr, len, ..all };
            assert_eq!(on.keys.bind_window(key, on.pd, A, &bind), Err(BindError::OutOfRange), "{addr:#x} {len}");
        }
    }
}

/// Each request violates one rule more than the one after it, so each reason is reported although the later ones hold,
/// too. A refused bind changes nothing.
// [MEM-WINDOW-BIND] [MEM-WINDOW-2]
#[test]
fn bind_reasons_come_in_order() {
    for kind in KINDS {
        let mut on = setup();
        let other = on.keys.alloc_pd();
        let elsewhere = on.keys.register(other, Memory::heap(64), 0, Access::empty()).unwrap().lkey();
        let register = |on: &mut Setup, access| on.keys.register(on.pd, Memory::heap(64), 0, access).unwrap().lkey();
        let plain = register(&mut on, Access::empty());
        let zero_based = register(&mut on, Access::MW_BIND | Access::ZERO_BASED);
        let read_only = register(&mut on, Access::MW_BIND);
        let key = on.window(kind);
        let try_bind = |on: &mut Setup, key, pd, region_key, access| {
            on.keys.bind_window(key, pd, B, &WindowBind { region_key, addr: BASE + LEN, len: 8, access })
        };
        let foreign = Access::LOCAL_WRITE;
        assert_eq!(try_bind(&mut on, key ^ 2, other, key, foreign), Err(BindError::Unknown));
        let region = on.region.lkey();
        assert_eq!(try_bind(&mut on, region, other, key, foreign), Err(BindError::Unknown), "not a window");
        assert_eq!(try_bind(&mut on, key, other, key, foreign), Err(BindError::WrongPd));
        let no_bytes = WindowBind { region_key: key, addr: 0, len: 0, access: foreign };
        match kind {
            WindowKind::Type1 => assert_eq!(on.keys.bind_window(key, on.pd, A, &no_bytes), Ok(()), "unbinds"),
            WindowKind::Type2 => {
                let bound = on.bound(kind);
                assert_eq!(on.keys.bind_window(bound, on.pd, A, &no_bytes), Err(BindError::AlreadyBound));
                assert_eq!(on.keys.bind_window(key, on.pd, A, &no_bytes), Err(BindError::NoBytes));
            }
        }
        let pd = on.pd;
        for access in [foreign, Access::MW_BIND, Access::FLUSH_GLOBAL, Access::FLUSH_PERSISTENT, REMOTE | foreign] {
            assert_eq!(try_bind(&mut on, key, pd, key, access), Err(BindError::IllegalAccess), "{access:?}");
        }
        let zero_based_window = try_bind(&mut on, key, pd, key, Access::ZERO_BASED);
        assert_eq!(
            zero_based_window,
            Err(if kind == WindowKind::Type1 { BindError::IllegalAccess } else { BindError::UnknownRegion })
        );
        for region in [0, key, elsewhere ^ 2] {
            assert_eq!(try_bind(&mut on, key, pd, region, REMOTE), Err(BindError::UnknownRegion));
        }
        assert_eq!(try_bind(&mut on, key, pd, elsewhere, REMOTE), Err(BindError::RegionWrongPd));
        assert_eq!(try_bind(&mut on, key, pd, plain, REMOTE), Err(BindError::NotBindable));
        assert_eq!(try_bind(&mut on, key, pd, zero_based, REMOTE), Err(BindError::ZeroBasedRegion));
        for access in [REMOTE, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert_eq!(try_bind(&mut on, key, pd, read_only, access), Err(BindError::NoLocalWrite));
        }
        assert_eq!(try_bind(&mut on, key, pd, read_only, Access::REMOTE_READ), Err(BindError::OutOfRange));
        let read = WindowBind { region_key: read_only, addr: 0, len: 64, access: Access::REMOTE_READ };
        assert_eq!(on.reach(key, A, 0, 1, Access::empty()), Err(KeyError::Unknown), "still unbound");
        assert_eq!(on.keys.bind_window(key, pd, A, &read), Ok(()), "reading needs no local write");
        for region in [elsewhere, plain, zero_based] {
            assert!(on.keys.deregister(region).is_ok(), "no refused bind counts");
        }
        assert_eq!(on.keys.deregister(read_only).unwrap_err(), DeregisterError::WindowsBound);
    }
}

// [MEM-WINDOW-1]
#[test]
fn a_type_1_window_may_be_bound_again() {
    let mut on = setup();
    let second = on.keys.register(on.pd, Memory::heap(64), 0, BINDABLE).unwrap();
    let key = on.bound(WindowKind::Type1);
    // A refused one leaves the old binding.
    let bad = WindowBind { len: LEN, ..on.request() };
    assert_eq!(on.keys.bind_window(key, on.pd, A, &bad), Err(BindError::OutOfRange));
    assert_eq!(on.reach(key, A, BASE + 256, 512, REMOTE), Ok(256));
    // The same region again, then another.
    let moved = WindowBind { addr: BASE, len: 8, access: Access::REMOTE_READ, ..on.request() };
    on.keys.bind_window(key, on.pd, B, &moved).unwrap();
    assert_eq!(on.reach(key, A, BASE, 8, Access::REMOTE_READ), Ok(0));
    assert_eq!(on.reach(key, A, BASE, 8, Access::REMOTE_WRITE), Err(KeyError::NoAccess));
    assert_eq!(on.reach(key, A, BASE + 256, 8, Access::REMOTE_READ), Err(KeyError::OutOfRange));
    let away = WindowBind { region_key: second.lkey(), addr: 0, len: 64, access: REMOTE };
    on.keys.bind_window(key, on.pd, B, &away).unwrap();
    assert!(on.keys.deregister(on.region.lkey()).is_ok(), "no longer bound to the first");
    assert_eq!(on.keys.deregister(second.lkey()).unwrap_err(), DeregisterError::WindowsBound);
    assert_eq!(on.keys.check_remote(key, on.pd, B, 0, 64, REMOTE).unwrap().len(), 64);
}

// [MEM-KEY-RENEW]
#[test]
fn a_type_1_window_gets_another_key_for_another_peer() {
    let mut on = setup();
    let old = on.bound(WindowKind::Type1);
    let new = on.keys.renew_key(old).unwrap();
    assert_eq!(on.reach(old, A, BASE + 256, 8, REMOTE), Err(KeyError::Unknown));
    assert_eq!(on.reach(new, A, BASE + 256, 8, REMOTE), Ok(256), "still bound");
    assert_eq!(on.keys.deregister(on.region.lkey()).unwrap_err(), DeregisterError::WindowsBound);
    on.keys.dealloc_window(new).unwrap();
    assert!(on.keys.deregister(on.region.lkey()).is_ok());
}

// [MEM-KEY-RENEW]
#[test]
fn a_type_2_window_gets_another_key_while_it_is_unbound() {
    let mut on = setup();
    let old = on.bound(WindowKind::Type2);
    assert_eq!(on.keys.renew_key(old), Err(RenewError::Valid));
    assert_eq!(on.keys.renew_key(on.region.lkey()), Err(RenewError::NotRenewable));
    assert_eq!(on.keys.renew_key(old ^ 2), Err(RenewError::Unknown));
    on.keys.invalidate_local(old, on.pd).unwrap();
    let new = on.keys.renew_key(old).unwrap();
    assert_ne!(new, old);
    assert_eq!(on.keys.renew_key(old), Err(RenewError::Unknown));
    assert_eq!(on.keys.bind_window(old, on.pd, A, &on.request()), Err(BindError::Unknown));
    on.keys.bind_window(new, on.pd, B, &on.request()).unwrap();
    assert_eq!(on.reach(new, B, BASE + 256, 8, REMOTE), Ok(256));
    assert_eq!(on.keys.len(), 2);
}

// [MEM-WINDOW-HOLDS]
#[test]
fn a_region_stays_while_windows_are_bound_to_it() {
    type Release = fn(&mut Setup, u32);
    let ways: [(WindowKind, Release); 7] = [
        (WindowKind::Type1, |on, key| {
            let nothing = WindowBind { region_key: 0, addr: 0, len: 0, access: Access::empty() };
            on.keys.bind_window(key, on.pd, B, &nothing).unwrap();
            // Once more does no harm.
            on.keys.bind_window(key, on.pd, B, &nothing).unwrap();
        }),
        (WindowKind::Type1, |on, key| on.keys.dealloc_window(key).unwrap()),
        (WindowKind::Type2, |on, key| on.keys.dealloc_window(key).unwrap()),
        (WindowKind::Type2, |on, key| on.keys.invalidate_local(key, on.pd).unwrap()),
        (WindowKind::Type2, |on, key| on.keys.invalidate_remote(key, on.pd, A).unwrap()),
        (WindowKind::Type2, |on, _| assert_eq!(on.keys.unbind_windows_of(A), 2)),
        (WindowKind::Type1, |on, key| {
            let memory = Memory::heap(64);
            let region_key = on.keys.register(on.pd, memory, 0, BINDABLE).unwrap().lkey();
            on.keys.bind_window(key, on.pd, A, &WindowBind { region_key, addr: 0, len: 64, access: REMOTE }).unwrap();
        }),
    ];
    for (kind, release) in ways {
        let mut on = setup();
        let (first, second) = (on.bound(kind), on.bound(kind));
        let region = on.region.lkey();
        assert_eq!(on.keys.deregister(region).unwrap_err(), DeregisterError::WindowsBound);
        release(&mut on, first);
        assert!(on.reach(first, A, BASE + 256, 8, REMOTE).is_err());
        if on.reach(second, A, BASE + 256, 8, REMOTE).is_ok() {
            assert_eq!(on.keys.deregister(region).unwrap_err(), DeregisterError::WindowsBound, "one is left");
            assert!(on.keys.region(region).is_some());
            release(&mut on, second);
        }
        assert!(on.keys.deregister(region).unwrap().is_some());
    }
}

#[test]
fn the_windows_of_a_queue_pair_end_with_it() {
    let mut on = setup();
    assert_eq!(on.keys.unbind_windows_of(A), 0);
    let (one, mine) = (on.bound(WindowKind::Type1), on.bound(WindowKind::Type2));
    let theirs = on.window(WindowKind::Type2);
    on.keys.bind_window(theirs, on.pd, B, &on.request()).unwrap();
    assert_eq!(on.keys.unbind_windows_of(A), 1);
    assert_eq!(on.reach(mine, A, BASE + 256, 8, REMOTE), Err(KeyError::Unknown));
    assert_eq!(on.reach(one, A, BASE + 256, 8, REMOTE), Ok(256), "type 1 is not of a queue pair");
    assert_eq!(on.reach(theirs, B, BASE + 256, 8, REMOTE), Ok(256));
    assert_eq!(on.keys.unbind_windows_of(A), 0);
    assert_eq!(on.keys.unbind_windows_of(B), 1);
    on.keys.bind_window(mine, on.pd, B, &on.request()).unwrap();
    assert_eq!(on.reach(mine, B, BASE + 256, 8, REMOTE), Ok(256), "unbound, not gone");
}

// [MEM-WINDOW-2] [MEM-INVALIDATE]
#[test]
fn invalidation_of_windows() {
    let mut on = setup();
    let other = on.keys.alloc_pd();
    let (one, two) = (on.bound(WindowKind::Type1), on.bound(WindowKind::Type2));
    for key in [one, on.region.lkey()] {
        assert_eq!(on.keys.invalidate_local(key, on.pd), Err(InvalidateError::NotInvalidatable));
        assert_eq!(on.keys.invalidate_remote(key, on.pd, A), Err(InvalidateError::NotInvalidatable));
        assert_eq!(on.keys.invalidate_remote(key, other, A), Err(InvalidateError::WrongPd));
    }
    assert_eq!(on.keys.invalidate_local(two ^ 2, other), Err(InvalidateError::Unknown));
    assert_eq!(on.keys.invalidate_local(two, other), Err(InvalidateError::WrongPd));
    assert_eq!(on.keys.invalidate_remote(two, on.pd, B), Err(InvalidateError::WrongQp));
    assert_eq!(on.reach(two, A, BASE + 256, 8, REMOTE), Ok(256), "refused, hence still bound");
    on.keys.invalidate_remote(two, on.pd, A).unwrap();
    assert_eq!(on.reach(two, A, BASE + 256, 8, REMOTE), Err(KeyError::Unknown));
    assert_eq!(on.keys.invalidate_local(two, on.pd), Err(InvalidateError::NotValid));
    assert_eq!(on.keys.invalidate_remote(two, on.pd, B), Err(InvalidateError::NotValid));
    // Bound again, perhaps on another queue pair; the owner invalidates it on whichever.
    on.keys.bind_window(two, on.pd, B, &on.request()).unwrap();
    assert_eq!(on.reach(two, A, BASE + 256, 8, REMOTE), Err(KeyError::WrongQp));
    on.keys.invalidate_local(two, on.pd).unwrap();
    assert_eq!(on.reach(two, B, BASE + 256, 8, REMOTE), Err(KeyError::Unknown));
}

#[test]
fn a_window_over_an_adopted_region_is_of_its_own_table() {
    let mut shared = KeyTable::new([1; 32], KeyDomain::Shared);
    let shared_pd = shared.alloc_pd();
    let region = shared.register(shared_pd, Memory::heap(64), BASE, BINDABLE).unwrap();
    let mut tables = [2, 3].map(|seed| {
        let mut keys = KeyTable::new([seed; 32], KeyDomain::Local);
        let pd = keys.alloc_pd();
        keys.adopt(pd, &region).unwrap();
        (keys, pd)
    });
    let [(mine, pd), (theirs, their_pd)] = &mut tables;
    let key = mine.alloc_window(*pd, WindowKind::Type2).unwrap();
    let bind = WindowBind { region_key: region.rkey(), addr: BASE + 8, len: 8, access: REMOTE };
    mine.bind_window(key, *pd, A, &bind).unwrap();
    mine.check_remote(key, *pd, A, BASE + 8, 8, REMOTE).unwrap().store(0, 77).unwrap();
    assert_eq!(region.memory().load(8), Ok(77));
    // It keeps the adoption, not what other tables have.
    assert_eq!(mine.deregister(region.rkey()).unwrap_err(), DeregisterError::WindowsBound);
    assert!(theirs.deregister(region.rkey()).is_ok());
    assert!(shared.deregister(region.rkey()).is_ok());
    assert_eq!(theirs.check_remote(key, *their_pd, A, BASE + 8, 8, REMOTE).unwrap_err(), KeyError::Unknown);
    mine.invalidate_local(key, *pd).unwrap();
    assert!(mine.deregister(region.rkey()).is_ok());
}

#[test]
fn windows_are_made_within_limits() {
    let mut on = setup();
    let mut elsewhere = KeyTable::new([4; 32], KeyDomain::Local);
    let foreign = (elsewhere.alloc_pd(), elsewhere.alloc_pd()).1;
    let mut shared = KeyTable::new([5; 32], KeyDomain::Shared);
    let shared_pd = shared.alloc_pd();
    for kind in KINDS {
        assert_eq!(on.keys.alloc_window(foreign, kind), Err(RegisterError::UnknownPd));
        assert_eq!(shared.alloc_window(shared_pd, kind), Err(RegisterError::SharedTable));
        assert_eq!((on.keys.len(), shared.len()), (1, 0));
        // A window uses its protection domain, bound or not.
        let pd = on.keys.alloc_pd();
        let key = on.keys.alloc_window(pd, kind).unwrap();
        assert_eq!(on.keys.dealloc_pd(pd), Err(DeallocPdError::InUse));
        on.keys.dealloc_window(key).unwrap();
        assert_eq!(on.keys.dealloc_window(key), Err(UnknownKey));
        assert_eq!(on.keys.dealloc_pd(pd), Ok(()));
    }
}

// [MEM-KEY-QUARANTINE]
#[test]
fn keys_of_windows_never_come_back_from_quarantine() {
    let mut on = setup();
    let mut seen = std::collections::BTreeSet::new();
    let mut key = on.window(WindowKind::Type2);
    for round in 0..if cfg!(miri) { 20 } else { KeyTable::QUARANTINE } {
        assert!(seen.insert(key), "{round}");
        key = match round % 3 {
            0 => {
                on.keys.dealloc_window(key).unwrap();
                on.window(WindowKind::Type2)
            }
            _ => on.keys.renew_key(key).unwrap(),
        };
    }
}
