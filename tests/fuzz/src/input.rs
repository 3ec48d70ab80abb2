//! Reads the choices of a program from the bytes of an input.

/// The unread bytes of an input. Behind its end everything is zero, so that every input is a program.
#[derive(Clone, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All bytes.
    pub fn new(data: &'a [u8]) -> Input<'a> {
        Input(data)
    }

    /// Whether everything is read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let bytes = self.bytes(N);
        out[..bytes.len()].copy_from_slice(bytes);
        out
    }

    /// The next `len` bytes, fewer at the end.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    /// The next two bytes, big endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// The next four bytes, big endian.
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// The next eight bytes, big endian.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// A number below `n`, from one byte; 0 if there is none.
    pub fn below(&mut self, n: usize) -> usize {
        let byte = usize::from(self.u8());
        if n == 0 { 0 } else { byte % n }
    }

    /// One of `list`, from one byte; `None` if it is empty.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        let index = self.below(list.len());
        list.get(index).copied()
    }

    /// Changes some bytes of `bytes`: as many as the next byte says, modulo eight.
    pub fn change(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.u8() % 8 {
            let (at, value) = (usize::from(self.u16()), self.u8());
            if !bytes.is_empty() {
                bytes[at % bytes.len()] = value;
            }
        }
    }
}
