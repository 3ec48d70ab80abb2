//! librdmacm's mckey, as it is, against the service of its name: it receives from a group, and sends to it.

use crate::client::{Client, Wants};
use crate::matrix::{Bed, Port};
use crate::rdmacm::counted;
use crate::report::Report;
use crate::target::Target;
use crate::world::World;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const MCKEY: Wants = Wants::Texts(&["joined dgid: ::ffff:2", "data transfers complete", "return status 0"]);
const MCKEY_SENDS: Wants = Wants::Texts(&["initiating data transfers", "data transfers complete", "return status 0"]);

/// The groups `mckey-1500` and `mckey-4200`.
pub fn run(report: &mut Report, world: &World) {
    for mtu in [1500, 4200] {
        if report.group(&format!("mckey-{mtu}")) {
            group(report, world, mtu);
        }
    }
}

/// At 4200 the datagrams are as many and as long as the configuration says, from two lcores.
fn group(report: &mut Report, world: &World, mtu: u32) {
    let (lcores, count, size, flags) =
        if mtu > 1500 { ("0,1", 25, 4096, " -C 25 -S 4096") } else { ("0", 10, 100, "") };
    let boot = || {
        let mut more = Vec::new();
        if mtu > 1500 {
            let text = format!("[service.mckey]\ncount = {count}\nsize = {size}\nsend-after = \"1500ms\"\n");
            more.extend(world.config_file("mckey.toml", &text)?);
        }
        let bed = Bed::with(world, "mk", lcores, Port::Vhost, mtu, &more)?;
        bed.guest.expect("ip route add 224.0.0.0/4 dev eth0", LIMIT, &[])?;
        Ok(bed)
    };
    let Some(mut bed) = report.fixture("boot", boot) else { return };
    // Receiving, in one group after the other and twice in the same; and fewer datagrams than there are.
    let fewer = if mtu > 1500 { " -C 3 -S 4096" } else { " -C 3" };
    for (group, flags) in [("239.7.7.7", flags), ("239.7.7.7", flags), ("232.1.2.3", flags), ("239.7.7.8", fewer)] {
        Client::new(format!("mckey -m {group} -b MYIP{flags}"), MCKEY).case(report, &bed);
    }
    Client::new(format!("mckey -m 239.7.7.7 -b MYIP -s{flags}"), MCKEY_SENDS).case(report, &bed);
    let alive = bed.target.as_mut().is_some_and(Target::alive);
    report.case("the target still runs and counts", String::new, || {
        if !alive {
            return Err(format!("it has ended\n{}", bed.context()));
        }
        let summary = bed.stop_target()?;
        // Five programs have joined a group, and the one that sends gets datagrams too.
        let (sent, received) = (format!("exchanges={}", 5 * count), format!("group_datagrams={count}"));
        counted(&summary, "mckey", &["connections=5", &sent, &received])
    });
}
