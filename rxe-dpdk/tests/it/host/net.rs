//! Two hosts on a virtual link with a clock of its own.

use std::collections::VecDeque;
use std::net::IpAddr;

use rxe_dpdk::host::{Host, HostConfig, HostEvent, StreamEvent, TcpStreamId};
use rxe_proto::wire::{DropReason, MacAddr, PortId, TxFrames};
use rxe_proto::{Duration, Instant};

pub const MAC_A: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0x0A]);
pub const MAC_B: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0x0B]);

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub fn config(mac: MacAddr, addresses: &[&str]) -> HostConfig {
    HostConfig {
        port: PortId(2),
        mac,
        addresses: addresses.iter().map(|a| a.parse().expect("a CIDR")).collect(),
        seed: [mac.0[5]; 32],
        ..HostConfig::default()
    }
}

pub fn host(mac: MacAddr, addresses: &[&str]) -> Host {
    Host::new(&config(mac, addresses)).expect("a good configuration")
}

/// Passes one frame to the host; returns the result and the answers.
pub fn exchange(host: &mut Host, now: Instant, frame: &[u8]) -> (Result<(), DropReason>, Vec<Vec<u8>>) {
    let mut tx = TxFrames::default();
    let result = host.handle_frame(now, frame, &mut tx);
    (result, tx.frames.into_iter().map(|(_, frame)| frame).collect())
}

/// Polls and returns the frames sent.
pub fn poll(host: &mut Host, now: Instant) -> Vec<Vec<u8>> {
    let mut tx = TxFrames::default();
    host.poll(now, &mut tx);
    tx.frames.into_iter().map(|(_, frame)| frame).collect()
}

/// Polls until the host has probed and announced its addresses: 2.6 seconds after the epoch.
pub fn settle(host: &mut Host) {
    for now in [0, 200, 400, 600, 2600] {
        poll(host, ms(now));
    }
}

/// The time `ms` milliseconds after the epoch.
pub fn ms(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

/// Bytes from hexadecimal text; white space is ignored.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|b| !b.is_ascii_whitespace())
        .map(|b| char::from(b).to_digit(16).expect("hex") as u8)
        .collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A frame on the link.
struct InFlight {
    at: Instant,
    to: usize,
    frame: Vec<u8>,
}

/// Two hosts, the link between them, and everything they emitted.
pub struct Net {
    pub now: Instant,
    pub hosts: [Host; 2],
    /// Frames lost out of 1000.
    pub loss: u64,
    /// Every frame that arrived, by receiving host.
    pub seen: Vec<(usize, Vec<u8>)>,
    /// Every drop, by host.
    pub drops: Vec<(usize, DropReason)>,
    /// Bytes received on streams, in order.
    pub received: Vec<(usize, TcpStreamId, Vec<u8>)>,
    pub events: Vec<(usize, HostEvent)>,
    flying: VecDeque<InFlight>,
    random: u64,
}

const DELAY: Duration = Duration::from_micros(50);

impl Net {
    pub fn new(a: &HostConfig, b: &HostConfig) -> Net {
        Net {
            now: ms(1000),
            hosts: [a, b].map(|config| Host::new(config).expect("a good configuration")),
            loss: 0,
            seen: Vec::new(),
            drops: Vec::new(),
            received: Vec::new(),
            events: Vec::new(),
            flying: VecDeque::new(),
            random: 0x9E37_79B9_7F4A_7C15,
        }
    }

    /// A random number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % n
    }

    /// Sends frames of host `from` over the link.
    pub fn send(&mut self, from: usize, tx: TxFrames) {
        for (port, frame) in tx.frames {
            assert_eq!(port, PortId(2));
            if self.below(1000) >= self.loss {
                self.flying.push_back(InFlight { at: self.now + DELAY, to: 1 - from, frame });
            }
        }
    }

    /// Polls both hosts, takes their events and reads their streams.
    pub fn poll(&mut self) {
        for n in 0..2 {
            let mut tx = TxFrames::default();
            self.hosts[n].poll(self.now, &mut tx);
            self.send(n, tx);
            while let Some(event) = self.hosts[n].poll_event() {
                self.events.push((n, event));
                if let HostEvent::Stream(StreamEvent::Readable { stream }) = event {
                    let mut buffer = [0; 2000];
                    loop {
                        let len = self.hosts[n].recv(stream, &mut buffer);
                        if len == 0 {
                            break;
                        }
                        self.received.push((n, stream, buffer[..len].to_vec()));
                    }
                }
            }
        }
    }

    /// Advances time to the next timer or frame, to `limit` at most. Returns whether there was one.
    pub fn step(&mut self, limit: Instant) -> bool {
        self.poll();
        let timers = self.hosts.iter().filter_map(Host::next_timeout);
        let Some(next) = timers.chain(self.flying.front().map(|f| f.at)).min().filter(|&at| at <= limit) else {
            self.now = limit;
            return false;
        };
        // A host that is due now is polled a little later, as in a real loop.
        self.now = next.max(self.now + Duration::from_micros(1));
        while self.flying.front().is_some_and(|f| f.at <= self.now)
            && let Some(InFlight { to, frame, .. }) = self.flying.pop_front()
        {
            let mut tx = TxFrames::default();
            if let Err(reason) = self.hosts[to].handle_frame(self.now, &frame, &mut tx) {
                self.drops.push((to, reason));
            }
            self.seen.push((to, frame));
            self.send(to, tx);
        }
        self.poll();
        true
    }

    /// Runs for `time`.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step(end);
        }
    }

    /// Runs until `done`, at most for 100 seconds.
    pub fn until(&mut self, done: impl Fn(&Net) -> bool) {
        let end = self.now + Duration::from_secs(100);
        while !done(self) {
            assert!(self.now < end, "condition not met in time, events: {:?}, drops: {:?}", self.events, self.drops);
            self.step(end);
        }
    }

    /// The events of one host's streams.
    pub fn stream_events(&self, n: usize) -> Vec<StreamEvent> {
        let of_host = self.events.iter().filter(|(host, _)| *host == n);
        of_host
            .filter_map(|(_, event)| match event {
                HostEvent::Stream(event) => Some(*event),
                HostEvent::NeighbourChanged { .. } | HostEvent::Listener { .. } => None,
            })
            .collect()
    }

    /// The opened streams of a host.
    pub fn opened(&self, n: usize) -> Vec<TcpStreamId> {
        let ids = |event| match event {
            StreamEvent::Opened { stream, .. } => Some(stream),
            _ => None,
        };
        self.stream_events(n).into_iter().filter_map(ids).collect()
    }

    /// Whether a host's stream was reset, if it has ended.
    pub fn closed(&self, n: usize, id: TcpStreamId) -> Option<bool> {
        self.stream_events(n).into_iter().find_map(|event| match event {
            StreamEvent::Closed { stream, reset } if stream == id => Some(reset),
            _ => None,
        })
    }

    /// All bytes that a stream received.
    pub fn bytes(&self, n: usize, id: TcpStreamId) -> Vec<u8> {
        let of_stream = self.received.iter().filter(|(host, stream, _)| (*host, *stream) == (n, id));
        of_stream.flat_map(|(_, _, bytes)| bytes.clone()).collect()
    }
}
