//! Copies from and to the program's memory.
//!
//! A program passes addresses in its commands. As in a kernel, an address that is not mapped is an error (`EFAULT`) and not a
//! signal: `process_vm_readv` and `process_vm_writev` on the own process copy nothing beyond what is mapped. Where a filter forbids
//! these calls, as that of Docker does, `/proc/self/mem` does the same with more calls.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

/// A filter forbids the calls. Filters are never taken back.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// The number of this process, or 0 before it is known.
static OWN: AtomicI32 = AtomicI32::new(0);

/// The number of this process. It is asked for once, not at each copy.
fn own() -> Pid {
    match OWN.load(Ordering::Relaxed) {
        0 => {
            let own = Pid::this();
            OWN.store(own.as_raw(), Ordering::Relaxed);
            own
        }
        own => Pid::from_raw(own),
    }
}

/// The process has forked, and this is the child, which has another number.
pub fn forked() {
    OWN.store(0, Ordering::Relaxed);
}

/// Copies `dst.len()` bytes at address `from` of the program.
///
/// # Errors
/// `EFAULT` when they are not all mapped and readable.
pub fn read(from: u64, dst: &mut [u8]) -> Result<(), Errno> {
    if dst.is_empty() {
        return Ok(());
    }
    if FORBIDDEN.load(Ordering::Relaxed) {
        return read_of_file(from, dst);
    }
    let len = dst.len();
    let remote = RemoteIoVec { base: from as usize, len };
    match process_vm_readv(own(), &mut [IoSliceMut::new(dst)], &[remote]) {
        Ok(copied) if copied == len => Ok(()),
        Ok(_) => Err(Errno::EFAULT),
        Err(error) if is_forbidden(error) => read_of_file(from, dst),
        Err(error) => Err(error),
    }
}

/// Copies `src` to address `to` of the program.
///
/// # Errors
/// `EFAULT` when the destination is not all mapped and writable; some of it may have been written then.
pub fn write(to: u64, src: &[u8]) -> Result<(), Errno> {
    if src.is_empty() {
        return Ok(());
    }
    if FORBIDDEN.load(Ordering::Relaxed) {
        return write_to_file(to, src);
    }
    let remote = RemoteIoVec { base: to as usize, len: src.len() };
    match process_vm_writev(own(), &[IoSlice::new(src)], &[remote]) {
        Ok(copied) if copied == src.len() => Ok(()),
        Ok(_) => Err(Errno::EFAULT),
        Err(error) if is_forbidden(error) => write_to_file(to, src),
        Err(error) => Err(error),
    }
}

/// Whether a system call may not be made, or does not exist; it is not tried again then.
fn is_forbidden(error: Errno) -> bool {
    let forbidden = matches!(error, Errno::EPERM | Errno::ENOSYS);
    if forbidden {
        FORBIDDEN.store(true, Ordering::Relaxed);
    }
    forbidden
}

/// [`read`] by the file of the memory. It is opened each time: after a fork an open one would still be the parent's.
fn read_of_file(from: u64, dst: &mut [u8]) -> Result<(), Errno> {
    let memory = File::open("/proc/self/mem").map_err(|error| errno(&error))?;
    memory.read_exact_at(dst, from).map_err(|_| Errno::EFAULT)
}

/// [`write()`] by the file of the memory.
fn write_to_file(to: u64, src: &[u8]) -> Result<(), Errno> {
    let memory = File::options().write(true).open("/proc/self/mem").map_err(|error| errno(&error))?;
    memory.write_all_at(src, to).map_err(|_| Errno::EFAULT)
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_not_mapped_is_an_error() {
        for (read, write) in
            [(read as fn(_, &mut [u8]) -> _, write as fn(_, &[u8]) -> _), (read_of_file, write_to_file)]
        {
            let (text, mut copy, mut target) = (*b"bytes", [0; 5], [0; 5]);
            assert_eq!(read(text.as_ptr() as u64, &mut copy), Ok(()));
            assert_eq!(copy, text);
            assert_eq!(write(target.as_mut_ptr() as u64, &copy), Ok(()));
            assert_eq!(std::hint::black_box(target), text);
            assert_eq!(read(0, &mut copy), Err(Errno::EFAULT));
            assert_eq!(write(8, &copy), Err(Errno::EFAULT));
            assert_eq!(write(8, &[]), Ok(()));
        }
    }
}
