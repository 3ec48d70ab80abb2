//! Frames between two ports.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use rxe_proto::wire::{HeaderTemplate, Path, PortId, ROCE_UDP_PORT, TxQueue, classify};
use rxe_udp::UdpPort;

use crate::support::{count, frame, fresh_address, open, open_with, packet, path, pattern, receive, send, stage};

/// A frame that the port at the other end sees as it was sent. The identification is 0 and the flow label hidden anyway.
fn check_round_trip(a: &mut UdpPort, b: &mut UdpPort, lens: &[usize]) {
    let path = Path { traffic_class: 0x22, hop_limit: 33, ..path(a.address(), b.address()) };
    let frames: Vec<Vec<u8>> =
        lens.iter().enumerate().map(|(psn, &len)| frame(&path, psn as u32, &pattern(len, psn as u32))).collect();
    send(a, &frames);
    let received = receive(b, frames.len());
    assert_eq!(received.len(), frames.len());
    for (sent, received) in frames.iter().zip(&received) {
        assert_eq!(sent, received);
        assert!(packet(received).icrc_ok());
    }
}

#[test]
fn frames_arrive_as_they_were_sent_and_in_order() {
    let (mut a, mut b) = (open(), open());
    let lens: Vec<usize> = (0..64).map(|i| [0, 1, 64, 1000, 4096][i % 5]).collect();
    check_round_trip(&mut a, &mut b, &lens);
    assert_eq!((count(&a, "sent_packets"), count(&b, "rcvd_packets")), (64, 64));
    assert_eq!(count(&a, "sent_bytes"), count(&b, "rcvd_bytes"));
}

#[test]
fn frames_of_one_length_travel_as_one_datagram() {
    let (mut a, mut b) = (open(), open());
    check_round_trip(&mut a, &mut b, &[[1024; 20].as_slice(), &[100]].concat());
    assert_eq!((count(&a, "sent_datagrams"), count(&a, "sent_packets")), (1, 21));
    assert_eq!((count(&b, "rcvd_datagrams"), count(&b, "rcvd_packets")), (1, 21));
    // The length of merged packets is reported after datagrams without it, too.
    check_round_trip(&mut a, &mut b, &[100]);
    check_round_trip(&mut a, &mut b, &[1024; 15]);
    assert_eq!(count(&b, "rcvd_incomplete"), 0);
}

#[test]
fn an_end_without_offloads_understands_one_with_them() {
    let lens: Vec<usize> = [[4096; 40].as_slice(), &[8; 20]].concat();
    let plain = || open_with(|config| config.offload = false);
    for (mut a, mut b, datagrams) in [(plain(), open(), 60), (plain(), plain(), 60), (open(), plain(), 60)] {
        check_round_trip(&mut a, &mut b, &lens);
        assert_eq!(count(&b, "rcvd_datagrams"), datagrams);
    }
}

#[test]
fn a_port_reaches_itself() {
    let mut port = open();
    let own = frame(&path(port.address(), port.address()), 1, b"own");
    send(&mut port, [&own]);
    assert_eq!(receive(&mut port, 1), [own]);
}

#[test]
fn the_stage_writes_missing_icrcs() {
    let (mut a, mut b) = (open(), open());
    let whole = frame(&path(a.address(), b.address()), 7, b"sealed");
    let seal = HeaderTemplate::new(&path(a.address(), b.address())).seal();
    let (room, later) = a.tx().push_unsealed(PortId(0), whole.len(), seal).unwrap();
    assert!(later);
    room.copy_from_slice(&whole);
    room[whole.len() - 4..].fill(0xEE);
    a.tx().flush();
    assert_eq!(receive(&mut b, 1), [whole]);
}

#[test]
fn a_full_burst_leaves_without_a_flush() {
    let (mut a, mut b) = (open(), open());
    let frames: Vec<_> = (0..65).map(|psn| frame(&path(a.address(), b.address()), psn, b"")).collect();
    for frame in &frames {
        assert!(stage(&mut a, frame));
    }
    assert_eq!((a.tx().waiting(), receive(&mut b, 64).len()), (1, 64));
    assert_eq!(a.tx().flush(), 0);
    assert_eq!(receive(&mut b, 1), [frames[64].clone()]);
}

#[test]
fn a_peers_source_port_is_kept() {
    let mut port = open();
    let peer = fresh_address();
    let socket = UdpSocket::bind((peer, 0xC123)).unwrap();
    let sent =
        frame(&Path { udp_src_port: 0xC123, ..path(peer, port.address()) }, 5, b"from a switch's favourite port");
    socket.send_to(&sent[42..], SocketAddr::new(port.address(), ROCE_UDP_PORT)).unwrap();
    let received = receive(&mut port, 1);
    assert!(packet(&received[0]).icrc_ok());
    assert_eq!(packet(&received[0]).udp_src_port(), 0xC123);
}

#[test]
fn datagrams_without_a_packets_length_are_dropped_and_counted() {
    for offload in [true, false] {
        let mut port = open_with(|config| config.offload = offload);
        let socket = UdpSocket::bind((fresh_address(), 0)).unwrap();
        let to = SocketAddr::new(port.address(), ROCE_UDP_PORT);
        for len in [0, 4161, 65_000, 4160] {
            socket.send_to(&vec![0; len], to).unwrap();
        }
        let last = receive(&mut port, 1);
        assert_eq!((last[0].len(), count(&port, "rcvd_bad_length")), (42 + 4160, 3), "offload: {offload}");
    }
}

#[test]
fn random_datagrams_become_frames_of_their_length() {
    let mut port = open();
    let socket = UdpSocket::bind((fresh_address(), 0)).unwrap();
    let to = SocketAddr::new(port.address(), ROCE_UDP_PORT);
    for round in 1..2000 {
        let len = 1 + round * 7919 % 4160;
        let sent = pattern(len, round as u32);
        socket.send_to(&sent, to).unwrap();
        let received = receive(&mut port, 1);
        let _ = classify(&received[0]);
        assert!(received[0].len() == 42 + len && received[0][42..] == sent);
    }
}

#[test]
fn frames_that_the_socket_cannot_send_are_dropped_and_counted() {
    let (mut a, mut b) = (open(), open());
    let good = frame(&path(a.address(), b.address()), 9, b"good");
    let foreign = frame(&path(b.address(), a.address()), 1, b"the source is not ours");
    let v6: IpAddr = "fd00::1".parse().unwrap();
    let other_version = frame(&path(v6, v6), 2, b"the other IP version");
    let unreachable = frame(&path(a.address(), "192.0.2.77".parse().unwrap()), 3, b"not from a loopback address");
    send(&mut a, [&foreign, &good, &other_version, &unreachable, &good]);
    assert_eq!(receive(&mut b, 2), [good.clone(), good]);
    assert_eq!((count(&a, "foreign"), count(&a, "sent_packets")), (2, 2));
    assert_eq!(count(&a, "send_unreachable"), 1, "{:?}", a.stats());
    assert!(a.tx().push(PortId(0), 5000).is_none());
    assert_eq!(count(&a, "oversize"), 1);
}
