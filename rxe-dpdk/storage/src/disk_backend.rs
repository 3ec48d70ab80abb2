//! A worker's instance of a file or block device.
//!
//! # Concurrency
//!
//! The file system or device decides what a read that overlaps with a write in progress returns, and what is left of a
//! write when power fails. With checksums, operations on the same blocks wait for each other.
//!
//! # Flushes
//!
//! One flush is in progress at a time; those that arrive meanwhile share the next one. The kernel reports a failure to write once
//! to each open file, so of two flushes at a time one would succeed although its data are lost. For the same reason an instance
//! has files of its own for flushes, and a durable write through the page cache is a write and a flush.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rxe_proto::mem::Memory;

use crate::backend::{Backend, Completion, Full, Operation, Submitted};
use crate::checksum::{ENTRY, Scratch};
use crate::chunk::{blocks, chunk_limit, mode, region_of, unlock, update, verify};
use crate::disk::{Disk, reopened};
use crate::error::{OpenError, RingError, StorageError};
use crate::geometry::Geometry;
use crate::io::Io;
use crate::op::{Kind, Method, Op, Ops, Step};
use crate::request::{Finished, Request};
use crate::ring::Ring;
use crate::sidecar::{REGION_BLOCKS, Region, Sidecar, entry_index, entry_offset, mark_offset};
use crate::stats::{Counted, StorageStats};

/// Longest request; io_uring takes 32 bits, and the kernel stops below 2^31.
const LONGEST: u64 = 1 << 30;
/// How often an interrupted request is submitted again in a row.
const RETRIES: u32 = 1000;

/// A worker's instance of a file or block device.
pub struct DiskBackend {
    disk: Arc<Disk>,
    geometry: Geometry,
    /// Checksums as of the last resize; empty without.
    regions: Vec<Arc<Region>>,
    ops: Ops,
    /// Operations that found no room in the ring, or locked blocks; in order.
    waiting: VecDeque<u32>,
    flushes: Flushes,
    /// Number of recoveries of the disk when the files for flushes were opened.
    recoveries: u64,
    /// Client number and files in the ring.
    attached: Option<Attached>,
    closing: bool,
    stats: Arc<StorageStats>,
}

#[derive(Clone, Copy)]
struct Attached {
    client: u32,
    data: u32,
    /// The data, for flushes.
    sync: u32,
    /// File of the checksums, and the same for flushes.
    table: Option<(u32, u32)>,
}

/// The flush in progress, and those that wait for the next one.
#[derive(Default)]
struct Flushes {
    /// The operation whose requests are in the ring.
    leader: Option<u32>,
    /// Operations that end with it.
    followers: Vec<u32>,
    next: Vec<u32>,
}

/// What an operation does after a step.
enum Next {
    /// The ring has a request.
    InRing,
    /// It must try again.
    Wait,
    /// It ends with the next flush.
    Joined,
    /// It is complete.
    Finish(Result<(), StorageError>),
}

impl DiskBackend {
    /// An instance of `disk` for up to `depth` operations at a time.
    ///
    /// # Errors
    ///
    /// [`OpenError`] when the file has an unsuitable size by now.
    pub fn new(disk: Arc<Disk>, depth: u32) -> Result<DiskBackend, OpenError> {
        let mut geometry = disk.measure()?;
        let regions = disk.sidecar.as_ref().map(Sidecar::regions).unwrap_or_default();
        if let Some(sidecar) = &disk.sidecar {
            // A file that has grown since is used to its old end before a resize.
            geometry.blocks = geometry.blocks.min(sidecar.blocks());
        }
        Ok(DiskBackend {
            disk,
            geometry,
            regions,
            ops: Ops::new(depth.max(1)),
            waiting: VecDeque::with_capacity(depth.max(1) as usize),
            flushes: Flushes::default(),
            recoveries: 0,
            attached: None,
            closing: false,
            stats: Arc::default(),
        })
    }

