//! Foreign memory: accesses to pages that are gone or protected end in errors.

use std::sync::Arc;

use crate::support::program::{PAGE, Program, Protection};
use proptest::prelude::*;
use rxe_proto::mem::{Access, AccessError, AtomicError, KeyDomain, KeyTable, Memory};
use rxe_proto::verbs::{Grh, GrhError};

const ADDR: usize = 0x7F00_0000_0000;

/// Three pages: one of the program's own, one that is read-only, one that is unmapped.
fn three_pages() -> (Arc<Program>, Memory) {
    let program = Program::new(ADDR, 3 * PAGE);
    program.protect(PAGE..2 * PAGE, Protection::ReadOnly);
    program.protect(2 * PAGE..3 * PAGE, Protection::Unmapped);
    let memory = program.memory();
    (program, memory)
}

#[test]
fn copies_reach_the_bytes_of_the_program() {
    let program = Program::new(ADDR + 8, 2 * PAGE);
    let memory = program.memory();
    assert_eq!((memory.as_ptr() as usize, memory.len()), (ADDR + 8, 2 * PAGE));
    assert!(!memory.is_lost());
    assert_eq!(program.accesses(), (0, 0), "making it accesses nothing");
    memory.write(PAGE - 16, b"across the page boundary").unwrap();
    assert_eq!(program.peek(PAGE - 16, 24), b"across the page boundary");
    program.poke(0, b"program");
    let mut bytes = [0; 7];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"program");
    memory.fill(100, 1500, 7).unwrap();
    assert_eq!(program.peek(99, 1502), [[0].as_slice(), &[7; 1500], &[0]].concat());

    let part = memory.slice(PAGE - 16, 24).unwrap();
    assert_eq!(part.as_ptr() as usize, ADDR + 8 + PAGE - 16);
    let mut bytes = [0; 4];
    part.slice(11, 4).unwrap().read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"page");
    assert!(part.slice(21, 4).is_none());
}

#[test]
fn bounds_come_before_pages() {
    let (program, memory) = three_pages();
    assert_eq!(memory.read(3 * PAGE - 1, &mut [0; 2]), Err(AccessError::OutOfBounds));
    assert_eq!(memory.write(3 * PAGE + 1, &[]), Err(AccessError::OutOfBounds));
    assert_eq!(memory.fill(usize::MAX, 2, 0), Err(AccessError::OutOfBounds));
    assert_eq!(memory.load(3 * PAGE - 4), Err(AtomicError::OutOfBounds));
    assert_eq!(memory.store(3 * PAGE - 12, 0), Err(AtomicError::Misaligned));
    memory.prefetch(0, 3 * PAGE);
    memory.prefetch(3 * PAGE, 1);
    assert_eq!(program.accesses(), (0, 0));
}

#[test]
fn a_page_that_is_gone_fails_the_access_and_not_the_next_one() {
    let (program, memory) = three_pages();
    let gone = 2 * PAGE;
    let mut bytes = [0xAA; 8];
    assert_eq!(memory.read(gone, &mut bytes), Err(AccessError::Fault));
    assert_eq!(memory.write(gone, &bytes), Err(AccessError::Fault));
    assert_eq!(memory.fill(gone, 8, 1), Err(AccessError::Fault));
    assert_eq!(memory.load(gone), Err(AtomicError::Fault));
    assert_eq!(memory.store(gone, 1), Err(AtomicError::Fault));
    assert_eq!(memory.fetch_add(gone, 1), Err(AtomicError::Fault));
    assert_eq!(memory.compare_swap(gone, 0, 1), Err(AtomicError::Fault));
    assert_eq!(Grh::read(&memory, gone), Err(GrhError::Fault));
    assert!(!memory.is_lost(), "it may come back");
    program.protect(gone..3 * PAGE, Protection::ReadWrite);
    assert_eq!(memory.fetch_add(gone, 1), Ok(0));
    assert_eq!(memory.load(gone), Ok(1));
}

#[test]
fn a_copy_that_meets_a_missing_page_fails_as_a_whole() {
    let (program, memory) = three_pages();
    program.poke(PAGE, &[3; PAGE]);
    let mut bytes = [0; 16];
    assert_eq!(memory.read(2 * PAGE - 8, &mut bytes), Err(AccessError::Fault));
    assert_eq!(memory.write(PAGE - 8, &[5; 16]), Err(AccessError::Fault));
    assert_eq!(program.peek(PAGE - 8, 16), [[5; 8], [3; 8]].concat(), "up to the page that refused");
}

#[test]
fn read_only_pages_are_read_and_never_written() {
    let (program, memory) = three_pages();
    program.poke(PAGE, &9_u64.to_ne_bytes());
    assert_eq!(memory.load(PAGE), Ok(9));
    assert_eq!(memory.write(PAGE, &[1]), Err(AccessError::Fault));
    assert_eq!(memory.store(PAGE, 1), Err(AtomicError::Fault));
    assert_eq!(memory.fetch_add(PAGE, 1), Err(AtomicError::Fault));
    assert_eq!(memory.compare_swap(PAGE, 9, 1), Err(AtomicError::Fault));
    assert_eq!(memory.compare_swap(PAGE, 8, 1), Ok(9), "writes nothing");
    assert_eq!(program.peek(PAGE, 8), 9_u64.to_ne_bytes());
}

