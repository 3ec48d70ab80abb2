//! The queue pairs of an engine, by number.

use std::ops::Range;

use crate::time::Instant;

use super::Qpn;
use super::numbers::Numbers;
use super::qp::Qp;

/// Slots of a table.
const SLOTS: usize = 1 << 16;

/// The queue pairs by number. The low 16 bits of a number are the slot, so a look-up is one load and a comparison of
/// the whole number, which also rejects numbers of former queue pairs in the slot. Slots are chosen at random.
#[derive(Debug)]
pub(super) struct QpTable {
    slots: Vec<Option<Box<Qp>>>,
    numbers: Numbers,
    /// The slots in use, for iterating over all of them in parts: each keeps its index in this list.
    list: Vec<Option<u16>>,
    /// By slot: its index in `list`.
    places: Vec<u16>,
    /// Free indices of `list`.
    vacant: Vec<u16>,
    live: u32,
    max: u32,
}

impl QpTable {
    /// A table for up to `max` queue pairs, which is less than [`SLOTS`]. `seed` seeds their numbers.
    pub(super) fn new(worker: u8, max: u32, seed: [u8; 32]) -> QpTable {
        QpTable {
            slots: std::iter::repeat_with(|| None).take(SLOTS).collect(),
            numbers: Numbers::new(worker, seed),
            list: Vec::new(),
            places: vec![0; SLOTS],
            vacant: Vec::new(),
            live: 0,
            max,
        }
    }

    /// Allocates a number for the next queue pair; `None` when the table is full.
    pub(super) fn allocate(&mut self, now: Instant) -> Option<Qpn> {
        if self.live >= self.max {
            return None;
        }
        let slots = &self.slots;
        self.numbers.draw(now, |slot| slots.get(usize::from(slot)).is_some_and(Option::is_none))
    }

    /// Inserts a queue pair with a number from [`allocate`](Self::allocate).
    pub(super) fn insert(&mut self, qp: Box<Qp>) {
        let slot = qp.common.qpn.slot();
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.list.push(None);
            // Fits: there are fewer list entries than slots.
            (self.list.len() - 1) as u16
        });
        self.slots[usize::from(slot)] = Some(qp);
        self.places[usize::from(slot)] = place;
        self.list[usize::from(place)] = Some(slot);
        self.live += 1;
    }

    /// Removes a queue pair. Its number goes into quarantine.
    pub(super) fn remove(&mut self, now: Instant, qpn: Qpn) -> Option<Box<Qp>> {
        self.get_mut(qpn)?;
        let qp = self.slots.get_mut(usize::from(qpn.slot()))?.take();
        let place = self.places[usize::from(qpn.slot())];
        self.list[usize::from(place)] = None;
        self.vacant.push(place);
        // compliance.md [QP-NUMBER-REUSE]: The number of a destroyed queue pair is not reused for ten seconds, if
        // enough others are free.
        self.numbers.release(now, qpn);
        self.live -= 1;
        qp
    }

    #[inline]
    pub(super) fn get(&self, qpn: Qpn) -> Option<&Qp> {
        let qp = self.slots.get(usize::from(qpn.slot()))?.as_deref()?;
        (qp.common.qpn == qpn).then_some(qp)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        let qp = self.slots.get_mut(usize::from(qpn.slot()))?.as_deref_mut()?;
        (qp.common.qpn == qpn).then_some(qp)
    }

    /// The queue pair in the slot of a number, which may be one with another number: nothing of it is read (for
    /// prefetching).
    #[inline]
    pub(super) fn get_slot(&self, qpn: Qpn) -> Option<&Qp> {
        self.slots.get(usize::from(qpn.slot()))?.as_deref()
    }

    /// The queue pair in a slot.
    #[inline]
    pub(super) fn in_slot(&mut self, slot: u16) -> Option<&mut Qp> {
        self.slots.get_mut(usize::from(slot))?.as_deref_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.iter_places(0..usize::MAX)
    }

    /// The queue pairs at these indices of the list.
    pub(super) fn iter_places(&self, places: Range<usize>) -> impl Iterator<Item = &Qp> {
        let places = places.start.min(self.list.len())..places.end.min(self.list.len());
        let listed = self.list.get(places).unwrap_or_default().iter().flatten();
        listed.filter_map(|&slot| self.slots.get(usize::from(slot))?.as_deref())
    }

    /// Queue pairs in the table.
    pub(super) fn len(&self) -> usize {
        self.live as usize
    }

    /// Length of the list, unused entries included.
    pub(super) fn places(&self) -> usize {
        self.list.len()
    }

    /// One past the highest slot.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Numbers whose quarantine was cut short since the last call.
    pub(super) fn take_quarantines_cut(&mut self) -> u64 {
        std::mem::take(&mut self.numbers.cut_short)
    }
}
