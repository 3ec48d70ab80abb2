//! Copies from and to the program's memory.
//!
//! A program passes addresses in its commands. As in a kernel, an address that is not mapped is an error (`EFAULT`) and not a
//! signal: `process_vm_readv` and `process_vm_writev` on the own process copy nothing beyond what is mapped.

use std::io::{IoSlice, IoSliceMut};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

/// Copies `dst.len()` bytes at address `from` of the program.
///
/// # Errors
/// `EFAULT` when they are not all mapped and readable.
pub fn read(from: u64, dst: &mut [u8]) -> Result<(), Errno> {
    if dst.is_empty() {
        return Ok(());
    }
    let len = dst.len();
    let remote = RemoteIoVec { base: from as usize, len };
    match process_vm_readv(Pid::this(), &mut [IoSliceMut::new(dst)], &[remote])? {
        copied if copied == len => Ok(()),
        _ => Err(Errno::EFAULT),
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
    let remote = RemoteIoVec { base: to as usize, len: src.len() };
    match process_vm_writev(Pid::this(), &[IoSlice::new(src)], &[remote])? {
        copied if copied == src.len() => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_not_mapped_is_an_error() {
        let text = *b"bytes";
        let mut copy = [0; 5];
        assert_eq!(read(text.as_ptr() as u64, &mut copy), Ok(()));
        assert_eq!(copy, text);
        assert_eq!(read(0, &mut copy), Err(Errno::EFAULT));
        assert_eq!(write(8, &copy), Err(Errno::EFAULT));
        assert_eq!(write(8, &[]), Ok(()));
    }
}
