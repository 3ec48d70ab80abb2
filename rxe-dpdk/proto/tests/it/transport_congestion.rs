//! Congestion control: what a notification does to one queue pair, and what several queue pairs do at a bottleneck, in
//! virtual time.

use std::fmt::Write;

use crate::harness::bottleneck::{Bottleneck, Sender, Switch};
use crate::harness::ops::*;
use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use crate::harness::{Agreed, Node};
use rxe_proto::Duration;
use rxe_proto::transport::{
    CongestionControl, DelayControl, EngineConfig, QpInfo, QpType, Qpn, RemoteAddr, SendOp, Wait, WcStatus,
};
use rxe_proto::wire::{Opcode, PathMtu};

const MESSAGE: usize = 64 << 10;
/// Bytes of a packet in the middle of a message, of the path MTU 1024: Ethernet, IPv4, UDP, BTH, payload, ICRC.
const PACKET_LEN: usize = 14 + 20 + 8 + 12 + 1024 + 4;
/// Hosts that send; more senders share them.
const HOSTS: usize = 64;
const DEPTH: usize = 4;

/// Links of 100 Gb/s, one of 40 Gb/s in front of the receiver, 8 us there and back: the marks begin at 100 KB, 20 us.
const SWITCH: Switch = Switch {
    access: 100_000,
    rate: 40_000,
    delay: Duration::from_micros(4),
    mark_from: 100_000,
    mark_all: 400_000,
    mark_at_most: 300_000,
};

/// What several senders make of the switch.
struct Outcome {
    /// Jain's index of the senders' shares.
    fairness: f64,
    /// Share of the bottleneck's rate that acknowledged packets have.
    utilisation: f64,
    /// Share of packets that were sent again.
    again: f64,
    /// Lengths of the queue in bytes: mean, 99th percentile, largest.
    queue: [u64; 3],
    /// Share of packets that were marked.
    marked: f64,
}

fn post_write(node: &mut Node, qpn: Qpn, remote: RemoteAddr) {
    node.qpn = qpn;
    node.post_send(0, SendOp::Write { remote, imm: None }, &[node.sge(0, MESSAGE)]);
}

fn outcome(flows: usize, control: CongestionControl, warm_up: Duration, time: Duration) -> Outcome {
    let config = EngineConfig { congestion: control, ..EngineConfig::default() };
    let agreed = Agreed { mtu: PathMtu::Mtu1024, timeout: 19, ..Agreed::default() };
    let hosts = flows.min(HOSTS);
    let mut switch = Bottleneck::new(hosts, flows / hosts, &config, &agreed, DEPTH as u32, MESSAGE, SWITCH);
    let remote = RemoteAddr { addr: switch.receiver.region.addr(), rkey: switch.receiver.region.rkey() };
    let refill = |node: &mut Node| {
        for wc in node.take_completions() {
            assert_eq!(wc.status, WcStatus::Success);
            post_write(node, wc.qpn, remote);
        }
    };
    for index in 0..hosts {
        let Sender { node, qpns, .. } = &mut switch.senders[index];
        for &qpn in qpns.iter() {
            (0..DEPTH).for_each(|_| post_write(node, qpn, remote));
        }
        switch.wake(index);
        // They do not all begin at the same moment.
        switch.run(Duration::from_micros(20), refill);
    }
    switch.run(warm_up, refill);
    let acknowledged = switch.acknowledged();
    let [sent, again] = ["sent_pkts", "retransmitted_pkts"].map(|name| switch.stat(name));
    (switch.marked, switch.lengths) = (0, Vec::new());
    switch.run(time, refill);
    let shares = switch.acknowledged().into_iter().zip(acknowledged).map(|(after, before)| (after - before) as f64);
    let shares: Vec<f64> = shares.collect();
    let total: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    let mut lengths = std::mem::take(&mut switch.lengths);
    lengths.sort_unstable();
    let packets = lengths.len();
    Outcome {
        fairness: total * total / (flows as f64 * squares),
        utilisation: total * 8000.0 * PACKET_LEN as f64 / (SWITCH.rate as f64 * time.as_nanos() as f64),
        again: (switch.stat("retransmitted_pkts") - again) as f64 / (switch.stat("sent_pkts") - sent) as f64,
        queue: [
            lengths.iter().sum::<u64>() / packets as u64,
            lengths[packets * 99 / 100],
            lengths.last().copied().unwrap_or(0),
        ],
        marked: switch.marked as f64 / packets as f64,
    }
}

#[test]
fn flows_share_a_bottleneck_and_keep_its_queue_short() {
    let delay = DelayControl { target: Duration::from_micros(18), scaling: Duration::from_micros(12) };
    let mut table = String::from(
        "\
Queue pairs of up to 64 hosts with links of 100 Gb/s, one link of 40 Gb/s to their receiver, 8 us there and back, path MTU 1024.
The switch marks packets from a queue of 100 KB on, all from 400 KB on. Utilisation is that by packets that were
acknowledged within 200 ms, lengths of the queue are in KB.

flows  control         Jain's index  utilisation  again   mean    p99    max  marked
",
    );
    for flows in [2, 8, 64, 256] {
        let controls = [
            ("off", CongestionControl::Off),
            ("notifications", CongestionControl::default()),
            ("delay", CongestionControl::Delay(delay.clone())),
        ];
        for (name, control) in controls {
            let is_on = control != CongestionControl::Off;
            let time = Duration::from_millis(if is_on { 200 } else { 20 });
            let Outcome { fairness, utilisation, again, queue, marked } = outcome(flows, control, time / 2, time);
            let [mean, p99, max] = queue.map(|bytes| bytes as f64 / 1000.0);
            let row = format!(
                "{flows:>5}  {name:<15} {fairness:>12.3} {utilisation:>12.3} {:>5.2}% {mean:>6.0} {p99:>6.0} {max:>6.0} {:>6.2}%",
                100.0 * again,
                100.0 * marked
            );
            writeln!(table, "{row}").unwrap();
            assert!(!is_on || fairness >= 0.95, "{row}");
            assert!(!is_on || utilisation >= 0.9, "{row}");
            assert!(!is_on || again <= 0.01, "{row}");
        }
    }
    insta::assert_snapshot!(table);
}

