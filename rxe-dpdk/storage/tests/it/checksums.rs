//! Checksums of files: damage, crashes, sizes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rxe_storage::{BlockSize, Disk, DiskOptions, Notice, OpenError, Operation, Scrub, StorageError};
use rxe_testkit::temp::TempDir;

use crate::support::{One, PLAIN, open, open_with_notices, parents, ring, volume};

const CHECKED: DiskOptions = DiskOptions { checksums: true, ..PLAIN };
/// Blocks of a region of checksums.
const REGION: u64 = 16_384;
/// Two regions of 512-byte blocks, the second with 64 blocks.
const SMALL: DiskOptions = DiskOptions { block_size: BlockSize::B512, ..CHECKED };
const SMALL_SIZE: u64 = (REGION + 64) * 512;

/// Changes a byte behind the target's back.
fn damage(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    file.sync_all().unwrap();
}

fn sidecar(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".crc32c");
    PathBuf::from(name)
}

/// The files as another process would find them after this one was killed now.
fn snapshot(path: &Path) -> (TempDir, PathBuf) {
    let folder = TempDir::new(path.parent().unwrap().parent().unwrap());
    let copy = folder.path().join("volume");
    fs::copy(path, &copy).unwrap();
    fs::copy(sidecar(path), sidecar(&copy)).unwrap();
    (folder, copy)
}

/// Scrubs everything in steps of different lengths: mismatches, and rebuilt blocks.
fn scrub(disk: &Arc<Disk>) -> (Vec<u64>, Vec<u64>) {
    let (mut scrub, mut mismatches, mut rebuilt, mut checked) = (Scrub::disk(Arc::clone(disk)), vec![], vec![], 0);
    for step in [1, 100, 63, 1000].into_iter().cycle() {
        let report = scrub.step(step).unwrap();
        assert!(report.checked <= step);
        checked += report.checked;
        mismatches.extend(report.mismatches);
        rebuilt.extend(report.rebuilt);
        if report.done {
            break;
        }
    }
    assert_eq!((checked, scrub.position()), (disk.measure().unwrap().blocks, 0));
    (mismatches, rebuilt)
}

#[test]
fn a_damaged_byte_is_a_media_error_and_a_scrub_finds_it() {
    for parent in parents() {
        for direct in [false, true] {
            let (_folder, path) = volume(&parent, 256 << 10);
            let Some(first) = ring(4) else { return };
            let disk = open(&path, &DiskOptions { direct, ..CHECKED });
            let mut one = One::disk(first, &disk);
            one.write(0, &[6; 128 << 10]).unwrap();
            one.run(Operation::Flush).unwrap();
            assert_eq!(scrub(&disk), (vec![], vec![]));
            // A block with data, and one that was never written.
            damage(&path, 5 * 4096 + 77);
            damage(&path, 40 * 4096);
            assert_eq!(one.read(0, 256 << 10), Err(StorageError::Media { lba: 5 }));
            assert_eq!(one.read(6 * 4096, 34 * 4096).map(|bytes| bytes.len()), Ok(34 * 4096));
            assert_eq!(one.read(40 * 4096, 4096), Err(StorageError::Media { lba: 40 }));
            assert_eq!(scrub(&disk), (vec![5, 40], vec![]));
            assert_eq!(one.backend().stats().media_errors.get(), 2);
            // A write makes a block good again, and so does a deallocation.
            one.write(5 * 4096, &[7; 4096]).unwrap();
            one.run(Operation::Deallocate { offset: 40 * 4096, len: 4096 }).unwrap();
            assert_eq!(scrub(&disk), (vec![], vec![]));
            assert_eq!(one.read(5 * 4096, 4096), Ok(vec![7; 4096]));
        }
    }
}

#[test]
fn damage_while_the_file_is_closed_is_found() {
    let (_folder, path) = volume(&parents()[0], 64 << 10);
    let Some(first) = ring(4) else { return };
    One::disk(first, &open(&path, &CHECKED)).write(0, &[6; 64 << 10]).unwrap();
    damage(&path, 3 * 4096);
    let (disk, notices) = open_with_notices(&path, &CHECKED);
    assert_eq!(notices, []);
    let Some(second) = ring(4) else { return };
    assert_eq!(One::disk(second, &disk).read(0, 64 << 10), Err(StorageError::Media { lba: 3 }));
}

