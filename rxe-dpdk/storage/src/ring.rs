//! One io_uring per worker: the only file of this crate with `unsafe`.
//!
//! # Memory of an operation
//!
//! The kernel reads or writes the memory of a request at any time between its submission and its completion. The
//! [`Memory`] handle stays in the ring's slot table for that time; it is moved in by [`Ring::push`] and moved out by
//! [`Ring::pop`], so nothing outside of the ring can release the bytes meanwhile. Dropping the ring waits for every
//! completion. If the kernel refuses even to wait, the handles are leaked, and the bytes stay mapped for ever.
//!
//! Foreign memory ([`rxe_proto::mem::ForeignMemory`]) is accessed as by `process_vm_readv`: the kernel returns EFAULT
//! for pages that are not mapped.
//!
//! # System calls
//!
//! [`Ring::turn`] enters the kernel at most once: when requests are queued, or when the kernel has completions that it
//! posts only in the context of this thread. The ring is created with IORING_SETUP_COOP_TASKRUN and
//! IORING_SETUP_TASKRUN_FLAG where the kernel has them (5.19), so a completion does not interrupt the worker, but sets
//! a bit in shared memory. Completions are read from shared memory.

// The kernel gets raw pointers; each block says why they are good.
#![allow(unsafe_code)]
#![cfg_attr(
    not(feature = "simulated"),
    allow(clippy::infallible_destructuring_match, reason = "with the feature there are two kernels")
)]

use std::fs::File;
use std::io::IoSliceMut;
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rxe_proto::mem::Memory;

use crate::error::RingError;
use crate::request::{Finished, Request, RingConfig, RingStats};

/// Size of the table of registered files.
const FILES: usize = 1024;
/// The same where the process may not have as many files (RLIMIT_NOFILE).
const FEW_FILES: usize = 256;
/// No slot.
const NONE: u32 = u32::MAX;
/// Owner of a slot whose client is gone.
const ORPHAN: u32 = u32::MAX;

/// What executes the requests of a ring.
#[cfg_attr(
    feature = "simulated",
    allow(clippy::large_enum_variant, reason = "a pointer more on the way to the real one")
)]
enum Kernel {
    Linux(IoUring),
    #[cfg(feature = "simulated")]
    Simulated(crate::simulated::Executor),
}

/// A ring. Requests of several clients share its slots; each client gets its own completions.
pub struct Ring {
    /// Declared first: dropped before the memory that it uses.
    kernel: Kernel,
    slots: Vec<Slot>,
    /// First free slot.
    free: u32,
    /// Requests that the kernel has, or that are queued for it.
    in_flight: usize,
    /// Requests pushed since the last successful enter.
    queued: usize,
    /// Completions to be popped, by client.
    clients: Vec<Option<List>>,
    /// Registered files, which are kept open.
    files: Vec<Option<RingFile>>,
    /// Memory that is pinned for the ring.
    pinned: Option<Memory>,
    stats: RingStats,
}

/// A registered file.
#[derive(Clone)]
struct RingFile {
    #[cfg_attr(not(feature = "simulated"), allow(dead_code, reason = "kept open"))]
    file: Arc<File>,
    /// Reads and writes may block the caller, so they are given to a thread of the kernel at once.
    blocks: bool,
}

struct Slot {
    client: u32,
    tag: u32,
    /// Result of the kernel, valid while the slot is in its client's list.
    result: i32,
    /// Next slot of the free list or of the client's list.
    next: u32,
    /// What the kernel may access. `Some` from the push to the completion at least.
    memory: Option<Memory>,
}

/// Slots in order of completion.
#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
}

