//! The load: a constant number of outstanding messages on each queue pair.

use hdrhistogram::Histogram;
use rxe_proto::Instant;
use rxe_proto::verbs::{
    MemoryRegion, PostError, QueuePair, Rc, RecvWr, RemoteAddr, Sge, WcOpcode, WorkCompletion, WorkRequest,
};
use rxe_service::Context;

use crate::plan::{Plan, Verb};
use crate::session::succeeded;

/// Small messages use consecutive slots within this number of bytes, then start again.
const CYCLE: u32 = 4096;
/// Slots start at multiples of this.
const LINE: u32 = 64;
/// Maximum size of the local memory; queue pairs share it if they need more.
const LOCAL_MEMORY: usize = 64 << 20;

/// `wr_id` of receives: each answer counts as one message.
const ANSWER: u64 = 1 << 32;

/// One connected queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    pub qp: QueuePair<Rc>,
    /// First byte of the local memory of this queue pair.
    local: Sge,
    /// First byte of the remote memory of this queue pair.
    remote: RemoteAddr,
    /// Slot of the next message.
    slot: u32,
    /// Whether the last message was the other verb, with WRITEs and READs alternately.
    reverse: bool,
    /// Messages still to be posted.
    left: u64,
    /// When the last message was posted; for latency, with one outstanding message.
    posted_at: Instant,
    /// Answers, and acknowledged messages, that no further message has followed yet: an answer may come before the acknowledgement, when
    /// that is lost, and the message has its place in the send queue until then.
    answers: u32,
    acknowledged: u32,
}

/// Memory of the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteMemory {
    pub addr: u64,
    pub len: u64,
    pub rkey: u32,
}

/// Layout of messages of one size in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    size: u32,
    /// Distance of two slots.
    stride: u32,
    /// Number of slots.
    slots: u32,
}

impl Layout {
    fn new(size: u32) -> Layout {
        let stride = size.next_multiple_of(LINE);
        Layout { size, stride, slots: (CYCLE / stride).max(1) }
    }

    /// Bytes of a queue pair.
    fn span(self) -> usize {
        self.stride.max(CYCLE) as usize
    }

    /// Minimum size of the remote memory.
    fn needs(self) -> u64 {
        u64::from(self.size.max(self.stride * (self.slots - 1) + self.size))
    }
}

/// The outstanding messages.
#[derive(Debug)]
pub struct Load {
    verb: Verb,
    /// SENDs complete with the peer's answer.
    answered: bool,
    /// WRITEs and READs alternately.
    both: bool,
    layout: Layout,
    depth: u32,
    group: u32,
    lanes: Vec<Lane>,
    /// First bytes of the numbered regions, which messages use in turn; empty if each queue pair has its own remote memory.
    regions: Vec<RemoteAddr>,
    /// Index of the next region.
    turn: usize,
    /// Messages completed.
    pub done: u64,
    /// Outstanding messages.
    pub in_flight: u64,
    /// Whether a completed message is followed by another.
    refills: bool,
    /// Highest bit of `wr_id`, to tell the work requests of two loads apart.
    pub mark: u64,
    /// Latencies, during the measurement.
    pub latency: Option<Histogram<u64>>,
}

/// Size of the local memory for `plan`.
pub fn local_memory(plan: &Plan) -> usize {
    let span = plan.sizes.iter().map(|size| Layout::new(*size).span()).max().unwrap_or_default();
    span * (LOCAL_MEMORY / span).clamp(1, plan.qps as usize)
}

/// The error for messages that do not fit the remote memory.
pub fn too_small(size: u32, len: u64) -> String {
    format!(
        "--size {size}: the target's region has {len} bytes, which is too small: give it a larger region, or choose a smaller size"
    )
}

