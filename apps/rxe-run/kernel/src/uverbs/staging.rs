//! Accesses to the program's memory that are made together: short writes here, parts of a long message in [`whole`](super::whole).
//!
//! Each access to the program's memory is a system call. A short write to a page that took another write of the same burst of packets
//! is kept, and written with the others by a single call before the program, a peer or the engine can see that it is missing.
//!
//! A write that is kept has succeeded: its page took a write after the packet had arrived. When the page is gone at the end of the
//! burst, the program has unmapped it in between, and would have lost the bytes of an immediate write as well.
//!
//! All writes are made in the order of their packets.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::uio::RemoteIoVec;
use rxe_proto::mem::Part;

use super::whole::{Ahead, Run};
use crate::user;

/// Bytes of an atomic operation, which needs the present value.
const ATOMIC: usize = 8;

/// The longest write that is kept.
const SHORT: usize = 512;

/// Pages are at least as long.
const PAGE: u64 = 4096;

/// Pages that are remembered.
const MAX_PAGES: usize = 16;

/// Writes that are kept.
const MAX_WRITES: usize = 256;

/// Writes to the memory of a program.
#[derive(Debug, Default)]
pub(super) struct Staging(Mutex<Staged>);

#[derive(Debug, Default)]
struct Staged {
    /// Numbers of the pages that took a write since the burst began.
    pages: Vec<u64>,
    /// Destinations of the writes that are kept.
    ranges: Vec<RemoteIoVec>,
    /// Their bytes.
    bytes: Vec<u8>,
    /// Parts of a long message that arrives. Only one of this and `bytes` is not empty.
    run: Run,
    /// Parts of a long message that is sent.
    ahead: Ahead,
    /// Identifications of memory that were given.
    ids: u64,
}

impl Staging {
    fn lock(&self) -> MutexGuard<'_, Staged> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies `src` to address `to` of the program, now or at the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// As for [`user::write`].
    pub(super) fn write(&self, to: u64, src: &[u8]) -> Result<(), Errno> {
        let Some(end) = to.checked_add(src.len() as u64).filter(|&end| end > to) else { return user::write(to, src) };
        let (first, last) = (to / PAGE, (end - 1) / PAGE);
        let mut staged = self.lock();
        let staged = &mut *staged;
        staged.ahead.clear();
        staged.run.write();
        let is_short = src.len() <= SHORT;
        if is_short && first == last && staged.pages.contains(&first) {
            staged.keep(to, src);
            return Ok(());
        }
        // Writes stay in order: a program may poll a flag that a peer writes behind its data.
        staged.write();
        user::write(to, src)?;
        if is_short {
            if staged.pages.len() + 2 > MAX_PAGES {
                staged.pages.clear();
            }
            staged.pages.extend(first..=last);
        }
        Ok(())
    }

    /// Copies `src`, a part of a message, to address `to` in memory `id`, now or together with the next parts.
    ///
    /// # Errors
    /// As for [`user::write`], of this part or of one before it.
    pub(super) fn write_part(&self, id: u64, to: u64, src: &[u8], part: Part) -> Result<(), Errno> {
        if part.is_first && part.is_last {
            return self.write(to, src);
        }
        let mut staged = self.lock();
        staged.ahead.clear();
        staged.write();
        staged.run.write_part(id, to, src, part)
    }

    /// Copies `dst.len()` bytes at address `from`, and perhaps reads some of the `behind` bytes that the same memory has behind them.
    ///
    /// # Errors
    /// As for [`user::read`].
    pub(super) fn read(&self, from: u64, dst: &mut [u8], behind: usize) -> Result<(), Errno> {
        let mut staged = self.lock();
        staged.write();
        staged.run.write();
        if dst.len() <= ATOMIC { user::read(from, dst) } else { staged.ahead.read(from, dst, behind) }
    }

    /// Identification for memory.
    pub(super) fn new_id(&self) -> u64 {
        let mut staged = self.lock();
        staged.ids += 1;
        staged.ids
    }

    /// Memory `id` is not used any more.
    pub(super) fn forget(&self, id: u64) {
        self.lock().run.forget(id);
    }

    /// Writes what is kept, and ends the burst: before anything is transmitted, and before the program sees completions.
    /// What was read ahead is forgotten: the program may change it as soon as its message has completed.
    pub(super) fn flush(&self) {
        let mut staged = self.lock();
        staged.write();
        staged.run.write();
        staged.ahead.clear();
        staged.pages.clear();
    }
}

