//! Several senders, one receiver, and between them a switch whose link to the receiver is slower than all senders together.
//! Its queue marks packets (ECN) with a probability that grows with its length, and drops none.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rxe_proto::transport::{EngineConfig, Qpn};
use rxe_proto::wire::{Frame, TxFrames, classify};
use rxe_proto::{Duration, Instant};

use super::{Agreed, Node, PORT, Rng};

/// Parameters of the switch. Rates in bits per microsecond.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    /// Of each sender's link.
    pub access: u64,
    /// Of the link to the receiver.
    pub rate: u64,
    /// From a sender to the receiver, and back.
    pub delay: Duration,
    /// No packet is marked in a shorter queue, in bytes.
    pub mark_from: u64,
    /// Every packet is marked in a longer one.
    pub mark_all: u64,
    /// Probability of a mark just below that, in parts per million.
    pub mark_at_most: u32,
}

/// The end of the receiver; senders are the ends before it.
pub const RECEIVER: u8 = 200;

#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// A sender may write a packet.
    Send(usize),
    /// A sender's packet enters the queue of the switch.
    Enqueue(Vec<u8>),
    /// The same reaches the receiver.
    Deliver(Vec<u8>),
    /// An answer reaches a sender.
    Answer(usize, Vec<u8>),
    /// A timer of a sender expires.
    Timer(usize),
}

/// A sender and its link.
pub struct Sender {
    pub node: Node,
    pub qpns: Vec<Qpn>,
    free_at: Instant,
    /// When the next [`Event::Send`] and [`Event::Timer`] are.
    sends_at: Option<Instant>,
    timer_at: Option<Instant>,
}

pub struct Bottleneck {
    pub senders: Vec<Sender>,
    pub receiver: Node,
    pub now: Instant,
    pub switch: Switch,
    /// Lengths of the queue in bytes, as packets found it.
    pub lengths: Vec<u64>,
    pub marked: u64,
    /// When the link to the receiver has sent what waits.
    busy_until: Instant,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    number: u64,
    rng: Rng,
}

impl Bottleneck {
    /// `count` senders, each with queue pairs of `depth` work requests, `qps` of them, and `memory` bytes.
    pub fn new(
        count: usize,
        qps: usize,
        config: &EngineConfig,
        agreed: &Agreed,
        depth: u32,
        memory: usize,
        switch: Switch,
    ) -> Bottleneck {
        let config = |end: u8| EngineConfig { seed: [end; 32], ..config.clone() };
        let mut receiver = Node::bare(RECEIVER, config(RECEIVER), 4 * depth * (count * qps) as u32, memory);
        let now = Instant::from_nanos(1_000_000);
        let connect = |end: u8| {
            let mut node = Node::bare(end, config(end), 4 * depth * qps as u32, memory);
            let qpns = (0..qps).map(|_| {
                node.qpn = node.create_qp(depth, agreed.access);
                receiver.qpn = receiver.create_qp(depth, agreed.access);
                node.connect(&mut receiver, agreed);
                node.qpn
            });
            let qpns = qpns.collect();
            Sender { node, qpns, free_at: now, sends_at: None, timer_at: None }
        };
        let senders = (1..=count as u8).map(connect).collect();
        Bottleneck {
            senders,
            receiver,
            now,
            switch,
            lengths: Vec::new(),
            marked: 0,
            busy_until: now,
            events: BinaryHeap::new(),
            number: 0,
            rng: Rng(1),
        }
    }

