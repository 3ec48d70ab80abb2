//! The clients: each connects, works for a while, compares every byte, and disconnects, or vanishes without a word.

use std::collections::BTreeMap;

use rxe_dpdk::eal::{Clock, Eal, PortQueues, RxBurst, RxQueue};
use rxe_dpdk::rxe_proto::transport::{QpType, SendOp, WcOpcode, WcStatus, WorkCompletion};
use rxe_dpdk::rxe_proto::wire::MacAddr;
use rxe_dpdk::rxe_proto::{Duration, Instant};

use crate::rng::Rng;
use crate::station::{Event, MEMORY_ADDR, Service, Station, Tx, mac};

/// Clients at a time.
pub const CLIENTS: u8 = 24;

/// Bytes of the target's region that one client uses; the last eight are for atomics.
const SLICE: usize = 16 << 10;
const WORDS: usize = SLICE - 8;

/// Slices of the region that the clients of one slot use in turn, so that no late packet of one that vanished meets the next.
const SLICES: u64 = 10;

/// Places in a client's memory: what it has written or sent, what it has read or received, results of atomics.
const SENT: usize = 0;
const RECEIVED: usize = 32 << 10;
const RESULT: usize = 64 << 10;

/// Bytes in front of a received datagram.
const GRH: usize = 40;

/// A datagram, or a message on UC, without an echo for that long was lost.
const ECHO_WITHIN: Duration = Duration::from_millis(300);

/// An operation takes no longer, even with losses on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Work request ids.
const SEND: u64 = 1;
const RECV: u64 = 2;

/// What a client does on its connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Work {
    /// WRITE, READ, atomics and FLUSH.
    Region,
    /// One SEND each way.
    Message,
    /// The target READs and WRITEs our memory.
    Ping,
    /// Datagrams and their echoes.
    Datagram,
    /// Messages and their echoes, UC and RC.
    EchoUc,
    EchoRc,
}

impl Work {
    const ALL: [Work; 6] = [Work::Region, Work::Message, Work::Ping, Work::Datagram, Work::EchoUc, Work::EchoRc];

    fn service(self) -> Service {
        match self {
            Work::Region => Service::Connected(4792),
            Work::Message => Service::Connected(7471),
            Work::Ping => Service::Connected(7174),
            Work::Datagram => Service::Datagram,
            Work::EchoUc => Service::Stream(QpType::Uc),
            Work::EchoRc => Service::Stream(QpType::Rc),
        }
    }

    /// Whether a lost message is repeated by the client.
    fn is_lossy(self) -> bool {
        matches!(self, Work::Datagram | Work::EchoUc)
    }
}

/// What is outstanding.
#[derive(Clone, Copy, Debug)]
enum Pending {
    Nothing,
    /// A WRITE, FLUSH or ATOMIC WRITE.
    Done,
    /// A READ of these bytes of the slice.
    Read {
        at: usize,
        len: usize,
    },
    /// An atomic, and the value before it.
    Atomic {
        before: u64,
    },
    /// An echo of `len` bytes.
    Echo {
        len: usize,
    },
    /// A go-ahead of rping, for the first or the second message of a ping of `len` bytes.
    GoAhead {
        second: bool,
        len: usize,
    },
    Disconnect,
}

impl Pending {
    fn name(self) -> &'static str {
        match self {
            Pending::Nothing => "connecting",
            Pending::Done => "WRITE",
            Pending::Read { .. } => "READ",
            Pending::Atomic { .. } => "atomic",
            Pending::Echo { .. } => "echo",
            Pending::GoAhead { .. } => "go-ahead",
            Pending::Disconnect => "disconnecting",
        }
    }
}

struct Client {
    work: Work,
    station: Station,
    slice: usize,
    /// What the slice contains, as far as this client has written it, and the value of its last word.
    mirror: Vec<u8>,
    word: u64,
    pending: Pending,
    since: Instant,
    sent_at: Instant,
    steps_left: u64,
    /// Ends without a message.
    vanishes: bool,
}

/// What clients did so far.
#[derive(Clone, Default, Debug)]
pub struct Totals {
    pub connections: u64,
    pub vanished: u64,
    pub operations: BTreeMap<Work, u64>,
    /// Connections that ended otherwise than by their client, with the reason.
    pub failures: BTreeMap<String, u64>,
}

/// All clients behind one port.
pub struct Clients {
    clock: Clock,
    rx: RxQueue,
    tx: Tx,
    burst: RxBurst,
    target: MacAddr,
    rng: Rng,
    slots: Vec<Option<Client>>,
    /// New clients take the places of those that have ended.
    pub accept_new: bool,
    pub totals: Totals,
}

/// How a client goes on.
enum Next {
    Stay,
    Gone,
    Failed(String),
}

