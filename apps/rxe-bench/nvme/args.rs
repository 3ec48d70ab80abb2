//! The options of `rxe-bench nvme`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use rxe::{CliError, cli_error};
use rxe_nvmf::wire::Nqn;
use uuid::Uuid;

use super::plan::{NvmePlan, Workload};
use super::transport_id::TransportId;
use crate::ends;
use crate::plan::{INTERVAL, Json, Length, TIME, WARM_UP};
use crate::values::{Mtu, OwnAddress, Peer, Router, Seconds, Size};

/// Port of the subsystems.
const PORT: u16 = 4420;
/// A keyed SGL descriptor has 24 bits for the length.
const MAX_SIZE: u32 = (1 << 24) - 1;
/// Most data of outstanding I/Os: an error in an option must not take all memory.
const MAX_DATA: u64 = 4 << 30;
/// Percentage of reads of `rw` and `randrw`.
const MIXED_READS: u8 = 50;
/// In front of a UUID in a host's name.
const UUID_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:";

const USAGE: &str = "rxe-bench [EAL OPTIONS] -- nvme --address IP/PREFIX --peer IP[:PORT] --nqn NQN [OPTIONS]
       rxe-bench nvme --udp ADDRESS --peer IP[:PORT] --nqn NQN [OPTIONS]";

const AFTER_HELP: &str = "\
Writes destroy the data of the namespace.

  rxe-bench nvme --udp 127.0.0.3 --peer 127.0.0.2 --nqn nqn.2026-01.org.example:disk -w randread -q 64 -o 4K -D 10
  rxe-bench -l 1 --vdev=net_af_packet0,iface=veth0 -- nvme --address 10.77.0.2/24 \\
      -r 'trtype:RDMA adrfam:IPv4 traddr:10.77.0.1 trsvcid:4420 subnqn:nqn.2026-01.org.example:disk' -w randrw -M 70

Exit codes: 0 when the run is complete, or a signal ends --run_infinitely; 1 when it failed after the start, an I/O failed, a signal \
ended it before its end, or no I/O was completed; 2 when it cannot start.";

/// Measures rate and latency of I/Os on a namespace of an NVMe over Fabrics target, as a host with the transport RDMA.
#[derive(Parser, Debug)]
#[command(name = "nvme", no_binary_name = true, override_usage = USAGE, after_help = AFTER_HELP)]
pub struct NvmeArgs {
    /// Address of the bench with its on-link prefix
    #[arg(long, value_name = "IP/PREFIX", help_heading = "Ends")]
    pub address: Option<OwnAddress>,

