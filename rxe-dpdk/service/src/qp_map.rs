//! Maps keyed by queue pair number.

use rustc_hash::FxHashMap;
use rxe_proto::transport::Qpn;

/// A map from this worker's queue pairs, cheap enough for a lookup per completion. Its keys must be numbers that the
/// adapter has chosen: a peer that chooses keys can make them collide.
pub type QpMap<V> = FxHashMap<Qpn, V>;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use rustc_hash::FxBuildHasher;

    use super::*;

    #[test]
    fn queue_pair_numbers_of_one_worker_are_spread() {
        let hash = |slot: u16| FxBuildHasher.hash_one(Qpn::new(0x31_0000 | u32::from(slot)));
        // A map takes the bucket from the low bits and a tag from the highest seven.
        let low: HashSet<u64> = (0..1024).map(|slot| hash(slot) & 0x3FF).collect();
        let high: HashSet<u64> = (0..1024).map(|slot| hash(slot) >> 57).collect();
        assert!(low.len() > 512, "{} buckets for 1,024", low.len());
        assert!(high.len() > 64, "{} tags for 1,024", high.len());
    }
}
