//! Runs of programs in two network namespaces: perftest under rxe-run, ucx_perftest over TCP, and rxe-bench on a UDP socket.

use std::ffi::OsString;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rxe_testkit::process::{self, Finished, Program};
use rxe_testkit::retry::retry;

use crate::comparisons::{self, Peer};
use crate::guests;
use crate::namespaces::{End, Namespaces};
use crate::results::Sample;
use crate::rig::{self, succeeded};

/// The programs.
const TARGET: &str = env!("CARGO_BIN_EXE_rxe-target");
const BENCH: &str = env!("CARGO_BIN_EXE_rxe-bench");
const RUN: &str = env!("CARGO_BIN_EXE_rxe-run");
const UCX: &str = "ucx_perftest";
/// The longest that a run may take, and the start of a server.
const LIMIT: Duration = Duration::from_secs(90);
const READY: Duration = Duration::from_secs(20);
/// Interval between looks whether a server listens.
const CHECK: Duration = Duration::from_millis(5);
/// TCP ports at which servers expect the parameters of a test.
const UCX_PORT: u16 = 13_337;
const PERFTEST_PORT: u16 = 18_515;

/// The program at the far end, if it serves several runs.
pub struct Serving<'s> {
    spaces: &'s Namespaces,
    target: Option<Program>,
}

/// Starts rxe-target, if that is the peer.
///
/// # Errors
/// In words, why not.
pub fn serve(spaces: &Namespaces, peer: Peer) -> Result<Serving<'_>, String> {
    let target = match peer {
        Peer::Same => None,
        Peer::Target => {
            let mut command = spaces.command(End::Far, TARGET);
            command.args(["--udp", &End::Far.address().to_string(), "--idle", "sleep"]).env("RXE_LOG", "error");
            let target = Program::start(&mut command)?;
            target.wait_for_line("ready ", READY)?;
            Some(target)
        }
    };
    Ok(Serving { spaces, target })
}

impl Serving<'_> {
    /// The result of one run.
    ///
    /// # Errors
    /// The reason of a failure.
    pub fn measure(&self, words: &str) -> Result<Sample, String> {
        let is_void = |run: &Result<(Finished, f64), String>| {
            run.as_ref().is_ok_and(|(done, _)| guests::is_void(&format!("{}{}", done.stdout, done.stderr)))
        };
        let (done, seconds) = retry(|| self.run(words), is_void)?;
        let mut sample = sample(words, &succeeded(done)?)?;
        sample.cpu_us = comparisons::messages(words).map(|messages| seconds * 1e6 / messages as f64);
        Ok(sample)
    }

    /// One run: what the client printed, and the seconds of CPU time that it took.
    fn run(&self, words: &str) -> Result<(Finished, f64), String> {
        let server = match self.target {
            Some(_) => None,
            None => Some(self.start_server(words)?),
        };
        let mut client = self.command(End::Near, words)?;
        let client = client_of(words, &mut client);
        // Only children that were waited for count, so these are the client's.
        let before = children_seconds()?;
        let done = process::run(client, LIMIT)?;
        let seconds = children_seconds()? - before;
        if let Some(mut server) = server.filter(|_| done.code == 0) {
            succeeded(server.finish(LIMIT)?).map_err(|why| format!("the server of `{words}`: {why}"))?;
        }
        Ok((done, seconds))
    }

    /// Ends the program at the far end.
    ///
    /// # Errors
    /// It did not end well.
    pub fn end(self) -> Result<(), String> {
        self.target.map_or(Ok(()), |mut target| succeeded(target.stop(LIMIT)?).map(drop))
    }

    /// Starts the server of a command, which listens when this returns.
    fn start_server(&self, words: &str) -> Result<Program, String> {
        let port = if comparisons::program(words) == UCX { UCX_PORT } else { PERFTEST_PORT };
        let mut server = Program::start(&mut self.command(End::Far, words)?)?;
        let deadline = Instant::now() + READY;
        while !self.spaces.listens(End::Far, port) {
            if !server.is_running() || Instant::now() >= deadline {
                return Err(format!("`{}` does not listen: {}", server.name(), server.tail()));
            }
            std::thread::sleep(CHECK);
        }
        Ok(server)
    }

    /// The command at one end, without what only a client has.
    fn command(&self, end: End, words: &str) -> Result<Command, String> {
        let address = end.address().to_string();
        let arguments = words.split_whitespace().skip(1);
        Ok(match comparisons::program(words) {
            "rxe-bench" => {
                let mut command = self.spaces.command(end, BENCH);
                // The protocol of perftest's programs, for the same service.
                command.args(arguments).args(["--udp", &address, "--protocol", "perftest", "--out_json", "-"]);
                command
            }
            UCX => {
                let mut command = self.spaces.command(end, UCX);
                // The server takes the parameters of the client. -f: the final figures only.
                let arguments = arguments.filter(|_| end == End::Near);
                command.arg("-f").args(arguments).env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", end.interface());
                command
            }
            program => {
                let mut command = self.spaces.command(end, RUN);
                command.args(["--address", &address, program]).args(arguments).arg("-F");
                command.env("RXE_VERBS_LIBRARY", library()?);
                command
            }
        })
    }
}

/// Adds the address of the server to the command of a client.
fn client_of<'c>(words: &str, command: &'c mut Command) -> &'c mut Command {
    let server = End::Far.address().to_string();
    match comparisons::program(words) {
        "rxe-bench" => command.args(["--peer", &server]),
        _ => command.arg(server),
    }
}

/// The library of rxe-run, which Cargo builds as a dependency of this program.
fn library() -> Result<OsString, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(own.with_file_name("librxe_verbs.so").into_os_string())
}

/// CPU time of all children that have ended.
fn children_seconds() -> Result<f64, String> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|error| format!("getrusage: {error}"))?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(micros as f64 / 1e6)
}

/// The result that a client printed.
fn sample(words: &str, output: &str) -> Result<Sample, String> {
    let sample = match comparisons::program(words) {
        "rxe-bench" => rig::samples(output)?.first().map(|(_, sample)| *sample),
        UCX => ucx_sample(output),
        _ => guests::sample(output),
    };
    sample.ok_or_else(|| format!("`{words}` printed no result: {output}"))
}

/// The result of ucx_perftest: its last row has the number of messages, three times, two bandwidths and two rates, of which the
/// second is that of the whole run.
pub fn ucx_sample(text: &str) -> Option<Sample> {
    let row = |line: &str| {
        let words = line.trim().trim_start_matches("Final:").split_whitespace();
        let figures: Vec<f64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
        matches!(figures[..], [_, _, _, _, _, _, _, _]).then_some(figures)
    };
    let figures = text.lines().filter_map(row).next_back()?;
    let [_, _, _, _, _, mebibytes, _, rate] = figures[..] else { return None };
    let sample = Sample { rate, gbps: mebibytes * f64::from(1 << 20) * 8e-9, ..Sample::default() };
    // A run in which nothing happened is no figure.
    (rate > 0.0 && rate.is_finite()).then_some(sample)
}
