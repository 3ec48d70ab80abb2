//! Bytes that came and did not go back yet. A client of rstream may send 100 MiB before it reads a byte.

use std::collections::VecDeque;
use std::net::IpAddr;

use rxe_service::{BudgetId, Charge, Ledger, Standing};

/// Bytes of a chunk.
pub const CHUNK: usize = 64 << 10;
/// Unused chunks that are kept for later: 16 MiB.
const KEPT: usize = 256;

/// Bytes, charged to the client that they are from. No client sees them before they are overwritten.
#[derive(Debug)]
struct Chunk {
    bytes: Box<[u8]>,
    charge: Charge,
}

/// Memory of the backlogs of one worker.
#[derive(Debug)]
pub struct Store {
    free: Vec<Box<[u8]>>,
    budget: BudgetId,
}

impl Store {
    /// A store that lends what `budget` admits.
    pub fn new(budget: BudgetId) -> Store {
        Store { free: Vec::new(), budget }
    }

    fn take(&mut self, ledger: &mut Ledger, client: IpAddr) -> Option<Chunk> {
        let charge = ledger.charge(self.budget, client, CHUNK, Standing::Proven).ok()?;
        let bytes = self.free.pop().unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice());
        Some(Chunk { bytes, charge })
    }

    fn give(&mut self, ledger: &mut Ledger, chunk: Chunk) {
        ledger.release(chunk.charge);
        if self.free.len() < KEPT {
            self.free.push(chunk.bytes);
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
    /// Room for more bytes of `client`, in one piece; `None` when the store or its share has none.
    pub fn room(&mut self, store: &mut Store, ledger: &mut Ledger, client: IpAddr) -> Option<&mut [u8]> {
        if self.chunks.is_empty() || self.end == CHUNK {
            self.chunks.push_back(store.take(ledger, client)?);
            self.end = 0;
        }
        self.chunks.back_mut()?.bytes.get_mut(self.end..)
    }

    /// Appends the first `length` bytes of [`room`](Self::room), which the caller has written.
    pub fn filled(&mut self, length: usize) {
        self.end += length;
    }

    /// The first bytes, in one piece.
    pub fn front(&self) -> &[u8] {
        let end = if self.chunks.len() == 1 { self.end } else { CHUNK };
        self.chunks.front().and_then(|chunk| chunk.bytes.get(self.start..end)).unwrap_or_default()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.front().is_empty()
    }

    /// Removes the first `length` bytes of [`front`](Self::front).
    pub fn taken(&mut self, length: usize, store: &mut Store, ledger: &mut Ledger) {
        self.start += length;
        if self.chunks.len() == 1 {
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            }
        } else if self.start == CHUNK {
            self.start = 0;
            if let Some(chunk) = self.chunks.pop_front() {
                store.give(ledger, chunk);
            }
        }
    }

    /// Forgets all bytes.
    pub fn clear(&mut self, store: &mut Store, ledger: &mut Ledger) {
        for chunk in self.chunks.drain(..) {
            store.give(ledger, chunk);
        }
        (self.start, self.end) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use rxe_service::Shares;

    use super::*;

    /// A store and the account behind it.
    struct Bed {
        ledger: Ledger,
        budget: BudgetId,
        store: Store,
    }

    fn bed(chunks: usize) -> Bed {
        let mut ledger = Ledger::new(&[]);
        let budget = ledger.open("backlog", 0, chunks * CHUNK, Shares { address: 6, ..Shares::HALF }, None);
        Bed { ledger, budget, store: Store::new(budget) }
    }

    impl Bed {
        fn lent(&self) -> usize {
            self.ledger.used(self.budget) / CHUNK
        }

        fn put(&mut self, backlog: &mut Backlog, client: u8, mut bytes: &[u8]) -> usize {
            let mut put = 0;
            while !bytes.is_empty() {
                let client = [10, 0, 0, client].into();
                let Some(room) = backlog.room(&mut self.store, &mut self.ledger, client) else { break };
                let length = room.len().min(bytes.len());
                room[..length].copy_from_slice(&bytes[..length]);
                backlog.filled(length);
                put += length;
                bytes = &bytes[length..];
            }
            put
        }

        fn get(&mut self, backlog: &mut Backlog, most: usize) -> Vec<u8> {
            let mut bytes = Vec::new();
            while !backlog.is_empty() && bytes.len() < most {
                let length = backlog.front().len().min(most - bytes.len());
                bytes.extend_from_slice(&backlog.front()[..length]);
                backlog.taken(length, &mut self.store, &mut self.ledger);
            }
            bytes
        }
    }

    #[test]
    fn bytes_come_out_as_they_went_in() {
        let mut bed = bed(8);
        let mut backlog = Backlog::default();
        let bytes: Vec<u8> = (0..3 * CHUNK).map(|i| (i % 251) as u8).collect();
        // Amounts that meet the borders of chunks in all ways.
        for (first, second) in [(1, CHUNK - 1), (CHUNK, CHUNK), (CHUNK + 1, 2 * CHUNK - 1), (3 * CHUNK, 0), (0, 0)] {
            assert_eq!(bed.put(&mut backlog, 1, &bytes[..first]), first);
            assert_eq!(bed.put(&mut backlog, 1, &bytes[first..first + second]), second);
            let got = bed.get(&mut backlog, first / 2);
            assert_eq!(got, bytes[..first / 2]);
            assert_eq!(bed.get(&mut backlog, usize::MAX), bytes[first / 2..first + second]);
            assert!(backlog.is_empty() && bed.lent() <= 1);
        }
    }

    #[test]
    fn the_store_has_an_end_and_a_share_and_gets_all_back() {
        let mut bed = bed(4);
        let (mut first, mut second) = (Backlog::default(), Backlog::default());
        assert_eq!(bed.put(&mut first, 1, &[1; 4 * CHUNK]), 3 * CHUNK, "three quarters are its share");
        assert_eq!(bed.put(&mut second, 2, &[2; 2 * CHUNK]), CHUNK);
        assert_eq!(bed.get(&mut first, CHUNK), [1; CHUNK]);
        assert_eq!(bed.put(&mut second, 2, &[2]), 1);
        first.clear(&mut bed.store, &mut bed.ledger);
        second.clear(&mut bed.store, &mut bed.ledger);
        assert_eq!((bed.lent(), bed.store.free.len()), (0, 4));
    }
}