impl Staged {
    fn keep(&mut self, to: u64, src: &[u8]) {
        self.bytes.extend_from_slice(src);
        match self.ranges.last_mut() {
            Some(last) if last.base as u64 + last.len as u64 == to => last.len += src.len(),
            _ => self.ranges.push(RemoteIoVec { base: to as usize, len: src.len() }),
        }
        if self.ranges.len() >= MAX_WRITES {
            self.write();
        }
    }

    fn write(&mut self) {
        if self.ranges.is_empty() {
            return;
        }
        let written = user::write_ranges(&self.ranges, &self.bytes);
        if written < self.bytes.len() {
            self.write_each(written);
        }
        self.ranges.clear();
        self.bytes.clear();
    }

    /// Writes what follows the first `written` bytes, as far as its pages still exist.
    #[cold]
    fn write_each(&self, written: usize) {
        let mut at = 0;
        for range in &self.ranges {
            let end = at + range.len;
            if end > written
                && let Some(bytes) = self.bytes.get(at..end)
            {
                // An error means that the program has unmapped the page since it took another write.
                let _ = user::write(range.base as u64, bytes);
            }
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that begin with a page.
    fn page_in(bytes: &mut [u8]) -> u64 {
        (bytes.as_mut_ptr() as u64).next_multiple_of(PAGE)
    }

    fn read<const N: usize>(from: u64) -> [u8; N] {
        let mut bytes = [0; N];
        user::read(from, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_first_write_to_a_page_is_immediate_and_the_next_ones_leave_at_the_flush() {
        let mut memory = vec![0; 4 * PAGE as usize];
        let page = page_in(&mut memory);
        let staging = Staging::default();
        for (offset, text) in [(0, b"ab"), (2, b"cd"), (100, b"ef"), (101, b"gh")] {
            assert_eq!(staging.write(page + offset, text), Ok(()));
        }
        assert_eq!(read(page), *b"ab\0\0");
        staging.flush();
        assert_eq!((read(page), read(page + 100)), (*b"abcd", *b"egh"));
        staging.write(page, b"x").unwrap();
        assert_eq!(read(page), *b"x", "a new burst");
    }

    #[test]
    fn writes_stay_in_order() {
        let mut memory = vec![0; 4 * PAGE as usize];
        let page = page_in(&mut memory);
        let staging = Staging::default();
        let long = vec![2; SHORT + 1];
        staging.write(page, &[0]).unwrap();
        staging.write(page + 8, &[1; 8]).unwrap();
        staging.write(page, &long).unwrap();
        assert_eq!(read(page + 8), [2; 8]);
        staging.write(page + 8, &[3; 8]).unwrap();
        let mut found = [0; 8];
        staging.read(page + 8, &mut found, 0).unwrap();
        assert_eq!((found, read(page + 8)), ([3; 8], [3; 8]));
        // To another page, whose write is immediate.
        staging.write(page + 16, &[6; 8]).unwrap();
        assert_eq!(read(page + 16), [2; 8]);
        staging.write(page + PAGE, &[7; 8]).unwrap();
        assert_eq!((read(page + 16), read(page + PAGE)), ([6; 8], [7; 8]));
        // Across the end of a page.
        staging.write(page + PAGE - 4, &[4; 4]).unwrap();
        staging.write(page + PAGE - 4, &[5; 8]).unwrap();
        assert_eq!(read(page + PAGE - 4), [5; 8]);
    }

    #[test]
    fn more_pages_and_writes_than_are_kept() {
        let mut memory = vec![0; 64 * PAGE as usize];
        let page = page_in(&mut memory);
        let staging = Staging::default();
        for round in 1..=2 {
            for number in 0..60 {
                for slot in 0..10 {
                    staging.write(page + number * PAGE + slot * 8, &[round; 4]).unwrap();
                }
            }
        }
        for slot in 0..600 {
            staging.write(page + slot * 6, &[3; 4]).unwrap();
        }
        staging.flush();
        assert!((1..60).all(|number| read(page + number * PAGE + 72) == [2; 4]));
        assert!((0..600).all(|slot| read(page + slot * 6) == [3; 4]));
    }

    #[test]
    fn a_write_to_an_address_that_is_not_mapped_is_an_error() {
        let staging = Staging::default();
        for _ in 0..2 {
            assert_eq!(staging.write(8, b"text"), Err(Errno::EFAULT));
            assert!(staging.write(u64::MAX - 1, b"text").is_err());
            assert_eq!(staging.write(8, b""), Ok(()));
        }
    }
}
