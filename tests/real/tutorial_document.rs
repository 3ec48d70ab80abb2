//! docs/tutorial.md, executed as written: two guests on one wire, the target in one of them, the clients in the other.
//!
//! The document's ```console blocks hold commands behind a prompt, each followed by its output: `server# ` and `client# `
//! are the two guests, `desk$ ` is this machine, in a folder with the capture that the client made. A command that ends
//! with ` &` runs beside the next ones; the output at its end belongs to the `kill` that ended it.
//!
//! With RXE_WRITE_DOCS the outputs are written into the document. Otherwise they have to be of the same shape: the same
//! lines, apart from words with digits and from how often a line is repeated.

use crate::Check;
use crate::env::{TestEnv, root, write_docs};
use crate::guest::{Guest, GuestConfig, Job, Plug};
use crate::suite::{AnyGroup, Fixture, Group, Needs};
use crate::target::archive;
use rxe_testkit::process;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(180);
/// The client's capture.
const CAPTURE: &str = "roce.pcap";

/// Where a command runs.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Server,
    Client,
    Desk,
}

const PROMPTS: [(&str, Place); 3] = [("server# ", Place::Server), ("client# ", Place::Client), ("desk$ ", Place::Desk)];

/// A piece of the document.
enum Piece {
    /// A line of it.
    Line(String),
    /// A command and its output.
    Step { prompt: &'static str, place: Place, command: String, output: Vec<String> },
}

fn file() -> PathBuf {
    root().join("docs/tutorial.md")
}

fn parse(text: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
            pieces.push(Piece::Line(line.to_owned()));
            continue;
        }
        let step = PROMPTS.iter().find_map(|(prompt, place)| Some((*prompt, *place, line.strip_prefix(prompt)?)));
        match (inside, step, pieces.last_mut()) {
            (true, Some((prompt, place, command)), _) => {
                pieces.push(Piece::Step { prompt, place, command: command.to_owned(), output: Vec::new() });
            }
            (true, None, Some(Piece::Step { output, .. })) => output.push(line.to_owned()),
            (true, None, _) => return Err(format!("docs/tutorial.md: {line:?} is the output of no command")),
            (false, ..) => pieces.push(Piece::Line(line.to_owned())),
        }
    }
    Ok(pieces)
}

fn text(pieces: &[Piece]) -> String {
    let mut text = String::new();
    let mut line = |line: &str| {
        text += line;
        text.push('\n');
    };
    for piece in pieces {
        match piece {
            Piece::Line(text) => line(text),
            Piece::Step { prompt, command, output, .. } => {
                line(&format!("{prompt}{command}"));
                output.iter().for_each(|text| line(text));
            }
        }
    }
    text
}

/// The part that is the same in all runs: each line without its numbers, and without repetitions of the line before.
fn shape(output: &[String]) -> Vec<String> {
    let word = |word: &str| match word.split_once('=') {
        // Settings and counters, which differ from run to run.
        Some(_) => "N=N".to_owned(),
        _ if word == "nothing" => "N=N".to_owned(),
        _ if word.contains(|c: char| c.is_ascii_digit()) => "N".to_owned(),
        _ => word.to_owned(),
    };
    let line = |line: &String| {
        let mut words: Vec<String> = line.split_whitespace().map(word).collect();
        words.dedup_by(|a, b| a == b && a == "N=N");
        words.join(" ")
    };
    // rping prints that only if the disconnect arrives before it ends.
    let by_chance = ["client DISCONNECT EVENT...", "rdma_get_cm_event: Bad file descriptor"];
    let chance = |line: &&String| !by_chance.contains(&line.as_str());
    let mut lines: Vec<String> = output.iter().filter(chance).map(line).collect();
    lines.dedup();
    lines
}

/// Whether two outputs have the same shape. A capture is compared by the kinds of its packets: the order of
/// acknowledgements differs from run to run.
fn same(place: Place, documented: &[String], seen: &[String]) -> Result<(), String> {
    let [mut documented_shape, mut seen_shape] = [documented, seen].map(shape);
    if place == Place::Desk {
        for lines in [&mut documented_shape, &mut seen_shape] {
            lines.sort();
            lines.dedup();
        }
    }
    if documented_shape == seen_shape {
        return Ok(());
    }
    let differs = documented_shape.iter().zip(&seen_shape).find(|(a, b)| a != b);
    let differs = differs.map_or("one has more lines".to_owned(), |(a, b)| format!("{a:?} is now {b:?}"));
    Err(format!("the output is another one than in docs/tutorial.md ({differs}):\n{}", seen.join("\n")))
}

