//! The key table: what a key opens and what it does not.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rxe_proto::mem::{
    Access, AccessError, AtomicError, DeallocPdError, DeregisterError, KeyDomain, KeyError, KeyTable, Memory,
    RegisterError,
};

/// A region admits every queue pair of its protection domain, so any number will do.
const QPN: u32 = 17;

const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

fn table() -> KeyTable {
    KeyTable::new([7; 32], KeyDomain::Local)
}

// [MEM-RANGE]
#[test]
fn a_key_opens_its_region_and_nothing_else() {
    let mut keys = table();
    let pd = keys.alloc_pd();
    let region = keys.register(pd, Memory::heap(4096), 0x7000_1000, ALL).unwrap();
    assert_eq!(region.lkey(), region.rkey());
    assert_eq!((region.addr(), region.len(), region.pd(), region.access()), (0x7000_1000, 4096, pd, ALL));

    let span = keys.check_remote(region.rkey(), pd, QPN, 0x7000_1010, 16, Access::REMOTE_WRITE).unwrap();
    assert_eq!((span.offset(), span.len()), (16, 16));
    span.write(4, b"1234").unwrap();
    assert_eq!(span.write(13, b"1234"), Err(AccessError::OutOfBounds), "a span ends where it was checked to end");
    assert_eq!(span.fetch_add(0, 1), Ok(u64::from_ne_bytes(*b"\0\0\0\x001234")));
    assert_eq!(span.load(16), Err(AtomicError::OutOfBounds));
    assert!(span.slice(8, 8).is_some() && span.slice(9, 8).is_none());
    let mut bytes = [0; 4];
    region.memory().read(20, &mut bytes).unwrap();
    assert_eq!(&bytes, b"1234");

    let key = region.rkey();
    for (va, len) in [(0x7000_0FFF, 1), (0x7000_2000, 1), (0x7000_1FFF, 2), (0x7000_1000, 4097), (0, 1), (u64::MAX, 1)]
    {
        assert_eq!(keys.check_remote(key, pd, QPN, va, len, ALL).unwrap_err(), KeyError::OutOfRange, "{va:#x} {len}");
    }
    assert_eq!(keys.check_remote(key, pd, QPN, 0x7000_1001, u64::MAX, ALL).unwrap_err(), KeyError::OutOfRange);
    assert!(keys.check_remote(key, pd, QPN, 0x7000_1000, 4096, ALL).is_ok());
    assert!(keys.check_remote(key, pd, QPN, 0x7000_2000, 0, ALL).is_ok(), "nothing, at the end");
    for other in [0, 1, key ^ 1, key ^ 2, key ^ 0x8000_0000, key.wrapping_add(2), !key] {
        assert_eq!(keys.check_remote(other, pd, QPN, 0x7000_1000, 1, ALL).unwrap_err(), KeyError::Unknown);
    }
}

// [MEM-RANGE]
#[test]
fn the_top_of_the_address_space_is_usable() {
    let mut keys = table();
    let pd = keys.alloc_pd();
    let top = u64::MAX - 4095;
    let key = keys.register(pd, Memory::heap(4096), top, ALL).unwrap().rkey();
    assert!(keys.check_remote(key, pd, QPN, top, 4096, ALL).is_ok());
    assert!(keys.check_remote(key, pd, QPN, u64::MAX, 1, ALL).is_ok());
    for (va, len) in [(u64::MAX, 2), (u64::MAX, u64::MAX), (top, 4097), (top - 1, 1), (0, 1), (1, u64::MAX)] {
        assert_eq!(keys.check_remote(key, pd, QPN, va, len, ALL).unwrap_err(), KeyError::OutOfRange, "{va:#x} {len}");
    }
    let error = keys.register(pd, Memory::heap(4096), top + 1, ALL).unwrap_err();
    assert_eq!(error, RegisterError::AddressOverflow);
    assert!(keys.register(pd, Memory::heap(0), u64::MAX, ALL).is_ok());
}