    /// Checks an operation, and turns it into what is kept of it.
    fn accept(&self, token: u64, operation: &Operation<'_>) -> Result<impl FnOnce() -> Op + use<>, StorageError> {
        let (counted, len) = operation.counted();
        let offset = operation.offset();
        self.geometry.check(offset, len)?;
        if self.disk.is_failed() && !matches!(operation, Operation::Read { .. }) {
            return Err(StorageError::FlushFailed);
        }
        let method = |release: bool| if release { Method::Punch } else { Method::ZeroRange };
        let (kind, memory) = match *operation {
            Operation::Read { into, .. } => (Kind::Read, Some(into)),
            Operation::Write { from, durable, .. } => (Kind::Write { durable }, Some(from)),
            Operation::Flush => (Kind::Flush, None),
            Operation::WriteZeroes { deallocate, .. } => (Kind::Zero(method(deallocate)), None),
            Operation::Deallocate { .. } => (Kind::Release, None),
        };
        let memory = memory.cloned();
        if memory.as_ref().is_some_and(|memory| memory.as_ptr().addr() % self.disk.align != 0) {
            return Err(StorageError::BufferAlignment { align: self.disk.align });
        }
        let step = if kind == Kind::Flush { Step::Sync } else { Step::Lock };
        let failures = self.disk.failures();
        Ok(move || Op {
            token,
            counted,
            kind,
            step,
            memory,
            offset,
            len,
            done: 0,
            chunk: 0,
            part: 0,
            locked: false,
            wants_lock: false,
            retries: 0,
            cancelled: false,
            failures,
        })
    }

    /// Continues an operation until the ring has a request of it, it must wait, or it is complete.
    fn advance(&mut self, ring: &mut Ring, index: u32) -> Next {
        let (Some(op), Some(attached)) = (self.ops.get_mut(index), self.attached) else {
            return Next::Finish(Err(StorageError::Closed));
        };
        let checks = self.disk.sidecar.as_ref();
        if op.cancelled && op.can_end(checks.is_some()) {
            return Next::Finish(Err(StorageError::Cancelled));
        }
        if op.kind == Kind::Release && !self.disk.releases_blocks() {
            return Next::Finish(Ok(()));
        }
        if op.step == Step::Sync {
            match self.flushes.leader {
                Some(leader) if leader != index => {
                    self.flushes.next.push(index);
                    return Next::Joined;
                }
                _ => self.flushes.leader = Some(index),
            }
        }
        if op.step == Step::Lock {
            let rest = op.len - op.done;
            op.chunk = rest;
            choose_method(op, &self.disk);
            if let Some(sidecar) = checks {
                op.chunk = rest.min(chunk_limit(self.geometry, op.start()));
                if op.kind == Kind::Zero(Method::Write) {
                    // So short that it can be cancelled.
                    op.chunk = op.chunk.min(self.disk.zeroes.len() as u64);
                }
                let (first, count) = blocks(self.geometry, op);
                if !sidecar.locks.try_lock(first, count, mode(op.kind)) {
                    op.wants_lock = op.kind.changes();
                    return if self.closing { Next::Finish(Err(StorageError::Closed)) } else { Next::Wait };
                }
                (op.locked, op.wants_lock) = (true, false);
            }
            op.step = if checks.is_some() && op.kind.changes() { Step::Mark } else { Step::Data };
        }
        if op.step == Step::Mark && region_of(&self.regions, self.geometry, op).is_none_or(|region| region.is_marked())
        {
            op.step = Step::Data;
        }
        if !ring.has_room() {
            return Next::Wait;
        }
        let (table_file, table_sync) = attached.table.unwrap_or((attached.data, attached.sync));
        let (file, request) = match op.step {
            Step::Lock | Step::Data => (attached.data, data_request(op, &self.disk)),
            Step::Sync => (attached.sync, Some(Request::Sync)),
            Step::SyncTable => (table_sync, Some(Request::Sync)),
            Step::Mark => {
                let offset = mark_offset(blocks(self.geometry, op).0 / REGION_BLOCKS);
                let request = checks.map(|sidecar| Request::Write {
                    memory: sidecar.mark.clone(),
                    at: 0,
                    len: ENTRY as u32,
                    offset,
                    durable: true,
                });
                (table_file, request)
            }
            Step::Table => {
                let (first, count) = blocks(self.geometry, op);
                let request = region_of(&self.regions, self.geometry, op).map(|region| Request::Write {
                    memory: region.table.clone(),
                    at: entry_index(first) * ENTRY + op.part as usize,
                    len: (count * ENTRY as u64 - op.part) as u32,
                    offset: entry_offset(first) + op.part,
                    durable: op.kind == Kind::Write { durable: true } && self.disk.is_direct(),
                });
                (table_file, request)
            }
        };
        let Some(request) = request else { return Next::Finish(Err(StorageError::Memory)) };
        match ring.push(attached.client, index, file, request) {
            Ok(()) => Next::InRing,
            // Not reached, as there is room.
            Err(_) => Next::Finish(Err(StorageError::Memory)),
        }
    }

