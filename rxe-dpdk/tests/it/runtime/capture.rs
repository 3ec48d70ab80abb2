//! Captures of a whole adapter with two lcores that share one pair of queues: the files contain every frame that the
//! adapter counted, once, with its direction and its outcome. Needs neither root nor hugepages: net_pcap plays the received
//! frames from one file and writes the sent ones into another.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rxe_dpdk::counters::Snapshot;
use rxe_dpdk::eal::Eal;
use rxe_dpdk::manage::{Capture, CaptureError};
use rxe_dpdk::runtime::{PortSettings, Runtime, RuntimeConfig, Summary};
use rxe_dpdk::rxe_proto::wire::{DropReason, Frame, classify};
use rxe_dpdk::worker::Probability;
use rxe_dpdk::worker::{Direction, FaultAction, FaultMatch, FaultRule, FaultScope, IdlePolicy};
use rxe_inspect::capture::{CaptureSettings, CaptureStatus};
use rxe_testkit::{child, pcap, pcapng};

use crate::cpu;

use super::pcap_port::{MAC, Temporary, ping};

/// The source of the pings.
const PINGER: &str = "192.168.77.9";

/// A RoCE packet to this queue pair of ours.
fn to_qp(roce: &[u8], qpn: u32) -> Vec<u8> {
    let mut frame = roce.to_vec();
    frame[..6].copy_from_slice(&MAC.0);
    frame[30..34].copy_from_slice(&[192, 168, 77, 1]);
    frame[46..50].copy_from_slice(&qpn.to_be_bytes());
    frame
}

/// Pings, packets to nonexistent queue pairs of both workers and to the connection manager, and frames of an unknown
/// EtherType: `rounds` times.
fn frames(rounds: u32) -> Vec<Vec<u8>> {
    let captured = pcap::recorded("cm-rping-ipv4.pcap");
    let roce = captured.into_iter().find(|frame| matches!(classify(frame), Ok(Frame::Roce(_)))).unwrap();
    let round = |number| {
        let foreign = [&MAC.0[..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xCC], &[0; 100]].concat();
        vec![ping(number), to_qp(&roce, 7), to_qp(&roce, 0x10_0007), to_qp(&roce, 1), foreign]
    };
    (0..rounds).flat_map(round).collect()
}

/// Runs an adapter on net_pcap with these options, and `meanwhile` in another thread.
fn run<T: Send + 'static>(
    options: &str,
    faults: Vec<FaultRule>,
    prepare: impl FnOnce(&Runtime),
    meanwhile: impl FnOnce(&Capture, &dyn Fn() -> Snapshot) -> T + Send + 'static,
) -> (Summary, T) {
    // Two lcores on one processor, so that this runs anywhere.
    let cpu = cpu::first_allowed();
    let args = ["--no-huge", "-m", "512", "--no-pci", "--no-telemetry", "--no-shconf"];
    let mut args: Vec<String> = args.map(str::to_owned).into();
    args.push(format!("--lcores=0@{cpu},1@{cpu}"));
    args.push(format!("--vdev=net_pcap0,{options}"));
    let eal = Eal::init(&args).unwrap();
    let config = RuntimeConfig {
        ports: vec![PortSettings { addresses: vec!["192.168.77.1/24".parse().unwrap()], ..PortSettings::default() }],
        idle: IdlePolicy::Sleep(Duration::from_micros(50)),
        faults,
        seed: [7; 32],
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::new(eal, config, Vec::new()).unwrap();
    prepare(&runtime);
    let (stop, capture, telemetry) = (runtime.stop_handle(), runtime.capture(), runtime.telemetry());
    let driver = thread::spawn(move || {
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| meanwhile(&capture, &|| telemetry.snapshot())));
        stop.stop();
        result
    });
    let summary = runtime.run().unwrap();
    match driver.join().unwrap() {
        Ok(result) => (summary, result),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Waits until `condition`, for a minute at most.
fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "the condition is not met in time");
        thread::sleep(Duration::from_millis(2));
    }
}

fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

