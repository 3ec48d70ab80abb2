//! Fast-registration MRs: made free, given bytes, registered by a work request, invalidated, used again.

use rxe_proto::mem::{
    Access, BindError, DeallocPdError, DeregisterError, FastRegMrError, InvalidateError, KeyDomain, KeyError, KeyTable,
    Memory, PdId, RegisterError, RenewError, UnknownKey, WindowBind, WindowKind,
};

const A: u32 = 0x21;
const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

fn setup() -> (KeyTable, PdId) {
    let mut keys = KeyTable::new([6; 32], KeyDomain::Local);
    let pd = keys.alloc_pd();
    (keys, pd)
}

/// The span that a local and a remote key admit: its length, or why not.
fn opens(keys: &KeyTable, key: u32, pd: PdId, va: u64, len: u64) -> Result<usize, KeyError> {
    let by_lkey = keys.check_local(key, pd, va, len, ALL).map(|span| span.len());
    let by_rkey = keys.check_remote(key, pd, A, va, len, ALL).map(|span| span.len());
    assert_eq!(by_lkey, by_rkey);
    by_lkey
}

// [MEM-FAST-REGION]
#[test]
fn from_free_to_valid_and_back() {
    let (mut keys, pd) = setup();
    let key = keys.alloc_fast_reg_mr(pd, 4096).unwrap();
    assert!(key != 0 && key & 1 == 0);
    assert_eq!(opens(&keys, key, pd, 0, 0), Err(KeyError::Unknown));
    assert!(keys.region(key).is_none());

    let memory = Memory::heap(1000);
    keys.map_fast_reg_mr(key, memory.clone()).unwrap();
    assert_eq!(opens(&keys, key, pd, 0, 0), Err(KeyError::Unknown), "mapping alone opens nothing");
    keys.fast_register(key, pd, 0x5000, ALL).unwrap();
    assert_eq!(opens(&keys, key, pd, 0x5000, 1000), Ok(1000));
    assert_eq!(
        opens(&keys, key, pd, 0x5000, 1001),
        Err(KeyError::OutOfRange),
        "bytes mapped, not the most there may be"
    );
    assert_eq!(opens(&keys, key, pd, 0x4FFF, 1), Err(KeyError::OutOfRange));
    let region = keys.region(key).unwrap();
    assert_eq!((region.lkey(), region.addr(), region.len(), region.access()), (key, 0x5000, 1000, ALL));
    keys.check_remote(key, pd, A, 0x5008, 8, Access::REMOTE_WRITE).unwrap().store(0, 5).unwrap();
    assert_eq!(memory.load(8), Ok(5));

    keys.invalidate_local(key, pd).unwrap();
    assert_eq!(opens(&keys, key, pd, 0x5000, 1), Err(KeyError::Unknown));
    assert!(keys.region(key).is_none());
    // The last mapping is still there, and may be registered with other rights and another address.
    keys.fast_register(key, pd, u64::MAX - 999, Access::REMOTE_READ).unwrap();
    let read = keys.check_remote(key, pd, A, u64::MAX - 991, 8, Access::REMOTE_READ).unwrap();
    assert_eq!(read.load(0), Ok(5));
    assert_eq!(opens(&keys, key, pd, u64::MAX, 1), Err(KeyError::NoAccess));
    keys.invalidate_remote(key, pd, A).unwrap();
    keys.map_fast_reg_mr(key, Memory::heap(4096)).unwrap();
    keys.fast_register(key, pd, 0x5000, ALL | Access::ZERO_BASED).unwrap();
    assert_eq!(opens(&keys, key, pd, 0, 4096), Ok(4096));
    assert_eq!(opens(&keys, key, pd, 0x5000, 1), Err(KeyError::OutOfRange));
}

