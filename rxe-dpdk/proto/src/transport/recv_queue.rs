//! The receive queue of a queue pair.

use super::{PostError, RecvWr, Sge, sge};

/// A posted receive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecvWqe {
    pub(super) wr_id: u64,
    /// Total length of its buffers, in bytes.
    pub(super) length: u32,
    num_sge: u32,
}

/// A ring of posted receives and their buffers. The oldest one stays in the ring while a message is written to it and
/// is removed when the message is complete.
#[derive(Debug)]
pub(super) struct RecvQueue {
    wqes: Box<[RecvWqe]>,
    sges: Box<[Sge]>,
    max_sge: u32,
    max: u32,
    /// Receives removed and added so far, modulo 2^32.
    head: u32,
    tail: u32,
}

impl RecvQueue {
    pub(super) fn new(max: u32, max_sge: u32) -> RecvQueue {
        let slots = if max == 0 { 0 } else { max.next_power_of_two() };
        RecvQueue {
            wqes: vec![RecvWqe::default(); slots as usize].into(),
            sges: vec![Sge::default(); slots as usize * max_sge as usize].into(),
            max_sge,
            max,
            head: 0,
            tail: 0,
        }
    }

    /// Bytes allocated for a queue of this size.
    pub(super) fn footprint(max: u32, max_sge: u32) -> usize {
        let slots = if max == 0 { 0 } else { max.next_power_of_two() } as usize;
        slots * (size_of::<RecvWqe>() + max_sge as usize * size_of::<Sge>())
    }

    #[inline]
    fn index(&self, count: u32) -> usize {
        count as usize & self.wqes.len().wrapping_sub(1)
    }

    pub(super) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.len() >= self.max {
            return Err(PostError::QueueFull);
        }
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostError::TooManySges);
        }
        let length = sge::total_len(wr.sges).ok_or(PostError::MessageTooLong)?;
        let index = self.index(self.tail);
        let first = index * self.max_sge as usize;
        match (&mut self.sges[first..first + wr.sges.len()], wr.sges) {
            // The common case, without the call that copies any number.
            ([place], [sge]) => *place = *sge,
            (places, sges) => places.copy_from_slice(sges),
        }
        self.wqes[index] = RecvWqe { wr_id: wr.wr_id, length, num_sge: wr.sges.len() as u32 };
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Changes the size to `max`, which is no less than the receives in the queue.
    pub(super) fn resize(&mut self, max: u32) {
        let mut resized = RecvQueue::new(max, self.max_sge);
        while resized.take_from(self) {}
        *self = resized;
    }

    /// Moves the oldest receive of `other` into this queue; false when `other` is empty. Call only when this queue has
    /// room for one more, and for all of its buffers.
    #[inline]
    pub(super) fn take_from(&mut self, other: &mut RecvQueue) -> bool {
        let Some((wqe, sges)) = other.front() else { return false };
        let index = self.index(self.tail);
        let first = index * self.max_sge as usize;
        let Some(place) = self.sges.get_mut(first..first + sges.len()) else { return false };
        place.copy_from_slice(sges);
        self.wqes[index] = *wqe;
        self.tail = self.tail.wrapping_add(1);
        other.pop();
        true
    }

    /// The oldest receive and its buffers.
    #[inline]
    pub(super) fn front(&self) -> Option<(&RecvWqe, &[Sge])> {
        if self.is_empty() {
            return None;
        }
        let index = self.index(self.head);
        let wqe = self.wqes.get(index)?;
        let first = index * self.max_sge as usize;
        Some((wqe, self.sges.get(first..first + wqe.num_sge as usize)?))
    }

    /// Removes the oldest receive.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<RecvWqe> {
        if self.is_empty() {
            return None;
        }
        let wqe = *self.wqes.get(self.index(self.head))?;
        self.head = self.head.wrapping_add(1);
        Some(wqe)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Receives that can be posted now.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        self.max.saturating_sub(self.len())
    }

    /// Receives removed so far, modulo 2^32.
    pub(super) fn removed(&self) -> u32 {
        self.head
    }

    pub(super) fn clear(&mut self) {
        self.head = self.tail;
    }
}
