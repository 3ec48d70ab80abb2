//! Fault injection on a whole adapter with two lcores that share one pair of queues: every frame that the port received,
//! and every frame that the adapter sent, is accounted for, including those delayed when it stopped. Needs neither root nor
//! hugepages: net_pcap plays the received frames from one file and writes the sent ones into another.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use rxe_dpdk::eal::Eal;
use rxe_dpdk::runtime::{PortSettings, Runtime, RuntimeConfig, StopHandle};
use rxe_dpdk::rxe_proto::wire::{Frame, classify};
use rxe_dpdk::worker::{Direction, FaultAction, FaultMatch, FaultRule, FaultScope, IdlePolicy, Probability};
use rxe_testkit::{child, pcap};

use crate::cpu;

use super::pcap_port::{MAC, Temporary, ping};

const PINGS: u32 = 20_000;

/// Offset of the number in a ping and its reply: behind the Ethernet, IPv4 and ICMP headers.
const NUMBER_AT: usize = 14 + 20 + 8;

/// A RoCE packet to a nonexistent queue pair of worker 1.
fn for_worker_1(captured: &[u8]) -> Vec<u8> {
    let mut frame = captured.to_vec();
    frame[..6].copy_from_slice(&MAC.0);
    frame[47..50].copy_from_slice(&[0x10, 0, 0x07]);
    frame
}

/// Two lcores on one processor, so that this runs anywhere, and a port of net_pcap.
fn start_eal(port: &str) -> Eal {
    let cpu = cpu::first_allowed();
    let args = ["--no-huge", "-m", "512", "--no-pci", "--no-telemetry", "--no-shconf"];
    let mut args: Vec<String> = args.map(str::to_owned).into();
    args.push(format!("--lcores=0@{cpu},1@{cpu}"));
    args.push(format!("--vdev=net_pcap0,{port}"));
    Eal::init(&args).unwrap()
}

/// The configuration of an adapter on that port.
fn config(faults: Vec<FaultRule>) -> RuntimeConfig {
    RuntimeConfig {
        ports: vec![PortSettings { addresses: vec!["192.168.77.1/24".parse().unwrap()], ..PortSettings::default() }],
        idle: IdlePolicy::Sleep(Duration::from_micros(50)),
        faults,
        seed: [7; 32],
        ..RuntimeConfig::default()
    }
}

/// Pings, and one RoCE packet for every three of them.
fn frames() -> Vec<Vec<u8>> {
    let captured = pcap::recorded("cm-rping-ipv4.pcap");
    let roce = captured.into_iter().find(|frame| matches!(classify(frame), Ok(Frame::Roce(_)))).unwrap();
    let roce = |number: u32| number.is_multiple_of(3).then(|| for_worker_1(&roce));
    (0..PINGS).flat_map(|number| roce(number).into_iter().chain([ping(number)])).collect()
}

/// A rule that applies to every frame.
fn to_all(action: FaultAction, direction: Direction) -> FaultRule {
    let matches = FaultMatch { scope: FaultScope::All, ..FaultMatch::default() };
    FaultRule { matches, seed: 7, ..FaultRule::new(action, direction) }
}

#[test]
fn every_frame_is_accounted_for() {
    child::alone(account_for_every_frame);
}