#[test]
fn capture_has_every_frame_with_its_outcome() {
    child::alone(|| {
        let [wire_in, wire_out, file] = ["in.pcap", "out.pcap", "all.pcapng"].map(Temporary::new);
        let frames = frames(2_000);
        pcap::write(&wire_in.0, frames.iter().cloned());
        let one_in_twenty = Probability::from_share(0.05).unwrap();
        let rule = |action, direction| FaultRule {
            matches: FaultMatch { scope: FaultScope::All, ..FaultMatch::default() },
            probability: one_in_twenty,
            seed: 7,
            ..FaultRule::new(action, direction)
        };
        let actions = [FaultAction::Drop, FaultAction::Duplicate, FaultAction::Corrupt];
        let faults = [Direction::Rx, Direction::Tx].into_iter().flat_map(|way| actions.map(|action| rule(action, way)));
        let options = format!("rx_pcap={},tx_pcap={}", wire_in.0.display(), wire_out.0.display());
        let settings = CaptureSettings::new(file.0.clone());
        let (count, before) = (frames.len() as u64, unix_nanos());
        let (summary, status) = run(
            &options,
            faults.collect(),
            |runtime| runtime.capture().start_early(settings).unwrap(),
            move |capture, counters| {
                wait_until(|| counters().get("worker", "rx_frames") >= Some(count));
                capture.status().unwrap()
            },
        );
        println!("{summary}");
        assert!(status.running, "the capture runs until the adapter ends");
        let get = |group: &str, name: &str| summary.counters.get(group, name).unwrap();
        let capture = pcapng::read(&file.0);
        assert_eq!(capture.interfaces, ["net_pcap0"]);
        assert_eq!(capture.packets.len() as u64, get("capture", "captured"));
        assert_eq!((capture.counted, get("capture", "ring_full")), (Some((capture.packets.len() as u64, 0)), 0));
        let times = before..=unix_nanos();
        assert!(capture.packets.iter().all(|packet| times.contains(&packet.time) && packet.len == packet.bytes.len()));

        // Received: each frame of the wire and each duplicate, with its drop reason.
        let (sent, received): (Vec<_>, Vec<_>) = capture.packets.into_iter().partition(|packet| packet.sent);
        assert_eq!(received.len() as u64, count + get("rx_fault", "duplicated"));
        let dropped_as = |reason: DropReason| format!("dropped: {} (", reason.name());
        for &reason in DropReason::ALL {
            let dropped = received.iter().filter(|packet| packet.comment.contains(&dropped_as(reason))).count();
            assert_eq!(dropped as u64, get("drop", reason.name()), "{}", reason.name());
        }
        for reason in ["unknown_ethertype", "qpn_unknown", "injected", "mad_malformed", "host_checksum"] {
            assert!(reason == "mad_malformed" || get("drop", reason) > 0, "{reason} did not occur");
        }
        let untouched = frames.iter().filter(|frame| received.iter().any(|packet| packet.bytes == **frame)).count();
        assert!(untouched > frames.len() * 9 / 10, "{untouched}");

        // Sent: the frames on the wire, in that order, and those that the injector dropped.
        let injected = dropped_as(DropReason::Injected);
        let (kept, left): (Vec<_>, Vec<_>) = sent.into_iter().partition(|packet| packet.comment.starts_with(&injected));
        assert_eq!((kept.len() as u64, kept.is_empty()), (get("tx_fault", "dropped"), false));
        assert!(left.iter().all(|packet| packet.comment.is_empty()));
        assert!(left.is_sorted_by_key(|packet| packet.time));
        let left: Vec<Vec<u8>> = left.into_iter().map(|packet| packet.bytes).collect();
        assert!(left == pcap::frames(&wire_out.0), "{} frames went out", left.len());
        assert_eq!(summary.mbufs_leaked, 0);
    });
}

/// Captures until `enough`, and reads the last file.
fn take(
    capture: &Capture,
    settings: CaptureSettings,
    enough: impl Fn(&CaptureStatus) -> bool,
) -> (CaptureStatus, pcapng::Capture) {
    capture.start(settings).unwrap();
    wait_until(|| enough(&capture.status().unwrap()));
    let status = if capture.status().unwrap().running { capture.stop().unwrap() } else { capture.status().unwrap() };
    assert!(!status.running);
    let file = pcapng::read(&status.file);
    assert!(file.counted.is_some(), "the file is complete");
    (status, file)
}

/// `name_00001.pcapng` and so on.
fn numbered(file: &Path, number: u64) -> PathBuf {
    file.with_file_name(format!("{}_{number:05}.pcapng", file.file_stem().unwrap().to_string_lossy()))
}

#[test]
fn captures_start_and_stop_while_the_adapter_runs() {
    child::alone(|| {
        let [wire_in, file] = ["loop.pcap", "some.pcapng"].map(Temporary::new);
        pcap::write(&wire_in.0, frames(1));
        let path = file.0.clone();
        let (summary, lost) = run(
            &format!("rx_pcap={},infinite_rx=1", wire_in.0.display()),
            Vec::new(),
            |_| {},
            move |capture, counters| live(capture, counters, &CaptureSettings::new(path)),
        );
        let get = |name: &str| summary.counters.get("capture", name).unwrap();
        assert!(get("captured") > 5_000 && get("ring_full") == lost, "{summary}");
        assert_eq!(summary.mbufs_leaked, 0);
        // The last capture was not stopped: the end of the adapter completed its file.
        let last = pcapng::read(&file.0);
        assert!(last.counted.is_some() && !last.packets.is_empty());
    });
}

