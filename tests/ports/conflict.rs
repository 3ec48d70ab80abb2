//! Addresses that another station, or the kernel itself, uses too. The other station is the kernel at the other end of a
//! veth pair.

use std::process::Command;
use std::time::Instant;

use rxe_testkit::child::ip;
use rxe_testkit::process::{self, Streams};

use crate::bench::{LIMIT, bench_on, told};
use crate::output::with_pair;
use crate::veth::{AF_PACKET, PATIENCE, VethTarget, eventually, rxe_ctl_says, target_command};

/// The target's second address; the first one is 10.77.0.1.
const V6: &str = "fd00:77::1";

const WARNING: &str =
    "another station uses our address: remove it from that station, or give the target another one with --address";

/// The output of `ip`.
fn ip_says(words: &str) -> String {
    let done = process::run(Command::new("ip").args(words.split_whitespace()), PATIENCE).unwrap();
    assert_eq!(done.code, 0, "ip {words}: {}", done.stderr);
    done.stdout
}

/// The MAC address of the kernel's end.
fn kernel_mac() -> String {
    let line = ip_says("-o link show dev rxb");
    line.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().to_owned()
}

/// A target with both addresses.
fn start(name: &str) -> VethTarget {
    VethTarget::start(name, Streams::default(), &["--address", &format!("{V6}/64")])
}

fn warnings(target: &VethTarget, words: &str) -> Vec<String> {
    target.program.stderr().into_iter().filter(|line| line.contains("WARN") && line.contains(words)).collect()
}

