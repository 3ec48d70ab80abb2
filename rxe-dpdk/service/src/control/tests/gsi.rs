use rxe_proto::Duration;
use rxe_proto::cm::{AcceptParams, ConnectParams, GSI_UDP_SRC_PORT, MadPath, ResolveParams, write_mad};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::{DropReason, Frame, PathMtu, PortId, Psn, classify};

use crate::control::TrafficClassConfig;
use crate::control::ip_host::Resolution;
use crate::control::rate::RequestRate;
use crate::messages::{ToControl, ToWorker};
use crate::service::Listen;
use crate::test_env::{OneFrame, TestEnv, peer_path};

/// The frame of a REQ on `path`.
fn req(env: &mut TestEnv, path: MadPath) -> Vec<u8> {
    let params = ConnectParams::new(path, (1, 7174), Qpn::new(0x11), Psn::new(5), PathMtu::Mtu1024);
    env.peer.connect(env.now, params).unwrap();
    let mad = env.peer.poll_transmit().unwrap();
    let mut frame = OneFrame(Vec::new());
    assert!(write_mad(&mut frame, &mad.path, GSI_UDP_SRC_PORT, Psn::new(0), &mad.mad));
    frame.0
}

/// The reason why a frame is dropped, if it is.
fn dropped(env: &mut TestEnv, frame: &[u8]) -> Option<DropReason> {
    let Ok(Frame::Roce(packet)) = classify(frame) else { panic!("not a RoCE frame") };
    let before: Vec<u64> = env.control.drops().iter().map(|(_, count)| count).collect();
    env.control.handle_gsi(env.now, PortId(0), &packet);
    let mut changed = env.control.drops().iter().zip(before).filter(|((_, now), before)| now != before);
    changed.next().map(|((reason, _), _)| reason)
}

#[test]
fn only_packets_of_hosts_to_our_own_address_with_a_good_icrc_are_processed() {
    let mut env = TestEnv::new(1, vec![(0, Listen::cm(7174))]);
    let good = req(&mut env, peer_path());
    let ip = |last: u8| std::net::IpAddr::from([10, 0, 0, last]).into();
    let foreign = req(&mut env, MadPath { peer: ip(9), ..peer_path() });
    assert_eq!(dropped(&mut env, &foreign), Some(DropReason::ForeignAddress));
    let broadcast = req(&mut env, MadPath { local: ip(255), ..peer_path() });
    assert_eq!(dropped(&mut env, &broadcast), Some(DropReason::GsiSource));
    let mut broken = good.clone();
    *broken.last_mut().unwrap() ^= 1;
    assert_eq!(dropped(&mut env, &broken), Some(DropReason::IcrcMismatch));
    env.control.poll(env.now, &mut ());
    assert!(env.mail(0).is_empty());
    assert_eq!(dropped(&mut env, &good), None);
    env.control.poll(env.now, &mut ());
    assert_eq!(env.mail(0).len(), 1);
}

/// The frame of a REQ from 10.0.0.`host`, with numbers of its own.
fn req_from(env: &mut TestEnv, host: u8, number: u32) -> Vec<u8> {
    let path = MadPath { local: std::net::IpAddr::from([10, 0, 0, host]).into(), ..peer_path() };
    let params = ConnectParams::new(path, (1, 7174), Qpn::new(0x100 + number), Psn::new(5), PathMtu::Mtu1024);
    env.peer.connect(env.now, params).unwrap();
    let mad = env.peer.poll_transmit().unwrap();
    let mut frame = OneFrame(Vec::new());
    assert!(write_mad(&mut frame, &mad.path, GSI_UDP_SRC_PORT, Psn::new(0), &mad.mad));
    frame.0
}

#[test]
fn requests_beyond_the_rate_of_their_address_are_dropped() {
    let mut env = TestEnv::new(1, vec![(0, Listen::cm(7174))]);
    env.control.requests = RequestRate::new(3);
    let mut drops = |host, number| {
        let frame = req_from(&mut env, host, number);
        dropped(&mut env, &frame)
    };
    let first: Vec<_> = (0..5).map(|number| drops(2, number)).collect();
    assert_eq!(first, [None, None, None, Some(DropReason::GsiRate), Some(DropReason::GsiRate)]);
    assert_eq!(drops(3, 9), None, "another address has its own rate");
    env.now += Duration::from_secs(1);
    let frame = req_from(&mut env, 2, 10);
    assert_eq!(dropped(&mut env, &frame), None);
}

