//! What is to be measured.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use rxe_dpdk::host::Cidr;
use rxe_proto::wire::PathMtu;

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

/// What messages do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    Write,
    Read,
    Send,
    /// FETCH_ADD.
    Atomic,
}

impl Test {
    /// What its messages do; `None` where there are none.
    pub fn verb(self) -> Option<Verb> {
        match self {
            Test::WriteBw | Test::WriteLat => Some(Verb::Write),
            Test::ReadBw | Test::ReadLat => Some(Verb::Read),
            Test::SendBw | Test::SendLat => Some(Verb::Send),
            Test::AtomicBw | Test::AtomicLat => Some(Verb::Atomic),
            Test::ConnectRate | Test::Echo | Test::Reflect => None,
        }
    }

    /// Whether the time of each message counts, not how many there are.
    pub fn is_latency(self) -> bool {
        matches!(self, Test::WriteLat | Test::ReadLat | Test::SendLat | Test::AtomicLat)
    }

    /// As on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// How the peer's memory is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Protocol {
    /// As the `region` service of rxe-target tells it; for all but SENDs
    Region,
    /// As perftest's servers tell it under -R; always for SENDs
    Perftest,
}

/// What there is beside the test, on queue pairs of its own, for as long as it lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beside {
    /// `ReadBw` or `WriteBw`.
    pub test: Test,
    pub qps: u32,
    /// Bytes of a message.
    pub size: u32,
}

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// So many messages on each queue pair.
    Messages(u64),
    /// So long.
    Time(Duration),
}

/// Where the results go besides the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Json {
    /// To standard output, in place of the table.
    Stdout,
    /// To a file.
    File(PathBuf),
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub eal_args: Vec<String>,
    pub test: Test,
    pub protocol: Protocol,
    /// Ours.
    pub address: Cidr,
    pub peer: SocketAddr,
    /// The region to ask for; empty for the peer's first.
    pub region: String,
    /// Messages go over so many regions in turn: those with this name and the numbers from 0 on.
    pub regions: Option<u32>,
    /// Bytes of a message, one run after another.
    pub sizes: Vec<u32>,
    pub qps: u32,
    pub length: Length,
    /// What comes before and is not measured.
    pub warm_up: Duration,
    /// Messages outstanding on a queue pair; `None` for what suits the test.
    pub depth: Option<u32>,
    /// One completion for so many messages; `None` for what suits the test.
    pub group: Option<u32>,
    /// READs and atomics outstanding on a queue pair.
    pub reads: u8,
    /// `None` for the largest that the port carries.
    pub path_mtu: Option<PathMtu>,
    /// Bytes go both ways at once.
    pub both_ways: bool,
    /// Every byte is looked at.
    pub verify: bool,
    pub bulk: Option<Beside>,
    /// Bandwidth in Gb/s, not MiB/s.
    pub gbits: bool,
    pub json: Option<Json>,
}

/// Messages outstanding on a queue pair, as perftest has it.
const DEPTH: u32 = 128;
/// Messages outstanding on all queue pairs together: more only costs memory.
const DEPTH_OF_ALL: u32 = 1 << 16;
/// Bytes outstanding on all queue pairs together: with more, a run would not be over for seconds after its end.
const BYTES_OF_ALL: u64 = 128 << 20;
/// The least of one queue pair of many.
const LEAST_DEPTH: u32 = 4;
/// Messages outstanding on a queue pair of the load beside the test: enough to keep it busy.
const BULK_DEPTH: u32 = 8;
/// Beyond this size every message has its completion, as perftest has it.
const ALONE: u32 = 8192;

impl Plan {
    /// Whether a SEND is done only when the peer has sent one back.
    pub fn wants_answers(&self) -> bool {
        self.test.verb() == Some(Verb::Send) && (self.test.is_latency() || self.both_ways)
    }

    /// The region that each queue pair asks for: with numbered regions, their directory.
    pub fn asks_for(&self) -> String {
        if self.regions.is_some() { format!("{}*", self.region) } else { self.region.clone() }
    }

    /// The plan of what there is beside the test.
    pub fn beside(&self) -> Option<Plan> {
        let Beside { test, qps, size } = self.bulk?;
        let alone = Plan { bulk: None, both_ways: false, group: None, ..self.clone() };
        Some(Plan { test, qps, sizes: vec![size], depth: Some(BULK_DEPTH), ..alone })
    }

    /// Connections of the test and of what is beside it.
    pub fn connections(&self) -> u32 {
        self.qps + self.bulk.map_or(0, |bulk| bulk.qps)
    }

    /// Messages outstanding on a queue pair.
    pub fn depth(&self) -> u32 {
        let suits = match self.test {
            test if test.is_latency() => 1,
            _ => (DEPTH_OF_ALL / self.qps).clamp(LEAST_DEPTH, DEPTH),
        };
        self.depth.unwrap_or(suits)
    }

    /// Messages of `size` bytes outstanding on a queue pair: as many as [`depth`](Plan::depth) says, and fewer long ones.
    pub fn depth_of(&self, size: u32) -> u32 {
        let most = BYTES_OF_ALL / (u64::from(size.max(1)) * u64::from(self.qps));
        let most = u32::try_from(most).unwrap_or(u32::MAX).max(LEAST_DEPTH);
        self.depth.unwrap_or_else(|| self.depth().min(most))
    }

    /// How many messages of `size` bytes have one completion: at most as many as are outstanding.
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
            test: Test::WriteBw,
            protocol: Protocol::Region,
            address: "10.0.0.2/24".parse().expect("an address"),
            peer: "10.0.0.1:4792".parse().expect("an address"),
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
    fn numbered_regions_are_asked_for_by_their_directory() {
        let one = Plan { region: "many".to_owned(), ..plan() };
        let all = Plan { regions: Some(1000), ..one.clone() };
        assert_eq!((one.asks_for(), all.asks_for(), plan().asks_for()), ("many".into(), "many*".into(), String::new()));
    }

    #[test]
    fn depth_and_group_suit_the_test() {
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
