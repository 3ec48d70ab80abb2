//! Completion queues.

use std::collections::VecDeque;

use super::{CqId, WcStatus, WorkCompletion};

/// Why a completion queue could not be made, changed or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CqError {
    /// The engine holds no more completion queues.
    #[error("no more completion queues: the limit is {0}")]
    TooMany(u32),
    /// The depth is 0 or beyond the engine's limit.
    #[error("a completion queue holds 1 to {0} entries")]
    Depth(u32),
    /// More completions wait than the new depth holds.
    #[error("{0} completions wait, more than the new depth")]
    Occupied(usize),
    /// Queue pairs still complete to it.
    #[error("{0} queues still complete to it")]
    InUse(u32),
    /// There is no such completion queue.
    #[error("no such completion queue")]
    Unknown,
}

#[derive(Debug)]
struct Cq {
    id: CqId,
    entries: VecDeque<WorkCompletion>,
    depth: usize,
    /// Whether the queue is in the table's `ready` list.
    listed: bool,
    /// Whether a completion was lost because the queue was full, since it has its depth.
    overflowed: bool,
    /// The completion that notifies the owner.
    notify: Notify,
    /// Send and receive queues that complete here.
    users: u32,
}

/// The completion that notifies the owner of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Notify {
    None,
    /// The next one that was solicited, or failed.
    Solicited,
    /// The next one.
    Next,
}

/// The completion queues of one engine. The low 16 bits of a [`CqId`] are an index, the rest distinguishes successive
/// queues with that index.
#[derive(Debug)]
pub(super) struct CqTable {
    slots: Vec<Option<Cq>>,
    ready: VecDeque<CqId>,
    /// Queues with a pending notification, each at most once: arming again withdraws a pending notification.
    notified: VecDeque<CqId>,
    created: u32,
    max: u32,
    max_depth: u32,
}

impl CqTable {
    pub(super) fn new(max: u32, max_depth: u32) -> CqTable {
        CqTable { slots: Vec::new(), ready: VecDeque::new(), notified: VecDeque::new(), created: 0, max, max_depth }
    }

