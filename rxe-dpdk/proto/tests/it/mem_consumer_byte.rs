//! Keys whose lowest byte a bind sets, as libibverbs does for memory windows.

use std::collections::BTreeSet;

use rxe_proto::mem::{
    Access, BindError, InvalidateError, KeyDomain, KeyError, KeyLayout, KeyTable, Memory, PdId, RegisterError,
    UnknownKey, WindowBind, WindowKind,
};

const A: u32 = 0x11;
const BASE: u64 = 0x4000_0000;
const READ: Access = Access::REMOTE_READ;
const KINDS: [WindowKind; 2] = [WindowKind::Type1, WindowKind::Type2];

/// `ibv_inc_rkey`.
fn inc_rkey(key: u32) -> u32 {
    key & !0xFF | key.wrapping_add(1) & 0xFF
}

struct Setup {
    keys: KeyTable,
    pd: PdId,
    bind: WindowBind,
}

fn setup() -> Setup {
    let mut keys = KeyTable::with_consumer_byte([7; 32]);
    let pd = keys.alloc_pd();
    let region = keys.register(pd, Memory::heap(4096), BASE, Access::MW_BIND).unwrap();
    Setup { keys, pd, bind: WindowBind { region_key: region.lkey(), addr: BASE, len: 64, access: READ } }
}

impl Setup {
    /// Binds the window of `key` under the next key, as libibverbs does.
    fn bind_next(&mut self, key: u32) -> Result<u32, BindError> {
        self.keys.bind_window_as(key, Some(inc_rkey(key) as u8), self.pd, A, &self.bind)
    }

    fn reach(&self, key: u32) -> Result<(), KeyError> {
        self.keys.check_remote(key, self.pd, A, BASE, 8, READ).map(|_| ())
    }
}

// [MEM-CONSUMER-BYTE]
#[test]
fn a_bind_opens_the_window_under_the_key_that_it_names_and_no_other() {
    for kind in KINDS {
        let mut on = setup();
        let old = on.keys.alloc_window(on.pd, kind).unwrap();
        let new = on.bind_next(old).unwrap();
        assert_eq!(new, inc_rkey(old));
        assert_eq!(on.reach(new), Ok(()));
        for byte in (0..=255).filter(|&byte| byte != new & 0xFF) {
            assert_eq!(on.reach(new & !0xFF | byte), Err(KeyError::Unknown), "{byte:#x}");
        }
        assert_eq!(on.keys.bind_window(old, on.pd, A, &on.bind), Err(BindError::Unknown), "the old key names nothing");
        assert_eq!(on.keys.dealloc_window(old), Err(UnknownKey));
        assert_eq!(on.keys.len(), 2);
        on.keys.dealloc_window(new).unwrap();
        assert_eq!(on.reach(new), Err(KeyError::Unknown));
    }
}

// [MEM-CONSUMER-BYTE] [MEM-WINDOW-1]
#[test]
fn a_type_1_window_changes_its_key_with_each_bind_and_the_byte_wraps() {
    let mut on = setup();
    let first = on.keys.alloc_window(on.pd, WindowKind::Type1).unwrap();
    let mut key = first;
    for _ in 0..256 {
        let next = on.bind_next(key).unwrap();
        assert_eq!((on.reach(next), on.reach(key)), (Ok(()), Err(KeyError::Unknown)));
        key = next;
    }
    assert_eq!(key, first);
    // Unbinding by binding to nothing sets the byte, too.
    on.bind.len = 0;
    let unbound = on.bind_next(key).unwrap();
    assert_eq!(on.reach(unbound), Err(KeyError::Unknown));
    on.bind.len = 64;
    assert_eq!(on.bind_next(key), Err(BindError::Unknown));
    assert_eq!(on.bind_next(unbound), Ok(inc_rkey(unbound)));
}

// [MEM-CONSUMER-BYTE] [MEM-WINDOW-2]
#[test]
fn a_type_2_window_is_invalidated_by_its_present_key() {
    type Invalidate = fn(&mut KeyTable, u32, PdId) -> Result<(), InvalidateError>;
    let ways: [Invalidate; 2] =
        [|keys, key, pd| keys.invalidate_local(key, pd), |keys, key, pd| keys.invalidate_remote(key, pd, A)];
    for invalidate in ways {
        let mut on = setup();
        let old = on.keys.alloc_window(on.pd, WindowKind::Type2).unwrap();
        let key = on.bind_next(old).unwrap();
        assert_eq!(on.bind_next(key), Err(BindError::AlreadyBound));
        assert_eq!(invalidate(&mut on.keys, old, on.pd), Err(InvalidateError::Unknown));
        assert_eq!(on.reach(key), Ok(()), "neither changed anything");
        assert_eq!(invalidate(&mut on.keys, key, on.pd), Ok(()));
        assert_eq!(invalidate(&mut on.keys, key, on.pd), Err(InvalidateError::NotValid), "it keeps the key");
        // Linux allows the same byte again.
        assert_eq!(on.keys.bind_window_as(key, Some(key as u8), on.pd, A, &on.bind), Ok(key));
        assert_eq!(on.reach(key), Ok(()));
    }
}

