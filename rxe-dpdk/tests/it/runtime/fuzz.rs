//! A million random and damaged frames to a whole adapter: it must not panic, leak a buffer, or drop a frame without a
//! named reason. Needs neither root nor hugepages: net_pcap plays the frames from a capture file.

use std::thread;
use std::time::{Duration, Instant};

use rand_chacha::rand_core::{Rng, SeedableRng};
use rand_chacha::{ChaCha8Rng, ChaCha20Rng};
use rxe_dpdk::eal::Eal;
use rxe_dpdk::runtime::{PortSettings, Runtime, RuntimeConfig};
use rxe_dpdk::rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_dpdk::rxe_proto::verbs::{
    Access, Engine, EngineConfig, MemoryRegion, QpCaps, QpInit, QpType, Qpn, Rc, RecvWr, Sge, WcStatus, WorkCompletion,
    WorkRequest,
};
use rxe_dpdk::rxe_proto::wire::cm::PortSpace;
use rxe_dpdk::rxe_proto::wire::{Frame, MacAddr, classify, icrc};
use rxe_dpdk::service::{Accept, Context, Decision, EndReason, Listen, Service, ServiceFactory, StreamId};
use rxe_testkit::{child, pcap};

use super::pcap_port::{MAC, Temporary};

const FRAMES: usize = 1_000_000;
const SEED: u64 = 0x5EED_0003;

/// Seed of the adapter's random numbers.
const ADAPTER_SEED: [u8; 32] = [7; 32];

/// The numbers of the adapter's first queue pairs. The adapter draws seeds in the order in which it creates its parts: one
/// for the port, then those of the regions, the connection manager and the worker.
fn first_qpns() -> Vec<Qpn> {
    let mut seeds = [[0; 32]; 4];
    let mut rng = ChaCha20Rng::from_seed(ADAPTER_SEED);
    seeds.iter_mut().for_each(|seed| rng.fill_bytes(seed));
    let mut engine = Engine::new(EngineConfig { seed: seeds[3], ..EngineConfig::default() });
    let cq = engine.create_cq(1).unwrap();
    let pd = engine.keys_mut().alloc_pd();
    let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init = QpInit { qp_type: QpType::Rc, pd, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: false };
    (0..32).map(|_| engine.create_qp(rxe_dpdk::rxe_proto::Instant::ZERO, &init).unwrap()).collect()
}

/// Accepts all connections to the ports in the captures, posts receives, sends, and echoes on TCP.
struct Anything;

impl ServiceFactory for Anything {
    fn name(&self) -> &'static str {
        "anything"
    }

    fn listen(&self) -> Vec<Listen> {
        let cm = [7174, 7471, 18515, 4420, 9999];
        let connected = cm.map(|port| Listen::Cm { space: PortSpace::Tcp, port, claims: |_| true });
        connected.into_iter().chain([Listen::Tcp { port: 18515 }]).collect()
    }

    fn create(&self, _worker: usize) -> Box<dyn Service> {
        Box::new(Instance(None))
    }
}

struct Instance(Option<MemoryRegion>);

fn whole(region: &MemoryRegion) -> Sge {
    Sge { addr: region.addr(), length: region.len() as u32, lkey: region.lkey() }
}

impl Service for Instance {
    fn start(&mut self, cx: &mut Context<'_>) {
        let memory = cx.alloc_memory(4096).unwrap();
        let mut dev = cx.device();
        let pd = dev.alloc_pd();
        self.0 =
            Some(dev.reg_mr(pd, memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap());
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, _request: &ConnectRequest) -> Decision {
        let region = self.0.as_ref().unwrap();
        let attr = cx.qp_attr();
        let (mut dev, access) = (cx.device(), Access::REMOTE_WRITE | Access::REMOTE_READ);
        let Ok(qp) = dev.create_qp_in_init::<Rc>(region.pd().into(), attr, access) else {
            return Decision::refuse("no queue pair");
        };
        dev.post_recv(qp, RecvWr { wr_id: 0, sges: &[whole(region)] }).unwrap();
        let private_data = b"hello".to_vec();
        Decision::Accept(Accept { responder_resources: 4, initiator_depth: 4, private_data, ..Accept::new(qp) })
    }

    fn connected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn) {
        let mut dev = cx.device();
        let message = [whole(self.0.as_ref().unwrap())];
        // The queue pair may be in error already.
        let _ = dev.post_send(dev.find_qp::<Rc>(qp).unwrap(), WorkRequest::send(&message).wr_id(1).signaled());
    }

    fn disconnected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, _qp: Qpn, _reason: EndReason) {}

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        if wc.status == WcStatus::Success {
            let _ = cx.device().post_recv(wc.qp(), RecvWr { wr_id: 0, sges: &[whole(self.0.as_ref().unwrap())] });
        }
    }

    fn stream_data(&mut self, cx: &mut Context<'_>, stream: StreamId, data: &[u8]) {
        cx.stream_send(stream, data);
    }
}

/// A source of frames: random bytes, captured frames, and captured frames with changes.
struct FrameFuzzer {
    rng: ChaCha8Rng,
    captured: Vec<Vec<u8>>,
    mac: MacAddr,
    /// Queue pairs that may exist.
    qpns: Vec<Qpn>,
}

impl FrameFuzzer {
    fn below(&mut self, end: usize) -> usize {
        self.rng.next_u32() as usize % end
    }

