//! Objects of all contexts, by handle.

use nix::errno::Errno;

/// Identifies a context for the life of the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ContextId(pub(super) u32);

/// The objects of one kind. A handle is an index; only the context that created an object may use its handle.
#[derive(Debug)]
pub(super) struct Table<T> {
    slots: Vec<Option<(ContextId, T)>>,
    free: Vec<u32>,
    max: u32,
}

impl<T> Table<T> {
    /// A table of at most `max` objects.
    pub(super) fn new(max: u32) -> Table<T> {
        Table { slots: Vec::new(), free: Vec::new(), max }
    }

    /// Objects in use.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Fails when [`insert`](Self::insert) would.
    ///
    /// # Errors
    /// `ENOMEM` when there are as many objects as there can be.
    pub(super) fn check_room(&self) -> Result<(), Errno> {
        if self.len() < self.max as usize { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Adds an object and returns its handle.
    ///
    /// # Errors
    /// `ENOMEM` when there are as many objects as there can be.
    pub(super) fn insert(&mut self, owner: ContextId, object: T) -> Result<u32, Errno> {
        self.check_room()?;
        let handle = match self.free.pop() {
            Some(handle) => handle,
            None => {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
        };
        self.slots[handle as usize] = Some((owner, object));
        Ok(handle)
    }

    /// The object of `handle`, if `owner` created it.
    #[inline]
    pub(super) fn get(&self, owner: ContextId, handle: u32) -> Option<&T> {
        match self.slots.get(handle as usize)? {
            Some((of, object)) if *of == owner => Some(object),
            _ => None,
        }
    }

    /// As [`get`](Self::get).
    #[inline]
    pub(super) fn get_mut(&mut self, owner: ContextId, handle: u32) -> Option<&mut T> {
        match self.slots.get_mut(handle as usize)? {
            Some((of, object)) if *of == owner => Some(object),
            _ => None,
        }
    }

    /// The object of a handle that this side has kept, and its owner.
    #[inline]
    pub(super) fn entry_mut(&mut self, handle: u32) -> Option<(ContextId, &mut T)> {
        self.slots.get_mut(handle as usize)?.as_mut().map(|(owner, object)| (*owner, object))
    }

    /// The object of a handle that this side has kept.
    #[inline]
    pub(super) fn at(&self, handle: u32) -> Option<&T> {
        self.slots.get(handle as usize)?.as_ref().map(|(_, object)| object)
    }

    /// As [`at`](Self::at).
    #[inline]
    pub(super) fn at_mut(&mut self, handle: u32) -> Option<&mut T> {
        self.entry_mut(handle).map(|(_, object)| object)
    }

    /// Takes an object out; its handle may be given to another one.
    pub(super) fn remove(&mut self, handle: u32) -> Option<T> {
        let (_, object) = self.slots.get_mut(handle as usize)?.take()?;
        self.free.push(handle);
        Some(object)
    }

    /// Handles of all objects.
    pub(super) fn handles(&self) -> Vec<u32> {
        (0..).zip(&self.slots).filter(|(_, slot)| slot.is_some()).map(|(handle, _)| handle).collect()
    }

    /// Handles of the objects that `owner` created.
    pub(super) fn handles_of(&self, owner: ContextId) -> Vec<u32> {
        let is_of = |slot: &Option<(ContextId, T)>| slot.as_ref().is_some_and(|(of, _)| *of == owner);
        (0..).zip(&self.slots).filter(|(_, slot)| is_of(slot)).map(|(handle, _)| handle).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ContextId = ContextId(1);
    const TWO: ContextId = ContextId(2);

    #[test]
    fn a_handle_is_good_in_its_context_only() {
        let mut table = Table::new(2);
        let a = table.insert(ONE, 'a').unwrap();
        let b = table.insert(TWO, 'b').unwrap();
        assert_eq!((table.get(ONE, a), table.get(TWO, a), table.get(TWO, b)), (Some(&'a'), None, Some(&'b')));
        assert_eq!(table.get_mut(ONE, b), None);
        assert_eq!((table.handles_of(ONE), table.handles_of(TWO)), (vec![a], vec![b]));
        assert_eq!(table.get(ONE, 7), None);
    }

    #[test]
    fn a_full_table_has_room_again_when_an_object_is_removed() {
        let mut table = Table::new(1);
        let a = table.insert(ONE, 'a').unwrap();
        assert_eq!(table.insert(ONE, 'b'), Err(Errno::ENOMEM));
        assert_eq!((table.remove(a), table.remove(a)), (Some('a'), None));
        assert_eq!(table.len(), 0);
        assert_eq!(table.insert(TWO, 'b'), Ok(a));
        assert_eq!(table.get(ONE, a), None, "the handle is another context's now");
    }
}
