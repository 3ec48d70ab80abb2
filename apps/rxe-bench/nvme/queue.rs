//! One I/O queue: a constant number of outstanding commands, each with a slot of memory for its data.

use rxe_nvmf::host::{CompletionError, IoCommand, IoCommands};
use rxe_nvmf::wire::{Cqe, HostBuffer, Sqe, StatusCode};
use rxe_proto::mem::{AccessError, Memory};
use rxe_proto::{Duration, Instant};

use super::blocks::{self, Mismatch};
use super::places::{Kind, Places};

/// Number of a slot that no command has.
const NO_SLOT: u16 = u16::MAX;

/// What the commands of a queue have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Namespace.
    pub nsid: u32,
    /// log2 of the bytes of a block.
    pub block_shift: u8,
    /// Bytes of an I/O: a multiple of the block size, at most 65536 blocks.
    pub size: u32,
    /// Places of I/Os in the namespace.
    pub places: u64,
    /// Outstanding commands of a queue.
    pub depth: u16,
    /// Outstanding commands of all queues.
    pub lanes: u64,
    /// The data of a write are in the capsule.
    pub in_capsule: bool,
    /// Blocks can be checked, and are.
    pub verify: bool,
}

impl Layout {
    /// Blocks of an I/O.
    pub const fn blocks(&self) -> u32 {
        self.size >> self.block_shift
    }

    /// First block of a place.
    const fn first_block(&self, place: u64) -> u64 {
        place * self.blocks() as u64
    }
}

/// A command to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Submission {
    /// Slot of its data. If they are in the capsule, [`Queue::sent`] reports that it was sent.
    pub slot: u16,
    /// The entry.
    pub sqe: Sqe,
    /// The slot's data follow in the capsule.
    pub in_capsule: bool,
}

/// The result of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// The I/O that succeeded, and its latency.
    pub io: Option<(Kind, Duration)>,
    /// The command failed.
    pub failed: Option<StatusCode>,
    /// Blocks that were checked.
    pub checked: u32,
}

/// Why a queue cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueueError {
    /// The target breaks the protocol.
    #[error("the target breaks the protocol: {0}")]
    Protocol(#[from] CompletionError),
    /// A read has returned wrong data.
    #[error("the data of block {block} are wrong: {mismatch}")]
    Mismatch {
        /// The block's number.
        block: u64,
        /// The first difference.
        mismatch: Mismatch,
    },
    /// The memory of the bench is lost.
    #[error("memory of the bench: {0}")]
    Memory(#[from] AccessError),
}

/// The purpose of a slot's command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// There is none.
    None,
    Io(Kind),
    /// Reads back what was written.
    Check,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    work: Work,
    place: u64,
    /// Sequence number of the last write.
    sequence: u64,
    started: Instant,
    /// The capsule with the slot's data is not acknowledged yet, so the memory is in use.
    sending: bool,
    /// What was written is to be read back.
    unchecked: bool,
}

/// The commands of an I/O queue.
#[derive(Debug)]
pub struct Queue {
    layout: Layout,
    /// The first slot, as the target names it.
    remote: HostBuffer,
    /// The first slot in our memory.
    offset: usize,
    commands: IoCommands,
    places: Places,
    slots: Vec<Slot>,
    /// The slot of each outstanding command, by tag.
    by_tag: Vec<u16>,
    free: Vec<u16>,
    /// Slots whose data are to be read back.
    unchecked: Vec<u16>,
    /// A bit for each place of this queue that was written, with `verify`.
    written: Vec<u64>,
    /// A block.
    scratch: Vec<u8>,
    sequence: u64,
    refills: bool,
}

