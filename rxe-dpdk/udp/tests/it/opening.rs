//! Errors when a port is opened.

use std::net::UdpSocket;

use rxe_proto::wire::{PathMtu, ROCE_UDP_PORT};
use rxe_testkit::child::{in_namespace, ip};
use rxe_udp::{UdpConfig, UdpPort};

use crate::support::{add_interface, count, frame, fresh_address, open, path, receive, send};

fn error(address: &str) -> String {
    UdpPort::open(UdpConfig::new(address.parse().unwrap())).unwrap_err().to_string()
}

#[test]
fn an_address_can_have_one_port() {
    let port = open();
    let address = port.address();
    let text = format!(
        "UDP port 4791 of {address} is in use: another rxe-run program has it, or the kernel's rdma_rxe is loaded; use \
         --address"
    );
    assert_eq!(error(&address.to_string()), text);
    drop(port);
    UdpPort::open(UdpConfig::new(address)).unwrap();
}

#[test]
fn a_socket_at_every_address_takes_those_of_all_ports() {
    in_namespace(|| {
        ip("link set lo up");
        let _rdma_rxe = UdpSocket::bind(("0.0.0.0", ROCE_UDP_PORT)).unwrap();
        assert!(error("127.0.0.1").contains("rdma_rxe is loaded"));
    });
}

/// The kernel looks for another station with the address, for long here.
#[test]
fn a_tentative_address_is_named() {
    in_namespace(|| {
        ip("link add eth7 type veth peer name other7");
        std::fs::write("/proc/sys/net/ipv6/conf/eth7/dad_transmits", "100").unwrap();
        ip("link set other7 up");
        ip("link set eth7 up");
        ip("addr add fd00:7::1/64 dev eth7");
        assert_eq!(
            error("fd00:7::1"),
            "fd00:7::1 cannot be used: if `ip address` shows it as tentative, try again in two seconds; if as dadfailed, another \
             station has it: give another address"
        );
    });
}

#[test]
fn addresses_of_no_host_are_refused() {
    for address in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "::ffff:127.0.0.1"] {
        let text = format!("{address} is not the address of a host: give an address of an interface of this machine");
        assert_eq!(error(address), text);
    }
}

#[test]
fn an_address_of_another_machine_is_refused_with_those_of_this_one() {
    in_namespace(|| {
        let text = error("10.0.0.5");
        assert_eq!(
            text,
            "no interface of this machine has the address 10.0.0.5; it has none: set the loopback interface up (ip link set \
             lo up), or add an address to another one"
        );
        ip("link set lo up");
        ip("link add eth7 type veth peer name other7");
        ip("addr add 10.0.0.7/24 dev eth7 label eth7:one");
        let text = error("10.0.0.5");
        assert_eq!(
            text,
            "no interface of this machine has the address 10.0.0.5; it has 10.0.0.7 (eth7), 127.0.0.1 (lo), ::1 (lo)"
        );
    });
}

#[test]
fn a_port_knows_its_interface_and_its_routes() {
    in_namespace(|| {
        ip("link set lo up");
        add_interface();
        ip("addr add 10.0.0.7/24 dev eth7");
        ip("route add 10.1.0.0/16 dev eth7 mtu 600");
        let port = UdpPort::open(UdpConfig::new("10.0.0.7".parse().unwrap())).unwrap();
        let interface = port.interface();
        assert_eq!((interface.name.as_str(), interface.mtu, interface.loopback), ("eth7", 1500, false));
        assert_eq!(port.path_mtu(), PathMtu::Mtu1024);
        let route = |to: &str| port.route_to(to.parse().unwrap());
        assert_eq!(route("10.0.0.9").unwrap().path_mtu, PathMtu::Mtu1024);
        assert_eq!(route("10.1.0.9").unwrap().path_mtu, PathMtu::Mtu512);
        assert_eq!(route("10.0.0.7").unwrap().path_mtu, PathMtu::Mtu4096, "over the loopback interface");
        let error = route("10.2.0.9").unwrap_err().to_string();
        assert_eq!(error, "10.2.0.9 cannot be reached from 10.0.0.7: Network is unreachable (os error 101)");
        assert_eq!(rxe_udp::route_to("10.1.0.9".parse().unwrap()).unwrap().source, port.address());
    });
}

/// Routers announce such addresses, and packets from them leave by other interfaces.
#[test]
fn an_address_of_the_loopback_interface_that_others_reach_merges_no_packets() {
    in_namespace(|| {
        ip("link set lo up");
        ip("addr add 10.9.9.9/32 dev lo");
        let mut ends =
            ["10.9.9.9", "127.0.0.1"].map(|address| UdpPort::open(UdpConfig::new(address.parse().unwrap())).unwrap());
        assert_eq!(ends.each_ref().map(|port| port.interface().loopback), [false, true]);
        for (at, sent_datagrams) in [(0, 8), (1, 1)] {
            let path = path(ends[at].address(), ends[at].address());
            let frames: Vec<Vec<u8>> = (0..8).map(|psn| frame(&path, psn, &[0; 1024])).collect();
            send(&mut ends[at], &frames);
            assert_eq!(receive(&mut ends[at], 8), frames);
            assert_eq!(count(&ends[at], "sent_datagrams"), sent_datagrams);
        }
    });
}

#[test]
fn the_receive_buffer_is_as_large_as_the_kernel_allows() {
    let port = UdpPort::open(UdpConfig { receive_buffer: 100_000, ..UdpConfig::new(fresh_address()) }).unwrap();
    assert_eq!(port.receive_buffer().unwrap(), 200_000, "the kernel doubles it for its overhead");
}
