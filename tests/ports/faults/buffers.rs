//! A peer that does not read its ring for seconds, and packet buffers that are held wherever they can be.

use std::thread;
use std::time::{Duration, Instant};

use rxe_dpdk::rxe_proto::wire::PathMtu;
use rxe_testkit::recovery::{BUFFERS_HELD, UNREAD_RING, recovered};

use super::PORT;
use crate::alone::alone;
use crate::initiator::{Connection, Initiator, Posted};
use crate::operate::{ctl, json};
use crate::{Target, counter, pattern};

/// For how long the ring is not read.
const UNREAD: Duration = Duration::from_secs(3);

/// Bytes of a READ: the whole region, as many packets as the ring has slots.
const LEN: usize = 4 << 20;

fn stat(target: &Target, group: &str, name: &str) -> u64 {
    json(target, "stat --all")[group][name].as_u64().unwrap_or_else(|| panic!("no {group}.{name}"))
}

/// Buffers of the port in use, and in all.
fn buffers(target: &Target) -> (u64, u64) {
    let port = &json(target, "devinfo")["ports"][0];
    let number = |key: &str| port[key].as_u64().unwrap_or_else(|| panic!("no {key} in {port}"));
    (number("mbufs_in_use"), number("mbufs"))
}

#[test]
fn a_port_without_room_and_held_buffers_lose_nothing() {
    let name = "faults::buffers::a_port_without_room_and_held_buffers_lose_nothing";
    alone(name, "", &[], |initiator, target| {
        // 4.3 s, eight times: no answer leaves while it is delayed.
        initiator.ack_timeout = 20;
        let mut connection = initiator.connect(PORT, "demo", PathMtu::Mtu4096);
        let bytes = pattern(LEN, 3);
        connection.write(initiator, 0, &bytes);
        unread(initiator, &target, &connection, &bytes);
        held(initiator, &target, &connection, &bytes);
        connection.disconnect(initiator);
        let summary = target.stop();
        for lost in ["rx_no_mbuf", "rx_missed", "tx_errors"] {
            assert!(!summary.iter().any(|line| line.contains(&format!(" {lost}="))), "{lost}: {summary:?}");
        }
        assert_eq!(counter(&summary, "worker", "stalls"), 0, "the loop has turned all the time");
    });
}

/// Nobody reads the responses for a while.
fn unread(initiator: &mut Initiator, target: &Target, connection: &Connection, bytes: &[u8]) {
    let stalls = stat(target, "worker", "tx_stalls");
    let reads: Vec<_> = (0..4).map(|_| connection.post_read(initiator, 0, LEN)).collect();
    initiator.turn();
    let began = Instant::now();
    while began.elapsed() < UNREAD || stat(target, "worker", "tx_stalls") == stalls {
        assert!(began.elapsed() < 10 * UNREAD, "the port has room");
        let turns = stat(target, "worker", "turns");
        thread::sleep(Duration::from_millis(300));
        assert!(stat(target, "worker", "turns") > turns, "the worker turns");
    }
    let ended = Instant::now();
    let read = Posted::finish_all(reads, initiator);
    recovered(&UNREAD_RING, ended.elapsed());
    assert!(read.iter().all(|read| read == bytes));
}

/// Injectors hold frames of both directions until they have to let them go.
fn held(initiator: &mut Initiator, target: &Target, connection: &Connection, bytes: &[u8]) {
    // Each has a send window of 128 packets.
    let others = [(); 3].map(|()| initiator.connect(PORT, "demo", PathMtu::Mtu4096));
    let (before, count) = buffers(target);
    let delay = |direction: &str| ctl(target, &format!("fault add delay 10s --direction {direction}"));
    let early = |group: &str| stat(target, group, "released_early") > 0;
    delay("tx");
    let mut requests = vec![connection.post_read(initiator, 0, LEN)];
    initiator.turn_until(|| early("tx_fault"));
    delay("rx");
    requests.extend(others.iter().map(|other| other.post_write(initiator, 0, &bytes[..1 << 20])));
    initiator.turn_until(|| early("rx_fault"));
    let (most, _) = buffers(target);
    println!("{before}, then {most} of {count} buffers in use");
    assert!(most >= before + 2 * 256, "{before}, then {most} of {count} buffers: the injectors hold 256 each");
    assert!(most < count);
    assert_eq!(ctl(target, "fault clear"), "");
    let ended = Instant::now();
    let results = Posted::finish_all(requests, initiator);
    recovered(&BUFFERS_HELD, ended.elapsed());
    assert!(results[0] == bytes, "the READ");
    for other in others {
        other.disconnect(initiator);
    }
}