fn account_for_every_frame() {
    let (wire_in, wire_out) = (Temporary::new("faults-in.pcap"), Temporary::new("faults-out.pcap"));
    let frames = frames();
    pcap::write(&wire_in.0, frames.iter().cloned());

    let eal = start_eal(&format!("rx_pcap={},tx_pcap={}", wire_in.0.display(), wire_out.0.display()));
    let share = |share| Probability::from_share(share).unwrap();
    // Half of the frames are delayed for longer than the test takes: they are released when there are too many of them, or
    // when the adapter stops.
    let delay = FaultAction::Delay { delay: Duration::from_secs(10), jitter: Duration::from_secs(1) };
    let actions = [
        (FaultAction::Drop, 0.05),
        (FaultAction::Duplicate, 0.05),
        (FaultAction::Reorder, 0.05),
        (FaultAction::Corrupt, 0.05),
        (delay, 0.5),
    ];
    let rules = [Direction::Rx, Direction::Tx].into_iter().flat_map(|direction| {
        actions.map(|(action, probability)| FaultRule { probability: share(probability), ..to_all(action, direction) })
    });
    let runtime = Runtime::new(eal, config(rules.collect()), Vec::new()).unwrap();
    assert!(runtime.ready_line().contains(" lcores=2 "), "{}", runtime.ready_line());

    let stop = runtime.stop_handle();
    let telemetry = runtime.telemetry();
    let count = frames.len() as u64;
    let watcher = thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs(60);
        while telemetry.snapshot().get("worker", "rx_frames") < Some(count) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        let snapshot = telemetry.snapshot();
        stop.stop();
        snapshot
    });
    let summary = runtime.run().unwrap();
    let before_stop = watcher.join().unwrap();
    println!("{summary}");

    let get = |group: &str, name: &str| summary.counters.get(group, name).unwrap();
    assert_eq!(get("worker", "rx_frames"), count);
    for fault in ["rx_fault", "tx_fault"] {
        let all = get(fault, "frames") + get(fault, "out_of_scope") + get(fault, "duplicated");
        assert_eq!(all, get(fault, "dropped") + get(fault, "delivered"), "{fault}");
        for outcome in ["dropped", "duplicated", "reordered", "corrupted", "delayed", "released_early"] {
            assert!(get(fault, outcome) > 0, "{fault}: {outcome} did not occur");
        }
        let delivered = before_stop.get(fault, "delivered").unwrap();
        assert!(delivered < get(fault, "delivered"), "{fault}: some frames were delayed until the end");
    }

    // Receive side: the injector saw every frame that the port received, and each frame that it delivered or dropped is
    // counted once.
    assert_eq!(get("rx_fault", "frames"), count);
    assert_eq!(get("drop", "injected"), get("rx_fault", "dropped"));
    let sorted = get("worker", "host_frames")
        + get("worker", "gsi_packets")
        + get("worker", "qp_packets")
        + get("worker", "dropped_frames");
    assert_eq!(sorted, count + get("rx_fault", "duplicated"));
    assert!(get("worker", "handoff_out") > 5_000);
    // The ring overflows while the second lcore is not scheduled; what it held was received.
    assert_eq!(get("worker", "handoff_in") + get("drop", "handoff_full"), get("worker", "handoff_out"));

    // Transmit side: the injector saw every frame that the adapter sent, and the frames it delivered are on the wire.
    assert_eq!(get("tx_fault", "frames"), get("worker", "tx_frames"));
    assert_eq!(get("drop", "no_transmit_room"), 0);
    let sent = pcap::frames(&wire_out.0);
    assert_eq!(sent.len() as u64, get("tx_fault", "delivered"));
    assert_eq!(summary.ports[0].2, get("tx_fault", "delivered"));
    let mut answers = HashMap::<u32, u32>::new();
    for frame in &sent {
        let number = frame.get(NUMBER_AT..NUMBER_AT + 4).map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap()));
        *answers.entry(number.unwrap_or(u32::MAX)).or_default() += 1;
    }
    let answered = answers.keys().filter(|number| **number < PINGS).count() as u32;
    // A ping and its reply are each dropped with 5 %, and a ping damaged beyond use with nearly as much; replies are
    // damaged too, but rarely in their number. The bounds are sixteen standard deviations wide.
    assert!((PINGS * 82 / 100..PINGS * 90 / 100).contains(&answered), "{answered} of {PINGS} answered");
    assert!(answers.values().any(|count| *count > 1));
    assert_eq!(summary.mbufs_leaked, 0);
}

#[test]
fn rules_are_added_and_removed_while_the_adapter_runs() {
    child::alone(add_and_remove_rules);
}

