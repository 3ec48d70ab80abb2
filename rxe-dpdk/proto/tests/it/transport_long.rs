//! Long messages give way to short ones of the same port: queue pairs of one engine, a port with a ring, in virtual time.

use crate::harness::rated::{LinkParams, RatedPair};
use crate::harness::{Agreed, Node};
use rxe_proto::Duration;
use rxe_proto::transport::{EngineConfig, QpInfo, QpState, Qpn, RemoteAddr, SendOp, Wait, WcStatus};
use rxe_proto::wire::{PathMtu, TxFrames};

const LONG: usize = 1 << 20;
const DEPTH: u32 = 4;
/// The queue pair of the short messages is the first one; `wr_id` is the index of a queue pair.
const QPS: usize = 9;

fn agreed() -> Agreed {
    Agreed { mtu: PathMtu::Mtu4096, timeout: 14, rd_atomic: 16, ..Agreed::default() }
}

/// What a queue pair of long messages does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Long {
    Write,
    Read,
}

/// One engine with a queue pair for short messages and some for long ones.
struct Mixed {
    rated: RatedPair,
    qpns: Vec<Qpn>,
    long: Long,
    remote: RemoteAddr,
    /// Short messages are sent, of that many bytes.
    shorts: bool,
    short_len: usize,
    long_len: usize,
    sent_at: rxe_proto::Instant,
    /// Times of short messages, in nanoseconds.
    times: Vec<u64>,
    /// Long messages completed, by queue pair.
    done: Vec<u64>,
}

impl Mixed {
    /// Queue pairs on a line of 40 Gb/s, 2 us there and back, whose ports take 1024 frames.
    fn new(long: Long, memory: usize) -> Mixed {
        let line = LinkParams { rate: 40_000, delay: Duration::from_micros(1), loss: 0 };
        let mut rated = RatedPair::new(7, &agreed(), &EngineConfig::default(), DEPTH, memory, line);
        rated.ring = 1024;
        let mut qpns = vec![rated.nodes[0].qpn];
        for _ in 1..QPS {
            let [a, b] = &mut rated.nodes;
            a.qpn = a.create_qp(DEPTH, agreed().access);
            b.qpn = b.create_qp(DEPTH, agreed().access);
            a.connect(b, &agreed());
            qpns.push(a.qpn);
        }
        let region = &rated.nodes[1].region;
        let remote = RemoteAddr { addr: region.addr(), rkey: region.rkey() };
        let sent_at = rated.now;
        Mixed {
            rated,
            qpns,
            long,
            remote,
            shorts: false,
            short_len: 64,
            long_len: LONG,
            sent_at,
            times: Vec::new(),
            done: vec![0; QPS],
        }
    }

    /// Two messages on each queue pair for long ones.
    fn post_all_long(&mut self) {
        for index in 1..QPS {
            (0..2).for_each(|_| self.post(index));
        }
    }

    fn node(&mut self) -> &mut Node {
        &mut self.rated.nodes[0]
    }

    fn post(&mut self, index: usize) {
        let remote = self.remote;
        let (op, len) = match (index, self.long) {
            (0, _) => (SendOp::Write { remote, imm: None }, self.short_len),
            (_, Long::Write) => (SendOp::Write { remote, imm: None }, self.long_len),
            (_, Long::Read) => (SendOp::Read { remote }, self.long_len),
        };
        let qpn = self.qpns[index];
        let node = self.node();
        node.qpn = qpn;
        let sge = node.sge(0, len);
        node.post_send(index as u64, op, &[sge]);
    }

    fn post_short(&mut self) {
        self.shorts = true;
        self.sent_at = self.rated.now;
        self.post(0);
    }

    /// Posts again what completes with success.
    fn run(&mut self, time: Duration) {
        let end = self.rated.now + time;
        while self.rated.now < end {
            assert!(self.rated.step(), "nothing left to happen");
            for wc in self.node().take_completions() {
                if wc.status != WcStatus::Success {
                    continue;
                }
                let index = wc.wr_id as usize;
                if index > 0 {
                    self.done[index] += 1;
                    self.post(index);
                } else {
                    self.times.push((self.rated.now - self.sent_at).as_nanos() as u64);
                    if self.shorts {
                        self.post_short();
                    }
                }
            }
        }
    }