    /// Takes the result of a request. `None` if the operation continues.
    fn complete(&mut self, finished: Finished, scratch: &mut Scratch) -> Option<Result<(), StorageError>> {
        let op = self.ops.get_mut(finished.tag)?;
        if op.step == Step::Data && matches!(op.kind, Kind::Read | Kind::Write { .. }) {
            op.memory = finished.memory;
        }
        if finished.result < 0 {
            return self.fail(finished.tag, -finished.result);
        }
        op.retries = 0;
        let moved = finished.result as u64;
        match op.step {
            Step::Lock => {}
            Step::Mark if moved == ENTRY as u64 => {
                if let Some(region) = region_of(&self.regions, self.geometry, op) {
                    region.set_marked();
                }
                op.step = Step::Data;
            }
            Step::Mark => return Some(Err(StorageError::NoSpace)),
            Step::Sync if self.disk.sidecar.is_some() => op.step = Step::SyncTable,
            Step::Sync | Step::SyncTable => return Some(Ok(())),
            Step::Table => {
                op.part += moved;
                if moved == 0 {
                    return Some(Err(StorageError::NoSpace));
                }
                if op.part == blocks(self.geometry, op).1 * ENTRY as u64 {
                    return self.finish_chunk(finished.tag);
                }
            }
            Step::Data => match op.kind {
                // It has no such step.
                Kind::Flush => return Some(Ok(())),
                Kind::Release | Kind::Zero(Method::Punch | Method::ZeroRange) => {
                    return self.finish_data(finished.tag, scratch);
                }
                Kind::Read | Kind::Write { .. } | Kind::Zero(Method::Write) => {
                    // O_DIRECT continues at whole units only; the kernel transfers the rest of the unit again.
                    let before = op.part;
                    op.part = (before + moved) / self.disk.align as u64 * self.disk.align as u64;
                    op.part = if before + moved == op.chunk { op.chunk } else { op.part };
                    if op.part <= before {
                        return Some(Err(match op.kind {
                            Kind::Read => StorageError::Truncated { offset: op.start() + before + moved },
                            _ => StorageError::NoSpace,
                        }));
                    }
                    if op.part == op.chunk {
                        return self.finish_data(finished.tag, scratch);
                    }
                }
            },
        }
        None
    }

    /// Handles an error number. `None` if the operation tries again, perhaps in another way.
    fn fail(&mut self, index: u32, errno: i32) -> Option<Result<(), StorageError>> {
        let op = self.ops.get_mut(index)?;
        match (errno, op.kind, op.step) {
            (libc::EINTR | libc::EAGAIN, ..) if op.retries < RETRIES => {
                op.retries += 1;
                return None;
            }
            // A hint, which has no effect here.
            (libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV, Kind::Release, Step::Data) => {
                self.disk.refused(&self.disk.punch);
                return Some(Ok(()));
            }
            // A device with larger blocks.
            (libc::EINVAL, Kind::Release, Step::Data) => return Some(Ok(())),
            (libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV, Kind::Zero(method), Step::Data)
                if method != Method::Write =>
            {
                self.disk.refused(if method == Method::Punch { &self.disk.punch } else { &self.disk.zero_range });
                op.kind = Kind::Zero(method.fallback());
                self.restart_chunk(index);
                return None;
            }
            // A device with larger blocks.
            (libc::EINVAL, Kind::Zero(method), Step::Data) if method != Method::Write => {
                op.kind = Kind::Zero(method.fallback());
                self.restart_chunk(index);
                return None;
            }
            _ => {}
        }
        if self.loses_data(index, errno) {
            self.disk.fail();
            return Some(Err(StorageError::FlushFailed));
        }
        let op = self.ops.get_mut(index)?;
        if op.step == Step::Table {
            // In memory the entries are right, and in the file they are not.
            self.disk.keep_marks();
        }
        Some(Err(StorageError::from_errno(errno)))
    }

