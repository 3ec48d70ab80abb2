//! rxe-target on one end of a veth pair whose other end is the kernel's, in a network namespace of the test's own.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;
use rxe_inspect::report::{CounterGroup, Device, Port};
use rxe_testkit::child::ip;
use rxe_testkit::process::{self, Program, Streams};

use crate::operate::rxe_ctl;

/// How long a state may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// The target's end of the pair is `rxa`.
pub fn make_pair() {
    ip("link add rxa mtu 4200 type veth peer name rxb mtu 4200");
    configure_pair();
}

/// Brings both ends up, and gives the kernel's its address.
pub fn configure_pair() {
    ip("link set rxa up");
    ip("addr add 10.77.0.2/24 dev rxb");
    ip("link set rxb up");
}

/// The target's port: a ring with room for large frames.
pub const AF_PACKET: &str = "net_af_packet0,iface=rxa,blocksz=65536,framesz=8192,framecnt=256";

/// The command of a target.
pub fn target_command(prefix: &str, vdev: &str, region: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-target"));
    command
        .args(["-l", "0,1", "--in-memory", "--no-pci", "--file-prefix", prefix])
        .arg(format!("--vdev={vdev}"))
        .args(["--", "--address", "10.77.0.1/24", "--idle", "sleep", "--region"])
        .arg(format!("demo=64K,watch,file={}", region.display()))
        .args(options);
    command
}

/// A target, killed when dropped.
pub struct VethTarget {
    pub program: Program,
    pub prefix: String,
    pub region: PathBuf,
}

impl VethTarget {
    /// Starts it with these streams; the caller waits until it is ready.
    pub fn start(name: &str, streams: Streams, options: &[&str]) -> VethTarget {
        VethTarget::start_on(name, AF_PACKET, streams, options)
    }

    /// As [`start`](Self::start), with another port.
    pub fn start_on(name: &str, vdev: &str, streams: Streams, options: &[&str]) -> VethTarget {
        let prefix = format!("{}{name}", std::process::id());
        let region = PathBuf::from(format!("/dev/shm/rxe-ports-{prefix}"));
        let mut command = target_command(&prefix, vdev, &region, options);
        let program = Program::with_streams(&mut command, streams).unwrap();
        VethTarget { program, prefix, region }
    }

    /// Waits until standard output has a line with these words.
    #[track_caller]
    pub fn prints(&self, words: &str) {
        eventually(words, || self.program.stdout().iter().any(|line| line.contains(words)));
    }

    pub fn client(&self) -> Client {
        let path = rxe_inspect::socket::path(&self.prefix);
        let mut client = None;
        eventually("the management socket", || {
            client = Client::connect(&path).ok();
            client.is_some()
        });
        client.unwrap()
    }

    /// Its first port.
    pub fn port(&self) -> Port {
        self.client().ask::<Device>(&Request::Device).unwrap().ports.remove(0)
    }

    /// A counter of the whole target.
    pub fn counter(&self, group: &str, name: &str) -> u64 {
        let groups: Vec<CounterGroup> = self.client().ask(&Request::Counters).unwrap();
        groups.iter().filter(|found| found.group == group).filter_map(|found| found.get(name)).sum()
    }

    /// Sends SIGTERM and waits for the end.
    pub fn terminate(&mut self) -> ExitStatus {
        self.program.signal("TERM").unwrap();
        self.program.wait(PATIENCE).unwrap().expect("the end after SIGTERM")
    }
}

impl Drop for VethTarget {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("target: {}\n{}", self.program.name(), self.program.tail());
        }
        let _ = std::fs::remove_file(&self.region);
    }
}

/// Waits until `condition` holds.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the kernel reaches the target: ARP and a TCP connection to the service `perftest`.
pub fn is_reached() -> bool {
    let target = SocketAddr::from(([10, 77, 0, 1], 18515));
    TcpStream::connect_timeout(&target, Duration::from_millis(500)).is_ok()
}

/// Exit code, standard output and standard error of rxe-ctl.
pub fn rxe_ctl_says(prefix: &str, words: &[&str]) -> (i32, String, String) {
    let done = process::run(rxe_ctl().args(["--file-prefix", prefix]).args(words), PATIENCE);
    let done = done.unwrap_or_else(|error| panic!("{error}"));
    (done.code, done.stdout, done.stderr)
}