/// Returns the number of frames that the captures report as missed.
fn live(capture: &Capture, counters: &dyn Fn() -> Snapshot, all: &CaptureSettings) -> u64 {
    assert_eq!(capture.status(), Err(CaptureError::None));
    assert_eq!(capture.stop(), Err(CaptureError::NotRunning));
    let captured = || counters().get("capture", "captured").unwrap();
    wait_until(|| counters().get("worker", "rx_frames") > Some(1_000));
    assert_eq!(captured(), 0, "no frame is captured without a capture");

    // With a snap length and a peer filter.
    let pinger: IpAddr = PINGER.parse().unwrap();
    let settings = CaptureSettings { snaplen: 64, peers: vec![pinger], ..all.clone() };
    let (status, file) = take(capture, settings, |status| status.frames >= 1_000);
    assert_eq!((status.frames, status.ended.as_deref()), (file.packets.len() as u64, Some("it was stopped")));
    assert_eq!((status.bytes, status.lost), (all.file.metadata().unwrap().len(), status.lost));
    for packet in &file.packets {
        assert_eq!((packet.bytes.len(), packet.len), (64, 98), "{packet:?}");
        let at = if packet.sent { 30 } else { 26 };
        assert_eq!(IpAddr::from(<[u8; 4]>::try_from(&packet.bytes[at..at + 4]).unwrap()), pinger);
    }
    assert!([true, false].iter().all(|sent| file.packets.iter().any(|packet| packet.sent == *sent)));
    let mut lost = status.lost;
    let still = captured();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(captured(), still, "a stopped capture captures nothing");

    // With a queue pair filter; a second capture is refused.
    let settings = CaptureSettings { qpns: vec![1], ..all.clone() };
    let (status, file) = take(capture, settings, |status| {
        assert_eq!(capture.start(all.clone()), Err(CaptureError::Running(all.file.display().to_string())));
        status.frames >= 1_000
    });
    // In received frames the QPN is in the BTH, in sent ones in the DETH.
    let number = |packet: &pcapng::Packet| {
        if packet.sent { packet.bytes[59..62].to_vec() } else { packet.bytes[47..50].to_vec() }
    };
    assert!(file.packets.iter().all(|packet| number(packet) == [0, 0, 1]));
    lost += status.lost;
    let unknown = CaptureSettings { qpns: vec![0x10_0007], ..all.clone() };
    assert_eq!(capture.start(unknown).unwrap_err().to_string(), "there is no queue pair 0x100007");

    // A ring of two files.
    let settings = CaptureSettings { size: Some(1), files: Some(2), ..all.clone() };
    let (status, file) = take(capture, settings, |status| status.bytes > 4 << 20);
    let newest = (1..).find(|number| numbered(&all.file, *number) == status.file).unwrap();
    assert!(newest >= 4 && !numbered(&all.file, newest - 2).exists() && !file.packets.is_empty(), "{status:?}");
    assert!(!pcapng::read(&numbered(&all.file, newest - 1)).packets.is_empty());
    for number in [newest - 1, newest] {
        let file = numbered(&all.file, number);
        assert!(file.metadata().unwrap().len() <= 1 << 20);
        std::fs::remove_file(file).unwrap();
    }
    lost += status.lost;

    // A capture that ends at a file size.
    let (status, _) = take(capture, CaptureSettings { size: Some(1), ..all.clone() }, |status| !status.running);
    assert_eq!(status.ended.as_deref(), Some("the file has the size that it was to have"));
    assert!(status.bytes <= 1 << 20 && status.bytes > 1_000_000, "{status:?}");
    lost += status.lost;
    // The lcores still record until they receive the message.
    wait_until(|| {
        let before = captured();
        thread::sleep(Duration::from_millis(20));
        captured() == before
    });

    let nowhere = CaptureSettings::new("/nonexistent/a.pcapng".into());
    assert_eq!(
        capture.start(nowhere).unwrap_err().to_string(),
        "the capture file /nonexistent/a.pcapng cannot be made (No such file or directory): choose another place"
    );
    assert_eq!(capture.status().unwrap(), status, "the status is that of the last capture");

    capture.start(all.clone()).unwrap();
    wait_until(|| capture.status().unwrap().frames > 0);
    // It runs on and may miss more frames.
    lost.max(counters().get("capture", "ring_full").unwrap_or_default())
}