    fn push(&mut self, at: Instant, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at, self.number, event)));
    }

    /// To be called when a sender has got something to do.
    pub fn wake(&mut self, index: usize) {
        let sender = &mut self.senders[index];
        let at = self.now.max(sender.free_at);
        if sender.node.engine.wants_transmit() && sender.sends_at.is_none_or(|before| before > at) {
            sender.sends_at = Some(at);
            self.push(at, Event::Send(index));
        }
        let sender = &mut self.senders[index];
        if let Some(at) = sender.node.engine.next_timeout()
            && sender.timer_at.is_none_or(|before| before > at)
        {
            sender.timer_at = Some(at);
            self.push(at, Event::Timer(index));
        }
    }

    /// Lets `time` pass; `refill` is called for a sender after each answer.
    pub fn run(&mut self, time: Duration, mut refill: impl FnMut(&mut Node)) {
        let end = self.now + time;
        while let Some(Reverse((at, _, _))) = self.events.peek()
            && *at <= end
        {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = at;
            match event {
                // Only the last one that was planned.
                Event::Send(index) if self.senders[index].sends_at != Some(at) => {}
                Event::Timer(index) if self.senders[index].timer_at != Some(at) => {}
                Event::Send(index) => self.send(index),
                Event::Enqueue(frame) => self.enqueue(frame),
                Event::Deliver(frame) => self.deliver(&frame),
                Event::Answer(index, frame) => {
                    let node = &mut self.senders[index].node;
                    receive(node, self.now, &frame);
                    refill(node);
                    self.wake(index);
                }
                Event::Timer(index) => {
                    let sender = &mut self.senders[index];
                    sender.timer_at = None;
                    sender.node.engine.handle_timeout(self.now);
                    self.wake(index);
                }
            }
        }
        self.now = end;
    }

    fn send(&mut self, index: usize) {
        let sender = &mut self.senders[index];
        sender.sends_at = None;
        let mut tx = TxFrames { room: Some(1), ..TxFrames::default() };
        sender.node.engine.transmit(self.now, &mut tx);
        sender.node.collect();
        if let Some((_, frame)) = tx.frames.pop() {
            let at = self.now + serialization(frame.len(), self.switch.access);
            sender.free_at = at;
            self.push(at, Event::Enqueue(frame));
        }
        self.wake(index);
    }

    fn enqueue(&mut self, mut frame: Vec<u8>) {
        let Switch { rate, delay, mark_from, mark_all, mark_at_most, .. } = self.switch;
        let waiting = (self.busy_until - self.now).as_nanos() as u64 * rate / 8000;
        self.lengths.push(waiting);
        let share = waiting.saturating_sub(mark_from).min(mark_all - mark_from);
        let chance = share * u64::from(mark_at_most) / (mark_all - mark_from);
        if waiting >= mark_all || self.rng.chance(chance as u32) {
            // The ECN bits of the IPv4 header, which neither ICRC nor engine verify.
            frame[15] |= 3;
            self.marked += 1;
        }
        self.busy_until = self.busy_until.max(self.now) + serialization(frame.len(), rate);
        self.push(self.busy_until + delay, Event::Deliver(frame));
    }

    fn deliver(&mut self, frame: &[u8]) {
        receive(&mut self.receiver, self.now, frame);
        let mut tx = TxFrames::default();
        self.receiver.engine.transmit(self.now, &mut tx);
        self.receiver.collect();
        for (_, frame) in tx.frames {
            // The last byte of the IPv4 destination is the end's number.
            let to = usize::from(frame[33]) - 1;
            self.push(self.now + self.switch.delay, Event::Answer(to, frame));
        }
    }

    /// Packets of each queue pair that were acknowledged so far.
    pub fn acknowledged(&self) -> Vec<u64> {
        let of = |sender: &Sender, qpn: Qpn| sender.node.engine.query_qp(qpn).unwrap().sends.packets;
        self.senders.iter().flat_map(|sender| sender.qpns.iter().map(move |&qpn| of(sender, qpn))).collect()
    }

    /// The sum of a counter of the senders.
    pub fn stat(&self, name: &str) -> u64 {
        self.senders.iter().map(|sender| sender.node.stat(name)).sum()
    }
}

fn serialization(len: usize, rate: u64) -> Duration {
    Duration::from_nanos(len as u64 * 8_000 / rate)
}

fn receive(node: &mut Node, now: Instant, frame: &[u8]) {
    let Ok(Frame::Roce(packet)) = classify(frame) else { panic!("not a RoCE frame") };
    node.engine.receive(now, PORT, &packet);
    node.collect();
}
