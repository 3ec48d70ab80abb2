//! Each type of port with its driver's default queue size, which may be smaller than the size asked for: the port is
//! configured, starts, and sends a frame. Needs root, for interfaces in a network namespace.

use std::env;
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use rxe_dpdk::eal::{Eal, Port, PortConfig, RxBurst, RxQueue, TxStage};
use rxe_testkit::child;
use rxe_testkit::recovery::{POOL_EMPTY, recovered};

/// Environment variable of the child process with the peer's port: its device.
const PEER: &str = "RXE_TEST_PEER_DEVICE";

fn init(vdevs: &[&str]) -> Eal {
    let mut args: Vec<String> =
        ["-l", "0", "--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--no-shconf"].map(str::to_owned).into();
    args.push(format!("--file-prefix=rings{}", std::process::id()));
    args.extend(vdevs.iter().map(|vdev| format!("--vdev={vdev}")));
    Eal::init(&args).unwrap()
}

/// The port of a device with the default configuration.
fn started(eal: &Eal, name: &str) -> (Port, RxQueue, TxStage) {
    let id = eal.ports().into_iter().find(|info| info.name == name).unwrap().id;
    let mut port = Port::configure(eal, id, &PortConfig::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut queues = port.start().unwrap();
    (port, queues.rx.remove(0), queues.tx.remove(0))
}

/// Sends frames until `arrived`.
fn send(tx: &mut TxStage, mut arrived: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !arrived() {
        assert!(Instant::now() < deadline, "no frame arrived");
        if let Some(frame) = tx.push(100) {
            // Broadcast, with an EtherType for experiments.
            frame.fill(0xFF);
            frame[12..14].copy_from_slice(&[0x88, 0xB5]);
        }
        tx.flush();
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn devices_without_a_peer_send() {
    child::in_namespace(|| {
        child::ip("link add rings0 type veth peer name rings1");
        child::ip("link set rings0 up");
        child::ip("link set rings1 up");
        let eal = init(&["net_ring0", "net_null0", "net_af_packet0,iface=rings0", "net_tap0,iface=ringstap"]);
        for name in ["net_ring0", "net_null0", "net_af_packet0", "net_tap0"] {
            let (port, _rx, mut tx) = started(&eal, name);
            send(&mut tx, || port.stats().unwrap().tx_frames > 0);
        }
    });
}

#[test]
fn memif_pair_carries_frames() {
    child::in_namespace(|| {
        let args = format!("id=0,socket=rings-memif-{}", std::process::id());
        let eal = init(&[&format!("net_memif0,role=server,{args}"), &format!("net_memif1,role=client,{args}")]);
        let (server, mut rx, _) = started(&eal, "net_memif0");
        let (client, _, mut tx) = started(&eal, "net_memif1");
        let mut burst = RxBurst::new();
        send(&mut tx, || rx.burst(&mut burst) > 0);
        drop((server, client));
    });
}

#[test]
fn frames_wait_for_a_port_without_free_buffers() {
    child::in_namespace(|| {
        let args = format!("id=0,socket=empty-memif-{}", std::process::id());
        let eal = init(&[&format!("net_memif0,role=server,{args}"), &format!("net_memif1,role=client,{args}")]);
        let (server, mut rx, _) = started(&eal, "net_memif0");
        let (client, _, mut tx) = started(&eal, "net_memif1");
        let mut burst = RxBurst::new();
        send(&mut tx, || rx.burst(&mut burst) > 0);
        while rx.burst(&mut burst) > 0 {}

        let hoard: Vec<_> = std::iter::from_fn(|| server.pool().alloc()).collect();
        assert_eq!(server.pool().available(), 0);
        let sent = client.stats().unwrap().tx_frames;
        send(&mut tx, || {
            assert_eq!(rx.burst(&mut burst), 0);
            client.stats().unwrap().tx_frames >= sent + 10
        });
        println!("{:?}", server.stats().unwrap());
        drop(hoard);
        let freed = Instant::now();
        let mut received = 0;
        while received < 10 {
            received += rx.burst(&mut burst);
            assert!(freed.elapsed() < Duration::from_secs(30), "{received} frames");
        }
        recovered(&POOL_EMPTY, freed.elapsed());
        drop((server, client));
    });
}

/// A child process with the peer's port, which ends with its standard input.
struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Peer {
    fn start(device: &str) -> Peer {
        let mut child = child::this_test(None).env(PEER, device).stdin(Stdio::piped()).spawn().unwrap();
        Peer { stdin: child.stdin.take(), child }
    }

    /// Runs in the child: receives and sends on the port.
    fn run(device: &str) {
        let eal = init(&[device]);
        let (_port, mut rx, mut tx) = started(&eal, device.split(',').next().unwrap());
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_line(&mut String::new());
            let _ = ended.send(());
        });
        let mut burst = RxBurst::new();
        send(&mut tx, || {
            rx.burst(&mut burst);
            end.try_recv().is_ok()
        });
    }

    fn end(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn virtio_user_and_vhost_carry_frames() {
    if let Ok(device) = env::var(PEER) {
        return Peer::run(&device);
    }
    child::in_namespace(|| {
        let socket = env::temp_dir().join(format!("rxe-rings-{}.sock", std::process::id()));
        let path = socket.display().to_string();
        let peer = Peer::start(&format!("net_vhost0,iface={path}"));
        let deadline = Instant::now() + Duration::from_secs(30);
        while !socket.exists() {
            assert!(Instant::now() < deadline, "the peer created no socket");
            std::thread::sleep(Duration::from_millis(10));
        }
        let eal = init(&[&format!("net_virtio_user0,path={path},mac=52:54:00:00:00:41")]);
        let (port, mut rx, mut tx) = started(&eal, "net_virtio_user0");
        let mut burst = RxBurst::new();
        send(&mut tx, || rx.burst(&mut burst) > 0);
        drop((port, rx, tx));
        peer.end();
        let _ = std::fs::remove_file(socket);
    });
}
