//! What the target holds at a moment, as management and the kernel see it, and the verdict over two such moments.

use std::path::PathBuf;
use std::time::Duration;

use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;
use rxe_inspect::report::{Device, LcoreResources, Resources};

/// The longest that resident memory may grow, in KiB: allocators keep some of what they had at the busiest moment.
const RSS_KIB: u64 = 2048;

/// A sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Time since the load began.
    pub at: Duration,
    rss_kib: u64,
    descriptors: u64,
    threads: u64,
    mbufs: u64,
    pub resources: Resources,
}

/// Takes samples of one target.
pub struct Sampler {
    client: Client,
    process: PathBuf,
}

impl Sampler {
    pub fn new(prefix: &str, process: u32) -> Sampler {
        let client = Client::connect(&rxe_inspect::socket::path(prefix)).unwrap_or_else(|error| panic!("{error}"));
        Sampler { client, process: PathBuf::from(format!("/proc/{process}")) }
    }

    /// The number in the line `name` of the process' status.
    fn status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(self.process.join("status")).unwrap_or_else(|error| panic!("{error}"));
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
    }

    pub fn take(&mut self, at: Duration) -> Sample {
        let lcores: Vec<LcoreResources> = self.client.ask(&Request::Resources).unwrap_or_else(|e| panic!("{e}"));
        let device: Device = self.client.ask(&Request::Device).unwrap_or_else(|error| panic!("{error}"));
        let mut resources = Resources::default();
        lcores.iter().for_each(|lcore| resources += lcore.resources);
        Sample {
            at,
            rss_kib: self.status("VmRSS"),
            descriptors: std::fs::read_dir(self.process.join("fd")).map_or(0, |fds| fds.count() as u64),
            threads: self.status("Threads"),
            mbufs: device.ports.iter().map(|port| port.mbufs_in_use).sum(),
            resources,
        }
    }
}

impl Sample {
    /// Figures of the table, with their names.
    fn figures(&self) -> Vec<(&'static str, u64)> {
        let own =
            [("rss_kib", self.rss_kib), ("fds", self.descriptors), ("threads", self.threads), ("mbufs", self.mbufs)];
        own.into_iter().chain(self.resources.named()).collect()
    }

    pub fn heading(&self) -> String {
        let names = self.figures().into_iter().map(|(name, value)| format!("{name:>0$}", width(name, value)));
        format!("{:>8}{}", "seconds", names.collect::<String>())
    }

    pub fn row(&self) -> String {
        let values = self.figures().into_iter().map(|(name, value)| format!("{value:>0$}", width(name, value)));
        format!("{:>8.0}{}", self.at.as_secs_f64(), values.collect::<String>())
    }

    /// Whether nothing of any client is left. Answered SIDR requests are remembered for 70 s.
    pub fn is_free(&self, before: &Resources) -> bool {
        let Resources { qp, cm_id, ah, conn, sidr, tcp, srq, .. } = self.resources;
        qp <= before.qp.max(1) && cm_id == before.cm_id && (ah, conn, sidr, tcp, srq) == (0, 0, 0, 0, 0)
    }

    /// What has grown since `before`, a sentence for each figure. Objects in `pools` of services, which keep as many as were
    /// in use at once, may be `spare` more.
    pub fn growth(&self, before: &Sample, spare: u64) -> Vec<String> {
        let pairs = self.figures().into_iter().zip(before.figures());
        let grown = pairs.filter_map(|((name, now), (_, then))| {
            let most = match name {
                "rss_kib" => then + RSS_KIB,
                // Protection domains and memory regions wait in pools for the next clients.
                "pd" | "mr" => then + spare,
                // The answers to ARP requests stay, for each address of a client.
                "neigh" => then.max(spare),
                // Buffers in caches and rings, while nothing is transmitted or received.
                "mbufs" => then + 64,
                _ => then,
            };
            (now > most).then(|| format!("{name} has grown from {then} to {now}"))
        });
        grown.collect()
    }
}

/// Width of a column: that of the widest value, and a blank.
fn width(name: &str, _value: u64) -> usize {
    1 + match name {
        "rss_kib" | "threads" => 8,
        _ => 6,
    }
}
