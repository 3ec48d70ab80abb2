//! Parts of a long message, one per packet, that are read from the program's memory or written to it together.
//!
//! A message of several packets is in one piece in the memory of either end. A system call for each packet would cost several times
//! as much as the copy.

use nix::errno::Errno;
use rxe_proto::mem::Part;

use crate::user;

/// Bytes that one call reads or writes besides the part in hand.
const MAX_BYTES: usize = 60 << 10;

/// Messages whose error is remembered.
const MAX_FAILED: usize = 64;

/// Bytes that were read with those before them.
///
/// Nothing tells how long a message is of which a part is read. But parts follow each other, and messages are like the last ones: as
/// much is read ahead as both of the last two runs of parts had, and beyond that as much again as there was of this run.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Address of the first byte.
    from: u64,
    /// Number of these bytes.
    len: usize,
    /// They are the first ones of these.
    bytes: Vec<u8>,
    /// Bytes of this run of parts, and where the next part begins.
    run: usize,
    next: u64,
    /// Bytes of the last two runs.
    last: [usize; 2],
}

impl Ahead {
    /// Forgets the bytes.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.end_run();
    }

    fn end_run(&mut self) {
        if self.run > 0 {
            self.last = [self.run, self.last[0]];
            self.run = 0;
        }
    }

    /// Copies `dst.len()` bytes at address `from`, and perhaps reads some of the `behind` bytes behind them.
    ///
    /// # Errors
    /// As for [`user::read`].
    pub(super) fn read(&mut self, from: u64, dst: &mut [u8], behind: usize) -> Result<(), Errno> {
        if from != self.next {
            self.end_run();
        }
        let begins = self.run == 0;
        self.run += dst.len();
        self.next = from + dst.len() as u64;
        if let Some(found) = self.find(from, dst.len()) {
            dst.copy_from_slice(found);
            return Ok(());
        }
        self.len = 0;
        let [one, other] = self.last;
        let more = if begins { one.min(other).saturating_sub(dst.len()) } else { self.run };
        let more = more.min(MAX_BYTES).min(behind);
        if more == 0 {
            return user::read(from, dst);
        }
        self.bytes.resize(MAX_BYTES, 0);
        let ahead = self.bytes.get_mut(..more).unwrap_or_default();
        self.len = user::read_ahead(from, dst, ahead)?;
        self.from = self.next;
        Ok(())
    }

    fn find(&self, from: u64, len: usize) -> Option<&[u8]> {
        let at = usize::try_from(from.checked_sub(self.from)?).ok()?;
        self.bytes.get(..self.len)?.get(at..at.checked_add(len)?)
    }
}

/// Parts of a message that have arrived and are written with the next one.
///
/// An error of theirs is that of the next part, or of a later one: it fails the same message, as the last part is always written at
/// once. When they have to be written before the next part arrives, the error is remembered until it does.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Identification of the memory.
    id: u64,
    /// Address of the first byte.
    to: u64,
    bytes: Vec<u8>,
    /// Where messages go on that cannot be written: memory and address. With [`MAX_FAILED`] of them nothing is kept.
    failed: Vec<(u64, u64)>,
}

impl Run {
    /// Address at which the next part begins.
    fn end(&self) -> u64 {
        self.to + self.bytes.len() as u64
    }

    /// Copies `src` to address `to` in memory `id`, now or with a later part.
    ///
    /// # Errors
    /// As for [`user::write`], of this part or of one before it.
    pub(super) fn write_part(&mut self, id: u64, to: u64, src: &[u8], part: Part) -> Result<(), Errno> {
        if part.is_first || (id, to) != (self.id, self.end()) || self.bytes.len() + src.len() > MAX_BYTES {
            self.write();
        }
        if !self.failed.is_empty() {
            self.check(id, to, src.len(), part)?;
        }
        if part.is_last || self.failed.len() >= MAX_FAILED {
            let written = user::write_both(to - self.bytes.len() as u64, &self.bytes, src);
            self.bytes.clear();
            return written;
        }
        if self.bytes.is_empty() {
            (self.id, self.to) = (id, to);
        }
        self.bytes.extend_from_slice(src);
        Ok(())
    }

    /// Writes what has arrived.
    pub(super) fn write(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        if user::write(self.to, &self.bytes).is_err() {
            self.note_failed();
        }
        self.bytes.clear();
    }

    #[cold]
    fn note_failed(&mut self) {
        let next = (self.id, self.end());
        if !self.failed.contains(&next) {
            self.failed.push(next);
        }
    }

    /// Returns the error of earlier parts of the message that goes on at `to`, once. What is known of the end of this part, of `len`
    /// bytes, is of another message, which did not go on.
    #[cold]
    fn check(&mut self, id: u64, to: u64, len: usize, part: Part) -> Result<(), Errno> {
        self.failed.retain(|&failed| failed != (id, to + len as u64));
        let at = self.failed.iter().position(|&failed| failed == (id, to));
        match at.filter(|_| !part.is_first) {
            Some(at) => {
                self.failed.swap_remove(at);
                Err(Errno::EFAULT)
            }
            None => Ok(()),
        }
    }

