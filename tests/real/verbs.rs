//! Verbs between a kernel in a guest (tests/clients/verbs_client) and the example program verbs_peer, over vhost-user: RC,
//! UC and UD, shared receive queues, memory windows, fast regions, atomics, and the errors that each side must make.

use crate::guest::{GuestConfig, Plug};
use crate::process::Daemon;
use crate::report::Report;
use crate::target::{GUEST_V4, GUEST_V6, TARGET_V4, TARGET_V6};
use crate::world::{World, example};
use std::process::Command;
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

/// The groups `verbs-1500` (IPv4, path MTU 1024) and `verbs-4200` (IPv6, path MTU 4096), with the world's suffix.
pub fn run(report: &mut Report, world: &World) {
    for (mtu, address) in [(1500, TARGET_V4), (4200, TARGET_V6)] {
        if report.group(&format!("verbs-{mtu}{}", world.suffix)) {
            group(report, world, mtu, address);
        }
    }
}

fn group(report: &mut Report, world: &World, mtu: u32, address: &str) {
    let boot = || {
        let name = format!("verbs{mtu}{}", world.suffix);
        let socket = world.path(&format!("{name}.vhost"));
        let mut command = Command::new(example("verbs_peer")?);
        command
            .args(world.eal_options(&name))
            .arg(format!("--vdev=net_vhost0,iface={},queues=1", socket.display()))
            .args(["--", &format!("{TARGET_V4}/24"), &format!("{TARGET_V6}/64")]);
        let peer = Daemon::start(&mut command)?;
        peer.wait_for_line("ready ", LIMIT)?;
        let parameters = format!("ip4={GUEST_V4}/24 ip6={GUEST_V6}/64 mtu={mtu}");
        let plug = Plug::VhostUser(socket);
        let guest = world.boot(GuestConfig { name, plug, parameters, extra_initrd: None, memory: 512, cpus: 1 })?;
        Ok((peer, guest))
    };
    let Some((mut peer, guest)) = report.fixture("boot", boot) else { return };
    let context = || format!("{}console: {}", peer.tail(), guest.console());
    let newer: &[&str] = if world.suffix.is_empty() { &[] } else { &NEWER_CASES };
    for case in CASES.iter().chain(newer) {
        report.case(case, context, || {
            guest.expect(&format!("verbs_client {address} {case}"), LIMIT, &[&format!("{case}: ok")]).map(drop)
        });
    }
    report.case("all of the client's cases have run", context, || {
        let listed = guest.run("verbs_client", LIMIT)?.text;
        let missing = |name: &&str| !CASES.contains(name) && !NEWER_CASES.contains(name) && *name != "stop";
        let names = listed.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
        match names.collect::<Vec<_>>().into_iter().find(missing) {
            None => Ok(()),
            Some(name) => Err(format!("{name} is not in the test's list")),
        }
    });
    let context = context();
    report.case(
        "the peer ends, with no packet buffer lost",
        || context.clone(),
        || {
            guest.expect(&format!("verbs_client {address} stop"), LIMIT, &["stop: ok"])?;
            match peer.wait(LIMIT)? {
                Some(status) if status.success() => Ok(()),
                Some(status) => Err(format!("the peer ended with {status}\n{}", peer.tail())),
                None => Err("the peer still runs".to_owned()),
            }
        },
    );
}
