//! A test in a process of its own, since a process has one EAL: a target and an initiator, joined by net_memif.

use std::process::Command;

use rxe_dpdk::eal::{Eal, Port, PortConfig, PortQueues};

use crate::initiator::Initiator;
use crate::{MTU, Target, lacking};

/// Set in that process.
const ALONE: &str = "RXE_PORTS_ALONE";

/// Runs `body` for the test `name` in a process of its own, with a target on one lcore that has these further settings and
/// options.
///
/// Skips the test with a message where it cannot run; in CI that is a failure.
pub fn alone(name: &str, settings: &str, options: &[&str], body: impl FnOnce(&mut Initiator, Target)) {
    if let Some(why) = lacking() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
        eprintln!("SKIPPED: {why}");
        return;
    }
    if std::env::var_os(ALONE).is_none() {
        let itself = std::env::current_exe().unwrap();
        let status = Command::new(itself).args(["--exact", name, "--nocapture"]).env(ALONE, "1").status().unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    let id = std::process::id();
    let memif = std::env::temp_dir().join(format!("rxe-ports-{id}-alone.sock")).display().to_string();
    let memif_args = format!("id=0,bsize=8192,socket-abstract=no,socket={memif}");
    let vdev = format!("net_memif0,role=server,{memif_args}");
    let target = Target::start(&format!("{id}a"), &vdev, "0", settings, options);
    let eal = Eal::init(&[
        "-l".to_owned(),
        "1".to_owned(),
        "--in-memory".to_owned(),
        "--no-pci".to_owned(),
        "--no-telemetry".to_owned(),
        format!("--file-prefix={id}b"),
        format!("--vdev=net_memif0,role=client,mac=52:54:00:00:00:22,{memif_args}"),
    ])
    .unwrap();
    let info = eal.ports().into_iter().find(|info| info.name == "net_memif0").unwrap();
    let mut port = Port::configure(&eal, info.id, &PortConfig { mtu: MTU, ..PortConfig::default() }).unwrap();
    let PortQueues { mut rx, mut tx } = port.start().unwrap();
    let link = (rx.remove(0), tx.remove(0));
    let mut initiator = Initiator::new(&eal, &port, link, target.mac.parse().unwrap());
    body(&mut initiator, target);
    let _ = std::fs::remove_file(memif);
}