/// Stops the adapter on drop, so that it ends when the test fails.
struct Stop(StopHandle);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Waits until `done`, for a minute at most.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn add_and_remove_rules() {
    let wire_in = Temporary::new("faults-endless.pcap");
    pcap::write(&wire_in.0, frames().into_iter().take(3000));
    // Played in a loop.
    let eal = start_eal(&format!("rx_pcap={},tx_pcap=/dev/null,infinite_rx=1", wire_in.0.display()));
    let runtime = Runtime::new(eal, config(Vec::new()), Vec::new()).unwrap();
    let (stop, telemetry, inspector) = (Stop(runtime.stop_handle()), runtime.telemetry(), runtime.inspector());
    let watcher = thread::spawn(move || {
        let _stop = stop;
        let count = |group: &str, name: &str| telemetry.snapshot().get(group, name).unwrap();
        let hits = |id| inspector.faults().iter().find(|fault| fault.id == id).map(|fault| fault.hits);
        until("frames", || count("worker", "host_frames") > 0);
        assert_eq!((count("rx_fault", "frames"), count("tx_fault", "frames")), (0, 0), "there are no injectors");

        // A rule with a count, on the receive side.
        let lose = FaultRule { count: Some(3), ..to_all(FaultAction::Drop, Direction::Rx) };
        assert_eq!(inspector.add_fault(lose), Ok(1));
        until("three frames lost", || hits(1) == Some(3));
        assert_eq!(count("drop", "injected"), 3);
        // A rule on the transmit side that delays frames for longer than the test takes. Its buffer has the size reserved
        // for rules added at run time.
        let hours = FaultAction::Delay { delay: Duration::from_secs(10), jitter: Duration::ZERO };
        assert_eq!(inspector.add_fault(to_all(hours, Direction::Tx)), Ok(2));
        until("frames pushed out", || count("tx_fault", "released_early") > 1000);
        assert_eq!(
            inspector.faults().iter().map(|fault| fault.rule.as_str()).collect::<Vec<_>>(),
            ["rx drop frames=all count=3 seed=7", "tx delay 10s frames=all seed=7"]
        );
        assert_eq!(hits(1), Some(3));

        // An injector without rules releases all frames and is removed.
        assert_eq!(inspector.remove_fault(2), Ok(()));
        let whole = |fault: &str| {
            let into = count(fault, "frames") + count(fault, "out_of_scope") + count(fault, "duplicated");
            into > 0 && into == count(fault, "dropped") + count(fault, "delivered")
        };
        until("the frames to the wire have left", || whole("tx_fault"));
        let (before, frames) = (count("tx_fault", "frames"), count("worker", "tx_frames"));
        until("more frames sent", || count("worker", "tx_frames") > frames + 1000);
        assert_eq!(count("tx_fault", "frames"), before, "there is no injector");
        assert!(inspector.remove_fault(2).is_err_and(|error| error.to_string().starts_with("there is no fault 2")));
        assert_eq!(inspector.clear_faults(), Ok(()));
        assert!(inspector.faults().is_empty());
        until("the frames from the wire have left", || whole("rx_fault"));
        let (before, frames) = (count("rx_fault", "frames"), count("worker", "rx_frames"));
        until("more frames received", || count("worker", "rx_frames") > frames + 1000);
        assert_eq!(count("rx_fault", "frames"), before, "there is no injector");

        // Some frames are delayed when the adapter stops.
        assert_eq!(inspector.add_fault(to_all(hours, Direction::Rx)), Ok(3));
        assert_eq!(inspector.add_fault(to_all(hours, Direction::Tx)), Ok(4));
        until("frames held", || hits(3) > Some(100) && hits(4) > Some(100));
    });
    let summary = runtime.run().unwrap();
    watcher.join().unwrap();
    let get = |group: &str, name: &str| summary.counters.get(group, name).unwrap();
    for fault in ["rx_fault", "tx_fault"] {
        let all = get(fault, "frames") + get(fault, "out_of_scope") + get(fault, "duplicated");
        assert_eq!(all, get(fault, "dropped") + get(fault, "delivered"), "{fault}");
    }
    assert_eq!((get("rx_fault", "dropped"), summary.mbufs_leaked), (3, 0));
}
