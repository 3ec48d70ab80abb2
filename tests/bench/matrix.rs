//! The measurements: sections of blocks of steps. A block is a list of steps against one far end.

mod others;

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::comparisons::Peer;
pub use others::{CLIENTS, client_row};

/// A part of docs/performance.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Section {
    /// The rows that have goals, beside the limits of the port
    Rows,
    /// Rate and bandwidth by size
    Sizes,
    /// Percentiles by size
    Latency,
    /// Rate by number of queue pairs
    QueuePairs,
    /// Rate by number of memory regions
    Regions,
    /// Rate by number of lcores
    Lcores,
    /// A latency queue pair beside bulk ones
    Fairness,
    /// Goodput under loss
    Loss,
    /// Kinds of ports
    Ports,
    /// NVMe over Fabrics, beside messages and fio
    Nvmf,
    /// Programs under rxe-run, beside UCX over TCP and beside rxe-bench
    Programs,
    /// A kernel's client against a kernel's server and against rxe-target
    // The last: its guests stay until the end.
    Kernel,
}

impl Section {
    /// In the order of a run.
    pub fn all() -> Vec<Section> {
        Section::value_variants().to_vec()
    }

    /// How often each of its figures is measured, of these numbers for figures with goals and for all others.
    pub fn rounds(self, [with_goals, others]: [usize; 2]) -> usize {
        if matches!(self, Section::Rows | Section::Programs) { with_goals } else { others }
    }

    /// Those of the command line, or all but NVMe over Fabrics, which is measured on its own: the whole takes 17 minutes without it.
    pub fn chosen(given: &[Section]) -> Vec<Section> {
        let is_chosen =
            |section: &Section| if given.is_empty() { *section != Section::Nvmf } else { given.contains(section) };
        Section::all().into_iter().filter(is_chosen).collect()
    }
}

/// How much of it.
#[derive(Clone, Debug)]
pub struct Scope {
    pub sections: Vec<Section>,
    /// CPUs that the target may have.
    pub targets: usize,
    /// How long one run measures, of one size.
    pub seconds: f64,
    /// How often rows with goals are measured, and all others.
    pub rounds: [usize; 2],
}

/// The type of port that connects the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Port {
    /// net_vhost at the target, net_virtio_user at the other end.
    Vhost,
    /// A net_memif each.
    Memif,
    /// net_af_packet on either end of a veth pair.
    AfPacket,
    /// net_af_xdp on either end of a veth pair.
    AfXdp,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Port::Vhost => "net_vhost, net_virtio_user",
            Port::Memif => "net_memif",
            Port::AfPacket => "net_af_packet on veth",
            Port::AfXdp => "net_af_xdp on veth",
        })
    }
}

/// The program at the far end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Far {
    /// rxe-target on this number of lcores and queues, with further options.
    Target { lcores: usize, queues: usize, options: Vec<String> },
    /// rxe-target on one lcore with the namespaces of [`disks`].
    Disks,
    /// fio, which needs no far end.
    Fio,
    /// `rxe-bench reflect`.
    Reflector,
    /// testpmd, which brings its own other end.
    Testpmd,
    /// This server in a guest, for clients in another.
    Guest(Server),
    /// This program in a network namespace, for programs in another.
    Program(Peer),
}

/// The server of perftest's clients in a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server {
    /// perftest's own programs, on the kernel's soft-RoCE.
    Kernel,
    /// rxe-target, on net_af_packet.
    Target,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Server::Kernel => "the kernel's rdma_rxe",
            Server::Target => "rxe-target",
        })
    }
}

/// Steps against one far end.
#[derive(Clone, Debug)]
pub struct Block {
    pub port: Port,
    pub far: Far,
    pub steps: Vec<Step>,
}

impl Block {
    /// Whether rxe-bench does its steps.
    fn of_rxe_bench(&self) -> bool {
        !matches!(self.far, Far::Testpmd | Far::Guest(_) | Far::Fio | Far::Program(_))
    }
}

/// A step's position on the axis of its section.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum X {
    /// The size in the run's result.
    Size,
    /// This.
    At(f64),
}