impl Clients {
    pub fn new(eal: &Eal, queues: PortQueues, target: MacAddr, rng: Rng) -> Clients {
        let PortQueues { mut rx, mut tx } = queues;
        Clients {
            clock: Clock::new(eal),
            rx: rx.remove(0),
            tx: Tx(tx.remove(0)),
            burst: RxBurst::new(),
            target,
            rng,
            slots: (0..CLIENTS).map(|_| None).collect(),
            accept_new: true,
            totals: Totals::default(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// Clients that have not ended.
    pub fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Handles a burst of frames, and lets every client go on.
    pub fn turn(&mut self) {
        let now = self.clock.now();
        let count = self.rx.burst(&mut self.burst);
        for index in 0..count {
            let frame = self.burst.data(index);
            let Some(dst) = frame.first_chunk::<6>() else { continue };
            for (slot, client) in (0..).zip(&mut self.slots) {
                if let Some(client) = client
                    && (dst[0] & 1 == 1 || mac(slot).0 == *dst)
                {
                    client.station.receive(now, frame, &mut self.tx);
                }
            }
        }
        self.burst.clear();
        for slot in 0..CLIENTS {
            let place = usize::from(slot);
            match &mut self.slots[place] {
                None if self.accept_new && self.rng.chance(2) => {
                    let number = self.totals.connections;
                    self.slots[place] = Some(Client::new(now, slot, number, self.target, &self.rng));
                    self.totals.connections += 1;
                }
                None => {}
                Some(client) => match client.go_on(now, &mut self.tx, &self.rng, &mut self.totals) {
                    Next::Stay => {}
                    Next::Gone => self.slots[place] = None,
                    Next::Failed(why) => {
                        *self.totals.failures.entry(format!("{:?}: {why}", client.work)).or_default() += 1;
                        self.slots[place] = None;
                    }
                },
            }
        }
        self.tx.0.flush();
    }
}

impl Client {
    /// The client `number` of all.
    fn new(now: Instant, slot: u8, number: u64, target: MacAddr, rng: &Rng) -> Client {
        let work = rng.pick(&Work::ALL);
        let mut seed = [0; 32];
        rng.fill(&mut seed);
        let name: &[u8] = if work == Work::Region { b"demo" } else { b"" };
        let steps = if work == Work::Message { 1 } else { 1 + rng.below(200) };
        let mut mirror = vec![0; SLICE];
        rng.fill(&mut mirror[..WORDS]);
        Client {
            work,
            station: Station::new(now, slot, seed, target, work.service(), name),
            slice: (usize::from(slot) * SLICES as usize + (number % SLICES) as usize) * SLICE,
            mirror,
            word: 0,
            pending: Pending::Nothing,
            since: now,
            sent_at: now,
            steps_left: steps,
            vanishes: rng.chance(20),
        }
    }

    fn go_on(&mut self, now: Instant, tx: &mut Tx, rng: &Rng, totals: &mut Totals) -> Next {
        self.station.poll(now, tx);
        while let Some(event) = self.station.next_event() {
            let next = match event {
                Event::Ready => self.begin(now, rng, totals),
                Event::Completion(completion) => self.completed(now, &completion, rng, totals),
                Event::Ended(why) => match self.pending {
                    Pending::Disconnect => Next::Gone,
                    _ => Next::Failed(why),
                },
            };
            if !matches!(next, Next::Stay) {
                return next;
            }
        }
        if self.work.is_lossy()
            && let Pending::Echo { len } = self.pending
            && now.saturating_since(self.sent_at) > ECHO_WITHIN
        {
            self.sent_at = now;
            self.station.post_message(SEND, SENT, len);
        }
        if now.saturating_since(self.since) > LIMIT {
            return Next::Failed(format!("no progress for {LIMIT:?} ({})", self.pending.name()));
        }
        Next::Stay
    }

    fn wrong(&self, what: &str) -> Next {
        // Not a failure of a connection: the target has delivered wrong bytes.
        panic!("{:?}: {what}: {:?}", self.work, self.pending);
    }

    /// The first work on a connection.
    fn begin(&mut self, now: Instant, rng: &Rng, totals: &mut Totals) -> Next {
        self.since = now;
        if self.work != Work::Region {
            return self.step(now, rng, totals);
        }
        self.station.memory().write(SENT, &self.mirror).unwrap();
        self.pending = Pending::Done;
        let remote = self.station.remote(self.slice);
        self.station.post_send(SEND, SendOp::Write { remote, imm: None }, SENT, SLICE);
        Next::Stay
    }

    /// Begins the next piece of work, or ends.
    fn step(&mut self, now: Instant, rng: &Rng, totals: &mut Totals) -> Next {
        self.since = now;
        if self.steps_left == 0 {
            if self.vanishes {
                totals.vanished += 1;
                return Next::Gone;
            }
            self.pending = Pending::Disconnect;
            self.station.disconnect(now);
            return Next::Stay;
        }
        self.steps_left -= 1;
        *totals.operations.entry(self.work).or_default() += 1;
        match self.work {
            Work::Region => self.access(rng),
            Work::Ping => self.ping(1 + rng.below(8000) as usize, false, rng),
            Work::Message => self.echo(now, 16, rng),
            Work::Datagram => self.echo(now, 1 + rng.below(1024) as usize, rng),
            Work::EchoUc | Work::EchoRc => self.echo(now, 1 + rng.below(4096) as usize, rng),
        }
        Next::Stay
    }

    /// One operation on the region.
    fn access(&mut self, rng: &Rng) {
        let at = rng.below(WORDS as u64) as usize;
        let len = 1 + rng.below((WORDS - at) as u64) as usize;
        let (remote, word) = (self.station.remote(self.slice + at), self.station.remote(self.slice + WORDS));
        let (op, offset, len) = match rng.below(10) {
            0..=3 => {
                rng.fill(&mut self.mirror[at..at + len]);
                self.station.memory().write(SENT, &self.mirror[at..at + len]).unwrap();
                self.pending = Pending::Done;
                (SendOp::Write { remote, imm: None }, SENT, len)
            }
            4..=6 => {
                self.pending = Pending::Read { at, len };
                (SendOp::Read { remote }, RECEIVED, len)
            }
            7 => {
                let add = rng.next();
                self.pending = Pending::Atomic { before: self.word };
                self.word = self.word.wrapping_add(add);
                (SendOp::FetchAdd { remote: word, add }, RESULT, 8)
            }
            8 => {
                let (compare, swap) = (self.word, rng.next());
                self.pending = Pending::Atomic { before: self.word };
                self.word = swap;
                (SendOp::CompareSwap { remote: word, compare, swap }, RESULT, 8)
            }
            _ => {
                self.word = rng.next();
                self.station.memory().write(SENT, &self.word.to_ne_bytes()).unwrap();
                self.pending = Pending::Done;
                (SendOp::AtomicWrite { remote: word }, SENT, 8)
            }
        };
        self.station.post_send(SEND, op, offset, len);
    }

    /// A message that the target sends back.
    fn echo(&mut self, now: Instant, len: usize, rng: &Rng) {
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        self.station.memory().write(SENT, &bytes).unwrap();
        self.post_echo_recv();
        self.station.post_message(SEND, SENT, len);
        (self.pending, self.sent_at) = (Pending::Echo { len }, now);
    }

    fn post_echo_recv(&mut self) {
        self.station.post_recv(RECV, RECEIVED, RESULT - RECEIVED);
    }

    /// A message of rping: the target READs from our memory, or WRITEs to it.
    fn ping(&mut self, len: usize, second: bool, rng: &Rng) {
        if !second {
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes);
            self.station.memory().write(SENT, &bytes).unwrap();
        }
        let addr = MEMORY_ADDR + if second { RECEIVED } else { SENT } as u64;
        let mut advert = addr.to_be_bytes().to_vec();
        advert.extend(self.station.rkey().to_be_bytes());
        advert.extend((len as u32).to_be_bytes());
        self.station.memory().write(RESULT, &advert).unwrap();
        self.station.post_recv(RECV, RESULT + 64, 16);
        self.station.post_message(SEND, RESULT, 16);
        self.pending = Pending::GoAhead { second, len };
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.station.memory().read(offset, &mut bytes).unwrap();
        bytes
    }

    fn completed(&mut self, now: Instant, completion: &WorkCompletion, rng: &Rng, totals: &mut Totals) -> Next {
        if matches!(self.pending, Pending::Disconnect) {
            return Next::Stay;
        }
        if completion.status != WcStatus::Success {
            return Next::Failed(completion.status.to_string());
        }
        let received = completion.opcode == WcOpcode::Recv;
        match self.pending {
            Pending::Done if !received => {}
            Pending::Read { at, len } if !received => {
                if self.bytes(RECEIVED, len) != self.mirror[at..at + len] {
                    return self.wrong("a READ returns other bytes than were written");
                }
            }
            Pending::Atomic { before } if !received => {
                if self.bytes(RESULT, 8) != before.to_ne_bytes() {
                    return self.wrong("an atomic returns another value than was there");
                }
            }
            Pending::Echo { len } if received => {
                let offset = if self.work == Work::Datagram { GRH } else { 0 };
                let is_echo = completion.byte_len as usize == offset + len;
                if !is_echo || self.bytes(RECEIVED + offset, len) != self.bytes(SENT, len) {
                    if !self.work.is_lossy() {
                        return self.wrong("the echo is another message");
                    }
                    // The echo of a repeated message before.
                    self.post_echo_recv();
                    return Next::Stay;
                }
            }
            Pending::GoAhead { second: false, len } if received => {
                self.ping(len, true, rng);
                return Next::Stay;
            }
            Pending::GoAhead { second: true, len } if received => {
                if self.bytes(RECEIVED, len) != self.bytes(SENT, len) {
                    return self.wrong("rping's WRITE has other bytes than its READ");
                }
            }
            // The completion of a SEND, whose answer is waited for.
            _ => return Next::Stay,
        }
        self.step(now, rng, totals)
    }
}
