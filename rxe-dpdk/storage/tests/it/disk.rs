//! Files: opening, sizes, room, alignment, and files that change.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use rxe_proto::mem::Memory;
use rxe_storage::{
    BlockSize, Completion, Disk, DiskBackend, DiskOptions, Full, Notice, OpenError, Operation, RingError, Storage,
    StorageError, Submitted,
};
use rxe_testkit::temp::TempDir;

use crate::support::{One, PLAIN, contents, filled, memory, open, open_with_notices, parents, ring, volume};

#[test]
fn a_file_is_served_once_and_again_after_it_was_closed() {
    for parent in parents() {
        let (_folder, path) = volume(&parent, 8192);
        let first = open(&path, &PLAIN);
        let error = Disk::open(&path, &PLAIN).err().unwrap();
        assert!(matches!(error, OpenError::InUse { .. }), "{error}");
        assert!(error.to_string().contains("in use by another process"));
        drop(first);
        open(&path, &PLAIN);
    }
}

#[test]
fn a_file_can_be_opened_at_once_after_storage_that_used_it_was_dropped() {
    for parent in parents() {
        let (_folder, path) = volume(&parent, 8192);
        for round in 0..20 {
            let Some(ring) = ring(4) else { return };
            let mut one = One::disk(ring, &open(&path, &PLAIN));
            one.write(4096, &[round; 4096]).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap()[4096], 19);
    }
}

#[test]
fn unsuitable_files_are_refused_with_the_reason() {
    let folder = TempDir::new(&parents()[0]);
    let path = folder.path().join("volume");
    let refused = |path: &Path, options: &DiskOptions| Disk::open(path, options).err().unwrap();
    assert!(matches!(refused(&path, &PLAIN), OpenError::Io { action: "open", .. }));
    assert!(matches!(refused(folder.path(), &PLAIN), OpenError::Kind { .. }));
    assert!(matches!(refused(Path::new("/dev/null"), &PLAIN), OpenError::Kind { .. }));
    let file = File::create(&path).unwrap();
    assert!(matches!(refused(&path, &PLAIN), OpenError::Empty { .. }));
    file.set_len(4096 + 512).unwrap();
    let error = refused(&path, &PLAIN);
    assert!(matches!(error, OpenError::Size { size: 4608, block_size: 4096, .. }), "{error}");
    open(&path, &DiskOptions { block_size: BlockSize::B512, ..PLAIN });
}

#[test]
fn a_file_system_without_o_direct_gets_buffered_access_and_a_notice() {
    // sysfs has no O_DIRECT, and its files have a size. Opening one for writing changes nothing; nothing is written.
    let path = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
    if let Err(error) = File::options().read(true).write(true).open(path) {
        return println!("skipped: {}: {error}", path.display());
    }
    let (disk, notices) = Disk::open(path, &PLAIN).unwrap();
    assert!(!disk.is_direct());
    assert_eq!(notices, [Notice::Buffered { path: path.to_owned(), block_size: 4096 }]);
    assert!(notices[0].to_string().contains("refuses O_DIRECT"));
    // A buffer at any address will do. The file has fewer bytes than a block, although its size is one.
    let Some(ring) = ring(4) else { return };
    let unaligned = memory(8192).slice(8, 4096).unwrap();
    let result = One::disk(ring, &disk).run(Operation::Read { offset: 0, into: &unaligned });
    assert!(matches!(result, Err(StorageError::Truncated { offset: 1..4096 })), "{result:?}");
}

#[test]
fn o_direct_is_in_use_on_the_disk_and_refuses_unaligned_buffers() {
    let (_folder, path) = volume(&parents()[0], 64 << 10);
    let Some(ring) = ring(4) else { return };
    let (disk, notices) = Disk::open(&path, &PLAIN).unwrap();
    if let [notice] = &notices[..] {
        return println!("skipped: {notice}");
    }
    assert!(disk.is_direct());
    let mut one = One::disk(ring, &disk);
    let buffer = memory(8192);
    let unaligned = buffer.slice(8, 4096).unwrap();
    let result = one.run(Operation::Read { offset: 0, into: &unaligned });
    assert!(matches!(result, Err(StorageError::BufferAlignment { align: 512 | 4096 })), "{result:?}");
    assert_eq!(one.backend().stats().read_errors.get(), 1);
}

#[test]
fn without_a_ring_a_file_is_refused() {
    let (_folder, path) = volume(&parents()[0], 8192);
    let backend = DiskBackend::new(open(&path, &PLAIN), 4).unwrap();
    assert_eq!(Storage::new(None).add(Box::new(backend)), Err(RingError::NoRing));
}

