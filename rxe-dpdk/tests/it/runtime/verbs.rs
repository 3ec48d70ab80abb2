//! Services with queue pairs of their own: UC with a shared receive queue, UD, multicast groups. The adapter runs on one
//! end of a net_memif pair, with one worker or two; the other end is an engine polled by the test.
//!
//! Needs neither root nor hugepages.

use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use rxe_dpdk::eal::Eal;
use rxe_dpdk::host::multicast_mac;
use rxe_dpdk::runtime::{PortSettings, Runtime, RuntimeConfig, Summary};
use rxe_dpdk::rxe_proto::mem::Access;
use rxe_dpdk::rxe_proto::transport::{
    AhId, AsyncEvent, PostError, QpErrorCause, QpTransition, QpType, Qpn, RemoteAddr, RtrAttr, RtsAttr, SendOp, SendWr,
    WcOpcode, WcStatus,
};
use rxe_dpdk::rxe_proto::wire::{Gid, MacAddr, Path, Psn};
use rxe_dpdk::worker::IdlePolicy;
use rxe_testkit::child;

use super::peer::Peer;
use super::test_service::{
    GRH, GROUP, GROUP6, MTU, OUR_MAC, OURS, PEER_MAC, PEERS, QKEY, Report, SHARED, SLOT, TestService, groups, wr,
};

/// The other end of the link, and what it knows of the adapter.
struct Script {
    peer: Peer,
    reports: Receiver<Report>,
    workers: usize,
    uc: Vec<Qpn>,
    ud: Qpn,
    /// By worker: the service's UD queue pair and window.
    known: Vec<(Qpn, RemoteAddr)>,
}

#[test]
fn service_exchanges_uc_and_ud_messages_on_one_worker() {
    child::alone(|| on_workers(1));
}

#[test]
fn service_exchanges_uc_and_ud_messages_on_two_workers() {
    child::alone(|| on_workers(2));
}

fn on_workers(workers: usize) {
    // Two paths of one socket: within one process, one end of the pair refuses the path of the other.
    let socket = format!("rxe-verbs-{}.sock", std::process::id());
    let folder = std::env::temp_dir();
    let names = ["", "./"].map(|here| format!("{}/{here}{socket}", folder.display()));
    let mut args: Vec<String> =
        ["--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--no-shconf", "-l"].map(str::to_owned).into();
    args.push(if workers == 1 { "0" } else { "0,1" }.to_owned());
    for (n, (role, mac)) in [("client", OUR_MAC), ("server", PEER_MAC)].into_iter().enumerate() {
        args.push(format!("--vdev=net_memif{n},role={role},id=0,mac={mac},socket-abstract=no,socket={}", names[n]));
    }
    let eal = Eal::init(&args).unwrap();
    // The memif server first.
    let mut peer = Peer::new(&eal, "net_memif1", workers as u16);
    let uc: Vec<Qpn> = (0..workers).map(|_| peer.create_qp(QpType::Uc)).collect();
    let ud = peer.create_qp(QpType::Ud);
    let (sender, reports) = mpsc::channel();
    let config = RuntimeConfig {
        ports: vec![PortSettings {
            addresses: vec![format!("{OURS}/24").parse().unwrap()],
            mtu: Some(1500),
            ..PortSettings::default()
        }],
        idle: IdlePolicy::Sleep(Duration::from_micros(50)),
        seed: [7; 32],
        ..RuntimeConfig::default()
    };
    let service = TestService { uc: uc.clone(), reports: Mutex::new(sender) };
    let runtime = Runtime::new(eal, config, vec![Box::new(service)]).unwrap();
    let stop = runtime.stop_handle();
    let driver = thread::spawn(move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut script = Script { peer, reports, workers, uc, ud, known: Vec::new() };
            script.play();
            script
        }));
        stop.stop();
        result
    });
    let summary = runtime.run().unwrap();
    println!("{summary}");
    drop(driver.join().unwrap().map_err(|panic| std::panic::resume_unwind(panic)));
    let _ = std::fs::remove_file(&names[0]);
    check(&summary, workers as u64);
}

/// Datagrams to the IPv4 group per queue and MAC address.
const TO_GROUP: u64 = 20;

