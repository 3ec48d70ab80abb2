//! Regions that are re-registered: `ibv_rereg_mr`.

use rxe_proto::mem::{
    Access, DeallocPdError, KeyDomain, KeyError, KeyTable, Memory, MemoryRegion, PdId, Reregister, ReregisterError,
    WindowBind, WindowKind,
};

const QPN: u32 = 0x11;
const BASE: u64 = 0x4000;
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::MW_BIND);

struct Setup {
    keys: KeyTable,
    pd: PdId,
    region: MemoryRegion,
}

fn setup() -> Setup {
    let mut keys = KeyTable::new([9; 32], KeyDomain::Local);
    let pd = keys.alloc_pd();
    let region = keys.register(pd, Memory::heap(64), BASE, ALL).unwrap();
    Setup { keys, pd, region }
}

impl Setup {
    fn change(&mut self, change: Reregister) -> Result<MemoryRegion, ReregisterError> {
        self.keys.reregister(self.region.lkey(), change)
    }

    fn write(&self, pd: PdId, va: u64, bytes: &[u8]) -> Result<(), KeyError> {
        let len = bytes.len() as u64;
        let span = self.keys.check_remote(self.region.rkey(), pd, QPN, va, len, Access::REMOTE_WRITE)?;
        span.write(0, bytes).unwrap();
        Ok(())
    }
}

// [MEM-REREGISTER]
#[test]
fn other_bytes_are_reached_under_the_same_key() {
    let mut on = setup();
    let memory = Memory::heap(128);
    let change = Reregister { translation: Some((memory.clone(), 0x9000)), ..Reregister::default() };
    let region = on.change(change).unwrap();
    assert_eq!((region.lkey(), region.rkey()), (on.region.lkey(), on.region.rkey()));
    assert_eq!((region.addr(), region.len(), region.access(), region.pd()), (0x9000, 128, ALL, on.pd));
    assert_eq!(on.keys.region(region.lkey()).unwrap().addr(), 0x9000);
    assert_eq!(on.write(on.pd, 0x9000 + 120, b"new"), Ok(()));
    assert_eq!(on.write(on.pd, BASE, b"old"), Err(KeyError::OutOfRange));
    let mut bytes = [0; 3];
    memory.read(120, &mut bytes).unwrap();
    assert_eq!(&bytes, b"new");
    assert_eq!(on.keys.len(), 1);
}

// [MEM-REREGISTER]
#[test]
fn another_protection_domain_takes_the_key_over() {
    let mut on = setup();
    let other = on.keys.alloc_pd();
    let region = on.change(Reregister { pd: Some(other), ..Reregister::default() }).unwrap();
    assert_eq!((region.pd(), region.addr(), region.access()), (other, BASE, ALL));
    assert_eq!(on.write(on.pd, BASE, b"x"), Err(KeyError::WrongPd));
    assert_eq!(on.write(other, BASE, b"x"), Ok(()));
    // The region counts for its new domain only.
    assert_eq!(on.keys.dealloc_pd(other), Err(DeallocPdError::InUse));
    assert_eq!(on.keys.dealloc_pd(on.pd), Ok(()));
    assert!(on.keys.deregister(region.lkey()).is_ok());
    assert_eq!(on.keys.dealloc_pd(other), Ok(()));
}

// [MEM-REREGISTER]
#[test]
fn other_rights_hold_at_once() {
    let mut on = setup();
    let only = |access| Reregister { access: Some(access), ..Reregister::default() };
    on.change(only(Access::REMOTE_READ)).unwrap();
    assert_eq!(on.write(on.pd, BASE, b"x"), Err(KeyError::NoAccess));
    on.change(only(ALL)).unwrap();
    assert_eq!(on.write(on.pd, BASE, b"x"), Ok(()));
    // Zero-based addresses begin at 0 and stay there until a translation names another one.
    assert_eq!(on.change(only(ALL | Access::ZERO_BASED)).unwrap().addr(), 0);
    assert_eq!(on.change(only(ALL)).unwrap().addr(), 0);
    let memory = on.region.memory().clone();
    let all = Reregister { translation: Some((memory, BASE)), pd: Some(on.pd), access: Some(Access::REMOTE_READ) };
    assert_eq!(on.change(all).unwrap().addr(), BASE);
}

// [MEM-REREGISTER]
#[test]
fn what_is_refused_changes_nothing() {
    let mut on = setup();
    let gone = on.keys.alloc_pd();
    on.keys.dealloc_pd(gone).unwrap();
    let window = on.keys.alloc_window(on.pd, WindowKind::Type1).unwrap();
    let fast = on.keys.alloc_fast_reg_mr(on.pd, 64).unwrap();
    let top = || Some((Memory::heap(2), u64::MAX));
    let illegal = Some(Access::REMOTE_WRITE);
    let worst = Reregister { translation: top(), pd: Some(gone), access: illegal };
    // Each request violates one rule more than the one after it.
    for key in [window, fast, on.region.lkey() ^ 2] {
        assert_eq!(on.keys.reregister(key, worst.clone()).unwrap_err(), ReregisterError::Unknown);
    }
    let bind = WindowBind { region_key: on.region.lkey(), addr: BASE, len: 8, access: Access::REMOTE_READ };
    on.keys.bind_window(window, on.pd, QPN, &bind).unwrap();
    assert_eq!(on.change(Reregister::default()).unwrap_err(), ReregisterError::NoChange);
    assert_eq!(on.change(worst.clone()).unwrap_err(), ReregisterError::WindowsBound);
    on.keys.dealloc_window(window).unwrap();
    assert_eq!(on.change(worst).unwrap_err(), ReregisterError::UnknownPd);
    let better = Reregister { translation: top(), pd: None, access: illegal };
    assert_eq!(on.change(better).unwrap_err(), ReregisterError::IllegalAccess);
    let good = Reregister { translation: top(), ..Reregister::default() };
    assert_eq!(on.change(good).unwrap_err(), ReregisterError::AddressOverflow);
    assert_eq!(on.write(on.pd, BASE, b"x"), Ok(()));
}

// [MEM-REREGISTER]
#[test]
fn shared_regions_stay_as_they_are() {
    let mut on = setup();
    let mut shared = KeyTable::new([3; 32], KeyDomain::Shared);
    let pd = shared.alloc_pd();
    let region = shared.register(pd, Memory::heap(64), BASE, ALL).unwrap();
    let change = || Reregister { access: Some(Access::REMOTE_READ), ..Reregister::default() };
    on.keys.adopt(on.pd, &region).unwrap();
    assert_eq!(on.keys.reregister(region.lkey(), change()).unwrap_err(), ReregisterError::Shared);
    assert_eq!(shared.reregister(region.lkey(), change()).unwrap_err(), ReregisterError::Shared);
    // Keys with a consumer's byte have no domain.
    let mut keys = KeyTable::with_consumer_byte([4; 32]);
    let pd = keys.alloc_pd();
    for _ in 0..16 {
        let region = keys.register(pd, Memory::heap(64), BASE, ALL).unwrap();
        assert!(keys.reregister(region.lkey(), change()).is_ok());
    }
}