/// One run of rxe-bench, of a pair of testpmd, or of a client program.
#[derive(Clone, Debug)]
pub struct Step {
    pub section: Section,
    pub row: String,
    pub x: X,
    /// Arguments of rxe-bench; `5tswap`, `macswap` or `one-way` with the bytes of a frame; kind, bytes and depth of
    /// fio; or the command of a program.
    pub words: String,
    /// Results that it brings.
    pub sizes: u32,
}

impl Step {
    fn new(section: Section, row: impl Into<String>, x: X, words: impl Into<String>) -> Step {
        let (row, words) = (row.into(), words.into());
        let sizes = if words.contains(" -a ") { ALL_SIZES } else { 1 };
        Step { section, row, x, words, sizes }
    }

    /// How long it measures each size: where there are many, half as long, to be done in time.
    fn measures(&self, scope: &Scope) -> f64 {
        if self.sizes > 1 { scope.seconds / 2.0 } else { scope.seconds }
    }
}

/// Sizes that `-a` measures: 2 bytes to 8 MiB.
const ALL_SIZES: u32 = 23;
/// Bytes of a frame besides the payload of a WRITE.
pub const OVERHEAD: u32 = 14 + 20 + 8 + 12 + 16 + 4;
/// How long a run takes besides measuring, about.
const START: f64 = 1.2;
const START_MANY: f64 = 8.0;
/// How long guests take to boot, the change of the server in one, and each run with them, about.
const BOOT: f64 = 45.0;
const CHANGE: f64 = 4.0;
const PERFTEST: f64 = 2.0;
/// How long a run of a program in a namespace takes, about.
const PROGRAM: f64 = 1.5;
/// Warm-up, not measured.
const WARM_UP: f64 = 0.1;
/// How often rows with goals are measured, and all others.
pub const ROUNDS: [usize; 2] = [5, 3];
/// Goals of the 99.9th percentile of the latency, in microseconds.
pub const TAIL: (f64, f64) = (10.0, 3.0);
/// Most packets in flight on a queue pair: the most that one loss can make it retransmit.
pub const WINDOW: f64 = 256.0;
/// The most queue pairs.
pub const MANY_QPS: u32 = 16_384;

/// A row that has a goal.
pub struct Goal {
    pub row: &'static str,
    pub words: &'static str,
    /// Mpps, Gb/s, or us.
    pub unit: Unit,
    pub least: f64,
    pub aim: f64,
    /// Payload of the frames that the limit is measured with.
    pub frame: u32,
}

/// The unit of a goal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    Mega,
    Gbps,
    Micros,
}

/// The port's own rate on the machine where the goals were set, in million frames a second, by payload: reflected, or sent
/// one way.
const THERE: [(u32, &str, f64); 3] = [(64, "round", 25.0), (1024, "round", 13.0), (4096, "one way", 10.9)];

impl Goal {
    /// The goal as a share of the port's own rate on that machine, and the direction of that rate.
    pub fn share(&self) -> Option<(f64, &'static str)> {
        let packets = match self.unit {
            Unit::Mega => self.least,
            Unit::Gbps => self.least * 1e3 / 8.0 / f64::from(self.frame),
            Unit::Micros => return None,
        };
        let (_, way, rate) = THERE.iter().find(|(frame, ..)| *frame == self.frame)?;
        Some((packets / rate, way))
    }
}

const fn goal(row: &'static str, words: &'static str, unit: Unit, (least, aim): (f64, f64), frame: u32) -> Goal {
    Goal { row, words, unit, least, aim, frame }
}

