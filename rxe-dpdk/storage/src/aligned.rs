//! Page-aligned buffers for reading with O_DIRECT outside of the ring.

/// A buffer on the heap that begins at a multiple of 4096.
pub(crate) struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    const ALIGN: usize = 4096;

    pub(crate) fn new(len: usize) -> AlignedBuffer {
        let bytes = vec![0; len + Self::ALIGN];
        let start = bytes.as_ptr().addr().wrapping_neg() % Self::ALIGN;
        AlignedBuffer { bytes, start, len }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}
