//! Instructions per packet of some packet programs, counted by callgrind and compared with the baseline in
//! `instructions.txt`: the gate against slower code. Instructions, unlike nanoseconds, do not depend on other load of
//! the machine.
//!
//! `cargo bench -p rxe-proto --bench instructions` compares; with `-- renew` it rewrites the file.

mod programs;

use std::error::Error;
use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::{env, fs};

use programs::{HeldBack, Program, TestEnv, Work};
use rxe_proto::wire::{IcrcKernel, PathMtu};

type Failure = Box<dyn Error>;

/// The part of a round that is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Respond,
    /// The requester's part: sending requests and handling responses.
    RequestAndComplete,
}

struct Gate {
    name: &'static str,
    part: Part,
    program: Program,
}

const GATES: [Gate; 12] = [
    Gate { name: "respond-write-64", part: Part::Respond, program: Program::small(Work::Write, 64) },
    Gate { name: "respond-send-64", part: Part::Respond, program: Program::small(Work::Send, 64) },
    Gate { name: "respond-read-64", part: Part::Respond, program: Program::small(Work::Read, 64) },
    Gate {
        name: "respond-read-4096",
        part: Part::Respond,
        program: Program { messages: 64, ..Program::large(Work::Read, 4096, PathMtu::Mtu1024) },
    },
    Gate { name: "respond-fetch-add", part: Part::Respond, program: Program::small(Work::FetchAdd, 8) },
    Gate { name: "request-write-64", part: Part::RequestAndComplete, program: Program::small(Work::Write, 64) },
    Gate { name: "request-send-64", part: Part::RequestAndComplete, program: Program::small(Work::Send, 64) },
    Gate { name: "request-read-64", part: Part::RequestAndComplete, program: Program::small(Work::Read, 64) },
    Gate {
        name: "request-write-65536",
        part: Part::RequestAndComplete,
        program: Program::large(Work::Write, 64 << 10, PathMtu::Mtu1024),
    },
    Gate {
        name: "request-write-paced",
        part: Part::RequestAndComplete,
        program: Program::held_back(Work::Write, 16 << 10, 4, HeldBack::Rate),
    },
    Gate {
        name: "request-write-beside-short",
        part: Part::RequestAndComplete,
        program: Program::held_back(Work::Write, 4 << 10, 8, HeldBack::ShortMessage),
    },
    Gate {
        name: "request-read-in-parts",
        part: Part::RequestAndComplete,
        program: Program::held_back(Work::Read, 16 << 10, 3, HeldBack::ShortMessage),
    },
];

/// Rounds that are counted.
const ROUNDS: usize = 8;

/// Increase over the baseline that fails.
const TOLERANCE: f64 = 0.01;
/// The same with another compiler, or another kernel for the ICRC, than the baseline's: not everything is the code's
/// fault.
const TOLERANCE_ELSEWHERE: f64 = 0.15;

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");

/// Disables CPU features in glibc that only some machines have, so that its memcpy is the same on all.
const SAME_MEMCPY: &str = "glibc.cpu.hwcaps=-AVX_Fast_Unaligned_Load,-AVX512F,-AVX512VL,-AVX2,-ERMS,-SSSE3";

const HOW_TO_RENEW: &str = "cargo bench -p rxe-proto --bench instructions -- renew";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        [] => compare(),
        ["renew"] => renew(),
        // The process that callgrind runs.
        ["run", name] => run(name),
        _ => Err(format!("usage: {HOW_TO_RENEW}, or without `renew`").into()),
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

/// Instructions per packet of each program, and the conditions of the measurement.
struct Counts {
    conditions: String,
    programs: Vec<(String, f64)>,
}

fn count() -> Result<Counts, Failure> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output()?;
    let compiler = String::from_utf8(version.stdout)?.trim().to_owned();
    let mut kernel = String::new();
    let mut programs = Vec::new();
    for gate in &GATES {
        let callgrind = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .args(["--collect-atstart=no", "--toggle-collect=*instructions::counted*"])
            .arg(env::current_exe()?)
            .args(["run", gate.name])
            .env("GLIBC_TUNABLES", SAME_MEMCPY)
            .output()
            .map_err(|error| format!("valgrind does not start ({error}): install it, `apt-get install valgrind`"))?;
        let (out, log) = (String::from_utf8_lossy(&callgrind.stdout), String::from_utf8_lossy(&callgrind.stderr));
        let instructions = log.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse::<u64>().ok());
        let packets = out.split_once(' ').and_then(|(packets, kernel)| Some((packets.parse::<u64>().ok()?, kernel)));
        let (Some(instructions @ 1..), Some((packets, used))) = (instructions, packets) else {
            return Err(format!("callgrind counted nothing in {}:\n{out}{log}", gate.name).into());
        };
        kernel = used.trim().to_owned();
        let per_packet = instructions as f64 / packets as f64;
        // As precise as the baseline is written.
        programs.push((gate.name.to_owned(), (10.0 * per_packet).round() / 10.0));
    }
    Ok(Counts { conditions: format!("{compiler}, ICRC by {kernel}"), programs })
}

