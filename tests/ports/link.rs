//! Ports whose link goes and comes: the kernel interface below net_af_packet, and the peer of a vhost-user socket.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use rxe_testkit::child::ip;

use crate::output::{collect, has, with_pair};
use crate::veth::{VethTarget, configure_pair, eventually, is_reached, rxe_ctl_says};

/// The value of `rxe_port_up` in a scrape.
fn port_up(metrics: &str) -> Option<u8> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(metrics).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let line = text.lines().find(|line| line.starts_with("rxe_port_up{"))?;
    line.rsplit(' ').next()?.parse().ok()
}

struct Watched {
    target: VethTarget,
    log: Arc<Mutex<Vec<String>>>,
    metrics: String,
}

impl Watched {
    /// A running target that is reached.
    fn start(name: &str) -> Watched {
        ip("link set lo up");
        let metrics = "127.0.0.1:9477".to_owned();
        let options = ["--metrics", &metrics];
        let mut target = VethTarget::start(name, (Stdio::piped(), Stdio::piped()), &options);
        let stdout = collect(target.child.stdout.take().unwrap());
        let log = collect(target.child.stderr.take().unwrap());
        eventually("the ready line", || has(&stdout, "ready "));
        eventually("a connection", is_reached);
        let watched = Watched { target, log, metrics };
        watched.is_active();
        watched
    }

    /// Everybody says so, and why.
    #[track_caller]
    fn is_down(&self, why: &str) {
        eventually(why, || self.target.port().reason.as_deref() == Some(why));
        assert!(!self.target.port().up);
        let (code, stdout, stderr) = rxe_ctl_says(&self.target.prefix, &["link", "--check"]);
        assert_eq!((code, &*stdout, &*stderr), (1, "", &*format!("rxe-ctl: port 1 is DOWN: {why}\n")));
        let (code, stdout, _) = rxe_ctl_says(&self.target.prefix, &["link"]);
        let line = format!("state DOWN physical_state DISABLED netdev net_af_packet0 ({why})");
        assert!(code == 0 && stdout.contains(&line), "{stdout}");
        assert_eq!(port_up(&self.metrics), Some(0));
        let logged = format!("port 0 (net_af_packet0) is DOWN: {why}");
        eventually("the log's line", || has(&self.log, &logged));
        self.log.lock().unwrap().retain(|line| !line.contains(&logged));
    }

    #[track_caller]
    fn is_active(&self) {
        eventually("ACTIVE", || self.target.port().up);
        let (code, stdout, _) = rxe_ctl_says(&self.target.prefix, &["link", "--check"]);
        assert!(code == 0 && stdout.contains("state ACTIVE physical_state LINK_UP"), "{stdout}");
        assert_eq!(port_up(&self.metrics), Some(1));
    }

    /// The link is back, as the log says, and so is the traffic.
    #[track_caller]
    fn goes_on(&self) {
        self.is_active();
        eventually("the log's line", || has(&self.log, "port 0 (net_af_packet0) is ACTIVE"));
        self.log.lock().unwrap().retain(|line| !line.contains("is ACTIVE"));
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
    });
}

#[test]
fn a_port_goes_on_when_its_deleted_interface_is_back() {
    with_pair(|| {
        let mut watched = Watched::start("d");
        let mac = watched.target.port().mac;
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
            watched.goes_on();
            assert!(received(&watched) > before);
            assert_eq!(watched.target.port().mac, mac);
        }
        assert_eq!(watched.target.terminate().code(), Some(0), "{:?}", watched.log);
    });
}

#[test]
fn a_target_without_its_interface_ends_when_told_to() {
    with_pair(|| {
        let mut watched = Watched::start("g");
        ip("link del rxa");
        watched.is_down("interface rxa is gone");
        assert_eq!(watched.target.terminate().code(), Some(0), "{:?}", watched.log);
    });
}

#[test]
fn a_vhost_port_is_up_while_a_peer_is_connected() {
    with_pair(|| {
        let id = std::process::id();
        let socket = std::env::temp_dir().join(format!("rxe-ports-{id}-link.sock"));
        let vdev = format!("net_vhost0,iface={},queues=1", socket.display());
        let mut target = VethTarget::start_on("h", &vdev, (Stdio::piped(), Stdio::piped()), &[]);
        let stdout = collect(target.child.stdout.take().unwrap());
        let log = collect(target.child.stderr.take().unwrap());
        eventually("the ready line", || has(&stdout, "ready "));
        for _ in 0..2 {
            let why = "there is no peer";
            eventually(why, || target.port().reason.as_deref() == Some(why));
            assert_eq!(rxe_ctl_says(&target.prefix, &["link", "--check"]).0, 1);
            // A peer that waits for frames until it is told to end.
            let mut peer = Command::new(env!("CARGO_BIN_EXE_rxe-bench"))
                .args(["-l", "1", "--in-memory", "--no-pci", "--no-telemetry", &format!("--file-prefix={id}p")])
                .arg(format!("--vdev=net_virtio_user0,path={},queue_size=1024", socket.display()))
                .args(["--", "reflect"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let ready = BufReader::new(peer.stdout.take().unwrap()).lines().next();
            assert!(ready.is_some_and(|line| line.is_ok()), "the peer is ready");
            eventually("ACTIVE", || target.port().up);
            assert_eq!(rxe_ctl_says(&target.prefix, &["link", "--check"]).0, 0);
            eventually("the log's line", || has(&log, "port 0 (net_vhost0) is ACTIVE"));
            peer.kill().unwrap();
            peer.wait().unwrap();
            eventually("the log's line", || {
                has(&log, "WARN") && has(&log, "port 0 (net_vhost0) is DOWN: there is no peer")
            });
            log.lock().unwrap().clear();
        }
        assert_eq!(target.terminate().code(), Some(0));
        let _ = std::fs::remove_file(socket);
    });
}
