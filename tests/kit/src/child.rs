//! Tests that need a process of their own, because a process has one EAL, or a network namespace of their own, which
//! disappears with the process and takes its interfaces along. Such a test re-executes its test program with itself as
//! the only test.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Set in the child to the name of the test that it runs.
const INSIDE: &str = "RXE_TEST_CHILD";

/// Runs `inside` in a child process. Call it from a `#[test]` function and do nothing else there.
pub fn alone(inside: impl FnOnce()) {
    run(None, inside);
}

/// Runs `inside` in a child process in a new network namespace that forwards no packets. Needs root; without root the test
/// is skipped with a message, except under CI, where it fails.
pub fn in_namespace(inside: impl FnOnce()) {
    if !is_child() && !is_root() {
        assert!(env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: network namespaces need root");
        eprintln!("SKIPPED: network namespaces need root");
        return;
    }
    run(Some(["unshare", "--net"]), || {
        forward_nothing();
        inside();
    });
}

/// Makes the kernel forward no packets in this network namespace, whose setting is at first that of the machine, which Docker
/// changes: a frame to a target on net_af_packet would go round.
pub fn forward_nothing() {
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").expect("a network namespace of the test's own");
}

/// A command that runs this test program with the calling test as the only test.
pub fn this_test(wrapper: Option<[&str; 2]>) -> Command {
    let program = env::current_exe().expect("the path of this program");
    let mut command = match wrapper {
        Some([wrapper, option]) => {
            let mut command = Command::new(wrapper);
            command.arg(option).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args(["--exact", &test_name(), "--nocapture"]);
    command
}

/// Runs `ip`, which has to succeed.
pub fn ip(args: &str) {
    let output = Command::new("ip").args(args.split_whitespace()).output().expect("ip starts");
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until sockets can be bound to all IPv6 addresses of this namespace. The kernel makes an address usable some time after
/// it was added, also one without duplicate address detection.
pub fn wait_for_addresses() {
    let begin = Instant::now();
    let tentative = || {
        let output = Command::new("ip").args(["-6", "addr", "show", "tentative"]).output().expect("ip starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    loop {
        let addresses = tentative();
        if addresses.is_empty() {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "still tentative: {addresses}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

/// The test runner names each test's thread after the test, module path included.
fn test_name() -> String {
    match thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => panic!("call this from the thread that the test runner made for the test"),
    }
}

fn is_child() -> bool {
    env::var(INSIDE).is_ok_and(|test| test == test_name())
}

fn run(wrapper: Option<[&str; 2]>, inside: impl FnOnce()) {
    if is_child() {
        return inside();
    }
    let test = test_name();
    let mut child =
        this_test(wrapper).env(INSIDE, &test).stdout(Stdio::piped()).spawn().expect("the test program starts again");
    let mut ran = false;
    for line in BufReader::new(child.stdout.take().expect("a pipe")).split(b'\n') {
        let line = line.expect("the child's output");
        let line = String::from_utf8_lossy(&line);
        // Without this a child that found no test of that name would pass.
        ran |= line.contains("test result: ok. 1 passed");
        println!("{line}");
    }
    let status = child.wait().expect("the child's status");
    assert!(status.success() && ran, "{test} in a child process: {status}");
}