    /// Address of this machine from which to test, on an ordinary UDP socket instead of a DPDK port: without EAL's arguments,
    /// hugepages or root
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["address", "gateway"], help_heading = "Ends")]
    pub udp: Option<IpAddr>,

    /// Address of the target [default port: 4420]
    #[arg(long, value_name = "IP[:PORT]", help_heading = "Ends")]
    pub peer: Option<Peer>,

    /// Router to a target outside of the bench's network
    #[arg(long, value_name = "IP", help_heading = "Ends")]
    pub gateway: Option<Router>,

    /// The target and its subsystem in SPDK's notation, in place of --peer and --nqn: 'trtype:RDMA adrfam:IPv4 traddr:ADDRESS
    /// trsvcid:PORT subnqn:NQN'
    #[arg(
        short = 'r',
        long = "transport",
        value_name = "TRANSPORT ID",
        conflicts_with = "peer",
        help_heading = "Ends"
    )]
    pub transport: Option<TransportId>,

    /// Name of the subsystem
    #[arg(long, value_name = "NQN", help_heading = "Ends")]
    pub nqn: Option<Nqn>,

    /// Number of the namespace
    #[arg(long, value_name = "NSID", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=0xFFFF_FFFE), help_heading = "Ends")]
    pub namespace: u32,

    /// Name of the host [default: one with a UUID that follows from the address of the bench]
    #[arg(long, value_name = "NQN", help_heading = "Ends")]
    pub hostnqn: Option<Nqn>,

    /// Order of the I/Os, and whether they read or write
    #[arg(short = 'w', long, alias = "io-pattern", value_enum, value_name = "WORKLOAD", default_value_t = Workload::RandRead, help_heading = "Load")]
    pub workload: Workload,

    /// Percentage of reads of `rw` and `randrw`, 0 to 100 [default: 50]
    #[arg(short = 'M', long = "reads", alias = "rwmixread", value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100), help_heading = "Load")]
    pub reads: Option<u8>,

    /// Size of an I/O in bytes, or with K or M: a multiple of the block size of the namespace
    #[arg(short = 'o', long = "io-size", value_name = "BYTES", default_value = "4096", help_heading = "Load")]
    pub size: Size,

    /// Outstanding I/Os of a queue
    #[arg(short = 'q', long = "depth", alias = "io-depth", value_name = "NUMBER", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4095), help_heading = "Load")]
    pub depth: u16,

    /// Number of I/O queues
    #[arg(short = 'P', long = "queues", alias = "num-qpairs", value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128), help_heading = "Load")]
    pub queues: u16,

    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that the port supports]
    #[arg(short, long, value_name = "BYTES", help_heading = "Load")]
    pub mtu: Option<Mtu>,

    /// Duration of the measurement in seconds; with --run_infinitely the interval of the results [default: 2; with --run_infinitely 1]
    #[arg(
        short = 't',
        visible_short_alias = 'D',
        long,
        alias = "time",
        value_name = "SECONDS",
        help_heading = "Measurement"
    )]
    pub duration: Option<Seconds>,

    /// Measure until stopped, and print a result each second, or each --duration
    #[arg(long = "run_infinitely", alias = "run-infinitely", help_heading = "Measurement")]
    pub run_infinitely: bool,

    /// Warm-up in seconds, not measured [default: 0.25]
    #[arg(long, value_name = "SECONDS", help_heading = "Measurement")]
    pub warm_up: Option<Seconds>,

    /// Check data: every written block has its number and a CRC-32C. Each write is read back, and each read of blocks that this
    /// run has written is checked
    #[arg(long, help_heading = "Measurement")]
    pub verify: bool,

    /// Write the results as JSON to FILE, or with `-` to standard output instead of the table
    #[arg(long = "out_json", alias = "out-json", value_name = "FILE", help_heading = "Results")]
    pub out_json: Option<PathBuf>,
}

impl NvmeArgs {
    /// Checks options that depend on each other.
    ///
    /// # Errors
    /// One sentence that names the option.
    pub fn into_plan(self, eal_args: Vec<String>) -> Result<NvmePlan, CliError> {
        ends::check_udp(self.udp, &eal_args)?;
        let of_transport = self.transport.as_ref().and_then(|transport| transport.subsystem.clone());
        let subsystem = match (self.nqn, of_transport) {
            (Some(_), Some(_)) => return cli_error!("--nqn and subnqn of -r name a subsystem: leave one of them out"),
            (Some(nqn), None) | (None, Some(nqn)) => nqn,
            (None, None) => return cli_error!("--nqn is missing: give the name of the subsystem as --nqn NQN"),
        };
        if subsystem.is_discovery() {
            return cli_error!("--nqn {subsystem}: the discovery subsystem has no namespaces: name another one");
        }
        let peer = self.transport.map(|transport| transport.peer).or(self.peer);
        let (address, peer) = ends::addresses(self.udp, self.address, peer)?;
        let gateway = ends::gateway(self.gateway, address, peer.ip, self.udp.is_some())?;
        let reads = match (self.workload, self.reads) {
            (workload, reads) if workload.is_mixed() => reads.unwrap_or(MIXED_READS),
            (workload, Some(_)) => {
                return cli_error!(
                    "-M is the percentage of reads of rw and randrw: leave it out with {}",
                    workload.name()
                );
            }
            (Workload::Write | Workload::RandWrite, None) => 0,
            (_, None) => 100,
        };
        let Size(size) = self.size;
        if size > MAX_SIZE {
            return cli_error!("-o {size}: a command has {MAX_SIZE} bytes at most: choose a smaller size");
        }
        let length = match self.duration {
            Some(Seconds(Duration::ZERO)) => {
                return cli_error!("--duration 0: the measurement needs time: give more than 0 seconds");
            }
            given => given.map(|Seconds(time)| time),
        };
        let length = if self.run_infinitely {
            Length::Endless(length.unwrap_or(INTERVAL))
        } else {
            Length::Time(length.unwrap_or(TIME))
        };
        let host_nqn = self.hostnqn.map_or_else(|| host_name(address.ip), Ok)?;
        let plan = NvmePlan {
            eal_args,
            udp: self.udp.is_some(),
            address,
            peer: SocketAddr::new(peer.ip, peer.port.unwrap_or(PORT)),
            gateway,
            host_id: host_id(&host_nqn),
            subsystem,
            host_nqn,
            namespace: self.namespace,
            queues: self.queues,
            depth: self.depth,
            size,
            workload: self.workload,
            reads,
            length,
            warm_up: self.warm_up.map_or(WARM_UP, |Seconds(time)| time),
            verify: self.verify,
            path_mtu: self.mtu.map(|Mtu(mtu)| mtu),
            json: self.out_json.map(Json::from),
        };
        if plan.data_len() > MAX_DATA {
            return cli_error!(
                "-P {} -q {} -o {size}: the data of all outstanding I/Os have more than {MAX_DATA} bytes: choose smaller numbers",
                plan.queues,
                plan.depth
            );
        }
        Ok(plan)
    }
}

