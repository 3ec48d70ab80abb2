//! A worker's instance of a file or block device.
//!
//! # Concurrency
//!
//! The file system or device decides what a read that overlaps with a write in progress returns, and what is left of a
//! write when power fails. With checksums, operations on the same blocks wait for each other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rxe_proto::mem::Memory;

use crate::backend::{Backend, Completion, Full, Operation, Submitted};
use crate::checksum::{ENTRY, Scratch};
use crate::chunk::{blocks, chunk_limit, mode, region_of, unlock, update, verify};
use crate::disk::Disk;
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
    /// Client number and files in the ring.
    attached: Option<Attached>,
    closing: bool,
    stats: Arc<StorageStats>,
}

#[derive(Clone, Copy)]
struct Attached {
    client: u32,
    data: u32,
    /// File of the checksums.
    table: Option<u32>,
}

/// What an operation does after a step.
enum Next {
    /// The ring has a request.
    InRing,
    /// It must try again.
    Wait,
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
        let geometry = disk.measure()?;
        let regions = disk.sidecar.as_ref().map(Sidecar::regions).unwrap_or_default();
        Ok(DiskBackend {
            disk,
            geometry,
            regions,
            ops: Ops::new(depth.max(1)),
            waiting: VecDeque::with_capacity(depth.max(1) as usize),
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
        let method = |release: bool| if release { Method::Punch } else { Method::ZeroRange };
        let (kind, memory) = match *operation {
            Operation::Read { into, .. } => (Kind::Read, Some(into)),
            Operation::Write { from, durable, .. } => (Kind::Write { durable }, Some(from)),
            Operation::Flush => (Kind::Flush, None),
            Operation::WriteZeroes { deallocate, .. } => (Kind::Zero(method(deallocate)), None),
            Operation::Deallocate { .. } => (Kind::Zero(Method::Punch), None),
        };
        let memory = memory.cloned();
        if memory.as_ref().is_some_and(|memory| memory.as_ptr().addr() % self.disk.align != 0) {
            return Err(StorageError::BufferAlignment { align: self.disk.align });
        }
        let step = if kind == Kind::Flush { Step::Data } else { Step::Lock };
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
        })
    }

    /// Continues an operation until the ring has a request of it, it must wait, or it is complete.
    fn advance(&mut self, ring: &mut Ring, index: u32) -> Next {
        let (Some(op), Some(attached)) = (self.ops.get_mut(index), self.attached) else {
            return Next::Finish(Err(StorageError::Closed));
        };
        let checks = self.disk.sidecar.as_ref();
        if op.step == Step::Lock {
            let rest = op.len - op.done;
            op.chunk = rest;
            if let Some(sidecar) = checks {
                op.chunk = rest.min(chunk_limit(self.geometry, op.start()));
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
        let table_file = attached.table.unwrap_or(attached.data);
        let (file, request) = match op.step {
            Step::Lock | Step::Data => (attached.data, data_request(op, &self.disk)),
            Step::SyncTable => (table_file, Some(Request::Sync)),
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
                    durable: op.kind == Kind::Write { durable: true },
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
            Step::SyncTable => return Some(Ok(())),
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
                Kind::Flush => {
                    op.step = Step::SyncTable;
                    return self.disk.sidecar.is_none().then_some(Ok(()));
                }
                Kind::Zero(Method::Punch | Method::ZeroRange) => return self.finish_data(finished.tag, scratch),
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
            (libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV, Kind::Zero(method), Step::Data)
                if method != Method::Write =>
            {
                self.disk.refused(if method == Method::Punch { &self.disk.punch } else { &self.disk.zero_range });
                op.kind = Kind::Zero(method.fallback());
                return None;
            }
            // A device with larger blocks.
            (libc::EINVAL, Kind::Zero(method), Step::Data) if method != Method::Write => {
                op.kind = Kind::Zero(method.fallback());
                return None;
            }
            _ => {}
        }
        if op.step == Step::Table {
            // In memory the entries are right, and in the file they are not.
            self.disk.keep_marks();
        }
        Some(Err(StorageError::from_errno(errno)))
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
        (op.done == op.len).then_some(Ok(()))
    }

    /// Reports an operation that is complete.
    fn finish(&mut self, index: u32, result: Result<(), StorageError>, completed: &mut Vec<Completion>) {
        let Some(mut op) = self.ops.remove(index) else { return };
        unlock(&self.disk, self.geometry, &mut op);
        self.stats.count(op.counted, op.len, result);
        completed.push(Completion { token: op.token, result });
    }

    /// Advances an operation, and notes what follows.
    fn step(&mut self, ring: &mut Ring, index: u32, completed: &mut Vec<Completion>) {
        match self.advance(ring, index) {
            Next::InRing => {}
            Next::Wait => self.waiting.push_back(index),
            Next::Finish(result) => self.finish(index, result, completed),
        }
    }
}

impl Backend for DiskBackend {
    fn attach(&mut self, io: &mut Io) -> Result<(), RingError> {
        let ring = io.ring.as_mut().ok_or(RingError::NoRing)?;
        let data = ring.open_file(&self.disk.file)?;
        let table = match &self.disk.sidecar {
            None => None,
            Some(sidecar) => match ring.open_file(&sidecar.file) {
                Ok(table) => Some(table),
                Err(error) => {
                    ring.close_file(data);
                    return Err(error);
                }
            },
        };
        self.attached = Some(Attached { client: ring.attach(), data, table });
        Ok(())
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, io: &mut Io, token: u64, operation: Operation<'_>) -> Result<Submitted, Full> {
        let (counted, len) = operation.counted();
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
            Next::InRing => {}
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
            if let Some(index) = self.waiting.pop_front() {
                self.step(ring, index, completed);
            }
        }
    }

    fn outstanding(&self) -> usize {
        self.ops.len()
    }

    fn resize(&mut self) -> Result<Geometry, OpenError> {
        self.geometry = self.disk.measure()?;
        if let Some(sidecar) = &self.disk.sidecar {
            self.regions = sidecar.regions();
        }
        Ok(self.geometry)
    }

    fn stats(&self) -> &Arc<StorageStats> {
        &self.stats
    }

    fn close(&mut self) {
        self.closing = true;
    }

    fn detach(&mut self, io: &mut Io) {
        let (Some(ring), Some(attached)) = (io.ring.as_mut(), self.attached.take()) else { return };
        ring.detach(attached.client);
        for file in [Some(attached.data), attached.table].into_iter().flatten() {
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

/// The request for the rest of the data of the current chunk.
fn data_request(op: &mut Op, disk: &Disk) -> Option<Request> {
    let (offset, rest) = (op.start() + op.part, op.chunk - op.part);
    let len = rest.min(LONGEST) as u32;
    let at = (op.done + op.part) as usize;
    if op.kind == Kind::Zero(Method::Punch) && !disk.punch.load(Ordering::Relaxed) {
        op.kind = Kind::Zero(Method::Punch.fallback());
    }
    if op.kind == Kind::Zero(Method::ZeroRange) && !disk.zero_range.load(Ordering::Relaxed) {
        op.kind = Kind::Zero(Method::ZeroRange.fallback());
    }
    Some(match op.kind {
        Kind::Flush => Request::Sync,
        Kind::Read => Request::Read { memory: op.memory.take()?, at, len, offset },
        Kind::Write { durable } => Request::Write { memory: op.memory.take()?, at, len, offset, durable },
        Kind::Zero(Method::Punch) => {
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
