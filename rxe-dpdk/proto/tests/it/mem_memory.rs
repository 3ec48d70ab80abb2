//! Memory: copies, atomics and their bounds, seen from outside.

use proptest::prelude::*;
use rxe_proto::mem::{AccessError, Allocator, AtomicError, HeapAllocator, Memory};

#[test]
fn heap_memory_is_zeroed_and_aligned() {
    for len in [0, 1, 63, 64, 65, 4096, 1 << 20] {
        let memory = Memory::heap(len);
        assert_eq!(memory.len(), len);
        assert_eq!(memory.as_ptr().align_offset(64), 0);
        let mut bytes = vec![0xFF; len];
        memory.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn allocator_refuses_what_cannot_be() {
    assert_eq!(HeapAllocator.allocate(100).unwrap().len(), 100);
    let error = HeapAllocator.allocate(usize::MAX).unwrap_err();
    assert_eq!(error.len, usize::MAX);
}

#[test]
fn copies_stay_inside() {
    let memory = Memory::heap(16);
    memory.write(4, b"hello").unwrap();
    memory.fill(9, 7, b'!').unwrap();
    let mut bytes = [0; 16];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0\0\0\0hello!!!!!!!");

    assert_eq!(memory.write(12, b"hello"), Err(AccessError::OutOfBounds));
    assert_eq!(memory.read(1, &mut bytes), Err(AccessError::OutOfBounds));
    assert_eq!(memory.fill(usize::MAX, 2, 0), Err(AccessError::OutOfBounds));
    assert_eq!(memory.fill(2, usize::MAX, 0), Err(AccessError::OutOfBounds));
    assert_eq!(memory.read(17, &mut []), Err(AccessError::OutOfBounds));
    assert_eq!(memory.read(16, &mut []), Ok(()));
    memory.prefetch(0, 16);
    memory.prefetch(usize::MAX, 2);
}

#[test]
fn slices_share_bytes_and_keep_them_alive() {
    let whole = Memory::heap(64);
    let part = whole.slice(16, 32).unwrap();
    assert!(whole.slice(33, 32).is_none());
    assert!(part.slice(1, 32).is_none());
    part.write(0, b"abc").unwrap();
    let mut bytes = [0; 3];
    whole.read(16, &mut bytes).unwrap();
    assert_eq!(&bytes, b"abc");
    drop(whole);
    part.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"abc");
}

#[test]
fn atomics_return_what_was_there() {
    let memory = Memory::heap(32);
    memory.store(8, 40).unwrap();
    assert_eq!(memory.fetch_add(8, 2), Ok(40));
    assert_eq!(memory.compare_swap(8, 41, 7), Ok(42));
    assert_eq!(memory.load(8), Ok(42));
    assert_eq!(memory.compare_swap(8, 42, 7), Ok(42));
    assert_eq!(memory.load(8), Ok(7));
    assert_eq!(memory.fetch_add(8, u64::MAX), Ok(7));
    assert_eq!(memory.load(8), Ok(6), "adding wraps");

    assert_eq!(memory.load(1), Err(AtomicError::Misaligned));
    assert_eq!(memory.store(28, 1), Err(AtomicError::OutOfBounds));
    assert_eq!(memory.fetch_add(32, 1), Err(AtomicError::OutOfBounds));
    assert_eq!(memory.compare_swap(usize::MAX - 3, 0, 1), Err(AtomicError::OutOfBounds));
    // Alignment is that of the address, not of the offset.
    let odd = memory.slice(4, 20).unwrap();
    assert_eq!(odd.load(0), Err(AtomicError::Misaligned));
    assert_eq!(odd.load(4), Ok(6));
}

#[test]
fn atomics_hold_between_threads() {
    let memory = Memory::heap(64);
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let memory = memory.clone();
            scope.spawn(move || {
                for _ in 0..rounds {
                    memory.fetch_add(0, 1).unwrap();
                    let mut seen = memory.load(8).unwrap();
                    loop {
                        let found = memory.compare_swap(8, seen, seen + 3).unwrap();
                        if found == seen {
                            break;
                        }
                        seen = found;
                    }
                }
            });
        }
    });
    assert_eq!(memory.load(0), Ok(4 * rounds));
    assert_eq!(memory.load(8), Ok(12 * rounds));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: if cfg!(miri) { 8 } else { 256 }, ..ProptestConfig::default() })]

    /// Memory behaves like a vector: the same accesses succeed and leave the same bytes.
    #[test]
    fn agrees_with_a_vector(
        len in 0usize..100,
        writes in prop::collection::vec((0usize..120, prop::collection::vec(any::<u8>(), 0..40)), 0..20),
    ) {
        let memory = Memory::heap(len);
        let mut model = vec![0u8; len];
        for (offset, bytes) in writes {
            let expect = match model.get_mut(offset..offset + bytes.len()) {
                Some(place) => { place.copy_from_slice(&bytes); Ok(()) }
                None => Err(AccessError::OutOfBounds),
            };
            prop_assert_eq!(memory.write(offset, &bytes), expect);
        }
        let mut found = vec![0; len];
        memory.read(0, &mut found).unwrap();
        prop_assert_eq!(found, model);
    }
}