fn check(summary: &Summary, workers: u64) {
    let get = |group: &str, name: &str| summary.counters.get(group, name).unwrap();
    assert_eq!(get("drop", "foreign_address"), 3);
    // A group without members, a frame to a group with another group's MAC address, a destroyed queue pair.
    assert_eq!(get("drop", "foreign_mac"), 1);
    assert!(get("drop", "qpn_unknown") >= 2, "{summary}");
    // Both groups were joined and left, each reported once or twice.
    assert_eq!((get("host", "groups_joined"), get("host", "groups_left")), (2, 2));
    assert!((2..=4).contains(&get("host", "igmp_reports_sent")), "{summary}");
    // Through two MAC addresses and on each queue to the first group, once to the second.
    let to_all = workers * 2 * TO_GROUP + 1;
    assert_eq!(get("worker", "multicast_copies"), (workers - 1) * to_all);
    assert_eq!(get("worker", "multicast_copies_lost"), 0);
    assert_eq!(get("drop", "handoff_full"), 0);
    assert_eq!(get("service", "qp_errors"), workers);
    assert_eq!(summary.mbufs_leaked, 0);
}

impl Script {
    fn play(&mut self) {
        self.set_up();
        for worker in 0..self.workers {
            self.unreliable_connection(worker);
            self.datagrams(worker);
        }
        self.foreign_addresses();
        self.group();
        for worker in 0..self.workers {
            self.overrun(worker);
        }
        self.leave();
    }

    fn report(&mut self, what: &str) -> Report {
        let reports = &self.reports;
        self.peer.until(what, |_| match reports.try_recv() {
            Ok(report) => Some(report),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("the adapter has ended"),
        })
    }

