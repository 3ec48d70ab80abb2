//! The command line: what goes to EAL, what is ours, and what to say when it cannot be understood.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{CommandFactory, Parser, ValueEnum};
use rxe_dpdk::host::Cidr;
use rxe_proto::wire::PathMtu;

use crate::command_line::{self, Asked, CommandLine};
use crate::mistake::{Mistake, mistake};
use crate::perftest;
use crate::plan::{Beside, Json, Length, Plan, Protocol, Test, Verb};

/// Version of the bench and of DPDK as the build script found them.
const VERSION: &str = match option_env!("RXE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    /// Print this text and be done.
    Print(String),
    /// Write the manual page and completions into this folder.
    Generate(PathBuf),
    /// Measure.
    Run(Box<Plan>),
}

const USAGE: &str = "rxe-bench [EAL OPTIONS] -- TEST --address IP/PREFIX --peer IP[:PORT] [OPTIONS]";

const AFTER_HELP: &str = "\
What stands before the first `--` goes to DPDK's EAL. Without `-l` or another option that chooses lcores, the first CPU \
that the process may use becomes the only one.

  rxe-bench -l 1 --vdev=net_virtio_user0,path=/tmp/vhost.sock,queue_size=1024 -- \\
      write-bw --address 10.0.0.2/24 --peer 10.0.0.1 -s 64 -q 8

Exit codes: 0 when all was measured, 1 when something broke down on the way, 2 when it cannot start.";

/// Measures a RoCEv2 target: rate, bandwidth and latency of RDMA operations.
#[derive(Parser, Debug)]
#[command(name = "rxe-bench", version = VERSION, no_binary_name = true, override_usage = USAGE, after_help = AFTER_HELP)]
struct Args {
    /// What to measure
    #[arg(value_enum)]
    test: Test,

    /// Our address with its on-link prefix; for all but `reflect`
    #[arg(long, value_name = "IP/PREFIX")]
    address: Option<OwnAddress>,

    /// The target; for all but `reflect` [default port: 4792, perftest: 18515]
    #[arg(long, value_name = "IP[:PORT]")]
    peer: Option<Peer>,

    /// How the target tells where its memory is [default: region; SENDs: perftest]
    #[arg(long, value_enum)]
    protocol: Option<Protocol>,

    /// The region to use [default: the target's first]
    #[arg(long, value_name = "NAME", default_value = "")]
    region: String,

    /// Go over so many of the target's numbered regions in turn: those that are called --region and a number from 0 on
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    regions: Option<u32>,

    /// Bytes of a message, or with K, M [default: 65536; latency: 2; atomics: always 8]
    #[arg(short, long, value_name = "BYTES")]
    size: Option<Size>,

    /// Every power of two from 2 bytes to 8 MiB, as far as the target's memory goes
    #[arg(short, long, conflicts_with = "size")]
    all: bool,

    /// Queue pairs
    #[arg(short, long = "qp", value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    qps: u32,

    /// Messages on each queue pair
    #[arg(short = 'n', long = "iters", value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "duration")]
    messages: Option<u64>,

    /// Measure so many seconds [default: 2]
    #[arg(short = 'D', long, value_name = "SECONDS")]
    duration: Option<Seconds>,

    /// So many seconds before do not count [default: 0.25; 0 with --iters and perftest, whose servers count too]
    #[arg(long, value_name = "SECONDS")]
    warm_up: Option<Seconds>,

    /// Messages outstanding on a queue pair [default: 128, less for many queue pairs or bytes; latency: 1]
    #[arg(short, long = "tx-depth", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    tx_depth: Option<u32>,

    /// Messages with one completion [default: a quarter of those outstanding, 1 above 8 KiB]
    #[arg(short = 'Q', long = "cq-mod", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    cq_mod: Option<u32>,

