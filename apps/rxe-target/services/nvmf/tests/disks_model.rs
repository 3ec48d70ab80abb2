//! What hosts may find on a disk: the values that each block can have, as the standard allows.
//!
//! A block has one of the values that were written to it. A value is gone when a later write is complete that began after the
//! one of the value had ended. A write that failed, or was not answered, may have been carried out or not, until it is known to
//! have ended. After a power failure only writes count as later ones that were flushed, or durable by themselves.

use std::collections::BTreeSet;

/// A moment: the number of an event of the test.
pub type Moment = u64;

/// The value of a block with parts of several values, after a power failure.
pub const TORN: u64 = u64::MAX;

/// A write to one block.
#[derive(Clone, Copy, Debug)]
struct Write {
    value: u64,
    began: Moment,
    /// When it had ended for certain, successful or not.
    ended: Moment,
    /// It was answered as successful.
    is_complete: bool,
    /// It is on stable storage.
    is_durable: bool,
    /// A flush failed meanwhile: no later flush writes it.
    is_lost: bool,
}

/// The writes to one block, with that of its first contents.
#[derive(Clone, Debug)]
struct Block(Vec<Write>);

/// A disk of blocks.
pub struct DiskModel {
    blocks: Vec<Block>,
}

impl Block {
    fn new(value: u64) -> Block {
        Block(vec![Write { value, began: 0, ended: 1, is_complete: true, is_durable: true, is_lost: false }])
    }

    /// The writes whose value may be there at `end`, where those are later ones that `counts` and that were complete at `start`.
    fn candidates(&self, start: Moment, end: Moment, counts: impl Fn(&Write) -> bool) -> Vec<Write> {
        let is_gone = |write: &&Write| {
            self.0
                .iter()
                .any(|later| later.is_complete && counts(later) && later.began >= write.ended && later.ended <= start)
        };
        let begun = self.0.iter().filter(|write| write.began <= end);
        begun.filter(|write| !is_gone(write)).copied().collect()
    }

    /// Whether `found` is allowed; `None` is a block with parts of several values.
    fn allows(candidates: &[Write], found: Option<u64>, is_overlapped: bool) -> bool {
        match found {
            Some(value) => candidates.iter().any(|write| write.value == value),
            None => candidates.len() > 1 || is_overlapped || candidates.iter().any(|write| write.value == TORN),
        }
    }
}

impl DiskModel {
    /// A disk of zeroes.
    pub fn new(blocks: u64) -> DiskModel {
        DiskModel { blocks: vec![Block::new(0); blocks as usize] }
    }

    /// Number of blocks.
    pub fn len(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Blocks of zeroes come at the end.
    pub fn grow(&mut self, blocks: u64) {
        self.blocks.resize(blocks as usize, Block::new(0));
    }

    /// A write of one value to blocks begins.
    pub fn begin(&mut self, (first, count): (u64, u64), value: u64, now: Moment) {
        for block in &mut self.blocks[first as usize..(first + count) as usize] {
            let (is_complete, is_durable, is_lost) = (false, false, false);
            block.0.push(Write { value, began: now, ended: Moment::MAX, is_complete, is_durable, is_lost });
        }
    }

    /// The writes of a value that began then have ended, successful or not.
    pub fn end(&mut self, (first, count): (u64, u64), began: Moment, now: Moment, is_complete: bool, is_durable: bool) {
        for block in &mut self.blocks[first as usize..(first + count) as usize] {
            for write in block.0.iter_mut().filter(|write| write.began == began) {
                (write.ended, write.is_complete) = (now, is_complete);
                write.is_durable |= is_durable;
            }
        }
    }

    /// A flush that began then was successful.
    pub fn flushed(&mut self, began: Moment) {
        for write in self.blocks.iter_mut().flat_map(|block| &mut block.0) {
            write.is_durable |= write.is_complete && write.ended <= began && !write.is_lost;
        }
    }

    /// A flush failed.
    pub fn flush_failed(&mut self) {
        for write in self.blocks.iter_mut().flat_map(|block| &mut block.0) {
            write.is_lost |= !write.is_durable;
        }
    }

    /// Checks what a read between two moments found.
    pub fn check(&self, block: u64, found: Option<u64>, start: Moment, end: Moment) {
        let block_of = &self.blocks[block as usize];
        let candidates = block_of.candidates(start, end, |_| true);
        let is_overlapped = candidates.iter().any(|write| write.ended > start);
        assert!(
            Block::allows(&candidates, found, is_overlapped),
            "block {block} has {found:?}, not one of {block_of:?}"
        );
    }

    /// Whether a block can be damaged: a write to it may have failed in the middle.
    pub fn is_undefined(&self, block: u64, start: Moment, end: Moment) -> bool {
        let candidates = self.blocks[block as usize].candidates(start, end, |_| true);
        candidates.iter().any(|write| !write.is_complete)
    }

    /// Whether a value may be that of a block, and whether another one may.
    pub fn can_be(&self, block: u64, value: u64, start: Moment, end: Moment) -> (bool, bool) {
        let candidates = self.blocks[block as usize].candidates(start, end, |_| true);
        let values: BTreeSet<u64> = candidates.iter().map(|write| write.value).collect();
        let is_torn = candidates.len() > 1;
        (values.contains(&value), is_torn || values.iter().any(|other| *other != value))
    }

    /// Checks what is left of a block after a power failure, and takes it as the contents from now on. `None` is one with parts
    /// of several values, which has no value any more until it is written.
    pub fn after_power_failure(&mut self, block: u64, found: Option<u64>) {
        let block_of = &mut self.blocks[block as usize];
        let candidates = block_of.candidates(Moment::MAX, Moment::MAX, |write| write.is_durable);
        assert!(
            Block::allows(&candidates, found, false),
            "after a power failure block {block} has {found:?}, not one of {candidates:?}"
        );
        *block_of = Block::new(found.unwrap_or(TORN));
    }
}
