//! Multicast groups.

use std::net::IpAddr;

use rxe_proto::verbs::{Grh, QueuePair, RecvWr, Ud, UdAttr, WorkRequest};
use rxe_proto::wire::{Path, PathMtu, PortId, Psn};
use rxe_testkit::child::{in_namespace, ip, wait_for_addresses};
use rxe_udp::{MAX_GROUPS, UdpConfig, UdpPort};

use crate::support::{End, add_interface, frame, open, path, receive, send, turn_until};

const QKEY: u32 = 0x1111;

/// Two ends at these addresses, whose queue pairs are attached to a group: both get what one of them sends.
fn check_group(addresses: [&str; 2], group: &str) {
    let group: IpAddr = group.parse().unwrap();
    let mut ends = addresses.map(|address| {
        let mut port = UdpPort::open(UdpConfig::new(address.parse().unwrap())).unwrap();
        port.join(group).unwrap();
        port.join(group).unwrap();
        End::new(port, 4096)
    });
    let qps: [QueuePair<Ud>; 2] = ends.each_mut().map(|end| {
        let qp = end.create_qp::<Ud>();
        let attr = UdAttr { port: PortId(0), qkey: QKEY, path_mtu: PathMtu::Mtu1024, sq_psn: Psn::new(0) };
        let buffer = [end.mr.sge(..).unwrap()];
        let mut dev = end.device();
        qp.open(&mut dev, attr).unwrap();
        dev.attach_mcast(qp, group.into()).unwrap();
        dev.post_recv(qp, RecvWr { wr_id: 1, sges: &buffer }).unwrap();
        qp
    });
    let path = Path { src: ends[0].port.address().into(), dst: group.into(), ..Path::default() };
    let pd = ends[0].pd;
    let mut dev = ends[0].device();
    let ah = dev.create_ah(pd, &path).unwrap();
    let payload = rxe_proto::verbs::Payload::Inline(b"to all");
    dev.post_send(qps[0], WorkRequest::datagram(payload, ah, rxe_proto::verbs::Qpn::MULTICAST, QKEY)).unwrap();
    for end in [0, 1] {
        let wc = turn_until(&mut ends, |ends| ends[end].completion()).success().unwrap();
        assert_eq!((wc.wr_id, wc.src_qpn), (1, Some(qps[0].qpn())), "end {end}");
        assert_eq!(Grh::read(ends[end].mr.memory(), 0).unwrap().dst, group.into());
        assert_eq!(&ends[end].bytes(Grh::LEN + 6)[Grh::LEN..], b"to all");
    }
    let port = &mut ends[1].port;
    assert_eq!(port.descriptors().count(), 3);
    assert!(port.leave(group) && !port.leave(group));
    assert_eq!(port.groups().count(), 0);
}

#[test]
fn members_on_the_loopback_interface_get_datagrams_to_their_group() {
    in_namespace(|| {
        ip("link set lo up");
        check_group(["127.0.0.1", "127.0.0.2"], "239.1.2.3");
    });
}

#[test]
fn members_on_an_interface_get_datagrams_to_their_group() {
    in_namespace(|| {
        ip("link set lo up");
        add_interface();
        for address in ["10.0.0.7/24", "10.0.0.8/24", "fd00::7/64", "fd00::8/64"] {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            ip(&format!("addr add {address} dev eth7 {nodad}"));
        }
        wait_for_addresses();
        check_group(["10.0.0.7", "10.0.0.8"], "239.1.2.3");
        check_group(["fd00::7", "fd00::8"], "ff1e::1:2:3");
        check_group(["fd00::7", "fd00::8"], "ff12::7");
    });
}

#[test]
fn a_port_receives_the_datagrams_of_its_own_groups_only() {
    in_namespace(|| {
        ip("link set lo up");
        let [mut one, mut two, mut sender] =
            [1, 2, 3].map(|last| UdpPort::open(UdpConfig::new([127, 0, 0, last].into())).unwrap());
        let groups: [IpAddr; 2] = [[239, 0, 0, 1].into(), [239, 0, 0, 2].into()];
        one.join(groups[0]).unwrap();
        two.join(groups[1]).unwrap();
        let frames = groups.map(|group| frame(&path(sender.address(), group), 1, b"group"));
        send(&mut sender, &frames);
        assert_eq!(receive(&mut one, 1), frames[..1]);
        assert_eq!(receive(&mut two, 1), frames[1..]);
        // Packets to the ports' own addresses are last: nothing else has arrived before.
        for port in [&mut one, &mut two] {
            let last = frame(&path(sender.address(), port.address()), 2, b"unicast");
            send(&mut sender, [&last]);
            assert_eq!(receive(port, 1), [last]);
        }
    });
}

#[test]
fn groups_are_refused_with_a_reason() {
    let mut port = open();
    let address = port.address();
    for group in ["10.0.0.1", "ff02::1"] {
        let text = format!(
            "{group} is not a multicast group that the port at {address} can join: it must be one of the same IP version"
        );
        assert_eq!(port.join(group.parse().unwrap()).unwrap_err().to_string(), text);
    }
}

#[test]
fn the_number_of_groups_is_limited() {
    in_namespace(|| {
        ip("link set lo up");
        let mut port = UdpPort::open(UdpConfig::new([127, 0, 0, 1].into())).unwrap();
        let joined = (0..=255u8).take_while(|&last| port.join([239, 0, last, 1].into()).is_ok()).count();
        // The kernel's limit for one socket does not count, as each group has a socket.
        assert_eq!(joined, MAX_GROUPS);
        let error = port.join([239, 9, 9, 9].into()).unwrap_err().to_string();
        assert_eq!(
            error,
            "cannot join 239.9.9.9: the port at 127.0.0.1 is a member of 32 multicast groups, the maximum"
        );
    });
}
