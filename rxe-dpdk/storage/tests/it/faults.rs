//! Files on a kernel that fails, delays and forgets.

use std::path::PathBuf;
use std::sync::Arc;

use rxe_storage::simulated::{Faults, SimulatedKernel};
use rxe_storage::{
    Completion, Disk, DiskBackend, DiskOptions, NamespaceId, Operation, Ring, RingConfig, Storage, StorageError,
    Submitted,
};
use rxe_testkit::temp::TempDir;

use crate::support::{One, PLAIN, contents, filled, memory, open, parents, volume};

const ALWAYS: u32 = 1_000_000;
const BUFFERED: DiskOptions = DiskOptions { direct: false, ..PLAIN };

struct Bed {
    kernel: SimulatedKernel,
    disk: Arc<Disk>,
    path: PathBuf,
    folder: TempDir,
}

impl Bed {
    fn new(options: &DiskOptions, blocks: u64) -> Bed {
        let (folder, path) = volume(parents().last().unwrap(), blocks * options.block_size.bytes());
        Bed { kernel: SimulatedKernel::new(1, Faults::default()), disk: open(&path, options), path, folder }
    }

    fn one(&self) -> One {
        One::disk(Ring::simulated(&self.kernel, RingConfig { depth: 32 }), &self.disk)
    }

    /// What is left of the file after a power failure now.
    fn after_power_failure(&self) -> Vec<u8> {
        let to = self.folder.path().join("after");
        self.kernel.power_failure(&self.path, &to).unwrap();
        std::fs::read(to).unwrap()
    }
}

fn with(faults: Faults) -> impl Fn(&Bed) {
    move |bed| bed.kernel.set_faults(faults)
}

/// Starts an operation that does not complete at once.
fn start(storage: &mut Storage, namespace: NamespaceId, token: u64, operation: Operation<'_>) {
    assert_eq!(storage.submit(namespace, token, operation), Ok(Submitted::Pending));
}

fn wait(storage: &mut Storage, count: usize) -> Vec<(u64, Result<(), StorageError>)> {
    let mut completed: Vec<Completion> = Vec::new();
    while completed.len() < count {
        storage.wait(&mut completed).unwrap();
    }
    let mut results: Vec<_> = completed.iter().map(|one| (one.token, one.result)).collect();
    results.sort_by_key(|(token, _)| *token);
    results
}

#[test]
fn after_a_flush_that_failed_nothing_is_written_or_flushed_until_the_file_is_recovered() {
    for checksums in [false, true] {
        let bed = Bed::new(&DiskOptions { checksums, ..BUFFERED }, 16);
        let (mut one, mut other) = (bed.one(), bed.one());
        one.write(0, &[1; 4096]).unwrap();
        with(Faults { flush_error: ALWAYS, ..Faults::default() })(&bed);
        assert_eq!(one.run(Operation::Flush), Err(StorageError::FlushFailed));
        with(Faults::default())(&bed);
        assert!(bed.disk.is_failed());
        for one in [&mut one, &mut other] {
            assert_eq!(one.run(Operation::Flush), Err(StorageError::FlushFailed));
            assert_eq!(one.write(4096, &[2; 4096]), Err(StorageError::FlushFailed));
            assert_eq!(one.run(Operation::Deallocate { offset: 0, len: 4096 }), Err(StorageError::FlushFailed));
            assert_eq!(one.read(0, 4096), Ok(vec![1; 4096]));
        }
        bed.disk.recover().unwrap();
        for (one, value) in [(&mut one, 3), (&mut other, 4)] {
            one.write(4096 * value, &[value as u8; 4096]).unwrap();
            assert_eq!(one.run(Operation::Flush), Ok(()));
            let left = bed.after_power_failure();
            assert_eq!(left[4096 * value as usize..][..4096], [value as u8; 4096]);
        }
    }
}

#[test]
fn of_flushes_at_a_time_none_succeeds_whose_data_are_lost() {
    let bed = Bed::new(&BUFFERED, 16);
    let mut one = bed.one();
    one.write(0, &[1; 4096]).unwrap();
    with(Faults { failing_flushes: 1, ..Faults::default() })(&bed);
    for token in 0..4 {
        start(&mut one.storage, one.namespace, token, Operation::Flush);
    }
    for (token, result) in wait(&mut one.storage, 4) {
        assert_eq!(result, Err(StorageError::FlushFailed), "flush {token}");
    }
}