/// The default name of a host at `address`.
fn host_name(address: IpAddr) -> Result<Nqn, CliError> {
    let uuid = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("rxe-bench {address}").as_bytes());
    format!("{UUID_NQN}{uuid}").parse().map_err(|error| CliError::new(format!("--hostnqn: {error}")))
}

/// The host's identifier: the UUID in its name, or one that follows from the name.
fn host_id(name: &Nqn) -> [u8; 16] {
    let named = name.as_str().strip_prefix(UUID_NQN).and_then(|uuid| Uuid::try_parse(uuid).ok());
    named.unwrap_or_else(|| Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_str().as_bytes())).into_bytes()
}

#[cfg(test)]
mod tests {
    use rxe_proto::wire::PathMtu;

    use super::*;
    use crate::cli::{self, Command};

    fn parse(line: &str) -> Result<NvmePlan, String> {
        // A quoted argument has spaces.
        let words = line.split('\'').enumerate().flat_map(|(n, part)| match n % 2 {
            0 => part.split_whitespace().map(Into::into).collect(),
            _ => vec![part.into()],
        });
        match cli::parse(words) {
            Ok(Command::Nvme(plan)) => Ok(*plan),
            Ok(other) => panic!("{line} gave {other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    const ENDS: &str = "nvme --udp 127.0.0.3 --peer 127.0.0.2 --nqn nqn.2024-01.x:y";

    #[test]
    fn every_option_is_parsed() {
        let plan = parse(
            "-l 1 -- nvme --address 10.0.0.2/24 -r 'trtype:RDMA adrfam:IPv4 traddr:10.0.0.1 trsvcid:4421 subnqn:nqn.2024-01.x:y' \
             --namespace 3 --hostnqn nqn.2014-08.org.nvmexpress:uuid:2cd2c43b-a90a-45c1-a8cd-86b33ab273b5 -w randrw -M 70 -o 16K \
             -q 64 -P 4 -m 1024 -t 5 --warm-up 1 --verify --out_json -",
        )
        .unwrap();
        assert_eq!((plan.eal_args.len(), plan.udp, plan.peer.to_string()), (2, false, "10.0.0.1:4421".to_owned()));
        assert_eq!((plan.subsystem.as_str(), plan.namespace, plan.host_id[0]), ("nqn.2024-01.x:y", 3, 0x2C));
        assert_eq!((plan.workload, plan.reads, plan.size), (Workload::RandRw, 70, 16_384));
        assert_eq!((plan.depth, plan.queues, plan.path_mtu), (64, 4, Some(PathMtu::Mtu1024)));
        assert_eq!((plan.length, plan.warm_up), (Length::Time(Duration::from_secs(5)), Duration::from_secs(1)));
        assert_eq!((plan.verify, plan.json), (true, Some(Json::Stdout)));
    }

    #[test]
    fn long_names_of_spdk_nvme_perf_are_accepted() {
        let names = "--io-pattern rw --rwmixread 30 --io-depth 9 --io-size 8192 --num-qpairs 2 --time 7";
        let plan = parse(&format!("{ENDS} {names}")).unwrap();
        assert_eq!((plan.workload, plan.reads, plan.depth, plan.size), (Workload::Rw, 30, 9, 8192));
        assert_eq!((plan.queues, plan.length), (2, Length::Time(Duration::from_secs(7))));
    }

    #[test]
    fn defaults_depend_on_the_workload_and_the_address() {
        let plan = parse(ENDS).unwrap();
        assert_eq!((plan.workload, plan.reads, plan.size, plan.depth), (Workload::RandRead, 100, 4096, 32));
        assert_eq!((plan.queues, plan.namespace, plan.peer.port(), plan.verify), (1, 1, 4420, false));
        assert_eq!((plan.length, plan.warm_up), (Length::Time(TIME), WARM_UP));
        assert_eq!(parse(&format!("{ENDS} -w write")).unwrap().reads, 0);
        assert_eq!(parse(&format!("{ENDS} -w rw")).unwrap().reads, 50);
        assert_eq!(parse(&format!("{ENDS} --run_infinitely")).unwrap().length, Length::Endless(INTERVAL));
        assert_eq!(parse(&format!("{ENDS} -D 3")).unwrap().length, Length::Time(Duration::from_secs(3)));
        let other = parse("nvme --udp 127.0.0.4 --peer 127.0.0.2 --nqn nqn.2024-01.x:y").unwrap();
        assert_ne!((&plan.host_nqn, plan.host_id), (&other.host_nqn, other.host_id));
        assert_eq!(parse(ENDS).unwrap().host_nqn, plan.host_nqn);
        let named = parse(&format!("{ENDS} --hostnqn nqn.2024-01.host:one")).unwrap();
        assert_eq!(named.host_nqn.as_str(), "nqn.2024-01.host:one");
        assert_ne!(named.host_id, plan.host_id);
    }

    #[test]
    fn errors_name_the_option() {
        for (line, words) in [
            ("nvme --address 10.0.0.2/24 --peer 10.0.0.1".to_owned(), "there is no `--`"),
            ("nvme --udp 127.0.0.3 --peer 127.0.0.2".to_owned(), "--nqn is missing"),
            ("nvme --udp 127.0.0.3 --nqn nqn.x".to_owned(), "--peer is missing"),
            ("-- nvme --peer 10.0.0.1 --nqn nqn.x".to_owned(), "--address is missing"),
            ("-- nvme --address 10.0.0.2/24 --peer 10.1.0.1 --nqn nqn.x".to_owned(), "there is no route"),
            ("-l 1 -- nvme --udp 127.0.0.3 --peer 127.0.0.2 --nqn nqn.x".to_owned(), "--udp needs no DPDK"),
            ("nvme --udp 127.0.0.3 --peer 127.0.0.2 --nqn disk".to_owned(), "an NQN starts with"),
            (
                "nvme --udp 127.0.0.3 --peer 127.0.0.2 --nqn nqn.2014-08.org.nvmexpress.discovery".to_owned(),
                "the discovery subsystem has no namespaces",
            ),
            (format!("{ENDS} -r 'trtype:RDMA traddr:127.0.0.2'"), "cannot be used with"),
            (
                "nvme --udp 127.0.0.3 --nqn nqn.x -r 'trtype:RDMA traddr:127.0.0.2 subnqn:nqn.y'".to_owned(),
                "leave one of them out",
            ),
            (format!("{ENDS} -M 70"), "leave it out with randread"),
            (format!("{ENDS} -w rw -M 101"), "101 is not in 0..=100"),
            (format!("{ENDS} -w trim"), "invalid value 'trim'"),
            (format!("{ENDS} -q 0"), "0 is not in 1..=4095"),
            (format!("{ENDS} -P 0"), "0 is not in 1..=128"),
            (format!("{ENDS} -o 0"), "not the size of a message"),
            (format!("{ENDS} -o 16M"), "-o 16777216: a command has 16777215 bytes at most"),
            (format!("{ENDS} -o 8M -q 1024"), "choose smaller numbers"),
            (format!("{ENDS} -t 0"), "the measurement needs time"),
            (format!("{ENDS} --namespace 0"), "0 is not in 1..="),
            (format!("{ENDS} -s 64"), "unexpected argument '-s'"),
            (format!("{ENDS} write-bw"), "unexpected argument 'write-bw'"),
        ] {
            let error = parse(&line).map(|plan| panic!("{line} gave {plan:?}")).unwrap_or_else(|error| error);
            assert!(error.contains(words), "{line}: {error}");
        }
        let help = parse("nvme --help").map(|_| ()).unwrap_err();
        for words in ["Ends:", "Load:", "Measurement:", "Results:", "randwrite", "Exit codes: "] {
            assert!(help.contains(words), "{words}: {help}");
        }
    }
}
