//! From queue pair number to queue pair.

use std::ops::Range;

use crate::time::Instant;

use super::Qpn;
use super::numbers::Numbers;
use super::qp::Qp;

/// Slots of a table.
const SLOTS: usize = 1 << 16;

/// The queue pairs by number. The low 16 bits of a number are the slot, so a look-up is one load and a comparison of the
/// whole number, which also refuses numbers of former users of the slot. Slots are taken at random.
#[derive(Debug)]
pub(super) struct QpTable {
    slots: Vec<Option<Box<Qp>>>,
    numbers: Numbers,
    /// The slots in use, for who goes through them all, a part at a time: each keeps its place in here.
    list: Vec<Option<u16>>,
    /// By slot: its place in the list.
    places: Vec<u16>,
    /// Places in the list to use again.
    vacant: Vec<u16>,
    live: u32,
    max: u32,
}

impl QpTable {
    /// A table for up to `max` queue pairs, which is less than [`SLOTS`]. `seed` is what their numbers come from.
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

    /// A number for the next queue pair; `None` when the table is full.
    pub(super) fn vacancy(&mut self, now: Instant) -> Option<Qpn> {
        if self.live >= self.max {
            return None;
        }
        let slots = &self.slots;
        self.numbers.draw(now, |slot| slots.get(usize::from(slot)).is_some_and(Option::is_none))
    }

    /// Puts a queue pair where [`vacancy`](Self::vacancy) said.
    pub(super) fn insert(&mut self, qp: Box<Qp>) {
        let slot = qp.common.qpn.slot();
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.list.push(None);
            // There are fewer than slots.
            (self.list.len() - 1) as u16
        });
        self.slots[usize::from(slot)] = Some(qp);
        self.places[usize::from(slot)] = place;
        self.list[usize::from(place)] = Some(slot);
        self.live += 1;
    }

    /// Takes a queue pair out. Its number rests.
    pub(super) fn remove(&mut self, now: Instant, qpn: Qpn) -> Option<Box<Qp>> {
        self.get_mut(qpn)?;
        let qp = self.slots.get_mut(usize::from(qpn.slot()))?.take();
        let place = self.places[usize::from(qpn.slot())];
        self.list[usize::from(place)] = None;
        self.vacant.push(place);
        // [QP-NUMBER-REUSE]
        self.numbers.rest(now, qpn);
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

    /// Whoever has the slot of a number, which may be another one. Nothing of it is read.
    #[inline]
    pub(super) fn get_slot(&self, qpn: Qpn) -> Option<&Qp> {
        self.slots.get(usize::from(qpn.slot()))?.as_deref()
    }

    /// Whoever is in the slot now.
    #[inline]
    pub(super) fn in_slot(&mut self, slot: u16) -> Option<&mut Qp> {
        self.slots.get_mut(usize::from(slot))?.as_deref_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.iter_places(0..usize::MAX)
    }

    /// Those at these places of the list.
    pub(super) fn iter_places(&self, places: Range<usize>) -> impl Iterator<Item = &Qp> {
        let places = places.start.min(self.list.len())..places.end.min(self.list.len());
        let listed = self.list.get(places).unwrap_or_default().iter().flatten();
        listed.filter_map(|&slot| self.slots.get(usize::from(slot))?.as_deref())
    }

    /// Queue pairs in the table.
    pub(super) fn len(&self) -> usize {
        self.live as usize
    }

    /// How many places the list has.
    pub(super) fn places(&self) -> usize {
        self.list.len()
    }

    /// One past the highest slot.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// How many numbers came back since the last call before they had rested as long as they should.
    pub(super) fn take_rests_cut(&mut self) -> u64 {
        std::mem::take(&mut self.numbers.cut_short)
    }
}