    /// Whether an error means that the kernel may have dropped data of writes that were complete.
    fn loses_data(&mut self, index: u32, errno: i32) -> bool {
        let has_space = !matches!(errno, libc::ENOSPC | libc::EDQUOT);
        let is_direct = self.disk.is_direct();
        self.ops.get_mut(index).is_some_and(|op| match op.step {
            Step::Sync | Step::SyncTable => true,
            Step::Mark => has_space,
            Step::Data | Step::Table => has_space && is_direct && op.kind == Kind::Write { durable: true },
            Step::Lock => false,
        })
    }

    /// Begins a chunk again, of which nothing was written.
    fn restart_chunk(&mut self, index: u32) {
        if let Some(op) = self.ops.get_mut(index) {
            unlock(&self.disk, self.geometry, op);
            op.step = Step::Lock;
        }
    }

    /// The data of the chunk is complete: verifies it or updates the entries.
    fn finish_data(&mut self, index: u32, scratch: &mut Scratch) -> Option<Result<(), StorageError>> {
        let op = self.ops.get_mut(index)?;
        if op.memory.as_ref().is_some_and(Memory::is_lost) {
            return Some(Err(StorageError::Memory));
        }
        let (Some(sidecar), Some(region)) = (&self.disk.sidecar, region_of(&self.regions, self.geometry, op)) else {
            return self.finish_chunk(index);
        };
        let checked = match op.kind {
            Kind::Read => verify(op, self.geometry, sidecar, region, scratch, &self.stats),
            _ => update(op, self.geometry, sidecar, region, scratch),
        };
        match checked {
            Err(error) => Some(Err(error)),
            Ok(()) if op.kind == Kind::Read => self.finish_chunk(index),
            Ok(()) => {
                (op.step, op.part) = (Step::Table, 0);
                None
            }
        }
    }

    /// Goes to the next chunk, if there is one.
    fn finish_chunk(&mut self, index: u32) -> Option<Result<(), StorageError>> {
        let op = self.ops.get_mut(index)?;
        unlock(&self.disk, self.geometry, op);
        op.done += op.chunk;
        (op.part, op.step) = (0, Step::Lock);
        if op.done < op.len {
            return None;
        }
        if op.kind == (Kind::Write { durable: true }) && !self.disk.is_direct() {
            op.step = Step::Sync;
            return None;
        }
        Some(Ok(()))
    }

    /// Reports an operation that is complete, and those that end with its flush.
    fn finish(&mut self, index: u32, result: Result<(), StorageError>, completed: &mut Vec<Completion>) {
        if self.flushes.leader == Some(index) {
            self.flushes.leader = None;
            let mut followers = std::mem::take(&mut self.flushes.followers);
            followers.drain(..).for_each(|follower| self.report(follower, result, completed));
            // Its memory is used again.
            self.flushes.followers = followers;
        }
        self.report(index, result, completed);
    }

    fn report(&mut self, index: u32, result: Result<(), StorageError>, completed: &mut Vec<Completion>) {
        let Some(mut op) = self.ops.remove(index) else { return };
        unlock(&self.disk, self.geometry, &mut op);
        // What it wrote, or was to flush, may be lost by a flush that failed meanwhile, of any instance.
        let is_lost = op.kind != Kind::Read && op.failures != self.disk.failures();
        let result = if is_lost { result.and(Err(StorageError::FlushFailed)) } else { result };
        self.stats.count(op.counted, op.len, result);
        completed.push(Completion { token: op.token, result });
    }

