//! The verbs as a user meets them: datagrams, address handles, multicast, the global route header.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::verbs_support::{End, Link, settle};
use rxe_proto::verbs::{
    AddressHandle, AhError, Grh, GrhError, Memory, MulticastError, Payload, PostError, QpError, QpState, Qpn,
    QueuePair, RecvWr, Transition, Ud, UdAttr, WcOpcode, WcStatus, WorkRequest,
};
use rxe_proto::wire::{DropReason, Gid, MacAddr, Path, PathMtu, PortId, Psn};

const QKEY: u32 = 0x0123_4567;

/// A queue pair in RTS with `receives` of 256 bytes posted.
fn open(link: &mut Link, end: &End, qkey: u32, receives: u64) -> QueuePair<Ud> {
    let qp = end.qp::<Ud>(link);
    let mut dev = link.device(end.end);
    let attr = UdAttr { port: PortId(0), qkey, path_mtu: PathMtu::Mtu1024, sq_psn: Psn::new(0xFF_FFFF) };
    qp.open(&mut dev, attr).unwrap();
    for wr_id in 0..receives {
        dev.post_recv(qp, RecvWr { wr_id, sges: &[end.sge(256 * wr_id as usize, 256)] }).unwrap();
    }
    qp
}

fn handle(link: &mut Link, end: &End, path: &Path) -> AddressHandle {
    link.device(end.end).create_ah(end.pd, path).unwrap()
}

fn dropped(link: &mut Link, end: usize, reason: DropReason) -> u64 {
    link.device(end).engine().drops().get(reason)
}

