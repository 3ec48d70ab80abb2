//! Protection domains and their users.

use super::{DeallocPdError, KeyTable, PdId};

impl KeyTable {
    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> PdId {
        // Numbers are not reused before 2^32 of them are, so a stale PdId means nothing for a long time.
        while self.pds.contains_key(&PdId(self.next_pd)) {
            self.next_pd = self.next_pd.wrapping_add(1);
        }
        let pd = PdId(self.next_pd);
        self.next_pd = self.next_pd.wrapping_add(1);
        self.pds.insert(pd, 0);
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
            Some(0) => {
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
                *users = users.saturating_add(1);
                true
            }
            None => false,
        }
    }

    /// Takes back one [`hold_pd`](Self::hold_pd).
    pub fn release_pd(&mut self, pd: PdId) {
        if let Some(users) = self.pds.get_mut(&pd) {
            *users = users.saturating_sub(1);
        }
    }

    /// Number of protection domains.
    #[must_use]
    pub fn pd_count(&self) -> usize {
        self.pds.len()
    }
}
