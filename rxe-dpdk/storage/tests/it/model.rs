//! Random operations against a vector of bytes.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use rxe_proto::mem::{HeapAllocator, Memory};
use rxe_storage::{BlockSize, Contents, DiskOptions, Operation, RamBackend, RamDisk, RamOptions, Scrub, StorageError};

use crate::support::{One, open, open_with_notices, parents, ring, volume};

/// Blocks at the start, and the most that a resize asks for.
const START: u64 = 40;
const MOST: u64 = 64;

#[derive(Clone, Debug)]
enum Step {
    Read { lba: u64, count: u64 },
    Write { lba: u64, count: u64, seed: u8, durable: bool },
    Zero { lba: u64, count: u64, deallocate: bool },
    Deallocate { lba: u64, count: u64 },
    Flush,
    Resize { blocks: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let lba = 0..MOST;
    let count = 0_u64..12;
    prop_oneof![
        4 => (lba.clone(), count.clone()).prop_map(|(lba, count)| Step::Read { lba, count }),
        6 => (lba.clone(), count.clone(), any::<u8>(), any::<bool>())
            .prop_map(|(lba, count, seed, durable)| Step::Write { lba, count, seed, durable }),
        2 => (lba.clone(), count.clone(), any::<bool>())
            .prop_map(|(lba, count, deallocate)| Step::Zero { lba, count, deallocate }),
        1 => (lba, count).prop_map(|(lba, count)| Step::Deallocate { lba, count }),
        1 => Just(Step::Flush),
        1 => (1..MOST).prop_map(|blocks| Step::Resize { blocks }),
    ]
}

fn block_size() -> impl Strategy<Value = BlockSize> {
    prop_oneof![Just(BlockSize::B512), Just(BlockSize::B4096)]
}

/// Bytes that differ from block to block.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 509 * 31 + at) as u8 ^ seed).collect()
}

/// Carries out the steps on the namespace and on a vector, and compares them. `set_size` changes the storage behind the
/// namespace.
fn check(one: &mut One, block: u64, steps: &[Step], set_size: &dyn Fn(u64)) -> Vec<u8> {
    let mut model = vec![0; (START * block) as usize];
    for step in steps {
        let range = |lba: u64, count: u64| {
            let (from, to) = ((lba * block) as usize, ((lba + count) * block) as usize);
            (to <= model.len()).then_some(from..to).ok_or(StorageError::OutOfRange)
        };
        match *step {
            Step::Read { lba, count } => {
                let read = one.read(lba * block, (count * block) as usize);
                assert_eq!(read, range(lba, count).map(|range| model[range].to_vec()), "{step:?}");
            }
            Step::Write { lba, count, seed, durable } => {
                let (expected, bytes) = (range(lba, count), pattern(seed, (count * block) as usize));
                let from = crate::support::filled(&bytes);
                let written = one.run(Operation::Write { offset: lba * block, from: &from, durable });
                assert_eq!(written, expected.clone().map(drop), "{step:?}");
                if let Ok(range) = expected {
                    model[range].copy_from_slice(&bytes);
                }
            }
            Step::Zero { lba, count, .. } | Step::Deallocate { lba, count } => {
                let (expected, offset, len) = (range(lba, count), lba * block, count * block);
                let result = one.run(match *step {
                    Step::Zero { deallocate, .. } => Operation::WriteZeroes { offset, len, deallocate },
                    _ => Operation::Deallocate { offset, len },
                });
                assert_eq!(result, expected.clone().map(drop), "{step:?}");
                if let Ok(range) = expected {
                    model[range].fill(0);
                }
            }
            Step::Flush => assert_eq!(one.run(Operation::Flush), Ok(())),
            Step::Resize { blocks } => {
                set_size(blocks * block);
                assert_eq!(one.resize(), blocks * block);
                model.resize((blocks * block) as usize, 0);
            }
        }
    }
    let all = one.read(0, model.len()).unwrap();
    assert!(all == model, "the contents differ at the end");
    model
}

fn check_ram(block_size: BlockSize, checksums: bool, steps: &[Step]) {
    let block = block_size.bytes();
    let memory = Memory::heap((MOST * block) as usize);
    let options = RamOptions { block_size, size: Some(START * block), checksums, contents: Contents::Zeroes };
    let disk = RamDisk::new(memory.clone(), &options, &HeapAllocator).unwrap();
    let mut one = One::new(None, RamBackend::new(Arc::clone(&disk)));
    let model = check(&mut one, block, steps, &|size| assert_eq!(disk.set_size(size).unwrap().bytes(), size));
    let mut bytes = vec![0; model.len()];
    memory.read(0, &mut bytes).unwrap();
    assert!(bytes == model, "the memory itself differs");
    let report = Scrub::ram(disk).step(u64::MAX).unwrap();
    assert_eq!((report.mismatches, report.done), (vec![], true));
}

fn check_file(parent: &Path, options: DiskOptions, steps: &[Step]) {
    let block = options.block_size.bytes();
    let (_folder, path) = volume(parent, START * block);
    let Some(first) = ring(4) else { return };
    let disk = open(&path, &options);
    let file = File::options().write(true).open(&path).unwrap();
    let mut one = One::disk(first, &disk);
    let model = check(&mut one, block, steps, &|size| file.set_len(size).unwrap());
    let report = Scrub::disk(Arc::clone(&disk)).step(u64::MAX).unwrap();
    assert_eq!((report.mismatches, report.rebuilt, report.done), (vec![], vec![], true));
    drop((one, disk));
    assert!(std::fs::read(&path).unwrap() == model, "the file itself differs");
    // Nothing was left behind by the first process.
    let (disk, notices) = open_with_notices(&path, &DiskOptions { direct: false, ..options });
    assert_eq!(notices, []);
    let Some(second) = ring(4) else { return };
    assert!(One::disk(second, &disk).read(0, model.len()).unwrap() == model);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn memory_behaves_like_a_vector(
        block_size in block_size(), checksums: bool, steps in proptest::collection::vec(step(), 1..60)
    ) {
        check_ram(block_size, checksums, &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_file_behaves_like_a_vector(
        block_size in block_size(),
        direct: bool,
        checksums: bool,
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        for parent in parents() {
            check_file(&parent, DiskOptions { block_size, direct, checksums, read_only: false }, &steps);
        }
    }
}
