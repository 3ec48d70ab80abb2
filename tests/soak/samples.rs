//! What the target holds at a moment, as management and the kernel see it, and the verdict over two such moments.

use std::path::PathBuf;
use std::time::Duration;

use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;
use rxe_inspect::report::{Device, LcoreResources, Resources};

/// The most by which resident memory may grow, in KiB.
const RSS_KIB: u64 = 2048;

/// The same for each queue pair by which the largest number of them at once has grown: allocators keep what they had then.
const RSS_KIB_PER_QP: u64 = 8;

/// The most by which the number of hugepages may grow; and one more for each protection domain that services keep, as its small
/// buffers may be the last ones in a page of large ones.
const HUGEPAGES: u64 = 16;

/// A sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Time since the load began.
    pub at: Duration,
    rss_kib: u64,
    /// Descriptors of hugepages, one for each.
    hugepages: u64,
    /// All others.
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

    /// Descriptors of hugepages, and all others. EAL makes hugepages with `--in-memory` by memfd_create.
    fn descriptors(&self) -> (u64, u64) {
        let folder = std::fs::read_dir(self.process.join("fd")).unwrap_or_else(|error| panic!("{error}"));
        // A descriptor that is closed meanwhile has no link.
        let links: Vec<PathBuf> = folder.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok()).collect();
        let is_memory = |link: &&PathBuf| link.to_string_lossy().starts_with("/memfd:");
        let hugepages = links.iter().filter(is_memory).count();
        (hugepages as u64, (links.len() - hugepages) as u64)
    }

    pub fn take(&mut self, at: Duration) -> Sample {
        let lcores: Vec<LcoreResources> = self.client.ask(&Request::Resources).unwrap_or_else(|e| panic!("{e}"));
        let device: Device = self.client.ask(&Request::Device).unwrap_or_else(|error| panic!("{error}"));
        let mut resources = Resources::default();
        lcores.iter().for_each(|lcore| resources += lcore.resources);
        let (hugepages, descriptors) = self.descriptors();
        Sample {
            at,
            rss_kib: self.status("VmRSS"),
            hugepages,
            descriptors,
            threads: self.status("Threads"),
            mbufs: device.ports.iter().map(|port| port.mbufs_in_use).sum(),
            resources,
        }
    }
}

impl Sample {
    /// Figures of the table, with their names.
    fn figures(&self) -> Vec<(&'static str, u64)> {
        let own = [
            ("rss_kib", self.rss_kib),
            ("huge", self.hugepages),
            ("fds", self.descriptors),
            ("threads", self.threads),
            ("mbufs", self.mbufs),
        ];
        own.into_iter().chain(self.resources.named()).collect()
    }

    pub fn heading(&self) -> String {
        let names = self.figures().into_iter().map(|(name, _)| format!("{name:>0$}", width(name)));
        format!("{:>8}{}", "seconds", names.collect::<String>())
    }

    pub fn row(&self) -> String {
        let values = self.figures().into_iter().map(|(name, value)| format!("{value:>0$}", width(name)));
        format!("{:>8.0}{}", self.at.as_secs_f64(), values.collect::<String>())
    }

    /// Whether nothing of any client is left. Answered SIDR requests are remembered for 70 s.
    pub fn is_free(&self, before: &Resources) -> bool {
        let Resources { qp, cm_id, ah, conn, sidr, tcp, srq, .. } = self.resources;
        qp <= before.qp.max(1) && cm_id == before.cm_id && (ah, conn, sidr, tcp, srq) == (0, 0, 0, 0, 0)
    }

    /// What has grown since `before`, a sentence for each figure. There were up to `peaks` queue pairs at once before that moment
    /// and after it, of hosts with `addresses` addresses.
    pub fn growth(&self, before: &Sample, peaks: [u64; 2], addresses: u64) -> Vec<String> {
        let kept = self.resources.pd.saturating_sub(before.resources.pd);
        let [_, peak] = peaks;
        let more = peak.saturating_sub(peaks[0]);
        let pairs = self.figures().into_iter().zip(before.figures());
        let grown = pairs.filter_map(|((name, now), (_, then))| {
            let most = match name {
                "rss_kib" => then + RSS_KIB + RSS_KIB_PER_QP * more,
                "huge" => then + HUGEPAGES + kept,
                // Services keep the protection domains and memory regions of as many clients as there were at once, and
                // rping a larger buffer for some of them.
                "pd" => then.max(peak),
                "mr" => then.max(2 * peak),
                // Neighbours are forgotten when others need the room.
                "neigh" => then.max(addresses),
                // Buffers in caches and rings, while nothing is transmitted or received.
                "mbufs" => then + 64,
                _ => then,
            };
            (now > most).then(|| format!("{name} has grown from {then} to {now}"))
        });
        grown.collect()
    }
}

/// Width of a column: that of its values, and a blank.
fn width(name: &str) -> usize {
    1 + match name {
        "rss_kib" | "threads" => 8,
        _ => 6,
    }
}
