//! Executes I/O commands.

use rxe_nvmf::io::{CommandTag, IoRequest, dsm_ranges};
use rxe_nvmf::subsystem::NamespaceView;
use rxe_nvmf::wire::{DataLocation, NSID_ALL, Response, Status, StatusCode};
use rxe_proto::verbs::{Memory, Qpn, RemoteAddr, Sge};
use rxe_service::Context;
use rxe_storage::{Completion, Full, StorageError, Submitted};

use super::command::{Command, Lent, Stage, remote};
use super::instance::{FailedCommand, Nvmf};
use super::namespaces::SubsystemView;
use super::queue::{Outgoing, Queue, Role};
use super::staging::{NoRoom, Piece, Purpose};
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
        let Some(Queue { role: Role::Io { fence, .. }, .. }) = self.queues.get(&qpn) else { return };
        let fence = *fence;
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
            stage: Stage::Room,
        };
        let index = self.commands.insert(command);
        if let Some(place) = self.queues.get_mut(&qpn).and_then(|queue| queue.command_mut(slot)) {
            *place = Some(index);
        }
        self.stage_data(cx, index);
    }

    fn capsule(&self, qpn: Qpn, slot: u16, offset: u32, len: u32) -> Option<Memory> {
        let queue = self.queues.get(&qpn)?;
        queue.receives().piece(slot, rxe_nvmf::wire::SQE_LEN + offset as usize, len as usize)
    }

    /// Takes staging, and brings the data of the command there.
    pub(super) fn stage_data(&mut self, cx: &mut Context<'_>, index: usize) {
        let Some(command) = self.commands.get_mut(index) else { return };
        let Some(qpn) = command.queue else { return self.forget(index) };
        let room = command.work.room(command.in_place.is_some());
        let piece = if room > 0 {
            let Some(client) = self.queues.get(&qpn).map(|queue| queue.client.ip()) else { return self.forget(index) };
            let purpose = if matches!(command.stage, Stage::Share) { Purpose::Waited } else { Purpose::Io };
            match self.staging.allocate(client, room as usize, purpose) {
                Ok(piece) => Some(piece),
                Err(NoRoom::Pool) => {
                    command.stage = Stage::Room;
                    return self.waiting_for_room.push_back(index);
                }
                Err(NoRoom::Share) => {
                    command.stage = Stage::Share;
                    self.metrics.share_waits.inc();
                    return self.staging.wait(client, index, room as usize);
                }
            }
        } else {
            None
        };
        let (from, slot) = (command.from, command.slot);
        command.from = DataLocation::None;
        match (from, piece) {
            (DataLocation::Host(buffer), Some(piece)) => {
                command.stage = Stage::Fetch;
                let to = self.staging.sge(&piece, buffer.len.min(room));
                let fetch = Outgoing::Fetch { command: index, piece, to, from: remote(buffer) };
                self.push(cx, qpn, fetch);
            }
            (DataLocation::Capsule { offset, len }, Some(piece)) => {
                let to = piece.memory().clone();
                command.stage = Stage::Ready(Some(piece));
                let copied = self.capsule(qpn, slot, offset, len.min(room)).is_some_and(|from| self.copy(&from, &to));
                if copied { self.execute(cx, index) } else { self.finish(cx, index, Err(StorageError::Memory)) }
            }
            (_, piece) => {
                command.stage = Stage::Ready(piece);
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
        match self.commands.get_mut(index) {
            Some(command) if matches!(command.stage, Stage::Fetch) => {
                command.stage = Stage::Ready(Some(piece));
                self.execute(cx, index);
            }
            _ => self.staging.free(piece),
        }
    }

    /// Submits operations to the storage until one is not complete at once.
    pub(super) fn execute(&mut self, cx: &mut Context<'_>, index: usize) {
        loop {
            let Some(command) = self.commands.get_mut(index) else { return };
            if command.queue.is_none() {
                return self.forget(index);
            }
            let Stage::Ready(piece) = &mut command.stage else { return };
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
                Some(Ok(Ok(Submitted::Done(Ok(()))))) => command.work.advance(),
                Some(Ok(Ok(Submitted::Done(Err(error))))) | Some(Err(error)) => {
                    return self.finish(cx, index, Err(error));
                }
                Some(Ok(Ok(Submitted::Pending))) => {
                    command.stage = Stage::Storage(Lent::new(piece.take()));
                    return;
                }
                Some(Ok(Err(Full))) => {
                    self.waiting_for_storage.push_back(index);
                    return;
                }
            }
        }
    }

    /// The storage has completed an operation of a command.
    pub(super) fn stored(&mut self, cx: &mut Context<'_>, completion: &Completion) {
        let index = completion.token as usize;
        let Some(command) = self.commands.get_mut(index) else { return };
        match std::mem::replace(&mut command.stage, Stage::Room) {
            Stage::Storage(lent) => command.stage = Stage::Ready(lent.returned(completion)),
            stage => {
                command.stage = stage;
                return;
            }
        }
        if command.queue.is_none() {
            let fence = command.fence;
            self.forget(index);
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
            (Ok(()), Work::Compare { len, .. }, Stage::Ready(Some(piece)))
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
        let piece = match stage {
            Stage::Ready(piece) => piece,
            // Not reached: a command that finishes has what it lent.
            Stage::Room | Stage::Share | Stage::Fetch | Stage::Storage(_) => None,
        };
        let Some(qpn) = queue else {
            if let Some(piece) = piece {
                self.staging.free(piece);
            }
            return;
        };
        if let Some(place) = self.queues.get_mut(&qpn).and_then(|queue| queue.command_mut(slot)) {
            *place = None;
        }
        self.namespaces.record(namespace, &work, cx.now().saturating_since(arrived).as_nanos() as u64);
        match (work, piece) {
            (Work::Read { len, to, .. }, Some(piece)) if status == Status::SUCCESS => {
                self.count_read(qpn, len);
                let data = (self.staging.sge(&piece, len), remote(to));
                self.complete(cx, qpn, slot, tag, status, Some(data), Some(piece));
            }
            (work, piece) => {
                if let (Work::Write { len, .. }, true) = (&work, status == Status::SUCCESS) {
                    self.count_write(qpn, *len);
                }
                if let Some(piece) = piece {
                    self.staging.free(piece);
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
            self.staging.free(piece);
        }
    }

    /// Drops a command whose queue is gone.
    fn forget(&mut self, index: usize) {
        if let Some(Command { stage: Stage::Ready(Some(piece)), .. }) = self.commands.try_remove(index) {
            self.staging.free(piece);
        }
    }

    /// Stops a command whose queue ends. Returns whether it is in the storage, which [`stored`](Self::stored) ends; one that waits
    /// for room ends when there is some.
    pub(super) fn stop(&mut self, index: usize) -> bool {
        let Some(command) = self.commands.get_mut(index) else { return false };
        command.queue = None;
        match command.stage {
            Stage::Storage(_) => {
                let namespace = command.work.namespace(command.namespace.storage);
                self.storage.cancel(namespace, index as u64);
                return true;
            }
            Stage::Fetch => self.forget(index),
            Stage::Room | Stage::Share | Stage::Ready(_) => {}
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
