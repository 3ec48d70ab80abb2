//! Memory on hugepages for regions.

use std::ffi::CString;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use rxe_proto::mem::{AllocError, Allocator, Backing, Memory};

use super::error::{EalError, Errno};
use super::init::{Eal, EalGuard};

/// Cache lines do not straddle two allocations.
const ALIGN: u32 = 64;

/// Zeroed bytes from DPDK's heap, 64-byte aligned, given back on drop. The heap is on hugepages unless EAL was
/// started with `--no-huge`.
pub struct HugeMemory {
    base: NonNull<u8>,
    len: usize,
    zone: Option<NonNull<dpdk_sys::rte_memzone>>,
    _eal: Arc<EalGuard>,
}

// SAFETY: the value only says where bytes are; it accesses none. DPDK's heap may be freed to from any thread.
unsafe impl Send for HugeMemory {}
// SAFETY: as for Send.
unsafe impl Sync for HugeMemory {}

// SAFETY: base and len never change; the bytes are one allocation of DPDK's heap, zeroed, that lives until drop (the
// guard keeps EAL's mappings), and no reference to them is made here.
unsafe impl Backing for HugeMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl HugeMemory {
    /// `len` bytes on any NUMA node.
    ///
    /// # Errors
    ///
    /// [`EalError::NoMemory`] when DPDK's heap has no room for them in one piece.
    pub fn new(eal: &Eal, len: usize) -> Result<HugeMemory, EalError> {
        Self::allocate(eal.guard(), len)
    }

    /// `len` bytes that DPDK's tools see under `name` (at most 31 bytes, unique in the process).
    ///
    /// # Errors
    ///
    /// [`EalError::NoMemory`], also when the name is too long or taken.
    pub fn named(eal: &Eal, name: &str, len: usize) -> Result<HugeMemory, EalError> {
        let failed = |errno| EalError::NoMemory { what: format!("region {name} of {len} bytes"), errno };
        let c_name = CString::new(name).map_err(|_| failed(Errno(libc::EINVAL)))?;
        // Length 0 means "whatever is largest" to DPDK.
        let asked = len.max(1);
        // SAFETY: EAL is initialised; the name is a C string that is copied.
        let zone = unsafe {
            dpdk_sys::rte_memzone_reserve_aligned(c_name.as_ptr(), asked, dpdk_sys::RXE_SOCKET_ID_ANY, 0, ALIGN)
        };
        let zone = NonNull::new(zone.cast_mut()).ok_or_else(|| failed(Errno::last()))?;
        // SAFETY: the zone was just reserved and is ours.
        let base = unsafe { dpdk_sys::rxe_memzone_addr(zone.as_ptr()) };
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| failed(Errno(libc::EINVAL)))?;
        // SAFETY: the zone has `asked` bytes from its address, and nobody else knows them yet. A zone that was used
        // and freed before is not zeroed by DPDK.
        unsafe { base.write_bytes(0, asked) };
        Ok(HugeMemory { base, len, zone: Some(zone), _eal: Arc::clone(eal.guard()) })
    }

    fn allocate(guard: &Arc<EalGuard>, len: usize) -> Result<HugeMemory, EalError> {
        // SAFETY: EAL is initialised (the guard lives). rte_zmalloc refuses a size of 0, so ask for 1 at least.
        let base =
            unsafe { dpdk_sys::rte_zmalloc_socket(c"rxe".as_ptr(), len.max(1), ALIGN, dpdk_sys::RXE_SOCKET_ID_ANY) };
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| EalError::NoMemory { what: format!("{len} bytes"), errno: Errno(libc::ENOMEM) })?;
        Ok(HugeMemory { base, len, zone: None, _eal: Arc::clone(guard) })
    }
}

impl Drop for HugeMemory {
    fn drop(&mut self) {
        match self.zone {
            // SAFETY: reserved in `named`, freed here only; EAL lives through the guard.
            Some(zone) => unsafe {
                dpdk_sys::rte_memzone_free(zone.as_ptr());
            },
            // SAFETY: from rte_zmalloc_socket in `allocate`, freed here only; EAL lives through the guard.
            None => unsafe { dpdk_sys::rte_free(self.base.as_ptr().cast()) },
        }
    }
}

impl fmt::Debug for HugeMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HugeMemory").field("base", &self.base).field("len", &self.len).finish()
    }
}

/// Hands out [`HugeMemory`].
#[derive(Clone)]
pub struct HugeAllocator(Arc<EalGuard>);

impl HugeAllocator {
    /// An allocator from DPDK's heap.
    pub fn new(eal: &Eal) -> HugeAllocator {
        HugeAllocator(Arc::clone(eal.guard()))
    }

    /// As [`HugeMemory::new`].
    ///
    /// # Errors
    ///
    /// [`EalError::NoMemory`].
    pub fn memory(&self, len: usize) -> Result<HugeMemory, EalError> {
        HugeMemory::allocate(&self.0, len)
    }
}

impl Allocator for HugeAllocator {
    fn allocate(&self, len: usize) -> Result<Memory, AllocError> {
        let memory = HugeMemory::allocate(&self.0, len).map_err(|_| AllocError { len })?;
        Ok(Memory::new(Arc::new(memory)))
    }
}

impl fmt::Debug for HugeAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HugeAllocator")
    }
}
