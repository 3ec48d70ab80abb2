//! Connecting out: the example program rping_client, a service that asks, against the `rping -s` of a kernel in a guest.

use crate::Check;
use crate::guest::{Guest, GuestConfig, Plug};
use crate::net::Tap;
use crate::process::{self, Daemon};
use crate::report::Report;
use crate::target::{GUEST_V4, GUEST_V6, TARGET_V4, TARGET_V6};
use crate::world::{World, example};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);
/// What the client's `--wait` says: a guest boots and starts its server within that.
const PATIENCE: &str = "80";

/// The client on a virtual device, with both addresses.
fn client(world: &World, prefix: &str, vdev: &str, arguments: &[&str]) -> Result<Command, String> {
    let mut command = Command::new(example("rping_client")?);
    command
        .args(world.eal_options(prefix))
        .arg(format!("--vdev={vdev}"))
        .arg("--")
        .args(["--address", &format!("{TARGET_V4}/24"), "--address", &format!("{TARGET_V6}/64")])
        .args(arguments);
    Ok(command)
}

fn boot(world: &World, name: &str, plug: Plug, mtu: u32) -> Result<Guest, String> {
    let parameters = format!("ip4={GUEST_V4}/24 ip6={GUEST_V6}/64 mtu={mtu}");
    let (name, extra_initrd) = (name.to_owned(), None);
    world.boot(GuestConfig { name, plug, parameters, extra_initrd, memory: 512, cpus: 1 })
}

/// The groups `outbound-vhost` and `outbound-af_packet`.
pub fn run(report: &mut Report, world: &World) {
    if report.group("outbound-vhost") {
        vhost(report, world);
    }
    if report.group("outbound-af_packet") {
        af_packet(report, world);
    }
}

/// One client that waits for its guest to boot, then for each server to come, at path MTU 4096.
fn vhost(report: &mut Report, world: &World) {
    let socket = world.path("outbound.vhost");
    let start = || {
        let vdev = format!("net_vhost0,iface={},queues=1", socket.display());
        let arguments = ["--count", "10", "--size", "10000", "--wait", PATIENCE, GUEST_V4, GUEST_V6];
        let client = Daemon::start(&mut client(world, "ov", &vdev, &arguments)?)?;
        client.wait_for_line("ready ", LIMIT)?;
        let guest = boot(world, "outbound-v", Plug::VhostUser(socket.clone()), 4200)?;
        Ok((client, guest))
    };
    let Some((mut client, guest)) = report.fixture("boot", start) else { return };
    let context = || format!("{}console: {}", client.tail(), guest.console());
    report.case("10 pings of 10,000 bytes over IPv4, then over IPv6", context, || {
        // In this order: while a server of the other family alone has the port, the kernel rejects with reason 28.
        let serve = |address| {
            let server = guest.start(&format!("exec rping -s -a {address} -C 10 -S 10000 -v -V"), LIMIT)?;
            guest.expect("sleep 0.5", LIMIT, &[])?;
            Ok::<_, String>(server)
        };
        let servers = [serve(GUEST_V6)?, serve(GUEST_V4)?];
        for address in [GUEST_V4, GUEST_V6] {
            client.wait_for_line(&format!("10 pings of 10000 bytes to {address}"), LIMIT)?;
        }
        for server in servers {
            server.wait_for("server ping data: rdma-ping-9: ", LIMIT)?;
            // Whatever its exit code: it has the pings that it was to have, and its client has gone.
            server.wait()?;
        }
        Ok(())
    });
    let tail = client.tail();
    report.case(
        "the client ends by itself",
        || tail.clone(),
        || match client.wait(LIMIT)?.map(|status| status.code()) {
            Some(Some(0)) => Ok(()),
            other => Err(format!("exit code {other:?}")),
        },
    );
}

/// Clients that come and go, at path MTU 1024, and what they say when they cannot do their work.
fn af_packet(report: &mut Report, world: &World) {
    let start = || {
        let tap = Tap::new("rxob", 1500)?;
        let guest = boot(world, "outbound-p", Plug::Tap(tap.name.clone()), 1500)?;
        Ok((tap, guest))
    };
    let Some((tap, guest)) = report.fixture("boot", start) else { return };
    let vdev = format!("net_af_packet0,iface={}", tap.name);
    let context = || format!("console: {}", guest.console());
    let ask = |prefix: &str, arguments: &[&str], code: i32, says: &str| -> Check {
        let arguments = [&["--mtu", "1500"], arguments].concat();
        let done = process::run(&mut client(world, prefix, &vdev, &arguments)?, LIMIT)?;
        if done.code != code || !(done.stdout + &done.stderr).contains(says) {
            return Err(format!("exit code {}, not {code} with {says:?}: {}", done.code, done.stderr));
        }
        Ok(())
    };
    report.case("pings of every size", context, || {
        for size in ["23", "1024", "1025", "65535"] {
            let command = format!("exec rping -s -a {GUEST_V4} -C 3 -S {size} -v -V");
            let server = guest.start(&command, LIMIT)?;
            let arguments = ["--count", "3", "--size", size, "--wait", PATIENCE, GUEST_V4];
            ask("op", &arguments, 0, &format!("3 pings of {size} bytes to {GUEST_V4}"))?;
            server.wait_for("server ping data: rdma-ping-2", LIMIT)?;
            server.wait()?;
        }
        Ok(())
    });
    report.case("several clients of one server", context, || {
        let server = guest.start(&format!("exec rping -s -P -a {GUEST_V6} -S 64"), LIMIT)?;
        for _ in 0..3 {
            ask("op", &["--wait", PATIENCE, GUEST_V6], 0, &format!("10 pings of 64 bytes to {GUEST_V6}"))?;
        }
        server.kill(9)?;
        server.wait().map(drop)
    });
    report.case("no server", context, || ask("op", &[GUEST_V4], 1, "PeerRejected(InvalidServiceId)"));
    report.case("no such host", context, || ask("op", &["10.77.0.9"], 1, "NoPath"));
    report.case("no route", context, || ask("op", &["192.0.2.1"], 1, "NoPath"));
    report.case("a mistake in the options", context, || ask("op", &["--size", "22", GUEST_V4], 2, "--size 22"));
    report.case("a server that is killed", context, || {
        let server = guest.start(&format!("exec rping -s -a {GUEST_V4} -S 64"), LIMIT)?;
        let arguments = ["--mtu", "1500", "--count", "1000000", "--wait", PATIENCE, GUEST_V4];
        let mut client = Daemon::start(&mut client(world, "ok", &vdev, &arguments)?)?;
        client.wait_for_line("ping data: rdma-ping-20: ", LIMIT)?;
        server.kill(9)?;
        server.wait()?;
        let status = client.wait(LIMIT)?.ok_or_else(|| format!("it goes on\n{}", client.tail()))?;
        // The kernel disconnects in the program's place; our pings may find the queue pair gone first.
        let said = client.stderr().iter().any(|line| line.contains("the connection ended after"));
        match status.code() {
            Some(1) if said => Ok(()),
            other => Err(format!("exit code {other:?}\n{}", client.tail())),
        }
    });
}
