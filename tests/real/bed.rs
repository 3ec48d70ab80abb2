//! A target and a guest that are connected: the fixture of most groups.

use crate::Check;
use crate::env::TestEnv;
use crate::guest::Guest;
use crate::station::{GUEST_V4, GUEST_V6, Lease, Port, StationKey, TARGET_V4, TARGET_V6};
use crate::suite::{Fixture, Needs};
use crate::target::{Target, unique};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Length of the region `demo`.
pub const REGION: usize = 1 << 20;

/// How to start the target.
pub struct BedConfig {
    pub key: StationKey,
    pub lcores: &'static str,
    /// Arguments besides regions and MTU; docs/clients.md shows them as the target's settings.
    pub arguments: Vec<String>,
}

impl BedConfig {
    /// One lcore and no further arguments.
    pub fn new(port: Port, mtu: u32) -> BedConfig {
        BedConfig { key: StationKey::new(port, mtu), lcores: "0", arguments: Vec::new() }
    }

    /// With these arguments.
    pub fn arguments(mut self, arguments: &[String]) -> BedConfig {
        self.arguments.extend_from_slice(arguments);
        self
    }
}

/// The needs of a group on a shared guest.
pub fn needs(key: StationKey) -> Needs {
    Needs { station: Some(key), ..Needs::default() }
}

/// A target and a guest that are connected.
pub struct TestBed {
    pub env: Arc<TestEnv>,
    // Dropped in this order: the guest's commands end while the target runs.
    lease: Option<Lease>,
    pub target: Option<Target>,
    vdev: String,
    lcores: &'static str,
    huge: PathBuf,
    arguments: Vec<String>,
    region_file: PathBuf,
    settings: String,
    /// The numbers of the guest's GIDs: IPv4, IPv6.
    gids: OnceCell<[String; 2]>,
    /// Connections and exchanges of the clients that ran, which services must have counted.
    tally: BTreeMap<&'static str, [u64; 2]>,
}

/// Arguments of a target in one line, with the text of a configuration file in place of its name.
fn settings(arguments: &[String]) -> Result<String, String> {
    let mut words = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--config" => {
                let path = arguments.next().ok_or("--config without a file")?;
                let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
                words.push(text.trim_end().replace("]\n", "] ").replace('\n', ", "));
            }
            other => words.push(other.to_owned()),
        }
    }
    Ok(if words.is_empty() { "none".to_owned() } else { words.join(" ") })
}

/// The index of the guest's GID that is `address`: it differs from boot to boot.
pub fn gid_index(guest: &Guest, address: &str) -> Result<String, String> {
    let gid = match address.parse().map_err(|e| format!("{address}: {e}"))? {
        std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        std::net::IpAddr::V6(ip) => ip,
    };
    let words: Vec<String> = gid.segments().iter().map(|word| format!("{word:04x}")).collect();
    let script = format!("cd /sys/class/infiniband/rxe0/ports/1/gids && grep -l {} *", words.join(":"));
    Ok(guest.expect(&script, LIMIT, &[])?.text.trim().to_owned())
}

impl TestBed {
    /// Starts a target, and takes the guest that its port is connected to.
    pub fn start(env: &Arc<TestEnv>, config: BedConfig) -> Result<TestBed, String> {
        let BedConfig { key, lcores, arguments: more } = config;
        let region_file = PathBuf::from(format!("/dev/shm/rxe-real-{}-{}", env.token, unique()));
        let mut arguments = vec![
            "--region".to_owned(),
            format!("demo={}K,file={}", REGION >> 10, region_file.display()),
            "--region".to_owned(),
            "other=64K".to_owned(),
        ];
        if key.mtu > 1500 {
            arguments.extend(["--mtu".to_owned(), key.mtu.to_string()]);
        }
        arguments.extend_from_slice(&more);
        let settings = settings(&more)?;
        let (vdev, huge) = (key.vdev(env), env.path("huge"));
        let start = || Target::start_in(env, lcores, &huge, &vdev, &arguments);
        // The guest makes the tap interface, but its card waits for the vhost-user port.
        let (lease, target) = if key.port == Port::AfPacket {
            let lease = env.station(key)?;
            (lease, start()?)
        } else {
            let target = start()?;
            (env.station(key).map_err(|e| format!("{e}\n{}", target.tail()))?, target)
        };
        let gids = OnceCell::new();
        let bed = TestBed {
            env: Arc::clone(env),
            lease: Some(lease),
            target: Some(target),
            vdev,
            lcores,
            huge,
            arguments,
            region_file,
            settings,
            gids,
            tally: BTreeMap::new(),
        };
        bed.reachable()?;
        Ok(bed)
    }

    /// Waits until the guest reaches the target: its card notices a new vhost-user port within a second.
    fn reachable(&self) -> Check {
        let script = format!(
            "ip neigh flush dev eth0; for i in $(seq 30); do ping -c 1 -W 1 {TARGET_V4} >/dev/null && \
             ping -c 1 -W 1 {TARGET_V6} >/dev/null && exit 0; done; ip -s link; exit 1"
        );
        self.guest().expect(&script, LIMIT, &[]).map(drop).map_err(|e| format!("{e}\n{}", self.context()))
    }

