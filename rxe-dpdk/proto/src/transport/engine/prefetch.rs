//! Prefetching what the packets of a burst need.
//!
//! With few queue pairs and keys all of that is in the cache. With thousands, each packet would wait for several cache
//! misses in a row; prefetched, the lines arrive while the packets before it are executed.

use crate::transport::Qpn;
use crate::wire::peek_bth;

use super::Engine;

/// Up to this many queue pairs, and keys, fit the cache: no prefetching.
const MAX_CACHED: usize = 64;

impl Engine {
    /// Whether [`prefetch`](Engine::prefetch) is worth calling for the frames of a burst.
    #[inline]
    pub fn wants_prefetch(&self) -> bool {
        self.qps.len() > MAX_CACHED || self.cx.keys.len() > MAX_CACHED
    }

    /// Prefetches the memory that [`receive`](Engine::receive) needs for this frame. Call it a few packets ahead. It
    /// has no other effect, whatever the frame holds.
    #[inline]
    pub fn prefetch(&self, frame: &[u8]) {
        let Some(bth) = peek_bth(frame) else { return };
        if let Some(rkey) = bth.rkey {
            self.cx.keys.prefetch(rkey);
        }
        if let Some(qp) = self.qps.get_slot(Qpn::new(bth.dest_qp)) {
            qp.prefetch(bth.response);
        }
    }
}
