//! The messages on the way: so many on each queue pair at any time, and the next ones when some have completed.

use hdrhistogram::Histogram;
use rxe_dpdk::service::Context;
use rxe_proto::Instant;
use rxe_proto::verbs::{
    MemoryRegion, PostError, QueuePair, Rc, RecvWr, RemoteAddr, Sge, WcOpcode, WorkCompletion, WorkRequest,
};

use crate::plan::{Plan, Verb};
use crate::session::succeeded;

/// Small messages go to one place behind the other within so many bytes, and then from the start again.
const CYCLE: u32 = 4096;
/// They begin at multiples of this.
const LINE: u32 = 64;
/// Our own memory: beyond so much, queue pairs share it.
const LOCAL_MEMORY: usize = 64 << 20;
/// The longest time that is told from longer ones, in nanoseconds.
pub const LONGEST: u64 = 60_000_000_000;

/// Marks receives: an answer is one message.
const ANSWER: u64 = 1 << 32;

/// One connected queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    pub qp: QueuePair<Rc>,
    /// The first byte that is sent, or written by READs and atomics.
    local: Sge,
    /// The first byte of the peer's memory that is for this queue pair.
    remote: RemoteAddr,
    /// Where in its cycle the next message is.
    slot: u32,
    /// The last message was the other one of WRITE and READ.
    reverse: bool,
    /// Messages still to be posted.
    left: u64,
    /// When the message that is on its way was posted; of one at a time.
    posted_at: Instant,
}

/// Memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteMemory {
    pub addr: u64,
    pub len: u64,
    pub rkey: u32,
}

/// How messages of one size lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    size: u32,
    /// From one message to the next.
    stride: u32,
    /// Messages of a cycle.
    slots: u32,
}

impl Layout {
    fn new(size: u32) -> Layout {
        let stride = size.next_multiple_of(LINE);
        Layout { size, stride, slots: (CYCLE / stride).max(1) }
    }

    /// Bytes for one queue pair.
    fn span(self) -> usize {
        self.stride.max(CYCLE) as usize
    }

    /// Bytes of the peer's memory that it takes at least.
    fn needs(self) -> u64 {
        u64::from(self.size.max(self.stride * (self.slots - 1) + self.size))
    }
}

/// Everything that is under way.
#[derive(Debug)]
pub struct Load {
    verb: Verb,
    /// SENDs are done when the peer's answer is there.
    answered: bool,
    /// WRITEs and READs in turn.
    both: bool,
    layout: Layout,
    depth: u32,
    group: u32,
    lanes: Vec<Lane>,
    /// The first bytes of the regions that messages go over in turn, whichever queue pair they are on; none for the memory of
    /// each queue pair.
    regions: Vec<RemoteAddr>,
    /// Which of them is next.
    turn: usize,
    /// Messages completed.
    pub done: u64,
    /// Messages posted and not completed.
    pub in_flight: u64,
    /// Whether what completes is followed by more.
    refills: bool,
    /// What its work requests are known by beside those of another load: the highest bit of their numbers, or nothing.
    pub mark: u64,
    /// What each message took, while it is measured.
    pub latency: Option<Histogram<u64>>,
}

/// How much of our own memory `plan` wants.
pub fn local_memory(plan: &Plan) -> usize {
    let span = plan.sizes.iter().map(|size| Layout::new(*size).span()).max().unwrap_or_default();
    span * (LOCAL_MEMORY / span).clamp(1, plan.qps as usize)
}

/// Why messages of `size` bytes cannot be tested.
pub fn too_small(size: u32, len: u64) -> String {
    format!(
        "messages of {size} bytes do not fit the target's {len} bytes: give it a larger region, or choose a smaller --size"
    )
}

impl Load {
    /// Nothing under way yet, on `qps`, each with the memory that the peer told, or over all `regions` where there are any.
    ///
    /// # Errors
    /// The peer's memory is too small.
    pub fn new(
        plan: &Plan,
        verb: Verb,
        size: u32,
        qps: &[(QueuePair<Rc>, RemoteMemory)],
        regions: &[RemoteMemory],
        local: &MemoryRegion,
    ) -> Result<Load, String> {
        let layout = Layout::new(size);
        let span = layout.span() as u64;
        // At least one, as `local_memory` says.
        let places = (local.len() / span).max(1);
        let lane = |(index, (qp, memory)): (usize, &(QueuePair<Rc>, RemoteMemory))| {
            // With regions it is a directory, in which nothing is written.
            if verb != Verb::Send && regions.is_empty() && memory.len < layout.needs() {
                return Err(too_small(size, memory.len));
            }
            let index = index as u64;
            Ok(Lane {
                qp: *qp,
                local: Sge { addr: local.addr() + index % places * span, length: size, lkey: local.lkey() },
                remote: RemoteAddr { addr: memory.addr + index % (memory.len / span).max(1) * span, rkey: memory.rkey },
                slot: 0,
                reverse: false,
                left: 0,
                posted_at: Instant::ZERO,
            })
        };
        if let Some(small) = regions.iter().find(|region| region.len < layout.needs()) {
            return Err(too_small(size, small.len));
        }
        Ok(Load {
            verb,
            answered: plan.wants_answers(),
            both: plan.both_ways && verb != Verb::Send,
            layout,
            depth: plan.depth_of(size),
            group: plan.group(size),
            lanes: qps.iter().enumerate().map(lane).collect::<Result<_, _>>()?,
            regions: regions.iter().map(|region| RemoteAddr { addr: region.addr, rkey: region.rkey }).collect(),
            turn: 0,
            done: 0,
            in_flight: 0,
            refills: true,
            mark: 0,
            latency: None,
        })
    }