// [MEM-PD]
#[test]
fn reasons_come_in_order() {
    let mut keys = table();
    let (pd, other) = (keys.alloc_pd(), keys.alloc_pd());
    let key = keys.register(pd, Memory::heap(8), 0, Access::REMOTE_READ).unwrap().rkey();
    let check = |key, pd, va, need| {
        let by_lkey = keys.check_local(key, pd, va, 8, need).map(|span| span.len());
        let by_rkey = keys.check_remote(key, pd, QPN, va, 8, need).map(|span| span.len());
        assert_eq!(by_lkey, by_rkey, "a region has one key for both");
        by_lkey
    };
    assert_eq!(check(key ^ 2, other, 9, Access::REMOTE_WRITE), Err(KeyError::Unknown));
    assert_eq!(check(key, other, 9, Access::REMOTE_WRITE), Err(KeyError::WrongPd));
    assert_eq!(check(key, pd, 9, Access::REMOTE_WRITE), Err(KeyError::NoAccess));
    assert_eq!(check(key, pd, 9, Access::REMOTE_READ), Err(KeyError::OutOfRange));
    assert_eq!(check(key, pd, 0, Access::REMOTE_READ), Ok(8));
    assert_eq!(check(key, pd, 0, Access::LOCAL_WRITE), Err(KeyError::NoAccess));
    assert_eq!(check(key, pd, 0, Access::REMOTE_READ | Access::REMOTE_ATOMIC), Err(KeyError::NoAccess));
    assert_eq!(check(key, pd, 0, Access::empty()), Ok(8), "local reading is always allowed");
}

// [MEM-LEGAL-ACCESS]
#[test]
fn registration_checks_its_arguments() {
    let mut keys = table();
    let pd = keys.alloc_pd();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_WRITE | Access::REMOTE_READ] {
        assert_eq!(keys.register(pd, Memory::heap(8), 0, access).unwrap_err(), RegisterError::IllegalAccess);
    }
    let zero_based = keys.register(pd, Memory::heap(8), u64::MAX, Access::ZERO_BASED).unwrap();
    assert_eq!(zero_based.addr(), 0);
    assert!(keys.check_local(zero_based.lkey(), pd, 0, 8, Access::empty()).is_ok());

    let mut elsewhere = table();
    let foreign = (elsewhere.alloc_pd(), elsewhere.alloc_pd()).1;
    assert_eq!(keys.register(foreign, Memory::heap(8), 0, ALL).unwrap_err(), RegisterError::UnknownPd);
    assert_eq!(keys.len(), 1);
}

// [MEM-KEY-QUARANTINE]
#[test]
fn a_deregistered_key_is_dead() {
    let mut keys = table();
    let pd = keys.alloc_pd();
    let region = keys.register(pd, Memory::heap(8), 0, ALL).unwrap();
    region.memory().write(0, b"survives").unwrap();
    let memory = keys.deregister(region.rkey()).unwrap().unwrap();
    assert_eq!(keys.check_remote(region.rkey(), pd, QPN, 0, 1, ALL).unwrap_err(), KeyError::Unknown);
    assert_eq!(keys.deregister(region.rkey()).unwrap_err(), DeregisterError::Unknown);
    assert_eq!(keys.deregister(0).unwrap_err(), DeregisterError::Unknown);
    assert!(keys.is_empty());
    let mut bytes = [0; 8];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"survives");
    // No later registration brings it back.
    for _ in 0..if cfg!(miri) { 10 } else { 10_000 } {
        let again = keys.register(pd, memory.clone(), 0, ALL).unwrap();
        assert_ne!(again.rkey(), region.rkey());
        keys.deregister(again.rkey()).unwrap();
    }
}

// [MEM-PD]
#[test]
fn protection_domains_live_as_long_as_they_are_used() {
    let mut keys = table();
    let pd = keys.alloc_pd();
    let key = keys.register(pd, Memory::heap(8), 0, ALL).unwrap().rkey();
    assert_eq!(keys.dealloc_pd(pd), Err(DeallocPdError::InUse));
    assert_eq!(keys.pd_users(pd), 0, "keys do not count");
    assert!(keys.hold_pd(pd));
    assert_eq!(keys.pd_users(pd), 1);
    keys.deregister(key).unwrap();
    assert_eq!(keys.dealloc_pd(pd), Err(DeallocPdError::InUse));
    keys.release_pd(pd);
    assert_eq!(keys.dealloc_pd(pd), Ok(()));
    assert_eq!(keys.dealloc_pd(pd), Err(DeallocPdError::Unknown));
    assert!(!keys.hold_pd(pd));
    assert_ne!(keys.alloc_pd(), pd, "numbers are not reused soon");
    assert_eq!(keys.pd_count(), 1);
}

