//! Instructions per frame of `Dispatcher::dispatch`, counted by callgrind: the gate against a slower dispatch.
//!
//! A worker needs EAL and a port, so each program runs a whole adapter without hugepages, whose port (net_pcap) plays a
//! file of equal frames; callgrind counts inside the dispatch of bursts only. `cargo bench -p rxe-dpdk --bench dispatch`.

use std::error::Error;
use std::net::Ipv4Addr;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use rxe_dpdk::eal::Eal;
use rxe_dpdk::runtime::{PortSettings, Runtime, RuntimeConfig};
use rxe_dpdk::rxe_proto::transport::{Qpn, RequestRefusal};
use rxe_dpdk::rxe_proto::wire::{
    BthFields, BthOpcode, DEFAULT_PKEY, Gid, HeaderTemplate, MacAddr, Opcode, Path, PortId, Psn,
};
use rxe_dpdk::worker::{Direction, FaultAction, FaultMatch, FaultRule, Probability};
use rxe_testkit::pcap;

type Failure = Box<dyn Error>;

struct Program {
    name: &'static str,
    /// Destination address of the frames; the adapter has 192.168.77.1.
    dst: Ipv4Addr,
    /// Function in which instructions are counted.
    counted: &'static str,
    fault: Option<Fault>,
    /// Maximum number of instructions per frame: 5 % more than with rustc 1.95.0 and libdpdk 22.11.
    limit: f64,
}

/// A fault rule that changes nothing.
#[derive(Clone, Copy)]
enum Fault {
    /// Refuses requests of another queue pair.
    Refuse,
    /// Drops one frame in a thousand million.
    Drop,
}

impl Fault {
    fn rule(self) -> Result<FaultRule, Failure> {
        Ok(match self {
            Fault::Refuse => FaultRule {
                matches: FaultMatch { qpn: Some(Qpn::new(0x7)), ..FaultMatch::default() },
                ..FaultRule::new(FaultAction::Refuse(RequestRefusal::InvalidRequest), Direction::Rx)
            },
            Fault::Drop => FaultRule {
                probability: Probability::from_share(1e-9).ok_or("no probability")?,
                ..FaultRule::new(FaultAction::Drop, Direction::Rx)
            },
        })
    }
}

const DISPATCH: &str = "*Dispatcher*::dispatch";

/// A frame to another host's address passes steps 1 to 5 of dispatch; one to an unknown queue pair passes all of them, and
/// the count includes the engine's lookup. Both include freeing the frame.
const PROGRAMS: [Program; 4] = [
    Program {
        name: "foreign-address",
        dst: Ipv4Addr::new(192, 168, 77, 3),
        counted: DISPATCH,
        fault: None,
        limit: 318.0,
    },
    Program { name: "unknown-qp", dst: Ipv4Addr::new(192, 168, 77, 1), counted: DISPATCH, fault: None, limit: 354.0 },
    Program {
        name: "unknown-qp-refusing",
        dst: Ipv4Addr::new(192, 168, 77, 1),
        counted: DISPATCH,
        fault: Some(Fault::Refuse),
        limit: 406.0,
    },
    Program {
        name: "unknown-qp-injector",
        dst: Ipv4Addr::new(192, 168, 77, 1),
        counted: "*Dispatcher*::dispatch_through",
        fault: Some(Fault::Drop),
        limit: 504.0,
    },
];

/// Frames of a program: whole bursts.
const FRAMES: u64 = 32 * 256;

/// The address that net_pcap gives its first port.
const MAC: MacAddr = MacAddr([0x02, 0x70, 0x63, 0x61, 0x70, 0x00]);

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        [] => count_all(),
        // The child that callgrind watches.
        ["run", name] => run(name).map(|()| true),
        _ => Err("usage: cargo bench -p rxe-dpdk --bench dispatch".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(2)
        }
    }
}

