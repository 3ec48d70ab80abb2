//! Communication ids, handles and transaction ids.

use std::fmt;

use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

/// A connection of one [`Cm`](super::Cm), from its request to its end. The handle of a former connection stays
/// invalid: it is not reused within 2^32 connections.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(u64);

impl ConnId {
    pub(super) fn new(serial: u32, comm_id: u32) -> ConnId {
        ConnId(u64::from(serial) << 32 | u64::from(comm_id))
    }

    /// Our communication id, as on the wire.
    #[must_use]
    pub fn comm_id(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn serial(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn {}/{:#010x}", self.serial(), self.comm_id())
    }
}

/// An outstanding SIDR request, of a peer or ours. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SidrId(pub(super) u64);

/// Generator of ids that must be unpredictable or unique.
pub(super) struct IdSource {
    rng: ChaCha12Rng,
    /// The upper four bits of every id, if they are given.
    prefix: Option<u8>,
    next_serial: u32,
    next_sidr: u64,
    /// Generator of transaction ids.
    transactions: ChaCha12Rng,
}

impl IdSource {
    pub fn new(seed: [u8; 32], prefix: Option<u8>) -> IdSource {
        let rng = ChaCha12Rng::from_seed(seed);
        let mut transactions = rng.clone();
        transactions.set_stream(1);
        IdSource { rng, prefix, next_serial: 0, next_sidr: 0, transactions }
    }

    fn draw(&mut self) -> u32 {
        let random = self.rng.next_u32();
        self.prefix.map_or(random, |prefix| random >> 4 | u32::from(prefix) << 28)
    }

    /// A new connection handle. `taken` tells which communication ids are in use, timewait included; these are far
    /// fewer than half of all, so few draws are needed.
    pub fn connection(&mut self, taken: impl Fn(u32) -> bool) -> ConnId {
        loop {
            let comm_id = self.draw();
            if comm_id != 0 && !taken(comm_id) {
                self.next_serial = self.next_serial.wrapping_add(1);
                return ConnId::new(self.next_serial, comm_id);
            }
        }
    }

    /// A new request id for a SIDR_REQ of ours; `taken` tells which are in use.
    pub fn sidr_request(&mut self, taken: impl Fn(u32) -> bool) -> u32 {
        loop {
            let request_id = self.draw();
            if request_id != 0 && !taken(request_id) {
                return request_id;
            }
        }
    }

    pub fn sidr(&mut self) -> SidrId {
        self.next_sidr += 1;
        SidrId(self.next_sidr)
    }

    /// The transaction id of an exchange that we start: 64 random bits.
    pub fn transaction(&mut self) -> u64 {
        self.transactions.next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_depend_on_the_seed_and_avoid_what_is_taken() {
        let mut ids = IdSource::new([1; 32], None);
        let first = ids.connection(|_| false);
        let again = IdSource::new([1; 32], None).connection(|_| false);
        let other = IdSource::new([2; 32], None).connection(|_| false);
        assert_eq!(first, again);
        assert_ne!(first.comm_id(), other.comm_id());
        let avoiding = IdSource::new([1; 32], None).connection(|id| id == first.comm_id());
        assert_ne!(avoiding.comm_id(), first.comm_id());
        let (a, b) = (ids.transaction(), ids.transaction());
        assert!(a != b && a >> 32 != b >> 32 && (a as u32).abs_diff(b as u32) > 1);
        assert_ne!(ids.sidr(), ids.sidr());
    }

    #[test]
    fn ids_begin_with_the_prefix() {
        let mut ids = IdSource::new([1; 32], Some(0xE));
        let drawn: Vec<u32> =
            (0..50).flat_map(|_| [ids.connection(|_| false).comm_id(), ids.sidr_request(|_| false)]).collect();
        assert!(drawn.iter().all(|id| id >> 28 == 0xE));
        assert!(drawn.iter().any(|id| id & 1 != drawn[0] & 1), "the others are random");
    }
}
