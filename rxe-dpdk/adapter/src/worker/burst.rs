//! Received frames, as dispatch reads them.

use rxe_proto::Instant;

use super::injector::{Injector, Packet};

/// The frames of one receive burst, each of which may leave for another worker.
pub trait Burst {
    /// A frame taken out.
    type Packet: Packet;

    /// Number of frames.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of a frame; empty past the end.
    fn data(&self, index: usize) -> &[u8];

    /// Takes a frame out; its index stays and is empty from now on.
    fn take(&mut self, index: usize) -> Option<Self::Packet>;

    /// Gives all frames back.
    fn clear(&mut self);
}

/// Frames that are read one after the other, each valid until the next one.
pub trait Frames {
    /// The next frame; `None` at the end of the burst.
    fn next_frame(&mut self) -> Option<&[u8]>;
}

/// The frames that an injector releases by a time.
pub struct Due<'a, P> {
    injector: &'a mut Injector<P>,
    due: Instant,
    current: Option<P>,
}

impl<'a, P: Packet> Due<'a, P> {
    /// The frames that `injector` releases by `due`.
    pub fn new(injector: &'a mut Injector<P>, due: Instant) -> Due<'a, P> {
        Due { injector, due, current: None }
    }
}

impl<P: Packet> Frames for Due<'_, P> {
    fn next_frame(&mut self) -> Option<&[u8]> {
        self.current = self.injector.next(self.due);
        self.current.as_ref().map(Packet::bytes)
    }
}
