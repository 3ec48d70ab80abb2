//! `--verify`: every message has its own bytes, which are checked where they have arrived.
//!
//! Messages use places, each of which has some bytes of local and of remote memory. A place has one message at a time; the
//! next one starts when it has been checked:
//!
//! * WRITEs and READs: a WRITE of new bytes, then a READ of them.
//! * atomics: a FETCH_ADD, which returns the sum that the previous one has left.
//! * SENDs: a SEND of new bytes, which the peer sends back. There is one place, since the peer has one buffer.
//!
//! With fewer places than queue pairs, each message of a place uses the next queue pair.
//!
//! With numbered regions the remote bytes are cells, which lie in all of the regions. Each place uses its own cells in turn,
//! so that every region is used.

use hdrhistogram::Histogram;
use rxe_proto::Instant;
use rxe_proto::verbs::{
    Access, MemoryRegion, ProtectionDomain, QueuePair, Rc, RecvWr, RemoteAddr, Sge, WcOpcode, WorkCompletion,
    WorkRequest,
};
use rxe_service::Context;

use crate::load::RemoteMemory;
use crate::payload::{Message, Payload};
use crate::plan::{Plan, Verb};
use crate::session::succeeded;

/// Places begin at multiples of this.
const LINE: u32 = 64;
/// Maximum size of the local memory in bytes.
const LOCAL_MEMORY: u64 = 64 << 20;

/// The completion that a place waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    Written,
    Read,
    Added,
    Answered,
}

/// A place with its present message.
#[derive(Clone, Copy, Debug)]
struct Place {
    waits: Waits,
    /// Time of the last post.
    since: Instant,
    /// Messages of the place so far.
    turn: u64,
    /// CRC-32C of the present message, where it is checked by digest.
    digest: u32,
}

/// All outstanding messages.
#[derive(Debug)]
pub struct Verify {
    verb: Verb,
    size: u32,
    stride: u32,
    lanes: Vec<(QueuePair<Rc>, RemoteMemory)>,
    /// Whether each queue pair has received an answer. The first one may be shorter than the message.
    answered: Vec<bool>,
    places: Vec<Place>,
    /// The numbered regions that contain the cells; empty if each place has one cell in the memory of its queue pair.
    regions: Vec<RemoteMemory>,
    cells: Cells,
    /// The value that the next FETCH_ADD in each cell must return.
    expected: Vec<Option<u64>>,
    memory: MemoryRegion,
    left: u64,
    /// Messages checked.
    pub done: u64,
    /// Outstanding messages.
    pub in_flight: u64,
    refills: bool,
    /// Latencies, during the measurement; without the time of the check.
    pub latency: Option<Histogram<u64>>,
    payload: Payload,
}

/// The addend of the FETCH_ADD of a turn.
fn addend(turn: u64) -> u64 {
    turn % 1000 + 1
}

/// Bytes of all whole strides in `regions` regions of `len` bytes. The last stride of a region may be as short as the message.
fn all_strides(regions: u64, len: u64, stride: u64) -> u64 {
    regions * (len / stride).max(1) * stride
}

/// Number of places for `qps` queue pairs.
fn places(verb: Verb, qps: u64, depth: u64, stride: u64, len: u64) -> u64 {
    match verb {
        Verb::Send => 1,
        _ => (qps * depth).min(len / stride).min(LOCAL_MEMORY / (2 * stride)).max(1),
    }
}

/// Assignment of cells to places: round robin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cells {
    places: usize,
    /// At least the number of places.
    count: usize,
}

impl Cells {
    /// At least one for each of `places`, and one in each of `regions`.
    fn new(places: usize, regions: usize) -> Cells {
        Cells { places, count: places.max(regions) }
    }

    /// The cell that a place uses for the message of this turn.
    fn of(self, place: usize, turn: u64) -> usize {
        let own = (self.count - place).div_ceil(self.places);
        place + self.places * (turn % own as u64) as usize
    }
}