/// Counts every program. Returns false if one exceeds its limit.
fn count_all() -> Result<bool, Failure> {
    let mut good = true;
    for program in &PROGRAMS {
        let callgrind = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .args(["--collect-atstart=no", &format!("--toggle-collect={}", program.counted)])
            .arg(env::current_exe()?)
            .args(["run", program.name])
            .output()
            .map_err(|error| format!("valgrind does not start ({error}): install it, `apt-get install valgrind`"))?;
        let (out, log) = (String::from_utf8_lossy(&callgrind.stdout), String::from_utf8_lossy(&callgrind.stderr));
        let instructions = log.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse::<u64>().ok());
        let Some(instructions @ 1..) = instructions.filter(|_| callgrind.status.success()) else {
            return Err(format!("callgrind counted nothing in {}:\n{out}{log}", program.name).into());
        };
        let per_frame = instructions as f64 / FRAMES as f64;
        let verdict = if per_frame <= program.limit { "ok" } else { "FAILED" };
        good &= per_frame <= program.limit;
        println!(
            "test {} ... {verdict}: {per_frame:.1} instructions per frame, limit {:.1}",
            program.name, program.limit
        );
    }
    Ok(good)
}

/// Runs an adapter until it has received every frame.
fn run(name: &str) -> Result<(), Failure> {
    let program = PROGRAMS.iter().find(|program| program.name == name).ok_or("there is no such program")?;
    let file = env::temp_dir().join(format!("rxe-dispatch-{}.pcap", process::id()));
    let frame = frame(program.dst);
    pcap::write(&file, (0..FRAMES).map(|_| frame.clone()));
    let args = ["--no-huge", "-m", "128", "--no-pci", "--no-telemetry", "--no-shconf", "-l", "0"];
    let mut args: Vec<String> = args.map(str::to_owned).into();
    args.push(format!("--vdev=net_pcap0,rx_pcap={},tx_pcap=/dev/null", file.display()));
    let eal = Eal::init(&args)?;
    let config = RuntimeConfig {
        ports: vec![PortSettings { addresses: vec!["192.168.77.1/24".parse()?], ..PortSettings::default() }],
        faults: program.fault.map(Fault::rule).transpose()?.into_iter().collect(),
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::new(eal, config, Vec::new())?;
    let (stop, telemetry) = (runtime.stop_handle(), runtime.telemetry());
    let watcher = thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs(60);
        while telemetry.snapshot().get("worker", "rx_frames") < Some(FRAMES) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        stop.stop();
    });
    let summary = runtime.run()?;
    watcher.join().map_err(|_| "the watcher panicked")?;
    fs::remove_file(&file)?;
    let dropped =
        summary.counters.get("drop", if name == "foreign-address" { "foreign_address" } else { "qpn_unknown" });
    if dropped != Some(FRAMES) {
        return Err(format!("{dropped:?} of {FRAMES} frames took the path that is counted:\n{summary}").into());
    }
    Ok(())
}

/// An RC SEND of 64 bytes to the adapter's MAC.
fn frame(dst: Ipv4Addr) -> Vec<u8> {
    let path = Path {
        port: PortId(0),
        src_mac: MacAddr([2, 0, 0, 0, 0, 9]),
        dst_mac: MAC,
        vlan: None,
        src: Gid::from(Ipv4Addr::new(192, 168, 77, 9)),
        dst: Gid::from(dst),
        udp_src_port: 0xC000,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
    };
    let opcode = BthOpcode::rc(Opcode::SendOnly);
    let psn = Psn::new(0);
    let fields = BthFields { opcode, dest_qp: 0x11, psn, solicited: false, ack_req: false, pkey: DEFAULT_PKEY };
    let template = HeaderTemplate::new(&path);
    let mut frame = vec![0; template.frame_len(opcode, 64)];
    let mut packet = template.build(&mut frame, fields, 64);
    packet.payload_mut().fill(0x5A);
    packet.finish();
    frame
}