    fn frame(&mut self) -> Vec<u8> {
        if self.below(10) == 0 {
            let mut frame = vec![0; self.below(1600)];
            self.rng.fill_bytes(&mut frame);
            return self.readdress(frame);
        }
        let index = self.below(self.captured.len());
        let frame = self.captured[index].clone();
        let mut frame = self.readdress(frame);
        for _ in 0..self.below(4) {
            self.damage(&mut frame);
        }
        if self.below(3) > 0 {
            correct_icrc(&mut frame);
        }
        frame
    }

    /// Mostly addressed to the adapter.
    fn readdress(&mut self, mut frame: Vec<u8>) -> Vec<u8> {
        if frame.len() >= 12 && self.below(50) > 0 && frame[0] & 1 == 0 {
            frame[..6].copy_from_slice(&self.mac.0);
        }
        frame
    }

    fn damage(&mut self, frame: &mut Vec<u8>) {
        if frame.is_empty() {
            return;
        }
        let at = self.below(frame.len());
        match self.below(6) {
            0 => frame.truncate(at),
            1 => frame[at] ^= 1 << self.below(8),
            2 => frame[at] = self.rng.next_u32() as u8,
            // In the headers, including queue pair numbers and PSNs.
            3 => {
                let at = at % frame.len().min(90);
                frame[at] = self.rng.next_u32() as u8;
            }
            4 => {
                // A queue pair that may exist, or that of the connection manager.
                let number = self.below(self.qpns.len() + 1);
                let number = self.qpns.get(number).map_or(1, |qpn| qpn.get());
                if let Some(qpn) = frame.get_mut(47..50) {
                    qpn.copy_from_slice(&number.to_be_bytes()[1..]);
                }
            }
            _ => {
                let extra = self.below(64);
                frame.resize(frame.len() + extra, 0x5A);
            }
        }
    }
}

/// Corrects the ICRC of a frame that still is a RoCE packet, so that the damage passes that check.
fn correct_icrc(frame: &mut [u8]) {
    let Ok(Frame::Roce(packet)) = classify(frame) else { return };
    let ip_at = if packet.vlan().is_some() { 18 } else { 14 };
    let end = packet.payload().as_ptr() as usize - frame.as_ptr() as usize + packet.payload().len() + packet.pad();
    let sum = icrc(&frame[ip_at..end], packet.is_ipv4());
    frame[end..end + 4].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn a_million_damaged_frames_are_dropped_with_a_reason() {
    child::alone(receive_damaged_frames);
}

fn receive_damaged_frames() {
    let file = Temporary::new("fuzz.pcap");
    let captured: Vec<Vec<u8>> = pcap::all().into_iter().flat_map(|(_, frames)| frames).collect();
    assert!(captured.len() > 1000);
    println!("seed {SEED:#x}");
    let rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut fuzzer = FrameFuzzer { rng, captured, mac: MAC, qpns: first_qpns() };
    // The adapter's port plays this file.
    pcap::write(&file.0, (0..FRAMES).map(|_| fuzzer.frame()));

    let args = ["--no-huge", "-m", "512", "--no-pci", "--no-telemetry", "--no-shconf", "-l", "0"];
    let mut args: Vec<String> = args.map(str::to_owned).into();
    args.push(format!("--vdev=net_pcap0,rx_pcap={},tx_pcap=/dev/null", file.0.display()));
    let eal = Eal::init(&args).unwrap();
    let address = |text: &str| text.parse().unwrap();
    let config = RuntimeConfig {
        ports: vec![PortSettings {
            // The peer is 192.168.77.2. It solicits our MAC address, so its requests are served.
            addresses: vec![address("192.168.77.1/24"), address("fd00:77::1/64")],
            ..PortSettings::default()
        }],
        max_connections: 2000,
        seed: ADAPTER_SEED,
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::new(eal, config, vec![Box::new(Anything)]).unwrap();
    assert!(runtime.ready_line().contains(&format!("mac={MAC} ")), "{}", runtime.ready_line());

    let stop = runtime.stop_handle();
    let telemetry = runtime.telemetry();
    let watcher = thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs(120);
        while telemetry.snapshot().get("worker", "rx_frames") < Some(FRAMES as u64) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
        }
        stop.stop();
    });
    let summary = runtime.run().unwrap();
    watcher.join().unwrap();
    println!("{summary}");

    let get = |group: &str, name: &str| summary.counters.get(group, name).unwrap();
    assert_eq!(get("worker", "rx_frames"), FRAMES as u64);
    let sorted = get("worker", "host_frames")
        + get("worker", "gsi_packets")
        + get("worker", "qp_packets")
        + get("worker", "dropped_frames");
    assert_eq!(sorted, get("worker", "rx_frames"), "every frame is counted once");
    // Every packet to a queue pair was either accepted or dropped with a reason; the sums are those of all layers.
    let dropped: u64 =
        summary.counters.groups.iter().find(|(name, _)| *name == "drop").unwrap().1.iter().map(|(_, n)| n).sum();
    assert!(dropped >= get("worker", "dropped_frames") + get("worker", "qp_packets") - get("transport", "rcvd_pkts"));
    for reached in ["icrc_mismatch", "frame_too_short", "unknown_opcode", "qpn_unknown", "udp_length_mismatch"] {
        assert!(get("drop", reached) > 0, "{reached} did not occur");
    }
    assert!(
        get("service", "connections_accepted") > 0 && get("transport", "rcvd_pkts") > 0,
        "no packet reached a queue pair: is the order of the seeds another one?"
    );
    assert_eq!(summary.mbufs_leaked, 0);
}
