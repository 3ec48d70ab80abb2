//! What a key table should do, in the simplest way.

use std::collections::BTreeMap;

use rxe_proto::mem::{
    Access, BindError, DeregisterError, FastRegMrError, InvalidateError, KeyError, PdId, RenewError, ReregisterError,
    UnknownKey, WindowBind, WindowKind,
};

/// All remote rights.
pub const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Bytes at an address, with rights: what can be reached. The pointer tells which bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    pub addr: u64,
    pub len: u64,
    pub access: Access,
    pub pointer: usize,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Region(Bytes),
    Fast {
        staged: Option<(u64, usize)>,
        valid: Option<Bytes>,
    },
    /// Its binding: region, queue pair, bytes.
    Window {
        kind: WindowKind,
        bound: Option<(u32, u32, Bytes)>,
    },
}

/// The expected content of the table, by key.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Whether a bind may set the lowest byte of a key.
    pub consumer_byte: bool,
    pub objects: BTreeMap<u32, (PdId, Kind)>,
}

impl Model {
    /// The bytes of a region that can be reached.
    pub fn region(&self, key: u32) -> Option<(PdId, Bytes)> {
        match self.objects.get(&key)? {
            (pd, Kind::Region(bytes) | Kind::Fast { valid: Some(bytes), .. }) => Some((*pd, *bytes)),
            _ => None,
        }
    }

    fn has_windows(&self, key: u32) -> bool {
        let on_it = |kind: &Kind| matches!(kind, Kind::Window { bound: Some((region, ..)), .. } if *region == key);
        self.objects.values().any(|(_, kind)| on_it(kind))
    }

    fn reach(&self, bytes: Bytes, va: u64, len: u64, need: Access) -> Result<usize, KeyError> {
        if !bytes.access.contains(need) {
            return Err(KeyError::NoAccess);
        }
        let inside = va >= bytes.addr && va + len <= bytes.addr + bytes.len;
        if inside { Ok(bytes.pointer + (va - bytes.addr) as usize) } else { Err(KeyError::OutOfRange) }
    }

    pub fn check_local(&self, key: u32, pd: PdId, va: u64, len: u64, need: Access) -> Result<usize, KeyError> {
        let (of, bytes) = self.region(key).ok_or(KeyError::Unknown)?;
        if of == pd { self.reach(bytes, va, len, need) } else { Err(KeyError::WrongPd) }
    }

