//! Block devices, where loop devices can be made.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rxe_storage::{Disk, DiskOptions, OpenError, Operation};

use crate::support::{One, PLAIN, open, parents, ring, volume};

/// A loop device, detached when dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None` where the system has none.
    fn new(file: &Path) -> Option<Loop> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        match output {
            Ok(output) if output.status.success() => {
                Some(Loop(PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())))
            }
            Ok(output) => {
                println!("skipped: losetup: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                println!("skipped: losetup: {error}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_block_device_is_read_written_deallocated_and_resized() {
    let (_folder, path) = volume(&parents()[0], 1 << 20);
    let (Some(device), Some(ring)) = (Loop::new(&path), ring(4)) else { return };
    let disk = open(&device.0, &PLAIN);
    let mut one = One::disk(ring, &disk);
    assert_eq!(one.backend().geometry().bytes(), 1 << 20);
    one.write(0, &[4; 64 << 10]).unwrap();
    one.run(Operation::Deallocate { offset: 4096, len: 8192 }).unwrap();
    one.run(Operation::WriteZeroes { offset: 32 << 10, len: 4096, deallocate: false }).unwrap();
    one.run(Operation::Flush).unwrap();
    let mut expected = vec![4; 64 << 10];
    expected[4096..12288].fill(0);
    expected[32 << 10..36 << 10].fill(0);
    assert!(one.read(0, 64 << 10).unwrap() == expected);
    File::options().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
    assert!(Command::new("losetup").arg("--set-capacity").arg(&device.0).status().unwrap().success());
    assert_eq!(one.resize(), 2 << 20);
    one.write((2 << 20) - 4096, &[5; 4096]).unwrap();
}

#[test]
fn a_block_device_in_use_and_checksums_of_one_are_refused() {
    let (_folder, path) = volume(&parents()[0], 1 << 20);
    let Some(device) = Loop::new(&path) else { return };
    let first = open(&device.0, &PLAIN);
    let error = Disk::open(&device.0, &PLAIN).err().unwrap();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert_eq!(Arc::strong_count(&first), 1);
    drop(first);
    let error = Disk::open(&device.0, &DiskOptions { checksums: true, ..PLAIN }).err().unwrap();
    assert!(matches!(error, OpenError::ChecksumsOfDevice { .. }), "{error}");
}
