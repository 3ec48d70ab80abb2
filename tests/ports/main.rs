//! The real binary on DPDK ports, without a kernel at the other end: net_vhost with a net_virtio_user, and net_memif with
//! another net_memif, at path MTU 4096, on one lcore and on two. The other end is this process: our own engine as
//! initiator. It connects to the `region` service, WRITEs, READs and adds, and finds the bytes in the region's file.
//!
//! Needs root and hugepages. Without them the tests are skipped with a message, and fail in CI.

mod alone;
mod bench;
mod bench_ends;
mod clients;
mod conflict;
mod congestion;
mod drain;
mod events;
mod fault;
mod faults;
mod files;
mod flood;
mod getting_started;
mod hostile;
mod initiator;
mod limits;
mod link;
mod manage;
mod mistakes;
mod no_route;
mod operate;
mod output;
mod peers;
mod perftest;
mod queues;
mod quick_start;
mod regions;
mod reload;
mod scrape;
mod start;
mod veth;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use initiator::Initiator;
use rxe_dpdk::eal::{Eal, Port, PortConfig, PortQueues};
use rxe_dpdk::rxe_proto::wire::PathMtu;
use rxe_testkit::process::Program;

/// IP MTU of both ends, large enough for path MTU 4096.
const MTU: u16 = 4200;

/// A running rxe-target, killed when dropped.
struct Target {
    program: Program,
    /// Its `--file-prefix`.
    prefix: String,
    mac: String,
    region: PathBuf,
    config: PathBuf,
}

/// Two operations that are off otherwise.
const CONFIG: &str = "[transport]\nflush = true\natomic-write = true\n";

