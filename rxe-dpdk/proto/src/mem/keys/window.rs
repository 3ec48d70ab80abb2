//! Memory windows: keys that open a part of a region, with remote rights of their own, and can be closed again.
//!
//! IBTA: "Memory Windows". In libibverbs: `ibv_alloc_mw`, `ibv_bind_mw`, `IBV_WR_BIND_MW`.

use super::draw::with_byte;
use super::slot::{Role, Slot};
use super::{Access, BindError, KeyLayout, KeyTable, PdId, RegisterError, UnknownKey, WindowKind};

/// The range and rights of a memory window: `ibv_mw_bind_info`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowBind {
    /// The key of the region.
    pub region_key: u32,
    /// The window's first byte, as an address of the region; also of the window, unless its access is zero-based.
    pub addr: u64,
    /// Length of the window in bytes. 0 unbinds a type 1 window; the other fields are ignored then.
    pub len: u64,
    /// Rights of peers through the window: remote read, write and atomics; in a type 2 window also
    /// [`Access::ZERO_BASED`]. They need not be rights that the region grants to peers.
    pub access: Access,
}

impl WindowKind {
    /// The rights that a window of the kind can grant.
    const fn grantable(self) -> Access {
        let remote = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
        match self {
            WindowKind::Type1 => remote,
            WindowKind::Type2 => remote.union(Access::ZERO_BASED),
        }
    }
}

impl KeyTable {
    /// Makes a memory window, bound to nothing. Returns its remote key; a window has no local key.
    ///
    /// # Errors
    ///
    /// [`RegisterError`], naming the reason; nothing changes then.
    pub fn alloc_window(&mut self, pd: PdId, kind: WindowKind) -> Result<u32, RegisterError> {
        self.own_keys_only()?;
        let key = self.add(Slot::closed(pd, Role::Unbound(kind)))?;
        if kind == WindowKind::Type2 {
            self.bound.made();
        }
        Ok(key)
    }

    /// Forgets a memory window, bound or not. From now on its key is unknown.
    ///
    /// # Errors
    ///
    /// [`UnknownKey`] when no memory window has the key.
    pub fn dealloc_window(&mut self, key: u32) -> Result<(), UnknownKey> {
        match self.slots.get(key).ok_or(UnknownKey)?.role() {
            Role::BoundType1 { .. } | Role::Unbound(WindowKind::Type1) => {
                self.unbind(key);
                self.forget(key).map(|_| ()).ok_or(UnknownKey)
            }
            Role::BoundType2 { .. } | Role::Unbound(WindowKind::Type2) => {
                self.unbind(key);
                self.bound.forgotten();
                self.forget(key).map(|_| ()).ok_or(UnknownKey)
            }
            Role::Region { .. } | Role::ValidFastRegMr { .. } | Role::FreeFastRegMr { .. } => Err(UnknownKey),
        }
    }

    /// Binds a memory window, as a bind request that is executed on queue pair `qpn` of `pd` asks. From then on the
    /// bytes can be reached by the window's key: by peers of any queue pair of the protection domain (type 1) or of
    /// `qpn` alone (type 2). A type 1 window that is bound already is bound again, under the same key;
    /// [`renew_key`](Self::renew_key) shuts out peers that know the old key. Allocates nothing.
    ///
    /// The region may be an [adopted](Self::adopt) one: the binding is this table's alone, like the adoption.
    ///
    /// # Errors
    ///
    /// [`BindError`]: the first reason in its order; nothing changes then.
    pub fn bind_window(&mut self, key: u32, pd: PdId, qpn: u32, bind: &WindowBind) -> Result<(), BindError> {
        self.bind_window_as(key, None, pd, qpn, bind).map(|_| ())
    }

