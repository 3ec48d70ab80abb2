//! `--verify`: every message has bytes of its own, and every byte is looked at where it has arrived.
//!
//! The messages take turns in places, each some bytes of ours and some of the peer's. In one place goes one message at a
//! time, and when it has been found right, the next:
//!
//! * WRITEs and READs: a WRITE of new bytes, then a READ of them.
//! * atomics: a FETCH_ADD, which returns what the one before has left.
//! * SENDs: a SEND of new bytes, which the peer sends back. There is one place, since the peer has one buffer.
//!
//! Where there are fewer places than queue pairs, each message of a place uses the next queue pair.

use hdrhistogram::Histogram;
use rxe_dpdk::service::Context;
use rxe_proto::Instant;
use rxe_proto::mem::{Access, MemoryRegion, PdId};
use rxe_proto::transport::{Qpn, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WorkCompletion};

use crate::load::RemoteMemory;
use crate::plan::{Plan, Verb};
use crate::session::succeeded;

/// Places begin at multiples of this.
const LINE: u32 = 64;
/// Our own memory at most.
const LOCAL_MEMORY: u64 = 64 << 20;

/// What a place waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    Written,
    Read,
    Added,
    Answered,
}

/// Where one message at a time goes.
#[derive(Clone, Copy, Debug)]
struct Place {
    waits: Waits,
    /// Since when.
    since: Instant,
    /// Messages so far.
    turn: u64,
    /// What the next FETCH_ADD must return.
    expected: Option<u64>,
}

/// All messages under way.
#[derive(Debug)]
pub struct Verify {
    verb: Verb,
    size: u32,
    stride: u32,
    lanes: Vec<(Qpn, RemoteMemory)>,
    /// Whether a queue pair's peer has sent a whole message back. Its first answer may be shorter.
    answered: Vec<bool>,
    places: Vec<Place>,
    memory: MemoryRegion,
    left: u64,
    /// Messages found right.
    pub done: u64,
    /// Messages under way.
    pub in_flight: u64,
    refills: bool,
    /// What each message took, while it is measured; without what looks at it.
    pub latency: Option<Histogram<u64>>,
    wanted: Vec<u8>,
    found: Vec<u8>,
}

/// Fills `bytes` with what only the message number `turn` of place number `place` has.
fn pattern(place: u64, turn: u64, bytes: &mut [u8]) {
    let mut state = place << 40 ^ turn;
    for chunk in bytes.chunks_mut(8) {
        // SplitMix64: every seed has its own sequence.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut value = state;
        value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        let value = (value ^ value >> 31).to_le_bytes();
        chunk.copy_from_slice(&value[..chunk.len()]);
    }
}

/// What the FETCH_ADD of a turn adds.
fn addend(turn: u64) -> u64 {
    turn % 1000 + 1
}

/// How many places there are for `qps` queue pairs.
fn places(verb: Verb, qps: u64, depth: u64, stride: u64, len: u64) -> u64 {
    match verb {
        Verb::Send => 1,
        _ => (qps * depth).min(len / stride).min(LOCAL_MEMORY / (2 * stride)).max(1),
    }
}

impl Verify {
    /// Nothing under way yet, on the queue pairs `lanes` of protection domain `pd`.
    ///
    /// # Errors
    /// The peer's memory, or ours, is too small.
    pub fn new(
        cx: &mut Context<'_>,
        plan: &Plan,
        verb: Verb,
        size: u32,
        lanes: Vec<(Qpn, RemoteMemory)>,
        pd: PdId,
    ) -> Result<Verify, String> {
        let stride = size.next_multiple_of(LINE);
        let (qps, len) = (lanes.len() as u64, lanes.iter().map(|(_, memory)| memory.len).min().unwrap_or_default());
        if verb != Verb::Send && len < u64::from(size) {
            return Err(crate::load::too_small(size, len));
        }
        let count = places(verb, qps, u64::from(plan.depth()), u64::from(stride), len);
        if verb == Verb::Atomic && count < qps {
            return Err(format!(
                "to verify atomics on {qps} queue pairs takes {} bytes, and the target has {len}: give it a larger \
                 region, or choose a smaller --qp",
                qps * u64::from(stride)
            ));
        }
        let memory = cx.alloc_memory(2 * (count * u64::from(stride)) as usize).map_err(|error| error.to_string())?;
        let memory = cx.register(pd, memory, Access::LOCAL_WRITE).map_err(|error| error.to_string())?;
        let place = Place { waits: Waits::Answered, since: Instant::ZERO, turn: 0, expected: None };
        Ok(Verify {
            verb,
            size,
            stride,
            answered: vec![false; lanes.len()],
            lanes,
            places: vec![place; count as usize],
            memory,
            left: 0,
            done: 0,
            in_flight: 0,
            refills: true,
            latency: None,
            wanted: vec![0; size as usize],
            found: vec![0; size as usize],
        })
    }

    /// Gives our memory back.
    pub fn close(&self, cx: &mut Context<'_>) {
        cx.deregister(&self.memory);
    }

    /// Posts the first message of every place; `messages` in all.
    ///
    /// # Errors
    /// In words, what went wrong.
    pub fn start(&mut self, cx: &mut Context<'_>, messages: u64) -> Result<(), String> {
        self.left = messages;
        (0..self.places.len()).try_for_each(|index| self.begin(cx, index))
    }