#[test]
fn after_a_crash_completed_writes_verify_and_differences_are_rebuilt_where_writes_were() {
    for parent in parents() {
        let (_folder, path) = volume(&parent, SMALL_SIZE);
        let Some(first) = ring(4) else { return };
        let disk = open(&path, &SMALL);
        let mut one = One::disk(first, &disk);
        one.write(REGION * 512, &[2; 8192]).unwrap();
        let (_copies, copy) = snapshot(&path);
        // What a write in progress leaves: its data, without its checksum. And damage where nobody wrote.
        damage(&copy, (REGION + 3) * 512);
        damage(&copy, 100 * 512);
        let (crashed, notices) = open_with_notices(&copy, &SMALL);
        assert_eq!(notices, [Notice::Unclean { path: copy.clone(), regions: 1 }]);
        let Some(second) = ring(4) else { return };
        let mut other = One::disk(second, &crashed);
        assert_eq!(other.read(REGION * 512, 8192).map(|bytes| bytes.len()), Ok(8192));
        assert_eq!(other.backend().stats().unverified_blocks.get(), 1);
        assert_eq!(other.read(100 * 512, 512), Err(StorageError::Media { lba: 100 }));
        assert_eq!(scrub(&crashed), (vec![100], vec![REGION + 3]));
        // From now on, the region is verified like the others, also after the next start.
        damage(&copy, (REGION + 9) * 512);
        assert_eq!(other.read(REGION * 512, 8192), Err(StorageError::Media { lba: REGION + 9 }));
        drop((other, crashed));
        let (again, notices) = open_with_notices(&copy, &SMALL);
        assert_eq!(notices, []);
        assert_eq!(scrub(&again), (vec![100, REGION + 9], vec![]));
    }
}

#[test]
fn completed_writes_have_their_checksums_in_the_file_at_a_crash() {
    let (_folder, path) = volume(&parents()[0], SMALL_SIZE);
    let Some(first) = ring(4) else { return };
    let disk = open(&path, &SMALL);
    let mut one = One::disk(first, &disk);
    for (number, lba) in [0, 17, REGION - 4, REGION + 20].into_iter().enumerate() {
        one.write(lba * 512, &[number as u8 + 1; 4096]).unwrap();
    }
    one.run(Operation::WriteZeroes { offset: 18 * 512, len: 1024, deallocate: false }).unwrap();
    let (_copies, copy) = snapshot(&path);
    let (crashed, notices) = open_with_notices(&copy, &SMALL);
    assert_eq!(notices, [Notice::Unclean { path: copy.clone(), regions: 2 }]);
    assert_eq!(scrub(&crashed), (vec![], vec![]), "nothing differs, so nothing is rebuilt");
}

#[test]
fn an_incomplete_scrub_leaves_the_region_suspect() {
    let (_folder, path) = volume(&parents()[0], SMALL_SIZE);
    let Some(ring) = ring(4) else { return };
    let disk = open(&path, &SMALL);
    let mut one = One::disk(ring, &disk);
    one.write(0, &[2; 512]).unwrap();
    let (_copies, copy) = snapshot(&path);
    {
        let (crashed, _) = open_with_notices(&copy, &SMALL);
        assert!(!Scrub::disk(crashed).step(REGION - 1).unwrap().done);
    }
    let (crashed, notices) = open_with_notices(&copy, &SMALL);
    assert_eq!(notices, [Notice::Unclean { path: copy.clone(), regions: 1 }]);
    let mut scrub = Scrub::disk(Arc::clone(&crashed));
    assert!(!scrub.step(REGION).unwrap().done);
    drop((scrub, crashed));
    assert_eq!(open_with_notices(&copy, &SMALL).1, []);
}

#[test]
fn data_without_checksums_gets_them_by_a_scrub() {
    for parent in parents() {
        let folder = TempDir::new(&parent);
        let path = folder.path().join("volume");
        fs::write(&path, [9; 64 << 10]).unwrap();
        let (disk, notices) = open_with_notices(&path, &CHECKED);
        assert_eq!(notices, [Notice::ChecksumsCreated { path: path.clone(), regions: 1 }]);
        let Some(ring) = ring(4) else { return };
        let mut one = One::disk(ring, &disk);
        assert_eq!(one.read(0, 64 << 10), Ok(vec![9; 64 << 10]));
        assert_eq!(scrub(&disk), (vec![], (0..16).collect()));
        damage(&path, 4096);
        assert_eq!(one.read(0, 64 << 10), Err(StorageError::Media { lba: 1 }));
    }
}

