//! `make soak MINUTES=N`: the real binary under a mixture of clients that connect, work, disconnect and vanish, over a link
//! with injected faults. At the end the target must hold no more than it did after the warm-up, and nothing of any client.
//!
//! ```text
//! cargo test --release --test soak -- --minutes 5
//! ```

#[path = "../ports/hostile/rng.rs"]
mod rng;

mod clients;
mod samples;
mod station;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clients::{CLIENTS, Clients};
use rng::Rng;
use rxe_dpdk::eal::{Eal, Port, PortConfig};
use rxe_testkit::process::{self, Program};
use samples::{Sample, Sampler};

/// IP MTU of both ends.
const MTU: u16 = 4200;

/// Load before the first state that is compared: until clients that have vanished end as fast as others vanish, and each set of
/// faults was active once. More is in use at once under some of them, and allocators keep what they had then.
const WARM_UP: Duration = FAULTS_FOR.saturating_mul(1 + FAULTS.len() as u32);

/// Time between two samples in the table.
const SAMPLE: Duration = Duration::from_secs(5);

/// Time between two counts of queue pairs.
const COUNT: Duration = Duration::from_millis(200);

/// Time for which a set of faults is active.
const FAULTS_FOR: Duration = Duration::from_secs(15);

/// The longest that the target may take to free everything: answered SIDR requests are remembered for 70 s, and DREQs that
/// nobody answers retransmitted for as long.
const FREE_WITHIN: Duration = Duration::from_secs(180);

/// Faults in turn, as words for `rxe-ctl fault add`.
const FAULTS: [&[&str]; 5] = [
    &[],
    &["drop --probability 0.01", "drop --direction tx --probability 0.01"],
    &[],
    &["reorder --probability 0.02", "duplicate --direction tx --probability 0.02", "corrupt --probability 0.005"],
    &["delay 1ms --direction tx --probability 0.01", "drop --probability 0.03"],
];

