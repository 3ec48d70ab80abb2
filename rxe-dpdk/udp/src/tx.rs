//! Transmission: frames are staged in one arena, and leave with one call of sendmmsg per burst.

mod messages;
mod plan;

use std::fmt;
use std::net::{IpAddr, UdpSocket};
use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;
use rxe_proto::wire::{PortId, Seal, TxQueue};

use crate::frame::{MAX_FRAME, headers_len};
use crate::segmentation::Segmentation;
use crate::socket::AppliedOptions;
use crate::stats::UdpStats;
use plan::Plan;

/// Frames that one call of sendmmsg sends. A full stage is sent at once.
const BURST: usize = 64;

/// Frames that a stage holds before `push` refuses: what the kernel has not accepted yet.
const STAGE: usize = 2 * BURST;

/// Bytes of a stage: a burst of the longest frames, and one more so that a frame fits until the burst is complete.
const ARENA: usize = (BURST + 1) * MAX_FRAME;

/// The transmitting half of a [`UdpPort`](crate::UdpPort): a queue for the engine's frames.
///
/// Frames leave in order, in bursts, at the latest with [`flush`](Self::flush). The kernel writes Ethernet, IP and UDP headers of its
/// own; of those in the frame it gets destination, traffic class and hop limit. So that the ICRC is right for these headers, frames
/// must come from the port's address and UDP port 4791, with IPv4 identification 0; others are dropped.
///
/// Frames that the kernel does not accept because the socket's buffer is full stay staged, and when the stage is full `push` refuses:
/// this is the back-pressure on the engine. Those that the kernel refuses for another reason are dropped, with a counter: a
/// network may lose any packet.
pub struct UdpTx {
    address: IpAddr,
    /// Index of the interface, for addresses of a link.
    scope: u32,
    socket: Arc<UdpSocket>,
    options: AppliedOptions,
    /// Which packets may leave as one datagram.
    segmentation: Segmentation,
    /// Frames, one after the other.
    arena: Box<[u8]>,
    /// Bytes of the arena in use.
    used: usize,
    staged: Vec<Staged>,
    /// Staged frames from the beginning that have their ICRC.
    sealed: usize,
    /// The kernel has refused frames since the last `flush`: no further attempt before the next one.
    stalled: bool,
    plan: Plan,
    /// Sees every frame that is offered to the kernel, with its ICRC.
    tap: Option<Tap>,
    stats: Arc<UdpStats>,
}

/// Sees frames.
pub type Tap = Box<dyn FnMut(&[u8]) + Send>;

/// A frame in the arena.
#[derive(Clone, Copy)]
struct Staged {
    start: u32,
    end: u32,
    /// `Some` until the ICRC is written.
    seal: Option<Seal>,
}

impl Staged {
    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

impl UdpTx {
    pub(crate) fn new(
        address: IpAddr,
        scope: u32,
        socket: Arc<UdpSocket>,
        segmentation: Segmentation,
        stats: Arc<UdpStats>,
    ) -> UdpTx {
        UdpTx {
            address,
            scope,
            socket,
            options: AppliedOptions::default(),
            segmentation,
            arena: vec![0; ARENA].into_boxed_slice(),
            used: 0,
            staged: Vec::with_capacity(STAGE),
            sealed: 0,
            stalled: false,
            plan: Plan::new(),
            tap: None,
            stats,
        }
    }

    /// Number of staged frames.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.staged.len()
    }

    /// Shows every frame that is offered to the kernel to `tap` from now on; `None` to no one. Returns what saw them before.
    pub fn set_tap(&mut self, tap: Option<Tap>) -> Option<Tap> {
        std::mem::replace(&mut self.tap, tap)
    }

    /// Reports the number of packets that the engine has retransmitted since its start: segmentation may have caused the losses.
    #[inline]
    pub fn note_retransmissions(&mut self, total: u64) {
        self.segmentation.retransmitted(total);
    }

    /// Sends everything staged. Returns how many frames the kernel did not accept, which stay staged.
    pub fn flush(&mut self) -> usize {
        self.seal();
        self.stalled = false;
        let mut head = 0;
        while head < self.staged.len() && !self.stalled {
            head += self.send(head);
        }
        self.discard(head);
        self.staged.len()
    }

    /// Writes the missing ICRCs.
    fn seal(&mut self) {
        for staged in &mut self.staged[self.sealed..] {
            if let Some(seal) = staged.seal.take() {
                seal.apply(&mut self.arena[staged.range()]);
            }
            if let Some(tap) = &mut self.tap {
                tap(&self.arena[staged.range()]);
            }
        }
        self.sealed = self.staged.len();
    }