#[test]
fn a_datagram_brings_its_route_and_sender() {
    let mut link = Link::new(None);
    let (a, b) = (End::new(&mut link, 0), End::new(&mut link, 1));
    let (qp, peer) = (open(&mut link, &a, 0x1111, 0), open(&mut link, &b, QKEY, 2));
    let v4 = Path { traffic_class: 0x20, hop_limit: 17, flow_label: 0, ..Link::path(0) };
    let (src, dst) = (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
    let v6 = Path { src: src.into(), dst: dst.into(), flow_label: 0xABCDE, ..v4.clone() };
    for (round, path) in [v4, v6].into_iter().enumerate() {
        let ah = handle(&mut link, &a, &path);
        let wr = WorkRequest::datagram_with_imm(Payload::Inline(b"datagram"), ah, peer.qpn(), QKEY, 99);
        link.device(0).post_send(qp, wr.wr_id(7).signaled()).unwrap();
        let wc = link.completion(1, b.cq).unwrap();
        assert_eq!((wc.wr_id, wc.byte_len, wc.imm), (round as u64, 48, Some(99)));
        assert_eq!(wc.src_qpn, Some(qp.qpn()));
        let Path { src, dst, traffic_class, flow_label, hop_limit, .. } = path;
        let at = 256 * round;
        assert_eq!(Grh::read(b.mr.memory(), at), Ok(Grh { src, dst, traffic_class, flow_label, hop_limit }));
        assert_eq!(b.read(at + Grh::LEN, 8), b"datagram");
        assert_eq!(a.outcomes(&mut link), [(7, WcOpcode::Send, WcStatus::Success)]);
    }
}

#[test]
fn a_datagram_needs_the_receivers_queue_key_and_a_receive() {
    let mut link = Link::new(None);
    let (a, b) = (End::new(&mut link, 0), End::new(&mut link, 1));
    let (qp, peer) = (open(&mut link, &a, QKEY, 0), open(&mut link, &b, QKEY, 1));
    let ah = handle(&mut link, &a, &Link::path(0));
    let mut tell = |qkey, len: usize| {
        let text = [b'x'; 64];
        let wr = WorkRequest::datagram(Payload::Inline(&text[..len]), ah, peer.qpn(), qkey);
        link.device(0).post_send(qp, wr).unwrap();
        settle(&mut link);
        let dropped = [DropReason::QkeyMismatch, DropReason::NoReceive].map(|reason| dropped(&mut link, 1, reason));
        (b.completions(&mut link).len(), dropped)
    };
    assert_eq!(tell(QKEY + 1, 1), (0, [1, 0]));
    assert_eq!(tell(1 << 31, 1), (1, [1, 0]), "the sender's own, which is the same here");
    assert_eq!(tell(QKEY, 1), (0, [1, 1]));
}

#[test]
fn a_datagram_is_one_packet_of_an_open_queue_pair_in_the_handles_domain() {
    let mut link = Link::new(None);
    let a = End::new(&mut link, 0);
    let ah = handle(&mut link, &a, &Link::path(0));
    let closed = a.qp::<Ud>(&mut link);
    let qp = open(&mut link, &a, QKEY, 0);
    let mut dev = link.device(0);
    let to = |ah, payload| WorkRequest::datagram(payload, ah, Qpn::new(0x11), QKEY);
    let (most, more) = ([a.sge(0, 1024)], [a.sge(0, 1025)]);
    assert_eq!(dev.post_send(closed, to(ah, Payload::EMPTY)), Err(PostError::State(QpState::Reset)));
    assert_eq!(dev.post_send(qp, to(ah, Payload::Sges(&more))), Err(PostError::MessageTooLong));
    assert_eq!(dev.post_send(qp, to(ah, Payload::Sges(&most))), Ok(()));
    let other = dev.alloc_pd();
    let foreign = dev.create_ah(other, &Link::path(0)).unwrap();
    assert_eq!(dev.post_send(qp, to(foreign, Payload::EMPTY)), Err(PostError::UnknownAddressHandle));

    // A handle that is removed before the datagram is written: the send queue stops, and can go on.
    dev.destroy_ah(ah).unwrap();
    assert_eq!(dev.destroy_ah(ah), Err(AhError::Unknown));
    assert_eq!(dev.post_send(qp, to(ah, Payload::EMPTY)), Err(PostError::UnknownAddressHandle));
    settle(&mut link);
    assert_eq!(a.outcomes(&mut link), [(0, WcOpcode::Send, WcStatus::LocQpOpErr)]);
    let mut dev = link.device(0);
    assert_eq!(dev.query_qp(qp).unwrap().state, QpState::Sqe);
    dev.modify_qp(qp, Transition::resume()).unwrap();
    assert_eq!(dev.query_qp(qp).unwrap().state, QpState::Rts);
}

#[test]
fn a_datagram_queue_pair_goes_through_its_states() {
    let mut link = Link::new(None);
    let a = End::new(&mut link, 0);
    let qp = a.qp::<Ud>(&mut link);
    let mut dev = link.device(0);
    let wrong = |from, to| Err(QpError::Transition { from, to });
    let rtr = || Transition::to_rtr_datagram(PathMtu::Mtu256);
    assert_eq!(dev.modify_qp(qp, rtr()), wrong(QpState::Reset, QpState::Rtr));
    dev.modify_qp(qp, Transition::to_init_datagram(PortId(0), QKEY)).unwrap();
    dev.post_recv(qp, RecvWr { wr_id: 0, sges: &[a.sge(0, 256)] }).unwrap();
    dev.modify_qp(qp, rtr()).unwrap();
    dev.modify_qp(qp, Transition::to_rts_datagram(Psn::new(5))).unwrap();
    let info = dev.query_qp(qp).unwrap();
    assert_eq!((info.state, info.qkey, info.next_psn, info.recv_queued), (QpState::Rts, QKEY, Psn::new(5), 1));
    let attr = UdAttr { port: PortId(0), qkey: 1, path_mtu: PathMtu::Mtu256, sq_psn: Psn::new(0) };
    assert_eq!(qp.open(&mut dev, attr), wrong(QpState::Rts, QpState::Init));
}

#[test]
fn every_member_of_a_group_gets_a_copy() {
    let mut link = Link::new(None);
    let (a, b) = (End::new(&mut link, 0), End::new(&mut link, 1));
    let qp = open(&mut link, &a, QKEY, 0);
    let members = [(); 3].map(|()| open(&mut link, &b, QKEY, 2));
    let group = Gid::from(Ipv4Addr::new(239, 1, 2, 3));
    let path = Path { dst: group, dst_mac: MacAddr([1, 0, 0x5E, 1, 2, 3]), ..Link::path(0) };
    let ah = handle(&mut link, &a, &path);
    let tell = |link: &mut Link| {
        let wr = WorkRequest::datagram(Payload::Inline(b"all"), ah, Qpn::MULTICAST, QKEY);
        link.device(0).post_send(qp, wr).unwrap();
        settle(link);
        let mut got: Vec<_> = b.completions(link).iter().map(|wc| wc.qpn).collect();
        got.sort();
        got
    };
    assert_eq!(tell(&mut link), []);
    for member in members {
        link.device(1).attach_mcast(member, group).unwrap();
    }
    link.device(1).attach_mcast(members[0], group).unwrap();
    let mut qpns = members.map(QueuePair::qpn);
    qpns.sort();
    assert_eq!(tell(&mut link), qpns, "one copy each");
    assert_eq!(Grh::read(b.mr.memory(), 0).map(|grh| grh.dst), Ok(group));
    link.device(1).detach_mcast(members[0], group).unwrap();
    link.device(1).destroy_qp(members[1]).unwrap();
    assert_eq!(tell(&mut link), [members[2].qpn()]);

    let mut dev = link.device(1);
    assert_eq!(dev.detach_mcast(members[0], group), Err(MulticastError::NotAttached));
    assert_eq!(dev.attach_mcast(members[1], group), Err(MulticastError::Unknown(members[1].qpn())));
    assert_eq!(dev.attach_mcast(members[2], Link::gid(0)), Err(MulticastError::NotMulticast));
    let closed = b.qp::<Ud>(&mut link);
    assert_eq!(link.device(1).attach_mcast(closed, group), Err(MulticastError::NoPort));
}

#[test]
fn malformed_route_headers_are_refused() {
    let memory = Memory::heap(64);
    assert_eq!(Grh::read(&memory, 25), Err(GrhError::OutOfBounds));
    assert_eq!(Grh::read(&memory, 0), Err(GrhError::NoIpHeader));
    // IPv4, but not behind 20 zero bytes; then with options.
    let mut bytes = [0; Grh::LEN];
    bytes[20] = 0x45;
    assert!(Grh::parse(&bytes).is_ok());
    bytes[3] = 1;
    assert_eq!(Grh::parse(&bytes), Err(GrhError::NoIpHeader));
    bytes[3] = 0;
    bytes[20] = 0x46;
    assert_eq!(Grh::parse(&bytes), Err(GrhError::NoIpHeader));
}
