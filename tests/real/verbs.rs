//! Verbs between a kernel in a guest (tests/clients/verbs_client) and the example program verbs_peer, over vhost-user: RC,
//! UC and UD, shared receive queues, memory windows, fast regions, atomics, and the errors that each side must report.

use crate::Check;
use crate::bed::needs;
use crate::env::{TestEnv, example};
use crate::station::{Kernel, Lease, Port, StationKey, TARGET_V4, TARGET_V6};
use crate::suite::{AnyGroup, Fixture, Group};
use crate::target::unique;
use rxe_testkit::process::Program;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// verbs_client's cases.
const CASES: [&str; 28] = [
    "rc-send",
    "rc-write",
    "rc-read",
    "rc-pieces",
    "rc-inline",
    "rc-fence",
    "rc-atomics",
    "rc-rnr",
    "rc-solicited",
    "rc-srq-of-peer",
    "rc-srq-of-ours",
    "uc-send",
    "uc-write",
    "uc-no-receive",
    "ud-send",
    "ud-grh",
    "ud-wrong-qkey",
    "bad-key",
    "bad-range",
    "window-of-ours",
    "window-of-ours-local",
    "window-of-ours-limits",
    "window-of-ours-type-1",
    "window-of-peer",
    "window-of-peer-local",
    "window-of-peer-limits",
    "window-of-peer-type-1",
    "fast-region-of-peer",
];
/// Cases of newer kernels: 6.1 knows no ATOMIC WRITE.
const NEWER_CASES: [&str; 1] = ["atomic-write"];

/// verbs_peer and the guest.
struct Peers {
    // The guest's commands end before the peer.
    lease: Lease,
    peer: Program,
    address: &'static str,
}

impl Peers {
    fn start(env: &Arc<TestEnv>, key: StationKey, address: &'static str) -> Result<Peers, String> {
        let mut command = Command::new(example("verbs_peer")?);
        command.args(env.eal_options(&unique())).arg(format!("--vdev={}", key.vdev(env))).args([
            "--",
            &format!("{TARGET_V4}/24"),
            &format!("{TARGET_V6}/64"),
        ]);
        let peer = Program::start(&mut command)?;
        peer.wait_for_line("ready ", LIMIT)?;
        Ok(Peers { lease: env.station(key)?, peer, address })
    }

    fn client(&self, case: &str) -> Check {
        let command = format!("verbs_client {} {case}", self.address);
        self.lease.guest().expect(&command, LIMIT, &[&format!("{case}: ok")]).map(drop)
    }
}

impl Fixture for Peers {
    fn context(&self) -> String {
        format!("{}console: {}", self.peer.tail(), self.lease.guest().console())
    }
}

/// The groups `verbs-4200` (IPv6, path MTU 4096) and, nightly, `verbs-1500` (IPv4, path MTU 1024), with the kernel's suffix.
pub fn groups(kernel: Kernel) -> Vec<AnyGroup> {
    [(4200, TARGET_V6), (1500, TARGET_V4)].map(|(mtu, address)| group(kernel, mtu, address)).into()
}

fn group(kernel: Kernel, mtu: u32, address: &'static str) -> AnyGroup {
    let key = StationKey { kernel, ..StationKey::new(Port::Vhost, mtu) };
    let name = format!("verbs-{mtu}{}", kernel.suffix());
    let mut group = Group::new(name, needs(key), move |env| Peers::start(env, key, address));
    group.nightly(mtu == 1500 || kernel != Kernel::Stable);
    let newer: &[&str] = if kernel == Kernel::Stable { &[] } else { &NEWER_CASES };
    for case in CASES.iter().chain(newer) {
        group.case(*case, |peers: &mut Peers| peers.client(case));
    }
    group.case("all of the client's cases have run", |peers| {
        let listed = peers.lease.guest().run("verbs_client", LIMIT)?.text;
        let missing = |name: &&str| !CASES.contains(name) && !NEWER_CASES.contains(name) && *name != "stop";
        let names = listed.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
        match names.collect::<Vec<_>>().into_iter().find(missing) {
            None => Ok(()),
            Some(name) => Err(format!("{name} is not in the test's list")),
        }
    });
    group.case("the peer ends, with no packet buffer lost", |peers| {
        peers.client("stop")?;
        match peers.peer.wait(LIMIT)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("the peer ended with {status}\n{}", peers.peer.tail())),
            None => Err("the peer still runs".to_owned()),
        }
    });
    group.build()
}
