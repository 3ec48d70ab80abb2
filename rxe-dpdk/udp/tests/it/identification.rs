//! Peers that number their packets.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use rxe_proto::wire::{DropReason, Path, ROCE_UDP_PORT, icrc};
use rxe_udp::UdpPort;

use crate::support::{End, count, frame, fresh_address, open, open_with, packet, path, pattern, receive};

/// A peer as Linux's rxe is one, on a socket: a source port of its choice, and an ICRC over identifications of its own.
struct Numbering {
    socket: UdpSocket,
    address: IpAddr,
}

impl Numbering {
    fn new() -> Numbering {
        let address = fresh_address();
        Numbering { socket: UdpSocket::bind((address, 0xC000)).unwrap(), address }
    }

    /// A packet with this identification, sent as one with another, which `change` may damage.
    fn send(&self, port: &UdpPort, id: u16, dont_fragment: bool, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let path = Path { udp_src_port: 0xC000, ..path(self.address, port.address()) };
        let mut sent = frame(&path, u32::from(id), &pattern(1000, u32::from(id)));
        sent[18..20].copy_from_slice(&id.to_be_bytes());
        if !dont_fragment {
            sent[20] = 0;
        }
        let end = sent.len() - 4;
        let sealed = icrc(&sent[14..end], true).to_le_bytes();
        sent[end..].copy_from_slice(&sealed);
        change(&mut sent);
        self.socket.send_to(&sent[42..], SocketAddr::new(port.address(), ROCE_UDP_PORT)).unwrap();
        sent
    }
}

#[test]
fn an_identification_is_recovered_and_written_into_the_frame() {
    let (mut port, peer) = (open(), Numbering::new());
    for (id, dont_fragment) in [(0x1234, true), (1, true), (0xFFFF, true), (0x8000, false)] {
        peer.send(&port, id, dont_fragment, |_| {});
        let received = receive(&mut port, 1);
        assert!(packet(&received[0]).icrc_ok());
        assert_eq!(packet(&received[0]).ip_id(), id);
        assert_eq!(received[0][20], if dont_fragment { 0x40 } else { 0 });
    }
    assert_eq!(count(&port, "identification_recovered"), 4);
}

#[test]
fn a_damaged_packet_stays_damaged() {
    let (mut port, peer) = (open(), Numbering::new());
    let damaged = peer.send(&port, 0x1234, true, |frame| frame[500] ^= 0x10);
    let received = receive(&mut port, 1);
    assert!(!packet(&received[0]).icrc_ok());
    assert_eq!((packet(&received[0]).ip_id(), &received[0][42..]), (0, &damaged[42..]));
    assert_eq!(count(&port, "identification_recovered"), 0);
}

#[test]
fn an_identification_is_not_recovered_when_that_is_off() {
    let (mut port, peer) = (open_with(|config| config.recover_identification = false), Numbering::new());
    peer.send(&port, 0x1234, true, |_| {});
    assert!(!packet(&receive(&mut port, 1)[0]).icrc_ok());
}

/// A program at the address of another one, after that has ended: at most 7 of its packets have a wrong ICRC.
#[test]
fn a_peer_that_begins_to_number_its_packets_is_noticed() {
    let (mut port, peer) = (open(), Numbering::new());
    for _ in 0..100 {
        peer.send(&port, 0, true, |_| {});
        assert!(packet(&receive(&mut port, 1)[0]).icrc_ok());
    }
    let right = |port: &mut UdpPort, id| {
        peer.send(port, id, true, |_| {});
        packet(&receive(port, 1)[0]).icrc_ok()
    };
    let first = (1..).find(|&id| right(&mut port, id)).unwrap();
    assert!(first <= 8, "{first}");
    for id in first..200 {
        assert!(right(&mut port, id));
    }
}

#[test]
fn every_packet_to_queue_pair_1_is_examined() {
    let (mut port, peer) = (open(), Numbering::new());
    let to_gsi = |id: u16| {
        move |frame: &mut [u8]| {
            frame[47..50].copy_from_slice(&[0, 0, 1]);
            frame[18..20].copy_from_slice(&id.to_be_bytes());
            let end = frame.len() - 4;
            let sealed = icrc(&frame[14..end], true).to_le_bytes();
            frame[end..].copy_from_slice(&sealed);
        }
    };
    for _ in 0..20 {
        peer.send(&port, 0, true, |_| {});
    }
    receive(&mut port, 20);
    peer.send(&port, 7, true, to_gsi(7));
    assert!(packet(&receive(&mut port, 1)[0]).icrc_ok());
}

#[test]
fn the_engine_drops_what_was_damaged() {
    let (mut end, peer) = (End::new(open(), 4096), Numbering::new());
    let qpn = end.create_qp::<rxe_proto::verbs::Uc>();
    let path = path(end.port.address(), peer.address);
    let rtr = rxe_proto::verbs::RtrAttr { path, ..Default::default() };
    qpn.connect(&mut end.device(), rxe_proto::verbs::Access::empty(), rtr, Default::default()).unwrap();
    let to_qp = |damage: u8| {
        let number = qpn.qpn().get().to_be_bytes();
        move |frame: &mut [u8]| {
            frame[42] = 0x24; // UC SEND only
            frame[47..50].copy_from_slice(&number[1..]);
            let end = frame.len() - 4;
            let sealed = icrc(&frame[14..end], true).to_le_bytes();
            frame[end..].copy_from_slice(&sealed);
            frame[500] ^= damage;
        }
    };
    let mut dropped = |damage| {
        peer.send(&end.port, 0x1234, true, to_qp(damage));
        let frames = receive(&mut end.port, 1);
        end.engine.receive(rxe_proto::Instant::ZERO, rxe_proto::wire::PortId(0), &packet(&frames[0]));
        end.engine.drops().get(DropReason::IcrcMismatch)
    };
    assert_eq!([dropped(0), dropped(0x10)], [0, 1]);
}
