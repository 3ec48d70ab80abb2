//! The streams of a port, and the limits on their number.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use rxe_proto::Instant;

use super::stream::Stream;
use crate::host::HostStats;
use crate::host::event::{StreamEvent, TcpStreamId};

/// A slot for a stream. The generation counts the streams that were in it.
#[derive(Default)]
struct Slot {
    generation: u32,
    stream: Option<Box<Stream>>,
}

/// Local and remote endpoint.
type Endpoints = (SocketAddr, SocketAddr);

/// Streams by index, and by their two endpoints.
pub(super) struct StreamTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
    capacity: usize,
    half_open: usize,
    by_endpoints: BTreeMap<Endpoints, u32>,
    stats: Arc<HostStats>,
}

impl StreamTable {
    pub(super) fn new(capacity: usize, stats: Arc<HostStats>) -> StreamTable {
        let capacity = capacity.clamp(1, 1 << 16);
        StreamTable {
            slots: Vec::new(),
            free: Vec::new(),
            capacity,
            half_open: 0,
            by_endpoints: BTreeMap::new(),
            stats,
        }
    }

    /// Streams in any state.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// All indices that may have a stream.
    pub(super) fn indices(&self) -> std::ops::Range<u32> {
        // At most `capacity`, which fits.
        0..self.slots.len() as u32
    }

    pub(super) fn get(&self, index: u32) -> Option<&Stream> {
        self.slots.get(index as usize)?.stream.as_deref()
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Stream> {
        self.slots.get_mut(index as usize)?.stream.as_deref_mut()
    }

    pub(super) fn by_id(&mut self, id: TcpStreamId) -> Option<&mut Stream> {
        self.get_mut(id.index).filter(|stream| stream.id == id)
    }

    pub(super) fn find(&self, local: SocketAddr, peer: SocketAddr) -> Option<u32> {
        self.by_endpoints.get(&(local, peer)).copied()
    }

    /// A half-open stream has opened or failed.
    pub(super) fn half_open_ended(&mut self) {
        self.half_open -= 1;
    }

    /// Adds a stream for a peer's SYN, which listening port `local` receives; `listening` is the number of such ports.
    ///
    /// At most half of the slots are for half-open streams, and when these are taken the oldest one is evicted: a real
    /// peer answers within a round trip, so SYNs from forged addresses do not close a port. One source has at most half
    /// of those, and three quarters of all slots. With several listening ports, none takes the last eighth.
    pub(super) fn accept(
        &mut self,
        now: Instant,
        local: SocketAddr,
        peer: SocketAddr,
        listening: usize,
        events: &mut VecDeque<StreamEvent>,
    ) -> Option<u32> {
        let half_open_limit = self.capacity.div_ceil(2);
        let (mut from_source, mut half_open_from_source, mut to_port) = (0, 0, 0);
        let mut oldest: Option<(Option<Instant>, u32)> = None;
        for (index, stream) in self.indices().filter_map(|index| Some((index, self.get(index)?))) {
            if stream.is_expendable() {
                continue;
            }
            let half_open = stream.is_half_open();
            let same_source = stream.peer.ip() == peer.ip();
            from_source += usize::from(same_source);
            half_open_from_source += usize::from(same_source && half_open);
            to_port += usize::from(stream.local.port() == local.port());
            // All half-open streams have the same time limit: the first to reach it is the oldest.
            if half_open && oldest.is_none_or(|(limit, _)| stream.limit < limit) {
                oldest = Some((stream.limit, index));
            }
        }
        if half_open_from_source >= half_open_limit.div_ceil(2) || from_source >= (self.capacity * 3).div_ceil(4) {
            self.stats.tcp_source_limited.inc();
            return None;
        }
        if listening > 1 && to_port >= (self.capacity * 7).div_ceil(8) {
            self.stats.tcp_no_room.inc();
            return None;
        }
        if self.half_open >= half_open_limit
            && let Some((_, oldest)) = oldest
        {
            self.stats.tcp_half_open_evicted.inc();
            self.remove(oldest);
        }
        let new = self.insert(now, local, peer, true, events);
        if new.is_none() {
            self.stats.tcp_no_room.inc();
        }
        new
    }

    /// Adds a stream. `None` when the table is full, or when too many events wait.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        local: SocketAddr,
        peer: SocketAddr,
        passive: bool,
        events: &mut VecDeque<StreamEvent>,
    ) -> Option<u32> {
        // A user that takes no events must not accumulate them through new streams.
        if events.len() >= 4 * self.capacity {
            return None;
        }
        if self.len() >= self.capacity {
            let expendable = self.indices().find(|&index| self.get(index).is_some_and(Stream::is_expendable))?;
            // It was reset, and its user has not read the last bytes.
            if let Some(stream) = self.get(expendable).filter(|stream| stream.is_usable()) {
                events.push_back(StreamEvent::Closed { stream: stream.id, reset: true });
            }
            self.remove(expendable);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let slot = self.slots.get_mut(index as usize)?;
        let id = TcpStreamId { index, generation: slot.generation };
        slot.stream = Some(Box::new(Stream::new(now, id, local, peer, passive)));
        self.half_open += usize::from(passive);
        self.by_endpoints.insert((local, peer), index);
        Some(index)
    }

    /// Frees the endpoints of a stream whose connection has ended, for a new one.
    pub(super) fn detach(&mut self, index: u32) {
        let Some(stream) = self.get(index) else { return };
        let (endpoints, usable) = ((stream.local, stream.peer), stream.is_usable());
        self.forget(endpoints, index);
        // A stream with bytes or an event for its user stays.
        if !usable {
            self.remove(index);
        }
    }

    pub(super) fn remove(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let Some(stream) = slot.stream.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        self.half_open -= usize::from(stream.is_half_open());
        self.forget((stream.local, stream.peer), index);
    }

    fn forget(&mut self, endpoints: Endpoints, index: u32) {
        if self.by_endpoints.get(&endpoints) == Some(&index) {
            self.by_endpoints.remove(&endpoints);
        }
    }
}