#[test]
fn a_shared_region_is_adopted_under_its_key() {
    let mut shared = KeyTable::new([1; 32], KeyDomain::Shared);
    let mut local = KeyTable::new([2; 32], KeyDomain::Local);
    let _skew = local.alloc_pd();
    let (their_pd, my_pd) = (shared.alloc_pd(), local.alloc_pd());
    let published = shared.register(their_pd, Memory::heap(64), 0x1000, ALL).unwrap();
    let adopted = local.adopt(my_pd, &published).unwrap();
    assert_eq!((adopted.rkey(), adopted.addr(), adopted.pd()), (published.rkey(), 0x1000, my_pd));

    let span = local.check_remote(published.rkey(), my_pd, QPN, 0x1008, 8, Access::REMOTE_WRITE).unwrap();
    span.store(0, 99).unwrap();
    let seen = shared.check_remote(published.rkey(), their_pd, QPN, 0x1008, 8, Access::REMOTE_READ).unwrap();
    assert_eq!(seen.load(0), Ok(99));

    assert_eq!(local.adopt(my_pd, &published).unwrap_err(), RegisterError::KeyInUse);
    let own = local.register(my_pd, Memory::heap(8), 0, ALL).unwrap();
    assert_eq!(own.rkey() & 1, 0);
    assert_eq!(published.rkey() & 1, 1);
    let mut third = KeyTable::new([3; 32], KeyDomain::Local);
    let third_pd = third.alloc_pd();
    assert_eq!(third.adopt(third_pd, &own).unwrap_err(), RegisterError::NotShared);
    assert_eq!(shared.adopt(their_pd, &published).unwrap_err(), RegisterError::NotShared);

    // Each table forgets for itself, and may adopt again.
    local.deregister(published.rkey()).unwrap();
    assert_eq!(local.check_remote(published.rkey(), my_pd, QPN, 0x1008, 8, ALL).unwrap_err(), KeyError::Unknown);
    assert!(shared.check_remote(published.rkey(), their_pd, QPN, 0x1008, 8, ALL).is_ok());
    local.adopt(my_pd, &published).unwrap();
}

// [MEM-KEY-RANDOM]
#[test]
fn keys_look_random() {
    let mut keys = table();
    let pd = keys.alloc_pd();
    let memory = Memory::heap(8);
    let count = if cfg!(miri) { 64 } else { 4096 };
    let made: Vec<u32> = (0..count).map(|_| keys.register(pd, memory.clone(), 0, ALL).unwrap().rkey()).collect();
    assert_eq!(made.iter().collect::<BTreeSet<_>>().len(), made.len());
    assert!(made.iter().all(|&key| key != 0 && key & 1 == 0));
    if cfg!(miri) {
        return;
    }
    // Every bit but the lowest is set in half of the keys and differs in half of the neighbours. The standard
    // deviation of the mean is 1/128, so 6 of them are 0.047.
    let mean = |hits: usize, of: usize| hits as f64 / of as f64;
    for bit in 1..32 {
        let set = made.iter().filter(|&&key| key >> bit & 1 == 1).count();
        assert!((mean(set, made.len()) - 0.5).abs() < 0.047, "bit {bit}");
        for distance in [1, 2, 3, 64] {
            let flips = made.windows(distance + 1).filter(|w| (w[0] ^ w[distance]) >> bit & 1 == 1).count();
            assert!((mean(flips, made.len() - distance) - 0.5).abs() < 0.047, "bit {bit} distance {distance}");
        }
    }
    // No constant step or mask between neighbours.
    let steps: BTreeSet<u32> = made.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
    let masks: BTreeSet<u32> = made.windows(2).map(|w| w[1] ^ w[0]).collect();
    assert!(steps.len() > made.len() - 10 && masks.len() > made.len() - 10);
    // Another seed, other keys.
    let mut other = KeyTable::new([8; 32], KeyDomain::Local);
    let pd = other.alloc_pd();
    let common = (0..count).filter(|_| made.contains(&other.register(pd, memory.clone(), 0, ALL).unwrap().rkey()));
    assert!(common.count() <= 1);
}