    /// The service's report of the next datagram; skips events.
    fn datagram(&mut self) -> (usize, Vec<u8>) {
        loop {
            match self.report("a datagram at the service") {
                Report::Datagram { worker, bytes } => return (worker, bytes),
                Report::Event { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn event(&mut self) -> (usize, AsyncEvent) {
        loop {
            match self.report("an event at the service") {
                Report::Event {
                    event: AsyncEvent::SrqLimitReached { .. } | AsyncEvent::CommunicationEstablished { .. },
                    ..
                } => {}
                Report::Event { worker, event } => return (worker, event),
                other => panic!("{other:?}"),
            }
        }
    }

    fn path(&self, dst: IpAddr, dst_mac: MacAddr) -> Path {
        let src: Gid =
            if dst.is_ipv4() { PEERS.into() } else { "fe80::32".parse::<std::net::Ipv6Addr>().unwrap().into() };
        Path {
            port: self.peer.port(),
            src_mac: PEER_MAC,
            dst_mac,
            vlan: None,
            src,
            dst: dst.into(),
            udp_src_port: 0xC456,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
        }
    }

    fn set_up(&mut self) {
        self.peer.wait_for_link();
        let mut ready = vec![None; self.workers];
        for _ in 0..self.workers {
            let Report::Ready { worker, uc, sq_psn, ud, window } = self.report("a service that is ready") else {
                panic!()
            };
            ready[worker] = Some((uc, sq_psn, ud, window));
        }
        for (worker, (uc, rq_psn, ud, window)) in ready.into_iter().map(Option::unwrap).enumerate() {
            assert_eq!((usize::from(uc.worker()), usize::from(ud.worker())), (worker, worker));
            self.known.push((ud, window));
            let path = self.path(OURS.into(), OUR_MAC);
            let rtr = RtrAttr { path, path_mtu: MTU, dest_qpn: uc, rq_psn, max_dest_rd_atomic: 0, min_rnr_timer: 0 };
            let rts = RtsAttr { sq_psn: Psn::default(), timeout: 0, retry_cnt: 0, rnr_retry: 0, max_rd_atomic: 0 };
            let access = Access::empty();
            for step in [QpTransition::ToInit { access }, QpTransition::ToRtr(rtr), QpTransition::ToRts(rts)] {
                self.peer.engine.modify_qp(self.uc[worker], step).unwrap();
            }
        }
        let (port, qkey, sq_psn) = (self.peer.port(), QKEY, Psn::default());
        for step in [
            QpTransition::ToInitDatagram { port, qkey },
            QpTransition::ToRtrDatagram { path_mtu: MTU },
            QpTransition::ToRtsDatagram { sq_psn },
        ] {
            self.peer.engine.modify_qp(self.ud, step).unwrap();
        }
        // The port has reported both groups before any datagram to them.
        for (kind, mac) in [("IGMP", [1, 0, 0x5E, 0, 0, 0x16]), ("MLD", [0x33, 0x33, 0, 0, 0, 0x16])] {
            let group = if kind == "IGMP" { GROUP.octets().to_vec() } else { groups()[1].0.to_vec() };
            self.peer.until(kind, |peer| {
                let report = |frame: &Vec<u8>| frame[..6] == mac && frame.windows(group.len()).any(|w| w == group);
                peer.host_frames.iter().any(report).then_some(())
            });
        }
    }

    /// Echoed messages, more than the shared receive queue holds; then a WRITE.
    fn unreliable_connection(&mut self, worker: usize) {
        let qpn = self.uc[worker];
        for n in 0..3 * SHARED {
            self.peer.post_recv(qpn, 1024);
            let message: Vec<u8> = (0..200).map(|i| (i * 7 + n) as u8).collect();
            let op = SendOp::Send { imm: Some(n) };
            self.peer.engine.post_send_inline(qpn, &wr(op), &message).unwrap();
            let wc = self.peer.completion();
            assert_eq!((wc.status, wc.opcode, wc.imm), (WcStatus::Success, WcOpcode::Recv, Some(n + 1)));
            assert_eq!(self.peer.bytes(1024, wc.byte_len as usize), message);
        }
        let (_, remote) = self.known[worker];
        let bytes: Vec<u8> = (0..3000_u32).map(|i| (i % 251) as u8 ^ worker as u8).collect();
        self.peer.memory.write(2048, &bytes).unwrap();
        let sges = [self.peer.sge(2048, bytes.len() as u32)];
        let op = SendOp::Write { remote, imm: Some(1) };
        self.peer.engine.post_send(qpn, &SendWr { sges: &sges, ..wr(op) }).unwrap();
        loop {
            match self.report("the WRITE at the service") {
                Report::Written { worker: at, bytes: written } => {
                    assert!(at == worker && written == bytes);
                    break;
                }
                Report::Event { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn send_datagram(&mut self, ah: AhId, qpn: Qpn, bytes: &[u8]) {
        let op = SendOp::Datagram { ah, qpn, qkey: QKEY, imm: Some(77) };
        let ud = self.ud;
        self.peer.until("room for a datagram", |peer| match peer.engine.post_send_inline(ud, &wr(op), bytes) {
            Ok(()) => Some(()),
            Err(PostError::QueueFull) => None,
            Err(error) => panic!("{error}"),
        });
    }

    fn ah(&mut self, dst: IpAddr, mac: MacAddr) -> AhId {
        let path = self.path(dst, mac);
        self.peer.engine.create_ah(self.peer.pd, &path).unwrap()
    }

    /// Echoed datagrams, and a send queue that is drained.
    fn datagrams(&mut self, worker: usize) {
        let ah = self.ah(OURS.into(), OUR_MAC);
        let (theirs, _) = self.known[worker];
        for command in [&b"ping"[..], b"drain"] {
            let ud = self.ud;
            self.peer.post_recv(ud, 0);
            self.send_datagram(ah, theirs, command);
            let wc = self.peer.completion();
            assert_eq!((wc.status, wc.imm, wc.src_qpn), (WcStatus::Success, Some(77), Some(theirs)));
            assert_eq!(self.peer.bytes(GRH, wc.byte_len as usize - GRH), b"pong");
            assert_eq!(self.datagram(), (worker, command.to_vec()));
        }
        let (at, event) = self.event();
        assert!(at == worker && matches!(event, AsyncEvent::SendQueueDrained { .. }), "{event:?}");
        self.peer.engine.destroy_ah(ah).unwrap();
    }

    /// Datagrams to our MAC address and foreign IP addresses.
    fn foreign_addresses(&mut self) {
        for address in ["10.79.0.9", "10.79.0.255", "fe80::1"] {
            let ah = self.ah(address.parse().unwrap(), OUR_MAC);
            self.send_datagram(ah, self.known[0].0, b"lost");
        }
        self.wait_until_processed(0);
    }

    /// Waits until all frames sent before are processed: a datagram behind them in the same queue has arrived.
    fn wait_until_processed(&mut self, worker: usize) {
        let ah = self.ah(OURS.into(), OUR_MAC);
        self.send_datagram(ah, self.known[worker].0, b"processed");
        assert_eq!(self.datagram(), (worker, b"processed".to_vec()));
    }

    /// Every worker receives every datagram to the group once, whatever its queue and MAC address.
    fn group(&mut self) {
        let macs = [multicast_mac(GROUP.into()).unwrap(), MacAddr([0x33, 0x33, 239, 1, 2, 3])];
        // A worker learns its groups from worker 0, as it gets its datagrams.
        for queue in 0..self.workers {
            self.peer.use_tx_queue(queue);
            for worker in 0..self.workers {
                self.wait_until_processed(worker);
            }
            for mac in macs {
                let ah = self.ah(GROUP.into(), mac);
                for n in 0..TO_GROUP {
                    let bytes = [n as u8; 32];
                    self.send_datagram(ah, Qpn::MULTICAST, &bytes);
                    let mut got: Vec<usize> = Vec::new();
                    while got.len() < self.workers {
                        let (worker, arrived) = self.datagram();
                        assert_eq!(arrived, bytes);
                        got.push(worker);
                    }
                    got.sort_unstable();
                    assert_eq!(got, (0..self.workers).collect::<Vec<_>>());
                }
            }
        }
        self.peer.use_tx_queue(0);
        let group6: IpAddr = GROUP6.parse().unwrap();
        let ah = self.ah(group6, multicast_mac(group6).unwrap());
        self.send_datagram(ah, Qpn::MULTICAST, b"six");
        for _ in 0..self.workers {
            assert_eq!(self.datagram().1, b"six");
        }
        // The MAC address of another group, and a group without members.
        let ah = self.ah(GROUP.into(), MacAddr([1, 0, 0x5E, 1, 2, 4]));
        self.send_datagram(ah, Qpn::MULTICAST, b"lost");
        let other: IpAddr = "239.9.9.9".parse().unwrap();
        let ah = self.ah(other, multicast_mac(other).unwrap());
        self.send_datagram(ah, Qpn::MULTICAST, b"lost");
        self.wait_until_processed(0);
    }

    /// A message longer than its receive: the service's queue pair goes to the error state, and the service destroys it.
    fn overrun(&mut self, worker: usize) {
        let qpn = self.uc[worker];
        let sges = [self.peer.sge(0, SLOT as u32 + 1)];
        let op = SendOp::Send { imm: None };
        self.peer.engine.post_send(qpn, &SendWr { sges: &sges, ..wr(op) }).unwrap();
        let (at, event) = self.event();
        let is_error = matches!(event, AsyncEvent::QpError { cause: QpErrorCause::ReceiveTooSmall, .. });
        assert!(at == worker && is_error, "{event:?}");
        let (at, event) = self.event();
        assert!(at == worker && matches!(event, AsyncEvent::LastWqeReached { .. }), "{event:?}");
        // The queue pair no longer exists.
        self.peer.engine.post_send(qpn, &wr(op)).unwrap();
        self.wait_until_processed(worker);
    }

    /// One worker after the other leaves the group; the port leaves with the last one.
    fn leave(&mut self) {
        let unicast = self.ah(OURS.into(), OUR_MAC);
        let ah = self.ah(GROUP.into(), multicast_mac(GROUP.into()).unwrap());
        for worker in 0..self.workers {
            let theirs = self.known[worker].0;
            // Half of them detach, half destroy the queue pair.
            let command = if worker % 2 == 0 { &b"leave"[..] } else { b"destroy" };
            let reports = self.peer.host_frames.len();
            self.send_datagram(unicast, theirs, command);
            assert_eq!(self.datagram(), (worker, command.to_vec()));
            let rest = self.workers - worker - 1;
            if rest == 0 {
                // The last one produces a report.
                self.peer.until("an IGMP report of leaving", |peer| {
                    let left = |frame: &Vec<u8>| frame[23] == 2 && frame[46] == 3 && frame[50..54] == GROUP.octets();
                    peer.host_frames[reports..].iter().any(left).then_some(())
                });
            }
            self.send_datagram(ah, Qpn::MULTICAST, b"still here");
            for _ in 0..rest {
                assert_eq!(self.datagram(), (worker + 1, b"still here".to_vec()));
            }
        }
        self.wait_until_processed(0);
    }
}
