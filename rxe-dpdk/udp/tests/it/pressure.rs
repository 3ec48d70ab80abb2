//! A kernel that accepts no more.

use rxe_testkit::child::{in_namespace, ip, wait_for_addresses};
use rxe_udp::{UdpConfig, UdpPort};

use crate::support::{add_interface, count, frame, path, stage};

/// The kernel holds packets to a neighbour that does not answer for some seconds, and they occupy the transmit buffer.
#[test]
fn a_full_transmit_buffer_holds_frames_back_until_there_is_room() {
    in_namespace(|| {
        ip("link set lo up");
        ip("link add br7 type bridge");
        ip("link set br7 up");
        ip("addr add 10.0.0.7/24 dev br7");
        let config = UdpConfig { send_buffer: 1, ..UdpConfig::new("10.0.0.7".parse().unwrap()) };
        let mut port = UdpPort::open(config).unwrap();
        let path = path(port.address(), "10.0.0.9".parse().unwrap());
        let frames: Vec<Vec<u8>> = (0..).take(200).map(|psn| frame(&path, psn, &[0; 1000])).collect();
        let staged = frames.iter().take_while(|frame| stage(&mut port, frame)).count();
        assert!((64..200).contains(&staged), "{staged}");
        let waiting = port.tx().flush();
        let sent = count(&port, "sent_packets") as usize;
        assert!(waiting > 0 && sent > 0, "{:?}", port.stats());
        assert_eq!(waiting + sent, staged);
        assert!(count(&port, "stage_full") > 0 && count(&port, "transmit_stalls") > 0);
        // With the neighbour's address the kernel sends what it holds. A wait without a timeout ends when there is room.
        ip("neigh replace 10.0.0.9 lladdr 02:00:00:00:00:09 dev br7");
        while port.tx().flush() > 0 {
            port.wait(None).unwrap();
        }
        assert_eq!(count(&port, "sent_packets") as usize, staged, "{:?}", port.stats());
    });
}

#[test]
fn packets_longer_than_the_path_are_dropped_and_counted() {
    in_namespace(|| {
        ip("link set lo up");
        add_interface();
        for (address, peer) in [("10.0.0.7", "10.0.0.9"), ("fd00::7", "fd00::9")] {
            let prefix = if address.contains(':') { "64 nodad" } else { "24" };
            ip(&format!("addr add {address}/{prefix} dev eth7"));
            wait_for_addresses();
            let mut port = UdpPort::open(UdpConfig::new(address.parse().unwrap())).unwrap();
            let path = path(port.address(), peer.parse().unwrap());
            assert!(stage(&mut port, &frame(&path, 1, &[0; 2048])) && stage(&mut port, &frame(&path, 2, &[0; 1024])));
            assert_eq!(port.tx().flush(), 0);
            assert_eq!((count(&port, "send_too_big"), count(&port, "sent_packets")), (1, 1), "{address}");
        }
    });
}
