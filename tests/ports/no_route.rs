//! A client on a network to which the target has no route: its requests arrive, and the answers do not.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rxe_testkit::child::ip;
use rxe_testkit::process::Streams;

use crate::output::with_pair;
use crate::veth::{VethTarget, eventually};

/// Whether a client with an address of another network reaches the target.
fn is_reached() -> bool {
    let target = SocketAddr::from((Ipv4Addr::new(10, 77, 0, 1), 18515));
    TcpStream::connect_timeout(&target, Duration::from_millis(500)).is_ok()
}

#[test]
fn a_client_without_a_route_to_it_is_named_with_what_to_do() {
    with_pair(|| {
        ip("link set lo up");
        ip("addr add 10.88.0.9/32 dev lo");
        ip("route add 10.77.0.1/32 dev rxb src 10.88.0.9");
        let mut target = VethTarget::start("nr", Streams::default(), &[]);
        target.prints("ready ");
        let lines = |target: &VethTarget| {
            let words = "a connection request comes from an address that is in no network of the port, and there is no route to it: name \
                         its router with --gateway, or with --route (gateways or routes of [[port]])";
            let named =
                |line: &String| line.contains("WARN") && line.contains(words) && line.contains("peer=10.88.0.9 ");
            target.program.stderr().iter().filter(|line| named(line)).count()
        };
        eventually("the warning", || {
            assert!(!is_reached());
            lines(&target) > 0
        });
        let before = target.counter("host", "no_route");
        assert!(before > 0);
        eventually("another request", || {
            assert!(!is_reached());
            target.counter("host", "no_route") > before
        });
        assert_eq!(lines(&target), 1, "once for each address");
        assert_eq!(target.terminate().code(), Some(0));

        // What the line says helps.
        let mut target = VethTarget::start("nr", Streams::default(), &["--gateway", "10.77.0.2"]);
        target.prints("ready ");
        eventually("a connection", is_reached);
        assert_eq!((target.counter("host", "no_route"), lines(&target)), (0, 0));
        assert_eq!(target.terminate().code(), Some(0));
    });
}
