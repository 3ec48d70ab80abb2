//! Faults that rxe-ctl makes while the target runs, and what the kernel's RoCE makes of them.

use crate::Check;
use crate::matrix::{Bed, Port};
use crate::report::Report;
use crate::target::TARGET_V4;
use crate::world::World;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);

/// A fault, and what a client does meanwhile.
struct Trial {
    /// For `rxe-ctl fault add`.
    fault: &'static str,
    command: &'static str,
    /// The client's exit code, and what it says.
    outcome: (u32, &'static str),
    /// How often the fault happens.
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

const TRIALS: [Trial; 10] = [
    Trial {
        fault: "rnr --count 3",
        command: PATTERN,
        outcome: WELL,
        hits: 3,
        kernel: "rcvd_rnr_err",
        ours: "send_rnr_err",
    },
    Trial {
        fault: "rnr 1ms --opcode SEND --count 3",
        command: RPING,
        outcome: (0, "ping data: rdma-ping-4"),
        hits: 3,
        kernel: "rcvd_rnr_err",
        ours: "send_rnr_err",
    },
    Trial {
        fault: "nak psn-sequence --opcode WRITE_MIDDLE --count 2",
        command: PATTERN,
        outcome: WELL,
        hits: 2,
        kernel: "rcvd_seq_err",
        ours: "sequence_naks_sent",
    },
    Trial {
        fault: "drop --opcode RC_WRITE --probability 0.2 --seed 7 --count 4",
        command: PATTERN,
        outcome: WELL,
        hits: 4,
        kernel: "sent_pkts",
        ours: "out_of_seq_request",
    },
    Trial {
        fault: "drop --direction tx --opcode READ_RESPONSE_MIDDLE --count 2",
        command: PATTERN,
        outcome: WELL,
        hits: 2,
        kernel: "sent_pkts",
        ours: "read_responses_sent",
    },
    Trial {
        fault: "corrupt-icrc --opcode WRITE_MIDDLE,WRITE_LAST --count 3",
        command: PATTERN,
        outcome: WELL,
        hits: 3,
        kernel: "sent_pkts",
        ours: "out_of_seq_request",
    },
    Trial { fault: "ecn --count 3", command: PATTERN, outcome: WELL, hits: 3, kernel: "sent_pkts", ours: "ecn_marked" },
    Trial {
        fault: "nak invalid-request --opcode READ_REQUEST --count 1",
        command: PATTERN,
        outcome: (1, "READ at offset 0: remote invalid request error"),
        hits: 1,
        kernel: "sent_pkts",
        ours: "fatal_naks_sent",
    },
    Trial {
        fault: "nak remote-access --count 1",
        command: PATTERN,
        outcome: (1, "WRITE at offset 0: remote access error"),
        hits: 1,
        kernel: "sent_pkts",
        ours: "fatal_naks_sent",
    },
    Trial {
        fault: "nak remote-operational --count 1",
        command: PATTERN,
        outcome: (1, "WRITE at offset 0: remote operation error"),
        hits: 1,
        kernel: "sent_pkts",
        ours: "fatal_naks_sent",
    },
];

/// The group `fault`.
pub fn run(report: &mut Report, world: &World) {
    if !report.group("fault") {
        return;
    }
    let Some(mut bed) = report.fixture("boot", || Bed::with(world, "fi", "0", Port::Vhost, 4200, &[])) else { return };
    for trial in &TRIALS {
        let name = format!("rxe-ctl fault add {}", trial.fault);
        report.case(&name, || bed.context(), || attempt(&bed, trial));
    }
    report.case(
        "without faults all is well again",
        || bed.context(),
        || {
            ctl(&bed, "fault clear")?;
            let done = bed.guest.expect(&PATTERN.replace("ADDRESS", TARGET_V4), LIMIT, &[WELL.1]).map(drop);
            let list = ctl(&bed, "--json fault list")?;
            if list.trim() == "[]" { done } else { Err(format!("there are still faults: {list}")) }
        },
    );
    report.case("the target ends well", String::new, || {
        let summary = bed.stop_target()?;
        let whole = summary.contains("mbufs_leaked=0") && summary.contains(" refused=");
        if whole { Ok(()) } else { Err(summary) }
    });
}

fn ctl(bed: &Bed<'_>, words: &str) -> Result<String, String> {
    bed.target.as_ref().ok_or("the target does not run")?.ctl(words)
}

/// A counter of the guest's RoCE device.
fn kernel(bed: &Bed<'_>, name: &str) -> Result<u64, String> {
    let said = bed.guest.expect(&format!("cat /sys/class/infiniband/rxe0/ports/1/hw_counters/{name}"), LIMIT, &[])?;
    said.text.trim().parse().map_err(|_| format!("{name}: {:?}", said.text))
}

/// A counter of the target's queue pairs.
fn ours(bed: &Bed<'_>, name: &str) -> Result<u64, String> {
    let text = ctl(bed, "stat --all")?;
    let mut lines =
        text.lines().filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
    lines.next().ok_or_else(|| format!("no {name} in {text}"))
}

fn attempt(bed: &Bed<'_>, trial: &Trial) -> Check {
    let before = (kernel(bed, trial.kernel)?, ours(bed, trial.ours)?);
    let id = ctl(bed, &format!("fault add {}", trial.fault))?;
    let done = bed.guest.run(&trial.command.replace("ADDRESS", TARGET_V4), LIMIT)?;
    if done.code != trial.outcome.0 || !done.text.contains(trial.outcome.1) {
        return Err(format!("{} ended with {} and says\n{}", trial.command, done.code, done.text));
    }
    let list = ctl(bed, "fault list")?;
    let hits = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|row| row[0] == id.trim());
    if hits.as_ref().is_none_or(|row| row[2] != trial.hits.to_string() || row[3] != "0") {
        return Err(format!("fault {id} should have hit {} times:\n{list}", trial.hits));
    }
    let after = (kernel(bed, trial.kernel)?, ours(bed, trial.ours)?);
    if after.0 <= before.0 || after.1 <= before.1 {
        return Err(format!("{} and {} counted {before:?} and then {after:?}", trial.kernel, trial.ours));
    }
    ctl(bed, &format!("fault remove {}", id.trim())).map(drop)
}
