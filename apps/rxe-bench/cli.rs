//! The command line: EAL's arguments, the options of the bench, and the checks of options that depend on each other.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, Parser, ValueEnum};
use rxe::command_line::CommandLine;
use rxe::{CliError, cli_error};
use rxe_proto::wire::Cidr;

use crate::perftest;
use crate::perftest_options::PerftestOptions;
use crate::plan::{Beside, Json, Length, Plan, Protocol, Test, Verb};
use crate::values::{Mtu, OwnAddress, Peer, Router, Seconds, Size};

/// The action that the command line selects.
#[derive(Debug)]
pub enum Command {
    /// Write the manual page and completions to this folder.
    Generate(PathBuf),
    /// Run a test.
    Run(Box<Plan>),
}

const USAGE: &str = "rxe-bench [EAL OPTIONS] -- TEST --address IP/PREFIX --peer IP[:PORT] [OPTIONS]";

const AFTER_HELP: &str = "\
The arguments before the first `--` are those of DPDK's EAL. Without `-l` or another option that chooses lcores, the bench \
uses one: the first CPU that the process may run on.

  rxe-bench -l 1 --vdev=net_virtio_user0,path=/tmp/vhost.sock,queue_size=1024 -- \\
      write-bw --address 10.0.0.2/24 --peer 10.0.0.1 -s 64 -q 8

Exit codes: 0 when the test is complete, 1 when it failed after the start, 2 when it cannot start.";

/// Measures rate, bandwidth and latency of RDMA operations on a RoCEv2 target.
#[derive(Parser, Debug)]
#[command(name = "rxe-bench", version = rxe::VERSION, no_binary_name = true, override_usage = USAGE, after_help = AFTER_HELP)]
struct Args {
    /// The test
    #[arg(value_enum)]
    test: Test,

    /// Address of the bench with its on-link prefix; required for all tests but `reflect`
    #[arg(long, value_name = "IP/PREFIX")]
    address: Option<OwnAddress>,

    /// Address of the target; required for all tests but `reflect` [default port: 4792, perftest: 18515]
    #[arg(long, value_name = "IP[:PORT]")]
    peer: Option<Peer>,

    /// Router to a target outside of the bench's network
    #[arg(long, value_name = "IP")]
    gateway: Option<Router>,

    /// Protocol for obtaining address and key of the target's memory [default: region; for SENDs: perftest]
    #[arg(long, value_enum)]
    protocol: Option<Protocol>,

    /// Name of the target's region [default: its first]
    #[arg(long, value_name = "NAME", default_value = "")]
    region: String,

    /// Number of numbered regions to use in turn; their names are --region with a number, from 0 on
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    regions: Option<u32>,

    /// Size of a message in bytes, or with K or M [default: 65536; latency: 2; atomics: always 8]
    #[arg(short, long, value_name = "BYTES")]
    size: Option<Size>,

    /// Test every power of two from 2 bytes to 8 MiB that fits the target's memory
    #[arg(short, long, conflicts_with = "size")]
    all: bool,

    /// Number of queue pairs
    #[arg(short, long = "qp", value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    qps: u32,

    /// Number of messages on each queue pair
    #[arg(short = 'n', long = "iters", value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "duration")]
    messages: Option<u64>,

    /// Duration of the measurement in seconds [default: 2]
    #[arg(short = 'D', long, value_name = "SECONDS")]
    duration: Option<Seconds>,

    /// Warm-up in seconds, not measured [default: 0.25; 0 with --iters and perftest, whose servers expect the exact number of messages]
    #[arg(long, value_name = "SECONDS")]
    warm_up: Option<Seconds>,

    /// Outstanding messages of a queue pair [default: 128, fewer with many queue pairs or long messages; latency: 1]
    #[arg(short, long = "tx-depth", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    tx_depth: Option<u32>,

    /// Number of messages per completion [default: a quarter of --tx-depth, 1 above 8 KiB]
    #[arg(short = 'Q', long = "cq-mod", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    cq_mod: Option<u32>,