impl Load {
    /// Prepares messages on `qps`, each with the remote memory of its connection, or in all `regions` if there are any.
    ///
    /// # Errors
    /// The remote memory is too small.
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
            // With numbered regions this is their directory, which is only read.
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
                answers: 0,
                acknowledged: 0,
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
                // The answers are not checked, so all use the memory of the messages.
                let receive = RecvWr { wr_id: ANSWER | index as u64, sges: &[local] };
                (0..self.depth).try_for_each(|_| cx.device().post_recv(qp, receive))?;
            }
            let mut room = self.depth;
            while room > 0 {
                // The last group may have fewer messages.
                let count = room.min(self.group);
                self.post(cx, index, count)?;
                room -= count;
            }
        }
        Ok(())
    }

    /// Posts no further messages.
    pub fn stop(&mut self) {
        self.refills = false;
    }

    /// Posts up to `count` messages with one completion for all of them.
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
            dev.post_send(lane.qp, if nth == count { wr.signaled() } else { wr })?;
        }
        lane.left -= u64::from(count);
        lane.posted_at = cx.now();
        self.in_flight += u64::from(count);
        Ok(())
    }

    /// Handles completions, and posts as many messages again.
    ///
    /// # Errors
    /// Description of what failed.
    #[inline]
    pub fn completed(&mut self, cx: &mut Context<'_>, batch: &[WorkCompletion]) -> Result<(), String> {
        for wc in batch {
            if !succeeded(wc)? {
                continue;
            }
            let (index, mut count) = (wc.wr_id as u32 as usize, ((wc.wr_id ^ self.mark) >> 32) as u32);
            if self.answered {
                count = self.heard(cx, wc, index, count)?;
            } else {
                self.finished(cx, index, count);
                self.in_flight -= u64::from(count);
            }
            if self.refills && count > 0 {
                self.post(cx, index, count).map_err(|error| format!("a message cannot be posted: {error}"))?;
            }
        }
        Ok(())
    }

    /// Handles an answer, or the acknowledgement of `count` messages. Returns how many messages may follow.
    #[inline]
    fn heard(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion, index: usize, count: u32) -> Result<u32, String> {
        let is_answer = wc.opcode == WcOpcode::Recv;
        if is_answer {
            self.finished(cx, index, count);
        }
        let Some(lane) = self.lanes.get_mut(index) else { return Ok(0) };
        *(if is_answer { &mut lane.answers } else { &mut lane.acknowledged }) += count;
        // One receive per outstanding message, and none that is left for the next size.
        if is_answer && self.refills && lane.left > u64::from(lane.answers - count) {
            let receive = RecvWr { wr_id: wc.wr_id, sges: &[lane.local] };
            cx.device().post_recv(lane.qp, receive).map_err(|error| format!("a receive cannot be posted: {error}"))?;
        }
        let both = lane.answers.min(lane.acknowledged);
        lane.answers -= both;
        lane.acknowledged -= both;
        self.in_flight -= u64::from(both);
        Ok(both)
    }

    /// Counts `count` messages that are done.
    #[inline]
    fn finished(&mut self, cx: &Context<'_>, index: usize, count: u32) {
        self.done += u64::from(count);
        if let Some(latency) = &mut self.latency
            && let Some(lane) = self.lanes.get(index)
        {
            // Saturates at the histogram's bound.
            latency.saturating_record(cx.now().saturating_since(lane.posted_at).as_nanos() as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_messages_use_slots_of_a_page() {
        assert_eq!(Layout::new(2), Layout { size: 2, stride: 64, slots: 64 });
        assert_eq!(Layout::new(65), Layout { size: 65, stride: 128, slots: 32 });
        assert_eq!(Layout::new(4096), Layout { size: 4096, stride: 4096, slots: 1 });
        assert_eq!(Layout::new(65_537).slots, 1);
        assert_eq!((Layout::new(64).needs(), Layout::new(10_000).needs()), (4096, 10_000));
        assert_eq!((Layout::new(64).span(), Layout::new(10_000).span()), (4096, 10_048));
    }
}