/// While their MACs are not found, requests of one address take a quarter of the places.
#[test]
fn requests_that_wait_for_a_mac_are_limited_per_address() {
    let mut env = TestEnv::new(1, vec![(0, Listen::cm(7174))]);
    for host in [2, 3] {
        env.host().resolutions.insert([10, 0, 0, host].into(), Resolution::Pending);
    }
    for number in 0..80 {
        let frame = req_from(&mut env, 2, number);
        assert_eq!(dropped(&mut env, &frame), None);
        env.control.poll(env.now, &mut ());
    }
    assert_eq!(env.control.stats().connect_waiting_full.get(), 80 - 64);
    let frame = req_from(&mut env, 3, 99);
    dropped(&mut env, &frame);
    env.control.poll(env.now, &mut ());
    assert_eq!(env.control.stats().connect_waiting_full.get(), 80 - 64, "another address may wait");
}

/// When all places are taken by requests whose senders do not answer, a later one waits, and is served as soon as its MAC is found.
#[test]
fn a_request_whose_sender_does_not_answer_gives_way_to_a_later_one() {
    let mut env = TestEnv::new(1, vec![(0, Listen::cm(7174))]);
    for host in 2..7 {
        env.host().resolutions.insert([10, 0, 0, host].into(), Resolution::Pending);
    }
    for number in 0..256 {
        let frame = req_from(&mut env, 2 + (number / 64) as u8, number);
        assert_eq!(dropped(&mut env, &frame), None);
        env.control.poll(env.now, &mut ());
    }
    assert_eq!(env.control.stats().connect_waiting_full.get(), 0);
    env.now += Duration::from_millis(30);
    let frame = req_from(&mut env, 6, 300);
    dropped(&mut env, &frame);
    env.control.poll(env.now, &mut ());
    assert_eq!(env.control.stats().connect_waiting_full.get(), 1, "the oldest one");
    let found = Resolution::Ready { mac: crate::test_env::PEER_MAC, source: crate::test_env::OUR_IP.into() };
    env.host().resolutions.insert([10, 0, 0, 6].into(), found);
    for _ in 0..10 {
        env.now += Duration::from_millis(1);
        env.control.poll(env.now, &mut ());
    }
    assert_eq!(env.mail(0).len(), 1, "the request of 10.0.0.6");
}

/// A REP, a DREP, a REJ and a SIDR_REP, to a peer with a traffic class and a priority of its own. MADs never have ECN bits.
#[test]
fn replies_have_the_configured_traffic_class_and_priority() {
    let mirror = TrafficClassConfig { value: None, pcp: 0 };
    let fixed = TrafficClassConfig { value: Some(0x6A), pcp: 5 };
    for (config, vlan, mads, datagrams) in [(mirror, 7, 0x28, 0x28), (fixed, 5 << 13 | 7, 0x68, 0x6A)] {
        let mut env = TestEnv::new(1, vec![(0, Listen::cm(7174)), (0, Listen::datagrams(4791))]);
        env.control.traffic_class = config;
        let path = || MadPath { vlan: Some(3 << 13 | 7), traffic_class: 0x28, ..peer_path() };
        let connect = |env: &mut TestEnv, port, qpn| {
            let params = ConnectParams::new(path(), (1, port), Qpn::new(qpn), Psn::new(5), PathMtu::Mtu1024);
            let conn = env.peer.connect(env.now, params).unwrap();
            env.exchange();
            conn
        };
        let conn = connect(&mut env, 7174, 0x11);
        let ToWorker::ConnectRequest { request, .. } = env.message() else { panic!("no request") };
        let params = AcceptParams::for_request(&request, Qpn::new(0x22), Psn::new(6), 1, 1);
        env.send(ToControl::SendRep { conn: request.conn, params });
        env.peer.confirm(conn, &[]).unwrap();
        env.exchange();
        env.peer.disconnect(env.now, conn).unwrap();
        env.exchange();
        connect(&mut env, 1, 0x12);
        env.mail(0);
        env.peer.resolve_datagram(env.now, ResolveParams::new(path(), (1, 1))).unwrap();
        env.exchange();
        assert_eq!(env.host().marks, [(Some(vlan), mads); 4], "{config:?}");
        env.peer.resolve_datagram(env.now, ResolveParams::new(path(), (1, 4791))).unwrap();
        env.exchange();
        let ToWorker::SidrRequest { request, .. } = env.message() else { panic!("no request") };
        assert_eq!((request.path.vlan, request.path.traffic_class), (Some(vlan), datagrams), "the service's way back");
    }
}