    /// Long messages that complete in `time`.
    fn count(&mut self, time: Duration) -> u64 {
        let before: u64 = self.done.iter().sum();
        self.run(time);
        self.done.iter().sum::<u64>() - before
    }

    fn info(&self, index: usize) -> QpInfo {
        self.rated.nodes[0].engine.query_qp(self.qpns[index]).unwrap()
    }

    fn median(&mut self) -> u64 {
        self.times.sort_unstable();
        self.times[self.times.len() / 2]
    }
}

const TIME: Duration = Duration::from_millis(12);

#[test]
fn a_short_message_beside_long_ones_takes_a_few_round_trips_and_they_keep_their_rate() {
    // Queue pair 0 may have measured the round trip before there are long messages, or not.
    for (long, measured) in [(Long::Write, true), (Long::Write, false), (Long::Read, true), (Long::Read, false)] {
        let mut mixed = Mixed::new(long, LONG);
        if measured {
            mixed.post_short();
            mixed.run(Duration::from_micros(50));
            mixed.shorts = false;
        }
        mixed.post_all_long();
        let alone = mixed.count(TIME);
        mixed.post_short();
        mixed.run(Duration::from_millis(6));
        mixed.times.clear();
        let timeouts = mixed.node().stat("timeouts");
        let beside = mixed.count(TIME);
        let median = mixed.median();
        // 2 us and the time of two short packets on the line. What was not measured alone is believed to be longer than that.
        let most = if measured { 10 } else { 20 };
        assert!(median < most * 2_040, "{long:?}: {median} ns");
        assert!(beside * 100 >= alone * 90, "{long:?}: {beside} of {alone} messages");
        let fewest = mixed.done[1..].iter().min().unwrap();
        let most = mixed.done[1..].iter().max().unwrap();
        assert!(fewest * 10 >= most * 8, "{long:?}: {:?}", mixed.done);
        assert!(mixed.node().stat("long_stalls") > 0);
        assert_eq!(mixed.node().stat("timeouts"), timeouts, "{long:?}");
        // A while after the last short message there is no limit.
        mixed.shorts = false;
        mixed.run(Duration::from_millis(15));
        let stalls = mixed.node().stat("long_stalls");
        mixed.run(Duration::from_millis(5));
        assert_eq!(mixed.node().stat("long_stalls"), stalls);
    }
}

#[test]
fn long_messages_alone_are_not_limited() {
    for long in [Long::Write, Long::Read] {
        let mut mixed = Mixed::new(long, LONG);
        mixed.post_all_long();
        mixed.run(TIME);
        assert_eq!(mixed.node().stat("long_stalls"), 0);
    }
}

// [RC-REQ-READ-PARTS]
#[test]
fn reads_in_parts_bring_every_byte_on_a_lossy_line() {
    let mut mixed = Mixed::new(Long::Read, LONG);
    let bytes: Vec<u8> = (0..LONG).map(|at| (at * 7 + at / 251) as u8).collect();
    mixed.rated.nodes[1].write(0, &bytes);
    mixed.rated.line.loss = 1_000;
    mixed.short_len = 0;
    mixed.post_short();
    mixed.run(Duration::from_millis(1));
    mixed.post_all_long();
    mixed.run(Duration::from_millis(50));
    assert!(mixed.done[1..].iter().all(|&done| done > 0), "{:?}", mixed.done);
    assert!(mixed.node().stat("long_stalls") > 0 && mixed.node().stat("read_gaps") > 0);
    assert!(mixed.node().read(0, LONG) == bytes);
    assert!((0..QPS).all(|index| mixed.info(index).state == QpState::Rts));
}

#[test]
fn a_peer_that_does_not_answer_does_not_stop_the_long_messages_of_others() {
    let mut mixed = Mixed::new(Long::Write, LONG);
    mixed.post_all_long();
    mixed.post_short();
    mixed.run(TIME);
    let before = mixed.count(TIME);
    // The peers of three queue pairs fall silent.
    let silent: Vec<u32> = (1..4).map(|index| mixed.info(index).dest_qpn.unwrap().get()).collect();
    mixed.rated.drop_filter = Box::new(move |end, packet| end == 0 && silent.contains(&packet.dest_qp()));
    // For 4 ms what they have outstanding counts.
    let after = [mixed.count(TIME), mixed.count(TIME)];
    assert!(after[0] * 10 > before * 3 && after[1] * 10 > before * 8, "{after:?} of {before} messages");
    // Their queue pairs end, and the rest goes on.
    mixed.run(Duration::from_secs(2));
    let states: Vec<QpState> = (0..QPS).map(|index| mixed.info(index).state).collect();
    assert!(states[1..4].iter().all(|state| *state == QpState::Error), "{states:?}");
    assert!(mixed.count(TIME) * 10 > before * 9);
}

