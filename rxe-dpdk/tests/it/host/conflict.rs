//! Address conflict detection: probes of our addresses, other stations that use them, and probes of other stations.

use super::net::{MAC_A, MAC_B, Net, config, exchange, hex, host, ms, poll, settle};
use rxe_dpdk::host::{Host, HostConfig};
use rxe_proto::Duration;
use rxe_proto::wire::{DropReason, MacAddr, TxFrames};

const A4: &str = "192.168.77.1/24";
const A6: &str = "fd00:77::1/64";

/// B claims 192.168.77.1, as an announcement.
const CLAIM: &str = "ffffffffffff 52540000000b 0806 0001080006040001 52540000000b c0a84d01 000000000000 c0a84d01";
/// B probes 192.168.77.1.
const PROBE: &str = "ffffffffffff 52540000000b 0806 0001080006040001 52540000000b 00000000 000000000000 c0a84d01";
/// B claims fd00:77::1, as an advertisement to all nodes.
const CLAIM_V6: &str = "333300000001 52540000000b 86dd 60000000 0020 3a ff fd000077000000000000000000000001
    ff020000000000000000000000000001 8800 094f 20000000 fd000077000000000000000000000001 0201 52540000000b";
/// B begins duplicate address detection for fd00:77::1.
const PROBE_V6: &str = "3333ff000001 52540000000b 86dd 60000000 0018 3a ff 00000000000000000000000000000000
    ff0200000000000000000001ff000001 8700 7d2e 00000000 fd000077000000000000000000000001";

