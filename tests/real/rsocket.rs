//! rstream and riostream as they are, against the service `rsocket`.

use crate::Check;
use crate::bed::{BedConfig, TestBed, needs};
use crate::client::{self, Client, Wants};
use crate::env::TestEnv;
use crate::guest::Job;
use crate::station::{Port, StationKey, TARGET_V4};
use crate::suite::{AnyGroup, Fixture, Group};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// The idle timeout in the target's configuration: longer than any other case of the group is silent.
const IDLE: &str = "15s";
/// The target has noticed by then: it compares once a second.
const NOTICED: Duration = Duration::from_secs(20);

/// Single bytes; one packet and several; more messages than credits; more bytes ahead than all rings hold, which
/// come back only after all were sent; buffers smaller than a message; blocking calls and poll. For the nightly run, as tests/verbs
/// has such commands without a guest.
const RSTREAM: [&str; 13] = [
    "-S 1 -C 1 -I 20 -T v",
    "-S 64 -C 1 -I 200 -T v",
    "-S 4096 -C 10 -I 10 -T v",
    "-S 4096 -C 10 -I 10",
    "-S 64 -C 2000 -I 1 -T v",
    "-S 65536 -C 2 -I 5 -T v",
    "-S 1048576 -C 8 -I 1 -T v",
    "-S 1000001 -C 1 -I 3 -T v",
    "-S 5000 -C 50 -I 2 -T v -B 8192",
    "-S 512 -C 2 -I 10 -T b -T v",
    "-S 30000 -C 10 -I 2 -T a -T v",
    "-S 4096 -C 10 -I 5 -T r -T v",
    "-S 4096 -C 10 -I 5 -i 0 -k 5 -T v",
];
/// Markers that wrap; transfers of one packet and of many, answered once for all; blocking calls and poll. For the nightly run too.
const RIOSTREAM: [&str; 7] = [
    "-S 64 -C 1 -I 300 -T v",
    "-S 4096 -C 10 -I 10 -T v",
    "-S 4096 -C 10 -I 10",
    "-S 65536 -C 2 -I 5 -T v",
    "-S 1000001 -C 3 -I 2 -T v",
    "-S 5000 -C 20 -I 3 -T b -T v",
    "-S 30000 -C 5 -I 2 -T a -T v",
];
/// Over IPv6, which `make test` runs.
const IPV6: [&str; 1] = ["-S 4096 -C 10 -I 10 -T v"];

/// A bed with a stream whose client is stopped: it sends nothing, and the target disconnects it while the cases run.
struct WithStopped {
    bed: TestBed,
    client: Option<Job>,
    since: Instant,
}

impl Fixture for WithStopped {
    fn context(&self) -> String {
        self.bed.context()
    }

    fn settings(&self) -> &str {
        self.bed.settings()
    }
}

impl WithStopped {
    fn start(env: &Arc<TestEnv>, mtu: u32) -> Result<WithStopped, String> {
        let text = format!("[service.rsocket]\nidle-timeout = \"{IDLE}\"\n");
        let config =
            BedConfig::new(Port::Vhost, mtu).arguments(&env.config_file(&format!("rsocket{mtu}.toml"), &text)?);
        let bed = TestBed::start(env, config)?;
        let sent = "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts";
        let before = bed.guest().expect(&format!("cat {sent}"), LIMIT, &[])?.text;
        let before: u64 = before.trim().parse().map_err(|_| format!("{sent}: {before:?}"))?;
        let rstream = format!("exec rstream -s {TARGET_V4} -S 100 -C 1 -I 1000000");
        let client = bed.guest().start(&rstream, 2 * LIMIT)?;
        // After 300 more packets its connection is up.
        let up = before + 300;
        let script =
            format!("for i in $(seq 20); do [ $(cat {sent}) -gt {up} ] && exit 0; sleep 1; done; cat {sent}; exit 1");
        bed.guest().expect(&script, LIMIT, &[])?;
        if !client.running() {
            return Err(format!("the client ended by itself: {}", client.so_far()));
        }
        client.kill(19)?;
        Ok(WithStopped { bed, client: Some(client), since: Instant::now() })
    }
}

/// The groups `rsocket-4200` and `rsocket-1500`.
pub fn groups() -> Vec<AnyGroup> {
    [4200, 1500].map(group).into()
}

/// A client that has to print one line for its test.
fn custom(command: String) -> Client {
    Client::new(command, Wants::Custom)
}

fn group(mtu: u32) -> AnyGroup {
    let needs = needs(StationKey::new(Port::Vhost, mtu));
    let mut group = Group::new(format!("rsocket-{mtu}"), needs, move |env| WithStopped::start(env, mtu));
    let jumbo = mtu > 1500;
    let mut rows = |program: &str, ip: &str, flags: &[&str], nightly: bool| {
        group.nightly(nightly);
        for flags in flags {
            custom(format!("{program} -s {ip} {flags}")).case_in(&mut group, |with| &mut with.bed);
        }
    };
    rows("rstream", "IPV4", &RSTREAM, true);
    rows("riostream", "IPV4", &RIOSTREAM, true);
    rows("riostream", "IPV6", &IPV6, !jumbo);
    rows("rstream", "IPV6", &IPV6, !jumbo);
    group.nightly(!jumbo);
    group.case("five rstreams and a riostream at once, beside rdma_client on the same port", |with| at_once(&with.bed));
    group.case("rstream without flags is killed, the next one works", |with| {
        client::kill_at_work(&with.bed, &format!("rstream -s {TARGET_V4}"))?;
        custom("rstream -s IPV4 -S 4096 -C 2 -I 2 -T v".to_owned()).run(&with.bed)
    });
    group.case("a stream whose client is stopped is closed", |with| {
        let client = with.client.take().ok_or("no stopped client")?;
        std::thread::sleep(NOTICED.saturating_sub(with.since.elapsed()));
        client.kill(18)?;
        std::thread::sleep(Duration::from_secs(1));
        client.kill(9)?;
        let end = client.wait()?;
        // It finds its stream closed, and waits forever or fails; it must not get to its end.
        if end.text.contains("custom ") { Err(format!("it went on: {}", end.text)) } else { Ok(()) }
    });
    group.case("the target still runs and counts", |with| {
        let summary = with.bed.stop_target()?;
        let line = summary.lines().find(|line| line.starts_with("service rsocket:"));
        let line = line.ok_or_else(|| format!("no line of the service in the summary: {summary}"))?;
        let wrong = ["refused", "malformed", "post_failures", "backlog_full"];
        if !line.contains(" idle_ended=1") || wrong.iter().any(|counter| line.contains(counter)) {
            Err(line.to_owned())
        } else {
            Ok(())
        }
    });
    group.build()
}

fn at_once(bed: &TestBed) -> Check {
    let one = format!("$2 -s {TARGET_V4} -S 20000 -C 5 -I 4 -T v >/tmp/rs$1 2>&1 && grep -q ^custom /tmp/rs$1");
    let script = format!(
        "one() {{ {one} || {{ echo $1; cat /tmp/rs$1; }}; }}\n\
         for i in 1 2 3 4 5; do one $i rstream & pids=\"$pids $!\"; done\none 6 riostream & pids=\"$pids $!\"\nrdma_client -s {TARGET_V4}\n\
         wait $pids; echo all ended"
    );
    let text = bed.guest().expect(&script, LIMIT, &[])?.text;
    if text.contains("rdma_client: end 0") && text.ends_with("\nall ended\n") && text.lines().count() == 3 {
        Ok(())
    } else {
        Err(format!("not all clients succeeded: {text}"))
    }
}