#[test]
fn a_file_that_shrinks_gives_an_error_and_its_new_size_is_taken() {
    for parent in parents() {
        for direct in [false, true] {
            let (_folder, path) = volume(&parent, 64 << 10);
            let Some(ring) = ring(4) else { return };
            let mut one = One::disk(ring, &open(&path, &DiskOptions { direct, ..PLAIN }));
            one.write(0, &[5; 64 << 10]).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(20 << 10).unwrap();
            assert_eq!(one.read(16 << 10, 8192), Err(StorageError::Truncated { offset: 20 << 10 }));
            assert_eq!(one.read(40 << 10, 4096), Err(StorageError::Truncated { offset: 40 << 10 }));
            assert_eq!(one.read(16 << 10, 4096), Ok(vec![5; 4096]));
            assert_eq!(one.resize(), 20 << 10);
            assert_eq!(one.read(16 << 10, 8192), Err(StorageError::OutOfRange));
            // The end is in the middle of a block.
            file.set_len((16 << 10) + 100).unwrap();
            let result = one.read(16 << 10, 4096);
            assert!(matches!(result, Err(StorageError::Truncated { .. })), "{result:?}");
            let error = one.storage.get_mut(one.namespace).unwrap().resize().unwrap_err();
            assert!(matches!(error, OpenError::Size { .. }), "{error}");
            assert_eq!(one.backend().geometry().bytes(), 20 << 10);
        }
    }
}

#[test]
fn a_full_backend_refuses_and_takes_operations_again_after_a_completion() {
    let (_folder, path) = volume(&parents()[0], 64 << 10);
    let Some(ring) = ring(8) else { return };
    let mut storage = Storage::new(Some(ring));
    let namespace = storage.add(Box::new(DiskBackend::new(open(&path, &PLAIN), 2).unwrap())).unwrap();
    let buffer = memory(4096);
    let read = Operation::Read { offset: 0, into: &buffer };
    assert_eq!(storage.submit(namespace, 1, read), Ok(Submitted::Pending));
    assert_eq!(storage.submit(namespace, 2, read), Ok(Submitted::Pending));
    assert_eq!(storage.submit(namespace, 3, read), Err(Full));
    assert_eq!((storage.outstanding(), storage.get(namespace).unwrap().stats().full.get()), (2, 1));
    let mut completed = Vec::new();
    while completed.is_empty() {
        storage.wait(&mut completed).unwrap();
    }
    assert_eq!(storage.submit(namespace, 3, read), Ok(Submitted::Pending));
}

#[test]
fn more_operations_than_the_ring_holds_all_complete() {
    let (_folder, path) = volume(&parents()[0], 256 << 10);
    let Some(ring) = ring(2) else { return };
    let mut storage = Storage::new(Some(ring));
    let disk = open(&path, &PLAIN);
    let namespaces: Vec<_> =
        (0..2).map(|_| storage.add(Box::new(DiskBackend::new(Arc::clone(&disk), 32).unwrap())).unwrap()).collect();
    let buffers: Vec<Memory> = (0..64).map(|number| filled(&[number; 4096])).collect();
    for (token, from) in (0..).zip(&buffers) {
        let write = Operation::Write { offset: token * 4096, from, durable: false };
        assert_eq!(storage.submit(namespaces[token as usize % 2], token, write), Ok(Submitted::Pending));
    }
    assert_eq!(storage.outstanding(), 64);
    let mut completed = Vec::new();
    while storage.outstanding() > 0 {
        storage.wait(&mut completed).unwrap();
    }
    let mut tokens: Vec<u64> = completed.iter().map(|done| done.token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (0..64).collect::<Vec<u64>>());
    assert!(completed.iter().all(|done| done.result.is_ok()));
    let bytes = std::fs::read(&path).unwrap();
    assert!((0..64).all(|number| bytes[number * 4096..][..4096] == [number as u8; 4096]));
}

#[test]
fn one_turn_submits_any_number_of_operations_with_one_system_call() {
    let (_folder, path) = volume(&parents()[0], 256 << 10);
    let Some(ring) = ring(64) else { return };
    let mut storage = Storage::new(Some(ring));
    let namespace = storage.add(Box::new(DiskBackend::new(open(&path, &PLAIN), 64).unwrap())).unwrap();
    let buffer = memory(4096);
    for token in 0..64 {
        let read = Operation::Read { offset: token * 4096, into: &buffer };
        assert_eq!(storage.submit(namespace, token, read), Ok(Submitted::Pending));
    }
    let enters = |storage: &Storage| storage.ring().unwrap().stats().enters;
    assert_eq!(enters(&storage), 0);
    let mut completed = Vec::new();
    storage.turn(&mut completed).unwrap();
    assert_eq!(enters(&storage), 1);
    while storage.outstanding() > 0 {
        storage.turn(&mut completed).unwrap();
    }
    let busy = enters(&storage);
    for _ in 0..1000 {
        storage.turn(&mut completed).unwrap();
    }
    assert_eq!((enters(&storage), completed.len()), (busy, 64));
}

