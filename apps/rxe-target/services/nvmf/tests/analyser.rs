//! What tshark makes of the traffic.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use rxe_inspect::pcapng::{BlockWriter, Interface, Packet};
use rxe_testkit::temp::TempDir;

use super::host::IoKind;
use super::{Env, Order, TARGET, io, shm};

/// The commands of NVMe that tshark finds in frames, in words.
fn commands(folder: &Path, frames: &[Vec<u8>]) -> Vec<String> {
    let path = folder.join("capture.pcapng");
    let mut writer = BlockWriter::new(File::create(&path).expect("a file"));
    let port = Interface { name: "rdma".to_owned(), description: "port 1".to_owned(), mac: [0; 6] };
    writer.section("test", "").and_then(|_| writer.interface(&port, 0x4_0000)).expect("room");
    for (time, bytes) in (1..).zip(frames) {
        let packet = Packet { interface: 0, time, sent: true, bytes, len: bytes.len() as u32, comment: "" };
        writer.packet(&packet).expect("room");
    }
    drop(writer);
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-r"]).arg(&path).args(["-Y", "nvme.cmd.opc", "-T", "fields", "-e", "nvme.cmd.opc"]);
    let done = tshark.output().expect("tshark: make deps installs it");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn commands_of_queues_that_were_connected_before_a_capture_are_decoded() {
    let folder = TempDir::new(shm());
    let mut env = Env::new(21);
    let host = env.host(2);
    let session = env.session(&host, 1);
    let known = env.network.handshakes(TARGET);
    assert_eq!(known.len(), 2, "the admin queue and the I/O queue");
    env.network.sent = Some(Vec::new());
    for kind in [IoKind::Write, IoKind::Read, IoKind::Flush] {
        env.order(&host, io(session, kind, 1));
    }
    env.order(&host, Order::KeepAlive { session });
    env.network.settle();
    let sent = env.network.sent.take().expect("frames");
    assert_eq!(commands(folder.path(), &sent), Vec::<String>::new(), "tshark does not know the queues");
    let head = known.iter().flat_map(|known| known.frames()).map(|(_, frame)| frame);
    let mut found = commands(folder.path(), &head.chain(sent).collect::<Vec<_>>());
    found.sort();
    assert_eq!(found, ["0x00", "0x01", "0x02", "0x18"]);
    env.order(&host, Order::ShutDown { session });
    env.network.settle();
    env.expect_nothing_left();
}
