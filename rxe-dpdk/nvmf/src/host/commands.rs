//! Commands of an I/O queue: ids, entries, completions.

use crate::wire::{Cqe, DatasetManagement, HostBuffer, IoOpcode, RwFields, SglDescriptor, Sqe, Status};

/// Bits of a command id that number the outstanding command; the others count how often the number was used.
const TAG_BITS: u32 = 12;
const TAG_MASK: u16 = (1 << TAG_BITS) - 1;

/// An I/O command to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoCommand {
    /// Opcode.
    pub opcode: IoOpcode,
    /// Namespace.
    pub nsid: u32,
    /// Dwords 10 to 15.
    pub cdws: [u32; 6],
    /// The host's memory with the data, or for them.
    pub data: SglDescriptor,
}

impl IoCommand {
    fn transfer(opcode: IoOpcode, nsid: u32, slba: u64, blocks: u32, data: SglDescriptor) -> IoCommand {
        let cdws = RwFields { slba, blocks, fua: false, deallocate: false }.to_cdws();
        IoCommand { opcode, nsid, cdws, data }
    }

    /// Reads `blocks` blocks, 1 to 65536, into memory of their length.
    #[must_use]
    pub fn read(nsid: u32, slba: u64, blocks: u32, to: HostBuffer) -> IoCommand {
        IoCommand::transfer(IoOpcode::Read, nsid, slba, blocks, SglDescriptor::Keyed(to))
    }

    /// Writes `blocks` blocks, 1 to 65536, from memory of their length.
    #[must_use]
    pub fn write(nsid: u32, slba: u64, blocks: u32, from: HostBuffer) -> IoCommand {
        IoCommand::transfer(IoOpcode::Write, nsid, slba, blocks, SglDescriptor::Keyed(from))
    }

    /// Writes `blocks` blocks, 1 to 65536, whose `len` bytes follow the entry in the capsule.
    #[must_use]
    pub fn write_in_capsule(nsid: u32, slba: u64, blocks: u32, len: u32) -> IoCommand {
        IoCommand::transfer(IoOpcode::Write, nsid, slba, blocks, SglDescriptor::Capsule { offset: 0, len })
    }

    /// Replaces `blocks` blocks, 1 to 65536, with zeroes.
    #[must_use]
    pub fn write_zeroes(nsid: u32, slba: u64, blocks: u32) -> IoCommand {
        IoCommand::transfer(IoOpcode::WriteZeroes, nsid, slba, blocks, SglDescriptor::NO_DATA)
    }

    /// Makes written data durable.
    #[must_use]
    pub const fn flush(nsid: u32) -> IoCommand {
        IoCommand { opcode: IoOpcode::Flush, nsid, cdws: [0; 6], data: SglDescriptor::NO_DATA }
    }

    /// Deallocates `ranges` ranges, 1 to 256, which are in `data`.
    #[must_use]
    pub fn deallocate(nsid: u32, ranges: u32, data: SglDescriptor) -> IoCommand {
        let cdws = DatasetManagement { ranges, deallocate: true }.to_cdws();
        IoCommand { opcode: IoOpcode::DatasetManagement, nsid, cdws, data }
    }
}

/// A command number.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Counts the uses, modulo 16.
    generation: u8,
    outstanding: bool,
    /// The key that the response may invalidate.
    key: Option<u32>,
}

/// The outstanding commands of an I/O queue.
#[derive(Debug)]
pub struct IoCommands {
    qid: u16,
    slots: Vec<Slot>,
    free: Vec<u16>,
}

/// A completed command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// The command's number, as in its [`Sqe::command_id`] modulo 4096.
    pub tag: u16,
    /// Status of the response.
    pub status: Status,
}

/// A completion that breaks the protocol: the host must disconnect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CompletionError {
    /// The command id is not that of an outstanding command.
    #[error("completion of command {0:#06x}, which is not outstanding")]
    UnknownCommand(u16),
    /// The completion names another queue.
    #[error("completion of queue {actual} on queue {expected}")]
    WrongQueue {
        /// This queue.
        expected: u16,
        /// The queue of the completion.
        actual: u16,
    },
    /// The response invalidated a key that the command did not ask to invalidate.
    #[error("response invalidated key {0:#x}")]
    WrongInvalidate(u32),
}