/// The output as lines of the document.
fn lines(text: &str) -> Vec<String> {
    let line = |line: &str| line.trim_end().replace('\r', "");
    let mut lines: Vec<String> = text.lines().map(line).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// The two machines, and the commands that run there.
struct Machines {
    server: Guest,
    client: Guest,
    /// Commands that still run, and how much of their output was seen.
    running: Vec<(Job, usize)>,
    folder: PathBuf,
}

impl Fixture for Machines {
    fn context(&self) -> String {
        // The target's counters say more than its peer's silence.
        let target = self.server.run("kill $(pidof rxe-target); sleep 1", LIMIT).map(drop);
        let outputs: Vec<String> = self.running.iter().map(|(job, _)| job.so_far()).collect();
        let state = target.err().unwrap_or_default() + &outputs.join("\n");
        format!("{state}\nserver: {}\nclient: {}", self.server.console(), self.client.console())
    }
}

impl Machines {
    /// Runs one command and returns its output.
    fn run(&mut self, place: Place, command: &str) -> Result<Vec<String>, String> {
        let guest = match place {
            Place::Desk => return self.at_desk(command),
            Place::Client => &self.client,
            Place::Server => &self.server,
        };
        if let Some(command) = command.strip_suffix(" &") {
            let (job, text) = Machines::start(guest, command)?;
            self.running.push((job, text.len()));
            return Ok(lines(&text));
        }
        let mut text = guest.expect(command, LIMIT, &[])?.text;
        if command.starts_with("kill ") {
            text += &self.ended()?;
        }
        Ok(lines(&text))
    }

    /// Starts a command in the background, and returns its output at the start.
    fn start(guest: &Guest, command: &str) -> Result<(Job, String), String> {
        let job = guest.start(&format!("exec {command}"), Duration::from_secs(3600))?;
        // The line that they print once they work.
        let sign = if command.starts_with("rxe-target") { "ready " } else { "listening on " };
        job.wait_for(sign, LIMIT)?;
        std::thread::sleep(Duration::from_millis(500)); // the rest of the line
        let text = job.so_far();
        Ok((job, text))
    }

    /// Waits until one of the running commands has ended, and returns its output since the start.
    fn ended(&mut self) -> Result<String, String> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if let Some(index) = self.running.iter().position(|(job, _)| !job.running()) {
                let (job, seen) = self.running.remove(index);
                let output = job.wait()?.expect(0, &[])?;
                return Ok(output.text.get(seen..).unwrap_or("").to_owned());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err("nothing has ended".to_owned())
    }

    fn at_desk(&self, command: &str) -> Result<Vec<String>, String> {
        let file = self.folder.join(CAPTURE);
        if !file.exists() {
            let encoded = self.client.expect(&format!("base64 /tmp/{CAPTURE}"), LIMIT, &[])?.text;
            let copy = self.folder.join("capture.base64");
            std::fs::write(&copy, encoded).map_err(|e| e.to_string())?;
            let decode = format!("base64 -d {} > {}", copy.display(), file.display());
            process::must("sh", &["-c", &decode])?;
        }
        let mut shell = Command::new("bash");
        // Without settings of this machine's user.
        shell.args(["-c", command]).current_dir(&self.folder).env("HOME", &self.folder).env("LC_ALL", "C.UTF-8");
        let done = process::run(&mut shell, LIMIT)?;
        if done.code == 0 { Ok(lines(&done.stdout)) } else { Err(format!("exit code {}: {}", done.code, done.stderr)) }
    }
}

/// The group `tutorial`. It has checks of latency, and runs alone.
pub fn group() -> AnyGroup {
    let needs = Needs { alone: true, ..Needs::default() };
    let mut group = Group::new("tutorial", needs, |env| Machines::boot(env));
    group.nightly(true);
    group.stop_at_failure();
    let read = std::fs::read_to_string(file()).map_err(|e| format!("docs/tutorial.md: {e}"));
    let pieces = match read.and_then(|text| parse(&text)) {
        Ok(pieces) => pieces,
        Err(why) => {
            group.case("docs/tutorial.md has commands", move |_| Err(why));
            return group.build();
        }
    };
    let steps: Vec<(usize, String, Place)> = pieces
        .iter()
        .enumerate()
        .filter_map(|(index, piece)| match piece {
            Piece::Step { prompt, place, command, .. } => Some((index, format!("{prompt}{command}"), *place)),
            Piece::Line(_) => None,
        })
        .collect();
    let pieces = Arc::new(Mutex::new(pieces));
    for (index, name, place) in steps {
        let pieces = Arc::clone(&pieces);
        group.case(name, move |machines: &mut Machines| step(machines, &mut process::locked(&pieces)[index], place));
    }
    if write_docs() {
        group.case("docs/tutorial.md is written", move |_| {
            std::fs::write(file(), text(&process::locked(&pieces))).map_err(|e| format!("docs/tutorial.md: {e}"))
        });
    }
    group.build()
}

/// Runs a command, and compares its output with the document's or puts it there.
fn step(machines: &mut Machines, piece: &mut Piece, place: Place) -> Check {
    let Piece::Step { command, output, .. } = piece else { return Ok(()) };
    let seen = machines.run(place, command)?;
    if write_docs() {
        *output = seen;
        return Ok(());
    }
    same(place, output, &seen)
}

impl Machines {
    fn boot(env: &TestEnv) -> Result<Machines, String> {
        let wire = env.path("tutorial.wire");
        let guest = |name: &str, plug, extra_initrd, memory, cpus| {
            let parameters = "rxe=none".to_owned();
            env.boot(GuestConfig { name: name.to_owned(), plug, parameters, extra_initrd, memory, cpus })
        };
        // The archive has tcpdump and rxe-bench, too.
        let archive = archive(env)?;
        let server = guest("tutorial-server", Plug::WireListens(wire.clone()), Some(archive.clone()), 1536, 2)?;
        let client = guest("tutorial-client", Plug::WireConnects(wire), Some(archive), 1024, 2)?;
        let folder = env.path("desk");
        std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
        Ok(Machines { server, client, running: Vec::new(), folder })
    }
}
