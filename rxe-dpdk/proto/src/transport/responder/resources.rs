//! READ and atomic resources of a responder: what it needs to answer them, and to repeat the answers.

use std::collections::VecDeque;

use crate::time::Instant;
use crate::transport::Operation;
use crate::transport::seq::Seq;

/// A READ or atomic that was accepted.
#[derive(Clone, Debug)]
pub(in crate::transport) struct Resource {
    /// Its first PSN, and how many it takes.
    pub(in crate::transport) first: Seq,
    pub(in crate::transport) packets: u32,
    /// The MSN that counts it: used in its responses, so that a requester that relies on the MSN completes nothing
    /// beyond it.
    pub(in crate::transport) msn: u32,
    pub(in crate::transport) kind: Kind,
    /// When the request came.
    pub(in crate::transport) begun: Instant,
    /// The responses in progress, if any are due.
    pub(in crate::transport) reply: Option<Reply>,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::transport) enum Kind {
    Read {
        rkey: u32,
        va: u64,
        len: u32,
    },
    Atomic {
        op: AtomicKind,
        original: u64,
    },
    /// Answered like a READ of nothing, as is ATOMIC WRITE.
    Flush,
    AtomicWrite,
}

impl Kind {
    /// The operation whose time is counted.
    pub(in crate::transport) fn operation(self) -> Operation {
        match self {
            Kind::Read { .. } => Operation::Read,
            Kind::Atomic { .. } | Kind::AtomicWrite => Operation::Atomic,
            Kind::Flush => Operation::Flush,
        }
    }
}

/// Kind of an executed atomic: a duplicate must be of the same kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::transport) enum AtomicKind {
    CompareSwap,
    FetchAdd,
}

/// Progress of the responses.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct Reply {
    /// Their first PSN: this response is FIRST or ONLY, even when it is in the middle of the original READ.
    pub(in crate::transport) from: Seq,
    /// The next response.
    pub(in crate::transport) next: Seq,
    /// The bytes still to send.
    pub(in crate::transport) va: u64,
    pub(in crate::transport) left: u32,
    /// Whether they repeat responses that were all sent before.
    pub(in crate::transport) replay: bool,
}

impl Resource {
    /// One past its last PSN.
    #[inline]
    pub(in crate::transport) fn end(&self) -> Seq {
        self.first.add(self.packets)
    }

    /// Whether all responses have been sent once.
    #[inline]
    pub(in crate::transport) fn is_answered(&self) -> bool {
        self.reply.is_none_or(|reply| reply.replay)
    }
}

/// The ring of resources, oldest first. As PSNs only grow, that is the order in which answers must go out.
#[derive(Debug, Default)]
pub(in crate::transport) struct Resources {
    ring: VecDeque<Resource>,
    depth: usize,
    /// Number of resources with a reply due, and an index that none of them is below.
    due: usize,
    from: usize,
}

impl Resources {
    /// Room for `depth` READs and atomics.
    pub(in crate::transport) fn new(depth: usize) -> Resources {
        Resources { ring: VecDeque::with_capacity(depth), depth, due: 0, from: 0 }
    }

    /// Bytes allocated for a ring of `depth`.
    pub(in crate::transport) fn footprint(depth: usize) -> usize {
        depth * size_of::<Resource>()
    }

    /// Whether one more can be accepted: the oldest is dropped if it has been answered, even while its responses are
    /// being repeated: a peer that sends a further request has received them, so the repetition is for a late copy.
    #[inline]
    pub(in crate::transport) fn has_room(&self) -> bool {
        // compliance.md [RC-RSP-READ-DEPTH-COPY]: A late copy of an answered READ or atomic does not count as
        // outstanding.
        if self.ring.len() == self.depth {
            self.ring.front().is_some_and(Resource::is_answered)
        } else {
            self.ring.len() < self.depth || self.has_room_above()
        }
    }

    /// The same after the depth was reduced below what was outstanding.
    #[cold]
    fn has_room_above(&self) -> bool {
        let dropped = self.ring.len() + 1 - self.depth;
        self.depth > 0 && self.ring.iter().take(dropped).all(Resource::is_answered)
    }

    /// Changes the depth. Whatever is outstanding is answered first, even if it is more than the new depth.
    pub(in crate::transport) fn resize(&mut self, depth: usize) {
        self.depth = depth;
        while self.ring.len() > depth && self.ring.front().is_some_and(Resource::is_answered) {
            self.drop_oldest();
        }
        self.ring.reserve(depth.saturating_sub(self.ring.len()));
    }

    #[inline]
    fn drop_oldest(&mut self) {
        if self.ring.pop_front().is_some_and(|oldest| oldest.reply.is_some()) {
            self.due -= 1;
        }
        self.from = self.from.saturating_sub(1);
    }

    /// Adds a resource whose reply is due. Call only if [`has_room`](Self::has_room).
    // Inlined, so that the resource is built in place.
    #[inline(always)]
    pub(in crate::transport) fn push(&mut self, resource: Resource) {
        while self.ring.len() >= self.depth.max(1) {
            self.drop_oldest();
        }
        if self.due == 0 {
            self.from = self.ring.len();
        }
        self.due += 1;
        self.ring.push_back(resource);
    }

    /// The oldest one whose reply is due.
    #[inline]
    pub(in crate::transport) fn oldest_due(&mut self) -> Option<&mut Resource> {
        if self.due == 0 {
            return None;
        }
        while self.ring.get(self.from)?.reply.is_none() {
            self.from += 1;
        }
        self.ring.get_mut(self.from)
    }

    /// Whether any reply is due.
    #[inline]
    pub(in crate::transport) fn is_due(&self) -> bool {
        self.due > 0
    }

    /// The first PSN of the oldest one whose reply is due.
    #[inline]
    pub(in crate::transport) fn oldest_due_psn(&mut self) -> Option<Seq> {
        self.oldest_due().map(|resource| resource.first)
    }

    /// Records that the reply of the oldest due one has been sent, or is dropped. Call [`oldest_due`](Self::oldest_due) before.
    #[inline]
    pub(in crate::transport) fn done(&mut self) {
        if let Some(resource) = self.ring.get_mut(self.from) {
            resource.reply = None;
            self.due -= 1;
        }
    }

    /// The resource that `psn` belongs to, with its index.
    pub(in crate::transport) fn find(&self, psn: Seq) -> Option<(usize, &Resource)> {
        self.ring.iter().enumerate().rev().find(|(_, r)| r.first <= psn && psn < r.end())
    }

    /// Schedules a reply, replacing one in progress.
    pub(in crate::transport) fn reply_again(&mut self, index: usize, reply: Reply) {
        if let Some(resource) = self.ring.get_mut(index)
            && resource.reply.replace(reply).is_none()
        {
            self.from = if self.due == 0 { index } else { self.from.min(index) };
            self.due += 1;
        }
    }

    /// Drops all replies.
    pub(in crate::transport) fn abandon(&mut self) {
        for resource in &mut self.ring {
            resource.reply = None;
        }
        self.due = 0;
    }
}