// [RC-REQ-READ-PARTS]
#[test]
fn a_read_begun_in_parts_is_repeated_in_parts_when_the_limit_has_ended() {
    let mut mixed = Mixed::new(Long::Read, LONG);
    mixed.rated.line.loss = 2_000;
    mixed.post_all_long();
    for _ in 0..8 {
        mixed.post_short();
        mixed.run(Duration::from_millis(3));
        mixed.shorts = false;
        mixed.run(Duration::from_millis(14));
    }
    let before = mixed.done.clone();
    mixed.rated.line.loss = 0;
    mixed.run(Duration::from_millis(30));
    assert!((1..QPS).all(|index| mixed.done[index] > before[index]), "{before:?} {:?}", mixed.done);
    assert!(mixed.node().stat("read_gaps") > 0 && mixed.node().stat("long_stalls") > 0);
    assert!((0..QPS).all(|index| mixed.info(index).state == QpState::Rts));
}

#[test]
fn a_peer_that_answers_late_is_sent_more() {
    for long in [Long::Write, Long::Read] {
        let mut mixed = Mixed::new(long, LONG);
        mixed.post_all_long();
        mixed.post_short();
        for _ in 0..4 {
            mixed.run(Duration::from_millis(3));
            let late: Vec<u32> = (1..4).map(|index| mixed.qpns[index].get()).collect();
            mixed.rated.drop_filter = Box::new(move |end, packet| end == 1 && late.contains(&packet.dest_qp()));
            mixed.run(Duration::from_millis(6));
            mixed.rated.drop_filter = Box::new(|_, _| false);
        }
        mixed.run(TIME);
        let before = mixed.done.clone();
        mixed.run(TIME);
        assert!((1..QPS).all(|index| mixed.done[index] > before[index]), "{long:?}: {before:?} {:?}", mixed.done);
        assert!(mixed.node().stat("timeouts") > 0);
    }
}

#[test]
fn what_a_silent_peer_is_sent_later_counts() {
    for long in [Long::Write, Long::Read] {
        let mut mixed = Mixed::new(long, LONG);
        mixed.long_len = 8192;
        // Nothing of it arrives. After 6 ms the first message counts no longer.
        for wait in [6, 0] {
            mixed.post(1);
            let now = mixed.rated.now;
            mixed.node().engine.transmit(now, &mut TxFrames::default());
            mixed.rated.now = now + Duration::from_millis(wait);
        }
        mixed.post_short();
        mixed.shorts = false;
        mixed.run(Duration::from_micros(1));
        mixed.long_len = LONG;
        mixed.post(2);
        mixed.run(Duration::from_micros(50));
        assert!(mixed.node().stat("long_stalls") > 0, "{long:?}");
    }
}

#[test]
fn a_queue_pair_that_is_destroyed_in_the_middle_gives_its_share_back() {
    for long in [Long::Write, Long::Read] {
        let mut mixed = Mixed::new(long, LONG);
        mixed.post_all_long();
        mixed.post_short();
        mixed.run(TIME);
        let is_held = |mixed: &Mixed| (1..mixed.qpns.len()).any(|index| mixed.info(index).waits == Wait::ShortMessages);
        // With few of them nothing has to wait.
        for _ in 0..QPS - 4 {
            let limit = mixed.rated.now + Duration::from_millis(10);
            while !is_held(&mixed) {
                assert!(mixed.rated.now < limit, "{long:?} {:?} {:?}", mixed.qpns.len(), mixed.info(1));
                mixed.run(Duration::from_nanos(500));
            }
            let qpn = mixed.qpns.pop().unwrap();
            let now = mixed.rated.now;
            mixed.node().engine.destroy_qp(now, qpn).unwrap();
            let left = mixed.qpns.len();
            mixed.done.truncate(left);
            mixed.node().take_completions();
            for index in 0..left {
                while mixed.info(index).send_queued < 1 + u32::from(index > 0) {
                    mixed.post(index);
                }
            }
            mixed.run(Duration::from_millis(3));
        }
        assert!(mixed.count(TIME) > 0);
    }
}
