//! Both ends of a port on one machine: rxe-target or a reflector at the far end, rxe-bench at the near end.

use std::cell::{Cell, OnceCell};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rxe_testkit::process::{self, Finished, Program, must};
use serde_json::Value;

use crate::disks;
use crate::guests::Guests;
use crate::matrix::{Far, Port};
use crate::namespaces::Namespaces;
use crate::results::{Latency, Sample};

/// The programs.
const TARGET: &str = env!("CARGO_BIN_EXE_rxe-target");
const BENCH: &str = env!("CARGO_BIN_EXE_rxe-bench");
/// How long the far end may take to be ready.
const READY: Duration = Duration::from_secs(30);
/// How long a run may take besides measuring.
const RUN: Duration = Duration::from_secs(90);
/// The target's addresses, and ours.
const FAR: &str = "10.99.0.1";
const NEAR: &str = "10.99.0.2";
/// IP MTU of both ends, large enough for path MTU 4096.
const MTU: u32 = 4200;
/// Memory that is written and read.
const REGION: &str = "bench=64M";
/// The target's configuration: room for the most queue pairs.
const CONFIG: &str = "[limits]\nconnections = 20000\nqueue-pairs = 20000\n";
/// Options of net_af_packet: the kernel's queues left out, and frames for the MTU.
const AF_PACKET: &str = "qdisc_bypass=1,framesz=8192,blocksz=65536,framecnt=1024";

/// Where the programs run.
pub struct Rig {
    /// rxe-bench's first, then the target's.
    pub cpus: Vec<u32>,
    dir: PathBuf,
    /// Part of names that are unique on the machine.
    token: String,
    /// Far ends so far.
    count: Cell<u32>,
    /// Booted when they are first wanted.
    guests: OnceCell<Result<Guests, String>>,
    /// Made when they are first wanted.
    namespaces: OnceCell<Result<Namespaces, String>>,
}

/// Two ends of a port, for as long as it lasts.
pub struct Link {
    /// Devices of the far end and of ours.
    pub vdevs: [String; 2],
    /// A veth interface, if that is what connects them.
    veth: Option<String>,
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(name) = &self.veth {
            // That deletes its other end too.
            let _ = ip(&["link", "del", name]);
        }
    }
}

/// The configuration with two namespaces in memory and one in this file.
fn with_disks(file: &Path) -> String {
    let namespace = |(nsid, storage): (u32, String)| {
        format!("[[service.nvmf.subsystem.namespace]]\nnsid = {nsid}\nblock-size = 512\n{storage}\n")
    };
    let [memory, small] = [disks::SIZE, disks::SMALL].map(|size| format!("ram = \"{}M\"", size >> 20));
    let file = format!("file = \"{}\"", file.display());
    let subsystem = format!("[[service.nvmf.subsystem]]\nnqn = \"{}\"\n", disks::NQN);
    let namespaces: String = (1..).zip([memory, file, small]).map(namespace).collect();
    format!("{CONFIG}{subsystem}{namespaces}")
}

/// The words of one option after the other.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
}

/// Standard output of a program that has ended with success.
pub fn succeeded(done: Finished) -> Result<String, String> {
    if done.code == 0 {
        return Ok(done.stdout);
    }
    let lines: Vec<&str> = done.stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    Err(format!("exit code {}: {}", done.code, lines[lines.len().saturating_sub(3)..].join("; ")))
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    must("ip", arguments)
}

