//! Connecting out: the example program rping_client, a service that connects, against the `rping -s` of a kernel in a guest.

use crate::Check;
use crate::bed::needs;
use crate::env::{TestEnv, example};
use crate::guest::Guest;
use crate::station::{GUEST_V4, GUEST_V6, Lease, Port, StationKey, TARGET_V4, TARGET_V6};
use crate::suite::{AnyGroup, Fixture, Group};
use crate::target::unique;
use rxe_testkit::process::{self, Program};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);
/// The client's `--wait`: a guest boots and starts its server within that time.
const PATIENCE: &str = "80";

/// The client on a virtual device, with both addresses.
fn client(env: &TestEnv, vdev: &str, arguments: &[&str]) -> Result<Command, String> {
    let mut command = Command::new(example("rping_client")?);
    command
        .args(env.eal_options(&unique()))
        .arg(format!("--vdev={vdev}"))
        .arg("--")
        .args(["--address", &format!("{TARGET_V4}/24"), "--address", &format!("{TARGET_V6}/64")])
        .args(arguments);
    Ok(command)
}

/// The groups `outbound-vhost` and `outbound-af_packet`.
pub fn groups() -> Vec<AnyGroup> {
    vec![vhost(), af_packet()]
}

/// A client that waits for its guest to boot, then for each server to start.
struct Waiting {
    lease: Lease,
    client: Program,
}

impl Fixture for Waiting {
    fn context(&self) -> String {
        format!("{}console: {}", self.client.tail(), self.lease.guest().console())
    }
}

impl Waiting {
    fn start(env: &Arc<TestEnv>, key: StationKey) -> Result<Waiting, String> {
        let arguments = ["--count", "10", "--size", "10000", "--wait", PATIENCE, GUEST_V4, GUEST_V6];
        let client = Program::start(&mut client(env, &key.vdev(env), &arguments)?)?;
        client.wait_for_line("ready ", LIMIT)?;
        Ok(Waiting { lease: env.station(key)?, client })
    }
}

/// At path MTU 4096.
fn vhost() -> AnyGroup {
    let key = StationKey::new(Port::Vhost, 4200);
    let mut group = Group::new("outbound-vhost", needs(key), move |env| Waiting::start(env, key));
    group.case("10 pings of 10,000 bytes over IPv4, then over IPv6", |waiting: &mut Waiting| {
        // In this order: while a server of the other family alone has the port, the kernel rejects with reason 28.
        let guest = waiting.lease.guest();
        let serve = |address| {
            let server = guest.start(&format!("exec rping -s -a {address} -C 10 -S 10000 -v -V"), LIMIT)?;
            guest.expect("sleep 0.5", LIMIT, &[])?;
            Ok::<_, String>(server)
        };
        let servers = [serve(GUEST_V6)?, serve(GUEST_V4)?];
        for address in [GUEST_V4, GUEST_V6] {
            waiting.client.wait_for_line(&format!("10 pings of 10000 bytes to {address}"), LIMIT)?;
        }
        for server in servers {
            server.wait_for("server ping data: rdma-ping-9: ", LIMIT)?;
            // Whatever its exit code: it has all its pings, and its client has gone.
            server.wait()?;
        }
        Ok(())
    });
    group.case("the client ends by itself", |waiting| match waiting.client.wait(LIMIT)?.map(|status| status.code()) {
        Some(Some(0)) => Ok(()),
        other => Err(format!("exit code {other:?}")),
    });
    group.build()
}

/// A guest for clients that come and go.
struct Servers {
    env: Arc<TestEnv>,
    lease: Lease,
    vdev: String,
}

impl Fixture for Servers {
    fn context(&self) -> String {
        format!("console: {}", self.guest().console())
    }
}

impl Servers {
    fn guest(&self) -> &Guest {
        self.lease.guest()
    }

    /// Runs a client, which has to end with `code` and to print `text`.
    fn client(&self, arguments: &[&str], code: i32, text: &str) -> Check {
        let arguments = [&["--mtu", "1500"], arguments].concat();
        let done = process::run(&mut client(&self.env, &self.vdev, &arguments)?, LIMIT)?;
        if done.code != code || !(done.stdout + &done.stderr).contains(text) {
            return Err(format!("exit code {}, not {code} with {text:?}: {}", done.code, done.stderr));
        }
        Ok(())
    }
}

/// Clients at path MTU 1024, and their messages when they cannot connect.
fn af_packet() -> AnyGroup {
    let key = StationKey::new(Port::AfPacket, 1500);
    let mut group = Group::new("outbound-af_packet", needs(key), move |env| {
        Ok(Servers { env: Arc::clone(env), lease: env.station(key)?, vdev: key.vdev(env) })
    });
    group.case("pings of every size", |servers: &mut Servers| {
        for size in ["23", "1024", "1025", "65535"] {
            let command = format!("exec rping -s -a {GUEST_V4} -C 3 -S {size} -v -V");
            let server = servers.guest().start(&command, LIMIT)?;
            let arguments = ["--count", "3", "--size", size, "--wait", PATIENCE, GUEST_V4];
            servers.client(&arguments, 0, &format!("3 pings of {size} bytes to {GUEST_V4}"))?;
            server.wait_for("server ping data: rdma-ping-2", LIMIT)?;
            server.wait()?;
        }
        Ok(())
    });
    group.case("several clients of one server", |servers| {
        let server = servers.guest().start(&format!("exec rping -s -P -a {GUEST_V6} -S 64"), LIMIT)?;
        for _ in 0..3 {
            servers.client(&["--wait", PATIENCE, GUEST_V6], 0, &format!("10 pings of 64 bytes to {GUEST_V6}"))?;
        }
        server.kill(9)?;
        server.wait().map(drop)
    });
    group.case("no server", |servers| servers.client(&[GUEST_V4], 1, "PeerRejected(InvalidServiceId)"));
    group.case("no such host", |servers| servers.client(&["10.77.0.9"], 1, "NoPath"));
    group.case("no route", |servers| servers.client(&["192.0.2.1"], 1, "NoPath"));
    group.case("an option with a wrong value", |servers| servers.client(&["--size", "22", GUEST_V4], 2, "--size 22"));
    group.case("a server that is killed", |servers| {
        let server = servers.guest().start(&format!("exec rping -s -a {GUEST_V4} -S 64"), LIMIT)?;
        let arguments = ["--mtu", "1500", "--count", "1000000", "--wait", PATIENCE, GUEST_V4];
        let mut client = Program::start(&mut client(&servers.env, &servers.vdev, &arguments)?)?;
        client.wait_for_line("ping data: rdma-ping-20: ", LIMIT)?;
        server.kill(9)?;
        server.wait()?;
        let status = client.wait(LIMIT)?.ok_or_else(|| format!("it goes on\n{}", client.tail()))?;
        // The kernel disconnects for the program; the next ping may meet the missing queue pair first.
        let logged = client.stderr().iter().any(|line| line.contains("the connection ended after"));
        match status.code() {
            Some(1) if logged => Ok(()),
            other => Err(format!("exit code {other:?}\n{}", client.tail())),
        }
    });
    group.build()
}