#[test]
fn a_refused_bind_changes_no_key() {
    let mut on = setup();
    let key = on.keys.alloc_window(on.pd, WindowKind::Type1).unwrap();
    on.bind.len = 4097;
    assert_eq!(on.bind_next(key), Err(BindError::OutOfRange));
    on.bind.len = 64;
    assert_eq!(on.keys.bind_window(key, on.pd, A, &on.bind), Ok(()), "without a byte the key stays");
    assert_eq!(on.reach(key), Ok(()));
}

/// rdma-core's tests bind with local write access.
#[test]
fn a_bind_request_of_libibverbs_is_reduced_to_what_a_window_can_grant() {
    let mut on = setup();
    let key = on.keys.alloc_window(on.pd, WindowKind::Type2).unwrap();
    let asked = Access::all();
    on.bind.access = asked;
    assert_eq!(on.bind_next(key), Err(BindError::IllegalAccess));
    let remote = READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    assert_eq!(asked.of_window(), remote | Access::ZERO_BASED);
    assert_eq!((READ | Access::LOCAL_WRITE | Access::MW_BIND).of_window(), READ);
    on.bind.access = (READ | Access::LOCAL_WRITE).of_window();
    assert!(on.bind_next(key).is_ok());
}

#[test]
fn keys_of_other_tables_are_fixed() {
    let mut keys = KeyTable::new([7; 32], KeyDomain::Local);
    assert_eq!(keys.layout(), KeyLayout::Random);
    let (pd, other) = (keys.alloc_pd(), keys.alloc_pd());
    let key = keys.alloc_window(pd, WindowKind::Type1).unwrap();
    let bind = WindowBind { region_key: 0, addr: 0, len: 0, access: READ };
    assert_eq!(keys.bind_window_as(key, Some(1), other, A, &bind), Err(BindError::WrongPd));
    assert_eq!(keys.bind_window_as(key, Some(key as u8), pd, A, &bind), Err(BindError::FixedKey));
    assert_eq!(keys.bind_window_as(key, None, pd, A, &bind), Ok(key));
}

#[test]
fn such_a_table_shares_no_regions() {
    let mut on = setup();
    assert_eq!((on.keys.domain(), on.keys.layout()), (KeyDomain::Local, KeyLayout::ConsumerByte));
    let mut shared = KeyTable::new([8; 32], KeyDomain::Shared);
    let pd = shared.alloc_pd();
    let region = shared.register(pd, Memory::heap(8), 0, Access::empty()).unwrap();
    assert_eq!(on.keys.adopt(on.pd, &region).unwrap_err(), RegisterError::NotShared);
    let own = on.keys.register(on.pd, Memory::heap(8), 0, Access::empty()).unwrap();
    assert_eq!(on.keys.adopt(on.pd, &own).unwrap_err(), RegisterError::NotShared);
}

// [MEM-CONSUMER-BYTE]
#[test]
fn no_two_keys_agree_in_their_upper_bits_now_or_soon() {
    let count = if cfg!(miri) { 100 } else { 20_000 };
    let mut keys = KeyTable::with_consumer_byte([9; 32]);
    let pd = keys.alloc_pd();
    let mut indexes = BTreeSet::new();
    let mut parities = BTreeSet::new();
    for round in 0..count {
        let key = match round % 3 {
            0 => keys.register(pd, Memory::heap(1), 0, Access::empty()).unwrap().rkey(),
            1 => keys.alloc_fast_reg_mr(pd, 1).unwrap(),
            _ => keys.alloc_window(pd, WindowKind::Type2).unwrap(),
        };
        assert!(key >> 8 != 0 && indexes.insert(key >> 8), "{key:#x}");
        parities.insert(key & 1);
        // Most of them die at once, some under another byte.
        match round % 6 {
            0 | 1 => assert!(keys.deregister(key).is_ok()),
            2 => {
                let nothing = WindowBind { region_key: 0, addr: 0, len: 8, access: READ };
                assert!(keys.bind_window_as(key, Some(1), pd, A, &nothing).is_err());
                keys.dealloc_window(key).unwrap();
            }
            4 => {
                let renewed = keys.renew_key(key).unwrap();
                assert!(indexes.insert(renewed >> 8));
            }
            _ => {}
        }
    }
    assert_eq!(parities, BTreeSet::from([0, 1]), "the lowest bit is no domain here");
}

#[test]
fn the_number_of_keys_is_limited() {
    let mut keys = KeyTable::with_consumer_byte([9; 32]).with_room(2);
    let pd = keys.alloc_pd();
    for _ in 0..2 {
        keys.alloc_window(pd, WindowKind::Type1).unwrap();
    }
    assert_eq!(keys.alloc_window(pd, WindowKind::Type1), Err(RegisterError::TooMany));
    assert!(KeyLayout::ConsumerByte.max_keys() < KeyTable::MAX_KEYS);
}
