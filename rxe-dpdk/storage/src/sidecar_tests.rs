use rxe_testkit::temp::TempDir;

use super::*;

const BLOCKS: u64 = REGION_BLOCKS + 100;

fn geometry(blocks: u64) -> Geometry {
    Geometry { block_size: BlockSize::B512, blocks }
}

fn folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new(&std::env::temp_dir());
    let data = folder.path().join("data");
    std::fs::write(&data, b"").unwrap();
    (folder, data)
}

fn entry(sidecar: &Sidecar, lba: u64) -> u32 {
    checksum::load(&sidecar.region(lba).unwrap().table, entry_index(lba)).unwrap()
}

fn store(sidecar: &Sidecar, lba: u64, value: u32) {
    sidecar.store(&sidecar.region(lba).unwrap(), lba, value).unwrap();
}

#[test]
fn entries_are_where_the_layout_says() {
    assert_eq!((mark_offset(0), mark_offset(1)), (4096, 73_728));
    assert_eq!((entry_offset(0), entry_offset(1)), (8192, 8196));
    assert_eq!(entry_offset(REGION_BLOCKS), 73_728 + 4096);
    let (_folder, data) = folder();
    let (sidecar, _) = Sidecar::open(&data, geometry(BLOCKS), true, false).unwrap();
    store(&sidecar, REGION_BLOCKS + 1, 0x0102_0304);
    let bytes = std::fs::read(&sidecar.path).unwrap();
    assert_eq!(bytes.len() as u64, mark_offset(2));
    assert_eq!(&bytes[..16], b"RXECRC32\x01\0\0\0\0\x02\0\0");
    assert_eq!(&bytes[73_728 + 4096 + 4..][..4], [4, 3, 2, 1]);
}

#[test]
fn marks_of_an_open_file_are_suspect_at_the_next_open_and_a_close_clears_them() {
    let (_folder, data) = folder();
    let (sidecar, found) = Sidecar::open(&data, geometry(BLOCKS), true, false).unwrap();
    assert_eq!(found, Found::Clean);
    sidecar.file.write_all_at(&MARK.to_le_bytes(), mark_offset(1)).unwrap();
    sidecar.region(REGION_BLOCKS).unwrap().set_marked();
    let (crashed, found) = Sidecar::open(&data, geometry(BLOCKS), true, false).unwrap();
    assert_eq!(found, Found::Suspect { regions: 1 });
    assert!(!crashed.region(0).unwrap().is_suspect() && crashed.region(REGION_BLOCKS).unwrap().is_suspect());
    // Nothing was verified, so closing changes nothing.
    crashed.close(&File::open(&data).unwrap()).unwrap();
    let (crashed, found) = Sidecar::open(&data, geometry(BLOCKS), true, false).unwrap();
    assert_eq!(found, Found::Suspect { regions: 1 });
    crashed.region(REGION_BLOCKS).unwrap().set_trusted();
    crashed.close(&File::open(&data).unwrap()).unwrap();
    assert_eq!(Sidecar::open(&data, geometry(BLOCKS), true, false).unwrap().1, Found::Clean);
}

#[test]
fn marks_survive_the_close_after_an_entry_was_not_written() {
    let (_folder, data) = folder();
    let (sidecar, _) = Sidecar::open(&data, geometry(BLOCKS), true, false).unwrap();
    sidecar.file.write_all_at(&MARK.to_le_bytes(), mark_offset(0)).unwrap();
    sidecar.region(0).unwrap().set_marked();
    sidecar.keep_marks();
    sidecar.close(&File::open(&data).unwrap()).unwrap();
    assert_eq!(Sidecar::open(&data, geometry(BLOCKS), true, false).unwrap().1, Found::Suspect { regions: 1 });
}

#[test]
fn data_without_checksums_is_suspect_as_a_whole() {
    let (_folder, data) = folder();
    let found = Sidecar::open(&data, geometry(BLOCKS), false, false).unwrap().1;
    assert_eq!(found, Found::Created { regions: 2 });
    assert_eq!(Sidecar::open(&data, geometry(BLOCKS), false, false).unwrap().1, Found::Suspect { regions: 2 });
}

#[test]
fn blocks_that_come_again_after_a_shrink_have_entry_0() {
    let (_folder, data) = folder();
    let (sidecar, _) = Sidecar::open(&data, geometry(BLOCKS), true, false).unwrap();
    for lba in [5, 10, REGION_BLOCKS - 1, REGION_BLOCKS, BLOCKS - 1] {
        store(&sidecar, lba, 7);
    }
    sidecar.resize(10).unwrap();
    assert!(sidecar.region(REGION_BLOCKS).is_none());
    sidecar.resize(BLOCKS).unwrap();
    let (again, _) = Sidecar::open(&data, geometry(BLOCKS), true, false).unwrap();
    for sidecar in [sidecar, again] {
        let nonzero: Vec<u64> = (0..BLOCKS).filter(|lba| entry(&sidecar, *lba) != 0).collect();
        assert_eq!(nonzero, [5]);
    }
}

#[test]
fn entries_that_a_crash_left_behind_the_end_do_not_come_again() {
    let (_folder, data) = folder();
    let (sidecar, _) = Sidecar::open(&data, geometry(BLOCKS), true, false).unwrap();
    store(&sidecar, REGION_BLOCKS + 5, 7);
    // The last step of a shrink to one region did not happen.
    sidecar.file.write_all_at(&header(geometry(REGION_BLOCKS)), 0).unwrap();
    let (grown, _) = Sidecar::open(&data, geometry(BLOCKS), true, false).unwrap();
    assert_eq!(entry(&grown, REGION_BLOCKS + 5), 0);
    let (again, _) = Sidecar::open(&data, geometry(BLOCKS), true, false).unwrap();
    assert_eq!(entry(&again, REGION_BLOCKS + 5), 0);
}

#[test]
fn a_file_that_is_no_good_is_refused_with_the_reason() {
    let (_folder, data) = folder();
    let (sidecar, _) = Sidecar::open(&data, geometry(BLOCKS), true, false).unwrap();
    let reason = |geometry| match Sidecar::open(&data, geometry, true, false) {
        Err(OpenError::Sidecar { reason, .. }) => reason,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("accepted"),
    };
    let other = Geometry { block_size: BlockSize::B4096, blocks: BLOCKS };
    assert_eq!(reason(other), "its blocks have 512 bytes, and the namespace's have 4096");
    let good = header(geometry(BLOCKS));
    for (at, value, expected) in [
        (0, b'X', "it is no file of checksums"),
        (8, 2, "its version is 2, and this program knows version 1 only"),
        (17, 1, "its header is damaged"),
        (24, 0, "its header is damaged"),
    ] {
        let mut bad = good;
        bad[at] = if bad[at] == value { !value } else { value };
        sidecar.file.write_all_at(&bad, 0).unwrap();
        assert_eq!(reason(geometry(BLOCKS)), expected);
    }
    sidecar.file.write_all_at(&good, 0).unwrap();
    sidecar.file.set_len(mark_offset(2) - 1).unwrap();
    assert!(reason(geometry(BLOCKS)).contains("too short"));
    sidecar.file.set_len(27).unwrap();
    assert_eq!(reason(geometry(BLOCKS)), "it has no complete header");
}