/// The rows that have goals.
pub const GOALS: [Goal; 9] = [
    goal("64 B WRITE, 8 QPs", "write-bw -s 64 -q 8", Unit::Mega, (11.0, 20.0), 64),
    goal("64 B READ, 8 QPs", "read-bw -s 64 -q 8", Unit::Mega, (7.0, 15.0), 64),
    goal("64 B SEND, 8 QPs, receives posted again", "send-bw -s 64 -q 8", Unit::Mega, (8.0, 16.0), 64),
    goal("8 B FETCH_ADD, 8 QPs", "atomic-bw -q 8", Unit::Mega, (6.0, 12.0), 64),
    goal("64 KiB WRITE, MTU 4096, 8 QPs", "write-bw -s 64K -q 8 -m 4096", Unit::Gbps, (90.0, 140.0), 4096),
    goal("64 KiB READ, MTU 4096, 8 QPs", "read-bw -s 64K -q 8 -m 4096", Unit::Gbps, (80.0, 140.0), 4096),
    goal("64 KiB WRITE, MTU 1024, 8 QPs", "write-bw -s 64K -q 8 -m 1024", Unit::Gbps, (60.0, 100.0), 1024),
    goal("64 B WRITE latency", "write-lat -s 64", Unit::Micros, (0.8, 0.45), 64),
    goal("64 B WRITE, 16k QPs round robin", "write-bw -s 64 -q 16384", Unit::Mega, (6.0, 11.0), 64),
];

/// The goals that the summary shows, beside [`AF_PACKET_ROW`].
pub const SUMMARY: [&str; 4] =
    ["64 B WRITE, 8 QPs", "64 KiB READ, MTU 4096, 8 QPs", "64 B WRITE latency", "64 B WRITE, 16k QPs round robin"];

/// The row of the port that the kernel carries, and its limit.
pub const AF_PACKET_ROW: &str = "64 B WRITE, 8 QPs, net_af_packet on veth";
pub const AF_PACKET_LIMIT: &str = "testpmd macswap, net_af_packet on veth";
/// Rows of limits, by payload.
pub const ECHO: &str = "echo";
pub const ECHO_LATENCY: &str = "echo, one frame";
pub const SWAP: &str = "testpmd 5tswap";
pub const ONE_WAY: &str = "testpmd one way";

/// rxe-target on one lcore.
fn target(options: &[&str]) -> Far {
    Far::Target { lcores: 1, queues: 1, options: options.iter().map(|option| (*option).to_owned()).collect() }
}

/// All that is to be done for `scope`.
pub fn blocks(scope: &Scope) -> Vec<Block> {
    let blocks_of = |section: Section| match section {
        Section::Rows => rows(),
        Section::Sizes => sizes(),
        Section::Latency => latency(),
        Section::QueuePairs => queue_pairs(),
        Section::Regions => regions(),
        Section::Lcores => lcores(scope.targets),
        Section::Fairness => fairness(),
        Section::Loss => loss(),
        Section::Ports => ports(),
        Section::Nvmf => others::nvmf(),
        Section::Programs => others::programs(),
        Section::Kernel => others::kernel(),
    };
    let round = |section: &Section| (blocks_of(*section), section.rounds(scope.rounds));
    // A bad minute of the machine falls on one round, not on one row.
    let rounds = |(blocks, count): (Vec<Block>, usize)| std::iter::repeat_n(blocks, count).flatten();
    let mut blocks: Vec<Block> = scope.sections.iter().map(round).flat_map(rounds).collect();
    for step in blocks.iter_mut().filter(|block| block.of_rxe_bench()).flat_map(|block| &mut block.steps) {
        step.words += &format!(" -D {} --warm-up {WARM_UP}", step.measures(scope));
    }
    blocks
}

/// How long they take, about.
pub fn seconds(blocks: &[Block], scope: &Scope) -> f64 {
    // Connecting and disconnecting thousands of queue pairs takes its time.
    let start = |step: &Step| if step.words.contains(&format!("-q {MANY_QPS} ")) { START_MANY } else { START };
    let step = |step: &Step| start(step) + f64::from(step.sizes) * (step.measures(scope) + WARM_UP);
    let block = |block: &Block| match block.far {
        Far::Guest(_) => CHANGE + PERFTEST * block.steps.len() as f64,
        Far::Program(_) => PROGRAM * block.steps.len() as f64,
        _ => START + block.steps.iter().map(step).sum::<f64>(),
    };
    let boot = if blocks.iter().any(|block| matches!(block.far, Far::Guest(_))) { BOOT } else { 0.0 };
    boot + blocks.iter().map(block).sum::<f64>()
}