    pub(super) fn create(&mut self, depth: usize) -> Result<CqId, CqError> {
        self.check_depth(depth)?;
        let index = match self.slots.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.slots.len() >= self.max as usize => return Err(CqError::TooMany(self.max)),
            None => {
                self.slots.push(None);
                // Each queue is listed at most once, so listing never allocates.
                self.ready.reserve(self.slots.len() - self.ready.len());
                self.notified.reserve(self.slots.len() - self.notified.len());
                self.slots.len() - 1
            }
        };
        let id = CqId(self.created << 16 | index as u32);
        self.created = self.created.wrapping_add(1);
        self.slots[index] = Some(Cq {
            id,
            entries: VecDeque::with_capacity(depth),
            depth,
            listed: false,
            overflowed: false,
            notify: Notify::None,
            users: 0,
        });
        Ok(id)
    }

    /// Completion queues in use.
    pub(super) fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    pub(super) fn destroy(&mut self, id: CqId) -> Result<(), CqError> {
        let users = self.get_mut(id).ok_or(CqError::Unknown)?.users;
        if users != 0 {
            return Err(CqError::InUse(users));
        }
        self.slots[usize::from(id.0 as u16)] = None;
        self.ready.retain(|&listed| listed != id);
        self.notified.retain(|&listed| listed != id);
        Ok(())
    }

    pub(super) fn resize(&mut self, id: CqId, depth: usize) -> Result<(), CqError> {
        self.check_depth(depth)?;
        let cq = self.get_mut(id).ok_or(CqError::Unknown)?;
        if cq.entries.len() > depth {
            return Err(CqError::Occupied(cq.entries.len()));
        }
        cq.entries.reserve(depth - cq.entries.len());
        cq.depth = depth;
        cq.overflowed = false;
        Ok(())
    }

    fn check_depth(&self, depth: usize) -> Result<(), CqError> {
        if depth == 0 || depth > self.max_depth as usize { Err(CqError::Depth(self.max_depth)) } else { Ok(()) }
    }

    /// Counts a queue that completes to `id`; false when there is no such completion queue.
    pub(super) fn attach(&mut self, id: CqId) -> bool {
        self.get_mut(id).map(|cq| cq.users += 1).is_some()
    }

    pub(super) fn detach(&mut self, id: CqId) {
        if let Some(cq) = self.get_mut(id) {
            cq.users -= 1;
        }
    }

    fn get_mut(&mut self, id: CqId) -> Option<&mut Cq> {
        self.slots.get_mut(usize::from(id.0 as u16))?.as_mut().filter(|cq| cq.id == id)
    }

    /// Adds a completion; false when the queue is full (or gone).
    #[inline(always)]
    pub(super) fn push(&mut self, id: CqId, wc: WorkCompletion) -> bool {
        let Some(cq) = self.slots.get_mut(usize::from(id.0 as u16)).and_then(Option::as_mut) else { return false };
        if cq.id != id || cq.entries.len() >= cq.depth {
            return false;
        }
        cq.entries.push_back(wc);
        // compliance.md [CQ-NOTIFY-SOLICITED]: With "solicited only", solicited completions and failures notify.
        if cq.notify == Notify::Next
            || cq.notify == Notify::Solicited && (wc.solicited || wc.status != WcStatus::Success)
        {
            // compliance.md [CQ-NOTIFY]: Each request yields one notification, for later completions only.
            cq.notify = Notify::None;
            self.notified.push_back(id);
        }
        if !cq.listed {
            cq.listed = true;
            self.ready.push_back(id);
        }
        true
    }

    /// Records that a completion was lost. Returns whether it is the first one since the queue has its depth.
    pub(super) fn record_overflow(&mut self, id: CqId) -> bool {
        self.get_mut(id).is_some_and(|cq| !std::mem::replace(&mut cq.overflowed, true))
    }

    /// Completions in a queue.
    pub(super) fn entries(&self, id: CqId) -> Option<usize> {
        let cq = self.slots.get(usize::from(id.0 as u16))?.as_ref().filter(|cq| cq.id == id)?;
        Some(cq.entries.len())
    }

    /// Queues that [`poll_ready`](Self::poll_ready) may return.
    pub(super) fn listed(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn request_notify(&mut self, id: CqId, solicited_only: bool) -> Result<(), CqError> {
        let cq = self.get_mut(id).ok_or(CqError::Unknown)?;
        // "Next completion" overrides "solicited only", as in the standard's "Request Completion Notification".
        // compliance.md [CQ-NOTIFY-SOLICITED]: With "solicited only", solicited completions and failures notify.
        if cq.notify != Notify::Next {
            cq.notify = if solicited_only { Notify::Solicited } else { Notify::Next };
        }
        self.notified.retain(|&listed| listed != id);
        Ok(())
    }

    pub(super) fn poll_notified(&mut self) -> Option<CqId> {
        self.notified.pop_front()
    }

    pub(super) fn poll(&mut self, id: CqId, out: &mut Vec<WorkCompletion>, max: usize) -> usize {
        let Some(cq) = self.get_mut(id) else { return 0 };
        let n = cq.entries.len().min(max);
        // As slices, so that they are copied at once.
        let (older, newer) = cq.entries.as_slices();
        let from_older = older.len().min(n);
        out.extend_from_slice(&older[..from_older]);
        out.extend_from_slice(&newer[..n - from_older]);
        cq.entries.drain(..n);
        n
    }

    pub(super) fn poll_one(&mut self, id: CqId) -> Option<WorkCompletion> {
        self.get_mut(id)?.entries.pop_front()
    }

    pub(super) fn poll_ready(&mut self) -> Option<CqId> {
        while let Some(id) = self.ready.pop_front() {
            if let Some(cq) = self.get_mut(id) {
                if !cq.entries.is_empty() {
                    self.ready.push_back(id);
                    return Some(id);
                }
                cq.listed = false;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Qpn, WcOpcode, WcStatus};

    fn wc(wr_id: u64) -> WorkCompletion {
        WorkCompletion {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            qpn: Qpn::new(2),
            byte_len: 0,
            imm: None,
            invalidated_rkey: None,
            solicited: false,
            src_qpn: None,
        }
    }

    #[test]
    fn ready_queues_are_returned_round_robin() {
        let mut cqs = CqTable::new(8, 8);
        let (a, b) = (cqs.create(2).unwrap(), cqs.create(2).unwrap());
        assert_eq!(cqs.poll_ready(), None);
        assert!(cqs.push(a, wc(1)) && cqs.push(b, wc(2)) && cqs.push(a, wc(3)));
        assert!(!cqs.push(a, wc(4)), "full");
        assert_eq!((cqs.poll_ready(), cqs.poll_ready(), cqs.poll_ready()), (Some(a), Some(b), Some(a)));
        let mut out = Vec::new();
        assert_eq!(cqs.poll(a, &mut out, 16), 2);
        assert_eq!(out.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 3]);
        assert_eq!((cqs.poll_ready(), cqs.poll_ready()), (Some(b), Some(b)));
        assert_eq!(cqs.poll_one(b).map(|wc| wc.wr_id), Some(2));
        assert_eq!(cqs.poll_ready(), None);
    }

    #[test]
    fn a_queue_that_is_left_full_does_not_starve_the_others() {
        let mut cqs = CqTable::new(8, 8);
        let (full, a, b) = (cqs.create(2).unwrap(), cqs.create(2).unwrap(), cqs.create(2).unwrap());
        assert_eq!((cqs.listed(), cqs.entries(full), cqs.entries(CqId(99))), (0, Some(0), None));
        for cq in [full, a, b] {
            assert!(cqs.push(cq, wc(1)));
        }
        // The owner has no room for the completions of the first one.
        for _ in 0..3 {
            let mut polled = Vec::new();
            for _ in 0..cqs.listed() {
                let Some(cq) = cqs.poll_ready() else { break };
                polled.push(cq);
                cqs.poll(cq, &mut Vec::new(), if cq == full { 0 } else { 2 });
            }
            polled.sort();
            assert_eq!(polled, [full, a, b]);
            assert_eq!([full, a, b].map(|cq| cqs.entries(cq)), [Some(1), Some(0), Some(0)]);
            for cq in [a, b] {
                assert!(cqs.push(cq, wc(2)));
            }
        }
        assert_eq!(cqs.poll_one(full).map(|wc| wc.wr_id), Some(1));
    }

    #[test]
    fn an_overflow_is_recorded_once_for_each_depth() {
        let mut cqs = CqTable::new(8, 8);
        let a = cqs.create(1).unwrap();
        assert!(cqs.push(a, wc(1)) && !cqs.push(a, wc(2)));
        assert!(cqs.record_overflow(a) && !cqs.record_overflow(a));
        cqs.resize(a, 2).unwrap();
        assert!(cqs.record_overflow(a));
        assert!(!cqs.record_overflow(CqId(99)), "a queue that is gone");
    }

    // [CQ-NOTIFY-SOLICITED]
    #[test]
    fn each_request_yields_one_notification() {
        let mut cqs = CqTable::new(4, 8);
        let a = cqs.create(8).unwrap();
        assert!(cqs.push(a, wc(1)));
        assert_eq!(cqs.poll_notified(), None, "not armed");
        cqs.request_notify(a, true).unwrap();
        assert!(cqs.push(a, wc(2)));
        assert_eq!(cqs.poll_notified(), None, "not solicited");
        assert!(cqs.push(a, WorkCompletion { solicited: true, ..wc(3) }));
        assert!(cqs.push(a, WorkCompletion { solicited: true, ..wc(4) }));
        assert_eq!((cqs.poll_notified(), cqs.poll_notified()), (Some(a), None));
        cqs.request_notify(a, true).unwrap();
        assert!(cqs.push(a, WorkCompletion { status: WcStatus::WrFlushErr, ..wc(5) }));
        assert_eq!(cqs.poll_notified(), Some(a), "failures count as solicited");
        cqs.request_notify(a, false).unwrap();
        cqs.request_notify(a, true).unwrap();
        assert!(cqs.push(a, wc(6)));
        assert_eq!(cqs.poll_notified(), Some(a), "next overrides solicited");
        assert_eq!(cqs.request_notify(CqId(99), false), Err(CqError::Unknown));
    }

    #[test]
    fn a_destroyed_queues_id_is_not_reused() {
        let mut cqs = CqTable::new(1, 8);
        let a = cqs.create(1).unwrap();
        assert_eq!(cqs.create(1), Err(CqError::TooMany(1)));
        assert!(cqs.attach(a));
        assert_eq!(cqs.destroy(a), Err(CqError::InUse(1)));
        cqs.detach(a);
        assert_eq!(cqs.destroy(a), Ok(()));
        let b = cqs.create(1).unwrap();
        assert_ne!(a, b);
        assert!(!cqs.push(a, wc(1)));
        assert_eq!(cqs.resize(b, 0), Err(CqError::Depth(8)));
        assert!(cqs.push(b, wc(1)));
        assert_eq!(cqs.resize(b, 3), Ok(()));
        assert!(cqs.push(b, wc(2)));
        assert_eq!(cqs.resize(b, 1), Err(CqError::Occupied(2)));
    }
}