fn renew() -> Result<bool, Failure> {
    let counts = count()?;
    let mut text = format!(
        "# Instructions per packet; benches/instructions.rs says of what. Not written by hand:\n\
         # {HOW_TO_RENEW}\n\
         conditions {}\n",
        counts.conditions
    );
    for (name, per_packet) in &counts.programs {
        text += &format!("{name} {per_packet:.1}\n");
    }
    fs::write(BASELINE, &text)?;
    print!("{text}");
    Ok(true)
}

fn baseline() -> Result<Counts, Failure> {
    let text = fs::read_to_string(BASELINE).map_err(|error| format!("{BASELINE}: {error}; {HOW_TO_RENEW}"))?;
    let (mut conditions, mut programs) = (String::new(), Vec::new());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.split_once(' ').ok_or_else(|| format!("{BASELINE}: unexpected line {line:?}"))?;
        match name {
            "conditions" => conditions = value.to_owned(),
            _ => programs.push((name.to_owned(), value.parse()?)),
        }
    }
    Ok(Counts { conditions, programs })
}

/// Counts, and prints the comparison of each program. False when one has become slower.
fn compare() -> Result<bool, Failure> {
    let (baseline, counts) = (baseline()?, count()?);
    let mut tolerance = TOLERANCE;
    if baseline.conditions != counts.conditions {
        tolerance = TOLERANCE_ELSEWHERE;
        println!("The baseline is of {}, this is {}:", baseline.conditions, counts.conditions);
        println!("up to {:.0} % more instructions pass. Renew it: {HOW_TO_RENEW}", 100.0 * tolerance);
    }
    let (mut good, mut bad, mut faster) = (0, 0, false);
    for (name, now) in &counts.programs {
        let Some((_, before)) = baseline.programs.iter().find(|(program, _)| program == name) else {
            bad += 1;
            println!("test {name} ... FAILED: it is not in the baseline. {HOW_TO_RENEW}");
            continue;
        };
        let change = now / before - 1.0;
        let verdict = if change > tolerance { "FAILED" } else { "ok" };
        if change > tolerance {
            bad += 1
        } else {
            good += 1
        }
        faster |= change < -TOLERANCE;
        println!(
            "test {name} ... {verdict}: {now:.1} instructions per packet, {before:.1} before ({:+.1} %)",
            100.0 * change
        );
    }
    if bad > 0 {
        println!("Find the cause with `callgrind_annotate`; if it is intended: {HOW_TO_RENEW}");
    } else if faster {
        println!("Faster by more than {:.0} %, renew the baseline: {HOW_TO_RENEW}", 100.0 * TOLERANCE);
    }
    println!("\ntest result: {}. {good} passed; {bad} failed; 0 ignored", if bad == 0 { "ok" } else { "FAILED" });
    Ok(bad == 0)
}

/// Runs a program and prints the number of packets and the ICRC kernel.
fn run(name: &str) -> Result<bool, Failure> {
    let gate = GATES.iter().find(|gate| gate.name == name).ok_or("there is no such program")?;
    let mut env = TestEnv::new(gate.program);
    let mut packets = 0;
    for _ in 0..ROUNDS {
        match gate.part {
            Part::Respond => {
                env.request();
                counted(&mut env, TestEnv::respond);
                env.complete();
            }
            Part::RequestAndComplete => {
                env.notify();
                counted(&mut env, TestEnv::request);
                env.respond();
                counted(&mut env, TestEnv::complete);
            }
        }
        let [there, back] = env.frames();
        packets += there.len().max(back.len());
    }
    println!("{packets} {}", IcrcKernel::best().name());
    Ok(true)
}

/// Callgrind counts inside this function only.
#[inline(never)]
fn counted(env: &mut TestEnv, part: fn(&mut TestEnv)) {
    part(black_box(env));
    black_box(env); // prevents a tail call
}
