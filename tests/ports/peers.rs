//! Restrictions of a port and of a service: allowed peers, full members of the partition, pinned MAC addresses.

use rxe_dpdk::rxe_proto::wire::cm::RejReason;
use rxe_dpdk::rxe_proto::wire::{MacAddr, PathMtu};

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

#[test]
fn packets_of_limited_members_and_from_other_stations_are_dropped() {
    let name = "peers::packets_of_limited_members_and_from_other_stations_are_dropped";
    let settings = "[[port]]\naddresses = [\"10.77.0.1/24\"]\nstrict-pkey = true\npin-mac = true\n";
    alone(name, settings, &[], |initiator, target| {
        let mut connection = initiator.connect(PORT, "demo", PathMtu::Mtu4096);
        connection.write(initiator, 0, b"original");
        let dropped = |reason: &str| json(&target, "stat --all")["drop"][reason].as_u64().unwrap();
        assert_eq!((dropped("pkey_limited"), dropped("qp_wrong_mac")), (0, 0));

        connection.forge(initiator, *b"limited ", |_, fields| fields.pkey = 0x7FFF);
        initiator.turn_until(|| dropped("pkey_limited") == 1);
        connection.forge(initiator, *b"foreign ", |path, _| path.src_mac = MacAddr([2, 0, 0, 0, 0, 0x66]));
        initiator.turn_until(|| dropped("qp_wrong_mac") == 1);
        assert_eq!(connection.read(initiator, 0, 8), b"original");

        // The same packet without the change is executed: the forgery is complete but for that.
        connection.forge(initiator, *b"accepted", |_, _| {});
        initiator.turn_until(|| std::fs::read(&target.region).unwrap().starts_with(b"accepted"));
        assert_eq!((dropped("pkey_limited"), dropped("qp_wrong_mac")), (1, 1));
        target.stop();
    });
}
