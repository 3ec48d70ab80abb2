//! What the packets of a burst will need, asked for before their turn.
//!
//! With few queue pairs and keys all of that is in the cache. With thousands, each packet would wait for several lines of
//! memory in a row; while those before it are executed, they come by themselves.

use crate::transport::Qpn;
use crate::wire::ahead_of;

use super::Engine;

/// With so many queue pairs, or keys, what they need is in the cache anyway.
const FEW: usize = 64;

impl Engine {
    /// Whether [`foresee`](Engine::foresee) is worth calling for the frames of a burst.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.qps.len() > FEW || self.cx.keys.len() > FEW
    }

    /// Asks for the memory that [`receive`](Engine::receive) of this frame will need, if it is for a queue pair of ours: to
    /// be called some packets before. It changes nothing, whatever the frame holds.
    #[inline]
    pub fn foresee(&self, frame: &[u8]) {
        let Some(ahead) = ahead_of(frame) else { return };
        if let Some(rkey) = ahead.rkey {
            self.cx.keys.foresee(rkey);
        }
        if let Some(qp) = self.qps.get_slot(Qpn::new(ahead.dest_qp)) {
            qp.foresee(ahead.response);
        }
    }
}