/// The port's limits at these payloads.
fn limits(port: Port, section: Section, payloads: &[u32]) -> [Block; 2] {
    let at = |row: &str, payload: u32, words: String| Step::new(section, row, X::At(payload.into()), words);
    let echo = payloads.iter().map(|payload| at(ECHO, *payload, format!("echo -s {payload} -q 8")));
    let single = at(ECHO_LATENCY, 64, "echo -s 64 -t 1".to_owned());
    let pmd = |(row, way): (&str, &str), payload: &u32| at(row, *payload, format!("{way} {}", payload + OVERHEAD));
    let swap = payloads.iter().map(|payload| pmd((SWAP, "5tswap"), payload));
    let one_way = payloads.iter().map(|payload| pmd((ONE_WAY, "one-way"), payload));
    [
        Block { port, far: Far::Reflector, steps: echo.chain([single]).collect() },
        Block { port, far: Far::Testpmd, steps: swap.chain(one_way).collect() },
    ]
}

fn rows() -> Vec<Block> {
    let section = Section::Rows;
    let steps: Vec<Step> = GOALS.iter().map(|goal| Step::new(section, goal.row, X::At(0.0), goal.words)).collect();
    let mut blocks = vec![Block { port: Port::Vhost, far: target(&[]), steps }];
    blocks.extend(limits(Port::Vhost, section, &[64, 1024, 4096]));
    let one = |far, row, words| {
        let steps = vec![Step::new(section, row, X::At(0.0), words)];
        Block { port: Port::AfPacket, far, steps }
    };
    blocks.push(one(target(&[]), AF_PACKET_ROW, "write-bw -s 64 -q 8".to_owned()));
    blocks.push(one(Far::Testpmd, AF_PACKET_LIMIT, format!("macswap {}", 64 + OVERHEAD)));
    blocks
}

/// The tests of messages, as rows of sizes and latencies.
pub const VERBS: [(&str, &str); 3] = [("WRITE", "write"), ("READ", "read"), ("SEND", "send")];

fn sizes() -> Vec<Block> {
    let step = |(row, verb): &(&str, &str)| Step::new(Section::Sizes, *row, X::Size, format!("{verb}-bw -a -q 8"));
    let echo = Step::new(Section::Sizes, ECHO, X::Size, "echo -a -q 8");
    vec![
        Block { port: Port::Vhost, far: target(&[]), steps: VERBS.iter().map(step).collect() },
        Block { port: Port::Vhost, far: Far::Reflector, steps: vec![echo] },
    ]
}

fn latency() -> Vec<Block> {
    let step = |(row, verb): &(&str, &str)| Step::new(Section::Latency, *row, X::Size, format!("{verb}-lat -a -q 1"));
    let echo = Step::new(Section::Latency, ECHO_LATENCY, X::Size, "echo -a -t 1");
    vec![
        Block { port: Port::Vhost, far: target(&[]), steps: VERBS.iter().map(step).collect() },
        Block { port: Port::Vhost, far: Far::Reflector, steps: vec![echo] },
    ]
}

/// Numbers of queue pairs.
pub const QPS: [u32; 5] = [1, 8, 64, 1024, MANY_QPS];
/// The row of them.
pub const QPS_ROW: &str = "64 B WRITE";

fn queue_pairs() -> Vec<Block> {
    let step =
        |qps: u32| Step::new(Section::QueuePairs, QPS_ROW, X::At(qps.into()), format!("write-bw -s 64 -q {qps}"));
    vec![Block { port: Port::Vhost, far: target(&[]), steps: QPS.map(step).to_vec() }]
}

/// Numbers of regions that messages use round robin.
pub const REGIONS: [u32; 3] = [1, 1000, 100_000];
/// The row of them.
pub const REGIONS_ROW: &str = "64 B WRITE, 8 QPs";