impl Queue {
    /// Queue number `qid`, whose first slot is at `offset` of the memory and which the target names `remote`.
    pub fn new(qid: u16, layout: Layout, places: Places, offset: usize, remote: HostBuffer) -> Queue {
        let depth = usize::from(layout.depth);
        let slot =
            Slot { work: Work::None, place: 0, sequence: 0, started: Instant::ZERO, sending: false, unchecked: false };
        let bits = if layout.verify { (layout.places / layout.lanes.max(1) + 1) as usize * depth } else { 0 };
        Queue {
            layout,
            remote,
            offset,
            commands: IoCommands::new(qid, layout.depth),
            places,
            slots: vec![slot; depth],
            by_tag: vec![NO_SLOT; depth],
            free: (0..layout.depth).rev().collect(),
            unchecked: Vec::with_capacity(depth),
            written: vec![0; bits.div_ceil(64)],
            scratch: vec![0; if layout.verify { 1 << layout.block_shift } else { 0 }],
            sequence: 0,
            refills: true,
        }
    }

    /// Number of slots in use: outstanding commands, and writes that are to be read back.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Starts no further I/Os. What was written is still read back.
    pub fn stop(&mut self) {
        self.refills = false;
    }

    /// The next command, if there is a slot for it. `memory` has the slots.
    ///
    /// # Errors
    /// [`QueueError::Memory`].
    #[inline]
    pub fn submit(&mut self, now: Instant, memory: &Memory) -> Result<Option<Submission>, QueueError> {
        let (number, check) = match self.unchecked.pop() {
            Some(number) => (number, true),
            None if self.refills => match self.free.pop() {
                Some(number) => (number, false),
                None => return Ok(None),
            },
            None => return Ok(None),
        };
        let Some(slot) = self.slots.get_mut(usize::from(number)) else { return Ok(None) };
        slot.work = if check {
            Work::Check
        } else {
            let (kind, place) = self.places.next(number);
            slot.place = place;
            Work::Io(kind)
        };
        let writes = slot.work == Work::Io(Kind::Write);
        let in_capsule = self.layout.in_capsule && writes;
        (slot.started, slot.sending, slot.unchecked) = (now, in_capsule, false);
        if self.layout.verify && writes {
            self.sequence += 1;
            slot.sequence = self.sequence;
        }
        let slot = *slot;
        if self.layout.verify {
            self.prepare(number, slot, memory)?;
        }
        let Layout { nsid, size, .. } = self.layout;
        let offset = u64::from(number) * u64::from(size);
        let data = HostBuffer { addr: self.remote.addr + offset, len: size, ..self.remote };
        let (lba, blocks) = (self.layout.first_block(slot.place), self.layout.blocks());
        let command = if in_capsule {
            IoCommand::write_in_capsule(nsid, lba, blocks, size)
        } else if writes {
            IoCommand::write(nsid, lba, blocks, data)
        } else {
            IoCommand::read(nsid, lba, blocks, data)
        };
        // There are as many tags as slots, and a tag is free before its slot is.
        let Some(sqe) = self.commands.submit(&command) else { return Ok(None) };
        if let Some(of_tag) = self.by_tag.get_mut(tag_of(sqe.command_id())) {
            *of_tag = number;
        }
        Ok(Some(Submission { slot: number, sqe, in_capsule }))
    }

    /// A response arrived. `invalidated` is the key that it invalidated; `memory` has the slots.
    ///
    /// # Errors
    /// The queue cannot go on.
    #[inline]
    pub fn completed(
        &mut self,
        cqe: &Cqe,
        invalidated: Option<u32>,
        now: Instant,
        memory: &Memory,
    ) -> Result<Completion, QueueError> {
        let completed = self.commands.complete(cqe, invalidated)?;
        let number = self.by_tag.get(usize::from(completed.tag)).copied().unwrap_or(NO_SLOT);
        let unknown = QueueError::Protocol(CompletionError::UnknownCommand(cqe.command_id()));
        let slot = self.slots.get_mut(usize::from(number)).ok_or(unknown)?;
        let (Slot { work, started, .. }, verify) = (*slot, self.layout.verify);
        slot.work = Work::None;
        slot.unchecked = verify && work == Work::Io(Kind::Write) && completed.status.is_success();
        let slot = *slot;
        let mut completion = Completion::default();
        if completed.status.is_success() {
            if let Work::Io(kind) = work {
                completion.io = Some((kind, now.saturating_since(started)));
            }
            if verify {
                completion.checked = self.verify(number, slot, work, memory)?;
            }
        } else {
            completion.failed = Some(completed.status.code);
            if verify && work == Work::Io(Kind::Write) {
                // Some of its blocks may have been written.
                self.set_written(number, slot.place, false);
            }
        }
        if !slot.sending {
            self.release(number, slot);
        }
        Ok(completion)
    }

