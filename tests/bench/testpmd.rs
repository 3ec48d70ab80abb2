//! The limits of the port itself, measured by DPDK's own testpmd: frames reflected, or sent one way.

use std::io::Write;
use std::process::ChildStdin;
use std::time::Duration;

use rxe_testkit::process::{Program, Streams};

use crate::matrix::Port;
use crate::results::Sample;
use crate::rig::{Link, Rig, succeeded};

/// The program.
pub const PROGRAM: &str = "dpdk-testpmd";
/// How long it may take to start, and to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Before it counts, and while it does.
const SETTLE: Duration = Duration::from_millis(200);
const MEASURE: Duration = Duration::from_millis(700);
/// Bursts of frames on the way: as many as the rings of a vhost port hold; fewer than the kernel would lose on a veth.
const BURSTS: [u32; 2] = [32, 8];

/// A testpmd that takes commands.
struct Tester {
    program: Program,
    stdin: ChildStdin,
    /// Prompts that it has given, one for each command.
    prompts: usize,
}

const PROMPT: &str = "testpmd> ";

impl Tester {
    fn start(rig: &Rig, name: &str, cpu: u32, vdev: &str, frame: u32) -> Result<Tester, String> {
        // Its first lcore sleeps on its command line, the second one forwards.
        // It flushes prompts at once and all other output when a buffer is full, hence stdbuf.
        let mut command = rig.command(&["stdbuf", "-o0", PROGRAM], name, &[cpu, cpu], vdev);
        // Each frame in one piece, behind its headroom; net_af_packet wants room for the longest.
        let room = if vdev.starts_with("net_af_packet") { 8448 } else { (frame + 256).max(2176) };
        let long = (frame > 1518).then(|| format!("--max-pkt-len={frame}"));
        command
            .args(["--interactive", "--nb-cores=1", "--burst=32", "--total-num-mbufs=16384", "--no-lsc-interrupt"])
            .args([format!("--mbuf-size={room}"), format!("--txpkts={frame}")])
            .args(long)
            .args(if vdev.starts_with("net_af") { &[][..] } else { &["--rxd=1024", "--txd=1024"] });
        let mut program = Program::with_streams(&mut command, Streams { stdin: true, ..Streams::default() })?;
        let stdin = program.stdin().ok_or("testpmd has no standard input")?;
        let mut tester = Tester { program, stdin, prompts: 0 };
        let said = tester.prompt()?;
        match said.lines().find(|line| line.contains("Fail") || line.contains("failed")) {
            Some(line) => Err(format!("testpmd at {vdev}: {}", line.trim())),
            None => Ok(tester),
        }
    }

    /// Waits for the next prompt, and returns the output since the last one.
    fn prompt(&mut self) -> Result<String, String> {
        let prompts = self.prompts;
        let answer = self.program.wait_for(PATIENCE, |text| {
            let mut answers = text.split(PROMPT).skip(prompts);
            let answer = answers.next()?;
            // Text after the last prompt is incomplete.
            answers.next().map(|_| answer.to_owned())
        })?;
        self.prompts += 1;
        Ok(answer)
    }

    fn say(&mut self, command: &str) -> Result<String, String> {
        writeln!(self.stdin, "{command}").map_err(|error| format!("testpmd does not listen: {error}"))?;
        self.prompt()
    }

    /// Frames received per second since the last question.
    fn rate(&mut self) -> Result<f64, String> {
        let answer = self.say("show port stats 0")?;
        received_per_second(&answer).ok_or_else(|| format!("testpmd tells no rate: {answer}"))
    }

    fn end(mut self) -> Result<(), String> {
        writeln!(self.stdin, "quit").map_err(|error| format!("testpmd does not listen: {error}"))?;
        succeeded(self.program.finish(PATIENCE)?).map(|_| ())
    }
}

/// The rate in the statistics of a port.
pub fn received_per_second(statistics: &str) -> Option<f64> {
    let line = statistics.lines().find_map(|line| line.trim().strip_prefix("Rx-pps:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Measures with frames of one length: `5tswap` and `macswap` reflect the same ones at both ends, `one-way` sends them
/// at one and receives them at the other. The sample counts frames per second: those that were reflected, or that arrived.
///
/// # Errors
/// In words, why not.
pub fn measure(rig: &Rig, port: Port, link: &Link, what: &str) -> Result<Sample, String> {
    let (way, frame) = what.split_once(' ').ok_or("a step of testpmd has a way and a length")?;
    let frame: u32 = frame.parse().map_err(|_| format!("{frame} is no length of a frame"))?;
    let mut far = Tester::start(rig, "t", rig.cpus[1], &link.vdevs[0], frame)?;
    let mut near = Tester::start(rig, "b", rig.cpus[0], &link.vdevs[1], frame)?;
    let one_way = way == "one-way";
    let (far_way, near_way, start) = match way {
        "one-way" => ("rxonly", "txonly", "start".to_owned()),
        _ => (way, way, format!("start tx_first {}", BURSTS[usize::from(port == Port::AfPacket)])),
    };
    far.say(&format!("set fwd {far_way}"))?;
    near.say(&format!("set fwd {near_way}"))?;
    far.say("start")?;
    near.say(&start)?;
    std::thread::sleep(SETTLE);
    let counts = if one_way { &mut far } else { &mut near };
    counts.rate()?;
    std::thread::sleep(MEASURE);
    let rate = counts.rate()?;
    near.end()?;
    far.end()?;
    if rate == 0.0 {
        return Err(format!("testpmd: no frames of {frame} bytes come over {port}"));
    }
    Ok(Sample { rate, gbps: rate * f64::from(frame) * 8e-9, mtu: frame, ..Sample::default() })
}