impl Ring {
    /// A ring for `config.depth` requests in flight.
    ///
    /// # Errors
    ///
    /// [`RingError`] with the cause and the remedy when io_uring cannot be used.
    pub fn new(config: RingConfig) -> Result<Ring, RingError> {
        let depth = config.depth.clamp(1, 16_384).next_power_of_two();
        let mut builder = IoUring::builder();
        // Each slot has one request at a time, so neither queue ever overflows.
        builder.dontfork().setup_cqsize(depth * 2);
        let uring = match builder.clone().setup_coop_taskrun().setup_taskrun_flag().build(depth) {
            // A kernel before 5.19.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => builder.build(depth),
            result => result,
        };
        let uring = uring.map_err(|error| RingError::from_setup(&error))?;
        let files = match uring.submitter().register_files(&[-1; FILES]) {
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                uring.submitter().register_files(&[-1; FEW_FILES]).map(|()| FEW_FILES)
            }
            result => result.map(|()| FILES),
        };
        let files = files.map_err(|error| RingError::from_setup(&error))?;
        Ok(Ring::with(Kernel::Linux(uring), depth, files))
    }

    /// A ring whose requests a simulated kernel executes.
    #[cfg(feature = "simulated")]
    #[must_use]
    pub fn simulated(kernel: &crate::simulated::SimulatedKernel, config: RingConfig) -> Ring {
        let depth = config.depth.clamp(1, 16_384).next_power_of_two();
        Ring::with(Kernel::Simulated(kernel.executor()), depth, FILES)
    }

    fn with(kernel: Kernel, depth: u32, files: usize) -> Ring {
        let slots = (1..=depth).map(|next| Slot {
            client: ORPHAN,
            tag: 0,
            result: 0,
            next: if next == depth { NONE } else { next },
            memory: None,
        });
        Ring {
            kernel,
            slots: slots.collect(),
            free: 0,
            in_flight: 0,
            queued: 0,
            clients: Vec::new(),
            files: vec![None; files],
            pinned: None,
            stats: RingStats::default(),
        }
    }

    /// Replaces an entry of the kernel's table of files.
    fn register_file(&self, index: u32, fd: i32) -> std::io::Result<()> {
        match &self.kernel {
            Kernel::Linux(uring) => uring.submitter().register_files_update(index, &[fd]).map(drop),
            #[cfg(feature = "simulated")]
            Kernel::Simulated(_) => Ok(()),
        }
    }

    /// Pins `memory` for the ring, so that the kernel need not look up its pages at each request. Returns false when
    /// the kernel refuses (RLIMIT_MEMLOCK, kind of memory), or when the ring has pinned memory already; all requests
    /// work nevertheless.
    pub fn pin(&mut self, memory: &Memory) -> bool {
        if self.pinned.is_some() || memory.is_empty() {
            return false;
        }
        let uring = match &self.kernel {
            Kernel::Linux(uring) => uring,
            #[cfg(feature = "simulated")]
            Kernel::Simulated(_) => return false,
        };
        let iovec = libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: memory.len() };
        // SAFETY: the bytes stay allocated until the ring is gone: `pinned` keeps them, and is dropped after `kernel`.
        let pinned = unsafe { uring.submitter().register_buffers(&[iovec]) }.is_ok();
        if pinned {
            self.pinned = Some(memory.clone());
        }
        pinned
    }

    /// Registers a client; its number is an argument of the other methods.
    pub(crate) fn attach(&mut self) -> u32 {
        let empty = List { head: NONE, tail: NONE };
        let number = self.clients.iter().position(Option::is_none).unwrap_or_else(|| {
            self.clients.push(None);
            self.clients.len() - 1
        });
        self.clients[number] = Some(empty);
        number as u32
    }

    /// Forgets a client. Completions of its requests are discarded when they arrive.
    pub(crate) fn detach(&mut self, client: u32) {
        while self.pop(client).is_some() {}
        for slot in self.slots.iter_mut().filter(|slot| slot.client == client) {
            slot.client = ORPHAN;
        }
        if let Some(entry) = self.clients.get_mut(client as usize) {
            *entry = None;
        }
    }

    /// Registers a file, which stays open until [`close_file`](Self::close_file) and the last request on it.
    pub(crate) fn open_file(&mut self, file: &Arc<File>) -> Result<u32, RingError> {
        let index =
            self.files.iter().position(Option::is_none).ok_or(RingError::TooManyFiles { max: self.files.len() })?;
        let fd = file.as_raw_fd();
        self.register_file(index as u32, fd)
            .map_err(|error| RingError::Register { errno: error.raw_os_error().unwrap_or(libc::EIO) })?;
        #[cfg(feature = "simulated")]
        if let Kernel::Simulated(executor) = &self.kernel {
            executor.opened(file);
        }
        self.files[index] = Some(RingFile { file: Arc::clone(file), blocks: blocks(file) });
        Ok(index as u32)
    }

    /// Removes a file from the table. The kernel keeps it open for the requests that it has.
    pub(crate) fn close_file(&mut self, index: u32) {
        if let Some(entry @ Some(_)) = self.files.get_mut(index as usize) {
            *entry = None;
            // Failing, it would keep the file open for the life of the ring, nothing more.
            let _ = self.register_file(index, -1);
        }
    }

    /// Queues a request for the next [`turn`](Self::turn).
    ///
    /// # Errors
    ///
    /// The request when no slot is free.
    pub(crate) fn push(&mut self, client: u32, tag: u32, file: u32, request: Request) -> Result<(), Request> {
        let index = self.free;
        let Some(slot) = self.slots.get_mut(index as usize) else { return Err(request) };
        let next = slot.next;
        #[cfg(feature = "simulated")]
        if let Kernel::Simulated(executor) = &mut self.kernel
            && let Some(Some(RingFile { file, .. })) = self.files.get(file as usize)
        {
            let memory = executor.push(index, file, request);
            *slot = Slot { client, tag, result: 0, next: NONE, memory };
            self.free = next;
            self.queued += 1;
            self.in_flight += 1;
            return Ok(());
        }
        let blocks = matches!(self.files.get(file as usize), Some(Some(RingFile { blocks: true, .. })));
        let file = types::Fixed(file);
        let (entry, memory) = match request {
            Request::Sync => (opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(), None),
            Request::Fallocate { mode, offset, len } => {
                (opcode::Fallocate::new(file, len).offset(offset).mode(mode).build(), None)
            }
            Request::Read { memory, at, len, offset } => {
                let Some(buffer) = address(&memory, at, len) else { return self.reject(client, tag, memory) };
                let entry = match &self.pinned {
                    Some(pinned) if contains(pinned, buffer, len) => {
                        opcode::ReadFixed::new(file, buffer, len, 0).offset(offset).build()
                    }
                    _ => opcode::Read::new(file, buffer, len).offset(offset).build(),
                };
                (entry, Some(memory))
            }
            Request::Write { memory, at, len, offset, durable } => {
                let Some(buffer) = address(&memory, at, len) else { return self.reject(client, tag, memory) };
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                let entry = match &self.pinned {
                    Some(pinned) if contains(pinned, buffer, len) => {
                        opcode::WriteFixed::new(file, buffer, len, 0).offset(offset).rw_flags(flags).build()
                    }
                    _ => opcode::Write::new(file, buffer, len).offset(offset).rw_flags(flags).build(),
                };
                (entry, Some(memory))
            }
        };
        let entry = entry.user_data(u64::from(index));
        let entry = if blocks { entry.flags(squeue::Flags::ASYNC) } else { entry };
        *slot = Slot { client, tag, result: 0, next: NONE, memory };
        self.free = next;
        self.enqueue(&entry);
        Ok(())
    }

    /// Puts the entry of a slot, which holds its memory, into the submission queue.
    fn enqueue(&mut self, entry: &squeue::Entry) {
        let uring = match &mut self.kernel {
            Kernel::Linux(uring) => uring,
            // Its requests need no entries.
            #[cfg(feature = "simulated")]
            Kernel::Simulated(_) => return,
        };
        // SAFETY: the only pointer in the entry, if any, leads to bytes of the slot's memory, in bounds (`address`).
        // The slot keeps the memory allocated until the completion; `Drop` waits for that, or leaks the memory.
        let pushed = unsafe { uring.submission().push(entry) };
        // The queue has as many entries as there are slots.
        debug_assert!(pushed.is_ok());
        self.queued += 1;
        self.in_flight += 1;
    }

    /// Completes a request whose range is outside of its memory, with EFAULT as the kernel would.
    fn reject(&mut self, client: u32, tag: u32, memory: Memory) -> Result<(), Request> {
        let index = self.free;
        let slot = &mut self.slots[index as usize];
        self.free = slot.next;
        *slot = Slot { client, tag, result: -libc::EFAULT, next: NONE, memory: Some(memory) };
        self.deliver(index);
        Ok(())
    }

    /// Whether a request can be pushed.
    pub(crate) fn has_room(&self) -> bool {
        self.free != NONE
    }

    /// Number of requests queued or in the kernel.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> RingStats {
        self.stats
    }

    /// Submits what is queued and fetches completions, with at most one system call, and none when there is nothing to
    /// submit or when the completions are in shared memory already.
    ///
    /// # Errors
    ///
    /// [`RingError::Enter`] for an error that will not pass.
    pub(crate) fn turn(&mut self) -> Result<(), RingError> {
        if self.in_flight == 0 {
            return Ok(());
        }
        let enter = match &mut self.kernel {
            Kernel::Linux(uring) => {
                let queue = uring.submission();
                self.queued > 0 || queue.taskrun() || queue.cq_overflow()
            }
            #[cfg(feature = "simulated")]
            Kernel::Simulated(_) => true,
        };
        let result = if enter { self.enter(0) } else { Ok(()) };
        self.reap();
        result
    }

    /// As [`turn`](Self::turn), but sleeps until a completion arrives, if there is a request in flight.
    pub(crate) fn wait(&mut self) -> Result<(), RingError> {
        if self.in_flight == 0 {
            return Ok(());
        }
        let result = self.enter(1);
        self.reap();
        result
    }

    /// The next completion of a client's requests.
    pub(crate) fn pop(&mut self, client: u32) -> Option<Finished> {
        let list = self.clients.get_mut(client as usize)?.as_mut()?;
        let index = list.head;
        let slot = self.slots.get_mut(index as usize)?;
        list.head = slot.next;
        if list.head == NONE {
            list.tail = NONE;
        }
        let finished = Finished { tag: slot.tag, result: slot.result, memory: slot.memory.take() };
        self.release(index);
        Some(finished)
    }

    /// Enters the kernel, which takes the queued entries, and posts completions of at least `min` requests.
    fn enter(&mut self, min: usize) -> Result<(), RingError> {
        self.stats.enters += 1;
        let uring = match &mut self.kernel {
            Kernel::Linux(uring) => uring,
            #[cfg(feature = "simulated")]
            Kernel::Simulated(executor) => {
                executor.enter(min);
                self.queued = 0;
                return Ok(());
            }
        };
        match uring.submit_and_wait(min) {
            Ok(taken) => {
                self.queued = self.queued.saturating_sub(taken);
                Ok(())
            }
            Err(error) => match error.raw_os_error() {
                // A signal, or the kernel is short of memory or of room for completions: the entries stay queued.
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                errno => Err(RingError::Enter { errno: errno.unwrap_or(libc::EIO) }),
            },
        }
    }

    /// Moves completions from the shared memory to the clients' lists.
    fn reap(&mut self) {
        loop {
            let next = match &mut self.kernel {
                Kernel::Linux(uring) => {
                    uring.completion().next().map(|entry| (entry.user_data() as u32, entry.result()))
                }
                #[cfg(feature = "simulated")]
                Kernel::Simulated(executor) => executor.pop(),
            };
            let Some((index, result)) = next else { return };
            let Some(slot) = self.slots.get_mut(index as usize) else { continue };
            slot.result = result;
            self.in_flight -= 1;
            self.stats.completions += 1;
            self.deliver(index);
        }
    }

    /// Appends a completed slot to its client's list.
    fn deliver(&mut self, index: u32) {
        let client = self.slots[index as usize].client;
        let Some(Some(list)) = self.clients.get_mut(client as usize) else {
            self.slots[index as usize].memory = None;
            return self.release(index);
        };
        let tail = mem::replace(&mut list.tail, index);
        match self.slots.get_mut(tail as usize) {
            Some(last) => last.next = index,
            None => list.head = index,
        }
        self.slots[index as usize].next = NONE;
    }

    /// Puts a slot without memory into the free list.
    fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.client = ORPHAN;
        slot.next = mem::replace(&mut self.free, index);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.wait().is_err() {
                // The kernel may still use the memory.
                mem::forget(mem::take(&mut self.slots));
                return;
            }
        }
    }
}

/// Whether a read of a file can block, as its file system has no way to say that it would (RWF_NOWAIT). io_uring of Linux 6.18
/// gives such requests to a thread by itself; older kernels may execute them in the caller.
fn blocks(file: &File) -> bool {
    let mut byte = [0];
    let mut buffers = [IoSliceMut::new(&mut byte)];
    matches!(preadv2(file, &mut buffers, 0, ReadWriteFlags::NOWAIT), Err(Errno::OPNOTSUPP))
}

/// The address of `len` bytes at `at`, if they lie inside.
fn address(memory: &Memory, at: usize, len: u32) -> Option<*mut u8> {
    let end = at.checked_add(len as usize)?;
    (end <= memory.len()).then(|| memory.as_ptr().wrapping_add(at))
}

/// Whether `len` bytes at `buffer` lie in `memory`.
fn contains(memory: &Memory, buffer: *mut u8, len: u32) -> bool {
    let start = buffer.addr().wrapping_sub(memory.as_ptr().addr());
    start <= memory.len() && len as usize <= memory.len() - start
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
