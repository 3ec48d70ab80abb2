//! Block storage for an NVMe-oF target, used on the polling threads of its workers. No DPDK.
//!
//! * [`Storage`] is what one worker has: its namespaces, and the io_uring that files and block devices share.
//! * [`Backend`] is the interface to a namespace. [`RamBackend`] keeps the blocks in memory and completes operations
//!   while they are submitted, but for ranges that are long to zero. [`DiskBackend`] serves a regular file or a block device through the worker's [`Ring`].
//! * [`RamDisk`] and [`Disk`] are what all workers share of a namespace. They are opened on the control thread; each
//!   worker then has an instance of its own.
//! * [`Staging`] is a worker's pool of buffers for the data of commands.
//! * [`Scrub`] compares blocks with their checksums, on a thread of its own.
//!
//! # A turn of a worker's loop
//!
//! ```no_run
//! use std::path::Path;
//!
//! use rxe_proto::mem::HeapAllocator;
//! use rxe_storage::{
//!     BlockSize, Completion, Disk, DiskBackend, DiskOptions, Operation, Ring, RingConfig, Staging, StagingConfig, Storage,
//!     Submitted,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // On the control thread, once per namespace.
//! let options = DiskOptions { block_size: BlockSize::B4096, direct: true, checksums: false, read_only: false };
//! let (disk, notices) = Disk::open(Path::new("/srv/volume"), &options)?;
//! for notice in notices {
//!     eprintln!("{notice}");
//! }
//!
//! // Once per worker, on any thread. A production target allocates from hugepages.
//! let mut staging = Staging::new(&HeapAllocator, StagingConfig::default())?;
//! let mut ring = Ring::new(RingConfig::default())?;
//! ring.pin(staging.memory());
//! let mut storage = Storage::new(Some(ring));
//! let volume = storage.add(Box::new(DiskBackend::new(disk, 128)?))?;
//! let mut completed: Vec<Completion> = Vec::with_capacity(256);
//!
//! // A command arrives. Without a piece, or when the backend is full, the command waits in a queue of the caller's.
//! let piece = staging.allocate(4096).expect("an empty pool has room");
//! let read = Operation::Read { offset: 0, into: piece.memory() };
//! match storage.submit(volume, 7, read)? {
//!     Submitted::Done(result) => println!("7: {result:?}"),
//!     Submitted::Pending => {}
//! }
//!
//! // Once per turn of the loop, behind all submissions: at most one system call.
//! while storage.outstanding() > 0 {
//!     storage.turn(&mut completed)?;
//!     for Completion { token, result } in completed.drain(..) {
//!         println!("{token}: {result:?}");
//!     }
//! }
//! staging.free(piece);
//! # Ok(())
//! # }
//! ```
//!
//! After warm-up nothing is allocated per operation, and nothing logs. While [`Storage::outstanding`] is not 0, the
//! worker keeps polling, as no event wakes it up.
//!
//! # Requirements of files and block devices
//!
//! Linux 5.6 with io_uring; from 5.19 on, completions do not interrupt the worker. The default seccomp profile of
//! Docker forbids io_uring: [`Ring::new`] returns a [`RingError`] that says so and what to do. There is no other way to
//! serve files: a pool of threads would hide the problem behind a much slower target. Memory needs no ring.
//!
//! A regular file is locked by `flock`, and a block device is opened with O_EXCL, so that one process serves it. With
//! [`DiskOptions::direct`], the page cache is bypassed: buffers are then aligned to what the device needs, at most 4096
//! bytes, as [`Staging`] pieces are. Where the file system refuses O_DIRECT, the file is served through the page cache,
//! and [`Disk::open`] returns a [`Notice`] for the operator.
//!
//! Blocks are deallocated by punching holes. Write Zeroes punches a hole if the client allows that, and zeroes the
//! range otherwise. A file system that refuses gets writes of zeroes instead; the length of such an operation is then
//! what it costs.
//!
//! A file that another process truncates gives [`StorageError::Truncated`] for reads behind its end. A write there
//! extends the file again, as `pwrite` does, and everything between reads as zeroes, which only checksums detect. When
//! a file is to grow, extend it, call [`Disk::resize`] on the control thread, which writes the new table of checksums,
//! and then [`Backend::resize`] on each worker. A file must not shrink while clients use its end.
//!
//! # Durability
//!
//! A completed write has reached the operating system: it survives SIGKILL of the target, not a power failure. After a
//! completed [`Operation::Flush`], or with `durable`, it survives a power failure too, as far as the device keeps its
//! word. Write Zeroes and Deallocate need a flush to be durable.
//!
//! # Checksums
//!
//! With checksums, every read verifies each block (CRC-32C) and fails with [`StorageError::Media`], which has the
//! number of the first bad block. Those of memory are in memory; those of a file are in `NAME.crc32c` beside it. After
//! a target has ended without closing a file, blocks of the regions that were being written since the file was opened
//! are read without a verdict, and counted, until a [`Scrub`] has compared them: the data and the checksum of a write
//! in progress do not reach the files together, so a difference there may be the crash's. Other regions are verified at
//! all times. The notes in `sidecar.rs` have the layout and the order of writes. A program that changes the file while
//! no target serves it must delete `NAME.crc32c`.

mod aligned;
mod backend;
mod bitset;
mod checksum;
mod chunk;
mod disk;
mod disk_backend;
mod error;
mod geometry;
mod io;
mod locks;
mod op;
mod ram;
mod request;
mod ring;
mod scrub;
mod sidecar;
#[cfg(feature = "simulated")]
pub mod simulated;
mod staging;
mod stats;
mod storage;

pub use backend::{Backend, Completion, Full, Operation, Submitted};
pub use disk::{Disk, DiskOptions, Notice};
pub use disk_backend::DiskBackend;
pub use error::{OpenError, RingError, StorageError};
pub use geometry::{BlockSize, Geometry};
pub use io::Io;
pub use ram::{Contents, RamBackend, RamDisk, RamOptions};
pub use request::{RingConfig, RingStats};
pub use ring::Ring;
pub use scrub::{Scrub, ScrubReport};
pub use staging::{PAGE, Piece, Staging, StagingConfig, StagingStats};
pub use stats::StorageStats;
pub use storage::{NamespaceId, Storage};