    /// Advances an operation, and notes what follows.
    fn step(&mut self, ring: &mut Ring, index: u32, completed: &mut Vec<Completion>) {
        match self.advance(ring, index) {
            Next::InRing | Next::Joined => {}
            Next::Wait => self.waiting.push_back(index),
            Next::Finish(result) => self.finish(index, result, completed),
        }
    }

    /// Begins the next flush, when there is none in progress.
    fn begin_flush(&mut self, ring: &mut Ring, completed: &mut Vec<Completion>) {
        while self.flushes.leader.is_none() && !self.flushes.next.is_empty() {
            let leader = self.flushes.next.swap_remove(0);
            std::mem::swap(&mut self.flushes.next, &mut self.flushes.followers);
            self.step(ring, leader, completed);
        }
    }

    /// Opens files of its own for flushes.
    fn open_sync(disk: &Disk, ring: &mut Ring) -> Result<(u32, Option<u32>), RingError> {
        let failed = |error: std::io::Error| RingError::Register { errno: error.raw_os_error().unwrap_or(libc::EIO) };
        let data = ring.open_file(&Arc::new(disk.reopen().map_err(failed)?))?;
        let Some(sidecar) = &disk.sidecar else { return Ok((data, None)) };
        let table = reopened(&sidecar.file, disk.is_read_only())
            .map_err(failed)
            .and_then(|file| ring.open_file(&Arc::new(file)));
        if table.is_err() {
            ring.close_file(data);
        }
        Ok((data, Some(table?)))
    }

    /// After a recovery: the failures before it are not those of the flushes to come.
    fn follow_recovery(&mut self, ring: &mut Ring) {
        let recoveries = self.disk.recoveries();
        if self.recoveries == recoveries {
            return;
        }
        let Some(attached) = &mut self.attached else { return };
        // Without new files, the next flush reports an old failure, and the namespace fails again.
        if let Ok((data, table)) = DiskBackend::open_sync(&self.disk, ring) {
            self.recoveries = recoveries;
            ring.close_file(std::mem::replace(&mut attached.sync, data));
            if let (Some((_, old)), Some(new)) = (&mut attached.table, table) {
                ring.close_file(std::mem::replace(old, new));
            }
        }
    }
}

impl Backend for DiskBackend {
    fn attach(&mut self, io: &mut Io) -> Result<(), RingError> {
        let ring = io.ring.as_mut().ok_or(RingError::NoRing)?;
        self.recoveries = self.disk.recoveries();
        let (sync, table_sync) = DiskBackend::open_sync(&self.disk, ring)?;
        let data = ring.open_file(&self.disk.file);
        let table = self.disk.sidecar.as_ref().map(|sidecar| ring.open_file(&sidecar.file)).transpose();
        match (data, table) {
            (Ok(data), Ok(table)) => {
                self.attached = Some(Attached { client: ring.attach(), data, sync, table: table.zip(table_sync) });
                Ok(())
            }
            (data, table) => {
                let opened =
                    [Some(sync), table_sync, data.as_ref().ok().copied(), table.as_ref().ok().copied().flatten()];
                opened.into_iter().flatten().for_each(|file| ring.close_file(file));
                data.and(table.map(drop))
            }
        }
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, io: &mut Io, token: u64, operation: Operation<'_>) -> Result<Submitted, Full> {
        let (counted, len) = operation.counted();
        if let Some(ring) = io.ring.as_mut() {
            self.follow_recovery(ring);
        }
        let (accepted, ring) = match (self.accept(token, &operation), io.ring.as_mut()) {
            (Ok(accepted), Some(ring)) if !self.closing && self.attached.is_some() => (accepted, ring),
            (Ok(_), _) => return Ok(Submitted::Done(Err(StorageError::Closed))),
            (Err(error), _) => {
                self.stats.count(counted, len, Err(error));
                return Ok(Submitted::Done(Err(error)));
            }
        };
        if len == 0 && counted != Counted::Flush {
            self.stats.count(counted, 0, Ok(()));
            return Ok(Submitted::Done(Ok(())));
        }
        let Some(index) = self.ops.insert(accepted) else {
            self.stats.full.inc();
            return Err(Full);
        };
        match self.advance(ring, index) {
            Next::InRing | Next::Joined => {}
            Next::Wait => {
                self.stats.waits.inc();
                self.waiting.push_back(index);
            }
            Next::Finish(result) => {
                if let Some(mut op) = self.ops.remove(index) {
                    unlock(&self.disk, self.geometry, &mut op);
                }
                self.stats.count(counted, len, result);
                return Ok(Submitted::Done(result));
            }
        }
        Ok(Submitted::Pending)
    }