#[test]
fn flushes_that_arrive_during_one_share_the_next_one() {
    let bed = Bed::new(&BUFFERED, 16);
    let mut one = bed.one();
    for token in 0..8 {
        start(&mut one.storage, one.namespace, token, Operation::Flush);
    }
    assert!(wait(&mut one.storage, 8).iter().all(|(_, result)| result.is_ok()));
    assert_eq!(one.storage.ring().unwrap().stats().completions, 2);
}

#[test]
fn a_durable_write_is_on_stable_storage_or_fails() {
    for (options, checksums) in [(BUFFERED, false), (BUFFERED, true), (PLAIN, false)] {
        let bed = Bed::new(&DiskOptions { checksums, ..options }, 16);
        let mut one = bed.one();
        let data = filled(&[5; 8192]);
        one.run(Operation::Write { offset: 4096, from: &data, durable: true }).unwrap();
        assert_eq!(bed.after_power_failure()[4096..][..8192], [5; 8192]);
        with(Faults { flush_error: ALWAYS, ..Faults::default() })(&bed);
        let failed = one.run(Operation::Write { offset: 4096, from: &data, durable: true });
        assert_eq!(failed, Err(StorageError::FlushFailed));
        assert!(bed.disk.is_failed());
    }
}

#[test]
fn where_there_are_no_holes_deallocate_succeeds_without_effect_and_write_zeroes_zeroes() {
    for checksums in [false, true] {
        let bed = Bed::new(&DiskOptions { checksums, ..BUFFERED }, 16);
        let mut one = bed.one();
        one.write(0, &[7; 16384]).unwrap();
        with(Faults { no_holes: true, no_zero_range: true, ..Faults::default() })(&bed);
        for _ in 0..2 {
            assert_eq!(one.run(Operation::Deallocate { offset: 4096, len: 8192 }), Ok(()));
            assert_eq!(one.read(0, 16384), Ok(vec![7; 16384]));
        }
        assert!(!bed.disk.releases_blocks());
        one.run(Operation::WriteZeroes { offset: 4096, len: 8192, deallocate: true }).unwrap();
        assert_eq!(one.read(0, 16384).unwrap()[4096..][..8192], [0; 8192]);
        assert_eq!(one.read(0, 4096), Ok(vec![7; 4096]));
    }
}

#[test]
fn other_errors_of_deallocate_stay_errors() {
    let bed = Bed::new(&BUFFERED, 16);
    let mut one = bed.one();
    with(Faults { io_error: ALWAYS, ..Faults::default() })(&bed);
    assert_eq!(one.run(Operation::Deallocate { offset: 0, len: 4096 }), Err(StorageError::Io { errno: libc::EIO }));
}

#[test]
fn a_cancelled_operation_changes_nothing_after_the_request_in_progress() {
    for checksums in [false, true] {
        let bed = Bed::new(&DiskOptions { checksums, ..BUFFERED }, 1024);
        let mut one = bed.one();
        one.write(0, &[9; 4 << 20]).unwrap();
        with(Faults { no_holes: true, no_zero_range: true, ..Faults::default() })(&bed);
        let zero = Operation::WriteZeroes { offset: 0, len: 4 << 20, deallocate: true };
        start(&mut one.storage, one.namespace, 1, zero);
        let mut completed = Vec::new();
        let is_zero = |one: &mut One, block: u64| one.read(block * 4096, 4096).unwrap() == [0; 4096];
        // The hole is refused, then the range; then zeroes are written in parts.
        while std::fs::read(&bed.path).unwrap()[0] != 0 {
            one.storage.turn(&mut completed).unwrap();
        }
        one.storage.cancel(one.namespace, 1);
        assert_eq!(wait(&mut one.storage, 1), [(1, Err(StorageError::Cancelled))]);
        assert!(completed.is_empty() && is_zero(&mut one, 0));
        assert!(!is_zero(&mut one, 128), "it went on");
        let into = memory(4096);
        for block in 0..1024 {
            one.run(Operation::Read { offset: block * 4096, into: &into }).unwrap();
            assert!(matches!(contents(&into)[0], 0 | 9));
        }
    }
}

