//! libibverbs' pingpong clients, as they are, against the service `pingpong`: RC, UC, UD and shared receive queues.

use crate::bed::{BedConfig, TestBed, needs};
use crate::client::{self, Client, Wants};
use crate::station::{Port, StationKey, TARGET_V4};
use crate::suite::{AnyGroup, Group};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);
const SHORT: Duration = Duration::from_secs(30);

/// Commands that `make test` runs at path MTU 4096: those over IPv6. The rest is for the nightly run, as tests/verbs has such
/// commands without a guest, and group clients-af_packet has a run of every program.
const QUICK: [&str; 3] = [
    "ibv_rc_pingpong -g GID6 -s 1000 -n 32 IPV6",
    "ibv_ud_pingpong -g GID6 -s 1000 -n 32 IPV6",
    "ibv_rc_pingpong -g GID4 -n 10 IPV6",
];

/// The groups `pingpong-4200` and `pingpong-1500`.
pub fn groups() -> Vec<AnyGroup> {
    [4200, 1500].map(group).into()
}

/// Without flags first; then a message in one packet, in several, of odd length, and a path MTU that the client does not
/// tell the service.
fn clients(mtu: u32) -> Vec<Client> {
    let plain = |kind: &str, size| {
        Client::new(format!("ibv_{kind}_pingpong -g GID4 IPV4"), Wants::Messages { size, count: 1000 })
    };
    let v4 = |kind: &str, size, count, flags: &str| Client::pingpong(kind, 4, size, count, flags);
    let mut clients = vec![
        plain("rc", 4096),
        v4("rc", 1, 20, ""),
        v4("rc", 1_000_001, 5, ""),
        v4("rc", 3000, 20, " -m 256"),
        v4("rc", 4096, 20, " -e"),
        plain("uc", 4096),
        v4("uc", 1, 20, ""),
        v4("uc", 100_001, 5, ""),
        v4("uc", 3000, 20, " -m 256"),
        plain("ud", 1024),
        v4("ud", 1, 20, ""),
        v4("ud", 3, 20, " -e"),
        plain("srq", 4096),
        v4("srq", 9001, 200, " -q 3 -r 20"),
        v4("srq", 4096, 300, " -q 200 -r 250"),
    ];
    if mtu > 1500 {
        for kind in ["rc", "uc"] {
            clients.push(v4(kind, 4096, 20, " -m 2048"));
            clients.push(v4(kind, 20_000, 20, " -m 4096"));
            clients.push(v4(kind, 3000, 20, " -m 4096"));
        }
        clients.push(v4("ud", 4096, 20, ""));
        clients.push(v4("srq", 5000, 100, " -m 4096"));
    }
    clients.extend(["rc", "uc", "ud", "srq"].map(|kind| Client::pingpong(kind, 6, 1000, 32, "")));
    // IPv4 GIDs, exchanged over IPv6.
    clients.push(Client::new("ibv_rc_pingpong -g GID4 -n 10 IPV6", Wants::Messages { size: 4096, count: 10 }));
    clients
}

fn group(mtu: u32) -> AnyGroup {
    let key = StationKey::new(Port::Vhost, mtu);
    let name = format!("pingpong-{mtu}");
    let mut group = Group::new(name, needs(key), move |env| TestBed::start(env, BedConfig::new(Port::Vhost, mtu)));
    client::cases_quick(&mut group, clients(mtu), if mtu > 1500 { &QUICK } else { &[] });
    group.nightly(mtu == 1500);
    group.case("eight clients at once", |bed| {
        let v4 = bed.gid4()?;
        let one = format!("ibv_$1_pingpong -g {v4} -n 30 {TARGET_V4} >/tmp/pp$2 2>&1 || {{ echo $1; cat /tmp/pp$2; }}");
        let script = format!(
            "one() {{ {one}; }}\nfor i in 1 2; do for p in rc uc ud srq; do one $p $p$i & pids=\"$pids $!\"; done; done\n\
             wait $pids; echo all ended"
        );
        let text = bed.guest().expect(&script, LIMIT, &[])?.text;
        if text == "all ended\n" { Ok(()) } else { Err(format!("not all clients succeeded: {text}")) }
    });
    let name = "longer messages are returned, or refused with the setting, and clients that end so leave no warning";
    group.case(name, |bed| {
        Client::pingpong("srq", 4, 1_000_000, 16, "").run(bed)?;
        // The client may end with answers under way; without an end their retransmissions last for 8.6 s.
        std::thread::sleep(Duration::from_secs(10));
        let warnings: Vec<String> = bed.log().into_iter().filter(|line| line.contains("WARN")).collect();
        if !warnings.is_empty() {
            return Err(format!("the log has warnings: {warnings:?}"));
        }
        let long = format!("ibv_rc_pingpong -g {} -s 4000000 -n 5 {TARGET_V4}", bed.gid4()?);
        if bed.guest().run(&long, SHORT)?.code == 0 {
            return Err("a message was returned that is longer than its receive".to_owned());
        }
        let refusal = "its messages are longer than its receives of 2097152 bytes: raise memory of [service.pingpong]";
        if bed.log().iter().any(|line| line.contains(refusal)) { Ok(()) } else { Err(bed.log().join("\n")) }
    });
    let name = "after a client without a GID, one that sends garbage and one that is killed, the next one works";
    group.case(name, |bed| {
        let (guest, v4) = (bed.guest(), bed.gid4()?);
        let zero = guest.run(&format!("ibv_rc_pingpong -n 10 {TARGET_V4}"), SHORT)?;
        if zero.code == 0 {
            return Err("a client without a GID succeeded".to_owned());
        }
        guest.run(&format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {TARGET_V4} 18515"), SHORT)?;
        guest.run(
            &format!("printf '0000:00001x:6b93be:00000000000000000000ffff0a4d0002\\0' | nc -w 2 {TARGET_V4} 18515"),
            SHORT,
        )?;
        client::kill_at_work(bed, &format!("ibv_rc_pingpong -g {v4} -n 100000000 {TARGET_V4}"))?;
        Client::pingpong("rc", 4, 4096, 10, "").run(bed)
    });
    group.case("the target still runs and counts", |bed| {
        let summary = bed.stop_target()?;
        let line = summary.lines().find(|line| line.starts_with("service pingpong:"));
        let line = line.ok_or_else(|| format!("no line of the service in the summary: {summary}"))?;
        // A long message and the client without a GID; one that sends garbage; one whose garbage belongs to no service.
        let right = line.contains(" refused=2 ") && line.contains(" malformed=1");
        if right && summary.contains("service port-18515: malformed=1") { Ok(()) } else { Err(summary.clone()) }
    });
    group.build()
}
