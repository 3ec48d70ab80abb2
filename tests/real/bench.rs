//! rxe-bench against perftest's own servers on a kernel's soft-RoCE: a target other than rxe-target.

use crate::Check;
use crate::bed::needs;
use crate::env::TestEnv;
use crate::station::{GUEST_V4, Lease, Port, StationKey, TARGET_V4};
use crate::suite::{AnyGroup, Fixture, Group};
use crate::target::unique;
use rxe_testkit::process;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(90);

/// A guest with perftest's servers.
struct Servers {
    env: Arc<TestEnv>,
    lease: Lease,
    vdev: String,
}

impl Fixture for Servers {
    fn context(&self) -> String {
        format!("console: {}", self.lease.guest().console())
    }
}

impl Servers {
    /// Runs rxe-bench, and waits for a server that does not listen yet.
    fn measure(&self, words: &str) -> Result<serde_json::Value, String> {
        let began = Instant::now();
        loop {
            let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-bench"));
            command
                .args(self.env.eal_options(&unique()))
                .arg(format!("--vdev={}", self.vdev))
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

    /// Starts a server, runs rxe-bench with `words`, and checks size, messages and MTU in its result.
    fn compare(&self, server: &str, words: &str, size: u64, messages: u64) -> Check {
        let server = self.lease.guest().start(&format!("exec {server} -R -F"), LIMIT)?;
        let value = self.measure(words).map_err(|error| format!("{error}\nserver: {}", server.so_far()))?;
        server.wait()?.expect(0, &[])?;
        if value["messages"] != messages || value["size"] != size || value["mtu"] != 1024 {
            return Err(format!("{words}: {value}"));
        }
        Ok(())
    }
}

/// The group `bench`.
pub fn group() -> AnyGroup {
    let key = StationKey::new(Port::AfPacket, 1500);
    let mut group = Group::new("bench", needs(key), move |env| {
        Ok(Servers { env: Arc::clone(env), lease: env.station(key)?, vdev: key.vdev(env) })
    });
    for (server, words, size, messages) in [
        ("ib_write_bw -s 4096 -q 2 -n 100", "write-bw -s 4096 -q 2 -n 100 --protocol perftest", 4096, 200),
        ("ib_read_bw -s 5000 -n 100", "read-bw -s 5000 -n 100 --protocol perftest", 5000, 100),
        ("ib_atomic_bw -n 100", "atomic-bw -n 100 --protocol perftest --verify", 8, 100),
        ("ib_send_bw -s 3000 -q 2 -n 200", "send-bw -s 3000 -q 2 -n 200", 3000, 400),
        ("ib_send_lat -s 64 -n 100", "send-lat -s 64 -n 100", 64, 100),
    ] {
        group.case(words, move |servers: &mut Servers| servers.compare(server, words, size, messages));
    }
    group.case("latency of WRITEs, to the server of ib_write_bw", |servers| {
        servers.compare("ib_write_bw -s 64 -n 100", "write-lat -s 64 -n 100 --protocol perftest", 64, 100)
    });
    group.build()
}
