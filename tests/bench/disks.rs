//! The goals of NVMe over Fabrics: loads of `rxe-bench nvme`, each beside what limits it.

/// The subsystem of rxe-target: namespace 1 is memory, namespace 2 a file, namespace 3 as much memory as a core's caches hold.
pub const NQN: &str = "nqn.2026-01.org.example:bench";
/// Bytes of namespaces 1 and 2.
pub const SIZE: usize = 64 << 20;
/// Bytes of namespace 3: the messages of a limit are in caches too.
pub const SMALL: usize = 1 << 20;

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// I/Os per second, divided by messages or I/Os per second: at least the goal.
    Rate,
    /// The median latency, divided by the median latency: at most the goal.
    Time,
}

/// The program that measures the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// `rxe-bench` with these words, against the same rxe-target.
    Bench(&'static str),
    /// fio with io_uring on the same file: kind, bytes and depth.
    Fio(&'static str),
}

impl Limit {
    /// The words, in which the program is known.
    pub const fn words(self) -> &'static str {
        match self {
            Limit::Bench(words) | Limit::Fio(words) => words,
        }
    }
}

/// A load that has a goal.
pub struct DiskGoal {
    pub row: &'static str,
    /// Options of `rxe-bench nvme`.
    pub options: &'static str,
    pub limit: Limit,
    pub figure: Figure,
    pub goal: f64,
}

impl DiskGoal {
    /// Words of rxe-bench.
    pub fn words(&self) -> String {
        format!("nvme --nqn {NQN} {}", self.options)
    }

    /// The row of the limit.
    pub fn limit_row(&self) -> String {
        format!("beside {}", self.row)
    }
}

/// Loads of fio on a kernel's disk in a guest, with the work that each is: kind, bytes and depth. One at a time tells the latency.
pub const LOADS: [(&str, &str); 4] = [
    ("4 KiB random reads", "fio randread 4096 32"),
    ("4 KiB random writes", "fio randwrite 4096 32"),
    ("one 4 KiB read", "fio randread 4096 1"),
    ("one 4 KiB write", "fio randwrite 4096 1"),
];

/// A SEND in each direction is two messages of `send-bw -b`.
pub const GOALS: [DiskGoal; 6] = [
    DiskGoal {
        row: "4 KiB random reads of memory",
        options: "-w randread -o 4096 -q 64",
        limit: Limit::Bench("write-bw -s 4096"),
        figure: Figure::Rate,
        goal: 0.6,
    },
    DiskGoal {
        row: "4 KiB random reads of 1 MiB",
        options: "--namespace 3 -w randread -o 4096 -q 64",
        limit: Limit::Bench("write-bw -s 4096"),
        figure: Figure::Rate,
        goal: 0.6,
    },
    DiskGoal {
        row: "512 B random reads of memory",
        options: "-w randread -o 512 -q 64",
        limit: Limit::Bench("send-bw -s 64 -b"),
        figure: Figure::Rate,
        goal: 0.5,
    },
    DiskGoal {
        row: "512 B random reads of 1 MiB",
        options: "--namespace 3 -w randread -o 512 -q 64",
        limit: Limit::Bench("send-bw -s 64 -b"),
        figure: Figure::Rate,
        goal: 0.5,
    },
    DiskGoal {
        row: "one 4 KiB read of memory",
        options: "-w randread -o 4096 -q 1",
        limit: Limit::Bench("send-lat -s 64"),
        figure: Figure::Time,
        goal: 2.5,
    },
    DiskGoal {
        row: "4 KiB random reads of a file",
        options: "--namespace 2 -w randread -o 4096 -q 32",
        limit: Limit::Fio("randread 4096 32"),
        figure: Figure::Rate,
        goal: 0.7,
    },
];
