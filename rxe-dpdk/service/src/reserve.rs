//! Memory that clients have given back: zeroed in slices, then kept for the next ones.
//!
//! A client must not find the bytes of another one, and no packet may wait while megabytes are zeroed. So memory is zeroed a
//! [`SLICE`] in each turn of the worker's loop, after it was given back, and is lent again only when all of it is zero. What is
//! kept beyond the bound goes back to the allocator, a piece in each turn.

use std::collections::{BTreeMap, VecDeque};

use rxe_proto::mem::{AllocError, Allocator, Memory};

/// Bytes zeroed in one turn.
const SLICE: usize = 64 << 10;
/// Sizes are multiples of this, so that clients with similar wants use each other's memory.
const GRAIN: usize = 4096;
/// A client may get memory that is this many times as long as what it wants.
const WASTE: usize = 2;

/// Unused memory of one worker.
#[derive(Debug)]
pub(crate) struct Reserve {
    /// Zeroed memory by length.
    clean: BTreeMap<usize, Vec<Memory>>,
    /// Memory with the bytes of its last client, and how many of the first one are zero.
    dirty: VecDeque<Memory>,
    zeroed: usize,
    /// Bytes of both.
    kept: usize,
    /// Most bytes to keep.
    keep: usize,
}

impl Reserve {
    /// Keeps at most `keep` unused bytes.
    pub(crate) fn new(keep: usize) -> Reserve {
        Reserve { clean: BTreeMap::new(), dirty: VecDeque::new(), zeroed: 0, kept: 0, keep }
    }

    /// The length of the memory that a client gets that wants `len` bytes, if it is made for it.
    pub(crate) fn rounded(len: usize) -> usize {
        len.max(1).next_multiple_of(GRAIN)
    }

    /// At least `len` zeroed bytes.
    ///
    /// # Errors
    /// Neither the allocator nor the reserve has them.
    pub(crate) fn take(&mut self, len: usize, allocator: &dyn Allocator) -> Result<Memory, AllocError> {
        let len = Reserve::rounded(len);
        let fit = self.clean.range(len..=len.saturating_mul(WASTE)).next().map(|(&size, _)| size);
        if let Some(memory) = fit.and_then(|size| self.pop_clean(size)) {
            return Ok(memory);
        }
        allocator.allocate(len).or_else(|error| {
            // What is kept may be all that there is.
            let size = self.clean.range(len..).next().map(|(&size, _)| size);
            if let Some(memory) = size.and_then(|size| self.pop_clean(size)) {
                return Ok(memory);
            }
            while let Some(size) = self.clean.keys().next_back().copied() {
                drop(self.pop_clean(size));
                if let Ok(memory) = allocator.allocate(len) {
                    return Ok(memory);
                }
            }
            Err(error)
        })
    }

    fn pop_clean(&mut self, size: usize) -> Option<Memory> {
        let list = self.clean.get_mut(&size)?;
        let memory = list.pop()?;
        if list.is_empty() {
            self.clean.remove(&size);
        }
        self.kept -= memory.len();
        Some(memory)
    }

    /// Takes memory back. No key may open it any more.
    pub(crate) fn put(&mut self, memory: Memory) {
        self.kept += memory.len();
        self.dirty.push_back(memory);
    }

    /// Zeroes a slice, or gives a piece back to the allocator. Returns whether there was something to do.
    #[inline]
    pub(crate) fn poll(&mut self) -> bool {
        // A branch per turn where nothing was given back.
        (!self.dirty.is_empty() || self.kept > self.keep) && self.clean_up()
    }

    #[cold]
    fn clean_up(&mut self) -> bool {
        if let Some(memory) = self.dirty.front() {
            if self.kept.saturating_sub(memory.len()) >= self.keep {
                // It is freed soon, and the allocator gives out zeroed memory.
                self.kept -= memory.len();
                self.zeroed = 0;
                self.dirty.pop_front();
                return true;
            }
            let len = SLICE.min(memory.len() - self.zeroed);
            // The range is inside the memory.
            let _ = memory.fill(self.zeroed, len, 0);
            self.zeroed += len;
            if self.zeroed == memory.len() {
                self.zeroed = 0;
                if let Some(memory) = self.dirty.pop_front() {
                    self.clean.entry(memory.len()).or_default().push(memory);
                }
            }
            return true;
        }
        match self.clean.keys().next_back().copied() {
            Some(size) => self.pop_clean(size).is_some(),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rxe_proto::mem::HeapAllocator;

    use super::*;

    /// Has this many pieces.
    struct Pieces(AtomicUsize);

    impl Allocator for Pieces {
        fn allocate(&self, len: usize) -> Result<Memory, AllocError> {
            let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            left.map_err(|_| AllocError { len })?;
            HeapAllocator.allocate(len)
        }
    }

    fn has_only_zeros(memory: &Memory) -> bool {
        let mut bytes = vec![1; memory.len()];
        memory.read(0, &mut bytes).expect("inside");
        bytes.iter().all(|byte| *byte == 0)
    }

    fn clean(reserve: &mut Reserve) -> usize {
        std::iter::repeat_with(|| reserve.poll()).take_while(|more| *more).count()
    }

    #[test]
    fn memory_is_zeroed_in_slices_before_it_is_lent_again() {
        let pieces = Pieces(AtomicUsize::new(1));
        let mut reserve = Reserve::new(1 << 20);
        let memory = reserve.take(3 * SLICE + 1, &pieces).expect("a piece");
        assert_eq!(memory.len(), 3 * SLICE + GRAIN);
        memory.fill(0, memory.len(), 7).expect("inside");
        reserve.put(memory);
        assert!(reserve.take(3 * SLICE, &pieces).is_err(), "its bytes are another client's");
        assert!(reserve.poll() && reserve.take(3 * SLICE, &pieces).is_err(), "one slice is zero");
        assert_eq!(clean(&mut reserve), 3);
        assert!(
            reserve.take(SLICE, &Pieces(AtomicUsize::new(1))).is_ok_and(|memory| memory.len() == SLICE),
            "no waste"
        );
        let again = reserve.take(2 * SLICE, &pieces).expect("the same memory");
        assert!(again.len() == 3 * SLICE + GRAIN && has_only_zeros(&again));
        assert_eq!(reserve.kept, 0);
    }

    #[test]
    fn no_more_is_kept_than_the_bound() {
        let pieces = Pieces(AtomicUsize::new(4));
        let mut reserve = Reserve::new(2 * SLICE);
        let lent: Vec<Memory> = (0..4).map(|_| reserve.take(SLICE, &pieces).expect("a piece")).collect();
        lent.into_iter().for_each(|memory| reserve.put(memory));
        assert_eq!((clean(&mut reserve), reserve.kept), (4, 2 * SLICE));
        assert!((0..2).all(|_| reserve.take(SLICE, &pieces).is_ok_and(|memory| has_only_zeros(&memory))));
        assert!(reserve.take(SLICE, &pieces).is_err());
    }

    #[test]
    fn kept_memory_makes_room_where_there_is_no_other() {
        let mut reserve = Reserve::new(1 << 20);
        let memory = reserve.take(8 * GRAIN, &Pieces(AtomicUsize::new(1))).expect("a piece");
        reserve.put(memory);
        clean(&mut reserve);
        // Too long, but all that there is.
        let none = Pieces(AtomicUsize::new(0));
        assert!(reserve.take(GRAIN, &none).is_ok_and(|memory| memory.len() == 8 * GRAIN));
        assert!(reserve.take(GRAIN, &none).is_err());
    }
}
