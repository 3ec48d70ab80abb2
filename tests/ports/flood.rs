//! Floods of forged connection requests: an established connection goes on, another host connects, and all that the flood
//! took is given back.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rxe_dpdk::rxe_proto::cm::{GSI_UDP_SRC_PORT, MadPath, write_mad};
use rxe_dpdk::rxe_proto::wire::cm::{CmMessage, IpAddressing, PortSpace, Req, ServiceId};
use rxe_dpdk::rxe_proto::wire::mad::MAD_LEN;
use rxe_dpdk::rxe_proto::wire::{PathMtu, Psn};

use crate::Target;
use crate::initiator::{FLOODER, Initiator, Neighbour, OTHER, PEER, Tx};
use crate::operate::json;

/// Requests of each flood.
const REQUESTS: u32 = 100_000;

/// The port of the `region` service, which makes a queue pair for each.
const PORT: u16 = 4792;

/// The longest that the target may hold the resources of a flood: 10 s, and more on a busy machine.
const FREE_WITHIN: Duration = Duration::from_secs(30);

/// The longest that another host may take to connect during a flood: 1 s, and more on a busy machine.
const CONNECTED_WITHIN: Duration = Duration::from_secs(10);

/// Forged connection requests.
struct Flood {
    left: u32,
    /// `None`: each from another address.
    source: Option<[u8; 4]>,
    number: u32,
    /// Path of a MAD from the initiator.
    path: MadPath,
    gsi_psn: Psn,
}

impl Flood {
    fn next(&mut self) -> (std::net::Ipv4Addr, [u8; MAD_LEN]) {
        self.number = self.number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let number = self.number;
        // Addresses of hosts that are not ours.
        let random =
            [1 + (number >> 24) as u8 % 200, (number >> 16) as u8, (number >> 8) as u8, 1 + number as u8 % 254];
        let source = std::net::Ipv4Addr::from(self.source.unwrap_or(random));
        let target = std::net::Ipv4Addr::from(PEER);
        let mut req = Req {
            local_comm_id: number,
            service_id: ServiceId::new(PortSpace::Tcp, PORT),
            local_ca_guid: 0xBAD,
            local_qpn: number & 0xFF_FFFF,
            remote_response_timeout: 31,
            local_response_timeout: 31,
            starting_psn: Psn::new(number),
            pkey: 0xFFFF,
            path_mtu: PathMtu::Mtu1024.code(),
            max_cm_retries: 15,
            ..Req::default()
        };
        (req.primary.local_gid, req.primary.remote_gid) = (source.into(), target.into());
        let addressing = IpAddressing::new((source.into(), 40_000), target.into()).unwrap();
        assert!(req.set_private_data(&addressing, b"demo"));
        let mut mad = [0; MAD_LEN];
        CmMessage::Req(req).emit(u64::from(number), &mut mad);
        (source, mad)
    }
}

impl Neighbour for Flood {
    fn receive(&mut self, _: rxe_dpdk::rxe_proto::Instant, _: &[u8], _: &mut Tx) {}

    /// Sends some more, as far as the port takes them.
    fn poll(&mut self, _: rxe_dpdk::rxe_proto::Instant, tx: &mut Tx) {
        for _ in 0..self.left.min(32) {
            let (source, mad) = self.next();
            let path = MadPath { local: source.into(), ..self.path.clone() };
            if !write_mad(tx, &path, GSI_UDP_SRC_PORT, self.gsi_psn, &mad) {
                return;
            }
            self.gsi_psn = self.gsi_psn.next();
            self.left -= 1;
        }
    }
}

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
        let path = initiator.mad_path().clone();
        let flood = Flood { left: REQUESTS, source, number: 1, path, gsi_psn: Psn::default() };
        let flood = Rc::new(RefCell::new(flood));
        initiator.neighbour = Some(flood.clone());
        let began = Instant::now();
        let (mut exchanges, mut connected) = (0, None);
        loop {
            let left = flood.borrow().left;
            if left == 0 {
                break;
            }
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
        initiator.neighbour = None;
        let (connected, took) = (connected.expect("a connection during the flood"), began.elapsed());
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
