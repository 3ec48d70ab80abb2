//! Allowed peers of a port and of a service.

use rxe_dpdk::rxe_proto::wire::PathMtu;
use rxe_dpdk::rxe_proto::wire::cm::RejReason;

use crate::alone::alone;
use crate::initiator::{FLOODER, OTHER};
use crate::operate::json;

/// The port of the `region` service.
const PORT: u16 = 4792;

/// The initiator's first address is 10.77.0.2; `OTHER` is 10.77.0.3 and `FLOODER` 10.77.0.66.
#[test]
fn only_allowed_peers_are_served() {
    let settings = "[service.region]\npeers = [\"10.77.0.2\", \"fd00::/8\"]\n";
    let options = ["--peer", "10.77.0.0/29"];
    alone("peers::only_allowed_peers_are_served", settings, &options, |initiator, target| {
        let mut connection = initiator.connect(PORT, "demo", PathMtu::Mtu4096);
        connection.write(initiator, 0, b"served");

        initiator.move_to(OTHER);
        let rej = initiator.refused_connect(PORT, "demo").expect("an answer");
        assert_eq!(rej.reason, RejReason::ConsumerDefined);
        assert!(rej.private_data.starts_with(b"this service does not serve your address"));
        let refused = || json(&target, "stat --all")["control"]["peers_refused"].as_u64().unwrap();
        assert_eq!(refused(), 1);

        // The port drops what comes from other addresses: no answer.
        let dropped = || json(&target, "stat --all")["drop"]["peer_not_allowed"].as_u64().unwrap();
        assert_eq!(dropped(), 0);
        initiator.move_to(FLOODER);
        assert!(initiator.refused_connect(PORT, "demo").is_none());
        assert!(dropped() > 0);
        assert_eq!(refused(), 1);

        assert_eq!(connection.read(initiator, 0, 6), b"served", "the first connection goes on");
        connection.disconnect(initiator);
        target.stop();
    });
}
