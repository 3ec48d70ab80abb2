//! rstream and riostream as they are, against the service `rsocket`.

use crate::client::{self, Client, Wants};
use crate::matrix::{Bed, Port};
use crate::report::Report;
use crate::target::{TARGET_V4, Target};
use crate::world::World;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// When the target, which is told to, gives a client up that says nothing: after what the others here take.
const IDLE: &str = "15s";
/// When it has done so: it looks once a second when the silence began and ended.
const GIVEN_UP: Duration = Duration::from_secs(20);

/// The groups `rsocket-1500` and `rsocket-4200`.
pub fn run(report: &mut Report, world: &World) {
    for mtu in [1500, 4200] {
        if report.group(&format!("rsocket-{mtu}")) {
            group(report, world, mtu);
        }
    }
}

/// Runs a client that has to print one line for its test.
fn custom(command: String) -> Client {
    Client::new(command, Wants::Custom)
}

fn group(report: &mut Report, world: &World, mtu: u32) {
    let boot = || {
        let text = format!("[service.rsocket]\nidle-timeout = \"{IDLE}\"\n");
        Bed::with(world, "rs", "0", Port::Vhost, mtu, &world.config_file("rsocket.toml", &text)?)
    };
    let Some(mut bed) = report.fixture("boot", boot) else { return };
    let context = || bed.context();
    // Single bytes; one packet and several; more messages than credits; more bytes ahead than all rings hold, which
    // come back only after all were sent; buffers smaller than a message; blocking calls and poll.
    let flags = [
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
    // Stopped, it says nothing any more: the target gives it up while the others run.
    let silent = report.fixture("a client that falls silent", || {
        let client = bed.guest.start(&format!("exec rstream -s {TARGET_V4} -S 100 -C 1 -I 1000000"), 2 * LIMIT)?;
        // The first one after the boot: when so many packets have left, its connection is up.
        let sent = "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts";
        let script =
            format!("for i in $(seq 20); do [ $(cat {sent}) -gt 300 ] && exit 0; sleep 1; done; cat {sent}; exit 1");
        bed.guest.expect(&script, LIMIT, &[])?;
        if !client.running() {
            return Err(format!("the client ended by itself: {}", client.so_far()));
        }
        client.kill(19)?;
        Ok((client, Instant::now()))
    });
    let Some((silent, since)) = silent else { return };
    client::cases(report, &bed, flags.map(|flags| custom(format!("rstream -s IPV4 {flags}"))));
    // Markers that wrap; transfers of one packet and of many, answered once for all; blocking calls and poll.
    let flags = [
        "-S 64 -C 1 -I 300 -T v",
        "-S 4096 -C 10 -I 10 -T v",
        "-S 4096 -C 10 -I 10",
        "-S 65536 -C 2 -I 5 -T v",
        "-S 1000001 -C 3 -I 2 -T v",
        "-S 5000 -C 20 -I 3 -T b -T v",
        "-S 30000 -C 5 -I 2 -T a -T v",
    ];
    client::cases(report, &bed, flags.map(|flags| custom(format!("riostream -s IPV4 {flags}"))));
    let v6 = |program: &str| custom(format!("{program} -s IPV6 -S 4096 -C 10 -I 10 -T v"));
    client::cases(report, &bed, ["riostream", "rstream"].map(v6));
    report.case("five rstreams and a riostream at once, beside rdma_client on the same port", context, || {
        let one =
            format!("$2 -s {TARGET_V4} -S 20000 -C 5 -I 4 -T v >/tmp/rs$1 2>&1 && grep -q ^custom /tmp/rs$1");
        let script = format!(
            "one() {{ {one} || {{ echo $1; cat /tmp/rs$1; }}; }}\n\
             for i in 1 2 3 4 5; do one $i rstream & pids=\"$pids $!\"; done\none 6 riostream & pids=\"$pids $!\"\nrdma_client -s {TARGET_V4}\n\
             wait $pids; echo all ended"
        );
        let text = bed.guest.expect(&script, LIMIT, &[])?.text;
        if text.contains("rdma_client: end 0") && text.ends_with("\nall ended\n") && text.lines().count() == 3 {
            Ok(())
        } else {
            Err(format!("not all clients succeeded: {text}"))
        }
    });
    report.case("rstream without flags is killed, the next one works", context, || {
        client::kill_at_work(&bed, &format!("rstream -s {TARGET_V4}"))?;
        custom("rstream -s IPV4 -S 4096 -C 2 -I 2 -T v".to_owned()).run(&bed)
    });
    report.case("the silent client was given up", context, || {
        std::thread::sleep(GIVEN_UP.saturating_sub(since.elapsed()));
        silent.kill(18)?;
        std::thread::sleep(Duration::from_secs(1));
        silent.kill(9)?;
        let end = silent.wait()?;
        // It finds its stream closed, and waits for ever or fails; that it got to its end would be wrong.
        if end.text.contains("custom ") { Err(format!("it went on: {}", end.text)) } else { Ok(()) }
    });
    let alive = bed.target.as_mut().is_some_and(Target::alive);
    report.case("the target still runs and counts", String::new, || {
        if !alive {
            return Err(format!("it has ended\n{}", bed.context()));
        }
        let summary = bed.stop_target()?;
        let line = summary.lines().find(|line| line.starts_with("service rsocket:"));
        let line = line.ok_or_else(|| format!("no line of the service in the summary: {summary}"))?;
        let wrong = ["refused", "malformed", "post_failures", "backlog_full"];
        if !line.contains(" idle_ended=1") || wrong.iter().any(|counter| line.contains(counter)) {
            Err(line.to_owned())
        } else {
            Ok(())
        }
    });
}
