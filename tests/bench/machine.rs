//! Description of the machine on which the bench measures.

use std::process::Command;

use crate::results::Machine;
use crate::testpmd;

/// Free hugepages of 2 MiB that the two ends take together.
const HUGEPAGES: u64 = 400;

/// The first line that a program prints; empty where it cannot be run.
fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or_default().trim().to_owned()
}

/// The text after `name` and a colon or an equals sign in a file.
fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start_matches([':', '=', ' ', '\t']).trim_matches('"').to_owned())
}

/// The CPUs to use: those given, or all that this process may use.
///
/// # Errors
/// There are too few, or something else is lacking.
pub fn cpus(given: &[u32]) -> Result<Vec<u32>, String> {
    let mut cpus = given.to_vec();
    if cpus.is_empty() {
        let list = field("/proc/self/status", "Cpus_allowed_list").unwrap_or_default();
        cpus = range(&list).unwrap_or_default();
        // The kernel's own work is on the first more often than not; the target is the end that is measured.
        cpus.rotate_right(1);
    }
    if cpus.len() < 2 {
        return Err("two CPUs are needed, one for each end: use a machine that has them, or give --cpus".to_owned());
    }
    if first_line("id", &["-u"]) != "0" {
        return Err("run this as root: DPDK needs hugepages, and interfaces are made".to_owned());
    }
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free: u64 = free.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    if free < HUGEPAGES {
        return Err(format!("{free} hugepages of 2 MiB are free, {HUGEPAGES} are needed: run `make setup`"));
    }
    Ok(cpus)
}

/// Numbers of a list as `0-1,4`.
pub fn range(list: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

/// Packages of the programs that run in namespaces.
const PACKAGES: [&str; 3] = ["perftest", "rdma-core", "ucx-utils"];

/// This machine.
pub fn describe() -> Machine {
    let kib = field("/proc/meminfo", "MemTotal").unwrap_or_default();
    let kib: u64 = kib.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0);
    let package = first_line("dpkg-query", &["-W", "-f=${Version}\n", "dpdk-dev"]);
    let version = |package: &&str| {
        let version = first_line("dpkg-query", &["-W", "-f=${Version}\n", package]);
        if version.is_empty() { format!("no {package}") } else { format!("{package} {version}") }
    };
    Machine {
        date: first_line("date", &["-u", "+%F"]),
        cpu: field("/proc/cpuinfo", "model name").unwrap_or_default(),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        memory_gib: kib.div_ceil(1 << 20),
        system: field("/etc/os-release", "PRETTY_NAME").unwrap_or_default(),
        kernel: first_line("uname", &["-r"]),
        version: first_line(env!("CARGO_BIN_EXE_rxe-target"), &["--version"]),
        rustc: first_line("rustc", &["--version"]),
        testpmd: format!("{} {package}", testpmd::PROGRAM),
        programs: PACKAGES.iter().map(version).collect::<Vec<_>>().join(", "),
    }
}
