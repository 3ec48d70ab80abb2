//! Restricted regions: read-only ones, protection domains, allowed peers.

use rxe_dpdk::rxe_proto::transport::WcStatus;
use rxe_dpdk::rxe_proto::wire::PathMtu;
use rxe_dpdk::rxe_proto::wire::cm::RejReason;

use crate::alone::alone;
use crate::initiator::{Initiator, OTHER};
use crate::operate::json;

/// The port of the `region` service.
const PORT: u16 = 4792;

const SETTINGS: &str = "\
[[region]]
name = \"demo\"
size = \"1M\"
peers = [\"10.77.0.2\"]
[[region]]
name = \"public\"
size = \"64K\"
read-only = true
[[region]]
name = \"left\"
size = \"64K\"
domain = \"pair\"
[[region]]
name = \"right\"
size = \"64K\"
domain = \"pair\"
";

#[test]
fn restricted_regions_give_clients_no_more_than_is_granted() {
    let name = "regions::restricted_regions_give_clients_no_more_than_is_granted";
    alone(name, SETTINGS, &[], |initiator, target| {
        let connect = |initiator: &mut Initiator, region: &str| initiator.connect(PORT, region, PathMtu::Mtu4096);

        // A read-only region is READ; WRITEs and atomics are remote access errors and change nothing.
        let mut reader = connect(initiator, "public");
        assert_eq!(reader.read(initiator, 0, 8), [0; 8]);
        assert_eq!(reader.refused_write(initiator, 0, b"changed"), WcStatus::RemAccessErr);
        reader.await_disconnect(initiator);
        let adder = connect(initiator, "public");
        assert_eq!(adder.refused_fetch_add(initiator, 0, 1), WcStatus::RemAccessErr);
        adder.await_disconnect(initiator);
        let mut reader = connect(initiator, "public");
        assert_eq!(reader.read(initiator, 0, 8), [0; 8]);
        reader.disconnect(initiator);

        // A key is valid in its own protection domain only.
        let (mut demo, left, mut right) =
            (connect(initiator, "demo"), connect(initiator, "left"), connect(initiator, "right"));
        demo.write(initiator, 0, b"private");
        right.write(initiator, 0, b"shared");
        assert_eq!(left.read_at(initiator, &right, 6), Ok(b"shared".to_vec()));
        assert_eq!(left.read_at(initiator, &demo, 7), Err(WcStatus::RemAccessErr));
        left.await_disconnect(initiator);
        right.disconnect(initiator);

        // A region for 10.77.0.2 alone.
        initiator.move_to(OTHER);
        let rej = initiator.refused_connect(PORT, "demo").expect("an answer");
        assert_eq!(rej.reason, RejReason::ConsumerDefined);
        assert!(rej.private_data.starts_with(b"the region 'demo' does not serve your address"));
        let rej = initiator.refused_connect(PORT, "other").expect("an answer");
        assert!(rej.private_data.starts_with(b"unknown region 'other'; known: public, left, right\0"));
        let mut first = connect(initiator, "public");
        assert_eq!(first.read(initiator, 0, 8), [0; 8]);
        first.disconnect(initiator);

        assert_eq!(demo.read(initiator, 0, 7), b"private");
        demo.disconnect(initiator);
        let access = |region: &str| {
            let regions = json(&target, "mr");
            let region = regions.as_array().unwrap().iter().find(|mr| mr["name"] == region).unwrap().clone();
            region["access"].clone()
        };
        assert_eq!(access("public"), serde_json::json!(["remote_read"]));
        assert!(access("demo").as_array().unwrap().contains(&"remote_write".into()));
        target.stop();
    });
}