impl Verify {
    /// Prepares messages on the queue pairs `lanes` of protection domain `pd`, each with the remote memory of its connection,
    /// or in all `regions` if there are any.
    ///
    /// # Errors
    /// The remote or the local memory is too small.
    pub fn new(
        cx: &mut Context<'_>,
        plan: &Plan,
        verb: Verb,
        size: u32,
        lanes: Vec<(QueuePair<Rc>, RemoteMemory)>,
        regions: &[RemoteMemory],
        pd: ProtectionDomain,
    ) -> Result<Verify, String> {
        let stride = size.next_multiple_of(LINE);
        let told = lanes.iter().map(|(_, memory)| memory.len).min();
        let (qps, len) =
            (lanes.len() as u64, regions.iter().map(|region| region.len).min().or(told).unwrap_or_default());
        if verb != Verb::Send && len < u64::from(size) {
            return Err(crate::load::too_small(size, len));
        }
        let len = if regions.is_empty() { len } else { all_strides(regions.len() as u64, len, stride.into()) };
        let count = places(verb, qps, u64::from(plan.depth()), u64::from(stride), len);
        if verb == Verb::Atomic && count < qps {
            return Err(format!(
                "to verify atomics on {qps} queue pairs takes {} bytes, and the target has {len}: give it a larger \
                 region, or choose a smaller --qp",
                qps * u64::from(stride)
            ));
        }
        let memory = cx.alloc_memory(2 * (count * u64::from(stride)) as usize).map_err(|error| error.to_string())?;
        let memory = cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE).map_err(|error| error.to_string())?;
        let place = Place { waits: Waits::Answered, since: Instant::ZERO, turn: 0, digest: 0 };
        let cells = Cells::new(count as usize, regions.len());
        Ok(Verify {
            verb,
            size,
            stride,
            answered: vec![false; lanes.len()],
            lanes,
            places: vec![place; count as usize],
            regions: regions.to_vec(),
            cells,
            expected: vec![None; cells.count],
            memory,
            left: 0,
            done: 0,
            in_flight: 0,
            refills: true,
            latency: None,
            payload: Payload::new(size),
        })
    }

    /// Deregisters the local memory.
    pub fn close(&self, cx: &mut Context<'_>) {
        let _ = cx.device().dereg_mr(&self.memory);
    }

    /// Posts the first message of every place; `messages` in all.
    ///
    /// # Errors
    /// Description of what failed.
    pub fn start(&mut self, cx: &mut Context<'_>, messages: u64) -> Result<(), String> {
        self.left = messages;
        (0..self.places.len()).try_for_each(|index| self.begin(cx, index))
    }

    /// Starts no further messages.
    pub fn stop(&mut self) {
        self.refills = false;
    }

    /// Index of the queue pair of the present message of a place.
    fn lane(&self, index: usize) -> usize {
        let (lanes, turn) = (self.lanes.len(), self.places[index].turn as usize);
        if self.places.len() < lanes { (index + turn * self.places.len()) % lanes } else { index % lanes }
    }

    /// Offsets of a place's source and destination in the local memory.
    fn offsets(&self, index: usize) -> (usize, usize) {
        let out = 2 * index * self.stride as usize;
        (out, out + self.stride as usize)
    }

    fn sge(&self, offset: usize) -> Sge {
        Sge { addr: self.memory.addr() + offset as u64, length: self.size, lkey: self.memory.lkey() }
    }

    /// Starts a message.
    fn begin(&mut self, cx: &mut Context<'_>, index: usize) -> Result<(), String> {
        if self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        self.in_flight += 1;
        let (out, back) = self.offsets(index);
        let written = self.payload.write(self.message(index), self.memory.memory(), out);
        self.places[index].digest = written.map_err(|error| error.to_string())?;
        let waits = match self.verb {
            Verb::Write | Verb::Read => Waits::Written,
            Verb::Atomic => Waits::Added,
            Verb::Send => {
                let qp = self.lanes[self.lane(index)].0;
                let wr = RecvWr { wr_id: index as u64, sges: &[self.sge(back)] };
                cx.device().post_recv(qp, wr).map_err(|error| error.to_string())?;
                Waits::Answered
            }
        };
        self.go(cx, index, waits)
    }

    /// Remote address of the present message of a place; `told` is the memory of its queue pair.
    fn remote(&self, index: usize, told: RemoteMemory) -> RemoteAddr {
        let cell = self.cell(index);
        let regions = self.regions.len().max(1);
        let RemoteMemory { addr, rkey, .. } = self.regions.get(cell % regions).copied().unwrap_or(told);
        RemoteAddr { addr: addr + (cell / regions) as u64 * u64::from(self.stride), rkey }
    }

    fn cell(&self, index: usize) -> usize {
        self.cells.of(index, self.places[index].turn)
    }

    /// Posts the request whose completion the place waits for.
    fn go(&mut self, cx: &mut Context<'_>, index: usize, waits: Waits) -> Result<(), String> {
        let (qp, memory) = self.lanes[self.lane(index)];
        let (out, back) = self.offsets(index);
        let remote = self.remote(index, memory);
        let (source, sink) = ([self.sge(out)], [self.sge(back)]);
        let wr = match waits {
            Waits::Written => WorkRequest::write(&source, remote).signaled(),
            Waits::Read => WorkRequest::read(&sink, remote).signaled(),
            Waits::Added => WorkRequest::fetch_add(&sink, remote, addend(self.places[index].turn)).signaled(),
            // Its answer is its completion.
            Waits::Answered => WorkRequest::send(&source),
        };
        let wr = wr.wr_id(index as u64);
        (self.places[index].waits, self.places[index].since) = (waits, cx.now());
        cx.device().post_send(qp, wr).map_err(|error| format!("a message cannot be posted: {error}"))
    }

    /// Handles completions: checks the data, and posts the next requests.
    ///
    /// # Errors
    /// Description of what failed, wrong data above all.
    pub fn completed(&mut self, cx: &mut Context<'_>, batch: &[WorkCompletion]) -> Result<(), String> {
        for wc in batch {
            if !succeeded(wc)? {
                continue;
            }
            let index = wc.wr_id as usize;
            let Some(place) = self.places.get(index).copied() else { continue };
            let counts = match self.verb {
                Verb::Write => place.waits == Waits::Written,
                Verb::Send => wc.opcode == WcOpcode::Recv,
                Verb::Read | Verb::Atomic => place.waits != Waits::Written,
            };
            if let Some(latency) = self.latency.as_mut().filter(|_| counts) {
                latency.saturating_record(cx.now().saturating_since(place.since).as_nanos() as u64);
            }
            match place.waits {
                Waits::Written => {
                    self.go(cx, index, Waits::Read)?;
                    continue;
                }
                Waits::Read => self.compare(index)?,
                Waits::Added => self.add_up(index)?,
                Waits::Answered if wc.opcode == WcOpcode::Recv => {
                    let lane = self.lane(index);
                    let first = !std::mem::replace(&mut self.answered[lane], true);
                    match wc.byte_len {
                        length if length == self.size => self.compare(index)?,
                        1 if first => {}
                        length => return Err(format!("the answer to a message of {} bytes has {length}", self.size)),
                    }
                }
                Waits::Answered => continue,
            }
            self.done += 1;
            self.in_flight -= 1;
            self.places[index].turn += 1;
            if self.refills {
                self.begin(cx, index)?;
            }
        }
        Ok(())
    }

    /// The present message of a place.
    fn message(&self, index: usize) -> Message {
        Message { place: index as u64, turn: self.places[index].turn }
    }

    /// Checks the bytes that came back to a place.
    fn compare(&mut self, index: usize) -> Result<(), String> {
        let (_, back) = self.offsets(index);
        let (message, digest) = (self.message(index), self.places[index].digest);
        let checked = self.payload.check(message, self.memory.memory(), back, digest);
        match checked.map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(difference) => Err(format!(
                "wrong bytes in message {} of place {index} (queue pair {}): {difference}",
                message.turn,
                self.lanes[self.lane(index)].0.qpn()
            )),
        }
    }

    /// Compares the result of a FETCH_ADD with the sum of the previous ones.
    fn add_up(&mut self, index: usize) -> Result<(), String> {
        let (_, back) = self.offsets(index);
        let mut was = [0; 8];
        self.memory.memory().read(back, &mut was).map_err(|error| error.to_string())?;
        let was = u64::from_le_bytes(was);
        let (turn, cell) = (self.places[index].turn, self.cell(index));
        let expected = self.expected[cell];
        if expected.is_some_and(|expected| expected != was) {
            let qpn = self.lanes[self.lane(index)].0.qpn();
            return Err(format!(
                "wrong sum: FETCH_ADD {turn} of place {index} (queue pair {qpn}) returned {was:#x}, expected {:#x}",
                expected.unwrap_or_default()
            ));
        }
        self.expected[cell] = Some(was.wrapping_add(addend(turn)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_use_every_region_and_share_no_cell() {
        for (places, regions) in [(1, 1), (64, 1), (32, 1000), (1000, 1000), (1001, 1000), (7, 10)] {
            let cells = Cells::new(places, regions);
            assert!(cells.count >= places && cells.count >= regions);
            // The place that has used each cell.
            let mut owners = vec![None; cells.count];
            for (place, turn) in (0..places).flat_map(|place| (0..2000).map(move |turn| (place, turn))) {
                let owner = owners[cells.of(place, turn)].get_or_insert(place);
                assert_eq!(*owner, place);
            }
            assert!(owners.iter().all(Option::is_some), "{cells:?}");
        }
        let single = Cells::new(64, 1);
        assert!((0..100).all(|turn| single.of(5, turn) == 5), "one region: a place has one cell");
        assert_eq!(
            (all_strides(10, 4096, 128), all_strides(10, 100, 128), all_strides(3, 300, 128)),
            (40_960, 1280, 768)
        );
    }

    #[test]
    fn places_fit_the_memory() {
        assert_eq!(places(Verb::Write, 8, 128, 64, 1 << 20), 1024);
        assert_eq!(places(Verb::Write, 8, 128, 64, 4096), 64);
        assert_eq!(places(Verb::Read, 1, 128, 8 << 20, 64 << 20), 4);
        assert_eq!(places(Verb::Write, 4, 16, 4096, 4096), 1);
        assert_eq!(places(Verb::Send, 8, 128, 64, 1 << 20), 1);
    }
}