#[test]
fn an_operation_across_two_regions_stores_and_verifies_all_of_its_checksums() {
    let (_folder, path) = volume(&parents()[0], SMALL_SIZE);
    let Some(ring) = ring(4) else { return };
    let disk = open(&path, &SMALL);
    let mut one = One::disk(ring, &disk);
    // Longer than the number of locks, too.
    let bytes: Vec<u8> = (0..5000 * 512).map(|at: usize| (at / 512) as u8).collect();
    let offset = (REGION - 4950) * 512;
    one.write(offset, &bytes).unwrap();
    assert!(one.read(offset, bytes.len()).unwrap() == bytes);
    assert_eq!(scrub(&disk), (vec![], vec![]));
    damage(&path, (REGION + 49) * 512);
    assert_eq!(one.read(offset, bytes.len()), Err(StorageError::Media { lba: REGION + 49 }));
    one.run(Operation::Deallocate { offset: 0, len: SMALL_SIZE }).unwrap();
    assert_eq!(scrub(&disk), (vec![], vec![]));
    assert!(one.read(offset, bytes.len()).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn growth_adds_regions_that_verify() {
    let (_folder, path) = volume(&parents()[0], 64 * 512);
    let Some(first) = ring(4) else { return };
    let disk = open(&path, &SMALL);
    let mut one = One::disk(first, &disk);
    one.write(0, &[1; 64 * 512]).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(SMALL_SIZE).unwrap();
    assert_eq!(one.resize(), SMALL_SIZE);
    one.write(REGION * 512, &[3; 512]).unwrap();
    assert_eq!(scrub(&disk), (vec![], vec![]));
    damage(&path, (REGION + 1) * 512);
    assert_eq!(one.read(REGION * 512, 1024), Err(StorageError::Media { lba: REGION + 1 }));
    drop((one, disk));
    assert_eq!(open_with_notices(&path, &SMALL).1, []);
}

#[test]
fn checksums_of_other_blocks_are_refused_with_the_remedy() {
    let (_folder, path) = volume(&parents()[0], 64 << 10);
    drop(open(&path, &CHECKED));
    let error = Disk::open(&path, &SMALL).err().unwrap();
    assert!(matches!(error, OpenError::Sidecar { .. }), "{error}");
    assert!(error.to_string().contains("delete this file"), "{error}");
}

#[test]
fn a_look_at_a_file_that_was_cut_short_forgets_no_checksums() {
    let (_folder, path) = volume(&parents()[0], 64 << 10);
    let Some(ring) = ring(4) else { return };
    let disk = open(&path, &CHECKED);
    let mut one = One::disk(ring, &disk);
    one.write(0, &[7; 64 << 10]).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(8 << 10).unwrap();
    assert_eq!(disk.measure().unwrap().bytes(), 8 << 10);
    // What was cut off is there again.
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    assert!(one.read(0, 64 << 10) == Ok(bytes), "good blocks are damaged");
}

#[test]
fn a_file_that_is_read_only_is_opened_for_reading_and_its_checksums_are_verified() {
    let (_folder, path) = volume(&parents()[0], 64 << 10);
    let read_only = DiskOptions { read_only: true, ..CHECKED };
    let missing = Disk::open(&path, &read_only).err().unwrap().to_string();
    assert!(missing.contains("it does not exist, and is not made for a namespace that is read-only"), "{missing}");
    let Some(first) = ring(4) else { return };
    One::disk(first, &open(&path, &CHECKED)).write(0, &[7; 64 << 10]).unwrap();
    let disk = open(&path, &read_only);
    let Some(second) = ring(4) else { return };
    let mut one = One::disk(second, &disk);
    let ours = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with(&*path.to_string_lossy()))
    };
    let mut opened = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(ours) {
        let name = entry.file_name();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", name.display())).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        assert_eq!(u32::from_str_radix(flags, 8).unwrap() & 3, 0, "{info}");
        opened += 1;
    }
    // Both files, and both again for flushes.
    assert_eq!(opened, 4);
    assert_eq!(one.read(0, 64 << 10), Ok(vec![7; 64 << 10]));
    assert_eq!(one.run(Operation::Flush), Ok(()));
    assert!(one.write(0, &[8; 4096]).is_err());
    damage(&path, 5000);
    assert_eq!(one.read(4096, 4096), Err(StorageError::Media { lba: 1 }));
}
