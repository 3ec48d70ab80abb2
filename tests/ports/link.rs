//! Ports whose link goes down and up: the kernel interface below net_af_packet, and the peer of a vhost-user socket.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rxe_testkit::child::ip;
use rxe_testkit::process::{Program, Streams};
use rxe_testkit::recovery::{INTERFACE_DELETED, recovered};

use crate::output::with_pair;
use crate::veth::{PATIENCE, VethTarget, configure_pair, eventually, is_reached, rxe_ctl_says};

/// The value of `rxe_port_up` in a scrape of the Unix socket `metrics`.
fn port_up(metrics: &Path) -> Option<u8> {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(metrics).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let line = text.lines().find(|line| line.starts_with("rxe_port_up{"))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Waits until a line of the log has these words, after the `seen` first ones, and returns it.
#[track_caller]
fn logs(target: &VethTarget, seen: &Cell<usize>, words: &str) -> String {
    let mut found = None;
    eventually(words, || {
        let log = target.program.stderr();
        let index = (seen.get()..log.len()).find(|index| log[*index].contains(words));
        found = index.map(|index| (index, log[index].clone()));
        found.is_some()
    });
    let (index, line) = found.unwrap();
    seen.set(index + 1);
    line
}

struct Watched {
    target: VethTarget,
    /// Lines of the log that were compared already.
    seen: Cell<usize>,
    /// Unix socket of the metrics.
    metrics: PathBuf,
}

impl Watched {
    /// A running target that is reached.
    fn start(name: &str) -> Watched {
        ip("link set lo up");
        let metrics = std::env::temp_dir().join(format!("rxe-ports-{}-{name}-metrics.sock", std::process::id()));
        let target =
            VethTarget::start(name, Streams::default(), &["--metrics", &format!("unix:{}", metrics.display())]);
        target.prints("ready ");
        eventually("a connection", is_reached);
        let watched = Watched { target, seen: Cell::new(0), metrics };
        watched.is_active();
        watched
    }

    /// Waits until a line of the log has these words, after those that were found before.
    #[track_caller]
    fn logs(&self, words: &str) {
        logs(&self.target, &self.seen, words);
    }

    /// The management socket, rxe-ctl, the metrics and the log have the state and its reason.
    #[track_caller]
    fn is_down(&self, why: &str) {
        eventually(why, || self.target.port().reason.as_deref() == Some(why));
        assert!(!self.target.port().up);
        let (code, stdout, stderr) = rxe_ctl_says(&self.target.prefix, &["link", "--check"]);
        assert_eq!((code, &*stdout, &*stderr), (1, "", &*format!("rxe-ctl: port 0 is DOWN: {why}\n")));
        let (code, stdout, _) = rxe_ctl_says(&self.target.prefix, &["link"]);
        let line = format!("state DOWN physical_state DISABLED netdev net_af_packet0 ({why})");
        assert!(code == 0 && stdout.contains(&line), "{stdout}");
        assert_eq!(port_up(&self.metrics), Some(0));
        self.logs(&format!("port 0 (net_af_packet0) is DOWN: {why}"));
    }

    #[track_caller]
    fn is_active(&self) {
        eventually("ACTIVE", || self.target.port().up);
        let (code, stdout, _) = rxe_ctl_says(&self.target.prefix, &["link", "--check"]);
        assert!(code == 0 && stdout.contains("state ACTIVE physical_state LINK_UP"), "{stdout}");
        assert_eq!(port_up(&self.metrics), Some(1));
    }

    /// The link is up again, which is logged, and traffic continues.
    #[track_caller]
    fn goes_on(&self) {
        self.is_active();
        self.logs("port 0 (net_af_packet0) is ACTIVE");
        eventually("traffic", is_reached);
    }
}

#[test]
fn a_port_follows_the_state_of_its_interface() {
    with_pair(|| {
        let mut watched = Watched::start("l");
        ip("link set rxa down");
        watched.is_down("interface rxa is down");
        ip("link set rxa up");
        watched.goes_on();
        ip("link set rxb down");
        watched.is_down("interface rxa has no carrier");
        ip("link set rxb up");
        watched.goes_on();
        assert_eq!(watched.target.terminate().code(), Some(0));
        assert!(!watched.metrics.exists(), "a socket that nobody serves");
    });
}

#[test]
fn a_port_goes_on_when_its_deleted_interface_is_back() {
    with_pair(|| {
        let mut watched = Watched::start("d");
        let mac = watched.target.port().mac;
        let mut took = None;
        for _ in 0..3 {
            let received = |watched: &Watched| watched.target.counter("port", "rx_frames");
            let before = received(&watched);
            ip("link del rxa");
            watched.is_down("interface rxa is gone");
            assert!(received(&watched) >= before, "counters do not go back");
            // The port is too large for it.
            ip("link add rxa mtu 1500 type veth peer name rxb mtu 4200");
            watched.is_down(
                "interface rxa is back with MTU 1500, too small for the port's 4200: ip link set dev rxa mtu 4200",
            );
            ip("link set rxa mtu 4200");
            configure_pair();
            let began = Instant::now();
            eventually("ACTIVE", || watched.target.port().up);
            eventually("traffic", is_reached);
            // Later on the target learns the new MAC address of the other end less soon: it has changed just before.
            took = took.or(Some(began.elapsed()));
            watched.goes_on();
            assert!(received(&watched) > before);
            assert_eq!(watched.target.port().mac, mac);
        }
        recovered(&INTERFACE_DELETED, took.unwrap());
        assert_eq!(watched.target.terminate().code(), Some(0), "{}", watched.target.program.tail());
    });
}

#[test]
fn a_target_without_its_interface_ends_when_told_to() {
    with_pair(|| {
        let mut watched = Watched::start("g");
        ip("link del rxa");
        watched.is_down("interface rxa is gone");
        assert_eq!(watched.target.terminate().code(), Some(0), "{}", watched.target.program.tail());
    });
}

#[test]
fn a_vhost_port_is_up_while_a_peer_is_connected() {
    with_pair(|| {
        let id = std::process::id();
        let socket = std::env::temp_dir().join(format!("rxe-ports-{id}-link.sock"));
        let vdev = format!("net_vhost0,iface={},queues=1", socket.display());
        let mut target = VethTarget::start_on("h", &vdev, Streams::default(), &[]);
        let seen = Cell::new(0);
        target.prints("ready ");
        for _ in 0..2 {
            let why = "there is no peer";
            eventually(why, || target.port().reason.as_deref() == Some(why));
            assert_eq!(rxe_ctl_says(&target.prefix, &["link", "--check"]).0, 1);
            // A peer that waits for frames until it is killed.
            let mut peer = Command::new(env!("CARGO_BIN_EXE_rxe-bench"));
            peer.args(["-l", "1", "--in-memory", "--no-pci", "--no-telemetry", &format!("--file-prefix={id}p")])
                .arg(format!("--vdev=net_virtio_user0,path={},queue_size=1024", socket.display()))
                .args(["--", "reflect"]);
            let peer = Program::start(&mut peer).unwrap();
            peer.wait_for_line("", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
            eventually("ACTIVE", || target.port().up);
            assert_eq!(rxe_ctl_says(&target.prefix, &["link", "--check"]).0, 0);
            logs(&target, &seen, "port 0 (net_vhost0) is ACTIVE");
            drop(peer);
            let line = logs(&target, &seen, "port 0 (net_vhost0) is DOWN: there is no peer");
            assert!(line.contains("WARN"), "{line}");
        }
        assert_eq!(target.terminate().code(), Some(0));
        let _ = std::fs::remove_file(socket);
    });
}
