//! Where frames go: the protocol asks for room and writes the frame in place.

use super::icrc::{ICRC_LEN, icrc};

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

    /// As [`push`](Self::push), for a frame that is to be sealed. With `true` comes the promise that the queue does that
    /// before the frame leaves; else it is for the writer to do.
    ///
    /// The ICRC is read back from bytes just written, and the processor does that only when its stores have reached the
    /// cache. A queue that seals a whole burst at once waits for that once.
    #[inline]
    fn push_unsealed(&mut self, port: PortId, len: usize, seal: Seal) -> Option<(&mut [u8], bool)> {
        let _ = seal;
        self.push(port, len).map(|frame| (frame, false))
    }
}

/// What it takes to write a frame's ICRC when all the rest of it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seal {
    /// Where in the frame the IP header starts.
    pub ip_at: u8,
    /// Whether that is an IPv4 header.
    pub is_ipv4: bool,
}

impl Seal {
    /// Writes the ICRC into the last four bytes of `frame`.
    #[inline(always)]
    pub fn apply(self, frame: &mut [u8]) {
        let ip_at = usize::from(self.ip_at);
        if let Some((before, stored)) = frame.split_last_chunk_mut::<ICRC_LEN>()
            && let Some(covered) = before.get(ip_at..)
        {
            *stored = icrc(covered, self.is_ipv4).to_le_bytes();
        }
    }
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