    pub fn check_remote(
        &self,
        key: u32,
        pd: PdId,
        qpn: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<usize, KeyError> {
        let Some((of, Kind::Window { kind, bound: Some((_, on, bytes)) })) = self.objects.get(&key) else {
            return self.check_local(key, pd, va, len, need);
        };
        match kind {
            _ if *of != pd => Err(KeyError::WrongPd),
            WindowKind::Type2 if *on != qpn => Err(KeyError::WrongQp),
            _ => self.reach(*bytes, va, len, need),
        }
    }

    pub fn map(&mut self, key: u32, len: u64, max: u64, pointer: usize) -> Result<(), FastRegMrError> {
        match self.objects.get_mut(&key) {
            Some((_, Kind::Fast { valid: Some(_), .. })) => Err(FastRegMrError::NotFree),
            Some((_, Kind::Fast { .. })) if len > max => Err(FastRegMrError::TooLong),
            Some((_, Kind::Fast { staged, .. })) => {
                *staged = Some((len, pointer));
                Ok(())
            }
            _ => Err(FastRegMrError::Unknown),
        }
    }

    pub fn fast_register(&mut self, key: u32, pd: PdId, iova: u64, access: Access) -> Result<(), FastRegMrError> {
        let Some((of, Kind::Fast { staged, valid })) = self.objects.get_mut(&key) else {
            return Err(FastRegMrError::Unknown);
        };
        match *staged {
            _ if *of != pd => Err(FastRegMrError::WrongPd),
            _ if valid.is_some() => Err(FastRegMrError::NotFree),
            None => Err(FastRegMrError::NotMapped),
            Some(_) if access == REMOTE => Err(FastRegMrError::IllegalAccess),
            Some((len, pointer)) => {
                let addr = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
                *valid = Some(Bytes { addr, len, access, pointer });
                Ok(())
            }
        }
    }

    /// Returns the key that the window has then.
    pub fn bind(
        &mut self,
        key: u32,
        byte: Option<u8>,
        pd: PdId,
        qpn: u32,
        bind: &WindowBind,
    ) -> Result<u32, BindError> {
        let Some((of, Kind::Window { kind, bound })) = self.objects.get(&key).cloned() else {
            return Err(BindError::Unknown);
        };
        let new = match (kind, bind.len) {
            _ if of != pd => return Err(BindError::WrongPd),
            _ if byte.is_some() && !self.consumer_byte => return Err(BindError::FixedKey),
            (WindowKind::Type1, 0) => None,
            (WindowKind::Type2, _) if bound.is_some() => return Err(BindError::AlreadyBound),
            (WindowKind::Type2, 0) => return Err(BindError::NoBytes),
            _ => {
                let zero_based = bind.access.contains(Access::ZERO_BASED);
                let remote_only = bind.access.difference(Access::ZERO_BASED | REMOTE).is_empty();
                if !remote_only || zero_based && kind == WindowKind::Type1 {
                    return Err(BindError::IllegalAccess);
                }
                let (of, bytes) = self.region(bind.region_key).ok_or(BindError::UnknownRegion)?;
                if of != pd {
                    return Err(BindError::RegionWrongPd);
                }
                if !bytes.access.contains(Access::MW_BIND) {
                    return Err(BindError::NotBindable);
                }
                if bytes.access.contains(Access::ZERO_BASED) {
                    return Err(BindError::ZeroBasedRegion);
                }
                let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
                if writes && !bytes.access.contains(Access::LOCAL_WRITE) {
                    return Err(BindError::NoLocalWrite);
                }
                let pointer = self.reach(bytes, bind.addr, bind.len, Access::empty());
                let pointer = pointer.map_err(|_| BindError::OutOfRange)?;
                let addr = if zero_based { 0 } else { bind.addr };
                Some((bind.region_key, qpn, Bytes { addr, len: bind.len, access: bind.access, pointer }))
            }
        };
        self.objects.remove(&key);
        let key = byte.map_or(key, |byte| key & !0xFF | u32::from(byte));
        self.objects.insert(key, (of, Kind::Window { kind, bound: new }));
        Ok(key)
    }

    /// `bytes`: address, length, and where they are.
    pub fn reregister(
        &mut self,
        key: u32,
        bytes: Option<(u64, u64, usize)>,
        pd: Option<PdId>,
        access: Option<Access>,
    ) -> Result<(), ReregisterError> {
        let windows = self.has_windows(key);
        let Some((of, Kind::Region(region))) = self.objects.get_mut(&key) else { return Err(ReregisterError::Unknown) };
        match () {
            () if bytes.is_none() && pd.is_none() && access.is_none() => Err(ReregisterError::NoChange),
            () if windows => Err(ReregisterError::WindowsBound),
            () if access == Some(REMOTE) => Err(ReregisterError::IllegalAccess),
            () => {
                *of = pd.unwrap_or(*of);
                region.access = access.unwrap_or(region.access);
                if let Some((addr, len, pointer)) = bytes {
                    (region.addr, region.len, region.pointer) = (addr, len, pointer);
                }
                if region.access.contains(Access::ZERO_BASED) {
                    region.addr = 0;
                }
                Ok(())
            }
        }
    }

    pub fn invalidate(&mut self, key: u32, pd: PdId, by: Option<u32>) -> Result<(), InvalidateError> {
        let windows = self.has_windows(key);
        let (of, kind) = self.objects.get_mut(&key).ok_or(InvalidateError::Unknown)?;
        match kind {
            _ if *of != pd => Err(InvalidateError::WrongPd),
            Kind::Region(_) | Kind::Window { kind: WindowKind::Type1, .. } => Err(InvalidateError::NotInvalidatable),
            Kind::Fast { valid: None, .. } | Kind::Window { bound: None, .. } => Err(InvalidateError::NotValid),
            Kind::Window { bound: Some((_, on, _)), .. } if by.is_some_and(|by| by != *on) => {
                Err(InvalidateError::WrongQp)
            }
            Kind::Fast { .. } if windows => Err(InvalidateError::WindowsBound),
            Kind::Fast { valid, .. } => {
                *valid = None;
                Ok(())
            }
            Kind::Window { bound, .. } => {
                *bound = None;
                Ok(())
            }
        }
    }

    /// Whether the key can be renewed.
    pub fn renewable(&self, key: u32) -> Result<(), RenewError> {
        match self.objects.get(&key).ok_or(RenewError::Unknown)?.1 {
            Kind::Region(_) => Err(RenewError::NotRenewable),
            Kind::Fast { valid: Some(_), .. } | Kind::Window { kind: WindowKind::Type2, bound: Some(_) } => {
                Err(RenewError::Valid)
            }
            _ => Ok(()),
        }
    }

    pub fn deregister(&mut self, key: u32) -> Result<(), DeregisterError> {
        match self.objects.get(&key) {
            None | Some((_, Kind::Window { .. })) => Err(DeregisterError::Unknown),
            Some(_) if self.has_windows(key) => Err(DeregisterError::WindowsBound),
            Some(_) => {
                self.objects.remove(&key);
                Ok(())
            }
        }
    }

    pub fn dealloc_window(&mut self, key: u32) -> Result<(), UnknownKey> {
        match self.objects.get(&key) {
            Some((_, Kind::Window { .. })) => {
                self.objects.remove(&key);
                Ok(())
            }
            _ => Err(UnknownKey),
        }
    }

    pub fn unbind_windows_of(&mut self, qpn: u32) -> usize {
        let mut count = 0;
        for (_, kind) in self.objects.values_mut() {
            if let Kind::Window { kind: WindowKind::Type2, bound } = kind
                && bound.is_some_and(|(_, on, _)| on == qpn)
            {
                *bound = None;
                count += 1;
            }
        }
        count
    }
}
