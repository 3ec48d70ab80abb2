//! The streams of a port, and the limits on their number.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rxe_proto::Instant;

use super::stream::{Spare, Stream};
use crate::host::HostStats;
use crate::host::event::{StreamEvent, TcpStreamId};

/// A slot for a stream. The generation counts the streams that were in it.
#[derive(Default)]
struct Slot {
    generation: u32,
    stream: Option<Box<Stream>>,
}

/// Streams of one address.
#[derive(Clone, Copy, Default)]
struct Count {
    all: usize,
    half_open: usize,
}

/// An address may have this many times as many streams as there are free places: three quarters if it is alone, and the less the more
/// others have, so that a few addresses never have all.
const PER_FREE_PLACE: usize = 3;

/// Local and remote endpoint.
type Endpoints = (SocketAddr, SocketAddr);

/// Streams by index, and by their two endpoints.
pub(super) struct StreamTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
    capacity: usize,
    half_open: usize,
    /// Half-open streams, the oldest first, and some that are not any more.
    half_open_order: VecDeque<TcpStreamId>,
    /// Streams by the peer's address, ended ones included.
    by_source: HashMap<IpAddr, Count>,
    /// The same by our port.
    by_port: HashMap<u16, usize>,
    /// Sockets for the next streams.
    spare: Vec<Spare>,
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
            half_open_order: VecDeque::new(),
            by_source: HashMap::new(),
            by_port: HashMap::new(),
            spare: Vec::new(),
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

    /// A half-open stream of this peer has opened or failed.
    pub(super) fn half_open_ended(&mut self, peer: IpAddr) {
        self.half_open -= 1;
        if let Some(count) = self.by_source.get_mut(&peer) {
            count.half_open -= 1;
        }
    }

    /// Adds a stream for a peer's SYN, which listening port `local` receives; `listening` is the number of such ports.
    ///
    /// At most half of the slots are for half-open streams, and when these are taken the oldest one is evicted: a real
    /// peer answers within a round trip, so SYNs from forged addresses do not close a port. One source has at most half
    /// of those, and three times as many streams as places are free. With several listening ports, none takes the last eighth.
    pub(super) fn accept(
        &mut self,
        now: Instant,
        local: SocketAddr,
        peer: SocketAddr,
        listening: usize,
        events: &mut VecDeque<StreamEvent>,
    ) -> Option<u32> {
        let half_open_limit = self.capacity.div_ceil(2);
        let from_source = self.by_source.get(&peer.ip()).copied().unwrap_or_default();
        if from_source.half_open >= half_open_limit.div_ceil(2) || !self.has_room_for_source(peer.ip(), from_source.all)
        {
            self.stats.tcp_source_limited.inc();
            return None;
        }
        if listening > 1 && !self.has_room_for_port(local.port()) {
            self.stats.tcp_no_room.inc();
            return None;
        }
        if self.half_open >= half_open_limit
            && let Some(oldest) = self.pop_oldest_half_open()
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

    /// Whether an address with `streams` may have another one. Those that have ended, which a new one may replace, are counted only
    /// if the others alone are not too many: SYNs beyond the limit cost a search.
    fn has_room_for_source(&self, source: IpAddr, streams: usize) -> bool {
        let fits = |streams, taken| streams < PER_FREE_PLACE * self.capacity.saturating_sub(taken);
        if streams == 0 || fits(streams, self.len()) {
            return true;
        }
        let (mut of_source, mut all) = (0, 0);
        for stream in self.indices().filter_map(|index| self.get(index)).filter(|stream| !stream.is_expendable()) {
            all += 1;
            of_source += usize::from(stream.peer.ip() == source);
        }
        fits(of_source, all)
    }

    /// Whether a listening port may have another stream.
    fn has_room_for_port(&self, port: u16) -> bool {
        let limit = (self.capacity * 7).div_ceil(8);
        if self.by_port.get(&port).is_none_or(|streams| *streams < limit) {
            return true;
        }
        let streams = self.indices().filter_map(|index| self.get(index));
        streams.filter(|stream| stream.local.port() == port && !stream.is_expendable()).count() < limit
    }

    fn pop_oldest_half_open(&mut self) -> Option<u32> {
        while let Some(id) = self.half_open_order.pop_front() {
            if self.get(id.index).is_some_and(|stream| stream.id == id && stream.is_half_open()) {
                return Some(id.index);
            }
        }
        None
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
        let spare = self.spare.pop().unwrap_or_default();
        slot.stream = Some(Box::new(Stream::new(now, id, local, peer, passive, spare)));
        let count = self.by_source.entry(peer.ip()).or_default();
        count.all += 1;
        count.half_open += usize::from(passive);
        *self.by_port.entry(local.port()).or_default() += 1;
        self.half_open += usize::from(passive);
        if passive {
            // Those at the front that have opened or failed go; the others are half open, so there are not many more.
            while let Some(&first) = self.half_open_order.front()
                && !self.get(first.index).is_some_and(|stream| stream.id == first && stream.is_half_open())
            {
                self.half_open_order.pop_front();
            }
            if self.half_open_order.len() >= 2 * self.capacity {
                let mut order = std::mem::take(&mut self.half_open_order);
                order.retain(|id| self.get(id.index).is_some_and(|stream| stream.id == *id && stream.is_half_open()));
                self.half_open_order = order;
            }
            self.half_open_order.push_back(id);
        }
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
        let half_open = usize::from(stream.is_half_open());
        self.half_open -= half_open;
        if let Some(count) = self.by_source.get_mut(&stream.peer.ip()) {
            count.all -= 1;
            count.half_open -= half_open;
            if count.all == 0 {
                self.by_source.remove(&stream.peer.ip());
            }
        }
        if let Some(count) = self.by_port.get_mut(&stream.local.port()) {
            *count -= 1;
            if *count == 0 {
                self.by_port.remove(&stream.local.port());
            }
        }
        self.forget((stream.local, stream.peer), index);
        // As many as a flood of SYNs needs.
        if self.spare.len() < self.capacity.div_ceil(2) {
            self.spare.push(stream.into_spare());
        }
    }

    fn forget(&mut self, endpoints: Endpoints, index: u32) {
        if self.by_endpoints.get(&endpoints) == Some(&index) {
            self.by_endpoints.remove(&endpoints);
        }
    }
}