#[test]
fn atomics_return_what_was_there() {
    let program = Program::new(ADDR, PAGE);
    let memory = program.memory();
    memory.store(8, 40).unwrap();
    assert_eq!(program.peek(8, 8), 40_u64.to_ne_bytes());
    assert_eq!(memory.fetch_add(8, 2), Ok(40));
    assert_eq!(memory.compare_swap(8, 41, 7), Ok(42));
    assert_eq!(memory.compare_swap(8, 42, 7), Ok(42));
    assert_eq!(memory.fetch_add(8, u64::MAX), Ok(7));
    assert_eq!(memory.load(8), Ok(6), "adding wraps");
    // Alignment is that of the address in the program.
    let odd = Program::new(ADDR + 4, PAGE);
    assert_eq!(odd.memory().load(0), Err(AtomicError::Misaligned));
    assert_eq!(odd.memory().load(4), Ok(0));
}

#[test]
fn a_probe_reads_one_byte_of_each_page() {
    let (program, memory) = three_pages();
    assert_eq!(memory.probe(PAGE), Err(AccessError::Fault));
    assert_eq!(program.accesses(), (3, 0));
    assert_eq!(memory.slice(0, 2 * PAGE).unwrap().probe(PAGE), Ok(()));
    assert_eq!(program.accesses(), (5, 0));
    // The last byte of one page, a whole one, and the first byte of the third.
    let edges = memory.slice(PAGE - 1, PAGE + 2).unwrap();
    assert_eq!(edges.probe(PAGE), Err(AccessError::Fault));
    assert_eq!(program.accesses(), (8, 0));
    assert_eq!(memory.slice(2 * PAGE, 0).unwrap().probe(PAGE), Ok(()), "no bytes, no page");
    assert_eq!(memory.slice(0, 3).unwrap().probe(0), Ok(()));
    assert_eq!(Memory::heap(3 * PAGE).probe(PAGE), Ok(()));
}

#[test]
fn a_registration_neither_touches_pages_nor_lets_a_read_only_one_be_written() {
    let (program, memory) = three_pages();
    let mut keys = KeyTable::new([1; 32], KeyDomain::Local);
    let pd = keys.alloc_pd();
    let region = keys.register(pd, memory, ADDR as u64, Access::REMOTE_READ).unwrap();
    assert_eq!(region.len(), 3 * PAGE as u64);
    let (va, key) = ((ADDR + PAGE) as u64, region.rkey());
    assert!(keys.check_local(key, pd, va, 8, Access::LOCAL_WRITE).is_err());
    assert!(keys.check_remote(key, pd, 5, va, 8, Access::REMOTE_WRITE).is_err());
    assert!(keys.check_remote(key, pd, 5, va, 8, Access::REMOTE_ATOMIC).is_err());
    assert_eq!(program.accesses(), (0, 0));
    let span = keys.check_remote(key, pd, 5, va, 8, Access::REMOTE_READ).unwrap();
    assert_eq!(span.read(0, &mut [0; 8]), Ok(()));
    // The missing page is found by the access, and does not close the key.
    let gone = keys.check_remote(key, pd, 5, va + PAGE as u64, 8, Access::REMOTE_READ).unwrap();
    assert_eq!(gone.read(0, &mut [0; 8]), Err(AccessError::Fault));
    assert!(keys.check_remote(key, pd, 5, va, 8, Access::REMOTE_READ).is_ok());
    assert!(keys.list(0..keys.slots()).all(|info| !info.lost));
    assert_eq!(program.accesses().1, 0);
}

/// Regions end with the address space, not before.
#[test]
fn lengths_up_to_the_whole_address_space_can_be_registered() {
    struct Everything;

    impl rxe_proto::mem::ForeignMemory for Everything {
        fn addr(&self) -> usize {
            1
        }
        fn len(&self) -> usize {
            usize::MAX
        }
        fn read(&self, offset: usize, dst: &mut [u8]) -> Result<(), rxe_proto::mem::Fault> {
            dst.fill(offset as u8);
            Ok(())
        }
        fn write(&self, _: usize, _: &[u8]) -> Result<(), rxe_proto::mem::Fault> {
            Err(rxe_proto::mem::Fault)
        }
    }

    let mut keys = KeyTable::new([1; 32], KeyDomain::Local);
    let pd = keys.alloc_pd();
    let region = keys.register(pd, Memory::foreign(Arc::new(Everything)), 1, Access::REMOTE_READ).unwrap();
    assert_eq!(region.len(), u64::MAX);
    let mut bytes = [0];
    let span = keys.check_remote(region.rkey(), pd, 5, u64::MAX, 1, Access::REMOTE_READ).unwrap();
    span.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [(u64::MAX - 1) as u8]);
    assert!(keys.check_remote(region.rkey(), pd, 5, u64::MAX, 2, Access::REMOTE_READ).is_err());
    assert!(keys.check_remote(region.rkey(), pd, 5, 0, 1, Access::REMOTE_READ).is_err());
    // No bytes at all are a region, too.
    let nothing = keys.register(pd, Program::new(0, 0).memory(), 0, Access::REMOTE_READ).unwrap();
    assert!(nothing.is_empty());
    assert!(keys.check_remote(nothing.rkey(), pd, 5, 0, 0, Access::REMOTE_READ).is_ok());
    assert!(keys.check_remote(nothing.rkey(), pd, 5, 0, 1, Access::REMOTE_READ).is_err());
}

