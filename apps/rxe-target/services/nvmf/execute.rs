//! Executes I/O commands.

use rxe_nvmf::io::{CommandTag, IoRequest, dsm_ranges};
use rxe_nvmf::subsystem::NamespaceView;
use rxe_nvmf::wire::{DataLocation, NSID_ALL, Response, Status, StatusCode};
use rxe_proto::verbs::{Memory, Qpn, RemoteAddr, Sge};
use rxe_service::Context;
use rxe_storage::{Completion, Full, StorageError, Submitted};

use super::admission::{Grant, Piece};
use super::command::{Command, Lent, Stage, remote};
use super::instance::{FailedCommand, Nvmf};
use super::namespaces::SubsystemView;
use super::queue::{Outgoing, Queue, Role};
use super::work::Work;

/// Bytes that are compared at once.
const COMPARE: usize = 4096;

impl Nvmf {
    /// Executes a checked command of an I/O queue that is no [direct read](SubsystemView::direct_read).
    pub(super) fn begin(
        &mut self,
        cx: &mut Context<'_>,
        qpn: Qpn,
        slot: u16,
        view: &SubsystemView,
        request: IoRequest,
    ) {
        let IoRequest { tag, nsid, block_shift, operation } = request;
        let (mut work, from) = Work::new(operation, block_shift);
        let found = if nsid == NSID_ALL { view.all().first().copied() } else { view.find(nsid) };
        let checked = view.views.iter().find(|view| view.nsid == nsid || nsid == NSID_ALL).copied();
        let (Some(namespace), Some(checked)) = (found, checked) else {
            return self.complete(cx, qpn, slot, tag, Status::permanent(StatusCode::InvalidNamespace), None, None);
        };
        if let Work::Flush { namespaces } = &mut work {
            match nsid {
                NSID_ALL => namespaces.extend(view.all().iter().map(|namespace| namespace.storage)),
                _ => namespaces.push(namespace.storage),
            }
        }
        let Some(Queue { role: Role::Io { fence, .. }, host, .. }) = self.queues.get(&qpn) else { return };
        let (fence, host) = (*fence, *host);
        let in_place = match (&work, from) {
            (Work::Write { .. }, DataLocation::Capsule { offset, len }) if namespace.in_memory => {
                self.capsule(qpn, slot, offset, len)
            }
            _ => None,
        };
        let command = Command {
            queue: Some(qpn),
            fence,
            slot,
            tag,
            namespace,
            view: checked,
            arrived: cx.now(),
            work,
            from,
            in_place,
            stage: Stage::Admission,
            number: self.next_command,
        };
        self.next_command += 1;
        let room = command.work.room(command.in_place.is_some());
        let index = self.commands.insert(command);
        if let Some(place) = self.queues.get_mut(&qpn).and_then(|queue| queue.command_mut(slot)) {
            *place = Some(index);
        }
        match self.admission.enter_io(host, index, room as usize) {
            Some(grant) => self.stage_data(cx, index, grant),
            None => self.metrics.share_waits.inc(),
        }
    }

    fn capsule(&self, qpn: Qpn, slot: u16, offset: u32, len: u32) -> Option<Memory> {
        let queue = self.queues.get(&qpn)?;
        queue.receives().piece(slot, rxe_nvmf::wire::SQE_LEN + offset as usize, len as usize)
    }

    /// Brings the data of an admitted command to its staging.
    pub(super) fn stage_data(&mut self, cx: &mut Context<'_>, index: usize, Grant { place, piece }: Grant) {
        let Some((command, qpn)) = self.commands.get_mut(index).and_then(|command| {
            let queue = command.queue?;
            Some((command, queue))
        }) else {
            // Not reached: what is gone was withdrawn.
            return self.admission.end(Grant { place, piece });
        };
        let room = command.work.room(command.in_place.is_some());
        let (from, slot) = (command.from, command.slot);
        command.from = DataLocation::None;
        match (from, piece) {
            (DataLocation::Host(buffer), Some(piece)) => {
                command.stage = Stage::Fetch(place);
                let to = self.admission.sge(&piece, buffer.len.min(room));
                let fetch = Outgoing::Fetch { command: index, piece, to, from: remote(buffer) };
                self.push(cx, qpn, fetch);
            }
            (DataLocation::Capsule { offset, len }, Some(piece)) => {
                let to = piece.memory().clone();
                command.stage = Stage::Ready(Grant { place, piece: Some(piece) });
                let copied = self.capsule(qpn, slot, offset, len.min(room)).is_some_and(|from| self.copy(&from, &to));
                if copied { self.execute(cx, index) } else { self.finish(cx, index, Err(StorageError::Memory)) }
            }
            (_, piece) => {
                command.stage = Stage::Ready(Grant { place, piece });
                self.execute(cx, index);
            }
        }
    }