    /// The capsule with the data of a slot is acknowledged.
    #[inline]
    pub fn sent(&mut self, number: u16) {
        let Some(slot) = self.slots.get_mut(usize::from(number)) else { return };
        if std::mem::take(&mut slot.sending) && slot.work == Work::None {
            let slot = *slot;
            self.release(number, slot);
        }
    }

    #[inline]
    fn release(&mut self, number: u16, slot: Slot) {
        if slot.unchecked {
            self.unchecked.push(number);
        } else {
            self.free.push(number);
        }
    }

    /// Fills the slot of a write, and clears that of a read: data of an earlier command are not to be taken for those of this one.
    fn prepare(&mut self, number: u16, slot: Slot, memory: &Memory) -> Result<(), QueueError> {
        let Layout { size, block_shift, .. } = self.layout;
        let start = self.offset + usize::from(number) * size as usize;
        if slot.work != Work::Io(Kind::Write) {
            return Ok(memory.fill(start, size as usize, 0)?);
        }
        let first = self.layout.first_block(slot.place);
        for nth in 0..u64::from(self.layout.blocks()) {
            blocks::write(&mut self.scratch, first + nth, slot.sequence);
            memory.write(start + ((nth as usize) << block_shift), &self.scratch)?;
        }
        Ok(())
    }

    /// Checks what a successful command has read, and notes what it has written. Returns the number of checked blocks.
    fn verify(&mut self, number: u16, slot: Slot, work: Work, memory: &Memory) -> Result<u32, QueueError> {
        let sequence = match work {
            Work::Io(Kind::Write) => {
                self.set_written(number, slot.place, true);
                return Ok(0);
            }
            Work::Check => Some(slot.sequence),
            Work::Io(Kind::Read) if self.is_written(number, slot.place) => None,
            _ => return Ok(0),
        };
        let Layout { size, block_shift, .. } = self.layout;
        let first = self.layout.first_block(slot.place);
        let start = self.offset + usize::from(number) * size as usize;
        for nth in 0..u64::from(self.layout.blocks()) {
            memory.read(start + ((nth as usize) << block_shift), &mut self.scratch)?;
            let block = first + nth;
            blocks::check(&self.scratch, block, sequence)
                .map_err(|mismatch| QueueError::Mismatch { block, mismatch })?;
        }
        Ok(self.layout.blocks())
    }

    /// Word and bit of a place that slot `number` uses.
    fn bit(&self, number: u16, place: u64) -> (usize, u64) {
        let index = place / self.layout.lanes.max(1) * u64::from(self.layout.depth) + u64::from(number);
        ((index / 64) as usize, 1 << (index % 64))
    }

    fn is_written(&self, number: u16, place: u64) -> bool {
        let (word, bit) = self.bit(number, place);
        self.written.get(word).is_some_and(|word| word & bit != 0)
    }

    fn set_written(&mut self, number: u16, place: u64, written: bool) {
        let (word, bit) = self.bit(number, place);
        if let Some(word) = self.written.get_mut(word) {
            *word = if written { *word | bit } else { *word & !bit };
        }
    }
}

/// The number of a command, by which `IoCommands` reports its completion.
const fn tag_of(command_id: u16) -> usize {
    (command_id & 0xFFF) as usize
}
