//! The parameters of a run.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use rxe_proto::wire::{Cidr, PathMtu};

/// Default duration of a measurement.
pub const TIME: Duration = Duration::from_secs(2);
/// Default interval of the results of `--run_infinitely`.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Default warm-up.
pub const WARM_UP: Duration = Duration::from_millis(250);

/// The tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Test {
    /// Rate of WRITEs
    WriteBw,
    /// Rate of READs
    ReadBw,
    /// Rate of SENDs
    SendBw,
    /// Rate of FETCH_ADDs
    AtomicBw,
    /// Time from posting a WRITE to its completion
    WriteLat,
    /// Time from posting a READ to its completion
    ReadLat,
    /// Time from posting a SEND to the arrival of the peer's answer
    SendLat,
    /// Time from posting a FETCH_ADD to its completion
    AtomicLat,
    /// Connections made and ended per second, --qp at a time
    ConnectRate,
    /// Rate and round trip of bare frames as long as those of WRITEs, to `reflect`
    Echo,
    /// Sends the frames of `echo` back
    Reflect,
}

/// Operation of the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    Write,
    Read,
    Send,
    /// FETCH_ADD.
    Atomic,
}

impl Test {
    /// Operation of its messages; `None` if it sends none.
    pub fn verb(self) -> Option<Verb> {
        match self {
            Test::WriteBw | Test::WriteLat => Some(Verb::Write),
            Test::ReadBw | Test::ReadLat => Some(Verb::Read),
            Test::SendBw | Test::SendLat => Some(Verb::Send),
            Test::AtomicBw | Test::AtomicLat => Some(Verb::Atomic),
            Test::ConnectRate | Test::Echo | Test::Reflect => None,
        }
    }

    /// Whether it measures the latency of each message, one at a time.
    pub fn is_latency(self) -> bool {
        matches!(self, Test::WriteLat | Test::ReadLat | Test::SendLat | Test::AtomicLat)
    }

    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Protocol for obtaining address and key of the target's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Protocol {
    /// The `region` service of rxe-target; not for SENDs
    Region,
    /// perftest's servers with -R; always for SENDs
    Perftest,
}

impl Protocol {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Region => "region",
            Protocol::Perftest => "perftest",
        }
    }
}

/// Additional load on queue pairs of its own, for the duration of the test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beside {
    /// `ReadBw` or `WriteBw`.
    pub test: Test,
    pub qps: u32,
    /// Bytes of a message.
    pub size: u32,
}

/// Length of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// Number of messages on each queue pair.
    Messages(u64),
    /// Duration.
    Time(Duration),
    /// Until a signal, with a result for each interval of this duration.
    Endless(Duration),
}

/// Destination of the results as JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Json {
    /// Standard output, instead of the table.
    Stdout,
    /// A file, besides the table.
    File(PathBuf),
}

impl From<PathBuf> for Json {
    fn from(path: PathBuf) -> Json {
        if path.as_os_str() == "-" { Json::Stdout } else { Json::File(path) }
    }
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub eal_args: Vec<String>,
    /// On a UDP socket at `address`, without DPDK.
    pub udp: bool,
    pub test: Test,
    pub protocol: Protocol,
    /// Address of the bench.
    pub address: Cidr,
    pub peer: SocketAddr,
    /// The router to it, if it is in another network.
    pub gateway: Option<IpAddr>,
    /// Name of the region; empty for the target's first.
    pub region: String,
    /// Number of numbered regions to use in turn.
    pub regions: Option<u32>,
    /// Sizes of the messages in bytes, measured one after another.
    pub sizes: Vec<u32>,
    pub qps: u32,
    pub length: Length,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Outstanding messages of a queue pair; `None` for the default of the test.
    pub depth: Option<u32>,
    /// Messages per completion; `None` for the default of the test.
    pub group: Option<u32>,
    /// Outstanding READs and atomics of a queue pair.
    pub reads: u8,
    /// `None` for the largest that the port supports.
    pub path_mtu: Option<PathMtu>,
    /// Transfer data in both directions.
    pub both_ways: bool,
    /// Check the data of every message.
    pub verify: bool,
    pub bulk: Option<Beside>,
    /// Print the bandwidth in Gb/s instead of MiB/s.
    pub gbits: bool,
    pub json: Option<Json>,
}

/// Default of outstanding messages of a queue pair; perftest's.
const DEPTH: u32 = 128;
/// Maximum of outstanding messages of all queue pairs by default: more only takes memory.
const DEPTH_OF_ALL: u32 = 1 << 16;
/// Maximum of outstanding bytes of all queue pairs by default: with more, draining would take seconds.
const BYTES_OF_ALL: u64 = 128 << 20;
/// Minimum of outstanding messages of a queue pair by default.
const LEAST_DEPTH: u32 = 4;
/// Outstanding messages of a queue pair of the additional load: enough to keep it busy.
const BULK_DEPTH: u32 = 8;
/// Above this size every message has a completion; perftest's limit.
const ALONE: u32 = 8192;