    /// Copies the data of a capsule to staging.
    fn copy(&mut self, from: &Memory, to: &Memory) -> bool {
        let Some(bytes) = self.scratch.get_mut(..from.len()) else { return false };
        from.read(0, bytes).is_ok() && to.write(0, bytes).is_ok()
    }

    /// The data of a command have arrived.
    pub(super) fn fetched(&mut self, cx: &mut Context<'_>, index: usize, piece: Piece) {
        let Some(command) = self.commands.get_mut(index) else { return self.admission.free(piece) };
        match std::mem::replace(&mut command.stage, Stage::Admission) {
            Stage::Fetch(place) => {
                command.stage = Stage::Ready(Grant { place, piece: Some(piece) });
                self.execute(cx, index);
            }
            // Not reached: a command has one READ.
            stage => {
                command.stage = stage;
                self.admission.free(piece);
            }
        }
    }

    /// Submits operations to the storage until one is not complete at once.
    pub(super) fn execute(&mut self, cx: &mut Context<'_>, index: usize) {
        loop {
            let Some(command) = self.commands.get_mut(index) else { return };
            if command.queue.is_none() {
                return self.forget(index);
            }
            let Stage::Ready(Grant { piece, .. }) = &command.stage else { return };
            let data = command.in_place.as_ref().or(piece.as_ref().map(Piece::memory));
            if let Work::Ranges { count, deallocate } = command.work {
                match ranges(data, count, command.view, &mut self.scratch) {
                    Ok(ranges) if deallocate => command.work = Work::Deallocate { ranges },
                    // A hint.
                    Ok(_) => command.work = Work::Deallocate { ranges: Vec::new() },
                    Err(code) => return self.finish_with(cx, index, Status::permanent(code)),
                }
                continue;
            }
            let storage = &mut self.storage;
            let submitted = command.work.submit(command.namespace.storage, data, |namespace, operation| {
                storage.submit(namespace, index as u64, operation)
            });
            match submitted {
                None => return self.finish(cx, index, Ok(())),
                Some(Ok(Ok(Submitted::Done(Ok(()))))) => {
                    command.work.advance();
                    if command.work.has_long_parts() {
                        return self.continued.push_back(index);
                    }
                }
                Some(Ok(Ok(Submitted::Done(Err(error))))) | Some(Err(error)) => {
                    return self.finish(cx, index, Err(error));
                }
                Some(Ok(Ok(Submitted::Pending))) => {
                    if let Stage::Ready(grant) = std::mem::replace(&mut command.stage, Stage::Admission) {
                        command.stage = Stage::Storage(Lent::new(grant));
                    }
                    return;
                }
                // Not reached: there are no more places than the storage takes operations.
                Some(Ok(Err(Full))) => return self.finish(cx, index, Err(StorageError::Memory)),
            }
        }
    }

    /// The storage has completed an operation of a command.
    pub(super) fn stored(&mut self, cx: &mut Context<'_>, completion: &Completion) {
        let index = completion.token as usize;
        let Some(command) = self.commands.get_mut(index) else { return };
        match std::mem::replace(&mut command.stage, Stage::Admission) {
            Stage::Storage(lent) => command.stage = Stage::Ready(lent.returned(completion)),
            stage => {
                command.stage = stage;
                return;
            }
        }
        if command.queue.is_none() {
            let fence = command.fence;
            self.forget(index);
            if completion.result == Err(StorageError::FlushFailed) {
                self.note_failed_flush(cx);
            }
            return self.left_storage(fence);
        }
        match completion.result {
            Ok(()) => {
                command.work.advance();
                self.execute(cx, index);
            }
            Err(error) => self.finish(cx, index, Err(error)),
        }
    }

    fn finish(&mut self, cx: &mut Context<'_>, index: usize, result: Result<(), StorageError>) {
        let Some(command) = self.commands.get(index) else { return };
        let status = match (result, &command.work, &command.stage) {
            (Ok(()), Work::Compare { len, .. }, Stage::Ready(Grant { piece: Some(piece), .. }))
                if !self.is_equal(piece.memory(), *len as usize) =>
            {
                Status::permanent(StatusCode::CompareFailure)
            }
            (Ok(()), ..) => Status::SUCCESS,
            (Err(error), work, _) => {
                let status = match work.code_of(error) {
                    (code, true) => Status { more: true, ..Status::retryable(code) },
                    (code, false) => Status { more: true, ..Status::permanent(code) },
                };
                if let Some(queue) = command.queue {
                    let (command_id, nsid) = (command.tag.command_id(), command.view.nsid);
                    let lba = work.offset() >> command.view.block_shift;
                    self.note_storage_error(cx, &FailedCommand { queue, command_id, nsid, lba, status, error });
                }
                status
            }
        };
        self.finish_with(cx, index, status);
    }