    /// READs and atomics outstanding on a queue pair; the target may allow fewer [default: 16; perftest: 128]
    #[arg(short, long = "outs", value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=128))]
    outs: Option<u8>,

    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that the port carries]
    #[arg(short, long, value_name = "BYTES")]
    mtu: Option<Mtu>,

    /// Both ways at once: WRITEs and READs in turn, or SENDs and the peer's answers
    #[arg(short, long = "bidirectional")]
    bidirectional: bool,

    /// Look at every byte where it has arrived: each message has bytes of its own. Takes its time
    #[arg(long)]
    verify: bool,

    /// Beside the test, queue pairs of their own that read or write without a break
    #[arg(long, value_enum, value_name = "VERB")]
    bulk: Option<BulkVerb>,

    /// How many queue pairs those are [default: 8]
    #[arg(long = "bulk-qp", value_name = "NUMBER", requires = "bulk", value_parser = clap::value_parser!(u32).range(1..=65_000))]
    bulk_qps: Option<u32>,

    /// Bytes of their messages, or with K, M [default: 1M]
    #[arg(long, value_name = "BYTES", requires = "bulk")]
    bulk_size: Option<Size>,

    /// Bandwidth in Gb/s in place of MiB/s
    #[arg(long = "report_gbits", alias = "report-gbits")]
    report_gbits: bool,

    /// Write the results as JSON to FILE, or with `-` to standard output in place of the table
    #[arg(long = "out_json", alias = "out-json", value_name = "FILE")]
    out_json: Option<PathBuf>,
}

/// What is done beside the test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum BulkVerb {
    /// READs
    Read,
    /// WRITEs
    Write,
}

/// An address with its prefix.
#[derive(Clone, Copy, Debug)]
struct OwnAddress(Cidr);

impl FromStr for OwnAddress {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<OwnAddress, Mistake> {
        match text.parse() {
            Ok(cidr) if text.contains('/') => Ok(OwnAddress(cidr)),
            Ok(_) => mistake!("'{text}' lacks its prefix length: write {text}/24, or what your network uses"),
            Err(error) => mistake!("{error}"),
        }
    }
}

/// The peer, with or without a port.
#[derive(Clone, Copy, Debug)]
struct Peer {
    ip: IpAddr,
    port: Option<u16>,
}

impl FromStr for Peer {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<Peer, Mistake> {
        let whole: Result<IpAddr, _> = text.parse();
        let found = match (whole, text.parse::<SocketAddr>()) {
            (Ok(ip), _) => Some(Peer { ip, port: None }),
            (_, Ok(peer)) if peer.port() != 0 => Some(Peer { ip: peer.ip(), port: Some(peer.port()) }),
            _ => None,
        };
        match found {
            Some(Peer { ip, .. })
                if ip.is_unspecified()
                    || ip.is_multicast()
                    || matches!(ip, IpAddr::V4(ip) if ip.octets()[0] >= 240) =>
            {
                mistake!("'{text}' is no address of one machine: name the target's")
            }
            Some(peer) => Ok(peer),
            None => mistake!("'{text}' is not an IP address with an optional port, as 10.0.0.1:4792 or [fd00::1]:4792"),
        }
    }
}

/// A size in bytes.
#[derive(Clone, Copy, Debug)]
struct Size(u32);

/// The longest message of InfiniBand.
const MAX_SIZE: u64 = 1 << 31;

impl FromStr for Size {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<Size, Mistake> {
        let (digits, shift) = match text.as_bytes().last() {
            Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
            Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
            _ => (text, 0),
        };
        let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
        match bytes.filter(|bytes| (1..MAX_SIZE).contains(bytes)).and_then(|bytes| u32::try_from(bytes).ok()) {
            Some(bytes) => Ok(Size(bytes)),
            None => mistake!("'{text}' is no size of a message: it is 1 to 2147483647 bytes, as 64, 64K or 1M"),
        }
    }
}

/// A time in seconds.
#[derive(Clone, Copy, Debug)]
struct Seconds(Duration);

/// The longest run: a day.
const MAX_SECONDS: f64 = 86_400.0;

impl FromStr for Seconds {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<Seconds, Mistake> {
        match text.parse::<f64>() {
            Ok(seconds) if (0.0..=MAX_SECONDS).contains(&seconds) => Ok(Seconds(Duration::from_secs_f64(seconds))),
            _ => mistake!("'{text}' is no time: it is 0 to {MAX_SECONDS} seconds, as 2 or 0.5"),
        }
    }
}

/// A path MTU.
#[derive(Clone, Copy, Debug)]
struct Mtu(PathMtu);

impl FromStr for Mtu {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<Mtu, Mistake> {
        let found = PathMtu::ALL.into_iter().find(|mtu| mtu.bytes().to_string() == text);
        found
            .map(Mtu)
            .ok_or_else(|| Mistake::new(format!("'{text}' is no path MTU: it is 256, 512, 1024, 2048 or 4096")))
    }
}

