//! The command line: EAL's arguments, the options of the bench, and the checks of options that depend on each other.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches};
use rxe::command_line::CommandLine;
use rxe::{CliError, cli_error};
use rxe_proto::wire::Cidr;

use crate::args::{Args, BulkVerb};
use crate::ends;
use crate::nvme::{NvmeArgs, NvmePlan};
use crate::perftest;
use crate::plan::{Beside, INTERVAL, Json, Length, Plan, Protocol, TIME, Test, Verb, WARM_UP};
use crate::values::{Mtu, Peer, Seconds, Size};

/// The action that the command line selects.
#[derive(Debug)]
pub enum Command {
    /// Write the manual page and completions to this folder.
    Generate(PathBuf),
    /// Run a test.
    Run(Box<Plan>),
    /// Run the load of NVMe commands.
    Nvme(Box<NvmePlan>),
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
    let is_udp = |arg: &String| arg == "--udp" || arg.starts_with("--udp=");
    let (eal_args, ours) = match behind {
        Some(ours) => (before, ours),
        None if before.iter().any(is_help) || before.iter().any(is_udp) => (Vec::new(), before),
        None => {
            return cli_error!(
                "there is no `--` on the command line: put it between EAL's arguments and the options of the bench (see rxe-bench \
                 --help)"
            );
        }
    };
    let matches = command().try_get_matches_from(ours).map_err(rxe::command_line::explain)?;
    if let Some((_, matches)) = matches.subcommand() {
        return Ok(Command::Nvme(Box::new(NvmeArgs::from_arg_matches(matches)?.into_plan(eal_args)?)));
    }
    Ok(Command::Run(Box::new(Args::from_arg_matches(&matches)?.into_plan(eal_args)?)))
}

/// The definition of the command line, for manual pages and completions.
///
/// The tests share their options, so they are values of a positional argument; `nvme` has options of its own.
pub fn command() -> clap::Command {
    Args::command()
        .subcommand(NvmeArgs::command())
        .subcommand_negates_reqs(true)
        .args_conflicts_with_subcommands(true)
        .disable_help_subcommand(true)
}

/// Port of the `region` service.
const REGION_PORT: u16 = 4792;
/// Outstanding READs and atomics with the `region` service.
const REGION_READS: u8 = 16;
/// Length of an atomic.
const ATOMIC: u32 = 8;
/// The sizes of `--all`, as powers of two.
const ALL: std::ops::RangeInclusive<u32> = 1..=23;

impl Args {
    fn into_plan(self, eal_args: Vec<String>) -> Result<Plan, CliError> {
        self.perftest.check()?;
        self.check_udp(&eal_args)?;
        let (address, peer) = match ends::addresses(self.udp, self.address, self.peer) {
            // It answers every sender.
            Err(_) if self.test == Test::Reflect && (self.peer.is_none() || !self.has_address()) => {
                let none = Ipv4Addr::UNSPECIFIED.into();
                (Cidr::new(none, 0), Peer { ip: none, port: None })
            }
            ends => ends?,
        };
        // Frames for a reflector are addressed by what it answers.
        let routed = self.udp.is_some() || matches!(self.test, Test::Reflect | Test::Echo);
        let gateway = ends::gateway(self.gateway, address, peer.ip, routed)?;
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
            (None, None) => Length::Time(if self.run_infinitely { INTERVAL } else { TIME }),
        };
        let length = match length {
            Length::Time(_) if self.run_infinitely && self.test == Test::Reflect => {
                return cli_error!("reflect always runs until it is stopped: leave --run_infinitely out");
            }
            Length::Time(interval) if self.run_infinitely => Length::Endless(interval),
            length => length,
        };
        let exact = perftest && self.messages.is_some();
        let port = if perftest { perftest::PORT } else { REGION_PORT };
        Ok(Plan {
            eal_args,
            udp: self.udp.is_some(),
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
            json: self.out_json.map(Json::from),
        })
    }

    /// A UDP socket has nothing of DPDK.
    fn check_udp(&self, eal_args: &[String]) -> Result<(), CliError> {
        ends::check_udp(self.udp, eal_args)?;
        if self.udp.is_some() && matches!(self.test, Test::Reflect | Test::Echo) {
            return cli_error!(
                "{} sends frames of its own, which a UDP socket cannot: leave --udp out",
                self.test.name()
            );
        }
        Ok(())
    }

    fn has_address(&self) -> bool {
        self.udp.is_some() || self.address.is_some()
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
        let endless = |line: &str| plan(&format!("write-bw {ENDS} --run_infinitely {line}")).length;
        assert_eq!((endless(""), endless("-D 0.5")), (Length::Endless(INTERVAL), Length::Endless(INTERVAL / 2)));
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
            (format!("-- write-bw {ENDS} --run_infinitely -n 5"), "cannot be used with"),
            (format!("-- write-bw {ENDS} --run_infinitely -a"), "cannot be used with"),
            ("-- reflect --run_infinitely".to_owned(), "reflect always runs"),
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
        let help = wrong("--help");
        assert!(help.contains("connect-rate") && wrong("--version").starts_with("rxe-bench "));
        for group in ["Ends:", "Load:", "Measurement:", "Results:", "Exit codes: "] {
            assert!(help.lines().any(|line| line.starts_with(group)), "{group}: {help}");
        }
    }
}