    /// As [`bind_window`](Self::bind_window), and sets the lowest byte of the window's key to `byte` if one is given,
    /// in a table with [`KeyLayout::ConsumerByte`]. Returns the key that the window has from then on; if it is another
    /// one than before, the old one is unknown. The byte may be the one that the key has already.
    ///
    /// # Errors
    ///
    /// [`BindError`]: the first reason in its order; nothing changes then.
    pub fn bind_window_as(
        &mut self,
        key: u32,
        byte: Option<u8>,
        pd: PdId,
        qpn: u32,
        bind: &WindowBind,
    ) -> Result<u32, BindError> {
        let window = self.slots.get(key).ok_or(BindError::Unknown)?;
        let kind = match window.role() {
            Role::Unbound(kind) => kind,
            Role::BoundType1 { .. } => WindowKind::Type1,
            Role::BoundType2 { .. } => WindowKind::Type2,
            _ => return Err(BindError::Unknown),
        };
        if !window.is_of(pd) {
            return Err(BindError::WrongPd);
        }
        let new_key = match (byte, self.layout()) {
            (None, _) => key,
            // compliance.md [MEM-CONSUMER-BYTE]: A bind may set the lowest byte of the window's key where keys are made
            // for that; the old key is unknown then.
            (Some(byte), KeyLayout::ConsumerByte) => with_byte(key, byte),
            (Some(_), KeyLayout::Random) => return Err(BindError::FixedKey),
        };
        match kind {
            // compliance.md [MEM-WINDOW-1]: A type 1 window is valid for every queue pair of its domain, may be bound
            // again, and is unbound by binding it to no bytes.
            WindowKind::Type1 if bind.len == 0 => {
                self.unbind(key);
                self.rename(key, new_key);
                return Ok(new_key);
            }
            // compliance.md [MEM-WINDOW-2]: A type 2 window is valid for the queue pair that it is bound on and cannot
            // be bound again before it is invalidated, by its owner or that queue pair's peer.
            WindowKind::Type2 if window.role() != Role::Unbound(kind) => return Err(BindError::AlreadyBound),
            WindowKind::Type2 if bind.len == 0 => return Err(BindError::NoBytes),
            WindowKind::Type1 | WindowKind::Type2 => {}
        }
        if !kind.grantable().contains(bind.access) {
            return Err(BindError::IllegalAccess);
        }

        let region = self.slots.get(bind.region_key).filter(|region| region.is_valid_region());
        let region = region.ok_or(BindError::UnknownRegion)?;
        if !region.is_of(pd) {
            return Err(BindError::RegionWrongPd);
        }
        // compliance.md [MEM-WINDOW-BIND]: A window is bound to bytes of a region of its domain that allows windows.
        if !region.access().contains(Access::MW_BIND) {
            return Err(BindError::NotBindable);
        }
        // Its addresses are offsets, which only a zero-based window should have. Linux' rxe refuses it, too.
        if region.access().contains(Access::ZERO_BASED) {
            return Err(BindError::ZeroBasedRegion);
        }
        if !(bind.access | region.access() & Access::LOCAL_WRITE).is_legal() {
            return Err(BindError::NoLocalWrite);
        }
        let piece = region.memory.as_ref().and_then(|memory| {
            let offset = region.offset(memory, bind.addr, bind.len)?;
            // A clone of an Arc: the window keeps the bytes alive, as the region does. Both numbers are at most the
            // memory's length, a usize.
            memory.slice(offset as usize, bind.len as usize)
        });
        let piece = piece.ok_or(BindError::OutOfRange)?;

        self.unbind(key);
        if let Some(windows) = self.slots.get_mut(bind.region_key).and_then(Slot::windows_mut) {
            *windows += 1;
        }
        let region = bind.region_key;
        let role = match kind {
            WindowKind::Type1 => Role::BoundType1 { region },
            WindowKind::Type2 => {
                self.bound.bind(qpn, new_key);
                Role::BoundType2 { region, qpn }
            }
        };
        if let Some(window) = self.slots.get_mut(key) {
            // compliance.md [MEM-WINDOW-ZERO-BASED]: Addresses of a zero-based type 2 window count from 0.
            window.iova = if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr };
            window.memory = Some(piece);
            window.open(role, bind.access);
        }
        self.rename(key, new_key);
        Ok(new_key)
    }

    /// Gives a window a key that differs in its consumer's byte at most, so that no other object has it.
    fn rename(&mut self, key: u32, new_key: u32) {
        if new_key != key
            && let Some(window) = self.slots.remove(key)
        {
            self.slots.insert(window.with_key(new_key));
        }
    }

    /// Unbinds all type 2 memory windows that are bound on queue pair `qpn`, for when it is destroyed or reset: its
    /// number will be another's one day. Returns how many there were.
    pub fn unbind_windows_of(&mut self, qpn: u32) -> usize {
        std::iter::from_fn(|| {
            let key = self.bound.of(qpn)?;
            self.unbind(key);
            Some(key)
        })
        .count()
    }

    /// Unbinds the memory window of `key`, if it is one and bound. Frees no memory: its region still has the bytes.
    pub(super) fn unbind(&mut self, key: u32) {
        let Some(window) = self.slots.get_mut(key) else { return };
        let (region, kind) = match window.role() {
            Role::BoundType1 { region } => (region, WindowKind::Type1),
            Role::BoundType2 { region, qpn } => {
                self.bound.unbind(qpn, key);
                (region, WindowKind::Type2)
            }
            _ => return,
        };
        window.close(Role::Unbound(kind));
        window.memory = None;
        if let Some(windows) = self.slots.get_mut(region).and_then(Slot::windows_mut) {
            *windows -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{KeyDomain, Memory};

    #[test]
    fn the_type_2_windows_of_a_queue_pair_are_known_until_they_are_unbound() {
        let mut keys = KeyTable::new([2; 32], KeyDomain::Local);
        let pd = keys.alloc_pd();
        let access = Access::MW_BIND;
        let region_key = keys.register(pd, Memory::heap(64), 0, access).unwrap().lkey();
        let bind = WindowBind { region_key, addr: 0, len: 64, access: Access::REMOTE_READ };
        let ends: [fn(&mut KeyTable, u32, PdId); 3] = [
            |keys, key, pd| keys.invalidate_local(key, pd).unwrap(),
            |keys, key, _| keys.dealloc_window(key).unwrap(),
            |keys, _, _| assert_eq!(keys.unbind_windows_of(7), 1),
        ];
        for end in ends {
            let one = keys.alloc_window(pd, WindowKind::Type1).unwrap();
            let two = keys.alloc_window(pd, WindowKind::Type2).unwrap();
            for key in [one, two] {
                keys.bind_window(key, pd, 7, &bind).unwrap();
            }
            assert_eq!((keys.bound.of(7), keys.bound.of(8)), (Some(two), None));
            end(&mut keys, two, pd);
            assert_eq!(keys.bound.of(7), None);
            keys.dealloc_window(one).unwrap();
        }
        assert!(keys.deregister(region_key).is_ok());
    }
}