fn regions() -> Vec<Block> {
    // The target is the same for all; the number of its regions that are used differs.
    let [.., most] = REGIONS;
    let far = target(&["--region", &format!("many=4K*{most}")]);
    let step = |count: u32| {
        let words = format!("write-bw -s 64 -q 8 --region many --regions {count}");
        Step::new(Section::Regions, REGIONS_ROW, X::At(count.into()), words)
    };
    vec![Block { port: Port::Vhost, far, steps: REGIONS.map(step).to_vec() }]
}

/// How lcores share the work.
pub const HAND_OFF: &str = "one queue, software hand-off";
pub const QUEUES: &str = "a queue for each lcore";

fn lcores(most: usize) -> Vec<Block> {
    let block = |(row, lcores, queues): (&str, usize, usize)| {
        let x = X::At(lcores as f64);
        let steps = vec![Step::new(Section::Lcores, row, x, "write-bw -s 64 -q 64")];
        Block { port: Port::Vhost, far: Far::Target { lcores, queues, options: Vec::new() }, steps }
    };
    let counts = (1..=most.max(1)).filter(|lcores| lcores.is_power_of_two());
    counts.flat_map(|lcores| [(HAND_OFF, lcores, 1), (QUEUES, lcores, lcores)]).map(block).collect()
}

/// Rows of fairness.
pub const BESIDE: [(&str, &str); 3] = [
    ("alone", ""),
    ("beside 8 QPs of 1 MiB READs", " --bulk read --bulk-qp 8 --bulk-size 1M"),
    ("beside 8 QPs of 1 MiB WRITEs", " --bulk write --bulk-qp 8 --bulk-size 1M"),
];

fn fairness() -> Vec<Block> {
    let step = |(row, bulk): &(&str, &str)| {
        Step::new(Section::Fairness, *row, X::At(0.0), format!("write-lat -s 64 -m 4096{bulk}"))
    };
    vec![Block { port: Port::Vhost, far: target(&[]), steps: BESIDE.iter().map(step).collect() }]
}

/// Losses in percent.
pub const LOSSES: [f64; 4] = [0.0, 0.01, 0.1, 1.0];
/// The share of frames that is lost where none is to be: one in a thousand runs.
const NO_LOSS: f64 = 1e-9;
/// The row of them.
pub const LOSS_ROW: &str = "64 KiB WRITE, MTU 4096, 8 QPs";

fn loss() -> Vec<Block> {
    let block = |percent: f64| {
        // The frames pass an injector in any case, which costs something by itself.
        let fault = format!("rx.drop={},seed=7", if percent > 0.0 { percent / 100.0 } else { NO_LOSS });
        let options = target(&["--fault", &fault]);
        let step = Step::new(Section::Loss, LOSS_ROW, X::At(percent), "write-bw -s 64K -q 8 -m 4096");
        Block { port: Port::Vhost, far: options, steps: vec![step] }
    };
    LOSSES.map(block).to_vec()
}

/// The kinds of ports that are compared.
pub const PORTS: [Port; 4] = [Port::Vhost, Port::Memif, Port::AfPacket, Port::AfXdp];
/// The measurements of each.
pub const PORT_TESTS: [(&str, &str); 3] =
    [("64 B WRITE", "write-bw -s 64 -q 8"), ("64 KiB WRITE", "write-bw -s 64K -q 8"), ("latency", "write-lat -s 64")];

/// The row of a test on a port.
pub fn port_row(port: Port, test: &str) -> String {
    format!("{port}: {test}")
}

fn ports() -> Vec<Block> {
    let block = |port: Port| {
        let step = |(test, words): &(&str, &str)| {
            Step::new(Section::Ports, port_row(port, test), X::At(0.0), (*words).to_owned())
        };
        let echo = Step::new(Section::Ports, port_row(port, ECHO), X::At(0.0), "echo -s 64 -q 8");
        [
            Block { port, far: target(&[]), steps: PORT_TESTS.iter().map(step).collect() },
            Block { port, far: Far::Reflector, steps: vec![echo] },
        ]
    };
    PORTS.into_iter().flat_map(block).collect()
}

/// The words of a step without how long it measures, which is the same for all.
pub fn without_times(words: &str) -> &str {
    words.split(" -D ").next().unwrap_or(words)
}