/// Understands the command line, without the program's name.
pub fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<Command, Mistake> {
    let CommandLine { before, behind } = CommandLine::split(argv)?;
    if let ([option, folder], None) = (&before[..], &behind)
        && option == "--generate"
    {
        return Ok(Command::Generate(folder.into()));
    }
    let asks = |arg: &String| matches!(arg.as_str(), "--help" | "-h" | "--version" | "-V");
    let (eal_args, ours) = match behind {
        Some(ours) => (before, ours),
        None if before.iter().any(asks) => (Vec::new(), before),
        None => {
            return mistake!(
                "there is no `--` on the command line: it separates the options of DPDK's EAL from the bench's (see \
                 rxe-bench --help)"
            );
        }
    };
    match command_line::understand::<Args>("rxe-bench", &ours)? {
        Asked::Print(text) => Ok(Command::Print(text)),
        Asked::Args(args) => Ok(Command::Run(Box::new(args.into_plan(eal_args)?))),
    }
}

/// The definition of the command line, for manual pages and completions.
pub fn command() -> clap::Command {
    Args::command()
}

/// Where the `region` service listens.
const REGION_PORT: u16 = 4792;
/// READs and atomics outstanding with it.
const REGION_READS: u8 = 16;
/// Length of an atomic.
const ATOMIC: u32 = 8;
/// The sizes of `--all`, as powers of two.
const ALL: std::ops::RangeInclusive<u32> = 1..=23;
/// How long is measured when nobody says so.
const TIME: Duration = Duration::from_secs(2);
/// What comes before.
const WARM_UP: Duration = Duration::from_millis(250);

impl Args {
    fn into_plan(self, eal_args: Vec<String>) -> Result<Plan, Mistake> {
        let (address, peer) = self.ends()?;
        let protocol = self.protocol()?;
        let perftest = protocol == Protocol::Perftest;
        let bulk = self.bulk(protocol)?;
        self.check_regions(protocol)?;
        let sizes = self.sizes()?;
        let length = match (self.messages, self.duration) {
            (Some(messages), _) => Length::Messages(messages),
            (None, Some(Seconds(Duration::ZERO))) => {
                return mistake!("--duration 0: nothing can be measured in no time: give more than 0 seconds");
            }
            (None, Some(Seconds(time))) => Length::Time(time),
            (None, None) => Length::Time(TIME),
        };
        let exact = perftest && self.messages.is_some();
        let port = if perftest { perftest::PORT } else { REGION_PORT };
        Ok(Plan {
            eal_args,
            test: self.test,
            protocol,
            address,
            peer: SocketAddr::new(peer.ip, peer.port.unwrap_or(port)),
            region: self.region,
            regions: self.regions,
            sizes,
            qps: self.qps,
            length,
            warm_up: self.warm_up.map_or(if exact { Duration::ZERO } else { WARM_UP }, |Seconds(time)| time),
            depth: self.tx_depth,
            group: self.cq_mod,
            reads: self.outs.unwrap_or(if perftest { perftest::READS } else { REGION_READS }),
            path_mtu: self.mtu.map(|Mtu(mtu)| mtu),
            both_ways: self.bidirectional,
            verify: self.verify,
            bulk,
            gbits: self.report_gbits,
            json: self.out_json.map(|path| if path.as_os_str() == "-" { Json::Stdout } else { Json::File(path) }),
        })
    }

    /// Both ends' addresses.
    fn ends(&self) -> Result<(Cidr, Peer), Mistake> {
        let (address, peer) = match (self.address, self.peer) {
            (Some(OwnAddress(address)), Some(peer)) => (address, peer),
            // It answers whoever asks.
            _ if self.test == Test::Reflect => {
                let nobody = Ipv4Addr::UNSPECIFIED.into();
                return Ok((Cidr::new(nobody, 0), Peer { ip: nobody, port: None }));
            }
            (None, _) => return mistake!("our own address is missing: give --address IP/PREFIX"),
            (_, None) => return mistake!("the target's address is missing: give --peer IP"),
        };
        if address.ip == peer.ip {
            return mistake!("--peer {}: that is our own address: name the target's", peer.ip);
        }
        if address.ip.is_ipv4() != peer.ip.is_ipv4() {
            return mistake!("--address and --peer are of different kinds: make both IPv4 or both IPv6");
        }
        Ok((address, peer))
    }

