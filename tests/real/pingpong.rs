//! libibverbs' pingpong clients, as they are, against the service `pingpong`: RC, UC, UD and shared receive queues.

use crate::client::{self, Client, Wants};
use crate::matrix::{Bed, Port};
use crate::report::Report;
use crate::target::{TARGET_V4, Target};
use crate::world::World;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);
const SHORT: Duration = Duration::from_secs(30);

/// The groups `pingpong-1500` and `pingpong-4200`.
pub fn run(report: &mut Report, world: &World) {
    for mtu in [1500, 4200] {
        if report.group(&format!("pingpong-{mtu}")) {
            group(report, world, mtu);
        }
    }
}

/// The number of the guest's GID that is `address`, as the programs want it: it differs from boot to boot.
pub fn gid_index(bed: &Bed, address: &str) -> Result<String, String> {
    let gid = match address.parse().map_err(|e| format!("{address}: {e}"))? {
        std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        std::net::IpAddr::V6(ip) => ip,
    };
    let words: Vec<String> = gid.segments().iter().map(|word| format!("{word:04x}")).collect();
    let script = format!("cd /sys/class/infiniband/rxe0/ports/1/gids && grep -l {} *", words.join(":"));
    Ok(bed.guest.expect(&script, SHORT, &[])?.text.trim().to_owned())
}

/// As people type it first; then a message in one packet, in several, of odd length, and a path MTU that the service is
/// not told.
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
    // IPv4 GIDs, told over IPv6.
    clients.push(Client::new("ibv_rc_pingpong -g GID4 -n 10 IPV6", Wants::Messages { size: 4096, count: 10 }));
    clients
}

fn group(report: &mut Report, world: &World, mtu: u32) {
    let boot = || {
        let bed = Bed::with(world, "pp", "0", Port::Vhost, mtu, &[])?;
        let v4 = bed.fill("GID4")?;
        Ok((bed, v4))
    };
    let Some((mut bed, v4)) = report.fixture("boot", boot) else { return };
    client::cases(report, &bed, clients(mtu));
    let context = || bed.context();
    report.case("eight clients at once", context, || {
        let one = format!("ibv_$1_pingpong -g {v4} -n 30 {TARGET_V4} >/tmp/pp$2 2>&1 || {{ echo $1; cat /tmp/pp$2; }}");
        let script = format!(
            "one() {{ {one}; }}\nfor i in 1 2; do for p in rc uc ud srq; do one $p $p$i & pids=\"$pids $!\"; done; done\n\
             wait $pids; echo all ended"
        );
        let text = bed.guest.expect(&script, LIMIT, &[])?.text;
        if text == "all ended\n" { Ok(()) } else { Err(format!("not all clients succeeded: {text}")) }
    });
    report.case(
        "a client without a GID, one that talks nonsense and one that is killed: the next one works",
        context,
        || {
            let zero = bed.guest.run(&format!("ibv_rc_pingpong -n 10 {TARGET_V4}"), SHORT)?;
            if zero.code == 0 {
                return Err("a client without a GID succeeded".to_owned());
            }
            bed.guest.run(&format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {TARGET_V4} 18515"), SHORT)?;
            bed.guest.run(
                &format!("printf '0000:00001x:6b93be:00000000000000000000ffff0a4d0002\\0' | nc -w 2 {TARGET_V4} 18515"),
                SHORT,
            )?;
            client::kill_at_work(&bed, &format!("ibv_rc_pingpong -g {v4} -n 100000000 {TARGET_V4}"))?;
            Client::pingpong("rc", 4, 4096, 10, "").run(&bed)
        },
    );
    let alive = bed.target.as_mut().is_some_and(Target::alive);
    report.case("the target still runs and counts", String::new, || {
        if !alive {
            return Err(format!("it has ended\n{}", bed.context()));
        }
        let summary = bed.stop_target()?;
        let line = summary.lines().find(|line| line.starts_with("service pingpong:"));
        let line = line.ok_or_else(|| format!("no line of the service in the summary: {summary}"))?;
        // The client without a GID, one that talks nonsense, and one that is none at all.
        let right = line.contains(" refused=1 ") && line.contains(" malformed=1");
        if right && summary.contains("service port-18515: malformed=1") { Ok(()) } else { Err(summary.clone()) }
    });
}
