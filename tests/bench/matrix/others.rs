//! The measurements of loads that other programs are compared with.

use super::{Block, Far, Port, Section, Server, Step, X};
use crate::comparisons::{self, Comparison};
use crate::disks::{self, DiskGoal, Limit};

pub(super) fn nvmf() -> Vec<Block> {
    let step = |row: &str, words: &str| Step::new(Section::Nvmf, row, X::At(0.0), words);
    let limit = |goal: &DiskGoal| step(&goal.limit_row(), goal.limit.words());
    let (fio, bench): (Vec<&DiskGoal>, _) = disks::GOALS.iter().partition(|goal| matches!(goal.limit, Limit::Fio(_)));
    // Each load is measured right before its limit.
    let load = |goal: &DiskGoal| step(goal.row, &goal.words());
    let steps = bench.iter().flat_map(|goal| [load(goal), limit(goal)]).chain(fio.iter().map(|goal| load(goal)));
    vec![
        Block { port: Port::Vhost, far: Far::Disks, steps: steps.collect() },
        Block { port: Port::Vhost, far: Far::Fio, steps: fio.iter().map(|goal| limit(goal)).collect() },
        in_guests(Section::Nvmf, Server::Kernel, &disks::LOADS),
        in_guests(Section::Nvmf, Server::Target, &disks::LOADS),
    ]
}

/// What a kernel's clients do against a server.
fn in_guests(section: Section, server: Server, works: &[(&str, &str)]) -> Block {
    let step = |(work, words): &(&str, &str)| Step::new(section, client_row(server, work), X::At(0.0), *words);
    Block { port: Port::AfPacket, far: Far::Guest(server), steps: works.iter().map(step).collect() }
}

/// The clients of perftest that a kernel runs, with the work that each is. Those of latency tell the time of one message.
/// They do a fixed amount of work, about a second of it: `-D` counts what completes in a time, which soft-RoCE under
/// emulation may first spend on sending all that is outstanding.
pub const CLIENTS: [(&str, &str); 6] = [
    ("64 B WRITE", "ib_write_bw -s 64 -n 6000"),
    ("64 B SEND", "ib_send_bw -s 64 -n 6000"),
    ("64 KiB WRITE", "ib_write_bw -s 65536 -n 120"),
    ("64 KiB READ", "ib_read_bw -s 65536 -n 120"),
    ("64 B WRITE latency", "ib_write_lat -s 64 -n 1000"),
    ("64 B SEND latency", "ib_send_lat -s 64 -n 1000"),
];

/// The row of a client's work against a server.
pub fn client_row(server: Server, work: &str) -> String {
    format!("{server}: {work}")
}

pub(super) fn kernel() -> Vec<Block> {
    [Server::Kernel, Server::Target].map(|server| in_guests(Section::Kernel, server, &CLIENTS)).to_vec()
}

pub(super) fn programs() -> Vec<Block> {
    let block = |comparison: &Comparison| {
        let step = |command: &str| Step::new(Section::Programs, comparison.row(command), X::At(0.0), command);
        // They run on veth, but on the kernel's sockets.
        Block {
            port: Port::AfPacket,
            far: Far::Program(comparison.peer),
            steps: comparison.commands().map(step).collect(),
        }
    };
    comparisons::ALL.iter().map(block).collect()
}
