//! Protection domains and their users.

use super::{DeallocPdError, KeyTable, PdId};

/// The users of a protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct PdUsers {
    keys: u32,
    /// Queue pairs, shared receive queues and address handles.
    others: u32,
}

impl KeyTable {
    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> PdId {
        // Numbers are not reused before 2^32 of them are, so a stale PdId means nothing for a long time.
        while self.pds.contains_key(&PdId(self.next_pd)) {
            self.next_pd = self.next_pd.wrapping_add(1);
        }
        let pd = PdId(self.next_pd);
        self.next_pd = self.next_pd.wrapping_add(1);
        self.pds.insert(pd, PdUsers::default());
        pd
    }

    /// Frees a protection domain.
    ///
    /// # Errors
    ///
    /// [`DeallocPdError`] when it does not exist or is in use.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), DeallocPdError> {
        match self.pds.get(&pd) {
            None => Err(DeallocPdError::Unknown),
            Some(PdUsers { keys: 0, others: 0 }) => {
                self.pds.remove(&pd);
                Ok(())
            }
            // compliance.md [MEM-PD]: A key is valid for the queue pairs of its protection domain only.
            Some(_) => Err(DeallocPdError::InUse),
        }
    }

    /// Counts one more user (a queue pair, for example) of a protection domain, which keeps it from being freed.
    /// False when it does not exist.
    #[must_use]
    pub fn hold_pd(&mut self, pd: PdId) -> bool {
        match self.pds.get_mut(&pd) {
            Some(users) => {
                users.others = users.others.saturating_add(1);
                true
            }
            None => false,
        }
    }

    /// Takes back one [`hold_pd`](Self::hold_pd).
    pub fn release_pd(&mut self, pd: PdId) {
        if let Some(users) = self.pds.get_mut(&pd) {
            users.others = users.others.saturating_sub(1);
        }
    }

    /// Number of users of a protection domain other than keys: queue pairs, shared receive queues, address handles.
    #[must_use]
    pub fn pd_users(&self, pd: PdId) -> u32 {
        self.pds.get(&pd).map_or(0, |users| users.others)
    }

    /// Counts a key of a protection domain.
    pub(super) fn count_key(&mut self, pd: PdId) {
        if let Some(users) = self.pds.get_mut(&pd) {
            users.keys = users.keys.saturating_add(1);
        }
    }

    /// Takes back one [`count_key`](Self::count_key).
    pub(super) fn uncount_key(&mut self, pd: PdId) {
        if let Some(users) = self.pds.get_mut(&pd) {
            users.keys = users.keys.saturating_sub(1);
        }
    }

    /// Number of protection domains.
    #[must_use]
    pub fn pd_count(&self) -> usize {
        self.pds.len()
    }
}
