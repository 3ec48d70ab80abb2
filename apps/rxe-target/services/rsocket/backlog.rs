//! Bytes that came and did not go back yet. A client of rstream may send 100 MiB before it reads a byte.

use std::collections::VecDeque;

/// Bytes of a chunk.
pub const CHUNK: usize = 64 << 10;
/// Unused chunks that are kept for later: 16 MiB.
const KEPT: usize = 256;

type Chunk = Box<[u8]>;

/// Memory of the backlogs of one worker.
#[derive(Debug)]
pub struct Store {
    free: Vec<Chunk>,
    lent: usize,
    limit: usize,
}

impl Store {
    /// A store that lends up to `bytes`.
    pub fn new(bytes: usize) -> Store {
        Store { free: Vec::new(), lent: 0, limit: bytes / CHUNK }
    }

    fn take(&mut self) -> Option<Chunk> {
        if self.lent == self.limit {
            return None;
        }
        self.lent += 1;
        Some(self.free.pop().unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice()))
    }

    fn give(&mut self, chunk: Chunk) {
        self.lent -= 1;
        if self.free.len() < KEPT {
            self.free.push(chunk);
        }
    }
}

/// A queue of bytes. The last chunk is given back only by [`clear`](Self::clear), so that a client that waits for each
/// answer needs no store in between.
#[derive(Default, Debug)]
pub struct Backlog {
    chunks: VecDeque<Chunk>,
    /// Offset of the first byte in the first chunk.
    start: usize,
    /// Number of bytes used in the last chunk.
    end: usize,
}

impl Backlog {
    /// Room for more bytes, in one piece; `None` when the store has none.
    pub fn room(&mut self, store: &mut Store) -> Option<&mut [u8]> {
        if self.chunks.is_empty() || self.end == CHUNK {
            self.chunks.push_back(store.take()?);
            self.end = 0;
        }
        self.chunks.back_mut()?.get_mut(self.end..)
    }

    /// Appends the first `length` bytes of [`room`](Self::room), which the caller has written.
    pub fn filled(&mut self, length: usize) {
        self.end += length;
    }

    /// The first bytes, in one piece.
    pub fn front(&self) -> &[u8] {
        let end = if self.chunks.len() == 1 { self.end } else { CHUNK };
        self.chunks.front().and_then(|chunk| chunk.get(self.start..end)).unwrap_or_default()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.front().is_empty()
    }

    /// Removes the first `length` bytes of [`front`](Self::front).
    pub fn taken(&mut self, length: usize, store: &mut Store) {
        self.start += length;
        if self.chunks.len() == 1 {
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            }
        } else if self.start == CHUNK {
            self.start = 0;
            if let Some(chunk) = self.chunks.pop_front() {
                store.give(chunk);
            }
        }
    }

    /// Forgets all bytes.
    pub fn clear(&mut self, store: &mut Store) {
        for chunk in self.chunks.drain(..) {
            store.give(chunk);
        }
        (self.start, self.end) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(backlog: &mut Backlog, store: &mut Store, mut bytes: &[u8]) -> usize {
        let mut put = 0;
        while !bytes.is_empty() {
            let Some(room) = backlog.room(store) else { break };
            let length = room.len().min(bytes.len());
            room[..length].copy_from_slice(&bytes[..length]);
            backlog.filled(length);
            put += length;
            bytes = &bytes[length..];
        }
        put
    }

    fn get(backlog: &mut Backlog, store: &mut Store, most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !backlog.is_empty() && bytes.len() < most {
            let length = backlog.front().len().min(most - bytes.len());
            bytes.extend_from_slice(&backlog.front()[..length]);
            backlog.taken(length, store);
        }
        bytes
    }

    #[test]
    fn bytes_come_out_as_they_went_in() {
        let mut store = Store::new(4 * CHUNK);
        let mut backlog = Backlog::default();
        let bytes: Vec<u8> = (0..3 * CHUNK).map(|i| (i % 251) as u8).collect();
        // Amounts that meet the borders of chunks in all ways.
        for (first, second) in [(1, CHUNK - 1), (CHUNK, CHUNK), (CHUNK + 1, 2 * CHUNK - 1), (3 * CHUNK, 0), (0, 0)] {
            assert_eq!(put(&mut backlog, &mut store, &bytes[..first]), first);
            assert_eq!(put(&mut backlog, &mut store, &bytes[first..first + second]), second);
            let got = get(&mut backlog, &mut store, first / 2);
            assert_eq!(got, bytes[..first / 2]);
            assert_eq!(get(&mut backlog, &mut store, usize::MAX), bytes[first / 2..first + second]);
            assert!(backlog.is_empty() && store.lent <= 1);
        }
    }

    #[test]
    fn the_store_has_an_end_and_gets_all_back() {
        let mut store = Store::new(2 * CHUNK);
        let (mut first, mut second) = (Backlog::default(), Backlog::default());
        assert_eq!(put(&mut first, &mut store, &[1; 3 * CHUNK]), 2 * CHUNK);
        assert_eq!(put(&mut second, &mut store, &[2]), 0);
        assert_eq!(get(&mut first, &mut store, CHUNK), [1; CHUNK]);
        assert_eq!(put(&mut second, &mut store, &[2]), 1);
        first.clear(&mut store);
        second.clear(&mut store);
        assert_eq!((store.lent, store.free.len()), (0, 2));
    }
}