    /// Sends frames from the one with index `head` on; returns how many were sent or dropped.
    fn send(&mut self, head: usize) -> usize {
        let frames = self.staged.get(head..).unwrap_or_default();
        let frames = &frames[..frames.len().min(BURST)];
        let context = plan::Context { source: self.address, scope: self.scope, segmentation: &self.segmentation };
        let Some(options) = self.plan.make(&context, &self.arena, frames) else {
            self.stats.foreign.inc();
            return 1;
        };
        let ipv4 = self.address.is_ipv4();
        let sent = match self.options.apply(&self.socket, ipv4, options) {
            Ok(()) => self.plan.send(&self.socket, &self.arena, frames, headers_len(self.address)),
            Err(error) => Err(Errno::from_raw_os_error(error as i32)),
        };
        match sent {
            Ok(messages) => {
                let (frames, bytes) = self.plan.totals(messages);
                self.stats.sent_bursts.inc();
                self.stats.sent_datagrams.add(messages as u64);
                self.stats.sent_packets.add(frames as u64);
                self.stats.sent_bytes.add(bytes as u64);
                self.segmentation.sent(frames, messages);
                frames
            }
            Err(Errno::INTR) => 0,
            Err(Errno::AGAIN) => {
                self.stats.transmit_stalls.inc();
                self.stalled = true;
                0
            }
            Err(error) => {
                let (frames, _) = self.plan.totals(1);
                if frames > 1 && self.segmentation.refused() {
                    // The device does not segment, or a packet is too long for the path, which the attempt with one says.
                    self.stats.segmentation_refused.inc();
                    return 0;
                }
                self.count_dropped(error, frames as u64);
                frames
            }
        }
    }

    #[cold]
    fn count_dropped(&self, error: Errno, frames: u64) {
        let stats = &self.stats;
        let counter = match error {
            // EINVAL: from a loopback address to another machine.
            Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN | Errno::INVAL => &stats.send_unreachable,
            Errno::MSGSIZE => &stats.send_too_big,
            Errno::CONNREFUSED => &stats.send_refused,
            Errno::PERM | Errno::ACCESS => &stats.send_denied,
            Errno::NOBUFS | Errno::NOMEM => &stats.send_no_buffers,
            _ => &stats.send_failed,
        };
        counter.add(frames);
    }

    /// Removes the first `count` staged frames, and moves the others to the front.
    fn discard(&mut self, count: usize) {
        if count == self.staged.len() {
            self.staged.clear();
            (self.used, self.sealed) = (0, 0);
            return;
        }
        let Some(first) = self.staged.get(count).map(|staged| staged.start) else { return };
        self.arena.copy_within(first as usize..self.used, 0);
        self.used -= first as usize;
        self.staged.drain(..count);
        for staged in &mut self.staged {
            staged.start -= first;
            staged.end -= first;
        }
        self.sealed = self.staged.len();
    }

    /// Stages a frame of `len` bytes and returns its bytes.
    #[inline]
    fn stage(&mut self, len: usize, seal: Option<Seal>) -> Option<&mut [u8]> {
        if len > MAX_FRAME {
            self.stats.oversize.inc();
            return None;
        }
        if (self.staged.len() >= BURST || self.used + len > ARENA) && !self.make_room(len) {
            return None;
        }
        let range = self.used..self.used + len;
        self.staged.push(Staged { start: range.start as u32, end: range.end as u32, seal });
        self.used = range.end;
        self.arena.get_mut(range)
    }

    /// Sends, unless the kernel has refused frames since the last `flush`, and returns whether a frame fits.
    #[cold]
    fn make_room(&mut self, len: usize) -> bool {
        if !self.stalled {
            self.flush();
        }
        let fits = self.staged.len() < STAGE && self.used + len <= ARENA;
        if !fits {
            self.stats.stage_full.inc();
        }
        fits
    }
}

impl TxQueue for UdpTx {
    #[inline]
    fn push(&mut self, _port: PortId, len: usize) -> Option<&mut [u8]> {
        self.stage(len, None)
    }

    #[inline]
    fn push_unsealed(&mut self, _port: PortId, len: usize, seal: Seal) -> Option<(&mut [u8], bool)> {
        self.stage(len, Some(seal)).map(|frame| (frame, true))
    }
}

impl fmt::Debug for UdpTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UdpTx({}, {} waiting)", self.address, self.waiting())
    }
}