#[test]
fn an_operation_that_is_cancelled_before_its_first_request_has_no_effect() {
    let bed = Bed::new(&BUFFERED, 16);
    let ring = Ring::simulated(&bed.kernel, RingConfig { depth: 1 });
    let mut storage = Storage::new(Some(ring));
    let namespace = storage.add(Box::new(DiskBackend::new(Arc::clone(&bed.disk), 8).unwrap())).unwrap();
    let (first, second) = (filled(&[1; 4096]), filled(&[2; 4096]));
    start(&mut storage, namespace, 1, Operation::Write { offset: 0, from: &first, durable: false });
    start(&mut storage, namespace, 2, Operation::Write { offset: 4096, from: &second, durable: false });
    storage.cancel(namespace, 2);
    assert_eq!(wait(&mut storage, 2), [(1, Ok(())), (2, Err(StorageError::Cancelled))]);
    let bytes = std::fs::read(&bed.path).unwrap();
    assert_eq!((bytes[0], bytes[4096]), (1, 0));
}

#[test]
fn a_mark_whose_flush_failed_is_written_again_after_a_restart() {
    let options = DiskOptions { checksums: true, ..BUFFERED };
    let Bed { kernel, disk, path, folder } = Bed::new(&options, 16);
    let start = |disk: &Arc<Disk>| One::disk(Ring::simulated(&kernel, RingConfig { depth: 32 }), disk);
    kernel.set_faults(Faults { failing_flushes: 1, ..Faults::default() });
    assert_eq!(start(&disk).write(0, &[1; 4096]), Err(StorageError::FlushFailed));
    drop(disk);
    let disk = open(&path, &options);
    let mut one = start(&disk);
    one.write(0, &[2; 16 * 4096]).unwrap();
    // Of data and checksums, any part is on stable storage.
    let beside = |path: &std::path::Path| PathBuf::from(format!("{}.crc32c", path.display()));
    let after = folder.path().join("after");
    kernel.power_failure(&path, &after).unwrap();
    kernel.power_failure(&beside(&path), &beside(&after)).unwrap();
    let disk = open(&after, &options);
    assert!(start(&disk).read(0, 16 * 4096).is_ok(), "blocks without a verdict are damaged");
}

#[test]
fn operations_in_progress_when_a_flush_fails_fail_although_the_file_is_recovered_before_they_are_complete() {
    for checksums in [false, true] {
        let bed = Bed::new(&DiskOptions { checksums, ..BUFFERED }, 16);
        let mut one = bed.one();
        one.write(0, &[1; 8192]).unwrap();
        let data = filled(&[5; 4096]);
        for token in 0..3 {
            let write = Operation::Write { offset: token * 4096, from: &data, durable: true };
            start(&mut one.storage, one.namespace, token, write);
        }
        start(&mut one.storage, one.namespace, 3, Operation::Flush);
        with(Faults { failing_flushes: 1, ..Faults::default() })(&bed);
        let mut completed = Vec::new();
        while !bed.disk.is_failed() {
            one.storage.turn(&mut completed).unwrap();
        }
        bed.disk.recover().unwrap();
        while completed.len() < 4 {
            one.storage.turn(&mut completed).unwrap();
        }
        assert!(completed.iter().all(|of| of.result == Err(StorageError::FlushFailed)), "{completed:?}");
        assert_eq!(one.run(Operation::Write { offset: 0, from: &data, durable: true }), Ok(()));
    }
}

#[test]
fn a_flush_of_the_checksums_that_fails_is_one_of_the_file_that_fails() {
    let options = DiskOptions { checksums: true, ..BUFFERED };
    let bed = Bed::new(&options, 16);
    let mut one = bed.one();
    one.write(0, &[1; 8192]).unwrap();
    // The data are flushed first.
    with(Faults { spared_flushes: 1, failing_flushes: 1, ..Faults::default() })(&bed);
    assert_eq!(one.run(Operation::Flush), Err(StorageError::FlushFailed));
    assert_eq!(bed.kernel.faults(), Faults::default());
    assert!(bed.disk.is_failed());
    assert_eq!(one.run(Operation::Flush), Err(StorageError::FlushFailed));
    // The checksums in the file are not those of the data, and the next start knows.
    let Bed { kernel, disk, path, folder } = bed;
    drop((one, disk));
    let after = folder.path().join("after");
    let beside = |path: &std::path::Path| PathBuf::from(format!("{}.crc32c", path.display()));
    kernel.power_failure(&path, &after).unwrap();
    kernel.power_failure(&beside(&path), &beside(&after)).unwrap();
    let mut one = One::disk(Ring::simulated(&kernel, RingConfig { depth: 32 }), &open(&after, &options));
    assert_eq!(one.read(0, 8192), Ok(vec![1; 8192]));
}