impl IoCommands {
    /// A queue with `depth` outstanding commands at most: the queue's size minus 1, at most 4096.
    #[must_use]
    pub fn new(qid: u16, depth: u16) -> IoCommands {
        let depth = depth.min(TAG_MASK + 1);
        IoCommands { qid, slots: vec![Slot::default(); usize::from(depth)], free: (0..depth).rev().collect() }
    }

    /// Number of outstanding commands.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The entry of a command; `None` when as many as possible are outstanding.
    pub fn submit(&mut self, command: &IoCommand) -> Option<Sqe> {
        let tag = self.free.pop()?;
        let slot = self.slots.get_mut(usize::from(tag))?;
        slot.generation = (slot.generation + 1) & 0xF;
        slot.outstanding = true;
        slot.key = command.data.invalidate_key();
        let command_id = u16::from(slot.generation) << TAG_BITS | tag;
        let sqe = Sqe::new(command.opcode.code(), command_id);
        Some(sqe.with_nsid(command.nsid).with_sgl(command.data).with_cdws(command.cdws))
    }

    /// Checks a completion. `invalidated` is the key that the response invalidated.
    ///
    /// # Errors
    /// The host must disconnect.
    pub fn complete(&mut self, cqe: &Cqe, invalidated: Option<u32>) -> Result<Completed, CompletionError> {
        let command_id = cqe.command_id();
        if cqe.sq_id() != self.qid {
            return Err(CompletionError::WrongQueue { expected: self.qid, actual: cqe.sq_id() });
        }
        let tag = command_id & TAG_MASK;
        let slot = self
            .slots
            .get_mut(usize::from(tag))
            .filter(|slot| slot.outstanding && u16::from(slot.generation) == command_id >> TAG_BITS)
            .ok_or(CompletionError::UnknownCommand(command_id))?;
        if let Some(key) = invalidated
            && slot.key != Some(key)
        {
            return Err(CompletionError::WrongInvalidate(key));
        }
        slot.outstanding = false;
        self.free.push(tag);
        Ok(Completed { tag, status: cqe.status() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFER: HostBuffer = HostBuffer { addr: 0, len: 4096, rkey: 9, invalidate: true };

    fn completion(sqe: &Sqe) -> Cqe {
        Cqe::new(sqe.command_id(), Status::SUCCESS).with_queue(1, 1)
    }

    #[test]
    fn numbers_are_used_again_with_another_generation() {
        let mut commands = IoCommands::new(1, 2);
        let read = IoCommand::read(1, 0, 8, BUFFER);
        let first = commands.submit(&read).unwrap();
        let second = commands.submit(&read).unwrap();
        assert_eq!((commands.submit(&read), commands.outstanding()), (None, 2));
        let completed = commands.complete(&completion(&first), Some(9)).unwrap();
        assert_eq!(completed, Completed { tag: first.command_id() & TAG_MASK, status: Status::SUCCESS });
        let third = commands.submit(&read).unwrap();
        assert_eq!(third.command_id() & TAG_MASK, first.command_id() & TAG_MASK);
        assert_eq!(
            commands.complete(&completion(&first), None),
            Err(CompletionError::UnknownCommand(first.command_id()))
        );
        commands.complete(&completion(&third), None).unwrap();
        commands.complete(&completion(&second), None).unwrap();
        assert_eq!(commands.outstanding(), 0);
    }

    #[test]
    fn completions_for_other_queues_and_with_foreign_keys_are_errors() {
        let mut commands = IoCommands::new(1, 2);
        let plain = HostBuffer { invalidate: false, ..BUFFER };
        let sqe = commands.submit(&IoCommand::write(1, 0, 8, plain)).unwrap();
        let elsewhere = completion(&sqe).with_queue(2, 0);
        let wrong = CompletionError::WrongQueue { expected: 1, actual: 2 };
        assert_eq!(commands.complete(&elsewhere, None), Err(wrong));
        assert_eq!(commands.complete(&completion(&sqe), Some(9)), Err(CompletionError::WrongInvalidate(9)));
        let unknown = Cqe::new(0x0FFF, Status::SUCCESS).with_queue(1, 0);
        assert_eq!(commands.complete(&unknown, None), Err(CompletionError::UnknownCommand(0x0FFF)));
        assert!(commands.complete(&completion(&sqe), None).is_ok());
    }
}