/// Each call violates one rule more than the one after it. A refused one changes nothing.
// [MEM-FAST-REGION]
#[test]
fn reasons_come_in_order() {
    let (mut keys, pd) = setup();
    let other = keys.alloc_pd();
    let bytes = Memory::heap(64);
    let plain = keys.register(pd, bytes.clone(), 0, ALL).unwrap().lkey();
    let window = keys.alloc_window(pd, WindowKind::Type2).unwrap();
    let key = keys.alloc_fast_reg_mr(pd, 64).unwrap();
    let top = u64::MAX - 62;
    for wrong in [0, key ^ 2, plain, window] {
        assert_eq!(keys.map_fast_reg_mr(wrong, bytes.clone()), Err(FastRegMrError::Unknown));
        assert_eq!(keys.fast_register(wrong, other, top, Access::REMOTE_WRITE), Err(FastRegMrError::Unknown));
    }
    assert_eq!(keys.fast_register(key, other, top, Access::REMOTE_WRITE), Err(FastRegMrError::WrongPd));
    assert_eq!(keys.fast_register(key, pd, top, Access::REMOTE_WRITE), Err(FastRegMrError::NotMapped));
    assert_eq!(keys.map_fast_reg_mr(key, Memory::heap(65)), Err(FastRegMrError::TooLong));
    assert_eq!(keys.fast_register(key, pd, top, ALL), Err(FastRegMrError::NotMapped), "too much is not mapped");
    keys.map_fast_reg_mr(key, bytes.clone()).unwrap();
    assert_eq!(keys.fast_register(key, pd, top, Access::REMOTE_WRITE), Err(FastRegMrError::IllegalAccess));
    assert_eq!(keys.fast_register(key, pd, top, Access::REMOTE_ATOMIC), Err(FastRegMrError::IllegalAccess));
    assert_eq!(keys.fast_register(key, pd, top, ALL), Err(FastRegMrError::AddressOverflow));
    assert_eq!(opens(&keys, key, pd, top, 0), Err(KeyError::Unknown), "still free");
    keys.fast_register(key, pd, top, ALL | Access::ZERO_BASED).unwrap();
    assert_eq!(opens(&keys, key, pd, 0, 64), Ok(64));
    // VALID: neither mapped nor registered again, whatever else is wrong.
    assert_eq!(keys.map_fast_reg_mr(key, Memory::heap(65)), Err(FastRegMrError::NotFree));
    assert_eq!(keys.fast_register(key, other, top, Access::REMOTE_WRITE), Err(FastRegMrError::WrongPd));
    assert_eq!(keys.fast_register(key, pd, top, Access::REMOTE_WRITE), Err(FastRegMrError::NotFree));
    assert_eq!(opens(&keys, key, pd, 0, 64), Ok(64));
    assert_eq!(keys.check_local(key, other, 0, 1, ALL).unwrap_err(), KeyError::WrongPd);
    assert_eq!(keys.dealloc_window(key), Err(UnknownKey));
}

#[test]
fn invalidation_needs_a_valid_fast_region_of_the_domain() {
    let (mut keys, pd) = setup();
    let other = keys.alloc_pd();
    let key = keys.alloc_fast_reg_mr(pd, 64).unwrap();
    keys.map_fast_reg_mr(key, Memory::heap(64)).unwrap();
    type Invalidate = fn(&mut KeyTable, u32, PdId) -> Result<(), InvalidateError>;
    let both: [Invalidate; 2] =
        [|keys, key, pd| keys.invalidate_local(key, pd), |keys, key, pd| keys.invalidate_remote(key, pd, A)];
    for invalidate in both {
        assert_eq!(invalidate(&mut keys, key ^ 2, other), Err(InvalidateError::Unknown));
        assert_eq!(invalidate(&mut keys, key, other), Err(InvalidateError::WrongPd));
        assert_eq!(invalidate(&mut keys, key, pd), Err(InvalidateError::NotValid));
        keys.fast_register(key, pd, 0, ALL).unwrap();
        assert_eq!(invalidate(&mut keys, key, other), Err(InvalidateError::WrongPd));
        assert_eq!(opens(&keys, key, pd, 0, 64), Ok(64));
        assert_eq!(invalidate(&mut keys, key, pd), Ok(()));
        assert_eq!(invalidate(&mut keys, key, pd), Err(InvalidateError::NotValid));
    }
}

// [MEM-WINDOW-HOLDS]
#[test]
fn windows_hold_a_fast_region() {
    let (mut keys, pd) = setup();
    let key = keys.alloc_fast_reg_mr(pd, 64).unwrap();
    let window = keys.alloc_window(pd, WindowKind::Type2).unwrap();
    keys.map_fast_reg_mr(key, Memory::heap(64)).unwrap();
    let bind = WindowBind { region_key: key, addr: 0x1010, len: 16, access: Access::REMOTE_READ };
    assert_eq!(keys.bind_window(window, pd, A, &bind), Err(BindError::UnknownRegion), "free");
    keys.fast_register(key, pd, 0x1000, Access::empty()).unwrap();
    assert_eq!(keys.bind_window(window, pd, A, &bind), Err(BindError::NotBindable));
    keys.invalidate_local(key, pd).unwrap();
    keys.fast_register(key, pd, 0x1000, Access::MW_BIND).unwrap();
    keys.bind_window(window, pd, A, &bind).unwrap();
    assert_eq!(keys.check_remote(window, pd, A, 0x1010, 16, Access::REMOTE_READ).unwrap().len(), 16);
    assert_eq!(keys.invalidate_local(key, pd), Err(InvalidateError::WindowsBound));
    assert_eq!(keys.invalidate_remote(key, pd, A), Err(InvalidateError::WindowsBound));
    assert_eq!(keys.deregister(key).unwrap_err(), DeregisterError::WindowsBound);
    keys.invalidate_local(window, pd).unwrap();
    keys.invalidate_remote(key, pd, A).unwrap();
    assert!(keys.deregister(key).is_ok());
    assert_eq!(keys.bind_window(window, pd, A, &bind), Err(BindError::UnknownRegion));
}

