//! Files that other processes truncate while they are mapped.
//!
//! Pages behind the new end leave every mapping, and an access to one raises SIGBUS, which by default ends the process. The
//! handler here replaces the whole mapping by anonymous memory, so that this access continues and no later one faults, and
//! marks the mapping as lost; [`Memory`](rxe_proto::mem::Memory) checks the mark after every access. An access to intact
//! memory costs nothing.
//!
//! A SIGBUS elsewhere goes to the handler that was installed before.

use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use rxe_sync::{LostCount, LostFlag};

/// A guarded mapping. Entries are never changed but for their flags, and never freed: a handler may read any of them at
/// any time. There are as many as files were ever opened, which happens at start.
struct Entry {
    base: usize,
    len: usize,
    /// Whether the entry describes a mapping now.
    active: AtomicBool,
    lost: LostFlag,
    next: *mut Entry,
}

/// The newest entry.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
/// Number of lost mappings.
static LOST: LostCount = LostCount::new();
/// The action that was installed before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Number of file mappings lost in this process. Lost regions need a check only when this changes.
pub fn files_lost() -> usize {
    LOST.get()
}

/// A mapping is guarded while this lives.
pub(super) struct FaultGuard(&'static Entry);

impl FaultGuard {
    /// Guards the `len` bytes at `base`, which are mapped, and begin at a page.
    ///
    /// # Safety
    ///
    /// They are one mapping of the caller's, readable and writable, and nobody holds a reference to any of them; they stay
    /// mapped until the guard is dropped. From a fault on they are other bytes.
    ///
    /// # Errors
    ///
    /// When the signal cannot be taken.
    pub(super) unsafe fn new(base: usize, len: usize) -> io::Result<FaultGuard> {
        take_signal()?;
        let (active, lost) = (AtomicBool::new(true), LostFlag::new());
        let entry = Box::leak(Box::new(Entry { base, len, active, lost, next: ptr::null_mut() }));
        let mut next = ENTRIES.load(Ordering::Acquire);
        let raw: *mut Entry = entry;
        loop {
            // SAFETY: the entry was leaked above, and nobody else knows it before the exchange below succeeds.
            unsafe { (*raw).next = next };
            match ENTRIES.compare_exchange(next, raw, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: leaked, and from here on never changed but for its atomics.
                Ok(_) => return Ok(FaultGuard(unsafe { &*raw })),
                Err(newer) => next = newer,
            }
        }
    }

    /// Set once the mapping is lost.
    pub(super) fn lost(&self) -> &LostFlag {
        &self.0.lost
    }
}

impl Drop for FaultGuard {
    fn drop(&mut self) {
        self.0.active.store(false, Ordering::Release);
    }
}

/// Takes SIGBUS, once.
fn take_signal() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: all zeros is a valid sigaction, and the call only writes it.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if BEFORE.set(before).is_err() {
        // Another thread is about to.
        return Ok(());
    }
    // SAFETY: all zeros is a valid sigaction: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
    action.sa_sigaction = handler as *const () as usize;
    // On the alternate stack, as the previous handler may detect stack overflows.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for and calls nothing that is not async-signal-safe.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Async-signal-safe: uses atomics and system calls only.
extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: errno is the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel hands out a valid siginfo.
    let code = unsafe { (*info).si_code };
    // SAFETY: of a SIGBUS with a positive code, which a fault has, the address is set.
    let handled = code > 0 && replace(unsafe { (*info).si_addr() } as usize);
    if !handled {
        // SAFETY: a signal's action may be changed in its handler. The faulting instruction is carried out again after the
        // return and meets the action of before; a signal that was sent is sent again.
        unsafe {
            match BEFORE.get() {
                Some(before) => libc::sigaction(signal, before, ptr::null_mut()),
                None => libc::sigaction(signal, &std::mem::zeroed(), ptr::null_mut()),
            };
            if code <= 0 {
                libc::raise(signal);
            }
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Puts anonymous memory in the place of the mapping that `address` is in; false if it is none of ours.
fn replace(address: usize) -> bool {
    let mut next = ENTRIES.load(Ordering::Acquire);
    // SAFETY: entries live for ever.
    while let Some(entry) = unsafe { next.as_ref() } {
        if address.wrapping_sub(entry.base) < entry.len && entry.active.load(Ordering::Acquire) {
            // The flag first: an access that sees the new bytes sees the flag as well.
            if entry.lost.set() {
                LOST.add();
            }
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            let base = ptr::with_exposed_provenance_mut(entry.base);
            // SAFETY: exactly the mapping that the guard's maker owns, which agreed to that; only raw copies and atomics
            // reach it. Threads that fault together do it one after the other, which changes bytes that mean nothing.
            let mapped = unsafe { libc::mmap(base, entry.len, protection, flags, -1, 0) };
            return mapped != libc::MAP_FAILED;
        }
        next = entry.next;
    }
    false
}
