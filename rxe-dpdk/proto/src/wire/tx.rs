//! Transmit queues: the protocol reserves room and writes the frame in place.

use super::icrc::{ICRC_LEN, icrc};

/// A DPDK port (or test link): an index into the adapter's ports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PortId(pub u16);

/// A queue for outgoing frames.
///
/// `push` commits: every returned slice is sent, in order, with exactly the requested length. The bytes are initialised
/// but arbitrary, so the writer must fill all of them. The driver pads short frames.
pub trait TxQueue {
    /// Reserves room for one frame of `len` bytes (Ethernet header to ICRC) on `port`; `None` for back-pressure: keep
    /// the state and retry on the next poll.
    fn push(&mut self, port: PortId, len: usize) -> Option<&mut [u8]>;

    /// As [`push`](Self::push), for a frame that needs an ICRC. If the second part is `true`, the queue writes the ICRC
    /// before it transmits the frame; otherwise the writer must.
    ///
    /// Computing the ICRC reads bytes that were just written, and waits until the stores have reached the cache. A
    /// queue that seals a whole burst waits once.
    #[inline(always)]
    fn push_unsealed(&mut self, port: PortId, len: usize, seal: Seal) -> Option<(&mut [u8], bool)> {
        let _ = seal;
        self.push(port, len).map(|frame| (frame, false))
    }
}

/// The data needed to write the ICRC of a complete frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seal {
    /// Offset of the IP header in the frame.
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
    /// The pushed frames, in order.
    pub frames: Vec<(PortId, Vec<u8>)>,
    /// Further frames that `push` accepts; `None` is no limit.
    pub room: Option<usize>,
}

impl TxQueue for TxFrames {
    fn push(&mut self, port: PortId, len: usize) -> Option<&mut [u8]> {
        if let Some(room) = &mut self.room {
            *room = room.checked_sub(1)?;
        }
        // Arbitrary bytes: a test notices a writer that leaves a byte unset.
        self.frames.push((port, vec![0xA5; len]));
        self.frames.last_mut().map(|(_, frame)| frame.as_mut_slice())
    }
}
