//! A program's memory, whose pages can be unmapped and protected at any time.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rxe_proto::mem::{Fault, ForeignMemory, Memory};

/// Page size in bytes.
pub const PAGE: usize = 4096;

/// What the program may do with a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    Unmapped,
    ReadOnly,
    ReadWrite,
}

/// Bytes at an address, as the system calls of an embedder would find them: a copy goes from page to page and ends at
/// the first one that does not allow it.
pub struct Program {
    addr: usize,
    bytes: Mutex<Vec<u8>>,
    /// By page; the first one may begin before `addr`.
    pages: Mutex<Vec<Protection>>,
    reads: AtomicUsize,
    writes: AtomicUsize,
}

impl Program {
    /// `len` zeroed bytes at `addr`, mapped for reading and writing.
    pub fn new(addr: usize, len: usize) -> Arc<Program> {
        let pages = (addr % PAGE + len).div_ceil(PAGE);
        Arc::new(Program {
            addr,
            bytes: Mutex::new(vec![0; len]),
            pages: Mutex::new(vec![Protection::ReadWrite; pages]),
            reads: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
        })
    }

    /// All of it, for the engine.
    pub fn memory(self: &Arc<Program>) -> Memory {
        Memory::foreign(Arc::clone(self) as Arc<dyn ForeignMemory>)
    }

    /// Changes the protection of all pages that have a byte in `range` (offsets).
    pub fn protect(&self, range: Range<usize>, protection: Protection) {
        let (first, last) = (self.page(range.start), self.page(range.end - 1));
        self.pages.lock().unwrap()[first..=last].fill(protection);
    }

    /// The bytes at `offset`, whatever their protection.
    pub fn peek(&self, offset: usize, len: usize) -> Vec<u8> {
        self.bytes.lock().unwrap()[offset..offset + len].to_vec()
    }

    /// The program writes bytes of its own.
    pub fn poke(&self, offset: usize, bytes: &[u8]) {
        self.bytes.lock().unwrap()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// How many times it was read and written, faults included.
    pub fn accesses(&self) -> (usize, usize) {
        (self.reads.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed))
    }

    /// The page of the byte at `offset`.
    fn page(&self, offset: usize) -> usize {
        (self.addr % PAGE + offset) / PAGE
    }

    /// How many of `len` bytes at `offset` can be accessed, from the first one on.
    fn allowed(&self, offset: usize, len: usize, is_allowed: impl Fn(Protection) -> bool) -> usize {
        assert!(offset + len <= self.bytes.lock().unwrap().len(), "an access outside of the memory");
        let pages = self.pages.lock().unwrap();
        (offset..offset + len).take_while(|&at| is_allowed(pages[self.page(at)])).count()
    }
}

impl ForeignMemory for Program {
    fn addr(&self) -> usize {
        self.addr
    }

    fn len(&self) -> usize {
        self.bytes.lock().unwrap().len()
    }

    fn read(&self, offset: usize, dst: &mut [u8]) -> Result<(), Fault> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let allowed = self.allowed(offset, dst.len(), |page| page != Protection::Unmapped);
        dst[..allowed].copy_from_slice(&self.peek(offset, allowed));
        if allowed == dst.len() { Ok(()) } else { Err(Fault) }
    }

    fn write(&self, offset: usize, src: &[u8]) -> Result<(), Fault> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        let allowed = self.allowed(offset, src.len(), |page| page == Protection::ReadWrite);
        self.poke(offset, &src[..allowed]);
        if allowed == src.len() { Ok(()) } else { Err(Fault) }
    }
}
