//! Limits of the configuration, reached by clients of the real binary, and free again afterwards.

use rxe_dpdk::rxe_proto::wire::PathMtu;
use rxe_dpdk::rxe_proto::wire::cm::RejReason;

use crate::alone::alone;
use crate::initiator::{Connection, Initiator, OTHER};
use crate::operate::json;

/// The port of the `region` service.
const PORT: u16 = 4792;

fn connect(initiator: &mut Initiator) -> Connection {
    initiator.connect(PORT, "demo", PathMtu::Mtu4096)
}

fn refused(initiator: &mut Initiator) -> RejReason {
    initiator.refused_connect(PORT, "demo").expect("an answer").reason
}

#[test]
fn queue_pairs_of_an_lcore_are_limited() {
    let settings = "[limits]\nqueue-pairs = 3\n";
    alone("limits::queue_pairs_of_an_lcore_are_limited", settings, &[], |initiator, target| {
        let mut connections: Vec<Connection> = (0..3).map(|_| connect(initiator)).collect();
        assert_eq!(refused(initiator), RejReason::NoQp);
        assert_eq!(json(&target, "resource")[0]["qp"], 3);
        connections.pop().unwrap().disconnect(initiator);
        initiator.turn_until(|| json(&target, "resource")[0]["qp"] == 2);
        connections.push(connect(initiator));
        for connection in connections {
            connection.disconnect(initiator);
        }
        target.stop();
    });
}

#[test]
fn connections_are_limited_in_all_and_per_address() {
    let settings = "[limits]\nconnections = 4\nconnections-per-address = 3\n";
    alone("limits::connections_are_limited_in_all_and_per_address", settings, &[], |initiator, target| {
        let count = |name: &str| json(&target, "stat --all")["cm"][name].as_u64().unwrap();
        let mut connections: Vec<Connection> = (0..3).map(|_| connect(initiator)).collect();
        assert_eq!(refused(initiator), RejReason::NoResources);
        assert_eq!((count("req_address_limit"), count("req_connection_limit")), (1, 0));
        initiator.move_to(OTHER);
        connections.push(connect(initiator));
        assert_eq!(refused(initiator), RejReason::NoQp);
        assert_eq!((count("req_address_limit"), count("req_connection_limit")), (1, 1));
        for connection in connections {
            connection.disconnect(initiator);
        }
        connect(initiator).disconnect(initiator);
        target.stop();
    });
}