#[test]
fn removing_a_namespace_reports_all_of_its_operations() {
    for checksums in [false, true] {
        let (_folder, path) = volume(&parents()[0], 256 << 10);
        let Some(ring) = ring(4) else { return };
        let mut storage = Storage::new(Some(ring));
        let disk = open(&path, &DiskOptions { checksums, ..PLAIN });
        let namespace = storage.add(Box::new(DiskBackend::new(disk, 16).unwrap())).unwrap();
        let buffers: Vec<Memory> = (0..16).map(|number| filled(&[number + 1; 8192])).collect();
        for (token, from) in (0..).zip(&buffers) {
            let write = Operation::Write { offset: token * 8192, from, durable: false };
            assert_eq!(storage.submit(namespace, token, write), Ok(Submitted::Pending));
        }
        let mut completed: Vec<Completion> = Vec::new();
        storage.remove(namespace, &mut completed).unwrap();
        assert_eq!((completed.len(), storage.outstanding()), (16, 0));
        assert!(completed.iter().all(|done| done.result.is_ok()));
        let closed = storage.submit(namespace, 1, Operation::Flush);
        assert_eq!(closed, Ok(Submitted::Done(Err(StorageError::Closed))));
        let bytes = std::fs::read(&path).unwrap();
        assert!((0..16).all(|number| bytes[number * 8192..][..8192] == [number as u8 + 1; 8192]));
    }
}

#[test]
fn dropping_storage_completes_what_is_in_flight() {
    for checksums in [false, true] {
        let options = DiskOptions { checksums, ..PLAIN };
        let (_folder, path) = volume(&parents()[0], 1 << 20);
        let Some(first) = ring(8) else { return };
        let mut storage = Storage::new(Some(first));
        let namespace = storage.add(Box::new(DiskBackend::new(open(&path, &options), 8).unwrap())).unwrap();
        for token in 0..8 {
            // The only handle of the memory is the operation's.
            let from = filled(&[token as u8 + 1; 128 << 10]);
            let write = Operation::Write { offset: token * (128 << 10), from: &from, durable: true };
            assert_eq!(storage.submit(namespace, token, write), Ok(Submitted::Pending));
        }
        storage.turn(&mut Vec::new()).unwrap();
        drop(storage);
        let bytes = std::fs::read(&path).unwrap();
        assert!((0..8).all(|number| bytes[number * (128 << 10)..][..128 << 10] == [number as u8 + 1; 128 << 10]));
        let Some(second) = ring(8) else { return };
        let (disk, notices) = open_with_notices(&path, &options);
        assert_eq!(notices, []);
        assert!(One::disk(second, &disk).read(0, 1 << 20).unwrap() == bytes);
    }
}

#[test]
fn deallocated_blocks_release_their_storage_and_read_as_zeroes() {
    for parent in parents() {
        let (_folder, path) = volume(&parent, 1 << 20);
        let Some(ring) = ring(4) else { return };
        let mut one = One::disk(ring, &open(&path, &PLAIN));
        one.write(0, &[1; 1 << 20]).unwrap();
        one.run(Operation::Flush).unwrap();
        let allocated = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap()) * 512;
        assert!(allocated() >= 1 << 20);
        one.run(Operation::Deallocate { offset: 0, len: 512 << 10 }).unwrap();
        assert!(allocated() <= (512 << 10) + (64 << 10), "{} has {} bytes", path.display(), allocated());
        // tmpfs has no FALLOC_FL_ZERO_RANGE, so zeroes are written there.
        one.run(Operation::WriteZeroes { offset: 508 << 10, len: 300 << 10, deallocate: false }).unwrap();
        one.run(Operation::WriteZeroes { offset: 1020 << 10, len: 4096, deallocate: true }).unwrap();
        let bytes = one.read(0, 1 << 20).unwrap();
        let ones = |range: std::ops::Range<usize>| bytes[range].iter().filter(|byte| **byte == 1).count();
        assert_eq!((ones(0..808 << 10), ones(808 << 10..1020 << 10), ones(1020 << 10..1 << 20)), (0, 212 << 10, 0));
        assert_eq!(one.backend().stats().write_zeroes_bytes.get(), 304 << 10);
    }
}

#[test]
fn a_pinned_pool_serves_reads_and_writes() {
    let (_folder, path) = volume(&parents()[0], 64 << 10);
    let Some(mut ring) = ring(4) else { return };
    let pool = memory(64 << 10);
    println!("pinned: {}", ring.pin(&pool));
    let mut one = One::disk(ring, &open(&path, &PLAIN));
    let (from, into) = (pool.slice(4096, 8192).unwrap(), pool.slice(16384, 8192).unwrap());
    from.write(0, &[3; 8192]).unwrap();
    one.run(Operation::Write { offset: 4096, from: &from, durable: true }).unwrap();
    one.run(Operation::Read { offset: 4096, into: &into }).unwrap();
    assert_eq!(contents(&into), [3; 8192]);
}