impl Plan {
    /// Whether a SEND is complete only when the target has answered it.
    pub fn wants_answers(&self) -> bool {
        self.test.verb() == Some(Verb::Send) && (self.test.is_latency() || self.both_ways)
    }

    /// Messages that a completed one counts as: the answer to a SEND is a message too, if both directions are measured.
    pub fn messages_each(&self) -> u64 {
        1 + u64::from(self.both_ways && self.test.verb() == Some(Verb::Send))
    }

    /// Name of the region that each queue pair requests: with numbered regions, their directory.
    pub fn asks_for(&self) -> String {
        if self.regions.is_some() { format!("{}*", self.region) } else { self.region.clone() }
    }

    /// The plan of the additional load.
    pub fn beside(&self) -> Option<Plan> {
        let Beside { test, qps, size } = self.bulk?;
        let alone = Plan { bulk: None, both_ways: false, group: None, ..self.clone() };
        Some(Plan { test, qps, sizes: vec![size], depth: Some(BULK_DEPTH), ..alone })
    }

    /// Connections of the test and the additional load.
    pub fn connections(&self) -> u32 {
        self.qps + self.bulk.map_or(0, |bulk| bulk.qps)
    }

    /// Outstanding messages of a queue pair.
    pub fn depth(&self) -> u32 {
        let suits = match self.test {
            test if test.is_latency() => 1,
            _ => (DEPTH_OF_ALL / self.qps).clamp(LEAST_DEPTH, DEPTH),
        };
        self.depth.unwrap_or(suits)
    }

    /// Outstanding messages of `size` bytes of a queue pair: [`depth`](Plan::depth), fewer for long messages.
    pub fn depth_of(&self, size: u32) -> u32 {
        let most = BYTES_OF_ALL / (u64::from(size.max(1)) * u64::from(self.qps));
        let most = u32::try_from(most).unwrap_or(u32::MAX).max(LEAST_DEPTH);
        self.depth.unwrap_or_else(|| self.depth().min(most))
    }

    /// Messages of `size` bytes per completion: at most the number of outstanding messages.
    pub fn group(&self, size: u32) -> u32 {
        let suits = if size > ALONE { 1 } else { self.depth() / 4 };
        self.group.unwrap_or(suits).clamp(1, self.depth())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// WRITEs of 64 bytes on one queue pair.
    pub fn plan() -> Plan {
        Plan {
            eal_args: Vec::new(),
            udp: false,
            test: Test::WriteBw,
            protocol: Protocol::Region,
            address: "10.0.0.2/24".parse().expect("an address"),
            peer: "10.0.0.1:4792".parse().expect("an address"),
            gateway: None,
            region: String::new(),
            regions: None,
            sizes: vec![64],
            qps: 1,
            length: Length::Messages(1000),
            warm_up: Duration::ZERO,
            depth: None,
            group: None,
            reads: 16,
            path_mtu: None,
            both_ways: false,
            verify: false,
            bulk: None,
            gbits: false,
            json: None,
        }
    }

    #[test]
    fn numbered_regions_are_requested_by_their_directory() {
        let one = Plan { region: "many".to_owned(), ..plan() };
        let all = Plan { regions: Some(1000), ..one.clone() };
        assert_eq!((one.asks_for(), all.asks_for(), plan().asks_for()), ("many".into(), "many*".into(), String::new()));
    }

    #[test]
    fn depth_and_group_depend_on_test_and_size() {
        let one = plan();
        assert_eq!((one.depth(), one.group(64), one.group(65_536)), (128, 32, 1));
        assert_eq!((one.depth_of(64), one.depth_of(1 << 20), one.depth_of(8 << 20)), (128, 128, 16));
        let some = Plan { qps: 8, ..plan() };
        assert_eq!((some.depth_of(1 << 16), some.depth_of(1 << 20), some.depth_of(8 << 20)), (128, 16, 4));
        let many = Plan { qps: 16_384, ..plan() };
        assert_eq!((many.depth(), many.group(64)), (4, 1));
        let latency = Plan { test: Test::WriteLat, ..plan() };
        assert_eq!((latency.depth(), latency.group(64)), (1, 1));
        let bulk = Beside { test: Test::ReadBw, qps: 8, size: 1 << 20 };
        let beside = Plan { bulk: Some(bulk), group: Some(2), ..latency };
        assert_eq!((beside.connections(), beside.depth()), (9, 1));
        let beside = beside.beside().expect("a plan");
        assert_eq!(
            (beside.connections(), beside.depth(), beside.group(1 << 20), beside.sizes),
            (8, 8, 1, vec![1 << 20])
        );
        let told = Plan { depth: Some(10), group: Some(100), ..plan() };
        assert_eq!((told.depth(), told.group(65_536), told.depth_of(1 << 30)), (10, 10, 10));
    }
}
