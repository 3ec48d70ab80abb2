//! Tests that each want an EAL of their own, of which a process has one: each runs in a copy of its program.

use std::env;
use std::process::Command;

const INSIDE: &str = "RXE_TEST_ALONE";

/// Runs `inside` in a copy of this program that runs the one test named `test`.
pub fn run(test: &str, inside: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        return inside();
    }
    let status = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success(), "the copy: {status}");
}