    fn poll(&mut self, io: &mut Io, completed: &mut Vec<Completion>) {
        let (Some(ring), Some(attached)) = (io.ring.as_mut(), self.attached) else { return };
        while let Some(finished) = ring.pop(attached.client) {
            let index = finished.tag;
            match self.complete(finished, &mut io.scratch) {
                Some(result) => self.finish(index, result, completed),
                None => self.step(ring, index, completed),
            }
        }
        for _ in 0..self.waiting.len() {
            if !ring.has_room() {
                break;
            }
            if let Some(index) = self.waiting.pop_front() {
                self.step(ring, index, completed);
            }
        }
        self.begin_flush(ring, completed);
    }

    fn outstanding(&self) -> usize {
        self.ops.len()
    }

    fn resize(&mut self) -> Result<Geometry, OpenError> {
        self.geometry = self.disk.resize()?;
        if let Some(sidecar) = &self.disk.sidecar {
            self.regions = sidecar.regions();
        }
        Ok(self.geometry)
    }

    fn stats(&self) -> &Arc<StorageStats> {
        &self.stats
    }

    fn cancel(&mut self, token: u64) {
        if let Some(op) = self.ops.find_mut(token) {
            op.cancelled = true;
        }
    }

    fn close(&mut self) {
        self.closing = true;
    }

    fn detach(&mut self, io: &mut Io) {
        let (Some(ring), Some(attached)) = (io.ring.as_mut(), self.attached.take()) else { return };
        ring.detach(attached.client);
        let Attached { data, sync, table, .. } = attached;
        for file in [data, sync].into_iter().chain(table.into_iter().flat_map(|(table, sync)| [table, sync])) {
            ring.close_file(file);
        }
    }
}

impl Drop for DiskBackend {
    fn drop(&mut self) {
        if self.ops.len() > 0 {
            // The ring failed: what was written is not known. The blocks stay locked, as the kernel may still write
            // them.
            self.disk.keep_marks();
        }
    }
}

/// Turns to the next way to zero blocks, where the file system refuses one.
fn choose_method(op: &mut Op, disk: &Disk) {
    if op.kind == Kind::Zero(Method::Punch) && !disk.punch.load(Ordering::Relaxed) {
        op.kind = Kind::Zero(Method::Punch.fallback());
    }
    if op.kind == Kind::Zero(Method::ZeroRange) && !disk.zero_range.load(Ordering::Relaxed) {
        op.kind = Kind::Zero(Method::ZeroRange.fallback());
    }
}

/// The request for the rest of the data of the current chunk.
fn data_request(op: &mut Op, disk: &Disk) -> Option<Request> {
    let (offset, rest) = (op.start() + op.part, op.chunk - op.part);
    let len = rest.min(LONGEST) as u32;
    let at = (op.done + op.part) as usize;
    Some(match op.kind {
        Kind::Flush => Request::Sync,
        Kind::Read => Request::Read { memory: op.memory.take()?, at, len, offset },
        Kind::Write { durable } => {
            Request::Write { memory: op.memory.take()?, at, len, offset, durable: durable && disk.is_direct() }
        }
        Kind::Release | Kind::Zero(Method::Punch) => {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            Request::Fallocate { mode, offset, len: rest }
        }
        Kind::Zero(Method::ZeroRange) => {
            let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
            Request::Fallocate { mode, offset, len: rest }
        }
        Kind::Zero(Method::Write) => {
            let len = rest.min(disk.zeroes.len() as u64) as u32;
            Request::Write { memory: disk.zeroes.clone(), at: 0, len, offset, durable: false }
        }
    })
}
