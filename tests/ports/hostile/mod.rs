//! Hostile traffic at the real binary: mutated frames, mutated dialogues of the connection manager, and both beside
//! legitimate traffic. Each test has a target and, as a process has one EAL, a process of its own.
//!
//! The tests print a seed; `RXE_HOSTILE_SEED` repeats it.

mod attacker;
mod beside;
mod dialogue_host;
mod dialogues;
mod frames;
mod mutate;
mod rng;

use rxe_dpdk::rxe_proto::wire::DropReason;
use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;
use rxe_inspect::report::CounterGroup;

use crate::alone::alone;
use crate::initiator::Initiator;
use crate::{Target, counter};

#[test]
fn hostile_frames_change_no_foreign_memory() {
    let files = frames::Files::new();
    let options = files.options();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let name = "hostile::hostile_frames_change_no_foreign_memory";
    alone(name, "", &options, |initiator, target| frames::change_no_foreign_memory(initiator, target, &files));
}

#[test]
fn hostile_dialogues_leave_nothing_behind() {
    let options = ["--address", "fd00:77::1/64"];
    let name = "hostile::hostile_dialogues_leave_nothing_behind";
    alone(name, dialogues::SETTINGS, &options, dialogues::leave_nothing_behind);
}

#[test]
fn hostile_frames_let_writes_pass() {
    let name = "hostile::hostile_frames_let_writes_pass";
    // An lcore that sleeps when it is idle is slower alone than beside other traffic. Where rates are compared, no other test
    // needs the CPU.
    let idle = if beside::least_ratio().is_some() { "spin" } else { "sleep" };
    alone(name, "", &["--idle", idle], beside::let_writes_pass);
}

/// Warnings of which each is about one peer.
const WARNINGS: [&str; 7] = [
    "queue pair in error",
    "a message to queue pair 1 was dropped",
    "client turned away",
    "a connection request comes from an address that is in no network of the port",
    "a connection refused: ",
    "the queue pair does not take the REQ's values",
    "came too fast to be logged",
];

/// The log has no line that says more than what peers did.
fn check_log(target: &Target) {
    for line in target.program.stderr() {
        assert!(!line.contains("panicked") && !line.contains("ERROR"), "{line}");
        assert!(!line.contains("WARN") || WARNINGS.iter().any(|words| line.contains(words)), "{line}");
    }
}

/// Stops the target and checks that its counters say of every frame whether it was handled, and if not, why; and that each
/// of the `reasons` occurred.
fn accounting(initiator: &mut Initiator, target: Target, reasons: &[DropReason]) {
    let mut client = Client::connect(&rxe_inspect::socket::path(&target.prefix)).unwrap();
    let mut groups: Vec<CounterGroup> = Vec::new();
    let received = |groups: &[CounterGroup]| sum_of(groups, "worker", "lcore", "rx_frames");
    while received(&groups) < initiator.sent_frames() {
        initiator.turn();
        groups = client.ask(&Request::Counters).unwrap();
    }
    let worker = |name: &str| sum_of(&groups, "worker", "lcore", name);
    let drops = groups.iter().filter(|group| group.group == "drop").flat_map(|group| &group.counters);
    let drops: Vec<String> = drops.filter(|drop| drop.value > 0).map(|d| format!("{} {}", d.name, d.value)).collect();
    println!("{} frames received; drops: {}", worker("rx_frames"), drops.join(", "));
    for reason in reasons {
        let count = ["lcore", "target"].map(|scope| sum_of(&groups, "drop", scope, reason.name()));
        assert_ne!(count, [0, 0], "no frame was dropped for the reason {reason}");
    }
    let dropped = |scope: &str, which: &dyn Fn(DropReason) -> bool| -> u64 {
        let reasons = DropReason::ALL.iter().filter(|reason| which(**reason));
        reasons.map(|reason| sum_of(&groups, "drop", scope, reason.name())).sum()
    };
    let handled = worker("host_frames") + worker("gsi_packets") + worker("qp_packets");
    assert_eq!(worker("rx_frames"), handled + worker("dropped_frames"), "{groups:?}");

    // Packets to queue pairs: those that the queue pair does not take have one of these reasons. The Q_Key is checked
    // before or after a packet counts as taken.
    let early = |reason: DropReason| matches!(reason.group(), "frame" | "ip" | "udp" | "bth" | "qp" | "worker");
    let named = dropped("lcore", &|reason| early(reason) && reason != DropReason::QkeyMismatch);
    let not_taken = worker("qp_packets") - sum_of(&groups, "transport", "lcore", "rcvd_pkts");
    let wrong_key = dropped("lcore", &|reason| reason == DropReason::QkeyMismatch);
    let unnamed = (worker("dropped_frames") + not_taken).checked_sub(named).expect("no frame is dropped twice");
    assert!(unnamed <= wrong_key, "{unnamed} frames vanished: {groups:?}");

    // Packets to queue pair 1: messages by kind, or dropped before their kind is known.
    let cm = |name: &str| sum_of(&groups, "cm", "target", name);
    let kinds = ["req", "mra", "rej", "rep", "rtu", "dreq", "drep", "sidr_req", "sidr_rep", "lap", "apr"];
    let messages: u64 = kinds.iter().map(|kind| cm(&format!("rx_{kind}"))).sum();
    let unread = dropped("target", &|reason| {
        use DropReason::*;
        let packet = matches!(reason, QpWrongTransport | PkeyMismatch | QkeyMismatch | IcrcMismatch);
        packet || matches!(reason, MadMalformed | MadUnsupported | GsiSource | GsiBudget | GsiRate)
    });
    let unread = unread - cm("rx_lap") - cm("rx_apr");
    assert_eq!(worker("gsi_packets"), messages + unread, "{groups:?}");

    let summary = target.stop();
    assert_eq!(counter(&summary, "port0", "rx_frames"), worker("rx_frames"));
    for lost in ["rx_missed", "rx_errors", "rx_no_mbuf"] {
        assert_eq!(counter(&summary, "port0", lost), 0, "{summary:?}");
    }
}

/// The sum of a counter over the groups of one scope.
fn sum_of(groups: &[CounterGroup], group: &str, scope: &str, name: &str) -> u64 {
    groups.iter().filter(|g| g.group == group && g.scope == scope).filter_map(|group| group.get(name)).sum()
}

/// The number in the environment variable `name`, or `default`.
fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a whole number")))
}
