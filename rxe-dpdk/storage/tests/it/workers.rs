//! Several workers with one namespace.

use std::sync::Arc;
use std::thread;

use rxe_proto::mem::{HeapAllocator, Memory};
use rxe_storage::{
    BlockSize, Completion, Contents, DiskOptions, Operation, RamBackend, RamDisk, RamOptions, Scrub, StorageError,
    Submitted,
};

use crate::support::{One, PLAIN, contents, filled, memory, open, parents, ring, volume};

const CHECKED: DiskOptions = DiskOptions { checksums: true, ..PLAIN };

/// Two workers with instances of one file, which has checksums.
fn two_workers() -> Option<(rxe_testkit::temp::TempDir, One, One)> {
    let (folder, path) = volume(&parents()[0], 64 << 10);
    let (first, second) = (ring(4)?, ring(4)?);
    let disk = open(&path, &CHECKED);
    Some((folder, One::disk(first, &disk), One::disk(second, &disk)))
}

fn finish(one: &mut One) -> Vec<Completion> {
    let mut completed = Vec::new();
    while one.storage.outstanding() > 0 {
        one.storage.wait(&mut completed).unwrap();
    }
    completed
}

#[test]
fn an_operation_waits_for_another_workers_on_the_same_block() {
    let Some((_folder, mut first, mut second)) = two_workers() else { return };
    let (from, into) = (filled(&[8; 8192]), memory(4096));
    let write = Operation::Write { offset: 0, from: &from, durable: false };
    let read = Operation::Read { offset: 4096, into: &into };
    // The write has its blocks, though the kernel does not have the write yet.
    assert_eq!(first.storage.submit(first.namespace, 1, write), Ok(Submitted::Pending));
    assert_eq!(second.storage.submit(second.namespace, 2, read), Ok(Submitted::Pending));
    let mut completed = Vec::new();
    for _ in 0..100 {
        second.storage.turn(&mut completed).unwrap();
    }
    assert_eq!((completed.len(), second.storage.outstanding()), (0, 1));
    assert_eq!(second.backend().stats().waits.get(), 1);
    // Other blocks are free.
    let other = memory(4096);
    let read = Operation::Read { offset: 16 << 10, into: &other };
    assert_eq!(second.storage.submit(second.namespace, 3, read), Ok(Submitted::Pending));
    while completed.is_empty() {
        second.storage.wait(&mut completed).unwrap();
    }
    assert_eq!(completed, [Completion { token: 3, result: Ok(()) }]);
    assert_eq!(finish(&mut first), [Completion { token: 1, result: Ok(()) }]);
    assert_eq!(finish(&mut second), [Completion { token: 2, result: Ok(()) }]);
    assert_eq!(contents(&into), [8; 4096]);
}

#[test]
fn removing_a_namespace_does_not_wait_for_another_worker() {
    let Some((_folder, mut first, mut second)) = two_workers() else { return };
    let into = memory(4096);
    let read = Operation::Read { offset: 0, into: &into };
    assert_eq!(first.storage.submit(first.namespace, 1, read), Ok(Submitted::Pending));
    let from = filled(&[8; 4096]);
    let write = Operation::Write { offset: 0, from: &from, durable: false };
    assert_eq!(second.storage.submit(second.namespace, 2, write), Ok(Submitted::Pending));
    let mut completed = Vec::new();
    second.storage.remove(second.namespace, &mut completed).unwrap();
    assert_eq!(completed, [Completion { token: 2, result: Err(StorageError::Closed) }]);
    // The write that was given up keeps no reader away.
    assert_eq!(first.storage.submit(first.namespace, 3, read), Ok(Submitted::Pending));
    assert_eq!(first.backend().stats().waits.get(), 0);
    assert_eq!(finish(&mut first).len(), 2);
}

#[test]
fn workers_and_a_scrub_at_once_never_see_a_false_mismatch() {
    let (_folder, path) = volume(&parents()[0], 16 * 4096);
    let disk = open(&path, &CHECKED);
    let workers: Vec<_> = (1..4_u8)
        .map(|number| {
            let disk = Arc::clone(&disk);
            thread::spawn(move || {
                let Some(ring) = ring(8) else { return };
                let mut one = One::disk(ring, &disk);
                let (from, into) = (filled(&[number; 4 * 4096]), memory(4 * 4096));
                for round in 0..100 {
                    let offset = round * 7 % 13 * 4096;
                    assert_eq!(one.run(Operation::Write { offset, from: &from, durable: false }), Ok(()));
                    assert_eq!(one.run(Operation::Read { offset, into: &into }), Ok(()));
                    for block in contents(&into).chunks(4096) {
                        assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
                    }
                }
            })
        })
        .collect();
    let mut scrub = Scrub::disk(Arc::clone(&disk));
    let mut rounds = 0;
    while rounds < 3 || workers.iter().any(|worker| !worker.is_finished()) {
        let report = scrub.step(5).unwrap();
        assert_eq!((report.mismatches, report.rebuilt), (vec![], vec![]));
        rounds += 1;
    }
    for worker in workers {
        worker.join().unwrap();
    }
}

#[test]
fn workers_on_memory_with_checksums_never_see_a_torn_block() {
    let options = RamOptions { block_size: BlockSize::B4096, size: None, checksums: true, contents: Contents::Zeroes };
    let disk = RamDisk::new(Memory::heap(4 * 4096), &options, &HeapAllocator).unwrap();
    thread::scope(|scope| {
        for number in 1..4_u8 {
            let disk = Arc::clone(&disk);
            scope.spawn(move || {
                let mut one = One::new(None, RamBackend::new(disk));
                let (from, into) = (filled(&[number; 4 * 4096]), memory(4 * 4096));
                for _ in 0..500 {
                    assert_eq!(one.run(Operation::Write { offset: 0, from: &from, durable: false }), Ok(()));
                    assert_eq!(one.run(Operation::Read { offset: 0, into: &into }), Ok(()));
                    for block in contents(&into).chunks(4096) {
                        assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
                    }
                }
            });
        }
    });
    assert_eq!(Scrub::ram(disk).step(100).unwrap().mismatches, []);
}
