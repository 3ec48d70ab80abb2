//! docs/getting-started.md, executed as written with the programs of this build, in namespaces of its own (network, mounts).
//!
//! Left out are blocks without a marker: what the package manager, systemd, the hugepages of the whole machine and the module
//! rdma_rxe do.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rxe_testkit::child::this_test;
use rxe_testkit::process::Program;
use rxe_testkit::readme::commands;

use super::lacking;

const MARKER: &str = "<!-- test:getting-started -->";
const INSIDE: &str = "RXE_TEST_GETTING_STARTED";
/// How long one command may take on a busy machine, in seconds.
const LIMIT: &str = "60";

/// What the package installs, at the same places; the files are gone with the namespace.
const INSTALL: &str = "set -e; mount -t sysfs none /sys; mount -t tmpfs none /run; cp -a /etc /run/etc; mount --bind /run/etc /etc; \
    mkdir -p /etc/rxe /run/bin /dev/hugepages; mount -t hugetlbfs -o pagesize=2M none /dev/hugepages";

fn shell(line: &str) -> Command {
    let programs = Path::new(env!("CARGO_BIN_EXE_rxe-target")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("timeout");
    command.args(["--signal=INT", LIMIT, "sh", "-c", line]).stdin(Stdio::null());
    command.env("PATH", format!("/run/bin:{}:{path}", programs.display())).env_remove("RXE_FILE_PREFIX");
    // What host-setup notes in the namespaces is theirs: `undo` must not take the hugepages of the tests away.
    command.env_remove("RXE_HOST_SETUP_STATE");
    command
}

fn install() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let done = Command::new("sh").args(["-c", INSTALL]).status().unwrap();
    assert!(done.success(), "{done}");
    std::fs::copy(root.join("conf/target.toml"), "/etc/rxe/target.toml").unwrap();
    symlink(root.join("conf/host-setup"), "/run/bin/rxe-host-setup").unwrap();
    // Not every machine has a `ping` of its own.
    let busybox = shell("command -v busybox").output().unwrap();
    symlink(String::from_utf8(busybox.stdout).unwrap().trim_end(), "/run/bin/ping").unwrap();
}

fn run_commands() {
    install();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/getting-started.md")).unwrap();
    let mut target: Option<Program> = None;
    let mut outputs = String::new();
    for line in commands(&page, MARKER).unwrap() {
        println!("$ {line}");
        if let Some(background) = line.strip_suffix('&') {
            target = Some(Program::start(&mut shell(&format!("exec {background}"))).unwrap());
            continue;
        }
        if line.starts_with("kill %1 ") {
            let done = target.take().expect("it was started").stop(Duration::from_secs(30)).unwrap();
            assert_eq!(done.code, 0, "{}", done.stderr);
            assert!(done.stdout.starts_with("ready "), "{}", done.stdout);
            continue;
        }
        let output = shell(&line).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{text}");
        let log = target.as_ref().map(Program::tail).unwrap_or_default();
        assert!(output.status.success(), "{line}: {}{text}{log}", String::from_utf8_lossy(&output.stderr));
        outputs += &text;
    }
    for words in
        ["undo would revert:", "configuration OK: ", " 0% packet loss", "hca_id:", "hw_counters", "LCORE  BUSY%"]
    {
        assert!(outputs.contains(words), "no {words:?} in {outputs}");
    }
    let left = shell("ip -o link show type veth").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "", "undone");
    assert!(target.is_none(), "the page ends the target");
}

#[test]
fn the_commands_of_getting_started_run_as_written() {
    if std::env::var_os(INSIDE).is_some() {
        return run_commands();
    }
    if let Some(why) = lacking() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
        eprintln!("SKIPPED: {why}");
        return;
    }
    let status = this_test(Some(["unshare", "-nm"])).env(INSIDE, "1").status().unwrap();
    assert!(status.success(), "the copy in the namespaces: {status}");
}
