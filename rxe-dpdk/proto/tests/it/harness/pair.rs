//! Two connected engines and the link between them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use rxe_proto::transport::{EngineConfig, RequestRefusal, WcStatus};
use rxe_proto::wire::{Frame, PortId, RocePacket, TxQueue, classify};
use rxe_proto::{Duration, Instant};

use super::{Agreed, Node, PORT, Rng};

/// Impairments of the link. Probabilities in parts per million.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub loss: u32,
    pub duplicate: u32,
    /// Frames that are held back by up to ten times the delay, and so overtaken.
    pub reorder: u32,
    /// Frames in which a bit is flipped behind the Ethernet header.
    pub corrupt: u32,
    /// One way.
    pub delay: Duration,
    /// Every frame takes up to this much longer, and may so be overtaken.
    pub jitter: Duration,
    /// No reliable frame (same queue pair, opcode and PSN) is lost or corrupted more often than this, and no more
    /// answers to one queue pair in a row. So a requester with more than twice as many retries must come through.
    pub mercy: Option<u8>,
    /// Frames that an end can write at once; then it has to wait a microsecond.
    pub burst: usize,
    /// An end looks for frames after this time, and takes all that have arrived as one burst.
    pub poll: Duration,
    /// Bursts whose frames change places before they are received.
    pub shuffle: u32,
    /// The least time between two such bursts. With several round trips, what is repeated because of one comes in
    /// order.
    pub shuffle_pause: Duration,
    /// How often a port begins to refuse frames when it is offered some, and how long it may go on.
    pub refuse: u32,
    pub refuse_for: Duration,
    /// How often, when something happens, a host pauses: it receives and sends nothing, and its timers wait. And how long it may.
    pub pause: u32,
    pub pause_for: Duration,
    /// Frames that a switch marks (ECN).
    pub mark: u32,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            loss: 0,
            duplicate: 0,
            reorder: 0,
            corrupt: 0,
            delay: Duration::from_micros(2),
            jitter: Duration::ZERO,
            mercy: None,
            burst: 64,
            poll: Duration::ZERO,
            shuffle: 0,
            shuffle_pause: Duration::ZERO,
            refuse: 0,
            refuse_for: Duration::ZERO,
            pause: 0,
            pause_for: Duration::ZERO,
            mark: 0,
        }
    }
}

impl Link {
    /// Whether everything arrives, as it was sent.
    pub fn is_lossless(&self) -> bool {
        self.loss == 0 && self.corrupt == 0
    }

    /// Whether everything arrives in the order in which it was sent.
    pub fn is_in_order(&self) -> bool {
        self.arrives_in_order() && self.shuffle == 0
    }

    /// Whether frames overtake each other within a burst at most.
    pub fn arrives_in_order(&self) -> bool {
        self.reorder == 0 && self.jitter == Duration::ZERO
    }
}

/// A frame under way: when it arrives, its number (for order), where to, and in which buffer.
type Flight = Reverse<(Instant, u64, usize, usize)>;

/// A transmit queue that writes into buffers of the pool.
struct Outbox<'a> {
    pool: &'a mut Vec<Vec<u8>>,
    free: &'a mut Vec<usize>,
    written: &'a mut Vec<usize>,
    room: usize,
}

impl TxQueue for Outbox<'_> {
    fn push(&mut self, port: PortId, len: usize) -> Option<&mut [u8]> {
        assert_eq!(port, PORT);
        self.room = self.room.checked_sub(1)?;
        let index = self.free.pop().unwrap_or_else(|| {
            self.pool.push(Vec::new());
            self.pool.len() - 1
        });
        self.written.push(index);
        let frame = &mut self.pool[index];
        frame.clear();
        frame.resize(len, 0xA5);
        Some(frame)
    }
}

/// The BTH of a reliable packet over IPv4, without the flags that differ when it is sent again; `None` for others.
fn identity(frame: &[u8]) -> Option<[u8; 12]> {
    let mut bth = <[u8; 12]>::try_from(frame.get(42..54)?).ok()?;
    bth[1] = 0;
    bth[8] = 0;
    (bth[0] < 0x20).then_some(bth)
}

/// Whether such a packet is a response.
fn is_answer(id: [u8; 12]) -> bool {
    (0x0D..=0x12).contains(&id[0])
}

