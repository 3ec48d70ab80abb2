//! Frames of the port, as dispatch and fault injectors take them.

use rxe_adapter::worker::burst::Frames;
use rxe_adapter::worker::injector::Packet;

use crate::rx::RxBurst;

impl Frames for RxBurst<'_> {
    #[inline]
    fn next_frame(&mut self) -> Option<&[u8]> {
        RxBurst::next_frame(self)
    }
}

/// A frame in memory of its own: the buffers of a port are used again with the next burst.
pub struct HeldFrame(Vec<u8>);

impl HeldFrame {
    /// A copy of `frame`.
    pub fn copy_of(frame: &[u8]) -> HeldFrame {
        HeldFrame(frame.to_vec())
    }

    /// A frame of `len` zeros, to be written.
    pub fn zeroed(len: usize) -> HeldFrame {
        HeldFrame(vec![0; len])
    }
}

impl Packet for HeldFrame {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn try_copy(&self) -> Option<HeldFrame> {
        Some(HeldFrame(self.0.clone()))
    }
}