/// More notifications than it takes to the lowest rate, 10 Mb/s: a packet of 1082 bytes takes 865.6 us.
fn slowed_down(qp_type: QpType, control: CongestionControl) -> ScriptedPeer {
    let config = EngineConfig { congestion: control, ..EngineConfig::default() };
    let mut peer = ScriptedPeer::of(qp_type, false, Agreed::default(), config);
    (0..20).for_each(|_| peer.notify_congestion());
    peer
}

const PACKET: Duration = Duration::from_nanos(865_600);

fn query(peer: &ScriptedPeer) -> QpInfo {
    peer.node.engine.query_qp(peer.node.qpn).unwrap()
}

// [ECN-CNP-RATE]
#[test]
fn requests_wait_for_the_rate_that_notifications_leave_and_acks_do_not() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut peer = slowed_down(qp_type, CongestionControl::default());
        (1..=3).for_each(|wr_id| post(&mut peer, wr_id, SEND, 1024));
        assert_eq!(peer.transmit().len(), 1, "{qp_type}");
        let info = query(&peer);
        assert_eq!((info.rate, info.waits, info.cnps), (Some(10_000_000), Wait::Rate, (20, 0)));
        assert!(!peer.node.engine.wants_transmit());
        assert_eq!(peer.node.stat("rate_stalls"), 1);
        if qp_type == QpType::Rc {
            peer.rdma(Opcode::WriteOnly, 0, AckReq::Ack, 0, 1, b"w");
            peer.expect(["ACK 0 msn 1"]);
        }
        peer.advance(PACKET - Duration::from_micros(2));
        peer.expect([]);
        peer.advance(Duration::from_micros(130));
        assert_eq!(peer.transmit().len(), 1, "{qp_type}");
        assert!(query(&peer).rate > Some(100_000_000), "the rate grows with time");
    }
}

// [ECN-CNP-RATE]
#[test]
fn read_responses_wait_for_the_rate() {
    let mut peer = slowed_down(QpType::Rc, CongestionControl::default());
    peer.rdma(Opcode::ReadRequest, 0, AckReq::Ack, 0, 3 * 1024, b"");
    peer.expect(["READ_RESPONSE_FIRST 0 msn 1 1024 bytes"]);
    assert_eq!(query(&peer).waits, Wait::Rate);
    peer.advance(PACKET - Duration::from_micros(2));
    peer.expect([]);
    // The first packet had four bytes more.
    peer.advance(Duration::from_micros(6));
    peer.expect(["READ_RESPONSE_MIDDLE 1 1024 bytes"]);
    peer.advance(PACKET);
    peer.expect(["READ_RESPONSE_LAST 2 msn 1 1024 bytes"]);
    peer.expect([]);
}

// [ECN-CNP-RATE]
#[test]
fn notifications_change_nothing_for_datagrams_and_where_they_are_not_followed() {
    let mut peer = slowed_down(QpType::Rc, CongestionControl::Off);
    (1..=40).for_each(|wr_id| post(&mut peer, wr_id, SEND, 1024));
    assert_eq!(peer.transmit().len(), 40);
    assert_eq!((query(&peer).rate, query(&peer).cnps), (None, (20, 0)));
    let peer = slowed_down(QpType::Ud, CongestionControl::default());
    assert_eq!((query(&peer).rate, query(&peer).cnps), (None, (20, 0)));
}

#[test]
fn a_window_follows_the_round_trip() {
    let control = CongestionControl::Delay(DelayControl::default());
    let config = EngineConfig { congestion: control, ..EngineConfig::default() };
    let mut peer = ScriptedPeer::with_config(Agreed { timeout: 19, ..Agreed::default() }, config);
    post(&mut peer, 1, SEND, 60 * 1024);
    assert_eq!((query(&peer).window, peer.transmit().len()), (10, 10));
    peer.advance(Duration::from_micros(20));
    peer.ack(9);
    assert_eq!((query(&peer).window, peer.transmit().len()), (20, 20), "short: twice as long");
    // Less than the shortest retransmission timeout.
    peer.advance(Duration::from_micros(900));
    peer.ack(29);
    assert_eq!((query(&peer).window, peer.transmit().len()), (10, 10), "long: half as long");
    // There is an ACK for the middle of the window and one for its end.
    peer.advance(Duration::from_micros(900));
    peer.ack(34);
    assert_eq!((query(&peer).window, peer.transmit().len()), (5, 0), "as many are under way");
    peer.ack(39);
    assert_eq!(peer.transmit().len(), 5);
    peer.advance(Duration::from_micros(20));
    peer.ack(44);
    assert_eq!((query(&peer).window, peer.transmit().len()), (6, 6), "short: one more");
}
