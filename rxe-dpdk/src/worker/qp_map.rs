//! Maps from queue pairs of ours.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use rxe_proto::transport::Qpn;

/// A map from queue pairs of this worker: looked into for each completion. Only for numbers that we have given out: those
/// of peers may be chosen to collide.
pub type QpMap<V> = HashMap<Qpn, V, BuildHasherDefault<QpnHasher>>;

/// Spreads a queue pair number, whose highest bits are the same on a worker, over the bits of a hash by one multiplication.
#[derive(Clone, Copy, Default, Debug)]
pub struct QpnHasher(u64);

impl Hasher for QpnHasher {
    #[inline]
    fn write_u32(&mut self, number: u32) {
        // Two to the 64th by the golden ratio, odd. Maps look at the low bits and at the highest ones.
        self.0 = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(self.0 as u32 ^ u32::from(byte));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn slots_of_a_worker_are_spread() {
        let hash =
            |slot: u16| BuildHasherDefault::<QpnHasher>::default().hash_one(Qpn::new(0x31_0000 | u32::from(slot)));
        let low: HashSet<u64> = (0..1024).map(|slot| hash(slot) & 0x3FF).collect();
        let high: HashSet<u64> = (0..1024).map(|slot| hash(slot) >> 57).collect();
        assert!(low.len() > 512, "{} buckets for 1,024", low.len());
        assert_eq!(high.len(), 128);
    }
}
