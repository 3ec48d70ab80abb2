//! The send queue of a queue pair.

use crate::time::Instant;
use crate::transport::seq::Seq;
use crate::transport::work::OpTraits;
use crate::transport::{SendFlags, SendOp, Sge};
use crate::wire::Psn;

/// Packets of messages of several packets, modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::transport) struct LongTotals {
    /// Of SENDs and WRITEs.
    pub(in crate::transport) sends: u32,
    /// Responses to READs.
    pub(in crate::transport) reads: u32,
}

impl LongTotals {
    #[inline]
    pub(in crate::transport) fn add(&mut self, is_read: bool, packets: u32) {
        let total = if is_read { &mut self.reads } else { &mut self.sends };
        *total = total.wrapping_add(packets);
    }
}

/// A posted send queue work request.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct SendWqe {
    pub(in crate::transport) wr_id: u64,
    pub(in crate::transport) op: SendOp,
    /// Its first PSN, and the number of PSNs that it takes (a READ: those of its responses).
    pub(in crate::transport) first: Seq,
    pub(in crate::transport) packets: u32,
    /// Those of long messages that were posted before it.
    pub(in crate::transport) long_before: LongTotals,
    /// Its send sequence number, counting messages from 1, modulo 2^24. A local operation has that of the message
    /// before.
    pub(in crate::transport) ssn: u32,
    /// Total length of its buffers, in bytes.
    pub(in crate::transport) length: u32,
    pub(in crate::transport) num_sge: u8,
    pub(in crate::transport) flags: SendFlags,
    /// Properties of `op`.
    pub(in crate::transport) traits: OpTraits,
    /// The data is inline in the queue, not in buffers.
    pub(in crate::transport) inline: bool,
    /// When it was posted.
    pub(in crate::transport) posted: Instant,
}

impl SendWqe {
    const EMPTY: SendWqe = SendWqe {
        wr_id: 0,
        op: SendOp::Send { imm: None },
        first: Seq::start(Psn::new(0)),
        packets: 0,
        long_before: LongTotals { sends: 0, reads: 0 },
        ssn: 0,
        length: 0,
        num_sge: 0,
        flags: SendFlags::empty(),
        traits: OpTraits::empty(),
        inline: false,
        posted: Instant::ZERO,
    };

    /// Whether `op` has all these properties.
    #[inline]
    pub(in crate::transport) fn is(&self, traits: OpTraits) -> bool {
        self.traits.contains(traits)
    }

    /// One past its last PSN.
    #[inline]
    pub(in crate::transport) fn end(&self) -> Seq {
        self.first.add(self.packets)
    }

    /// Offset of the message's packet `psn`, in bytes.
    #[inline]
    pub(in crate::transport) fn offset_of(&self, psn: Seq, mtu: u32) -> u32 {
        // At most 2^31, as the PSN is within the message.
        (psn.since(self.first) as u32).saturating_mul(mtu).min(self.length)
    }
}

/// A ring of work requests and their buffers, numbered consecutively; `head` is the oldest one not completed.
#[derive(Debug)]
pub(in crate::transport) struct SendQueue {
    wqes: Box<[SendWqe]>,
    sges: Box<[Sge]>,
    /// Inline data, `max_inline` bytes for each work request.
    inline: Box<[u8]>,
    max_sge: u32,
    max_inline: u32,
    max: u32,
    head: u64,
    tail: u64,
}

impl SendQueue {
    pub(in crate::transport) fn new(max: u32, max_sge: u32, max_inline: u32) -> SendQueue {
        let slots = if max == 0 { 0 } else { max.next_power_of_two() };
        SendQueue {
            wqes: vec![SendWqe::EMPTY; slots as usize].into(),
            sges: vec![Sge::default(); slots as usize * max_sge as usize].into(),
            inline: vec![0; slots as usize * max_inline as usize].into(),
            max_sge,
            max_inline,
            max,
            head: 0,
            tail: 0,
        }
    }

