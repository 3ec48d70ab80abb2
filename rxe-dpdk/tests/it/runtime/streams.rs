//! TCP streams of a service, with the local kernel as the client over a veth pair: bytes arrive in order, each write of the
//! service in one segment, and both sides may close. Needs root, for a network namespace.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rxe_dpdk::eal::Eal;
use rxe_dpdk::runtime::{PortSettings, Runtime, RuntimeConfig};
use rxe_dpdk::service::{Context, Listen, Service, ServiceFactory, StreamId};
use rxe_dpdk::worker::IdlePolicy;

use rxe_testkit::child::{self, ip, wait_for_addresses};

const ECHO: u16 = 7;
const CLOSES: u16 = 9;

/// On one port echoes after a greeting of three writes; on the other sends a message and closes.
struct EchoService;

impl ServiceFactory for EchoService {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn listen(&self) -> Vec<Listen> {
        vec![Listen::Tcp { port: ECHO }, Listen::Tcp { port: CLOSES }]
    }

    fn create(&self, _worker: usize) -> Box<dyn Service> {
        Box::new(EchoService)
    }
}

impl Service for EchoService {
    fn stream_opened(&mut self, cx: &mut Context<'_>, stream: StreamId, local: SocketAddr, _peer: SocketAddr) {
        if local.port() == CLOSES {
            cx.stream_send(stream, b"bye");
            cx.stream_close(stream);
        } else {
            // Together longer than one segment, each shorter.
            for letter in *b"abc" {
                cx.stream_send(stream, &[letter; 700]);
            }
        }
    }

    fn stream_data(&mut self, cx: &mut Context<'_>, stream: StreamId, data: &[u8]) {
        cx.stream_send(stream, data);
    }
}

#[test]
fn kernel_client_exchanges_streams_with_a_service() {
    child::in_namespace(inside);
}

fn inside() {
    ip("link add k0 type veth peer name t0");
    ip("link set t0 addrgenmode none up");
    // Without this the kernel sends segments of 64 KiB and leaves segmentation to hardware that does not exist.
    ip("link set k0 gso_max_segs 1 up");
    ip("addr add 10.78.0.2/24 dev k0");
    ip("addr add fd78::2/64 dev k0 nodad");
    wait_for_addresses();
    let args = "--no-huge -m 256 --no-pci --no-telemetry --no-shconf -l 0 --vdev=net_af_packet0,iface=t0";
    let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
    let addresses = ["10.78.0.1/24", "fd78::1/64"].map(|address| address.parse().unwrap()).into();
    let config = RuntimeConfig {
        ports: vec![PortSettings { addresses, ..PortSettings::default() }],
        idle: IdlePolicy::Sleep(Duration::from_micros(50)),
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::new(Eal::init(&args).unwrap(), config, vec![Box::new(EchoService)]).unwrap();
    let stop = runtime.stop_handle();
    let telemetry = runtime.telemetry();
    let client = thread::spawn(move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for address in ["10.78.0.1", "fd78::1"] {
                echo(address);
                closed_by_service(address);
            }
            unread("10.78.0.1");
            // No service listens on this port.
            assert!(TcpStream::connect(("10.78.0.1", 8)).is_err());
            let deadline = Instant::now() + Duration::from_secs(10);
            while telemetry.snapshot().get("service", "streams_closed") < Some(5) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(5));
            }
        }));
        stop.stop();
        result
    });
    let summary = runtime.run().unwrap();
    println!("{summary}");
    client.join().unwrap().unwrap();
    assert_eq!(summary.counters.get("service", "streams_opened"), Some(5));
    assert_eq!(summary.counters.get("service", "streams_closed"), Some(5));
    assert_eq!(summary.mbufs_leaked, 0);
}

fn connect(address: &str, port: u16) -> TcpStream {
    let stream = TcpStream::connect((address, port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn echo(address: &str) {
    let mut stream = connect(address, ECHO);
    let mut greeting = [0; 2100];
    stream.read_exact(&mut greeting).unwrap();
    assert!(greeting[..700] == [b'a'; 700] && greeting[700..1400] == [b'b'; 700] && greeting[1400..] == [b'c'; 700]);
    for round in 0..50_u8 {
        // As perftest's clients do: one write, and the whole answer in one read.
        stream.write_all(&[round; 1400]).unwrap();
        let mut answer = [0; 4096];
        assert_eq!(stream.read(&mut answer).unwrap(), 1400);
        assert_eq!(answer[..1400], [round; 1400]);
    }
    let long: Vec<u8> = (0..200_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    let sent = long.clone();
    let writing = thread::spawn(move || {
        writer.write_all(&sent).unwrap();
    });
    let mut back = vec![0; long.len()];
    stream.read_exact(&mut back).unwrap();
    writing.join().unwrap();
    assert!(back == long);
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "the service closes too");
}

/// A client that does not read is not read either: its bytes wait in its kernel, and none is lost.
fn unread(address: &str) {
    // More than all buffers of both directions hold.
    const TOTAL: usize = 16 << 20;
    let mut stream = connect(address, ECHO);
    let mut writer = stream.try_clone().unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    let progress = Arc::clone(&written);
    let writing = thread::spawn(move || {
        for at in (0..TOTAL).step_by(4096) {
            writer.write_all(&[(at >> 12) as u8; 4096]).unwrap();
            progress.fetch_add(4096, Ordering::Relaxed);
        }
    });
    let mut before = usize::MAX;
    while before != written.load(Ordering::Relaxed) {
        before = written.load(Ordering::Relaxed);
        thread::sleep(Duration::from_secs(1));
    }
    assert!(before < TOTAL, "all bytes were taken although none is read");
    let mut back = vec![0; 2100 + TOTAL];
    stream.read_exact(&mut back).unwrap();
    writing.join().unwrap();
    assert!(back[2100..].chunks(4096).zip(0..).all(|(chunk, n)| chunk.iter().all(|byte| *byte == n as u8)));
}

fn closed_by_service(address: &str) {
    let mut all = Vec::new();
    connect(address, CLOSES).read_to_end(&mut all).unwrap();
    assert_eq!(all, b"bye");
}