impl Rig {
    /// The file that is a namespace of [`Far::Disks`], written as a whole.
    ///
    /// # Errors
    /// In words, why not.
    pub fn disk(&self) -> Result<PathBuf, String> {
        let path = self.dir.join("disk.img");
        if !path.exists() {
            let bytes: Vec<u8> = (0..disks::SIZE).map(|at| (at / 512) as u8).collect();
            std::fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(path)
    }

    /// The configuration file of [`Far::Disks`].
    fn disks(&self) -> Result<PathBuf, String> {
        let path = self.dir.join("disks.toml");
        std::fs::write(&path, with_disks(&self.disk()?)).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// Nothing runs yet.
    ///
    /// # Errors
    /// In words, why not.
    pub fn new(cpus: Vec<u32>) -> Result<Rig, String> {
        let token = std::process::id().to_string();
        let dir = std::env::temp_dir().join(format!("rxe-performance-{token}"));
        std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        std::fs::write(dir.join("target.toml"), CONFIG).map_err(|error| error.to_string())?;
        Ok(Rig { cpus, dir, token, count: Cell::new(0), guests: OnceCell::new(), namespaces: OnceCell::new() })
    }

    /// The two guests.
    ///
    /// # Errors
    /// In words, why they did not boot.
    pub fn guests(&self) -> Result<&Guests, String> {
        self.guests.get_or_init(|| Guests::boot(&self.dir, &self.cpus, TARGET)).as_ref().map_err(Clone::clone)
    }

    /// The two network namespaces.
    ///
    /// # Errors
    /// In words, why they could not be made.
    pub fn namespaces(&self) -> Result<&Namespaces, String> {
        self.namespaces.get_or_init(Namespaces::new).as_ref().map_err(Clone::clone)
    }

    /// A new pair of ends, with `queues` queues where the port lets choose.
    ///
    /// # Errors
    /// In words, why not.
    pub fn link(&self, port: Port, queues: usize) -> Result<Link, String> {
        let count = self.count.get();
        self.count.set(count + 1);
        let socket = self.dir.join(format!("sock{count}")).display().to_string();
        let mac = "mac=52:54:00:00:00:02";
        let vdevs = match port {
            Port::Vhost => [
                format!("net_vhost0,iface={socket},queues={queues}"),
                format!("net_virtio_user0,path={socket},queues={queues},queue_size=1024,{mac}"),
            ],
            Port::Memif => {
                let common = format!("id=0,bsize=8192,rsize=10,socket-abstract=no,socket={socket}");
                [format!("net_memif0,role=server,{common}"), format!("net_memif0,role=client,{common},{mac}")]
            }
            Port::AfPacket | Port::AfXdp => {
                // Names of interfaces have 15 letters at most.
                let names = ["f", "n"].map(|end| format!("rxp{}{count}{end}", self.token));
                let [far, near] = &names;
                ip(&["link", "add", far, "type", "veth", "peer", "name", near])?;
                let mut link = Link { vdevs: Default::default(), veth: Some(far.clone()) };
                // net_af_xdp's frames are shorter.
                let mtu = if port == Port::AfXdp { 3000 } else { MTU };
                for name in &names {
                    // Nobody but the two ends is to speak there, and the kernel forwards nothing that arrives.
                    let ipv6 = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
                    let _ = std::fs::write(ipv6, "1");
                    let forwarding = format!("/proc/sys/net/ipv4/conf/{name}/forwarding");
                    std::fs::write(&forwarding, "0").map_err(|error| format!("{forwarding}: {error}"))?;
                    ip(&["link", "set", name, "mtu", &mtu.to_string(), "up"])?;
                }
                let vdev = |name: &String| match port {
                    Port::AfXdp => format!("net_af_xdp0,iface={name}"),
                    _ => format!("net_af_packet0,iface={name},{AF_PACKET}"),
                };
                link.vdevs = names.each_ref().map(vdev);
                return Ok(link);
            }
        };
        Ok(Link { vdevs, veth: None })
    }

    /// A program of DPDK on these lcores, each given with its CPU, at this device.
    pub fn command(&self, program: &[&str], name: &str, lcores: &[u32], vdev: &str) -> Command {
        let lcores: Vec<String> = lcores.iter().enumerate().map(|(lcore, cpu)| format!("{lcore}@{cpu}")).collect();
        // However this process ends, they end with it.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .args(program)
            .args(["--lcores", &lcores.join(","), "--in-memory", "--no-pci", "--no-telemetry"])
            .args(["--file-prefix", &format!("rxp{}{name}", self.token), "--vdev", vdev]);
        // vhost-user's other side shares few pieces of memory.
        if vdev.starts_with("net_virtio_user") {
            command.arg("--single-file-segments");
        }
        command.arg("--");
        command
    }

    /// Starts a far end that can serve when this returns.
    ///
    /// # Errors
    /// In words, why not.
    pub fn start(&self, far: &Far, link: &Link) -> Result<Program, String> {
        let target = match far {
            Far::Target { lcores, options, .. } => Some((*lcores, &options[..], self.dir.join("target.toml"))),
            Far::Disks => Some((1, &[][..], self.disks()?)),
            _ => None,
        };
        let mut command = match target {
            Some((lcores, options, config)) => {
                // As many as there are wanted; where CPUs are too few they are used again.
                let cpus: Vec<u32> = self.cpus[1..].iter().copied().cycle().take(lcores).collect();
                let mut command = self.command(&[TARGET], "t", &cpus, &link.vdevs[0]);
                command.args(["--address", &format!("{FAR}/24"), "--idle", "spin", "--region", REGION, "--config"]);
                command.arg(config).args(options);
                command
            }
            None => {
                let mut command = self.command(&[BENCH], "t", &self.cpus[1..2], &link.vdevs[0]);
                command.arg("reflect");
                command
            }
        };
        command.env("RXE_LOG", "error");
        let program = Program::start(&mut command)?;
        program.wait_for_line("ready ", READY)?;
        Ok(program)
    }

    /// One run of rxe-bench: a sample for each size.
    ///
    /// # Errors
    /// The reason of a failure.
    pub fn bench(&self, link: &Link, what: &str) -> Result<Vec<(f64, Sample)>, String> {
        let mut command = self.command(&[BENCH], "b", &self.cpus[..1], &link.vdevs[1]);
        command.args(words(what)).args(["--address", &format!("{NEAR}/24"), "--peer", FAR, "--out_json", "-"]);
        samples(&succeeded(process::run(&mut command, RUN)?)?)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Samples in rxe-bench's JSON, by size.
pub fn samples(json: &str) -> Result<Vec<(f64, Sample)>, String> {
    let value: Value = serde_json::from_str(json).map_err(|error| format!("rxe-bench printed no JSON: {error}"))?;
    let all = match value {
        Value::Array(all) => all,
        one => vec![one],
    };
    all.iter().map(|value| sample(value).ok_or_else(|| format!("rxe-bench printed no result: {value}"))).collect()
}

fn sample(value: &Value) -> Option<(f64, Sample)> {
    let number = |name: &str| value[name].as_f64();
    let latency = |value: &Value| {
        let at = |name: &str| value[name].as_f64();
        Some(Latency {
            min: at("min")?,
            p50: at("p50")?,
            p99: at("p99")?,
            p99_9: at("p99_9")?,
            p99_99: at("p99_99"),
            max: at("max")?,
        })
    };
    let sample = Sample {
        rate: number("msg_rate").or_else(|| number("iops"))?,
        gbps: number("bw_gbps")?,
        mtu: number("mtu")? as u32,
        latency: value.get("lat_us").and_then(latency),
        bulk_gbps: number("bulk_gbps"),
        cpu_us: None,
    };
    // A run in which nothing happened is no figure.
    (sample.rate > 0.0).then_some((number("size")?, sample))
}
