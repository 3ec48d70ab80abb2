//! Objects by handle. As in the kernel, a new object gets the lowest free handle.

use std::collections::{BTreeMap, BTreeSet};

/// A table of at most `limit` objects.
#[derive(Debug)]
pub struct Table<T> {
    objects: BTreeMap<u32, T>,
    /// Free handles below `next`.
    free: BTreeSet<u32>,
    next: u32,
    limit: u32,
}

impl<T> Table<T> {
    /// An empty table.
    pub fn new(limit: u32) -> Table<T> {
        Table { objects: BTreeMap::new(), free: BTreeSet::new(), next: 0, limit }
    }

    /// Whether [`insert`](Self::insert) would refuse.
    pub fn is_full(&self) -> bool {
        self.free.is_empty() && self.next >= self.limit
    }

    /// Adds an object and returns its handle, or `None` when the table is full.
    pub fn insert(&mut self, object: T) -> Option<u32> {
        let handle = match self.free.pop_first() {
            Some(handle) => handle,
            None if self.next < self.limit => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        self.objects.insert(handle, object);
        Some(handle)
    }

    /// Removes an object.
    pub fn remove(&mut self, handle: u32) -> Option<T> {
        let object = self.objects.remove(&handle)?;
        self.free.insert(handle);
        Some(object)
    }

    /// The object with a handle.
    pub fn get(&self, handle: u32) -> Option<&T> {
        self.objects.get(&handle)
    }

    /// The object with a handle.
    pub fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        self.objects.get_mut(&handle)
    }

    /// All handles.
    #[cfg(test)]
    pub fn handles(&self) -> impl Iterator<Item = u32> {
        self.objects.keys().copied()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_the_lowest_free_ones_and_limited() {
        let mut table = Table::new(3);
        let handles: Vec<_> = (0..3).map(|n| table.insert(n)).collect();
        assert_eq!(handles, [Some(0), Some(1), Some(2)]);
        assert!(table.is_full() && table.insert(3).is_none());
        assert_eq!((table.remove(2), table.remove(0), table.remove(0)), (Some(2), Some(0), None));
        assert_eq!((table.insert(4), table.insert(5), table.len()), (Some(0), Some(2), 3));
        assert_eq!((table.get(0), table.get(9)), (Some(&4), None));
    }
}
