//! Tests that make network interfaces: each runs a copy of its program in a network namespace of its own, which vanishes
//! with that process and takes the interfaces along.

use std::env;
use std::process::Command;

const INSIDE: &str = "RXE_TEST_IN_NAMESPACE";

/// Runs `inside` in a new network namespace, by way of a copy of this program that runs the one test named `test`.
/// Without root the test is skipped with a word, which in CI is a failure.
pub fn run(test: &str, inside: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        return inside();
    }
    let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    if !root {
        assert!(env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: net_af_packet wants root");
        eprintln!("SKIPPED: net_af_packet wants root");
        return;
    }
    let status = Command::new("unshare")
        .arg("--net")
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success(), "the copy in the namespace: {status}");
}

/// Runs `ip`, which has to succeed.
pub fn ip(args: &str) {
    let output = Command::new("ip").args(args.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
}
