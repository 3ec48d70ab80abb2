//! Storage with one namespace, and files for it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rxe_proto::mem::{HeapAllocator, Memory};
use rxe_storage::{
    Backend, BlockSize, Completion, Disk, DiskBackend, DiskOptions, NamespaceId, Notice, Operation, Ring, RingConfig,
    RingError, Staging, StagingConfig, Storage, StorageError, Submitted,
};
use rxe_testkit::temp::TempDir;

/// Plain files of 4096-byte blocks.
pub const PLAIN: DiskOptions =
    DiskOptions { block_size: BlockSize::B4096, direct: true, checksums: false, read_only: false };

/// A ring; `None`, which ends the test, without io_uring, except in CI.
pub fn ring(depth: u32) -> Option<Ring> {
    match Ring::new(RingConfig { depth }) {
        Ok(ring) => Some(ring),
        Err(why @ (RingError::Forbidden | RingError::Unsupported)) => {
            assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
            println!("skipped: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A folder on a disk and one in memory (tmpfs), if there is one.
pub fn parents() -> Vec<PathBuf> {
    let shm = Path::new("/dev/shm");
    let mut parents = vec![PathBuf::from(env!("CARGO_TARGET_TMPDIR"))];
    parents.extend(shm.is_dir().then(|| shm.to_owned()));
    parents
}

/// A file of `size` bytes without data.
pub fn volume(parent: &Path, size: u64) -> (TempDir, PathBuf) {
    let folder = TempDir::new(parent);
    let path = folder.path().join("volume");
    File::create(&path).unwrap().set_len(size).unwrap();
    (folder, path)
}

/// Opens a file. Its notices, but for O_DIRECT, which tmpfs has since Linux 6.6 only.
pub fn open_with_notices(path: &Path, options: &DiskOptions) -> (Arc<Disk>, Vec<Notice>) {
    let (disk, mut notices) = Disk::open(path, options).unwrap_or_else(|error| panic!("{error}"));
    notices.retain(|notice| !matches!(notice, Notice::Buffered { .. }));
    (disk, notices)
}

/// Opens a file.
pub fn open(path: &Path, options: &DiskOptions) -> Arc<Disk> {
    open_with_notices(path, options).0
}

/// Page-aligned memory.
pub fn memory(len: usize) -> Memory {
    let config = StagingConfig { bytes: len, max_piece: len };
    let mut staging = Staging::new(&HeapAllocator, config).unwrap();
    staging.allocate(len).unwrap().memory().clone()
}

/// Memory with contents.
pub fn filled(bytes: &[u8]) -> Memory {
    let memory = memory(bytes.len());
    memory.write(0, bytes).unwrap();
    memory
}

pub fn contents(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

/// Storage with one namespace, used by one operation at a time.
pub struct One {
    pub storage: Storage,
    pub namespace: NamespaceId,
}

impl One {
    pub fn new(ring: Option<Ring>, backend: impl Backend + 'static) -> One {
        let mut storage = Storage::new(ring);
        let namespace = storage.add(Box::new(backend)).unwrap();
        One { storage, namespace }
    }

    /// An instance of a disk with room for 8 operations.
    pub fn disk(ring: Ring, disk: &Arc<Disk>) -> One {
        One::new(Some(ring), DiskBackend::new(Arc::clone(disk), 8).unwrap())
    }

    pub fn run(&mut self, operation: Operation<'_>) -> Result<(), StorageError> {
        if let Submitted::Done(result) = self.storage.submit(self.namespace, 99, operation).unwrap() {
            return result;
        }
        let mut completed: Vec<Completion> = Vec::new();
        while completed.is_empty() {
            self.storage.wait(&mut completed).unwrap();
        }
        assert_eq!((completed.len(), completed[0].token), (1, 99));
        completed[0].result
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        self.run(Operation::Write { offset, from: &filled(bytes), durable: false })
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, StorageError> {
        let memory = memory(len);
        self.run(Operation::Read { offset, into: &memory })?;
        Ok(contents(&memory))
    }

    pub fn backend(&self) -> &dyn Backend {
        self.storage.get(self.namespace).unwrap()
    }

    pub fn resize(&mut self) -> u64 {
        self.storage.get_mut(self.namespace).unwrap().resize().unwrap().bytes()
    }
}