    fn protocol(&self) -> Result<Protocol, Mistake> {
        let verb = self.test.verb();
        if self.bidirectional && (self.verify || self.test.is_latency() || matches!(verb, None | Some(Verb::Atomic))) {
            return mistake!("--bidirectional is for write-bw, read-bw and send-bw, without --verify: leave it out");
        }
        if self.verify && verb.is_none() {
            return mistake!("there is nothing to --verify without messages: leave it out");
        }
        match (verb, self.protocol) {
            (Some(Verb::Send), Some(Protocol::Region)) => {
                mistake!("the region service takes no SENDs: leave --protocol out, and the perftest service is used")
            }
            (Some(Verb::Send), _) => Ok(Protocol::Perftest),
            (_, given) => Ok(given.unwrap_or(Protocol::Region)),
        }
    }

    fn bulk(&self, protocol: Protocol) -> Result<Option<Beside>, Mistake> {
        let Some(verb) = self.bulk else { return Ok(None) };
        if self.test.verb().is_none() || protocol == Protocol::Perftest || self.verify {
            return mistake!(
                "--bulk goes beside tests of WRITEs, READs and atomics with the region service, without --verify: leave it \
                 out"
            );
        }
        let test = if verb == BulkVerb::Read { Test::ReadBw } else { Test::WriteBw };
        let size = self.bulk_size.map_or(BULK, |Size(bytes)| bytes);
        Ok(Some(Beside { test, qps: self.bulk_qps.unwrap_or(BULK_QPS), size }))
    }

    fn check_regions(&self, protocol: Protocol) -> Result<(), Mistake> {
        match self.regions {
            Some(_) if self.test.verb().is_none() || protocol == Protocol::Perftest || self.bulk.is_some() => mistake!(
                "--regions is for WRITEs, READs and atomics with the region service, without --bulk: leave it out"
            ),
            Some(_) if self.region.is_empty() => {
                mistake!("--regions needs the name that is in front of the numbers: add --region NAME")
            }
            _ => Ok(()),
        }
    }

    fn sizes(&self) -> Result<Vec<u32>, Mistake> {
        let given = self.size.map(|Size(bytes)| bytes);
        Ok(match self.test.verb() {
            Some(Verb::Atomic) if self.all || given.is_some_and(|bytes| bytes != ATOMIC) => {
                return mistake!("atomics are always of 8 bytes: leave --size and --all out");
            }
            Some(Verb::Atomic) => vec![ATOMIC],
            None if self.test != Test::Echo && (self.all || given.is_some()) => {
                return mistake!("{} sends no messages that have a size: leave --size and --all out", self.test.name());
            }
            _ if self.all => ALL.map(|power| 1 << power).collect(),
            None => vec![given.unwrap_or(ECHO)],
            _ => vec![given.unwrap_or(if self.test.is_latency() { 2 } else { 65_536 })],
        })
    }
}