/// A's announcements of its two addresses.
fn announcements() -> [Vec<u8>; 2] {
    [
        hex("ffffffffffff 52540000000a 0806 0001080006040001 52540000000a c0a84d01 000000000000 c0a84d01"),
        hex("333300000001 52540000000a 86dd 60000000 0020 3a ff fd000077000000000000000000000001
             ff020000000000000000000000000001 8800 0950 20000000 fd000077000000000000000000000001 0201 52540000000a"),
    ]
}

/// A's probes of its two addresses.
fn probes() -> [Vec<u8>; 2] {
    [PROBE, PROBE_V6].map(|probe| hex(&probe.replace("52540000000b", "52540000000a")))
}

/// Counters: conflicts, defences, answered probes.
fn counted(host: &Host) -> [u64; 3] {
    let stats = host.stats();
    [&stats.address_conflicts, &stats.address_defences, &stats.address_probes_answered].map(|counter| counter.get())
}

/// The address, the frames and the station of every conflict.
fn conflicts(host: &Host) -> Vec<(String, u64, MacAddr)> {
    let all = host.conflicts().iter().filter_map(|c| Some((c.ip().to_string(), c.frames(), c.station()?)));
    all.collect()
}

/// When A sends each of `frames`, within the first ten seconds.
fn times(a: &mut Host, frame: &[u8]) -> Vec<u64> {
    let mut times = Vec::new();
    for now in 0..10_000 {
        times.extend(poll(a, ms(now)).iter().filter(|sent| *sent == frame).map(|_| now));
    }
    times
}

// [HOST-PROBE]
#[test]
fn addresses_are_probed_three_times_then_announced_twice() {
    let schedules = [0, 1].map(|version| {
        let mut a = host(MAC_A, &[A4, A6]);
        let mut b = host(MAC_A, &[A4, A6]);
        let probed = times(&mut a, &probes()[version]);
        let announced = times(&mut b, &announcements()[version]);
        assert_eq!((a.stats().address_probes_sent.get(), a.stats().announcements_sent.get()), (9, 6));
        (probed, announced)
    });
    assert_eq!(schedules[0], schedules[1]);
    let (probed, announced) = &schedules[0];
    let [first, second, third] = probed[..] else { panic!("{probed:?}") };
    assert_eq!(first, 0);
    for interval in [second - first, third - second] {
        assert!((100..=200).contains(&interval), "{probed:?}");
    }
    assert_eq!(announced[..], [third + 200, third + 2200]);
}

// [HOST-PROBE]
#[test]
fn intervals_between_probes_follow_the_seed() {
    let schedules: Vec<Vec<u64>> = (0..8)
        .map(|seed| {
            let config = HostConfig { seed: [seed; 32], ..config(MAC_A, &[A4]) };
            times(&mut Host::new(&config).expect("a good configuration"), &probes()[0])
        })
        .collect();
    assert!(schedules.iter().any(|schedule| *schedule != schedules[0]), "{schedules:?}");
}

// [HOST-PROBE]
#[test]
fn addresses_are_in_use_while_they_are_probed() {
    let mut a = host(MAC_A, &[A4]);
    assert!(poll(&mut a, ms(0)).contains(&probes()[0]));
    let request = hex("ffffffffffff 52540000000b 0806 0001080006040001 52540000000b c0a84d02 000000000000 c0a84d01");
    assert_eq!(exchange(&mut a, ms(1), &request).1.len(), 1);
}

// [HOST-PROBE]
#[test]
fn addresses_are_probed_again_when_the_link_is_back() {
    let mut a = host(MAC_A, &[A4, A6]);
    settle(&mut a);
    a.announce(ms(60_000));
    let sent = (0..5000).flat_map(|at| poll(&mut a, ms(60_000 + at))).collect::<Vec<_>>();
    for (probe, announcement) in probes().iter().zip(&announcements()) {
        assert_eq!(sent.iter().filter(|frame| *frame == probe).count(), 3);
        assert_eq!(sent.iter().filter(|frame| *frame == announcement).count(), 2);
    }
}

/// A link with A alone on it, until B starts with the same addresses.
fn late_rival() -> Net {
    let a = config(MAC_A, &[A4, A6]);
    let mut net = Net::new(&a, &config(MAC_B, &["192.168.77.2/24"]));
    net.run(Duration::from_secs(20));
    net.seen.clear();
    let b = config(MAC_B, &[A4, A6]);
    net.hosts[1] = Host::new(&b).expect("a good configuration");
    net
}

// [HOST-CONFLICT]
#[test]
fn conflict_at_start_is_counted_and_defended_once() {
    let mut net = late_rival();
    net.run(Duration::from_secs(9));
    for (host, other) in [(0, MAC_B), (1, MAC_A)] {
        let found = conflicts(&net.hosts[host]);
        let addresses: Vec<_> = found.iter().map(|(ip, _, mac)| (ip.as_str(), *mac)).collect();
        assert_eq!(addresses, [("192.168.77.1", other), ("fd00:77::1", other)]);
        let [_, defences, _] = counted(&net.hosts[host]);
        assert_eq!(defences, 2, "each address once");
    }
    // B stopped probing after A's first answers, and its defence was its announcement.
    assert_eq!(counted(&net.hosts[0])[2], 2);
    // A's answer to a probe for an IPv6 address is the same message as its defence.
    for (to, announcements, counts) in [(1, announcements(), [1, 2]), (0, [CLAIM, CLAIM_V6].map(hex), [1, 1])] {
        for (frame, count) in announcements.into_iter().zip(counts) {
            let seen = net.seen.iter().filter(|seen| **seen == (to, frame.clone()));
            assert_eq!(seen.count(), count, "to host {to}: {frame:x?}");
        }
    }
}

// [HOST-CONFLICT]
#[test]
fn two_stations_that_start_together_find_the_conflict_by_their_probes() {
    let mut net = Net::new(&config(MAC_A, &[A4]), &config(MAC_B, &[A4]));
    net.run(Duration::from_millis(50));
    for host in &net.hosts {
        assert_eq!(conflicts(host).len(), 1);
        assert_eq!(counted(host)[2], 1, "the probe was answered");
    }
}

// [HOST-CONFLICT]
#[test]
fn conflict_while_running_is_defended_once_per_interval() {
    for (version, claim) in [CLAIM, CLAIM_V6].map(hex).iter().enumerate() {
        let mut a = host(MAC_A, &[A4, A6]);
        settle(&mut a);
        let defence = &announcements()[version];
        let mut defended = Vec::new();
        for now in (10_000..40_000).step_by(100) {
            let (result, answers) = exchange(&mut a, ms(now), claim);
            assert_eq!(result, Ok(()));
            defended.extend(answers.iter().filter(|frame| *frame == defence).map(|_| now));
        }
        assert_eq!(defended, [10_000, 20_000, 30_000]);
        assert_eq!(counted(&a)[..2], [300, 3]);
        let address = ["192.168.77.1", "fd00:77::1"][version];
        assert_eq!(conflicts(&a), [(address.to_owned(), 300, MAC_B)]);
        assert_eq!(a.neighbour_count(), 0);
    }
}

// [HOST-CONFLICT]
#[test]
fn each_address_is_defended_by_itself() {
    let mut a = host(MAC_A, &[A4, A6]);
    settle(&mut a);
    for (claim, defence) in [CLAIM, CLAIM_V6].iter().zip(announcements()) {
        assert!(exchange(&mut a, ms(10_000), &hex(claim)).1.contains(&defence));
    }
    assert_eq!(counted(&a), [2, 2, 0]);
}

// [HOST-CONFLICT]
#[test]
fn replies_of_another_station_with_our_address_are_conflicts() {
    let mut a = host(MAC_A, &[A4]);
    poll(&mut a, ms(0));
    // The answer of Linux to a probe.
    let reply = hex("52540000000a 52540000000b 0806 0001080006040002 52540000000b c0a84d01 52540000000a 00000000");
    assert_eq!(exchange(&mut a, ms(1), &reply), (Ok(()), vec![announcements()[0].clone()]));
    assert_eq!(counted(&a), [1, 1, 0]);
    // The answer is known: no further probe, and no announcement soon after the defence.
    let sent: Vec<_> = (2..5000).flat_map(|now| poll(&mut a, ms(now))).collect();
    assert!(!sent.iter().any(|frame| *frame == probes()[0] || *frame == announcements()[0]), "{sent:?}");
}

// [HOST-CONFLICT]
#[test]
fn a_flood_of_conflicts_is_counted_and_answered_by_one_frame() {
    let mut a = host(MAC_A, &[A4]);
    settle(&mut a);
    let mut claim = hex("52540000000a 52540000000b 0806 0001080006040002 525400000000 c0a84d01 52540000000a c0a84d01");
    let mut sent = 0;
    for n in 0..100_000_u32 {
        claim[24..28].copy_from_slice(&(n + 0x100).to_be_bytes());
        sent += exchange(&mut a, ms(10_000 + u64::from(n) / 11), &claim).1.len();
    }
    assert_eq!((sent, counted(&a)), (1, [100_000, 1, 0]));
    assert_eq!(conflicts(&a), [("192.168.77.1".to_owned(), 100_000, "52:54:00:01:87:9f".parse().expect("a MAC"))]);
    assert_eq!((a.neighbour_count(), a.poll_event()), (0, None));
}

#[test]
fn defence_waits_for_transmit_room() {
    for (claim, defence) in [CLAIM, CLAIM_V6].map(hex).iter().zip(announcements()) {
        let mut a = host(MAC_A, &[A4, A6]);
        settle(&mut a);
        let mut full = TxFrames { room: Some(0), ..TxFrames::default() };
        let _no_room = a.handle_frame(ms(10_000), claim, &mut full);
        assert_eq!(counted(&a), [1, 0, 0]);
        assert!(exchange(&mut a, ms(10_001), claim).1.contains(&defence));
        assert_eq!(counted(&a), [2, 1, 0]);
    }
}

// [HOST-CONFLICT]
#[test]
fn probes_of_others_are_conflicts_only_while_we_probe_too() {
    for probe in [PROBE, PROBE_V6].map(hex) {
        let mut a = host(MAC_A, &[A4, A6]);
        poll(&mut a, ms(0));
        for now in [1, 2] {
            let (result, answers) = exchange(&mut a, ms(now), &probe);
            assert_eq!((result, answers.len()), (Ok(()), 1));
        }
        assert_eq!(counted(&a), [1, 0, 2]);

        let mut a = host(MAC_A, &[A4, A6]);
        settle(&mut a);
        let (result, answers) = exchange(&mut a, ms(10_000), &probe);
        assert_eq!((result, answers.len()), (Ok(()), 1));
        assert_eq!(counted(&a), [0, 0, 1], "the other station learns that the address is in use, and leaves it");
    }
}

// [HOST-CONFLICT]
#[test]
fn unicast_probes_of_switches_are_answered_and_no_conflict() {
    let mut a = host(MAC_A, &[A4]);
    poll(&mut a, ms(0));
    let check = hex(&PROBE.replacen("ffffffffffff", "52540000000a", 1));
    assert_eq!(exchange(&mut a, ms(1), &check).1.len(), 1);
    assert_eq!(counted(&a), [0, 0, 1]);
}

// [HOST-CONFLICT]
#[test]
fn looped_packets_of_our_own_are_no_conflict() {
    let mut a = host(MAC_A, &[A4, A6]);
    let own: Vec<Vec<u8>> = [0, 200, 400, 600].iter().flat_map(|now| poll(&mut a, ms(*now))).collect();
    assert!(probes().iter().chain(&announcements()).all(|frame| own.contains(frame)));
    let mut a = host(MAC_A, &[A4, A6]);
    poll(&mut a, ms(0));
    for mut frame in own {
        assert_eq!(exchange(&mut a, ms(1), &frame), (Err(DropReason::ForeignMac), vec![]));
        // As a station that rewrites the Ethernet source would return them. Solicitations contain no other MAC address.
        if frame.get(54) != Some(&135) {
            frame[6..12].copy_from_slice(&MAC_B.0);
            assert!(exchange(&mut a, ms(1), &frame).1.is_empty());
        }
    }
    assert_eq!((counted(&a), conflicts(&a)), ([0, 0, 0], vec![]));
}
