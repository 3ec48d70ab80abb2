//! The options of the bench, as clap reads them.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::perftest_options::PerftestOptions;
use crate::plan::{Protocol, Test};
use crate::values::{Mtu, OwnAddress, Peer, Router, Seconds, Size};

const USAGE: &str = "rxe-bench [EAL OPTIONS] -- TEST --address IP/PREFIX --peer IP[:PORT] [OPTIONS]
       rxe-bench TEST --udp ADDRESS --peer IP[:PORT] [OPTIONS]";

const AFTER_HELP: &str = "\
The arguments before the first `--` are those of DPDK's EAL. Without `-l` or another option that chooses lcores, the bench \
uses one: the first CPU that the process may run on. With --udp there is no DPDK, and there are no arguments for EAL.

  rxe-bench -l 1 --vdev=net_virtio_user0,path=/tmp/vhost.sock,queue_size=1024 -- \\
      write-bw --address 10.0.0.2/24 --peer 10.0.0.1 -s 64 -q 8
  rxe-bench write-bw --udp 127.0.0.3 --peer 127.0.0.2

Ctrl-C, a target that goes away and other failures also print what was measured until then.

Exit codes: 0 when the test is complete, or a signal ends --run_infinitely; 1 when it failed after the start, a signal ended it \
before its end, or no message was completed; 2 when it cannot start.";

/// Measures rate, bandwidth and latency of RDMA operations on a RoCEv2 target.
#[derive(Parser, Debug)]
#[command(name = "rxe-bench", version = rxe::VERSION, no_binary_name = true, override_usage = USAGE, after_help = AFTER_HELP)]
pub struct Args {
    /// The test
    #[arg(value_enum)]
    pub test: Test,

    /// Address of the bench with its on-link prefix; required for all tests but `reflect`
    #[arg(long, value_name = "IP/PREFIX", help_heading = "Ends")]
    pub address: Option<OwnAddress>,

    /// Address of this machine from which to test, on an ordinary UDP socket instead of a DPDK port: without EAL's arguments,
    /// hugepages or root
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["address", "gateway"], help_heading = "Ends")]
    pub udp: Option<IpAddr>,

    /// Address of the target; required for all tests but `reflect` [default port: 4792, perftest: 18515]
    #[arg(long, value_name = "IP[:PORT]", help_heading = "Ends")]
    pub peer: Option<Peer>,

    /// Router to a target outside of the bench's network
    #[arg(long, value_name = "IP", help_heading = "Ends")]
    pub gateway: Option<Router>,

    /// Protocol for obtaining address and key of the target's memory [default: region; for SENDs: perftest]
    #[arg(long, value_enum, help_heading = "Ends")]
    pub protocol: Option<Protocol>,

    /// Name of the target's region [default: its first]
    #[arg(long, value_name = "NAME", default_value = "", help_heading = "Ends")]
    pub region: String,

    /// Number of numbered regions to use in turn; their names are --region with a number, from 0 on
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Ends")]
    pub regions: Option<u32>,

    /// Size of a message in bytes, or with K or M [default: 65536; latency: 2; atomics: always 8]
    #[arg(short, long, value_name = "BYTES", help_heading = "Load")]
    pub size: Option<Size>,

    /// Test every power of two from 2 bytes to 8 MiB that fits the target's memory
    #[arg(short, long, conflicts_with = "size", help_heading = "Load")]
    pub all: bool,

    /// Number of queue pairs
    #[arg(short, long = "qp", value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_000), help_heading = "Load")]
    pub qps: u32,

    /// Number of messages on each queue pair
    #[arg(short = 'n', long = "iters", value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "duration", help_heading = "Measurement")]
    pub messages: Option<u64>,

    /// Duration of the measurement in seconds; with --run_infinitely the interval of the results [default: 2; with --run_infinitely 1]
    #[arg(short = 'D', long, value_name = "SECONDS", help_heading = "Measurement")]
    pub duration: Option<Seconds>,

    /// Measure until stopped, and print a result each second, or each --duration
    #[arg(long = "run_infinitely", alias = "run-infinitely", conflicts_with_all = ["messages", "all"], help_heading = "Measurement")]
    pub run_infinitely: bool,

    /// Warm-up in seconds, not measured [default: 0.25; 0 with --iters and perftest, whose servers expect the exact number of messages]
    #[arg(long, value_name = "SECONDS", help_heading = "Measurement")]
    pub warm_up: Option<Seconds>,

    /// Outstanding messages of a queue pair [default: 128, fewer with many queue pairs or long messages; latency: 1]
    #[arg(short, long = "tx-depth", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Load")]
    pub tx_depth: Option<u32>,

    /// Number of messages per completion [default: a quarter of --tx-depth, 1 above 8 KiB]
    #[arg(short = 'Q', long = "cq-mod", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Load")]
    pub cq_mod: Option<u32>,

    /// Outstanding READs and atomics of a queue pair; the target may allow fewer [default: 16; perftest: 128]
    #[arg(short, long = "outs", value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=128), help_heading = "Load")]
    pub outs: Option<u8>,

    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that the port supports]
    #[arg(short, long, value_name = "BYTES", help_heading = "Load")]
    pub mtu: Option<Mtu>,

    /// Send data in both directions: WRITEs and READs alternately, or SENDs and the target's answers
    #[arg(short, long = "bidirectional", help_heading = "Load")]
    pub bidirectional: bool,

    /// Check the data of every message after its round trip. Messages below 512 bytes are compared byte by byte, longer ones by
    /// their CRC-32C
    #[arg(long, help_heading = "Measurement")]
    pub verify: bool,

    /// Run READs or WRITEs on additional queue pairs during the test
    #[arg(long, value_enum, value_name = "VERB", help_heading = "Load")]
    pub bulk: Option<BulkVerb>,

    /// Number of queue pairs of --bulk [default: 8]
    #[arg(long = "bulk-qp", value_name = "NUMBER", requires = "bulk", value_parser = clap::value_parser!(u32).range(1..=65_000), help_heading = "Load")]
    pub bulk_qps: Option<u32>,

    /// Size of the messages of --bulk in bytes, or with K or M [default: 1M]
    #[arg(long, value_name = "BYTES", requires = "bulk", help_heading = "Load")]
    pub bulk_size: Option<Size>,

    /// Print the bandwidth in Gb/s instead of MiB/s
    #[arg(long = "report_gbits", alias = "report-gbits", help_heading = "Results")]
    pub report_gbits: bool,

    /// Write the results as JSON to FILE, or with `-` to standard output instead of the table
    #[arg(long = "out_json", alias = "out-json", value_name = "FILE", help_heading = "Results")]
    pub out_json: Option<PathBuf>,

    #[command(flatten)]
    pub perftest: PerftestOptions,
}

/// The verb of --bulk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum BulkVerb {
    /// READs
    Read,
    /// WRITEs
    Write,
}
