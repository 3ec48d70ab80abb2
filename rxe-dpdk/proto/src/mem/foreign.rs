//! Memory that its owner may unmap or protect at any time.
//!
//! A [`Backing`](super::Backing) keeps its bytes mapped. Memory that a program registers and that this process does not
//! own may lose its pages under an access, and a plain copy would end in a signal then. [`ForeignMemory`] is the
//! interface to such bytes: each access can fail. This crate makes no system calls, so the embedder implements it, on
//! Linux with `process_vm_readv` and
//! `process_vm_writev` on its own process, which return an error where a copy would be killed.

// compliance.md [MEM-FAULT]: Bytes of a program that are not mapped, or protected, are a remote access error for a
// peer's RDMA or atomic operation, a remote operational error for its SEND, and a local protection error for a work
// request.
/// Pages of the memory are not mapped, or their protection forbids the access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the memory is not mapped, or protected")]
pub struct Fault;

/// Which part of a message a write has the bytes of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// No write of the message came before it.
    pub is_first: bool,
    /// No write of the message follows.
    pub is_last: bool,
}

/// Bytes of a program that may unmap or protect them at any time.
///
/// All offsets count from the first byte. [`Memory`](super::Memory) passes ranges within `len()` only; an
/// implementation that accesses raw memory must not rely on that, because these methods are safe to call.
///
/// # Partial copies
///
/// A copy that meets a missing page fails as a whole, with [`Fault`]. Any part of the destination may have been written
/// by then. An implementation reports a short count of the system call as a [`Fault`].
///
/// # Atomics
///
/// [`fetch_add`](Self::fetch_add) and [`compare_swap`](Self::compare_swap) read, compute and write. They are atomic
/// with regard to all other accesses through the engine, because one thread at a time runs it: what `IBV_ATOMIC_HCA`
/// promises. They are not atomic with regard to the program's own CPU instructions, nor to another engine or process
/// that maps the same pages. An implementation that can do better replaces them.
pub trait ForeignMemory: Send + Sync + 'static {
    /// Address of the first byte in this process; always the same. `addr() + len()` is at most 2^64.
    fn addr(&self) -> usize;

    /// Length in bytes; always the same.
    fn len(&self) -> usize;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `dst.len()` bytes from `offset` into `dst`.
    ///
    /// # Errors
    ///
    /// [`Fault`] when not all of them can be read; `dst` may have been changed.
    fn read(&self, offset: usize, dst: &mut [u8]) -> Result<(), Fault>;

    /// Copies `src` to `offset`.
    ///
    /// # Errors
    ///
    /// [`Fault`] when not all of it can be written; a part may have been.
    fn write(&self, offset: usize, src: &[u8]) -> Result<(), Fault>;

    /// As [`write()`](Self::write), of a part of a message. The parts of a message follow each other without gaps, and one that
    /// fails ends the message. So an implementation may write several together, and report an error of any part with a later
    /// one, at the latest with the last.
    ///
    /// # Errors
    ///
    /// [`Fault`] when not all of this part and those before it can be written.
    fn write_part(&self, offset: usize, src: &[u8], part: Part) -> Result<(), Fault> {
        let _ = part;
        self.write(offset, src)
    }

    /// Sets `len` bytes at `offset` to `byte`.
    ///
    /// # Errors
    ///
    /// [`Fault`] when not all of them can be written; a part may have been.
    fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), Fault> {
        let block = [byte; 512];
        let mut done = 0;
        while done < len {
            let part = (len - done).min(block.len());
            self.write(offset.wrapping_add(done), &block[..part])?;
            done += part;
        }
        Ok(())
    }

    /// Adds `add` modulo 2^64 to the number, in this host's byte order, of the 8 bytes at `offset`, whose address is a
    /// multiple of 8. Returns the number before.
    ///
    /// # Errors
    ///
    /// [`Fault`] when the bytes cannot be read or written; they are unchanged then.
    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, Fault> {
        let found = read_u64(self, offset)?;
        self.write(offset, &found.wrapping_add(add).to_ne_bytes())?;
        Ok(found)
    }

    /// Replaces the number, in this host's byte order, of the 8 bytes at `offset`, whose address is a multiple of 8, by
    /// `swap` if it equals `compare`. Returns the number before.
    ///
    /// # Errors
    ///
    /// [`Fault`] when the bytes cannot be read, or written if they are to be replaced; they are unchanged then.
    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, Fault> {
        let found = read_u64(self, offset)?;
        if found == compare {
            self.write(offset, &swap.to_ne_bytes())?;
        }
        Ok(found)
    }
}

/// The number, in this host's byte order, of the 8 bytes at `offset`.
pub(super) fn read_u64(memory: &(impl ForeignMemory + ?Sized), offset: usize) -> Result<u64, Fault> {
    let mut bytes = [0; 8];
    memory.read(offset, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
