//! Programs under rxe-run whose figures are compared with those of another program, which runs right before them.

/// The program at the far end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// The same program as at the near end, as its server.
    Same,
    /// rxe-target on a UDP socket.
    Target,
}

/// The figure that is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// Messages per second.
    Rate,
    /// Payload per second.
    Bandwidth,
    /// CPU time of the near end per message, user and system, from its start to its end.
    Cpu,
}

/// A goal of a ratio.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    /// Whether a ratio reaches it.
    pub fn holds(self, ratio: f64) -> bool {
        match self {
            Bound::AtLeast(least) => ratio >= least,
            Bound::AtMost(most) => ratio <= most,
        }
    }
}

/// A comparison: all of its programs run once in each round, one right after the other, and a ratio is that of two figures of one
/// round.
pub struct Comparison {
    /// Its name in tables.
    pub work: &'static str,
    pub measure: Measure,
    pub peer: Peer,
    /// The command that the others are compared with.
    pub base: &'static str,
    /// The command that has the goal, as a ratio to `base`.
    pub ours: &'static str,
    pub goal: Bound,
    /// A command that is shown beside it and has no goal.
    pub other: Option<&'static str>,
}

impl Comparison {
    /// All commands, in the order of a round.
    pub fn commands(&self) -> impl Iterator<Item = &'static str> {
        [self.base, self.ours].into_iter().chain(self.other)
    }

    /// The row of a command's figure.
    pub fn row(&self, command: &str) -> String {
        format!("{}: {command}", self.work)
    }
}

/// The program of a command.
pub fn program(command: &str) -> &str {
    command.split_whitespace().next().unwrap_or_default()
}

/// Messages that a command sends: the number behind its `-n`.
pub fn messages(command: &str) -> Option<u64> {
    let mut words = command.split_whitespace().skip_while(|word| *word != "-n");
    words.nth(1)?.parse().ok()
}

/// UCX sends with as many messages outstanding as perftest, and sleeps while it waits, as `ib_send_bw -e` does. ib_write_bw has
/// no such option: it polls, so it has no goal there.
pub const ALL: [Comparison; 6] = [
    Comparison {
        work: "64 B messages beside TCP",
        measure: Measure::Rate,
        peer: Peer::Same,
        base: "ucx_perftest -t tag_bw -s 64 -n 300000 -O 128 -E sleep",
        ours: "ib_send_bw -e -s 64 -n 300000",
        goal: Bound::AtLeast(2.0),
        other: Some("ib_write_bw -s 64 -n 300000"),
    },
    Comparison {
        work: "64 KiB messages beside TCP",
        measure: Measure::Bandwidth,
        peer: Peer::Same,
        base: "ucx_perftest -t tag_bw -s 65536 -n 10000 -O 128 -E sleep",
        ours: "ib_send_bw -e -s 65536 -n 10000",
        goal: Bound::AtLeast(1.0),
        other: Some("ib_write_bw -s 65536 -n 10000"),
    },
    Comparison {
        other: Some("ib_send_bw -s 64 -n 300000"),
        ..cpu("CPU of a 64 B SEND", "rxe-bench send-bw -s 64 -n 300000", "ib_send_bw -e -s 64 -n 300000")
    },
    Comparison {
        other: Some("ib_send_bw -s 65536 -n 10000"),
        ..cpu("CPU of a 64 KiB SEND", "rxe-bench send-bw -s 65536 -n 10000", "ib_send_bw -e -s 65536 -n 10000")
    },
    cpu("CPU of a 64 B WRITE", "rxe-bench write-bw -s 64 -n 300000", "ib_write_bw -s 64 -n 300000"),
    cpu("CPU of a 64 KiB WRITE", "rxe-bench write-bw -s 65536 -n 10000", "ib_write_bw -s 65536 -n 10000"),
];

/// The CPU time that verbs in a program cost, beside the engine without them: at most 20 % more. A program that polls counts its
/// waiting too, so the one that sleeps has the goal where there is one.
const fn cpu(work: &'static str, base: &'static str, ours: &'static str) -> Comparison {
    Comparison { work, measure: Measure::Cpu, peer: Peer::Target, base, ours, goal: Bound::AtMost(1.2), other: None }
}