/// One access of a random program.
#[derive(Clone, Debug)]
enum Step {
    Protect { page: usize, protection: Protection },
    Read { offset: usize, len: usize },
    Write { offset: usize, len: usize, byte: u8 },
    Fill { offset: usize, len: usize, byte: u8 },
    Add { offset: usize, add: u64 },
}

const PAGES: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    let protection = prop_oneof![Just(Protection::Unmapped), Just(Protection::ReadOnly), Just(Protection::ReadWrite)];
    let offset = || prop_oneof![0..PAGES * PAGE + 8, (1..PAGES).prop_map(|page| page * PAGE - 8)];
    prop_oneof![
        (0..PAGES, protection).prop_map(|(page, protection)| Step::Protect { page, protection }),
        (offset(), 0..2 * PAGE).prop_map(|(offset, len)| Step::Read { offset, len }),
        (offset(), 0..2 * PAGE, any::<u8>()).prop_map(|(offset, len, byte)| Step::Write { offset, len, byte }),
        (offset(), 0..2 * PAGE, any::<u8>()).prop_map(|(offset, len, byte)| Step::Fill { offset, len, byte }),
        (offset(), any::<u64>()).prop_map(|(offset, add)| Step::Add { offset, add }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: if cfg!(miri) { 4 } else { 256 }, ..ProptestConfig::default() })]

    /// An access succeeds if it is in bounds and all of its pages allow it. One that fails changes nothing but bytes
    /// that it was to change.
    #[test]
    fn an_access_succeeds_if_all_of_its_pages_allow_it(steps in prop::collection::vec(step(), 0..40)) {
        let program = Program::new(ADDR, PAGES * PAGE);
        let memory = program.memory();
        let mut pages = [Protection::ReadWrite; PAGES];
        for step in steps {
            let all = |offset: usize, len: usize, is_allowed: fn(Protection) -> bool| {
                let touched = offset / PAGE..(offset + len).div_ceil(PAGE);
                if offset + len > PAGES * PAGE {
                    Err(AccessError::OutOfBounds)
                } else if len == 0 || pages[touched].iter().all(|&page| is_allowed(page)) {
                    Ok(())
                } else {
                    Err(AccessError::Fault)
                }
            };
            let (readable, writable) = (
                (|page| page != Protection::Unmapped) as fn(Protection) -> bool,
                (|page| page == Protection::ReadWrite) as fn(Protection) -> bool,
            );
            let before = program.peek(0, PAGES * PAGE);
            match step {
                Step::Protect { page, protection } => {
                    program.protect(page * PAGE..(page + 1) * PAGE, protection);
                    pages[page] = protection;
                }
                Step::Read { offset, len } => {
                    let mut bytes = vec![0; len];
                    let expected = all(offset, len, readable);
                    prop_assert_eq!(memory.read(offset, &mut bytes), expected);
                    if expected.is_ok() {
                        prop_assert_eq!(&bytes[..], &before[offset..offset + len]);
                    }
                }
                Step::Write { offset, len, byte } | Step::Fill { offset, len, byte } => {
                    let expected = all(offset, len, writable);
                    let found = match step {
                        Step::Write { .. } => memory.write(offset, &vec![byte; len]),
                        _ => memory.fill(offset, len, byte),
                    };
                    prop_assert_eq!(found, expected);
                    let after = program.peek(0, PAGES * PAGE);
                    for (at, (&old, &new)) in before.iter().zip(&after).enumerate() {
                        let inside = expected != Err(AccessError::OutOfBounds) && (offset..offset + len).contains(&at);
                        let fits = if !inside { new == old } else if expected.is_ok() { new == byte } else { new == old || new == byte };
                        prop_assert!(fits, "byte {}", at);
                    }
                }
                Step::Add { offset, add } => {
                    let expected = match all(offset, 8, writable) {
                        Err(AccessError::OutOfBounds) => Err(AtomicError::OutOfBounds),
                        _ if offset % 8 != 0 => Err(AtomicError::Misaligned),
                        Ok(()) => Ok(u64::from_ne_bytes(before[offset..offset + 8].try_into().unwrap())),
                        Err(_) => Err(AtomicError::Fault),
                    };
                    prop_assert_eq!(memory.fetch_add(offset, add), expected);
                    let after = program.peek(0, PAGES * PAGE);
                    match expected {
                        Ok(found) => prop_assert_eq!(&after[offset..offset + 8], &found.wrapping_add(add).to_ne_bytes()[..]),
                        Err(_) => prop_assert_eq!(after, before),
                    }
                }
            }
        }
    }
}
