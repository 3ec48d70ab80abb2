//! libibverbs' pingpong clients, as they are, against the service `pingpong`: RC, UC, UD and shared receive queues.

use crate::Check;
use crate::matrix::{Bed, Port};
use crate::report::Report;
use crate::target::{GUEST_V4, GUEST_V6, TARGET_V4, TARGET_V6, Target};
use crate::world::World;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);
const SHORT: Duration = Duration::from_secs(30);

/// The groups `pingpong-1500`, `pingpong-4200` and `pingpong-af_packet`.
pub fn run(report: &mut Report, world: &World) {
    if report.group("pingpong-af_packet") {
        af_packet(report, world);
    }
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

/// Runs a client that has to count `iterations` messages of `size` bytes each way.
fn pingpong(bed: &Bed, command: &str, size: u64, iterations: u64) -> Check {
    let (bytes, iterations) = (format!("{} bytes in", 2 * size * iterations), format!("{iterations} iters in"));
    bed.guest.expect(command, LIMIT, &[&bytes, &iterations]).map(drop)
}

fn group(report: &mut Report, world: &World, mtu: u32) {
    let boot = || {
        let bed = Bed::with(world, "pp", "0", Port::Vhost, mtu, &[])?;
        let indices = (gid_index(&bed, GUEST_V4)?, gid_index(&bed, GUEST_V6)?);
        Ok((bed, indices))
    };
    let Some((mut bed, (v4, v6))) = report.fixture("boot", boot) else { return };
    // Program, size, iterations, more flags. A message in one packet, in several, of odd length; a path MTU that
    // the service is not told.
    let mut cases = vec![
        ("rc", 4096, 100, "".to_owned()),
        ("rc", 1, 20, "".to_owned()),
        ("rc", 1_000_001, 5, "".to_owned()),
        ("rc", 3000, 20, " -m 256".to_owned()),
        ("rc", 4096, 20, " -e".to_owned()),
        ("uc", 4096, 100, "".to_owned()),
        ("uc", 1, 20, "".to_owned()),
        ("uc", 100_001, 5, "".to_owned()),
        ("uc", 3000, 20, " -m 256".to_owned()),
        ("ud", 1024, 100, "".to_owned()),
        ("ud", 1, 20, "".to_owned()),
        ("ud", 3, 20, " -e".to_owned()),
        ("srq", 4096, 200, "".to_owned()),
        ("srq", 9001, 200, " -q 3 -r 20".to_owned()),
        ("srq", 4096, 300, " -q 200 -r 250".to_owned()),
    ];
    if mtu > 1500 {
        for program in ["rc", "uc"] {
            cases.push((program, 4096, 20, " -m 2048".to_owned()));
            cases.push((program, 20_000, 20, " -m 4096".to_owned()));
            cases.push((program, 3000, 20, " -m 4096".to_owned()));
        }
        cases.push(("ud", 4096, 20, "".to_owned()));
        cases.push(("srq", 5000, 100, " -m 4096".to_owned()));
    }
    let context = || bed.context();
    for (program, size, iterations, flags) in cases {
        let command = format!("ibv_{program}_pingpong -g {v4} -s {size} -n {iterations}{flags} {TARGET_V4}");
        report.case(&format!("ibv_{program}_pingpong -s {size} -n {iterations}{flags}"), context, || {
            pingpong(&bed, &command, size, iterations)
        });
    }
    for program in ["rc", "uc", "ud", "srq"] {
        report.case(&format!("v6 ibv_{program}_pingpong"), context, || {
            let command = format!("ibv_{program}_pingpong -g {v6} -s 1000 -n 32 {TARGET_V6}");
            pingpong(&bed, &command, 1000, 32)
        });
    }
    report.case("IPv4 GIDs exchanged over IPv6", context, || {
        pingpong(&bed, &format!("ibv_rc_pingpong -g {v4} -n 10 {TARGET_V6}"), 4096, 10)
    });
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
            let victim = bed.guest.start(&format!("exec ibv_rc_pingpong -g {v4} -n 100000000 {TARGET_V4}"), LIMIT)?;
            std::thread::sleep(Duration::from_secs(2));
            if !victim.running() {
                return Err(format!("the client ended by itself: {}", victim.so_far()));
            }
            victim.kill(9)?;
            victim.wait()?.expect(137, &[])?;
            pingpong(&bed, &format!("ibv_rc_pingpong -g {v4} -n 10 {TARGET_V4}"), 4096, 10)
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

/// A few over a tap interface, where a kernel may leave the checksums of its TCP segments unfinished.
fn af_packet(report: &mut Report, world: &World) {
    let boot = || {
        let bed = Bed::with(world, "pp", "0", Port::AfPacket, 1500, &[])?;
        let index = gid_index(&bed, GUEST_V4)?;
        Ok((bed, index))
    };
    let Some((bed, v4)) = report.fixture("boot", boot) else { return };
    let context = || bed.context();
    for program in ["rc", "uc", "ud", "srq"] {
        report.case(&format!("ibv_{program}_pingpong"), context, || {
            let command = format!("ibv_{program}_pingpong -g {v4} -s 1000 -n 32 {TARGET_V4}");
            pingpong(&bed, &command, 1000, 32)
        });
    }
    for command in ["ib_send_lat -n 50", "ib_write_bw -n 50"] {
        report.case(command, context, || {
            bed.guest.expect(&format!("{command} -F {TARGET_V4}"), LIMIT, &[" 50 "]).map(drop)
        });
    }
}
