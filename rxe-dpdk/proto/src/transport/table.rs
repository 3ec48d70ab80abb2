//! From queue pair number to queue pair.

use std::collections::VecDeque;
use std::ops::Range;

use super::Qpn;
use super::qp::Qp;

/// A slab of queue pairs. The low 16 bits of a number are the slot, so a look-up is one load and a comparison of the
/// whole number, which also refuses numbers of former users of the slot.
#[derive(Debug)]
pub(super) struct QpTable {
    slots: Vec<Slot>,
    /// Slots to use again, the longest unused first: so a generation lasts.
    free: VecDeque<u16>,
    worker: u8,
    live: u32,
    max: u32,
}

#[derive(Debug, Default)]
struct Slot {
    qp: Option<Box<Qp>>,
    generation: u8,
}

impl QpTable {
    pub(super) fn new(worker: u8, max: u32) -> QpTable {
        // Numbers 0 and 1 are the management queue pairs.
        // [QP-NUMBER-MANAGEMENT]
        let first = if worker == 0 { 2 } else { 0 };
        let slots = (0..first).map(|_| Slot::default()).collect();
        QpTable { slots, free: VecDeque::new(), worker, live: 0, max }
    }

    /// The number of the next queue pair; `None` when the table is full.
    pub(super) fn vacancy(&mut self) -> Option<Qpn> {
        if self.live >= self.max {
            return None;
        }
        let slot = match self.free.front() {
            Some(&slot) => slot,
            None => {
                let slot = u16::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot::default());
                self.free.push_back(slot);
                slot
            }
        };
        let generation = self.slots.get(usize::from(slot))?.generation;
        Some(Qpn::from_parts(self.worker, generation, slot))
    }

    /// Puts a queue pair where [`vacancy`](Self::vacancy) said.
    pub(super) fn insert(&mut self, qp: Box<Qp>) {
        let number = qp.common.qpn;
        if self.free.front() == Some(&number.slot()) {
            self.free.pop_front();
        }
        if let Some(slot) = self.slots.get_mut(usize::from(number.slot())) {
            slot.qp = Some(qp);
            self.live += 1;
        }
    }

    pub(super) fn remove(&mut self, qpn: Qpn) -> Option<Box<Qp>> {
        self.get_mut(qpn)?;
        let slot = self.slots.get_mut(usize::from(qpn.slot()))?;
        let qp = slot.qp.take();
        // [QP-NUMBER-REUSE]
        slot.generation = slot.generation.wrapping_add(1) & 0xF;
        self.free.push_back(qpn.slot());
        self.live -= 1;
        qp
    }

    #[inline]
    pub(super) fn get(&self, qpn: Qpn) -> Option<&Qp> {
        let qp = self.slots.get(usize::from(qpn.slot()))?.qp.as_deref()?;
        (qp.common.qpn == qpn).then_some(qp)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        let qp = self.slots.get_mut(usize::from(qpn.slot()))?.qp.as_deref_mut()?;
        (qp.common.qpn == qpn).then_some(qp)
    }

    /// Whoever has the slot of a number, which may be another one. Nothing of it is read.
    #[inline]
    pub(super) fn get_slot(&self, qpn: Qpn) -> Option<&Qp> {
        self.slots.get(usize::from(qpn.slot()))?.qp.as_deref()
    }

    /// Whoever is in the slot now.
    #[inline]
    pub(super) fn in_slot(&mut self, slot: u16) -> Option<&mut Qp> {
        self.slots.get_mut(usize::from(slot))?.qp.as_deref_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.slots.iter().filter_map(|slot| slot.qp.as_deref())
    }

    /// Those in these slots.
    pub(super) fn iter_slots(&self, slots: Range<usize>) -> impl Iterator<Item = &Qp> {
        let slots = slots.start.min(self.slots.len())..slots.end.min(self.slots.len());
        self.slots.get(slots).unwrap_or_default().iter().filter_map(|slot| slot.qp.as_deref())
    }

    /// Queue pairs in the table.
    pub(super) fn len(&self) -> usize {
        self.live as usize
    }

    /// One past the highest slot ever used.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }
}