    /// Outstanding READs and atomics of a queue pair; the target may allow fewer [default: 16; perftest: 128]
    #[arg(short, long = "outs", value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=128))]
    outs: Option<u8>,

    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that the port supports]
    #[arg(short, long, value_name = "BYTES")]
    mtu: Option<Mtu>,

    /// Send data in both directions: WRITEs and READs alternately, or SENDs and the target's answers
    #[arg(short, long = "bidirectional")]
    bidirectional: bool,

    /// Check the data of every message after its round trip. Messages below 512 bytes are compared byte by byte, longer ones by
    /// their CRC-32C
    #[arg(long)]
    verify: bool,

    /// Run READs or WRITEs on additional queue pairs during the test
    #[arg(long, value_enum, value_name = "VERB")]
    bulk: Option<BulkVerb>,

    /// Number of queue pairs of --bulk [default: 8]
    #[arg(long = "bulk-qp", value_name = "NUMBER", requires = "bulk", value_parser = clap::value_parser!(u32).range(1..=65_000))]
    bulk_qps: Option<u32>,

    /// Size of the messages of --bulk in bytes, or with K or M [default: 1M]
    #[arg(long, value_name = "BYTES", requires = "bulk")]
    bulk_size: Option<Size>,

    /// Print the bandwidth in Gb/s instead of MiB/s
    #[arg(long = "report_gbits", alias = "report-gbits")]
    report_gbits: bool,

    /// Write the results as JSON to FILE, or with `-` to standard output instead of the table
    #[arg(long = "out_json", alias = "out-json", value_name = "FILE")]
    out_json: Option<PathBuf>,

    #[command(flatten)]
    perftest: PerftestOptions,
}

/// The verb of --bulk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum BulkVerb {
    /// READs
    Read,
    /// WRITEs
    Write,
}

/// Parses the command line, without the program's name.
pub fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<Command, CliError> {
    let CommandLine { before, behind } = CommandLine::split(argv)?;
    if let ([option, folder], None) = (&before[..], &behind)
        && option == "--generate"
    {
        return Ok(Command::Generate(folder.into()));
    }
    let is_help = |arg: &String| matches!(arg.as_str(), "--help" | "-h" | "--version" | "-V");
    let (eal_args, ours) = match behind {
        Some(ours) => (before, ours),
        None if before.iter().any(is_help) => (Vec::new(), before),
        None => {
            return cli_error!(
                "there is no `--` on the command line: put it between EAL's arguments and the options of the bench (see rxe-bench \
                 --help)"
            );
        }
    };
    Ok(Command::Run(Box::new(Args::try_parse_from(ours).map_err(rxe::command_line::explain)?.into_plan(eal_args)?)))
}

/// The definition of the command line, for manual pages and completions.
pub fn command() -> clap::Command {
    Args::command()
}

/// Port of the `region` service.
const REGION_PORT: u16 = 4792;
/// Outstanding READs and atomics with the `region` service.
const REGION_READS: u8 = 16;
/// Length of an atomic.
const ATOMIC: u32 = 8;
/// The sizes of `--all`, as powers of two.
const ALL: std::ops::RangeInclusive<u32> = 1..=23;
/// Default duration of a measurement.
const TIME: Duration = Duration::from_secs(2);
/// Default warm-up.
const WARM_UP: Duration = Duration::from_millis(250);

