//! librdmacm's mckey, as it is, against the service of its name: it receives from a group, and sends to it.

use crate::client::{Client, Wants};
use crate::guest::{GuestConfig, Plug};
use crate::matrix::{Bed, Port};
use crate::rdmacm::counted;
use crate::report::Report;
use crate::target::{GUEST_V4, GUEST_V6, TARGET_V6, Target};
use crate::world::World;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const MCKEY: Wants = Wants::Texts(&["joined dgid: ::ffff:2", "data transfers complete", "return status 0"]);
const MCKEY_SENDS: Wants = Wants::Texts(&["initiating data transfers", "data transfers complete", "return status 0"]);

/// The groups `mckey-1500`, `mckey-4200` and `mckey-refused`.
pub fn run(report: &mut Report, world: &World) {
    for mtu in [1500, 4200] {
        if report.group(&format!("mckey-{mtu}")) {
            group(report, world, mtu);
        }
    }
    if report.group("mckey-refused") {
        refused(report, world);
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

/// A target without an IPv4 address hears that somebody joins an IPv4 group, and has nothing to send from.
fn refused(report: &mut Report, world: &World) {
    let boot = || {
        let socket = world.path("mckey-refused.vhost");
        let vdev = format!("net_vhost0,iface={},queues=1", socket.display());
        let arguments = ["--address", &format!("{TARGET_V6}/64")].map(str::to_owned);
        let target = Target::start_with(world, "0", &vdev, &arguments)?;
        let (name, plug) = ("mckey-refused".to_owned(), Plug::VhostUser(socket));
        let parameters = format!("ip4={GUEST_V4}/24 ip6={GUEST_V6}/64 mtu=1500");
        let guest = GuestConfig { name, plug, parameters, extra_initrd: None, memory: 512, cpus: 1 };
        let guest = world.boot(guest)?;
        guest.expect("ip route add 224.0.0.0/4 dev eth0", LIMIT, &[])?;
        // The guest goes first.
        Ok((target, guest))
    };
    let Some((target, guest)) = report.fixture("boot", boot) else { return };
    let context = || format!("{}console: {}", target.tail(), guest.console());
    report.case("the log names the client, the group and the reason", context, || {
        let client = guest.start(&format!("exec mckey -m 239.7.7.7 -b {GUEST_V4}"), LIMIT)?;
        let why = "mckey: datagrams of group 239.7.7.7 refused: the port has no address of the group's family";
        let said = |line: &String| line.contains(why) && line.contains(&format!("client={GUEST_V4}"));
        let told = (0..80).any(|_| {
            std::thread::sleep(Duration::from_millis(250));
            target.log().iter().any(said)
        });
        client.kill(9)?;
        let text = client.wait()?.text;
        if !told || text.contains("data transfers complete") {
            return Err(format!("no line of the log says so, or datagrams came all the same: {text}"));
        }
        Ok(())
    });
    report.case("rxe-ctl services counts it", context, || {
        let services = target.ctl("services")?;
        let line = services.lines().find(|line| line.starts_with("mckey ")).unwrap_or_default();
        if line.contains(" refused=1") { Ok(()) } else { Err(services) }
    });
    report.case("what needs no IPv4 address is served", context, || {
        // The kernel gives a client 2 s to find its server, which a busy emulated machine may need for its first neighbour.
        guest.expect(&format!("ping -c 1 -w 20 {TARGET_V6}"), LIMIT, &[])?;
        guest.expect(&format!("rping -c -a {TARGET_V6} -C 3 -v"), LIMIT, &["rdma-ping-2"]).map(drop)
    });
    report.case("the target ends in order", String::new, || counted(&target.stop()?, "mckey", &["refused=1"]));
}
