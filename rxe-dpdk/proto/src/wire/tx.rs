//! Where frames go: the protocol asks for room and writes the frame in place.

/// Which DPDK port (or test link) a frame leaves by or came in by: an index into the adapter's ports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PortId(pub u16);

/// A place to put outgoing frames.
///
/// `push` commits: every slice handed out is sent, in order, exactly as long as asked for. The bytes are initialised
/// but of any content, so the writer must fill all of them. The driver pads short frames itself.
pub trait TxQueue {
    /// Room for one frame of `len` bytes (Ethernet header to ICRC) on `port`, or `None` when the port can take no
    /// more now: keep the state and come again on the next poll.
    fn push(&mut self, port: PortId, len: usize) -> Option<&mut [u8]>;
}

/// A [`TxQueue`] that keeps its frames in memory: for tests, examples and in-process links.
#[derive(Debug, Default)]
pub struct TxFrames {
    /// What was pushed, in order.
    pub frames: Vec<(PortId, Vec<u8>)>,
    /// How many more frames `push` accepts; `None` is no limit.
    pub room: Option<usize>,
}

impl TxQueue for TxFrames {
    fn push(&mut self, port: PortId, len: usize) -> Option<&mut [u8]> {
        if let Some(room) = &mut self.room {
            *room = room.checked_sub(1)?;
        }
        // Rubbish on purpose: a writer that leaves a byte unset shows up at once.
        self.frames.push((port, vec![0xA5; len]));
        self.frames.last_mut().map(|(_, frame)| frame.as_mut_slice())
    }
}
