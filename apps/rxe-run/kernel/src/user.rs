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
    read_ahead(from, dst, &mut []).map(|_| ())
}

/// Copies `dst.len()` bytes at address `from` of the program, and what is behind them to `ahead`, as far as that is possible. Returns
/// how many bytes of `ahead` were copied.
///
/// # Errors
/// As for [`read`].
pub fn read_ahead(from: u64, dst: &mut [u8], ahead: &mut [u8]) -> Result<usize, Errno> {
    if dst.is_empty() {
        return Ok(0);
    }
    if FORBIDDEN.load(Ordering::Relaxed) {
        return read_of_file(from, dst).map(|()| 0);
    }
    let len = dst.len();
    let remote = RemoteIoVec { base: from as usize, len: len + ahead.len() };
    match process_vm_readv(own(), &mut [IoSliceMut::new(dst), IoSliceMut::new(ahead)], &[remote]) {
        Ok(copied) => copied.checked_sub(len).ok_or(Errno::EFAULT),
        Err(error) if is_forbidden(error) => read_of_file(from, dst).map(|()| 0),
        Err(error) => Err(error),
    }
}

/// Copies `ranges` of the program, one after the other, to `dst`, which has the length of all of them. Returns how many bytes, from the
/// first one on, were copied: not all when some are not mapped or readable.
pub fn read_ranges(ranges: &[RemoteIoVec], dst: &mut [u8]) -> usize {
    if dst.is_empty() {
        return 0;
    }
    if FORBIDDEN.load(Ordering::Relaxed) {
        return read_ranges_of_file(ranges, dst);
    }
    match process_vm_readv(own(), &mut [IoSliceMut::new(dst)], ranges) {
        Ok(copied) => copied,
        Err(error) if is_forbidden(error) => read_ranges_of_file(ranges, dst),
        Err(_) => 0,
    }
}

/// Copies `src` to address `to` of the program.
///
/// # Errors
/// `EFAULT` when the destination is not all mapped and writable; some of it may have been written then.
pub fn write(to: u64, src: &[u8]) -> Result<(), Errno> {
    write_both(to, src, &[])
}

/// Copies `src` to `ranges` of the program, one after the other, which have its length together. Returns how many bytes, from the first
/// one on, were copied: not all when some ranges are not mapped or writable.
pub fn write_ranges(ranges: &[RemoteIoVec], src: &[u8]) -> usize {
    if src.is_empty() {
        return 0;
    }
    if FORBIDDEN.load(Ordering::Relaxed) {
        return write_ranges_to_file(ranges, src);
    }
    match process_vm_writev(own(), &[IoSlice::new(src)], ranges) {
        Ok(copied) => copied,
        Err(error) if is_forbidden(error) => write_ranges_to_file(ranges, src),
        Err(_) => 0,
    }
}

/// Copies `first` to address `to` of the program, and `second` behind it.
///
/// # Errors
/// As for [`write()`].
pub fn write_both(to: u64, first: &[u8], second: &[u8]) -> Result<(), Errno> {
    let len = first.len() + second.len();
    if len == 0 {
        return Ok(());
    }
    let by_file = || {
        let both = [(to, first), (to.wrapping_add(first.len() as u64), second)];
        both.into_iter().filter(|(_, src)| !src.is_empty()).try_for_each(|(to, src)| write_to_file(to, src))
    };
    if FORBIDDEN.load(Ordering::Relaxed) {
        return by_file();
    }
    let remote = RemoteIoVec { base: to as usize, len };
    match process_vm_writev(own(), &[IoSlice::new(first), IoSlice::new(second)], &[remote]) {
        Ok(copied) if copied == len => Ok(()),
        Ok(_) => Err(Errno::EFAULT),
        Err(error) if is_forbidden(error) => by_file(),
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

/// [`read_ranges`] by the file of the memory.
fn read_ranges_of_file(ranges: &[RemoteIoVec], dst: &mut [u8]) -> usize {
    let Ok(memory) = File::open("/proc/self/mem") else { return 0 };
    let mut copied = 0;
    for range in ranges {
        let Some(dst) = dst.get_mut(copied..copied + range.len) else { break };
        if memory.read_exact_at(dst, range.base as u64).is_err() {
            break;
        }
        copied += range.len;
    }
    copied
}

/// [`write()`] by the file of the memory.
fn write_to_file(to: u64, src: &[u8]) -> Result<(), Errno> {
    let memory = File::options().write(true).open("/proc/self/mem").map_err(|error| errno(&error))?;
    memory.write_all_at(src, to).map_err(|_| Errno::EFAULT)
}

/// [`write_ranges`] by the file of the memory.
fn write_ranges_to_file(ranges: &[RemoteIoVec], src: &[u8]) -> usize {
    let Ok(memory) = File::options().write(true).open("/proc/self/mem") else { return 0 };
    let mut copied = 0;
    for range in ranges {
        let Some(src) = src.get(copied..copied + range.len) else { break };
        if memory.write_all_at(src, range.base as u64).is_err() {
            break;
        }
        copied += range.len;
    }
    copied
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

    #[test]
    fn bytes_ahead_are_read_as_far_as_they_are_mapped() {
        let (text, mut copy, mut ahead) = (*b"bytes ahead", [0; 5], [0; 6]);
        assert_eq!(read_ahead(text.as_ptr() as u64, &mut copy, &mut ahead), Ok(6));
        assert_eq!((copy, ahead), (*b"bytes", *b" ahead"));
        assert_eq!(read_ahead(text.as_ptr() as u64, &mut copy, &mut []), Ok(0));
        assert_eq!(read_ahead(8, &mut copy, &mut ahead), Err(Errno::EFAULT));
        let mut target = [0; 8];
        assert_eq!(write_both(target.as_mut_ptr() as u64, b"one", b"other"), Ok(()));
        assert_eq!(std::hint::black_box(target), *b"oneother");
        assert_eq!(write_both(8, b"one", b"other"), Err(Errno::EFAULT));
    }

    #[test]
    fn ranges_are_copied_up_to_the_first_that_is_not_mapped() {
        let (one, two) = (*b"one", *b"second");
        let range = |bytes: &[u8]| RemoteIoVec { base: bytes.as_ptr().addr(), len: bytes.len() };
        let nothing = RemoteIoVec { base: 8, len: 2 };
        for read in [read_ranges as fn(_: &[RemoteIoVec], _: &mut [u8]) -> usize, read_ranges_of_file] {
            let mut copy = [0; 11];
            assert_eq!(read(&[range(&one), range(&two)], &mut copy[..9]), 9);
            assert_eq!(&copy[..9], b"onesecond");
            assert_eq!(read(&[range(&two), nothing, range(&one)], &mut copy), 6);
            assert_eq!(&copy[..6], b"second");
            assert_eq!(read(&[nothing, range(&two)], &mut copy[..8]), 0);
            assert_eq!(read(&[], &mut []), 0);
        }
        for write in [write_ranges as fn(_: &[RemoteIoVec], _: &[u8]) -> usize, write_ranges_to_file] {
            let mut targets = [[0; 4]; 3];
            let ranges = targets.each_mut().map(|target| RemoteIoVec { base: target.as_mut_ptr().addr(), len: 4 });
            assert_eq!(write(&ranges[..2], b"onetwo34"), 8);
            assert_eq!(write(&[ranges[2], nothing, ranges[0]], b"last, first"), 4);
            assert_eq!(std::hint::black_box(targets), [*b"onet", *b"wo34", *b"last"]);
            assert_eq!(write(&[nothing], b"no"), 0);
            assert_eq!(write(&[], &[]), 0);
        }
    }
}
