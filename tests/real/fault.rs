//! Faults that rxe-ctl adds while the target runs, and how the kernel's RoCE reacts.

use crate::Check;
use crate::bed::{BedConfig, TestBed, needs};
use crate::station::{Port, StationKey, TARGET_V4};
use crate::suite::{AnyGroup, Group};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);

/// A fault, and a client that meets it.
struct Scenario {
    /// For `rxe-ctl fault add`.
    fault: &'static str,
    command: &'static str,
    /// The client's exit code, and a text that it prints.
    outcome: (u32, &'static str),
    /// How often the fault is applied.
    hits: u64,
    /// A counter of the client's kernel that must have counted.
    kernel: &'static str,
    /// A counter of the target's summary that must have counted, by group and name.
    ours: &'static str,
}

/// Writes, reads back and compares.
const PATTERN: &str = "region_client -r demo ADDRESS pattern 0 200000 7";
const WELL: (u32, &str) = (0, "pattern ok");
const RPING: &str = "rping -c -a ADDRESS -C 5 -V -v -S 100";

const SCENARIOS: [Scenario; 10] = [
    Scenario {
        fault: "rnr --count 3",
        command: PATTERN,
        outcome: WELL,
        hits: 3,
        kernel: "rcvd_rnr_err",
        ours: "send_rnr_err",
    },
    Scenario {
        fault: "rnr 1ms --opcode SEND --count 3",
        command: RPING,
        outcome: (0, "ping data: rdma-ping-4"),
        hits: 3,
        kernel: "rcvd_rnr_err",
        ours: "send_rnr_err",
    },
    Scenario {
        fault: "nak psn-sequence --opcode WRITE_MIDDLE --count 2",
        command: PATTERN,
        outcome: WELL,
        hits: 2,
        kernel: "rcvd_seq_err",
        ours: "sequence_naks_sent",
    },
    Scenario {
        fault: "drop --opcode RC_WRITE --probability 0.2 --seed 7 --count 4",
        command: PATTERN,
        outcome: WELL,
        hits: 4,
        kernel: "sent_pkts",
        ours: "out_of_seq_request",
    },
    Scenario {
        fault: "drop --direction tx --opcode READ_RESPONSE_MIDDLE --count 2",
        command: PATTERN,
        outcome: WELL,
        hits: 2,
        kernel: "sent_pkts",
        ours: "read_responses_sent",
    },
    Scenario {
        fault: "corrupt-icrc --opcode WRITE_MIDDLE,WRITE_LAST --count 3",
        command: PATTERN,
        outcome: WELL,
        hits: 3,
        kernel: "sent_pkts",
        ours: "out_of_seq_request",
    },
    Scenario {
        fault: "ecn --count 3",
        command: PATTERN,
        outcome: WELL,
        hits: 3,
        kernel: "sent_pkts",
        ours: "ecn_marked",
    },
    Scenario {
        fault: "nak invalid-request --opcode READ_REQUEST --count 1",
        command: PATTERN,
        outcome: (1, "READ at offset 0: remote invalid request error"),
        hits: 1,
        kernel: "sent_pkts",
        ours: "fatal_naks_sent",
    },
    Scenario {
        fault: "nak remote-access --count 1",
        command: PATTERN,
        outcome: (1, "WRITE at offset 0: remote access error"),
        hits: 1,
        kernel: "sent_pkts",
        ours: "fatal_naks_sent",
    },
    Scenario {
        fault: "nak remote-operational --count 1",
        command: PATTERN,
        outcome: (1, "WRITE at offset 0: remote operation error"),
        hits: 1,
        kernel: "sent_pkts",
        ours: "fatal_naks_sent",
    },
];

/// The group `fault`.
pub fn group() -> AnyGroup {
    let mut group = Group::new("fault", needs(StationKey::new(Port::Vhost, 4200)), |env| {
        TestBed::start(env, BedConfig::new(Port::Vhost, 4200))
    });
    for scenario in &SCENARIOS {
        group.case(format!("rxe-ctl fault add {}", scenario.fault), |bed| attempt(bed, scenario));
    }
    group.case("without faults the transfer succeeds again", |bed| {
        ctl(bed, "fault clear")?;
        let done = bed.guest().expect(&PATTERN.replace("ADDRESS", TARGET_V4), LIMIT, &[WELL.1]).map(drop);
        let list = ctl(bed, "--json fault list")?;
        if list.trim() == "[]" { done } else { Err(format!("there are still faults: {list}")) }
    });
    group.case("the target ends well", |bed| {
        let summary = bed.stop_target()?;
        let whole = summary.contains("mbufs_leaked=0") && summary.contains(" refused=");
        if whole { Ok(()) } else { Err(summary) }
    });
    group.build()
}

fn ctl(bed: &TestBed, words: &str) -> Result<String, String> {
    bed.target()?.ctl(words)
}

/// A counter of the guest's RoCE device.
fn kernel(bed: &TestBed, name: &str) -> Result<u64, String> {
    let said = bed.guest().expect(&format!("cat /sys/class/infiniband/rxe0/ports/1/hw_counters/{name}"), LIMIT, &[])?;
    said.text.trim().parse().map_err(|_| format!("{name}: {:?}", said.text))
}

/// A counter of the target's queue pairs.
fn ours(bed: &TestBed, name: &str) -> Result<u64, String> {
    let text = ctl(bed, "stat --all")?;
    let mut lines =
        text.lines().filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
    lines.next().ok_or_else(|| format!("no {name} in {text}"))
}

fn attempt(bed: &TestBed, scenario: &Scenario) -> Check {
    let before = (kernel(bed, scenario.kernel)?, ours(bed, scenario.ours)?);
    let id = ctl(bed, &format!("fault add {}", scenario.fault))?;
    let done = bed.guest().run(&scenario.command.replace("ADDRESS", TARGET_V4), LIMIT)?;
    if done.code != scenario.outcome.0 || !done.text.contains(scenario.outcome.1) {
        return Err(format!("{} ended with {} and prints\n{}", scenario.command, done.code, done.text));
    }
    let list = ctl(bed, "fault list")?;
    let hits = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|row| row[0] == id.trim());
    if hits.as_ref().is_none_or(|row| row[2] != scenario.hits.to_string() || row[3] != "0") {
        return Err(format!("fault {id} should have hit {} times:\n{list}", scenario.hits));
    }
    let after = (kernel(bed, scenario.kernel)?, ours(bed, scenario.ours)?);
    if after.0 <= before.0 || after.1 <= before.1 {
        return Err(format!("{} and {} counted {before:?} and then {after:?}", scenario.kernel, scenario.ours));
    }
    ctl(bed, &format!("fault remove {}", id.trim())).map(drop)
}