impl Target {
    /// `settings` continue the section `[transport]` of its configuration file.
    fn start(name: &str, vdev: &str, lcores: &str, settings: &str, options: &[&str]) -> Target {
        let region = PathBuf::from(format!("/dev/shm/rxe-ports-{name}"));
        let config = std::env::temp_dir().join(format!("rxe-ports-{name}.toml"));
        std::fs::write(&config, format!("{CONFIG}{settings}")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-target"));
        command
            .args(["-l", lcores, "--in-memory", "--no-pci", "--file-prefix", name])
            .arg(format!("--vdev={vdev}"))
            .arg("--");
        // Options replace the addresses of the file.
        if !settings.contains("[[port]]") {
            command.args(["--address", "10.77.0.1/24", "--mtu", &MTU.to_string()]);
        }
        if !options.contains(&"--idle") {
            command.args(["--idle", "sleep"]);
        }
        // Options replace the regions of the file. The first region is the one of clients that request no name.
        if !settings.contains("[[region]]") {
            command.arg("--region").arg(format!("demo=4M,file={}", region.display()));
        }
        command.args(["--config".as_ref(), config.as_os_str()]).args(options);
        let program = Program::start(&mut command).unwrap();
        let ready = program.wait_for_line("ready ", Duration::from_secs(90)).unwrap_or_else(|error| panic!("{error}"));
        assert!(ready.contains(" path_mtu=4096 "), "{ready}");
        let mac = ready.split("mac=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        Target { program, prefix: name.to_owned(), mac, region, config }
    }

    /// Number of lines that it has logged.
    fn log_len(&self) -> usize {
        self.program.stderr().len()
    }

    /// The first line of the log with these words, once there is one.
    fn log_line(&self, words: &str) -> String {
        let began = Instant::now();
        loop {
            let log = self.program.stderr();
            if let Some(line) = log.iter().find(|line| line.contains(words)) {
                return line.clone();
            }
            assert!(began.elapsed() < Duration::from_secs(5), "nothing with {words:?} is logged: {log:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it as a user does; returns its summary.
    fn stop(mut self) -> Vec<String> {
        let done = self.program.stop(Duration::from_secs(20)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(done.code, 0, "{}", done.stderr);
        let summary: Vec<String> = done.stdout.lines().map(str::to_owned).collect();
        assert!(summary.iter().any(|line| line == "mbufs_leaked=0"), "{summary:?}");
        summary
    }
}

/// The counter `name` in the line of `group`; 0 where the summary leaves it out.
fn counter(summary: &[String], group: &str, name: &str) -> u64 {
    let line = summary.iter().find_map(|line| line.strip_prefix(group)?.strip_prefix(':'));
    let line = line.unwrap_or_else(|| panic!("no line {group} in {summary:?}"));
    line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok()).unwrap_or(0)
}

impl Drop for Target {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("target: {}\n{}", self.program.name(), self.program.tail());
        }
        let _ = std::fs::remove_file(&self.region);
        let _ = std::fs::remove_file(&self.config);
    }
}

/// Why the tests cannot run here.
fn lacking() -> Option<&'static str> {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").ok();
    match free.and_then(|text| text.trim().parse::<u32>().ok()) {
        Some(256..) => None,
        _ => Some("512 MiB of free hugepages are needed: run `make setup`"),
    }
}

#[test]
fn vhost_and_memif_carry_path_mtu_4096_and_survive_faults() {
    if let Some(why) = lacking() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
        eprintln!("SKIPPED: {why}");
        return;
    }
    let id = std::process::id();
    let socket = |name: &str| std::env::temp_dir().join(format!("rxe-ports-{id}-{name}.sock")).display().to_string();
    let (vhost, memif, faulty) = (socket("vhost"), socket("memif"), socket("faulty"));
    let memif_args = format!("id=0,bsize=8192,socket-abstract=no,socket={memif}");
    // A port of the kernel's that is free now, and most likely still when the target takes it.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let metrics = free.to_string();
    let fragile = files::Fragile::new();
    // The listening ends first.
    let targets = [
        Target::start(
            &format!("{id}v"),
            &format!("net_vhost0,iface={vhost},queues=1"),
            "0,1",
            // Clients that are silent for that long are those of this target: the others' are not always there when it asks.
            "keep-alive = 3\n",
            &["--region", &fragile.option()],
        ),
        Target::start(
            &format!("{id}m"),
            &format!("net_memif0,role=server,{memif_args}"),
            "0",
            "",
            &["--metrics", &metrics],
        ),
        Target::start(&format!("{id}f"), &format!("net_vhost0,iface={faulty},queues=1"), "0,1", "", &FAULTS),
    ];
    let eal = Eal::init(&[
        "-l".to_owned(),
        "1".to_owned(),
        "--in-memory".to_owned(),
        "--no-pci".to_owned(),
        "--no-telemetry".to_owned(),
        format!("--file-prefix={id}i"),
        format!("--vdev=net_virtio_user0,path={vhost},queue_size=1024,mac=52:54:00:00:00:21"),
        format!("--vdev=net_virtio_user1,path={faulty},queue_size=1024,mac=52:54:00:00:00:23"),
        format!("--vdev=net_memif0,role=client,mac=52:54:00:00:00:22,{memif_args}"),
    ])
    .unwrap();
    for (name, target) in ["net_virtio_user0", "net_memif0", "net_virtio_user1"].into_iter().zip(targets) {
        println!("{name}");
        let info = eal.ports().into_iter().find(|info| info.name == name).unwrap();
        let config = PortConfig { mtu: MTU, ..PortConfig::default() };
        let mut port = Port::configure(&eal, info.id, &config).unwrap();
        assert_eq!(port.mtu(), MTU);
        let PortQueues { mut rx, mut tx } = port.start().unwrap();
        let pool = port.pool().clone();
        {
            let link = (rx.remove(0), tx.remove(0));
            let mut initiator = Initiator::new(&eal, &port, link, target.mac.parse().unwrap());
            if name == "net_memif0" {
                operate::look_after(&mut initiator, &target, &metrics);
                fault::make_some(&mut initiator, &target);
            }
            if name == "net_virtio_user0" {
                files::cut_short(&mut initiator, &target, &fragile);
                files::fall_silent(&mut initiator, &target);
            }
            // Several connections in a row: with two lcores they live on different ones.
            for round in 0..4 {
                exercise(&mut initiator, &target, round);
            }
        }
        let connected = target.log_line("connected");
        let region = target.region.clone();
        let summary = target.stop();
        let received = counter(&summary, "port0", "rx_frames");
        if name == "net_virtio_user1" {
            faults_happened(&summary);
            let connected: serde_json::Value = serde_json::from_str(&connected).expect("a line of JSON");
            assert_eq!((&connected["service"], &connected["level"]), (&"region".into(), &"INFO".into()));
        } else {
            // Each round is about 270 frames: a port that loses or repeats some shows here. How many the operator's part
            // takes depends on how long it lasts.
            let most = if name == "net_memif0" { u64::MAX } else { 2000 };
            assert!((1000..most).contains(&received), "{received} frames for what takes 1,088");
        }
        assert!(!region.exists(), "the target removes the file that it made");
        drop(port);
        assert_eq!(pool.in_use(), 0, "no buffer is lost");
    }
    for path in [vhost, memif, faulty] {
        let _ = std::fs::remove_file(path);
    }
}

#[test]
fn floods_of_requests_neither_stop_nor_keep_others_out() {
    alone::alone("floods_of_requests_neither_stop_nor_keep_others_out", "", &[], |initiator, target| {
        flood::floods(initiator, &target);
        target.stop();
    });
}

/// Both directions, with one transmit queue for two lcores: the second one's frames pass its own injector, then a ring.
const FAULTS: [&str; 4] = [
    "--log-format",
    "json",
    "--fault",
    "seed=3,rx.drop=0.01,rx.duplicate=0.02,rx.reorder=0.02,rx.corrupt=0.01,\
     tx.drop=0.01,tx.duplicate=0.02,tx.reorder=0.02,tx.corrupt=0.01,tx.delay=200us,tx.jitter=100us,tx.delayed=0.1",
];

fn faults_happened(summary: &[String]) {
    let get = |group, name| counter(summary, group, name);
    for fault in ["rx_fault", "tx_fault"] {
        let all = get(fault, "frames") + get(fault, "out_of_scope") + get(fault, "duplicated");
        assert_eq!(all, get(fault, "dropped") + get(fault, "delivered"), "{fault}: {summary:?}");
        for happened in ["dropped", "duplicated", "reordered", "corrupted"] {
            assert!(get(fault, happened) > 0, "{fault}: {happened} never happened: {summary:?}");
        }
    }
    assert!(get("tx_fault", "delayed") > 0);
    assert_eq!(get("rx_fault", "frames") + get("rx_fault", "out_of_scope"), get("port0", "rx_frames"));
    assert_eq!(get("rx_fault", "dropped"), get("drop", "injected"));
    assert_eq!(get("tx_fault", "frames") + get("tx_fault", "out_of_scope"), get("worker", "tx_frames"));
    assert_eq!(get("tx_fault", "delivered"), get("port0", "tx_frames"));
    assert!(get("worker", "tx_forwarded") > 100, "the second lcore sent");
    assert!(get("transport", "duplicate_request") + get("transport", "out_of_seq_request") > 0, "{summary:?}");
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}

fn exercise(initiator: &mut Initiator, target: &Target, round: u8) {
    let mut connection = initiator.connect(4792, "demo", PathMtu::Mtu4096);
    assert_eq!(connection.region_len(), 4 << 20);
    for (offset, len) in [(0, 1), (3, 4095), (4096, 4096), (10_000, 4097), (65_536, 1 << 20)] {
        let bytes = pattern(len, round);
        connection.write(initiator, offset, &bytes);
        let mut on_host = vec![0; len];
        let file = std::fs::File::open(&target.region).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut on_host, offset).unwrap();
        assert!(on_host == bytes, "the region's file at {offset}, {len} bytes");
        assert!(connection.read(initiator, offset, len) == bytes, "READ at {offset}, {len} bytes");
    }
    connection.atomic_write(initiator, 8192, [round; 8]);
    connection.flush(initiator, 8192, 8);
    assert_eq!(connection.read(initiator, 8192, 8), [round; 8]);
    connection.write(initiator, 64, &[0; 8]);
    assert_eq!(connection.fetch_add(initiator, 64, 5), 0);
    assert_eq!(connection.fetch_add(initiator, 64, 1), 5);
    connection.disconnect(initiator);
}
