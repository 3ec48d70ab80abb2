//! rxe-bench against perftest's own servers on a kernel's soft-RoCE: a target that is not ours.

use crate::Check;
use crate::guest::{GuestConfig, Plug};
use crate::net::Tap;
use crate::process;
use crate::report::Report;
use crate::target::{GUEST_V4, TARGET_V4};
use crate::world::World;
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(90);

/// Runs rxe-bench on a virtual device. A server that is not there yet is waited for.
fn measure(world: &World, vdev: &str, words: &str) -> Result<serde_json::Value, String> {
    let began = Instant::now();
    loop {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-bench"));
        command
            .args(world.eal_options("rb"))
            .arg(format!("--vdev={vdev}"))
            .arg("--")
            .args(words.split_whitespace())
            .args(["--address", &format!("{TARGET_V4}/24"), "--peer", GUEST_V4, "--out_json", "-"]);
        let done = process::run(&mut command, LIMIT)?;
        if done.code == 0 {
            return serde_json::from_str(&done.stdout).map_err(|error| format!("{error}: {}", done.stdout));
        }
        if !done.stderr.contains("no service listens at") || began.elapsed() > LIMIT {
            return Err(format!("exit code {}: {}", done.code, done.stderr));
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// The group `bench`.
pub fn run(report: &mut Report, world: &World) {
    if !report.group("bench") {
        return;
    }
    let start = || {
        let tap = Tap::new("rxbe", 1500)?;
        let (name, plug) = ("bench".to_owned(), Plug::Tap(tap.name.clone()));
        let parameters = format!("ip4={GUEST_V4}/24 mtu=1500");
        let guest = world.boot(GuestConfig { name, plug, parameters, extra_initrd: None, memory: 512, cpus: 1 })?;
        Ok((tap, guest))
    };
    let Some((tap, guest)) = report.fixture("boot", start) else { return };
    let vdev = format!("net_af_packet0,iface={}", tap.name);
    let context = || format!("console: {}", guest.console());
    let compare = |server: &str, words: &str, size: u64, messages: u64| -> Check {
        let server = guest.start(&format!("exec {server} -R -F"), LIMIT)?;
        let value = measure(world, &vdev, words).map_err(|error| format!("{error}\nserver: {}", server.so_far()))?;
        server.wait()?.expect(0, &[])?;
        if value["messages"] != messages || value["size"] != size || value["mtu"] != 1024 {
            return Err(format!("{words}: {value}"));
        }
        Ok(())
    };
    for (server, words, size, messages) in [
        ("ib_write_bw -s 4096 -q 2 -n 100", "write-bw -s 4096 -q 2 -n 100 --protocol perftest", 4096, 200),
        ("ib_read_bw -s 5000 -n 100", "read-bw -s 5000 -n 100 --protocol perftest", 5000, 100),
        ("ib_atomic_bw -n 100", "atomic-bw -n 100 --protocol perftest --verify", 8, 100),
        ("ib_send_bw -s 3000 -q 2 -n 200", "send-bw -s 3000 -q 2 -n 200", 3000, 400),
        ("ib_send_lat -s 64 -n 100", "send-lat -s 64 -n 100", 64, 100),
    ] {
        report.case(words, context, || compare(server, words, size, messages));
    }
    report.case("latency of WRITEs, to the server of ib_write_bw", context, || {
        compare("ib_write_bw -s 64 -n 100", "write-lat -s 64 -n 100 --protocol perftest", 64, 100)
    });
}
