//! IPv6.

use rxe_proto::verbs::{Rc, WorkRequest};
use rxe_proto::wire::{Path, PathMtu};
use rxe_testkit::child::{in_namespace, ip, wait_for_addresses};
use rxe_udp::{UdpConfig, UdpPort};

use crate::support::{End, add_interface, completion, connect, count, frame, path, pattern, receive, send};

fn open(address: &str) -> UdpPort {
    UdpPort::open(UdpConfig::new(address.parse().unwrap())).unwrap()
}

#[test]
fn ends_at_loopback_addresses_exchange_packets() {
    in_namespace(|| {
        ip("link set lo up");
        ip("addr add fd00::2/128 dev lo");
        wait_for_addresses();
        let mut ends = ["::1", "fd00::2"].map(|address| End::new(open(address), 1 << 20));
        assert_eq!(ends[0].port.path_mtu(), PathMtu::Mtu4096);
        let [qp, _] = connect::<Rc>(&mut ends);
        let bytes = pattern(1 << 20, 6);
        ends[0].fill(&bytes);
        let (local, there) = ([ends[0].mr.sge(..).unwrap()], ends[1].mr.remote(0).unwrap());
        ends[0].device().post_send(qp, WorkRequest::write(&local, there).signaled()).unwrap();
        completion(&mut ends, 0);
        assert!(ends[1].bytes(1 << 20) == bytes);
        assert!(count(&ends[0].port, "sent_datagrams") < count(&ends[0].port, "sent_packets"));

        let [a, b] = &mut ends;
        let path = Path { traffic_class: 0x62, hop_limit: 3, ..path(a.port.address(), b.port.address()) };
        let sent = frame(&path, 1, b"class and hops");
        send(&mut a.port, [&sent]);
        assert_eq!(receive(&mut b.port, 1), [sent]);
    });
}

#[test]
fn ends_at_addresses_of_a_link_exchange_packets() {
    in_namespace(|| {
        ip("link set lo up");
        add_interface();
        for address in ["fe80::7", "fe80::8"] {
            ip(&format!("addr add {address}/64 dev eth7 nodad"));
        }
        wait_for_addresses();
        let (mut a, mut b) = (open("fe80::7"), open("fe80::8"));
        let sent = frame(&path(a.address(), b.address()), 1, b"of the link");
        send(&mut a, [&sent]);
        assert_eq!(receive(&mut b, 1), [sent]);
    });
}