    fn finish_with(&mut self, cx: &mut Context<'_>, index: usize, status: Status) {
        let Some(command) = self.commands.try_remove(index) else { return };
        let Command { queue, slot, tag, namespace, arrived, work, stage, .. } = command;
        // A command that finishes has what it lent.
        let Stage::Ready(Grant { place, piece }) = stage else { return };
        self.admission.leave(place);
        let Some(qpn) = queue else { return piece.into_iter().for_each(|piece| self.admission.free(piece)) };
        if let Some(place) = self.queues.get_mut(&qpn).and_then(|queue| queue.command_mut(slot)) {
            *place = None;
        }
        self.namespaces.record(namespace, &work, cx.now().saturating_since(arrived).as_nanos() as u64);
        match (work, piece) {
            (Work::Read { len, to, .. }, Some(piece)) if status == Status::SUCCESS => {
                self.count_read(qpn, len);
                let data = (self.admission.sge(&piece, len), remote(to));
                self.complete(cx, qpn, slot, tag, status, Some(data), Some(piece));
            }
            (work, piece) => {
                if let (Work::Write { len, .. }, true) = (&work, status == Status::SUCCESS) {
                    self.count_write(qpn, *len);
                }
                if let Some(piece) = piece {
                    self.admission.free(piece);
                }
                self.complete(cx, qpn, slot, tag, status, None, None);
            }
        }
    }

    /// Sends the response of a command.
    #[allow(clippy::too_many_arguments, reason = "the parts of a response")]
    fn complete(
        &mut self,
        cx: &mut Context<'_>,
        qpn: Qpn,
        slot: u16,
        tag: CommandTag,
        status: Status,
        data: Option<(Sge, RemoteAddr)>,
        piece: Option<Piece>,
    ) {
        if let Some(queue) = self.queues.get_mut(&qpn)
            && let Role::Io { queue: entries, .. } = &mut queue.role
        {
            let response: Response = entries.complete(tag, status);
            self.push(cx, qpn, Outgoing::Respond { slot, data, response, piece });
        } else if let Some(piece) = piece {
            self.admission.free(piece);
        }
    }

    /// Drops a command whose queue is gone, and which the storage does not have.
    fn forget(&mut self, index: usize) {
        match self.commands.try_remove(index).map(|command| command.stage) {
            Some(Stage::Ready(grant)) => self.admission.end(grant),
            // Its queue has the staging.
            Some(Stage::Fetch(place)) => self.admission.leave(place),
            Some(Stage::Admission | Stage::Storage(_)) | None => {}
        }
    }

    /// Stops a command whose queue ends. Returns whether it is in the storage, which [`stored`](Self::stored) ends; one that waits
    /// for admission has been withdrawn.
    pub(super) fn stop(&mut self, index: usize) -> bool {
        let Some(command) = self.commands.get_mut(index) else { return false };
        command.queue = None;
        match command.stage {
            Stage::Storage(_) => {
                let namespace = command.work.namespace(command.namespace.storage);
                self.storage.cancel(namespace, index as u64);
                return true;
            }
            Stage::Admission | Stage::Fetch(_) => self.forget(index),
            Stage::Ready(_) => {
                self.continued.retain(|other| *other != index);
                self.forget(index);
            }
        }
        false
    }

    /// Compares the two halves of a piece.
    fn is_equal(&self, memory: &Memory, len: usize) -> bool {
        let (mut ours, mut theirs) = ([0; COMPARE], [0; COMPARE]);
        (0..len).step_by(COMPARE).all(|at| {
            let part = (len - at).min(COMPARE);
            let (ours, theirs) = (&mut ours[..part], &mut theirs[..part]);
            memory.read(at, theirs).is_ok() && memory.read(len + at, ours).is_ok() && ours == theirs
        })
    }
}

/// The ranges of Dataset Management in bytes.
fn ranges(
    data: Option<&Memory>,
    count: u32,
    view: NamespaceView,
    scratch: &mut [u8],
) -> Result<Vec<(u64, u64)>, StatusCode> {
    let memory = data.ok_or(StatusCode::Internal)?;
    let bytes = scratch.get_mut(..memory.len()).ok_or(StatusCode::Internal)?;
    memory.read(0, bytes).map_err(|_| StatusCode::Internal)?;
    let ranges = dsm_ranges(bytes, count, view)?;
    Ok(ranges.map(|range| (range.byte_offset(view.block_shift), range.byte_len(view.block_shift))).collect())
}