// [MEM-KEY-RENEW]
#[test]
fn a_free_fast_region_gets_another_key() {
    let (mut keys, pd) = setup();
    let old = keys.alloc_fast_reg_mr(pd, 64).unwrap();
    let memory = Memory::heap(64);
    keys.map_fast_reg_mr(old, memory.clone()).unwrap();
    let new = keys.renew_key(old).unwrap();
    assert_ne!(new, old);
    assert_eq!(keys.fast_register(old, pd, 0, ALL), Err(FastRegMrError::Unknown));
    keys.fast_register(new, pd, 0, ALL).unwrap();
    assert_eq!(keys.region(new).unwrap().memory().as_ptr(), memory.as_ptr(), "what was mapped stays");
    assert_eq!(keys.renew_key(new), Err(RenewError::Valid));
    assert_eq!(keys.renew_key(old), Err(RenewError::Unknown));
    keys.invalidate_local(new, pd).unwrap();
    let newer = keys.renew_key(new).unwrap();
    assert_eq!(keys.map_fast_reg_mr(newer, Memory::heap(65)), Err(FastRegMrError::TooLong), "as does its size");
    assert_eq!(keys.len(), 1);
    assert_eq!(keys.dealloc_pd(pd), Err(DeallocPdError::InUse));
    assert!(keys.deregister(newer).is_ok());
    assert_eq!(keys.dealloc_pd(pd), Ok(()), "counted once, whatever its key");
}

#[test]
fn deregistration_in_either_state_gives_the_bytes_back() {
    let (mut keys, pd) = setup();
    let memory = Memory::heap(64);
    let key = keys.alloc_fast_reg_mr(pd, 64).unwrap();
    assert!(keys.deregister(key).unwrap().is_none(), "nothing was mapped");
    for valid in [false, true] {
        let key = keys.alloc_fast_reg_mr(pd, 64).unwrap();
        keys.map_fast_reg_mr(key, memory.clone()).unwrap();
        if valid {
            keys.fast_register(key, pd, 0, ALL).unwrap();
        }
        assert_eq!(keys.deregister(key).unwrap().unwrap().as_ptr(), memory.as_ptr());
        assert_eq!(opens(&keys, key, pd, 0, 64), Err(KeyError::Unknown));
        assert_eq!(keys.deregister(key).unwrap_err(), DeregisterError::Unknown);
    }
    assert!(keys.is_empty());
}

#[test]
fn fast_regions_are_made_within_limits() {
    let (mut keys, pd) = setup();
    let most = KeyTable::MAX_FAST_REG_MR;
    assert_eq!(keys.alloc_fast_reg_mr(pd, most + 1), Err(RegisterError::TooLong));
    assert_eq!(keys.alloc_fast_reg_mr(pd, usize::MAX), Err(RegisterError::TooLong));
    assert!(keys.alloc_fast_reg_mr(pd, most).is_ok());
    let mut elsewhere = KeyTable::new([4; 32], KeyDomain::Local);
    let foreign = (elsewhere.alloc_pd(), elsewhere.alloc_pd()).1;
    assert_eq!(keys.alloc_fast_reg_mr(foreign, 64), Err(RegisterError::UnknownPd));
    let mut shared = KeyTable::new([5; 32], KeyDomain::Shared);
    let shared_pd = shared.alloc_pd();
    assert_eq!(shared.alloc_fast_reg_mr(shared_pd, 64), Err(RegisterError::SharedTable));
    assert_eq!((keys.len(), shared.len()), (1, 0));
    // No bytes at all is a region, too.
    let empty = keys.alloc_fast_reg_mr(pd, 0).unwrap();
    keys.map_fast_reg_mr(empty, Memory::heap(0)).unwrap();
    keys.fast_register(empty, pd, u64::MAX, ALL).unwrap();
    assert_eq!(opens(&keys, empty, pd, u64::MAX, 0), Ok(0));
    assert_eq!(opens(&keys, empty, pd, u64::MAX, 1), Err(KeyError::OutOfRange));
}