/// Queue pairs of --bulk and bytes of their messages, when nobody says so.
const BULK_QPS: u32 = 8;
const BULK: u32 = 1 << 20;
/// Bytes of a message whose frame is echoed, when nobody says so.
const ECHO: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|mistake| mistake.to_string())
    }

    fn plan(line: &str) -> Plan {
        match command(&format!("-l 1 --vdev=net_null0 -- {line}")) {
            Ok(Command::Run(plan)) => *plan,
            other => panic!("{line} gave {other:?}"),
        }
    }

    fn wrong(line: &str) -> String {
        command(line).map(|c| panic!("{line} gave {c:?}")).unwrap_or_else(|mistake| mistake)
    }

    const ENDS: &str = "--address 10.0.0.2/24 --peer 10.0.0.1";

    #[test]
    fn every_option_arrives() {
        let plan = plan(
            "write-bw --address fd00::2/64 --peer [fd00::1]:5000 --region big -s 64K -q 8 -n 1000 -t 16 -Q 4 -o 8 -m 1024 \
             --warm-up 0.5 -b --report_gbits --out_json - ",
        );
        assert_eq!(plan.eal_args, ["-l", "1", "--vdev=net_null0"]);
        assert_eq!((plan.peer.to_string(), plan.region.as_str()), ("[fd00::1]:5000".to_owned(), "big"));
        assert_eq!((plan.sizes, plan.qps, plan.length), (vec![65_536], 8, Length::Messages(1000)));
        assert_eq!((plan.depth, plan.group, plan.reads), (Some(16), Some(4), 8));
        assert_eq!((plan.path_mtu, plan.warm_up), (Some(PathMtu::Mtu1024), Duration::from_millis(500)));
        assert!(plan.both_ways && plan.gbits && plan.json == Some(Json::Stdout) && plan.regions.is_none());
    }

    #[test]
    fn what_is_not_said_suits_the_test() {
        let region = plan(&format!("read-bw {ENDS}"));
        assert_eq!((region.peer.port(), region.protocol, region.reads), (4792, Protocol::Region, 16));
        assert_eq!((region.sizes, region.length), (vec![65_536], Length::Time(TIME)));
        let sends = plan(&format!("send-lat {ENDS} -n 10"));
        assert_eq!((sends.peer.port(), sends.protocol, sends.sizes), (18_515, Protocol::Perftest, vec![2]));
        assert!(sends.warm_up.is_zero() && !plan(&format!("send-lat {ENDS} -D 1")).warm_up.is_zero());
        assert_eq!(plan(&format!("atomic-bw {ENDS}")).sizes, [8]);
        assert_eq!(plan(&format!("write-bw {ENDS} -a")).sizes.len(), 23);
        assert_eq!(plan("reflect").test, Test::Reflect);
        assert_eq!(plan(&format!("write-bw {ENDS} --region a --regions 100000")).regions, Some(100_000));
        let beside = |line: &str| plan(&format!("write-lat {ENDS} {line}")).bulk;
        assert_eq!(beside("--bulk read"), Some(Beside { test: Test::ReadBw, qps: 8, size: 1 << 20 }));
        let told = beside("--bulk write --bulk-qp 3 --bulk-size 64K");
        assert_eq!((told, beside("")), (Some(Beside { test: Test::WriteBw, qps: 3, size: 65_536 }), None));
    }

    #[test]
    fn mistakes_are_a_sentence_each() {
        for (line, words) in [
            ("write-bw --address 10.0.0.2/24 --peer 10.0.0.1".to_owned(), "there is no `--`"),
            ("-- write-bw --peer 10.0.0.1".to_owned(), "--address IP/PREFIX"),
            ("-- write-bw --address 10.0.0.2/24".to_owned(), "--peer IP"),
            ("-- write-bw --address 10.0.0.2 --peer 10.0.0.1".to_owned(), "lacks its prefix length"),
            ("-- write-bw --address 10.0.0.2/24 --peer 10.0.0.2".to_owned(), "our own address"),
            ("-- write-bw --address 10.0.0.2/24 --peer fd00::1".to_owned(), "different kinds"),
            ("-- write-bw --address 10.0.0.2/24 --peer 239.1.1.1".to_owned(), "no address of one machine"),
            ("-- write-bw --address 10.0.0.2/24 --peer 0.0.0.0".to_owned(), "no address of one machine"),
            (format!("-- write-bw {ENDS} -D 0"), "nothing can be measured"),
            (format!("-- sink-bw {ENDS}"), "invalid value 'sink-bw'"),
            (format!("-- write-bw {ENDS} -s 0"), "no size of a message"),
            (format!("-- write-bw {ENDS} -m 1500"), "no path MTU"),
            (format!("-- write-bw {ENDS} -n 5 -D 1"), "cannot be used with"),
            (format!("-- write-bw {ENDS} -D ever"), "no time"),
            (format!("-- atomic-bw {ENDS} -s 16"), "always of 8 bytes"),
            (format!("-- write-lat {ENDS} -b"), "--bidirectional is for"),
            (format!("-- echo {ENDS} --verify"), "nothing to --verify"),
            (format!("-- connect-rate {ENDS} -s 5"), "no messages that have a size"),
            (format!("-- send-bw {ENDS} --protocol region"), "takes no SENDs"),
            (format!("-- send-lat {ENDS} --bulk read"), "--bulk goes beside"),
            (format!("-- write-lat {ENDS} --bulk read --verify"), "--bulk goes beside"),
            (format!("-- write-lat {ENDS} --bulk-qp 3"), "--bulk <VERB>"),
            (format!("-- write-bw {ENDS} --regions 0 --region a"), "0 is not in 1..=1000000"),
            (format!("-- write-bw {ENDS} --regions 5"), "add --region NAME"),
            (format!("-- send-bw {ENDS} --regions 5 --region a"), "--regions is for"),
            (format!("-- connect-rate {ENDS} --regions 5 --region a"), "--regions is for"),
            (format!("-- write-bw {ENDS} --regions 5 --region a --bulk read"), "--regions is for"),
        ] {
            let mistake = wrong(&line);
            assert!(mistake.contains(words) && mistake.lines().count() == 1, "{line}: {mistake}");
        }
        assert!(matches!(command("--help"), Ok(Command::Print(text)) if text.contains("connect-rate")));
        assert!(matches!(command("--version"), Ok(Command::Print(text)) if text.starts_with("rxe-bench ")));
    }
}