    /// Posts the first messages; `messages` on each queue pair in all.
    ///
    /// # Errors
    /// Why a message could not be posted.
    pub fn start(&mut self, cx: &mut Context<'_>, messages: u64) -> Result<(), PostError> {
        for index in 0..self.lanes.len() {
            let Lane { qp, local, .. } = self.lanes[index];
            self.lanes[index].left = messages;
            if self.answered {
                // Nobody looks at the answers: all lie where the messages do.
                let receive = RecvWr { wr_id: ANSWER | index as u64, sges: &[local] };
                (0..self.depth).try_for_each(|_| cx.device().post_recv(qp, receive))?;
            }
            let mut room = self.depth;
            while room > 0 {
                // The last group may be shorter.
                let count = room.min(self.group);
                self.post(cx, index, count)?;
                room -= count;
            }
        }
        Ok(())
    }

    /// Nothing is posted any more.
    pub fn stop(&mut self) {
        self.refills = false;
    }

    /// Posts `count` messages, or as many as are left, with one completion for all of them.
    #[inline]
    fn post(&mut self, cx: &mut Context<'_>, index: usize, count: u32) -> Result<(), PostError> {
        let Some(lane) = self.lanes.get_mut(index) else { return Ok(()) };
        // At most `count`.
        let count = u64::from(count).min(lane.left) as u32;
        let Layout { stride, slots, .. } = self.layout;
        let mut dev = cx.device();
        for nth in 1..=count {
            let offset = u64::from(lane.slot * stride);
            lane.slot = if lane.slot + 1 == slots { 0 } else { lane.slot + 1 };
            lane.reverse = self.both && !lane.reverse;
            let first = match self.regions.get(self.turn) {
                Some(first) => {
                    self.turn = if self.turn + 1 == self.regions.len() { 0 } else { self.turn + 1 };
                    *first
                }
                None => lane.remote,
            };
            let remote = RemoteAddr { addr: first.addr + offset, rkey: first.rkey };
            let sges = [Sge { addr: lane.local.addr + offset, ..lane.local }];
            let wr = match self.verb {
                Verb::Write if lane.reverse => WorkRequest::read(&sges, remote),
                Verb::Read if lane.reverse => WorkRequest::write(&sges, remote),
                Verb::Write => WorkRequest::write(&sges, remote),
                Verb::Read => WorkRequest::read(&sges, remote),
                Verb::Send => WorkRequest::send(&sges),
                Verb::Atomic => WorkRequest::fetch_add(&sges, remote, 1),
            };
            let wr = wr.wr_id(self.mark | u64::from(count) << 32 | index as u64);
            dev.post_send(lane.qp, if nth == count && !self.answered { wr.signaled() } else { wr })?;
        }
        lane.left -= u64::from(count);
        lane.posted_at = cx.now();
        self.in_flight += u64::from(count);
        Ok(())
    }

    /// Takes note of what has completed, and posts as much again.
    ///
    /// # Errors
    /// What went wrong, in words.
    #[inline]
    pub fn completed(&mut self, cx: &mut Context<'_>, batch: &[WorkCompletion]) -> Result<(), String> {
        for wc in batch {
            if !succeeded(wc)? {
                continue;
            }
            let (index, count) = (wc.wr_id as u32 as usize, ((wc.wr_id ^ self.mark) >> 32) as u32);
            // A receive for each message on its way, and none that the next size would find posted.
            if wc.opcode == WcOpcode::Recv
                && self.refills
                && let Some(lane) = self.lanes.get(index)
                && lane.left > 0
            {
                let receive = RecvWr { wr_id: wc.wr_id, sges: &[lane.local] };
                cx.device()
                    .post_recv(lane.qp, receive)
                    .map_err(|error| format!("a receive cannot be posted: {error}"))?;
            }
            self.done += u64::from(count);
            self.in_flight -= u64::from(count);
            if let Some(latency) = &mut self.latency
                && let Some(lane) = self.lanes.get(index)
            {
                // At most a minute is told apart.
                latency.saturating_record(cx.now().saturating_since(lane.posted_at).as_nanos() as u64);
            }
            if self.refills {
                self.post(cx, index, count).map_err(|error| format!("a message cannot be posted: {error}"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_messages_go_through_a_page() {
        assert_eq!(Layout::new(2), Layout { size: 2, stride: 64, slots: 64 });
        assert_eq!(Layout::new(65), Layout { size: 65, stride: 128, slots: 32 });
        assert_eq!(Layout::new(4096), Layout { size: 4096, stride: 4096, slots: 1 });
        assert_eq!(Layout::new(65_537).slots, 1);
        assert_eq!((Layout::new(64).needs(), Layout::new(10_000).needs()), (4096, 10_000));
        assert_eq!((Layout::new(64).span(), Layout::new(10_000).span()), (4096, 10_048));
    }
}