#[test]
fn a_station_with_our_addresses_is_found_at_start_and_shown() {
    with_pair(|| {
        let mac = kernel_mac();
        ip("addr add 10.77.0.1/24 dev rxb");
        ip(&format!("addr add {V6}/64 dev rxb nodad"));
        let began = Instant::now();
        let mut target = start("c");
        target.prints("ready ");
        for address in ["10.77.0.1", V6] {
            let words = format!("{WARNING} ip={address} mac={mac} frames=1");
            eventually(&words, || !warnings(&target, &words).is_empty());
        }
        eventually("both defences", || target.counter("host", "address_defences") >= 2);
        assert!(target.counter("host", "address_conflicts") >= 2);
        assert!(target.counter("host", "address_probes_sent") >= 3);

        let (code, text, _) = rxe_ctl_says(&target.prefix, &["link"]);
        assert_eq!(code, 0);
        let (_, json, _) = rxe_ctl_says(&target.prefix, &["--json", "link"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        for (index, address) in ["10.77.0.1", V6].into_iter().enumerate() {
            assert!(text.contains(&format!("\n    address_conflict {address} mac {mac} frames ")), "{text}");
            let conflict = &json["ports"][0]["conflicts"][index];
            assert_eq!((&conflict["address"], &conflict["mac"]), (&address.into(), &mac.as_str().into()), "{json}");
            assert!(conflict["frames"].as_u64() >= Some(1), "{json}");
        }

        // The kernel goes on to claim the address, many times.
        let before = target.counter("host", "address_conflicts");
        let mut claims = Command::new("busybox");
        claims.args(["arping", "-U", "-q", "-b", "-c", "3", "-I", "rxb", "-s", "10.77.0.1", "10.77.0.1"]);
        process::run(&mut claims, PATIENCE).unwrap();
        eventually("more conflicts", || target.counter("host", "address_conflicts") >= before + 3);
        // One warning and one defence of each address in ten seconds.
        let most = 1 + began.elapsed().as_secs() / 10;
        assert!(target.counter("host", "address_defences") <= 2 * most);
        assert!(warnings(&target, "ip=10.77.0.1").len() as u64 <= most, "{}", target.program.tail());
        assert_eq!(target.terminate().code(), Some(0));
    });
}

#[test]
fn a_station_that_probes_our_addresses_learns_that_they_are_in_use() {
    with_pair(|| {
        let mut target = start("p");
        target.prints("ready ");
        // After our own probes: probes of others are conflicts before.
        eventually("announcements", || target.counter("host", "announcements_sent") >= 3);
        // A probe can be lost.
        std::fs::write("/proc/sys/net/ipv6/conf/rxb/dad_transmits", "5").unwrap();
        ip(&format!("addr add {V6}/64 dev rxb"));
        eventually("the kernel gives the address up", || ip_says("-6 addr show dev rxb dadfailed").contains(V6));
        let answered = target.counter("host", "address_probes_answered");
        assert!(answered >= 1);
        let mut probe = Command::new("busybox");
        probe.args(["arping", "-D", "-c", "2", "-w", "10", "-I", "rxb", "10.77.0.1"]);
        let done = process::run(&mut probe, PATIENCE).unwrap();
        assert_eq!(done.code, 1, "an answer: {}{}", done.stdout, done.stderr);
        assert!(target.counter("host", "address_probes_answered") > answered);
        assert_eq!(target.counter("host", "address_conflicts"), 0);
        assert_eq!(warnings(&target, ""), [""; 0], "the other stations leave the addresses");
        assert_eq!(target.terminate().code(), Some(0));
    });
}

#[test]
fn a_station_that_took_an_address_while_the_link_was_down_is_found() {
    with_pair(|| {
        let mut target = start("r");
        target.prints("ready ");
        eventually("announcements", || target.counter("host", "announcements_sent") >= 3);
        ip("link set rxb down");
        eventually("DOWN", || !target.port().up);
        ip("addr add 10.77.0.1/24 dev rxb");
        ip("link set rxb up");
        eventually("a conflict", || target.counter("host", "address_conflicts") > 0);
        assert_eq!(target.port().conflicts[0].address, "10.77.0.1");
        assert_eq!(target.terminate().code(), Some(0));
    });
}

#[test]
fn an_address_of_the_kernel_on_the_same_interface_is_refused() {
    with_pair(|| {
        let id = std::process::id();
        let refused = |address: &str, options: &[&str]| {
            let prefix = format!("{id}k");
            let mut command = target_command(&prefix, AF_PACKET, "/dev/shm/rxe-ports-unused".as_ref(), options);
            let done = process::run(&mut command, PATIENCE).unwrap();
            assert_eq!(done.code, 2, "{}", done.stderr);
            let ip = address.split('/').next().unwrap();
            let sentence = format!(
                "rxe-target: port 0: the kernel has the address {ip} on interface rxa too, and would answer its packets: remove it \
                 there (ip addr del {address} dev rxa), or choose another --address"
            );
            assert_eq!(done.stderr.lines().last(), Some(&*sentence));
        };
        // Its own prefix, and a label, which says nothing.
        ip("addr add 10.77.0.1/16 dev rxa label rxa:7");
        refused("10.77.0.1/16", &[]);
        ip("addr del 10.77.0.1/16 dev rxa");
        ip(&format!("addr add {V6}/64 dev rxa nodad"));
        refused(&format!("{V6}/64"), &["--address", &format!("{V6}/64")]);
        // The address of a VLAN is in another network.
        let mut target = VethTarget::start("w", Streams::default(), &["--address", &format!("{V6}/64"), "--vlan", "5"]);
        target.prints("ready ");
        assert_eq!(target.terminate().code(), Some(0));
        ip(&format!("addr del {V6}/64 dev rxa"));
        let mut target = start("x");
        target.prints("ready ");
        assert_eq!(target.terminate().code(), Some(0));
        assert_eq!(warnings(&target, ""), [""; 0]);
    });
}

#[test]
fn a_kernel_that_forwards_our_packets_is_warned_about() {
    with_pair(|| {
        // As for a machine with Docker. The route to our address leads back to us, over the other end.
        std::fs::write("/proc/sys/net/ipv4/conf/rxa/forwarding", "1").unwrap();
        let mut target = start("f");
        target.prints("ready ");
        let words = "the kernel forwards packets (net.ipv4.conf.rxa.forwarding is not 0), also those to our address 10.77.0.1 that arrive \
                     at interface rxa: set it to 0, or have them dropped (ip rule add iif rxa to 10.77.0.1 blackhole)";
        eventually(words, || !warnings(&target, words).is_empty());
        assert_eq!(warnings(&target, "").len(), 1, "{}", target.program.tail());
        // Frames received during a run of rxe-bench, whose address the kernel does not have.
        let received = || {
            let before = target.counter("worker", "rx_frames");
            let words = "write-lat -n 100 --address 10.77.0.3/24 --peer 10.77.0.1";
            let done = process::run(&mut bench_on(&AF_PACKET.replace("rxa", "rxb"), "0", words), LIMIT).unwrap();
            assert_eq!(done.code, 0, "{}", told(&done));
            target.counter("worker", "rx_frames") - before
        };
        let round = received();
        ip("rule add iif rxa to 10.77.0.1 blackhole");
        let once = received();
        assert!(round > 10 * once, "{round} and {once} frames");
        assert_eq!(target.terminate().code(), Some(0));
    });
}

#[test]
fn addresses_that_the_kernel_has_elsewhere_or_gets_later_are_warned_about() {
    with_pair(|| {
        // For addresses of other interfaces, the kernel at the other end does not answer.
        std::fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1").unwrap();
        ip("addr add 10.77.0.1/32 dev lo");
        // The peer's interface, which is the same kernel's, would answer for it.
        std::fs::write("/proc/sys/net/ipv4/conf/rxb/arp_ignore", "1").unwrap();
        let mut target = start("y");
        target.prints("ready ");
        let warned = |cidr: &str, interface: &str, times: usize| {
            let address = cidr.split('/').next().unwrap();
            let words = format!(
                "the kernel has our address {address} on interface {interface} too, and answers its packets: remove it there (ip addr \
                 del {cidr} dev {interface})"
            );
            eventually(&words, || warnings(&target, &words).len() >= times);
            assert_eq!(warnings(&target, &words).len(), times);
        };
        warned("10.77.0.1/32", "lo", 1);
        for times in 1..3 {
            ip("addr add 10.77.0.1/24 dev rxa");
            warned("10.77.0.1/24", "rxa", times);
            ip("addr del 10.77.0.1/24 dev rxa");
        }
        ip(&format!("addr add {V6}/64 dev rxa nodad"));
        warned(&format!("{V6}/64"), "rxa", 1);
        // The kernel's MAC address there is our own: no conflict of two stations.
        assert_eq!(target.counter("host", "address_conflicts"), 0);
        assert_eq!(target.terminate().code(), Some(0));
    });
}