#[test]
#[cfg(not(miri))] // Too slow there; the property test below covers the same code.
fn a_hundred_thousand_regions() {
    let mut keys = table();
    let pd = keys.alloc_pd();
    let memory = Memory::heap(1 << 20);
    let mut made = Vec::new();
    for index in 0..100_000u64 {
        let piece = memory.slice((index % 1000) as usize, 16).unwrap();
        made.push(keys.register(pd, piece, index << 16, ALL).unwrap().rkey());
    }
    assert_eq!(keys.len(), 100_000);
    let check = |keys: &KeyTable, index: usize, key: u32| {
        keys.check_remote(key, pd, QPN, (index as u64) << 16, 16, ALL).map(|span| span.len())
    };
    for (index, &key) in made.iter().enumerate() {
        assert_eq!(check(&keys, index, key), Ok(16));
    }
    for &key in made.iter().step_by(2) {
        keys.deregister(key).unwrap();
    }
    assert_eq!(keys.len(), 50_000);
    for (index, &key) in made.iter().enumerate() {
        let expect = if index % 2 == 0 { Err(KeyError::Unknown) } else { Ok(16) };
        assert_eq!(check(&keys, index, key), expect);
    }
    for &key in made.iter().skip(1).step_by(2) {
        keys.deregister(key).unwrap();
    }
    assert!(keys.is_empty());
    assert_eq!(keys.dealloc_pd(pd), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: if cfg!(miri) { 4 } else { 200 }, ..ProptestConfig::default() })]

    /// `check` agrees with arithmetic in 128 bits.
    #[test]
    fn bounds_agree_with_wide_arithmetic(
        len in 0usize..300,
        iova in prop_oneof![0u64..1000, any::<u64>(), (u64::MAX - 1000)..=u64::MAX],
        shift in prop_oneof![-400i64..400, any::<i64>()],
        want in prop_oneof![0u64..400, any::<u64>()],
    ) {
        let mut keys = table();
        let pd = keys.alloc_pd();
        let fits = len == 0 || u128::from(iova) + len as u128 <= 1 << 64;
        match keys.register(pd, Memory::heap(len), iova, ALL) {
            Err(error) => prop_assert!(!fits && error == RegisterError::AddressOverflow),
            Ok(region) => {
                prop_assert!(fits);
                let va = iova.wrapping_add_signed(shift);
                let inside = va >= iova && u128::from(va) + u128::from(want) <= u128::from(iova) + len as u128;
                // The end of a region that ends at 2^64 is address 0: an empty range there is let through.
                let wrapped = want == 0 && u128::from(iova) + len as u128 == 1 << 64 && va == 0;
                let found = keys.check_remote(region.rkey(), pd, QPN, va, want, ALL);
                prop_assert_eq!(found.is_ok(), inside || wrapped);
                prop_assert_eq!(keys.check_local(region.lkey(), pd, va, want, ALL).is_ok(), found.is_ok());
                if let Ok(span) = found {
                    prop_assert_eq!(span.len() as u64, want);
                    prop_assert!(span.read(0, &mut vec![0; span.len()]).is_ok());
                }
            }
        }
    }

    /// Any sequence of registrations and deregistrations leaves exactly the live keys open.
    #[test]
    fn agrees_with_a_map(steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..400)) {
        let mut keys = table();
        let pd = keys.alloc_pd();
        let memory = Memory::heap(8);
        let mut live = BTreeMap::new();
        let mut dead = Vec::new();
        for (serial, (add, pick)) in steps.into_iter().enumerate() {
            if add || live.is_empty() {
                let iova = serial as u64 * 8;
                let region = keys.register(pd, memory.clone(), iova, ALL).unwrap();
                prop_assert!(live.insert(region.rkey(), iova).is_none());
            } else {
                let key = *pick.get(&live.keys().copied().collect::<Vec<_>>());
                live.remove(&key);
                prop_assert!(keys.deregister(key).is_ok());
                dead.push(key);
            }
            prop_assert_eq!(keys.len(), live.len());
        }
        for (&key, &iova) in &live {
            prop_assert!(keys.check_remote(key, pd, QPN, iova, 8, ALL).is_ok());
            prop_assert_eq!(keys.region(key).map(|region| region.addr()), Some(iova));
        }
        for key in dead {
            prop_assert_eq!(keys.check_remote(key, pd, QPN, 0, 0, ALL).unwrap_err(), KeyError::Unknown);
        }
    }
}

#[test]
fn a_full_table_takes_no_key_until_one_is_given_back() {
    let mut keys = KeyTable::new([7; 32], KeyDomain::Local).with_room(3);
    let pd = keys.alloc_pd();
    let register = |keys: &mut KeyTable| keys.register(pd, Memory::heap(64), 0, Access::REMOTE_READ);
    let regions: Vec<_> = (0..3).map(|_| register(&mut keys).unwrap()).collect();
    assert_eq!(register(&mut keys).unwrap_err(), RegisterError::TooMany);
    keys.deregister(regions[1].lkey()).unwrap();
    register(&mut keys).unwrap();
    assert_eq!(register(&mut keys).unwrap_err(), RegisterError::TooMany);
}