    /// Memory `id` is not used any more.
    pub(super) fn forget(&mut self, id: u64) {
        self.failed.retain(|&(of, _)| of != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Part = Part { is_first: true, is_last: false };
    const MIDDLE: Part = Part { is_first: false, is_last: false };
    const LAST: Part = Part { is_first: false, is_last: true };

    fn read<const N: usize>(from: u64) -> [u8; N] {
        let mut bytes = [0; N];
        user::read(from, &mut bytes).unwrap();
        bytes
    }

    /// Reads in parts of 1000 bytes. Returns how many calls that took, as what is read ahead changes with each of them.
    fn read_in_parts(ahead: &mut Ahead, message: &[u8]) -> usize {
        let (mut part, mut calls) = ([0; 1000], 0);
        for at in (0..message.len()).step_by(1000) {
            let from = message.as_ptr() as u64 + at as u64;
            let before = (ahead.from, ahead.len);
            ahead.read(from, &mut part, message.len() - at - 1000).unwrap();
            calls += usize::from(before != (ahead.from, ahead.len) || ahead.len == 0);
            assert_eq!(part, message[at..at + 1000]);
        }
        calls
    }

    #[test]
    fn what_follows_a_part_is_read_with_it() {
        let message: Vec<u8> = (0..50_000_u32).map(|at| (at / 100) as u8).collect();
        let mut ahead = Ahead::default();
        let mut calls = |len: usize| {
            ahead.clear();
            read_in_parts(&mut ahead, &message[..len])
        };
        // After two messages of a length there is one call for the next, and for a shorter one.
        assert_eq!([50_000, 50_000, 50_000, 1000, 50_000, 1000].map(&mut calls), [6, 6, 1, 1, 6, 1]);
    }

    #[test]
    fn what_was_read_ahead_is_read_again_after_it_was_cleared() {
        let mut message = vec![1_u8; 4000];
        let (from, mut ahead, mut part) = (message.as_mut_ptr() as u64, Ahead::default(), [0; 1000]);
        for at in [0, 1000] {
            ahead.read(from + at, &mut part, 3000 - at as usize).unwrap();
        }
        user::write(from, &[2; 4000]).unwrap();
        ahead.read(from + 2000, &mut part, 1000).unwrap();
        assert_eq!(part, [1; 1000], "read ahead");
        ahead.clear();
        ahead.read(from + 3000, &mut part, 0).unwrap();
        assert_eq!(part, [2; 1000]);
        assert_eq!(ahead.read(8, &mut part, 1000), Err(Errno::EFAULT));
    }

    #[test]
    fn parts_are_written_with_the_last_one() {
        let mut memory = vec![0_u8; 200_000];
        let (to, mut run) = (memory.as_mut_ptr() as u64, Run::default());
        run.write_part(1, to, b"ab", FIRST).unwrap();
        run.write_part(1, to + 2, b"cd", MIDDLE).unwrap();
        assert_eq!(read(to), [0; 4]);
        run.write_part(1, to + 4, b"ef", LAST).unwrap();
        assert_eq!(read(to), *b"abcdef\0\0");
        // Parts of two messages in turns, and more than are kept.
        run.write_part(1, to, b"AB", FIRST).unwrap();
        run.write_part(1, to + 2, b"yz", FIRST).unwrap();
        assert_eq!(read(to), *b"ABcdef");
        run.write_part(1, to + 2, b"CD", LAST).unwrap();
        assert_eq!(read(to), *b"ABCDef");
        for at in 0..100 {
            let part = Part { is_first: at == 0, is_last: at == 99 };
            run.write_part(1, to + at * 2000, &[at as u8; 2000], part).unwrap();
        }
        assert!((0..100).all(|at| read(to + at * 2000) == [at as u8; 2000]));
    }

    #[test]
    fn an_error_is_that_of_a_later_part() {
        let mut run = Run::default();
        run.write_part(1, 8, b"ab", FIRST).unwrap();
        assert_eq!(run.write_part(1, 10, b"cd", LAST), Err(Errno::EFAULT));
        // Written for another reason before the next part comes, of two messages.
        for id in [1, 2, 3] {
            run.write_part(id, 8, b"ab", FIRST).unwrap();
        }
        run.write();
        run.forget(3);
        for id in [2, 1] {
            assert_eq!(run.write_part(id, 10, b"cd", MIDDLE), Err(Errno::EFAULT));
        }
        assert_eq!(run.failed, []);
        let mut memory = [0_u8; 4];
        let to = memory.as_mut_ptr() as u64;
        assert_eq!(run.write_part(1, to, b"ab", FIRST), Ok(()));
        assert_eq!(run.write_part(1, to + 2, b"cd", LAST), Ok(()));
        assert_eq!(std::hint::black_box(memory), *b"abcd");
    }

    #[test]
    fn an_error_of_a_message_that_did_not_go_on_is_not_that_of_another() {
        let (mut run, mut memory) = (Run::default(), [0_u8; 4]);
        let to = memory.as_mut_ptr() as u64;
        run.failed = vec![(1, to + 2), (1, to + 4), (1, to)];
        assert_eq!(run.write_part(1, to, b"ab", FIRST), Ok(()));
        assert_eq!(run.write_part(1, to + 2, b"cd", LAST), Ok(()));
        assert_eq!(run.failed, [(1, to)]);
        assert_eq!(std::hint::black_box(memory), *b"abcd");
    }

    #[test]
    fn no_more_errors_are_remembered_than_there_is_room_for() {
        let mut run = Run::default();
        let at = |number: usize| 8 + 8 * number as u64;
        for number in 0..MAX_FAILED {
            run.write_part(1, at(number), b"ab", FIRST).unwrap();
        }
        run.write();
        assert_eq!(run.failed.len(), MAX_FAILED);
        assert_eq!(run.write_part(1, at(MAX_FAILED), b"ab", FIRST), Err(Errno::EFAULT));
        for number in 0..MAX_FAILED {
            assert_eq!(run.write_part(1, at(number) + 2, b"cd", MIDDLE), Err(Errno::EFAULT));
        }
        assert_eq!(run.failed, []);
    }
}
