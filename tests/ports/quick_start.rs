//! README's quick start that needs no rdma_rxe, executed as written with the programs of this build.
//!
//! The commands are the lines of the ```sh block that follows the comment `<!-- test:quick-start-veth -->` in README.md. They
//! run in namespaces of their own (network, mounts), so the network namespace that they make is invisible outside.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rxe_testkit::child::this_test;
use rxe_testkit::process::Program;
use rxe_testkit::readme::commands;

const MARKER: &str = "<!-- test:quick-start-veth -->";
const INSIDE: &str = "RXE_TEST_QUICK_START";
/// How long one command may take on a busy machine, in seconds.
const LIMIT: &str = "120";

/// `sh -c` with a time limit and the programs of this build first on the path.
fn shell(line: &str) -> Command {
    let programs = Path::new(env!("CARGO_BIN_EXE_rxe-target")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("timeout");
    command.args(["--signal=INT", LIMIT, "sh", "-c", line]).stdin(Stdio::null());
    command.env("PATH", format!("{}:{path}", programs.display()));
    command
}

/// A background command, ended by SIGTERM (`timeout` passes it on) when dropped.
struct Target(Program);

impl Target {
    /// Starts it. The next command waits until it serves.
    fn start(line: &str) -> Target {
        // exec: SIGINT reaches the program, not a shell in front of it.
        Target(Program::start(&mut shell(&format!("exec {line}"))).unwrap())
    }

    /// Checks that it has printed its ready line, and ends it as a user does with `kill`.
    fn stop(mut self) {
        let ready = self.0.wait_for_line("ready ", Duration::from_secs(30));
        println!("target: {}", ready.unwrap_or_else(|error| panic!("{error}")));
        let done = self.0.stop(Duration::from_secs(30)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(done.code, 0, "the target after SIGTERM: {}", done.stderr);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.0.is_running() {
            let _ = self.0.stop(Duration::from_secs(5));
        }
    }
}

fn run_commands() {
    // `ip netns` and the programs keep their files below /run.
    assert!(Command::new("mount").args(["-t", "tmpfs", "none", "/run"]).status().unwrap().success());
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let mut target = None;
    let mut rates = 0;
    for line in commands(&std::fs::read_to_string(readme).unwrap(), MARKER).unwrap() {
        println!("$ {line}");
        assert!(!line.contains("hugepages"), "the quick start leaves hugepages alone: {line}");
        if let Some(background) = line.strip_suffix('&') {
            target = Some(Target::start(background));
            continue;
        }
        let output = shell(&line).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{text}");
        assert!(output.status.success(), "{line}: {}{text}", String::from_utf8_lossy(&output.stderr));
        // The last column of rxe-bench's table is the message rate.
        let rows = text.lines().filter(|row| row.split_whitespace().next() == Some("64"));
        rates += rows.filter_map(|row| row.split_whitespace().last()?.parse::<f64>().ok()).filter(|r| *r > 0.0).count();
    }
    assert_eq!(rates, 1, "rxe-bench prints one rate above 0");
    target.expect("a line that ends with &").stop();
}

#[test]
fn the_quick_start_without_rdma_rxe_runs_as_written() {
    if std::env::var_os(INSIDE).is_some() {
        return run_commands();
    }
    let lacking = if !Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.trim_ascii() == b"0") {
        Some("root is needed to make network interfaces")
    } else if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        Some("two CPUs are needed")
    } else {
        None
    };
    if let Some(why) = lacking {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
        eprintln!("SKIPPED: {why}");
        return;
    }
    // Network and mounts.
    let status = this_test(Some(["unshare", "-nm"])).env(INSIDE, "1").status().unwrap();
    assert!(status.success(), "the copy in the namespaces: {status}");
}
