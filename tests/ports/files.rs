//! Files behind regions that another process changes, and clients that vanish.

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rxe_dpdk::rxe_proto::transport::WcStatus;
use rxe_dpdk::rxe_proto::wire::PathMtu;

use crate::Target;
use crate::initiator::Initiator;
use crate::operate::{contains, ctl, json};

/// A file of four bytes with write permission for all, to become the region `fragile`; removed when dropped.
pub struct Fragile(PathBuf);

impl Fragile {
    pub fn new() -> Fragile {
        let path = PathBuf::from(format!("/dev/shm/rxe-ports-{}-fragile", std::process::id()));
        std::fs::write(&path, b"four").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        Fragile(path)
    }

    /// The value of `--region`.
    pub fn option(&self) -> String {
        format!("fragile=64K,file={}", self.0.display())
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The region's file is cut short while the target serves it: the region is lost, the target and its other region are not.
pub fn cut_short(initiator: &mut Initiator, target: &Target, fragile: &Fragile) {
    let path = fragile.0.display().to_string();
    contains(&target.log_line("had 4 bytes and has been made longer"), &["INFO", "fragile", &path]);
    contains(&target.log_line("may be changed by its group, everybody"), &["WARN", "fragile", &path]);
    let mut connection = initiator.connect(4792, "fragile", PathMtu::Mtu4096);
    assert_eq!(connection.read(initiator, 0, 4), b"four");
    connection.write(initiator, 60_000, b"here");

    OpenOptions::new().write(true).open(&fragile.0).unwrap().set_len(4096).unwrap();
    assert_eq!(connection.read(initiator, 0, 4), b"four", "what is left is served until somebody goes beyond it");
    assert_eq!(connection.refused_write(initiator, 60_000, b"gone"), WcStatus::RemAccessErr);
    connection.await_disconnect(initiator);
    contains(&target.log_line("was cut short"), &["WARN", "fragile", &path, "the region is lost"]);
    let lost: Vec<bool> =
        json(target, "mr").as_array().unwrap().iter().map(|mr| mr["lost"].as_bool().unwrap()).collect();
    assert_eq!(lost.iter().filter(|lost| **lost).count(), 1, "{lost:?}");
    contains(&ctl(target, "mr"), &["fragile", " lost\n"]);

    for refused in [Connection::read_first, Connection::write_first] {
        assert_eq!(refused(initiator), WcStatus::RemAccessErr, "later requests, wherever they go");
    }
    let mut other = initiator.connect(4792, "demo", PathMtu::Mtu4096);
    other.write(initiator, 0, b"as before");
    assert_eq!(other.read(initiator, 0, 9), b"as before");
    other.disconnect(initiator);
}

/// One request to the lost region on a connection of its own.
struct Connection;

impl Connection {
    fn read_first(initiator: &mut Initiator) -> WcStatus {
        let mut connection = initiator.connect(4792, "fragile", PathMtu::Mtu4096);
        let status = connection.refused_read(initiator, 0, 4);
        connection.await_disconnect(initiator);
        status
    }

    fn write_first(initiator: &mut Initiator) -> WcStatus {
        let mut connection = initiator.connect(4792, "fragile", PathMtu::Mtu4096);
        let status = connection.refused_write(initiator, 0, b"four");
        connection.await_disconnect(initiator);
        status
    }
}

/// A client that stops answering is disconnected, and its queue pair is destroyed.
pub fn fall_silent(initiator: &mut Initiator, target: &Target) {
    let connection = initiator.connect(4792, "demo", PathMtu::Mtu4096);
    // While it is there it may be silent: the target asks, and it answers.
    let probes = || json(target, "stat")["transport"]["keep_alive_probes"].as_u64().unwrap();
    initiator.turn_until(|| probes() > 0);
    assert_eq!(json(target, "qp").as_array().unwrap().len(), 1);
    // From here on the initiator receives nothing.
    let began = Instant::now();
    while json(target, "qp").as_array().unwrap().iter().any(|qp| qp["rqpn"] == connection.qpn()) {
        assert!(began.elapsed() < Duration::from_secs(60), "the queue pair stays");
        std::thread::sleep(Duration::from_millis(100));
    }
    contains(&target.log_line("peer_silent"), &["WARN", "region", "answered none of the probes"]);
    connection.await_disconnect(initiator);
}

#[test]
fn one_file_under_two_names_is_refused_at_start() {
    if let Some(why) = crate::lacking() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
        eprintln!("SKIPPED: {why}");
        return;
    }
    let id = std::process::id();
    let [first, second] = ["first", "second"].map(|name| PathBuf::from(format!("/dev/shm/rxe-ports-{id}-{name}")));
    drop(File::create(&first).unwrap());
    std::fs::hard_link(&first, &second).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_rxe-target"))
        .args(["-l", "0", "--in-memory", "--no-pci", "--file-prefix", &format!("{id}two"), "--vdev=net_null0", "--"])
        .args(["--address", "10.77.0.1/24"])
        .args(["--region", &format!("a=1M,file={}", first.display())])
        .args(["--region", &format!("b=1M,file={}", second.display())])
        .output()
        .unwrap();
    for path in [first, second] {
        std::fs::remove_file(path).unwrap();
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("region b: ") && said.contains("is the file of the region a under another name"), "{said}");
}
