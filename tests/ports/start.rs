//! What a start decides before anything is served: which lcores work, whose runtime folder and sockets these are.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

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
    command.args(["--", "--address", "10.77.0.1/24", "--idle", "sleep"]).stdin(Stdio::null());
    command
}

/// A running target, killed when dropped, and its ready line.
struct Running {
    child: Child,
    ready: String,
}

impl Running {
    fn start(eal: &[&str]) -> Running {
        let mut child = rxe_target(eal).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let ready = lines.recv_timeout(Duration::from_secs(90));
        if ready.is_err() {
            let _ = child.kill();
        }
        Running { child, ready: ready.expect("a ready line") }
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a target that must end with exit code 2; returns what it says.
fn refused(eal: &[&str]) -> String {
    let mut command = Command::new("timeout");
    let target = rxe_target(eal);
    let said = command.arg("90").arg(target.get_program()).args(target.get_args()).stdin(Stdio::null()).output();
    let said = said.unwrap();
    let text = String::from_utf8(said.stderr).unwrap();
    assert_eq!((said.status.code(), said.stdout.len()), (Some(2), 0), "{text}");
    text
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
    // What a killed target leaves is taken over.
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
        // A first target that the second one's look had ended would have had the time to end.
        let again = refused(&[&format!("--file-prefix={id}t{number}"), &vdev]);
        assert!(again.contains("another process listens there") && first.is_running(), "{again}");
        // A killed target leaves its socket, which is in nobody's way.
        drop(first);
        assert!(path.exists());
        drop(Running::start(&[&format!("--file-prefix={id}u{number}"), &vdev]));
        let _ = std::fs::remove_file(path);
    }
}