/// The part of `id` that all packets to its queue pair have in common.
fn to_queue_pair(mut id: [u8; 12]) -> [u8; 12] {
    id[0] = 0;
    id[9..].fill(0);
    id
}

/// Refused requests (fault injection): to which end, and how.
pub type Refuse = Box<dyn FnMut(usize, &RocePacket<'_>) -> Option<RequestRefusal>>;

pub struct Pair {
    pub nodes: [Node; 2],
    pub refuse: Option<Refuse>,
    pub now: Instant,
    pub link: Link,
    pub rng: Rng,
    /// Frames written by either end.
    pub frames: u64,
    /// Frames lost or corrupted.
    pub harmed: u64,
    /// Frames that arrived after a later one, but not in the same burst.
    pub overtaken: u64,
    /// Bursts whose frames changed places.
    pub shuffled: u64,
    shuffled_at: Option<Instant>,
    /// For how long ports have refused frames, and until when they do.
    pub refused: Duration,
    refuses_until: [Instant; 2],
    /// For how long hosts have paused, how often, and until when they do.
    pub paused: Duration,
    pub pauses: u32,
    pauses_until: [Instant; 2],
    /// Frames that have arrived at a host that pauses.
    waiting: [Vec<usize>; 2],
    /// The latest frame that has arrived at each end, by number.
    latest: [u64; 2],
    /// How often a frame was harmed, by where it goes, queue pair, opcode and PSN.
    harms: HashMap<(usize, [u8; 12]), u8>,
    /// Answers to a queue pair harmed in a row.
    answers_harmed: HashMap<(usize, [u8; 12]), u8>,
    pool: Vec<Vec<u8>>,
    free: Vec<usize>,
    flights: BinaryHeap<Flight>,
    number: u64,
    written: Vec<usize>,
    outbox: Vec<usize>,
    /// Frames being received: where to, and in which buffer.
    burst: Vec<(usize, usize)>,
}

impl Pair {
    /// Two ends with queues of `depth` and `memory` bytes each, both in RTS. `agreed.sq_psn` and `rq_psn` are those of
    /// the first end.
    pub fn new(seed: u64, agreed: &Agreed, depth: u32, memory: usize, link: Link) -> Pair {
        Pair::of(seed, Node::connected(&EngineConfig::default(), agreed, depth, memory), link)
    }

    /// Two ends as they are.
    pub fn of(seed: u64, nodes: [Node; 2], link: Link) -> Pair {
        Pair {
            nodes,
            refuse: None,
            now: Instant::from_nanos(1_000_000),
            link,
            rng: Rng(seed),
            frames: 0,
            harmed: 0,
            overtaken: 0,
            shuffled: 0,
            shuffled_at: None,
            refused: Duration::ZERO,
            refuses_until: [Instant::ZERO; 2],
            paused: Duration::ZERO,
            pauses: 0,
            pauses_until: [Instant::ZERO; 2],
            waiting: [Vec::new(), Vec::new()],
            latest: [0; 2],
            harms: HashMap::new(),
            answers_harmed: HashMap::new(),
            pool: Vec::new(),
            free: Vec::new(),
            flights: BinaryHeap::new(),
            number: 0,
            written: Vec::new(),
            outbox: Vec::new(),
            burst: Vec::new(),
        }
    }

    /// Both ends transmit what they can; then time jumps to the next thing that happens, which is handled. False when
    /// nothing is left to happen.
    pub fn step(&mut self) -> bool {
        let Some(next) = self.transmit() else { return false };
        self.happen(next);
        true
    }

    /// As [`step`](Pair::step), but if nothing happens before `limit`, time jumps there and no further.
    pub fn step_before(&mut self, limit: Instant) {
        match self.transmit().filter(|&next| next < limit) {
            Some(next) => self.happen(next),
            None => self.now = self.now.max(limit),
        }
    }

    /// Both ends transmit what they can. When the next thing happens.
    fn transmit(&mut self) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for end in 0..2 {
            // What a host does, it does when its pause is over.
            let resumes = self.pauses_until[end].max(self.now);
            let mut sooner = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
            if resumes > self.now {
                if !self.waiting[end].is_empty() || self.nodes[end].engine.wants_transmit() {
                    sooner(resumes);
                }
                if let Some(at) = self.nodes[end].engine.next_timeout() {
                    sooner(at.max(resumes));
                }
                continue;
            }
            let room = if self.port_refuses(end) { 0 } else { self.link.burst };
            let mut tx = Outbox { pool: &mut self.pool, free: &mut self.free, written: &mut self.written, room };
            self.nodes[end].engine.transmit(self.now, &mut tx);
            if self.nodes[end].engine.wants_transmit() {
                sooner(self.refuses_until[end].max(self.now + Duration::from_micros(1)));
            }
            if let Some(at) = self.nodes[end].engine.next_timeout() {
                sooner(at);
            }
            std::mem::swap(&mut self.written, &mut self.outbox);
            for i in 0..self.outbox.len() {
                let frame = self.outbox[i];
                self.carry(1 - end, frame);
            }
            self.outbox.clear();
            // Completions that transmission creates are collected now.
            self.nodes[end].collect();
        }
        let arrival = self.flights.peek().map(|Reverse((at, ..))| *at);
        let next = next.into_iter().chain(arrival).min()?;
        Some(self.now.max(next))
    }

    /// Whether the port of an end that has something to write refuses it now.
    fn port_refuses(&mut self, end: usize) -> bool {
        if self.link.refuse == 0 || !self.nodes[end].engine.wants_transmit() {
            return false;
        }
        if self.now >= self.refuses_until[end] && self.rng.chance(self.link.refuse) {
            let time = Duration::from_nanos(1 + self.rng.below(self.link.refuse_for.as_nanos() as u64));
            self.refuses_until[end] = self.now + time;
            self.refused += time;
        }
        self.now < self.refuses_until[end]
    }

    /// Time jumps to `at`, or by a poll interval more; what happens until then is handled.
    fn happen(&mut self, at: Instant) {
        self.now = at + self.link.poll;
        for end in 0..2 {
            if self.now >= self.pauses_until[end] {
                self.burst.extend(self.waiting[end].drain(..).map(|frame| (end, frame)));
                self.may_pause(end);
            }
        }
        while let Some(&Reverse((at, number, to, frame))) = self.flights.peek() {
            if at > self.now {
                break;
            }
            self.flights.pop();
            self.overtaken += u64::from(number < self.latest[to]);
            self.latest[to] = self.latest[to].max(number);
            if self.now < self.pauses_until[to] {
                self.waiting[to].push(frame);
            } else {
                self.burst.push((to, frame));
            }
        }
        let rested = self.shuffled_at.is_none_or(|at| self.now > at + self.link.shuffle_pause);
        if self.burst.len() > 1 && rested && self.rng.chance(self.link.shuffle) {
            self.shuffled += 1;
            self.shuffled_at = Some(self.now);
            for _ in 0..=self.rng.below(self.burst.len() as u64) {
                let [a, b] = [0, 0].map(|_| self.rng.below(self.burst.len() as u64) as usize);
                self.burst.swap(a, b);
            }
        }
        for (to, frame) in std::mem::take(&mut self.burst) {
            self.deliver(to, frame);
        }
        for (node, pauses_until) in self.nodes.iter_mut().zip(self.pauses_until) {
            if self.now >= pauses_until && node.engine.next_timeout().is_some_and(|at| at <= self.now) {
                node.engine.handle_timeout(self.now);
            }
            node.collect();
        }
    }

    /// A host may begin to pause, behind what has waited for it.
    fn may_pause(&mut self, end: usize) {
        if self.link.pause > 0 && self.rng.chance(self.link.pause) {
            let time = Duration::from_nanos(1 + self.rng.below(self.link.pause_for.as_nanos() as u64));
            self.pauses_until[end] = self.now + time;
            self.paused += time;
            self.pauses += 1;
        }
    }

    /// Puts a frame on the link.
    fn carry(&mut self, to: usize, frame: usize) {
        self.frames += 1;
        let link = self.link;
        if link.mark > 0 && self.rng.chance(link.mark) {
            // The ECN bits of the IPv4 header, which neither ICRC nor engine verify.
            self.pool[frame][15] |= 3;
        }
        let lost = self.rng.chance(link.loss);
        let corrupt = self.rng.chance(link.corrupt);
        let harmed = (lost || corrupt) && !self.is_spared(to, frame);
        self.note_answer(to, frame, harmed);
        self.harmed += u64::from(harmed);
        if harmed && lost {
            self.free.push(frame);
            return;
        }
        if self.rng.chance(link.duplicate) {
            let copy = self.pool[frame].clone();
            let index = self.free.pop().unwrap_or_else(|| {
                self.pool.push(Vec::new());
                self.pool.len() - 1
            });
            self.pool[index] = copy;
            let late = Duration::from_nanos(self.rng.below(5 * link.delay.as_nanos() as u64));
            self.launch(to, index, link.delay + late);
        }
        if harmed {
            // The MAC addresses are not covered by the ICRC, and a test that counts drops expects one for each.
            let at = 14 + self.rng.below(self.pool[frame].len() as u64 - 14) as usize;
            self.pool[frame][at] ^= 1 << self.rng.below(8);
        }
        let late = if self.rng.chance(link.reorder) {
            Duration::from_nanos(self.rng.below(10 * link.delay.as_nanos() as u64))
        } else {
            Duration::from_nanos(self.rng.below(link.jitter.as_nanos() as u64 + 1))
        };
        self.launch(to, frame, link.delay + late);
    }

    /// Whether the link has done all the harm to such a frame that it may.
    fn is_spared(&mut self, to: usize, frame: usize) -> bool {
        let Some(mercy) = self.link.mercy else { return false };
        let Some(id) = identity(&self.pool[frame]) else { return false };
        let answers = self.answers_harmed.get(&(to, to_queue_pair(id)));
        if is_answer(id) && answers.is_some_and(|&n| n >= mercy) {
            return true;
        }
        let harms = self.harms.entry((to, id)).or_default();
        if *harms >= mercy {
            return true;
        }
        *harms += 1;
        false
    }

    /// Counts answers to a queue pair that were harmed in a row.
    fn note_answer(&mut self, to: usize, frame: usize, harmed: bool) {
        if self.link.mercy.is_some()
            && let Some(id) = identity(&self.pool[frame]).filter(|&id| is_answer(id))
        {
            let row = self.answers_harmed.entry((to, to_queue_pair(id))).or_default();
            *row = if harmed { *row + 1 } else { 0 };
        }
    }

    fn launch(&mut self, to: usize, frame: usize, delay: Duration) {
        self.number += 1;
        self.flights.push(Reverse((self.now + delay, self.number, to, frame)));
    }

    fn deliver(&mut self, to: usize, frame: usize) {
        // A corrupt frame may be anything; what is not RoCE any more is not ours.
        if let Ok(Frame::Roce(packet)) = classify(&self.pool[frame]) {
            let engine = &mut self.nodes[to].engine;
            let refuse = self.refuse.as_mut();
            if !refuse.is_some_and(|refuse| engine.refuse_request(self.now, PORT, &packet, |packet| refuse(to, packet)))
            {
                engine.receive(self.now, PORT, &packet);
            }
        }
        self.free.push(frame);
    }

    /// Steps until `done`. Panics when nothing happens any more or `limit` of virtual time has passed.
    pub fn drive(&mut self, limit: Duration, mut done: impl FnMut(&Pair) -> bool) {
        let end = self.now + limit;
        while !done(self) {
            assert!(self.step(), "stuck at {:?}: {:#?}", self.now, self.nodes[0].engine.query_qp(self.nodes[0].qpn));
            assert!(
                self.now <= end,
                "too slow: {:#?} {:?}",
                self.nodes[0].engine.query_qp(self.nodes[0].qpn),
                self.nodes[0].engine.stats()
            );
        }
    }

    /// The status of the one work request that `post` makes at an end, and of the first one at the other end.
    pub fn status_of(&mut self, end: usize, post: impl FnOnce(&mut Node)) -> (WcStatus, Option<WcStatus>) {
        post(&mut self.nodes[end]);
        self.drive(Duration::from_secs(1), |pair| !pair.nodes[end].completions.is_empty());
        let [wc] = self.nodes[end].take_completions()[..] else { panic!("one completion") };
        (wc.status, self.nodes[1 - end].take_completions().first().map(|wc| wc.status))
    }

    /// Steps until nothing is left to happen.
    pub fn drain(&mut self, limit: Duration) {
        let end = self.now + limit;
        while self.step() {
            assert!(self.now <= end, "never comes to rest");
        }
    }
}
