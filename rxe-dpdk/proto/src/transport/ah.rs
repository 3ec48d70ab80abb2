//! Address handles: where datagrams go.

use crate::mem::PdId;
use crate::wire::{HeaderTemplate, Path, PortId};

use super::AhId;

/// Why an address handle could not be made or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AhError {
    /// The engine holds no more address handles.
    #[error("no more address handles: the limit is {0}")]
    TooMany(u32),
    /// There is no such protection domain here.
    #[error("no such protection domain")]
    UnknownPd,
    /// There is no such port. Raised by the engine's user: the engine does not know ports.
    #[error("no such port: {}", .0.0)]
    UnknownPort(PortId),
    /// There is no such address handle.
    #[error("no such address handle")]
    Unknown,
}

#[derive(Debug)]
struct Ah {
    id: AhId,
    pd: PdId,
    template: HeaderTemplate,
}

/// The address handles of one engine. The low 20 bits of an [`AhId`] are an index, the rest distinguishes successive
/// handles with that index.
#[derive(Debug)]
pub(super) struct AhTable {
    slots: Vec<Option<Box<Ah>>>,
    free: Vec<u32>,
    created: u32,
    max: u32,
}

const INDEX_BITS: u32 = 20;

impl AhTable {
    pub(super) fn new(max: u32) -> AhTable {
        AhTable { slots: Vec::new(), free: Vec::new(), created: 0, max }
    }

    pub(super) fn create(&mut self, pd: PdId, path: &Path) -> Result<AhId, AhError> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() >= self.max as usize => return Err(AhError::TooMany(self.max)),
            None => {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
        };
        let id = AhId(self.created << INDEX_BITS | index);
        self.created = self.created.wrapping_add(1);
        self.slots[index as usize] = Some(Box::new(Ah { id, pd, template: HeaderTemplate::new(path) }));
        Ok(id)
    }

    /// Address handles in use.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the protection domain of the removed handle.
    pub(super) fn destroy(&mut self, id: AhId) -> Result<PdId, AhError> {
        let index = id.0 & ((1 << INDEX_BITS) - 1);
        let slot = self.slots.get_mut(index as usize).ok_or(AhError::Unknown)?;
        let ah = slot.take_if(|ah| ah.id == id).ok_or(AhError::Unknown)?;
        self.free.push(index);
        Ok(ah.pd)
    }

    /// Header template of handle `id`, if the handle belongs to `pd`.
    #[inline]
    pub(super) fn template(&self, id: AhId, pd: PdId) -> Option<&HeaderTemplate> {
        let index = id.0 & ((1 << INDEX_BITS) - 1);
        let ah = self.slots.get(index as usize)?.as_deref()?;
        (ah.id == id && ah.pd == pd).then_some(&ah.template)
    }
}