impl Args {
    fn into_plan(self, eal_args: Vec<String>) -> Result<Plan, CliError> {
        self.perftest.check()?;
        let (address, peer) = self.ends()?;
        let gateway = self.gateway(address, &peer)?;
        let protocol = self.protocol()?;
        let perftest = protocol == Protocol::Perftest;
        let bulk = self.bulk(protocol)?;
        self.check_regions(protocol)?;
        let sizes = self.sizes()?;
        let length = match (self.messages, self.duration) {
            (Some(messages), _) => Length::Messages(messages),
            (None, Some(Seconds(Duration::ZERO))) => {
                return cli_error!("--duration 0: the measurement needs time: give more than 0 seconds");
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
            peer: SocketAddr::new(peer.ip, peer.port.or(self.perftest.port()).unwrap_or(port)),
            gateway,
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

    /// The addresses of both ends.
    fn ends(&self) -> Result<(Cidr, Peer), CliError> {
        let (address, peer) = match (self.address, self.peer) {
            (Some(OwnAddress(address)), Some(peer)) => (address, peer),
            // It answers every sender.
            _ if self.test == Test::Reflect => {
                let none = Ipv4Addr::UNSPECIFIED.into();
                return Ok((Cidr::new(none, 0), Peer { ip: none, port: None }));
            }
            (None, _) => {
                return cli_error!("--address is missing: give the address of the bench as --address IP/PREFIX");
            }
            (_, None) => return cli_error!("--peer is missing: give the address of the target as --peer IP"),
        };
        if address.ip == peer.ip {
            return cli_error!("--peer {} is the address of the bench itself: give the target's", peer.ip);
        }
        if address.ip.is_ipv4() != peer.ip.is_ipv4() {
            return cli_error!(
                "--address and --peer are of different address families: give two IPv4 or two IPv6 addresses"
            );
        }
        Ok((address, peer))
    }

    /// The router, which must be there where the target is in another network.
    fn gateway(&self, address: Cidr, peer: &Peer) -> Result<Option<IpAddr>, CliError> {
        if let Some(Router(router)) = self.gateway {
            if router == address.ip || !(is_link_local(router) || address.contains(router)) {
                return cli_error!(
                    "--gateway {router}: no other host of the network {} has that address",
                    address.network()
                );
            }
            return Ok(Some(router));
        }
        // Frames for a reflector are addressed by what it answers.
        let routed =
            matches!(self.test, Test::Reflect | Test::Echo) || is_link_local(peer.ip) || address.contains(peer.ip);
        if routed {
            return Ok(None);
        }
        cli_error!(
            "--peer {}: there is no route, as it is not in the network {} of --address: give a router with --gateway, or correct one \
             of the addresses",
            peer.ip,
            address.network()
        )
    }

    fn protocol(&self) -> Result<Protocol, CliError> {
        let verb = self.test.verb();
        if self.bidirectional && (self.verify || self.test.is_latency() || matches!(verb, None | Some(Verb::Atomic))) {
            return cli_error!(
                "--bidirectional works with write-bw, read-bw and send-bw, without --verify: leave it out"
            );
        }
        if self.verify && verb.is_none() {
            return cli_error!("--verify needs a test that sends messages: leave it out");
        }
        match (verb, self.protocol) {
            (Some(Verb::Send), Some(Protocol::Region)) => {
                cli_error!(
                    "--protocol region: the region service receives no SENDs: leave the option out to use perftest"
                )
            }
            (Some(Verb::Send), _) => Ok(Protocol::Perftest),
            (_, given) => Ok(given.unwrap_or(Protocol::Region)),
        }
    }

    fn bulk(&self, protocol: Protocol) -> Result<Option<Beside>, CliError> {
        let Some(verb) = self.bulk else { return Ok(None) };
        if self.test.verb().is_none() || protocol == Protocol::Perftest || self.verify {
            return cli_error!(
                "--bulk works with tests of WRITEs, READs and atomics and the region service, without --verify: leave it out"
            );
        }
        let test = if verb == BulkVerb::Read { Test::ReadBw } else { Test::WriteBw };
        let size = self.bulk_size.map_or(BULK, |Size(bytes)| bytes);
        Ok(Some(Beside { test, qps: self.bulk_qps.unwrap_or(BULK_QPS), size }))
    }

    fn check_regions(&self, protocol: Protocol) -> Result<(), CliError> {
        match self.regions {
            Some(_) if self.test.verb().is_none() || protocol == Protocol::Perftest || self.bulk.is_some() => {
                cli_error!(
                    "--regions works with WRITEs, READs and atomics and the region service, without --bulk: leave it out"
                )
            }
            Some(_) if self.region.is_empty() => {
                cli_error!("--regions needs the name in front of the numbers: add --region NAME")
            }
            _ => Ok(()),
        }
    }

    fn sizes(&self) -> Result<Vec<u32>, CliError> {
        let given = self.size.map(|Size(bytes)| bytes);
        Ok(match self.test.verb() {
            Some(Verb::Atomic) if self.all || given.is_some_and(|bytes| bytes != ATOMIC) => {
                return cli_error!("atomics always have 8 bytes: leave --size and --all out");
            }
            Some(Verb::Atomic) => vec![ATOMIC],
            None if self.test != Test::Echo && (self.all || given.is_some()) => {
                return cli_error!("{} has no messages with a size: leave --size and --all out", self.test.name());
            }
            _ if self.all => ALL.map(|power| 1 << power).collect(),
            None => vec![given.unwrap_or(ECHO)],
            _ => vec![given.unwrap_or(if self.test.is_latency() { 2 } else { 65_536 })],
        })
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Default number of queue pairs of --bulk, and the size of their messages.
const BULK_QPS: u32 = 8;
const BULK: u32 = 1 << 20;
/// Default size for `echo`.
const ECHO: u32 = 64;

#[cfg(test)]
mod tests {
    use rxe_proto::wire::PathMtu;

    use super::*;

    fn command(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|error| error.to_string())
    }

    fn plan(line: &str) -> Plan {
        match command(&format!("-l 1 --vdev=net_null0 -- {line}")) {
            Ok(Command::Run(plan)) => *plan,
            other => panic!("{line} gave {other:?}"),
        }
    }

    fn wrong(line: &str) -> String {
        command(line).map(|c| panic!("{line} gave {c:?}")).unwrap_or_else(|error| error)
    }

    const ENDS: &str = "--address 10.0.0.2/24 --peer 10.0.0.1";

    #[test]
    fn every_option_is_parsed() {
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
    fn defaults_depend_on_the_test() {
        let region = plan(&format!("read-bw {ENDS}"));
        assert_eq!((region.peer.port(), region.protocol, region.reads), (4792, Protocol::Region, 16));
        assert_eq!((region.sizes, region.length), (vec![65_536], Length::Time(TIME)));
        let sends = plan(&format!("send-lat {ENDS} -n 10"));
        assert_eq!((sends.peer.port(), sends.protocol, sends.sizes), (18_515, Protocol::Perftest, vec![2]));
        assert!(sends.warm_up.is_zero() && !plan(&format!("send-lat {ENDS} -D 1")).warm_up.is_zero());
        assert_eq!(plan(&format!("atomic-bw {ENDS}")).sizes, [8]);
        assert_eq!(plan(&format!("write-bw {ENDS} -a")).sizes.len(), 23);
        assert_eq!(plan("reflect").test, Test::Reflect);
        let pasted = plan(&format!("write-bw {ENDS} -F -R -c RC -p 5001"));
        assert_eq!((pasted.peer.to_string(), pasted.gateway), ("10.0.0.1:5001".to_owned(), None));
        let routed = plan("write-bw --address 10.0.0.2/24 --peer 10.1.0.1:5000 --gateway 10.0.0.254 -p 1");
        assert_eq!((routed.peer.port(), routed.gateway), (5000, Some([10, 0, 0, 254].into())));
        assert_eq!(plan("write-bw --address fd00::2/64 --peer fe80::1").gateway, None);
        assert_eq!(plan(&format!("write-bw {ENDS} --region a --regions 100000")).regions, Some(100_000));
        let beside = |line: &str| plan(&format!("write-lat {ENDS} {line}")).bulk;
        assert_eq!(beside("--bulk read"), Some(Beside { test: Test::ReadBw, qps: 8, size: 1 << 20 }));
        let told = beside("--bulk write --bulk-qp 3 --bulk-size 64K");
        assert_eq!((told, beside("")), (Some(Beside { test: Test::WriteBw, qps: 3, size: 65_536 }), None));
    }

    #[test]
    fn errors_name_the_option() {
        for (line, words) in [
            ("write-bw --address 10.0.0.2/24 --peer 10.0.0.1".to_owned(), "there is no `--`"),
            ("-- write-bw --peer 10.0.0.1".to_owned(), "--address IP/PREFIX"),
            ("-- write-bw --address 10.0.0.2/24".to_owned(), "--peer IP"),
            ("-- write-bw --address 10.0.0.2 --peer 10.0.0.1".to_owned(), "lacks its prefix length"),
            ("-- write-bw --address 10.0.0.2/24 --peer 10.0.0.2".to_owned(), "address of the bench itself"),
            ("-- write-bw --address 10.0.0.2/24 --peer fd00::1".to_owned(), "different address families"),
            ("-- write-bw --address 10.0.0.2/24 --peer 239.1.1.1".to_owned(), "not a unicast address"),
            ("-- write-bw --address 10.0.0.2/24 --peer 0.0.0.0".to_owned(), "not a unicast address"),
            (
                "-- write-bw --address 10.0.0.2/24 --peer 10.1.0.1".to_owned(),
                "--peer 10.1.0.1: there is no route, as it is not in the network 10.0.0.0/24 of --address: give a router with \
                 --gateway, or correct one of the addresses",
            ),
            (
                format!("-- write-bw {ENDS} --gateway 10.9.0.1"),
                "--gateway 10.9.0.1: no other host of the network 10.0.0.0/24 has that address",
            ),
            (format!("-- write-bw {ENDS} --gateway 10.0.0.2"), "--gateway 10.0.0.2: no other host"),
            (format!("-- write-bw {ENDS} --gateway x"), "'x' is not an IP address"),
            (format!("-- write-bw {ENDS} -c UD"), "-c UD: the bench uses reliable connections only: leave it out"),
            (
                format!("-- write-bw {ENDS} -d mlx5_0"),
                "-d mlx5_0: the bench is the adapter itself: EAL's --vdev or -a in front of `--` selects its port; leave it out",
            ),
            (format!("-- write-bw {ENDS} -i 1"), "-i 1: the bench is the adapter itself"),
            (format!("-- write-bw {ENDS} -x 1"), "-x 1: --address is its GID; leave it out"),
            (
                format!("-- write-bw {ENDS} -u 14"),
                "-u 14: the timeout follows from the measured round trip; leave it out",
            ),
            (
                format!("-- write-bw {ENDS} --no-pci"),
                "--no-pci is an option of DPDK's EAL: it belongs in front of `--`",
            ),
            (format!("-- write-bw {ENDS} -D 0"), "the measurement needs time"),
            (format!("-- sink-bw {ENDS}"), "invalid value 'sink-bw'"),
            (format!("-- write-bw {ENDS} -s 0"), "not the size of a message"),
            (format!("-- write-bw {ENDS} -m 1500"), "not a path MTU"),
            (format!("-- write-bw {ENDS} -n 5 -D 1"), "cannot be used with"),
            (format!("-- write-bw {ENDS} -D ever"), "not a time"),
            (format!("-- atomic-bw {ENDS} -s 16"), "always have 8 bytes"),
            (format!("-- write-lat {ENDS} -b"), "--bidirectional works with"),
            (format!("-- echo {ENDS} --verify"), "--verify needs a test"),
            (format!("-- connect-rate {ENDS} -s 5"), "no messages with a size"),
            (format!("-- send-bw {ENDS} --protocol region"), "receives no SENDs"),
            (format!("-- send-lat {ENDS} --bulk read"), "--bulk works with"),
            (format!("-- write-lat {ENDS} --bulk read --verify"), "--bulk works with"),
            (format!("-- write-lat {ENDS} --bulk-qp 3"), "--bulk <VERB>"),
            (format!("-- write-bw {ENDS} --regions 0 --region a"), "0 is not in 1..=1000000"),
            (format!("-- write-bw {ENDS} --regions 5"), "add --region NAME"),
            (format!("-- send-bw {ENDS} --regions 5 --region a"), "--regions works with"),
            (format!("-- connect-rate {ENDS} --regions 5 --region a"), "--regions works with"),
            (format!("-- write-bw {ENDS} --regions 5 --region a --bulk read"), "--regions works with"),
        ] {
            let error = wrong(&line);
            assert!(error.contains(words), "{line}: {error}");
            assert!(error.lines().count() == 1 || error.starts_with("error: "), "{line}: {error}");
        }
        assert!(wrong("--help").contains("connect-rate") && wrong("--version").starts_with("rxe-bench "));
    }
}