    /// The guest.
    pub fn guest(&self) -> &Guest {
        // The lease lasts until the bed is dropped.
        self.lease.as_ref().expect("a lease").guest()
    }

    /// The target while it runs.
    pub fn target(&self) -> Result<&Target, String> {
        self.target.as_ref().ok_or_else(|| "the target does not run".to_owned())
    }

    /// All that the target has logged.
    pub fn log(&self) -> Vec<String> {
        self.target.as_ref().map(Target::log).unwrap_or_default()
    }

    /// The region's bytes as another process on the host sees them.
    pub fn region_bytes(&self) -> Result<Vec<u8>, String> {
        std::fs::read(&self.region_file).map_err(|e| format!("{}: {e}", self.region_file.display()))
    }

    /// The region's file.
    pub fn region_file(&self) -> &Path {
        &self.region_file
    }

    /// The indices of the guest's GIDs: IPv4, IPv6.
    fn gids(&self) -> Result<&[String; 2], String> {
        if self.gids.get().is_none() {
            let found = [gid_index(self.guest(), GUEST_V4)?, gid_index(self.guest(), GUEST_V6)?];
            let _ = self.gids.set(found);
        }
        self.gids.get().ok_or_else(|| "no GIDs".to_owned())
    }

    /// The index of the guest's IPv4 GID.
    pub fn gid4(&self) -> Result<&str, String> {
        Ok(&self.gids()?[0])
    }

    /// A command line with addresses and GID indices in place of their names.
    pub fn fill(&self, command: &str) -> Result<String, String> {
        let gids = self.gids()?;
        let word = |word| match word {
            "IPV4" => TARGET_V4,
            "IPV6" => TARGET_V6,
            "MYIP" => GUEST_V4,
            "GID4" => &gids[0],
            "GID6" => &gids[1],
            other => other,
        };
        Ok(command.split(' ').map(word).collect::<Vec<_>>().join(" "))
    }

    /// Kills the target.
    pub fn kill_target(&mut self) -> Check {
        self.target.take().map(drop).ok_or_else(|| "the target does not run".to_owned())
    }

    /// Starts the target again after it has ended.
    pub fn restart_target(&mut self) -> Check {
        self.target = Some(Target::start_in(&self.env, self.lcores, &self.huge, &self.vdev, &self.arguments)?);
        self.reachable()
    }

    /// Ends the target with its checks, and returns its summary. That it still runs is one of them.
    pub fn stop_target(&mut self) -> Result<String, String> {
        let context = self.context();
        let mut target = self.target.take().ok_or("the target does not run")?;
        if !target.alive() {
            return Err(format!("the target has ended\n{context}"));
        }
        target.stop()
    }

    /// Adds what a client did to the expected counters of the service.
    pub fn count(&mut self, service: &'static str, connections: u64, exchanges: u64) {
        let tally = self.tally.entry(service).or_default();
        tally[0] += connections;
        tally[1] += exchanges;
    }

    /// The counters that the service's line of the summary must have.
    pub fn counted(&self, service: &str) -> Vec<String> {
        let [connections, exchanges] = self.tally.get(service).copied().unwrap_or_default();
        // Counters that are zero are not printed.
        let counters = [("connections", connections), ("exchanges", exchanges)];
        counters.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name}={count}")).collect()
    }
}

impl Fixture for TestBed {
    fn context(&self) -> String {
        let target = self.target.as_ref().map_or(String::new(), |t| format!("target: {}\n{}", t.name(), t.tail()));
        // Frames on both sides of the tap show where packets are lost.
        let tap = self.lease.as_ref().and_then(Lease::tap).map_or(String::new(), |tap| format!("{}\n", tap.counters()));
        format!("{target}{tap}console: {}", self.guest().console())
    }

    fn settings(&self) -> &str {
        &self.settings
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        self.guest().kill_all();
        let _ = std::fs::remove_file(&self.region_file);
    }
}

/// The summary's line of a service has to hold these counters and no others, apart from those that depend on timing:
/// clients given up (those of udaddy end without a message), and lines withheld from the log.
pub fn expect_counters<S: AsRef<str>>(summary: &str, service: &str, counters: &[S]) -> Check {
    let start = format!("service {service}: ");
    let line = summary.lines().find_map(|line| line.strip_prefix(&start));
    let counters: Vec<&str> = counters.iter().map(AsRef::as_ref).collect();
    let may_be = |counter: &&str| ["idle_ended=", "lines_withheld="].iter().any(|name| counter.starts_with(name));
    match line {
        Some(line) if line.split(' ').filter(|c| counters.contains(c) || !may_be(c)).eq(counters.iter().copied()) => {
            Ok(())
        }
        Some(line) => Err(format!("{service} counts {line}, not {}", counters.join(" "))),
        None if counters.is_empty() => Ok(()),
        None => Err(format!("no line of {service} in the summary: {summary}")),
    }
}