    /// Nothing new is begun any more.
    pub fn stop(&mut self) {
        self.refills = false;
    }

    /// The queue pair that the present message of a place uses.
    fn lane(&self, index: usize) -> usize {
        let (lanes, turn) = (self.lanes.len(), self.places[index].turn as usize);
        if self.places.len() < lanes { (index + turn * self.places.len()) % lanes } else { index % lanes }
    }

    /// Where in our memory a place's outgoing bytes are, and where those that come back go.
    fn offsets(&self, index: usize) -> (usize, usize) {
        let out = 2 * index * self.stride as usize;
        (out, out + self.stride as usize)
    }

    fn sge(&self, offset: usize) -> Sge {
        Sge { addr: self.memory.addr() + offset as u64, length: self.size, lkey: self.memory.lkey() }
    }

    /// Begins a message.
    fn begin(&mut self, cx: &mut Context<'_>, index: usize) -> Result<(), String> {
        if self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        self.in_flight += 1;
        let turn = self.places[index].turn;
        let (out, back) = self.offsets(index);
        pattern(index as u64, turn, &mut self.wanted);
        self.memory.memory().write(out, &self.wanted).map_err(|error| error.to_string())?;
        let waits = match self.verb {
            Verb::Write | Verb::Read => Waits::Written,
            Verb::Atomic => Waits::Added,
            Verb::Send => {
                let qpn = self.lanes[self.lane(index)].0;
                let wr = RecvWr { wr_id: index as u64, sges: &[self.sge(back)] };
                cx.post_recv(qpn, &wr).map_err(|error| error.to_string())?;
                Waits::Answered
            }
        };
        self.go(cx, index, waits)
    }

    /// Posts what a place waits for.
    fn go(&mut self, cx: &mut Context<'_>, index: usize, waits: Waits) -> Result<(), String> {
        let (qpn, memory) = self.lanes[self.lane(index)];
        let (out, back) = self.offsets(index);
        let remote = RemoteAddr { addr: memory.addr + index as u64 * u64::from(self.stride), rkey: memory.rkey };
        let (op, at) = match waits {
            Waits::Written => (SendOp::Write { remote, imm: None }, out),
            Waits::Read => (SendOp::Read { remote }, back),
            Waits::Added => (SendOp::FetchAdd { remote, add: addend(self.places[index].turn) }, back),
            Waits::Answered => (SendOp::Send { imm: None }, out),
        };
        // What is answered needs no completion besides.
        let flags = if waits == Waits::Answered { SendFlags::empty() } else { SendFlags::SIGNALED };
        let wr = SendWr { wr_id: index as u64, op, sges: &[self.sge(at)], flags };
        (self.places[index].waits, self.places[index].since) = (waits, cx.now());
        cx.post_send(qpn, &wr).map_err(|error| format!("a message cannot be posted: {error}"))
    }

    /// Looks at what has come back, and goes on.
    ///
    /// # Errors
    /// In words, what went wrong, a wrong byte above all.
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
                        length => return Err(format!("a message of {} bytes came back with {length}", self.size)),
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

    /// Compares what came back to a place with what went out.
    fn compare(&mut self, index: usize) -> Result<(), String> {
        let turn = self.places[index].turn;
        pattern(index as u64, turn, &mut self.wanted);
        let (_, back) = self.offsets(index);
        let memory = self.memory.memory();
        memory.read(back, &mut self.found).map_err(|error| error.to_string())?;
        if let Some(at) = self.wanted.iter().zip(&self.found).position(|(wanted, found)| wanted != found) {
            return Err(format!(
                "wrong bytes: byte {at} of message {turn} in place {index} (queue pair {}) is {:#04x}, not {:#04x}",
                self.lanes[self.lane(index)].0,
                self.found[at],
                self.wanted[at]
            ));
        }
        // So that bytes that are never written next time cannot look right.
        memory.fill(back, self.size as usize, 0).map_err(|error| error.to_string())
    }

    /// Compares what a FETCH_ADD returned with what the one before left.
    fn add_up(&mut self, index: usize) -> Result<(), String> {
        let (_, back) = self.offsets(index);
        let mut was = [0; 8];
        self.memory.memory().read(back, &mut was).map_err(|error| error.to_string())?;
        let was = u64::from_le_bytes(was);
        let Place { turn, expected, .. } = self.places[index];
        if expected.is_some_and(|expected| expected != was) {
            let qpn = self.lanes[self.lane(index)].0;
            return Err(format!(
                "wrong sum: FETCH_ADD {turn} in place {index} (queue pair {qpn}) returned {was:#x}, not {:#x}",
                expected.unwrap_or_default()
            ));
        }
        self.places[index].expected = Some(was.wrapping_add(addend(turn)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_has_its_own_bytes() {
        let bytes = |place, turn| {
            let mut bytes = [0; 21];
            pattern(place, turn, &mut bytes);
            bytes
        };
        assert_eq!(bytes(1, 1), bytes(1, 1));
        let all = [bytes(0, 0), bytes(0, 1), bytes(1, 0), bytes(1, 1)];
        for (n, one) in all.iter().enumerate() {
            assert!(one.iter().any(|byte| *byte != 0) && all[n + 1..].iter().all(|other| other != one));
        }
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