    /// Bytes allocated for a queue of this size.
    pub(in crate::transport) fn footprint(max: u32, max_sge: u32, max_inline: u32) -> usize {
        let slots = if max == 0 { 0 } else { max.next_power_of_two() } as usize;
        slots * (size_of::<SendWqe>() + max_sge as usize * size_of::<Sge>() + max_inline as usize)
    }

    #[inline]
    fn index(&self, number: u64) -> usize {
        number as usize & self.wqes.len().wrapping_sub(1)
    }

    #[inline]
    pub(in crate::transport) fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    #[inline]
    pub(in crate::transport) fn is_full(&self) -> bool {
        self.tail - self.head >= u64::from(self.max)
    }

    /// Work requests that fit now.
    #[inline]
    pub(in crate::transport) fn room(&self) -> u32 {
        u64::from(self.max).saturating_sub(self.tail - self.head) as u32
    }

    #[inline]
    pub(in crate::transport) fn max_sge(&self) -> usize {
        self.max_sge as usize
    }

    #[inline]
    pub(in crate::transport) fn max_inline(&self) -> usize {
        self.max_inline as usize
    }

    /// Adds a work request. Call only when not full, and with at most `max_sge` buffers and `max_inline` bytes.
    #[inline]
    pub(in crate::transport) fn push(&mut self, wqe: SendWqe, sges: &[Sge], inline: &[u8]) {
        let index = self.index(self.tail);
        let first = index * self.max_sge as usize;
        let bytes = index * self.max_inline as usize;
        if let Some(place) = self.sges.get_mut(first..first + sges.len())
            && let Some(data) = self.inline.get_mut(bytes..bytes + inline.len())
            && let Some(slot) = self.wqes.get_mut(index)
        {
            place.copy_from_slice(sges);
            // compliance.md [RC-REQ-INLINE]: Inline data is copied when posted.
            data.copy_from_slice(inline);
            *slot = wqe;
            self.tail += 1;
        }
    }

    /// The number of the oldest one not completed.
    #[inline]
    pub(in crate::transport) fn head(&self) -> u64 {
        self.head
    }

    /// The number of the next one to be posted.
    #[inline]
    pub(in crate::transport) fn tail(&self) -> u64 {
        self.tail
    }

    /// The work request of this number, unless completed or not yet posted.
    #[inline]
    pub(in crate::transport) fn get(&self, number: u64) -> Option<&SendWqe> {
        if number < self.head || number >= self.tail {
            return None;
        }
        self.wqes.get(self.index(number))
    }

    /// The work request of this number and its buffers, unless completed or not yet posted.
    #[inline(always)]
    pub(in crate::transport) fn get_with_sges(&self, number: u64) -> Option<(&SendWqe, &[Sge])> {
        let wqe = self.get(number)?;
        let first = self.index(number) * self.max_sge as usize;
        Some((wqe, self.sges.get(first..first + usize::from(wqe.num_sge))?))
    }

    /// Buffers of the work request with this number.
    #[inline]
    pub(in crate::transport) fn sges(&self, number: u64) -> &[Sge] {
        self.get_with_sges(number).map_or(&[], |(_, sges)| sges)
    }

    /// Inline data of the work request with this number.
    #[inline]
    pub(in crate::transport) fn inline_data(&self, number: u64) -> &[u8] {
        let length = self.get(number).map_or(0, |wqe| wqe.length as usize);
        let first = self.index(number) * self.max_inline as usize;
        self.inline.get(first..first + length).unwrap_or_default()
    }

    /// The oldest one not completed.
    #[inline]
    pub(in crate::transport) fn front(&self) -> Option<&SendWqe> {
        self.get(self.head)
    }

    /// Removes the oldest one.
    #[inline]
    pub(in crate::transport) fn pop(&mut self) -> Option<&SendWqe> {
        if self.is_empty() {
            return None;
        }
        let index = self.index(self.head);
        self.head += 1;
        self.wqes.get(index)
    }

    pub(in crate::transport) fn clear(&mut self) {
        self.head = self.tail;
    }
}
