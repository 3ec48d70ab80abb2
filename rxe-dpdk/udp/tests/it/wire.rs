//! Packets between two hosts: two ends of an Ethernet link (veth).

use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use nix::unistd::{Pid, gettid};
use rxe_proto::verbs::{Access, Qpn, QueuePair, Rc, RemoteAddr, RtrAttr, RtsAttr, WorkRequest};
use rxe_proto::wire::{Frame, Path, PathMtu, classify};
use rxe_testkit::child::{in_namespace, ip, wait_for_addresses};
use rxe_udp::{UdpConfig, UdpPort};

use crate::support::{End, PATIENCE, add_interface, count, frame, path, pattern, send};

fn open(address: &str) -> UdpPort {
    UdpPort::open(UdpConfig::new(address.parse().unwrap())).unwrap()
}

/// Every byte from the IP header on, so also the identification, the checksums, and what the ICRC covers.
#[test]
fn a_packet_on_the_wire_is_the_staged_one() {
    in_namespace(|| {
        ip("link set lo up");
        add_interface();
        for (address, peer) in [("10.0.0.7/24", "10.0.0.9"), ("fd00::7/64 nodad", "fd00::9")] {
            ip(&format!("addr add {address} dev eth7"));
            ip(&format!("neigh add {peer} lladdr 02:00:00:00:00:09 dev eth7"));
        }
        wait_for_addresses();
        let sniffer =
            socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll).unwrap();
        let next_packet = || {
            let mut received = vec![0; 2048];
            loop {
                let len = recv(sniffer.as_raw_fd(), &mut received, MsgFlags::empty()).unwrap();
                if let Ok(Frame::Roce(packet)) = classify(&received[..len])
                    && packet.dst_mac().0[5] == 9
                {
                    return received[..len].to_vec();
                }
            }
        };
        for (address, peer) in [("10.0.0.7", "10.0.0.9"), ("fd00::7", "fd00::9")] {
            let mut port = open(address);
            let path = Path { traffic_class: 0x2A, hop_limit: 9, ..path(port.address(), peer.parse().unwrap()) };
            let frames: Vec<_> = (0..3).map(|psn| frame(&path, psn, &pattern(1000, psn))).collect();
            send(&mut port, &frames);
            for sent in &frames {
                let (mut seen, ip_version) = (next_packet(), sent[14] >> 4);
                assert!(seen == next_packet(), "the two ends of the link");
                if ip_version == 6 {
                    // The kernel may choose a flow label, which the ICRC does not cover.
                    seen[15] = seen[15] & 0xF0 | sent[15] & 0x0F;
                    seen[16..18].copy_from_slice(&sent[16..18]);
                }
                assert!(seen[14..] == sent[14..], "IPv{ip_version}: {seen:x?} instead of {sent:x?}");
            }
        }
    });
}

/// Messages between the two threads below.
enum News {
    /// The thread has a network namespace of its own.
    Namespace(Pid),
    /// The link is there.
    Link,
    /// The end is ready.
    Peer(Qpn, RemoteAddr),
    /// The WRITE has completed.
    Done,
}

/// The ends are threads, each in a network namespace of its own.
#[test]
fn ends_on_two_hosts_exchange_packets() {
    const LEN: usize = 300_000;
    in_namespace(|| {
        let ((to_peer, from_us), (to_us, from_peer)) = (mpsc::channel(), mpsc::channel());
        let peer = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            to_us.send(News::Namespace(gettid())).unwrap();
            assert!(matches!(from_us.recv(), Ok(News::Link)));
            let (mut end, qp) = set_up("other7", "10.0.0.8", LEN);
            to_us.send(News::Peer(qp.qpn(), end.mr.remote(0).unwrap())).unwrap();
            let Ok(News::Peer(qpn, _)) = from_us.recv() else { panic!("the other thread has ended") };
            connect(&mut end, qp, qpn, "10.0.0.7");
            turn_until(&mut end, |_| from_us.try_recv().is_ok().then_some(()));
            assert!(end.bytes(LEN) == pattern(LEN, 8));
        });
        let Ok(News::Namespace(thread)) = from_peer.recv() else { panic!("the other thread has ended") };
        ip("link add eth7 mtu 1500 type veth peer name other7");
        ip(&format!("link set other7 netns {thread}"));
        to_peer.send(News::Link).unwrap();
        let (mut end, qp) = set_up("eth7", "10.0.0.7", LEN);
        assert_eq!(end.port.path_mtu(), PathMtu::Mtu1024);
        let Ok(News::Peer(qpn, there)) = from_peer.recv() else { panic!("the other thread has ended") };
        to_peer.send(News::Peer(qp.qpn(), end.mr.remote(0).unwrap())).unwrap();
        connect(&mut end, qp, qpn, "10.0.0.8");
        end.fill(&pattern(LEN, 8));
        let local = [end.mr.sge(..).unwrap()];
        for _ in 0..2 {
            end.device().post_send(qp, WorkRequest::write(&local, there).signaled()).unwrap();
            turn_until(&mut end, End::completion).success().unwrap();
        }
        // The ACKs of the first WRITE have shown that the peer is a socket.
        let [packets, datagrams] = ["sent_packets", "sent_datagrams"].map(|counter| count(&end.port, counter));
        assert!(datagrams < packets, "{datagrams} datagrams for {packets} packets");
        assert_eq!(count(&end.port, "segmentation_refused"), 0);
        to_peer.send(News::Done).unwrap();
        peer.join().unwrap();
        assert_eq!(count(&end.port, "identification_recovered"), 0);
    });
}

/// An end of the link, with a queue pair.
fn set_up(interface: &str, address: &str, len: usize) -> (End, QueuePair<Rc>) {
    ip(&format!("addr add {address}/24 dev {interface}"));
    ip(&format!("link set {interface} up"));
    let mut end = End::new(open(address), len);
    let qp = end.create_qp();
    (end, qp)
}

fn connect(end: &mut End, qp: QueuePair<Rc>, dest_qpn: Qpn, peer: &str) {
    let path = path(end.port.address(), peer.parse().unwrap());
    let rtr = RtrAttr { path, path_mtu: PathMtu::Mtu1024, dest_qpn, ..RtrAttr::default() };
    qp.connect(&mut end.device(), Access::REMOTE_WRITE, rtr, RtsAttr::default()).unwrap();
}

/// Lets an end turn until `done` returns something. The other end is a thread, so it waits for packets in between.
fn turn_until<R>(end: &mut End, mut done: impl FnMut(&mut End) -> Option<R>) -> R {
    let begin = Instant::now();
    loop {
        if let Some(result) = done(end) {
            return result;
        }
        assert!(begin.elapsed() < PATIENCE, "{:?}", end.port.stats());
        end.port.wait(Some(Duration::from_millis(1))).unwrap();
        end.turn(rxe_proto::Instant::from_nanos(begin.elapsed().as_nanos() as u64));
    }
}