/// The target disconnects clients that have vanished soon.
const CONFIG: &str = "\
log = \"error\"
idle = \"sleep\"
[transport]
flush = true
atomic-write = true
keep-alive = 5
[service.rping]
idle-timeout = \"15s\"
[service.rdma-server]
idle-timeout = \"15s\"
[service.udaddy]
idle-timeout = \"15s\"
[service.pingpong]
idle-timeout = \"15s\"
memory = \"1M\"
[[port]]
addresses = [\"10.77.0.1/24\"]
mtu = 4200
[[region]]
name = \"demo\"
size = \"4M\"
";

struct Target {
    program: Program,
    prefix: String,
    config: PathBuf,
    socket: PathBuf,
}

impl Target {
    fn start(id: u32) -> Target {
        let prefix = format!("{id}soak");
        let config = std::env::temp_dir().join(format!("rxe-soak-{id}.toml"));
        let socket = std::env::temp_dir().join(format!("rxe-soak-{id}.sock"));
        std::fs::write(&config, CONFIG).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-target"));
        command
            .args(["-l", "0", "--in-memory", "--no-pci", "--file-prefix", &prefix])
            .arg(format!(
                "--vdev=net_memif0,role=server,id=0,bsize=8192,socket-abstract=no,socket={}",
                socket.display()
            ))
            .args(["--".as_ref(), "--config".as_ref(), config.as_os_str()]);
        let program = Program::start(&mut command).unwrap_or_else(|error| panic!("{error}"));
        Target { program, prefix, config, socket }
    }

    fn ctl(&self, words: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-ctl"));
        command.args(["--file-prefix", &self.prefix]).args(words.split(' '));
        let done = process::run(&mut command, Duration::from_secs(60)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(done.code, 0, "rxe-ctl {words}: {}", done.stderr);
    }

    fn set_faults(&self, faults: &[&str]) {
        self.ctl("fault clear");
        faults.iter().for_each(|fault| self.ctl(&format!("fault add {fault}")));
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}\n{}", self.program.name(), self.program.tail());
        }
        for file in [&self.config, &self.socket] {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// The value behind `name` on the command line.
fn argument(name: &str) -> Option<u64> {
    let mut words = std::env::args().skip_while(|word| word != name).skip(1);
    words.next().map(|word| word.parse().unwrap_or_else(|_| panic!("{name} is followed by a whole number, not {word}")))
}

/// Lets the clients work for a time, with a sample every few seconds. Returns the largest number of queue pairs.
fn load(clients: &mut Clients, target: &Target, sampler: &mut Sampler, time: Duration) -> u64 {
    clients.accept_new = true;
    let began = Instant::now();
    let (mut peak, mut counted) = (0, began);
    let (mut sampled, mut faulty, mut faults) = (began, began, FAULTS.iter().cycle());
    while began.elapsed() < time {
        (0..100).for_each(|_| clients.turn());
        if counted.elapsed() >= COUNT {
            counted = Instant::now();
            peak = peak.max(sampler.take(began.elapsed()).resources.qp);
        }
        if sampled.elapsed() >= SAMPLE {
            sampled = Instant::now();
            println!("{}", sampler.take(began.elapsed()).row());
        }
        if faulty.elapsed() >= FAULTS_FOR {
            faulty = Instant::now();
            target.set_faults(faults.next().copied().unwrap_or_default());
        }
    }
    target.set_faults(&[]);
    peak
}

/// Waits until all clients have ended and the target has freed what they had.
fn settle(clients: &mut Clients, sampler: &mut Sampler, before: &Sample, began: Instant) -> Sample {
    clients.accept_new = false;
    let since = Instant::now();
    let mut looked = since;
    loop {
        (0..100).for_each(|_| clients.turn());
        if looked.elapsed() < Duration::from_millis(200) {
            continue;
        }
        looked = Instant::now();
        let sample = sampler.take(began.elapsed());
        if clients.is_empty() && sample.is_free(&before.resources) {
            println!(
                "{}  all clients gone, everything free after {:.1} s",
                sample.row(),
                since.elapsed().as_secs_f64()
            );
            return sample;
        }
        let late = since.elapsed() > FREE_WITHIN;
        assert!(!late, "{} clients left; the target holds {:?}", clients.len(), sample.resources);
    }
}

fn main() -> ExitCode {
    let minutes = argument("--minutes").unwrap_or(5);
    let rng = Rng::seeded();
    let id = std::process::id();
    let mut target = Target::start(id);
    let ready = target.program.wait_for_line("ready ", Duration::from_secs(90)).unwrap_or_else(|e| panic!("{e}"));
    let mac = ready.split("mac=").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).expect("a MAC address");
    let socket = target.socket.display();
    let eal = Eal::init(&[
        "-l".to_owned(),
        "1".to_owned(),
        "--in-memory".to_owned(),
        "--no-pci".to_owned(),
        "--no-telemetry".to_owned(),
        format!("--file-prefix={id}soakc"),
        format!(
            "--vdev=net_memif0,role=client,mac=52:54:00:50:AC:FF,id=0,bsize=8192,socket-abstract=no,socket={socket}"
        ),
    ])
    .unwrap();
    let info = eal.ports().into_iter().next().expect("the port net_memif0");
    let mut port = Port::configure(&eal, info.id, &PortConfig { mtu: MTU, ..PortConfig::default() }).unwrap();
    let queues = port.start().unwrap();
    let mut clients = Clients::new(&eal, queues, mac, rng);
    let mut sampler = Sampler::new(&target.prefix, target.program.id());

    let began = Instant::now();
    let unused = sampler.take(Duration::ZERO);
    println!("{}\n{}  before the first client", unused.heading(), unused.row());
    let first_peak = load(&mut clients, &target, &mut sampler, WARM_UP);
    let before = settle(&mut clients, &mut sampler, &unused, began);
    let peak = load(&mut clients, &target, &mut sampler, Duration::from_secs(60 * minutes));
    let after = settle(&mut clients, &mut sampler, &before, began);

    let totals = &clients.totals;
    println!("at most {first_peak} queue pairs during the warm-up, {peak} then");
    println!("{} connections, {} vanished; operations: {:?}", totals.connections, totals.vanished, totals.operations);
    let failed: u64 = totals.failures.values().sum();
    println!("{failed} connections failed: {:?}", totals.failures);
    let mut faults = after.growth(&before, [first_peak, peak], CLIENTS.into());
    // Only a rare series of losses ends a connection, and a busy machine that stops the clients for longer than a timeout.
    if failed * 50 > totals.connections {
        faults.push(format!("{failed} of {} connections failed", totals.connections));
    }
    let done = target.program.stop(Duration::from_secs(30)).unwrap_or_else(|error| panic!("{error}"));
    if done.code != 0 || !done.stdout.lines().any(|line| line == "mbufs_leaked=0") {
        faults.push(format!("the target ended with exit code {}:\n{}{}", done.code, done.stdout, done.stderr));
    }
    if !done.stderr.is_empty() {
        faults.push(format!("the target has logged errors:\n{}", done.stderr));
    }
    if faults.is_empty() {
        println!("soak: passed, nothing has grown");
        return ExitCode::SUCCESS;
    }
    println!("soak: FAILED\n{}", faults.join("\n"));
    ExitCode::FAILURE
}
