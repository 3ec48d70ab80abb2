//! Decisions of the start: which lcores work, and whether runtime folder and sockets belong to another process.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rxe_testkit::process::{self, Program};

use super::lacking;

/// Whether the tests cannot run here, which is an error in CI.
fn skipped() -> bool {
    let Some(why) = lacking() else { return false };
    assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
    eprintln!("SKIPPED: {why}");
    true
}

fn rxe_target(eal: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-target"));
    command.args(["--in-memory", "--no-pci", "--no-telemetry"]).args(eal);
    command.args(["--", "--address", "10.77.0.1/24", "--idle", "sleep"]);
    command
}

/// A running target, killed when dropped, and its ready line.
struct Running {
    program: Program,
    ready: String,
}

impl Running {
    fn start(eal: &[&str]) -> Running {
        let program = Program::start(&mut rxe_target(eal)).unwrap();
        let ready = program.wait_for_line("ready ", Duration::from_secs(90)).unwrap_or_else(|error| panic!("{error}"));
        Running { program, ready }
    }

    fn is_running(&mut self) -> bool {
        self.program.is_running()
    }
}

/// Starts a target that must end with exit code 2; returns its message.
fn refused(eal: &[&str]) -> String {
    let done = process::run(&mut rxe_target(eal), Duration::from_secs(90)).unwrap();
    assert_eq!((done.code, done.stdout.as_str()), (2, ""), "{}", done.stderr);
    done.stderr
}

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("rxe-ports-{}-{name}.sock", std::process::id()))
}

fn inode(path: &Path) -> u64 {
    path.metadata().unwrap().ino()
}

#[test]
fn one_lcore_works_unless_more_are_chosen() {
    if skipped() {
        return;
    }
    let id = std::process::id();
    let target = Running::start(&[&format!("--file-prefix={id}l1"), "--vdev=net_null0"]);
    assert!(target.ready.contains(" lcores=1 "), "{}", target.ready);
    drop(target);
    let target = Running::start(&["--lcores=0@0,1@0", &format!("--file-prefix={id}l2"), "--vdev=net_ring0"]);
    assert!(target.ready.contains(" lcores=2 "), "{}", target.ready);
    drop(target);
    let many: Vec<String> = (0..16).map(|lcore| format!("{lcore}@0")).collect();
    let lcores = format!("--lcores={}", many.join(","));
    let said = refused(&[&lcores, &format!("--file-prefix={id}l3"), "--vdev=net_null0"]);
    assert!(said.contains("16 lcores are too many: choose at most 15 with EAL's -l, as -l 0-14"), "{said}");
}

#[test]
fn a_file_prefix_is_a_name_and_belongs_to_one_target() {
    if skipped() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("rxe-ports-{}-precious", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o751)).unwrap();
    for prefix in ["..", ".", "a b", folder.to_str().unwrap()] {
        let said = refused(&["--file-prefix", prefix, "--vdev=net_null0"]);
        assert!(said.contains("--file-prefix") && said.lines().count() == 1, "{said}");
    }
    assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o751, "nothing is changed");
    std::fs::remove_dir(&folder).unwrap();

    let prefix = format!("--file-prefix={}p", std::process::id());
    let mut first = Running::start(&[&prefix, "--vdev=net_null0"]);
    let said = refused(&[&prefix, "--vdev=net_null0"]);
    assert!(said.contains("another target with --file-prefix") && said.lines().count() == 1, "{said}");
    assert!(first.is_running());
    // The files of a killed target are reused.
    drop(first);
    drop(Running::start(&[&prefix, "--vdev=net_null0"]));
}

#[test]
fn the_socket_of_a_living_process_is_left_to_it() {
    if skipped() {
        return;
    }
    let id = std::process::id();
    let (vhost, memif) = (socket("vhost-start"), socket("memif-start"));
    for (number, path, vdev) in [
        (0, &vhost, format!("--vdev=net_vhost0,iface={}", vhost.display())),
        (1, &memif, format!("--vdev=net_memif0,role=server,socket-abstract=no,socket={}", memif.display())),
    ] {
        let mut first = Running::start(&[&format!("--file-prefix={id}s{number}"), &vdev]);
        let listening = inode(path);
        let said = refused(&[&format!("--file-prefix={id}t{number}"), &vdev]);
        assert!(said.contains("another process listens there"), "{said}");
        assert_eq!(inode(path), listening, "the socket is still that of the first");
        // If the second target's check had ended the first one, it would have had the time to end.
        let again = refused(&[&format!("--file-prefix={id}t{number}"), &vdev]);
        assert!(again.contains("another process listens there") && first.is_running(), "{again}");
        // A killed target leaves its socket, which does not hinder the next one.
        drop(first);
        assert!(path.exists());
        drop(Running::start(&[&format!("--file-prefix={id}u{number}"), &vdev]));
        let _ = std::fs::remove_file(path);
    }
}
