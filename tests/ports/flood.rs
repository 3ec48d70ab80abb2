//! Floods of forged connection requests: an established connection goes on, another host connects, and all that the flood
//! took is given back.

use std::time::{Duration, Instant};

use rxe_dpdk::rxe_proto::wire::PathMtu;

use crate::Target;
use crate::initiator::{FLOODER, Flood, Initiator, OTHER};
use crate::operate::json;

/// Requests of each flood.
const REQUESTS: u32 = 100_000;

/// The port of the `region` service, which makes a queue pair for each.
const PORT: u16 = 4792;

/// The longest that the target may hold the resources of a flood: 10 s, and more on a busy machine.
const FREE_WITHIN: Duration = Duration::from_secs(30);

/// The longest that another host may take to connect during a flood: 1 s, and more on a busy machine.
const CONNECTED_WITHIN: Duration = Duration::from_secs(10);

/// Queue pairs and connections.
fn held(target: &Target) -> (u64, usize) {
    let qps = json(target, "resource")[0]["qp"].as_u64().unwrap();
    (qps, json(target, "connections").as_array().unwrap().len())
}

pub fn floods(initiator: &mut Initiator, target: &Target) {
    let mut connection = initiator.connect(PORT, "demo", PathMtu::Mtu4096);
    connection.write(initiator, 0, &[1; 4096]);
    let before = held(target);
    assert_eq!(before, (1, 1));
    for source in [Some(FLOODER), None] {
        let from = if source.is_some() { "one address" } else { "random addresses" };
        let counter = |name: &str| json(target, "stat --all")["cm"][name].as_u64().unwrap();
        let received = counter("rx_req");
        initiator.flood = Some(Flood { left: REQUESTS, source, port: PORT, number: 1 });
        let began = Instant::now();
        let (mut exchanges, mut connected) = (0, None);
        while let Some(left) = initiator.flood.as_ref().map(|flood| flood.left).filter(|&left| left > 0) {
            connection.write(initiator, 0, &[exchanges as u8; 4096]);
            exchanges += 1;
            if left < REQUESTS / 2 && connected.is_none() {
                initiator.move_to(OTHER);
                let asked = Instant::now();
                let other = initiator.connect(PORT, "demo", PathMtu::Mtu4096);
                connected = Some(asked.elapsed());
                other.disconnect(initiator);
            }
        }
        initiator.flood = None;
        let (connected, took) = (connected.expect("a connection amid the flood"), began.elapsed());
        let ended = Instant::now();
        let most = held(target);
        initiator.run_until(|| held(target) == before || ended.elapsed() > FREE_WITHIN);
        println!(
            "{REQUESTS} requests from {from} in {took:?}: {exchanges} WRITEs, another host connected in {connected:?}, \
             {most:?} queue pairs and connections at the end, {:?} until all were free; {} requests taken in, {} beyond the \
             address' share, {} evicted",
            ended.elapsed(),
            counter("rx_req") - received,
            counter("req_peer_limit"),
            counter("pending_evicted"),
        );
        assert_eq!(held(target), before, "after {:?}", ended.elapsed());
        assert!(connected < CONNECTED_WITHIN, "{connected:?}");
        assert!(counter("rx_req") - received > 1000, "the flood has come");
        connection.write(initiator, 0, &[0xEE; 4096]);
        assert_eq!(connection.read(initiator, 0, 4096), [0xEE; 4096]);
    }
    connection.disconnect(initiator);
}
