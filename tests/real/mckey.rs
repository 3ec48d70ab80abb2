//! librdmacm's mckey, as it is, against the service of its name: it receives from a group, and sends to it.

use crate::bed::{BedConfig, TestBed, expect_counters, needs};
use crate::client::{Client, Wants};
use crate::env::TestEnv;
use crate::station::{GUEST_V4, Lease, Port, StationKey, TARGET_V6};
use crate::suite::{AnyGroup, Fixture, Group};
use crate::target::{Target, unique};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const MCKEY: Wants = Wants::Texts(&["joined dgid: ::ffff:2", "data transfers complete", "return status 0"]);
const MCKEY_SENDS: Wants = Wants::Texts(&["initiating data transfers", "data transfers complete", "return status 0"]);
/// mckey needs a route to its groups.
const ROUTE: &str = "ip route add 224.0.0.0/4 dev eth0";
const NO_ROUTE: &str = "ip route del 224.0.0.0/4 dev eth0";

/// The groups `mckey-4200`, `mckey-1500` and `mckey-refused`.
pub fn groups() -> Vec<AnyGroup> {
    vec![group(4200), group(1500), refused()]
}

/// At 4200 the configuration sets number and size of the datagrams, which come from two lcores.
fn group(mtu: u32) -> AnyGroup {
    let (lcores, count, size, flags) =
        if mtu > 1500 { ("0,1", 25, 4096, " -C 25 -S 4096") } else { ("0", 10, 100, "") };
    let mut group = Group::new(format!("mckey-{mtu}"), needs(StationKey::new(Port::Vhost, mtu)), move |env| {
        let mut config = BedConfig { lcores, ..BedConfig::new(Port::Vhost, mtu) };
        if mtu > 1500 {
            let text = format!("[service.mckey]\ncount = {count}\nsize = {size}\nsend-after = \"1500ms\"\n");
            config = config.arguments(&env.config_file("mckey.toml", &text)?);
        }
        let bed = TestBed::start(env, config)?;
        bed.guest().expect(ROUTE, LIMIT, &[])?;
        Ok(bed)
    });
    group.nightly(mtu == 1500);
    // Receiving, in one group after the other and twice in the same; and fewer datagrams than there are.
    let fewer = if mtu > 1500 { " -C 3 -S 4096" } else { " -C 3" };
    for (address, flags) in [("239.7.7.7", flags), ("239.7.7.7", flags), ("232.1.2.3", flags), ("239.7.7.8", fewer)] {
        let client = Client::new(format!("mckey -m {address} -b MYIP{flags}"), MCKEY);
        client.counts("mckey", 1, count).case(&mut group);
    }
    let sender = Client::new(format!("mckey -m 239.7.7.7 -b MYIP -s{flags}"), MCKEY_SENDS);
    // Datagrams go to it as well.
    sender.counts("mckey", 1, count).case(&mut group);
    group.case("the target still runs and counts", move |bed| {
        bed.guest().expect(NO_ROUTE, LIMIT, &[])?;
        let summary = bed.stop_target()?;
        let received = format!("group_datagrams={count}");
        expect_counters(&summary, "mckey", &[bed.counted("mckey"), vec![received]].concat())
    });
    group.build()
}

/// A target without an IPv4 address, and a guest.
struct Ipv6Only {
    lease: Lease,
    target: Option<Target>,
}

impl Ipv6Only {
    fn start(env: &Arc<TestEnv>, key: StationKey) -> Result<Ipv6Only, String> {
        let arguments = ["--address", &format!("{TARGET_V6}/64"), "--mtu", &key.mtu.to_string()].map(str::to_owned);
        let target = Target::start_with(env.eal_options(&unique()), &key.vdev(env), &arguments)?;
        let lease = env.station(key)?;
        lease.guest().expect(ROUTE, LIMIT, &[])?;
        Ok(Ipv6Only { lease, target: Some(target) })
    }

    fn target(&self) -> Result<&Target, String> {
        self.target.as_ref().ok_or_else(|| "the target does not run".to_owned())
    }
}

impl Fixture for Ipv6Only {
    fn context(&self) -> String {
        let target = self.target.as_ref().map(Target::tail).unwrap_or_default();
        format!("{target}console: {}", self.lease.guest().console())
    }
}

/// A target without an IPv4 address sees a client join an IPv4 group, and has no address to send from.
fn refused() -> AnyGroup {
    let key = StationKey::new(Port::Vhost, 4200);
    let mut group = Group::new("mckey-refused", needs(key), move |env| Ipv6Only::start(env, key));
    group.case("the log names the client, the group and the reason", |bed: &mut Ipv6Only| {
        let client = bed.lease.guest().start(&format!("exec mckey -m 239.7.7.7 -b {GUEST_V4}"), LIMIT)?;
        let why = "mckey: datagrams of group 239.7.7.7 refused: the port has no address of the group's family";
        let is = |line: &String| line.contains(why) && line.contains(&format!("client={GUEST_V4}"));
        let target = bed.target()?;
        let logged = (0..80).any(|_| {
            std::thread::sleep(Duration::from_millis(250));
            target.log().iter().any(is)
        });
        client.kill(9)?;
        let text = client.wait()?.text;
        if !logged || text.contains("data transfers complete") {
            return Err(format!("no such line in the log, or datagrams arrived all the same: {text}"));
        }
        Ok(())
    });
    group.case("rxe-ctl services counts it", |bed| {
        let services = bed.target()?.ctl("services")?;
        let line = services.lines().find(|line| line.starts_with("mckey ")).unwrap_or_default();
        if line.contains(" refused=1") { Ok(()) } else { Err(services) }
    });
    group.case("a client that needs no IPv4 address is served", |bed| {
        let guest = bed.lease.guest();
        // The kernel gives a client 2 s to resolve the address, which a busy emulated machine may exceed the first time.
        guest.expect(&format!("ping -c 1 -w 20 {TARGET_V6}"), LIMIT, &[])?;
        guest.expect(&format!("rping -c -a {TARGET_V6} -C 3 -v"), LIMIT, &["rdma-ping-2"]).map(drop)
    });
    group.case("the target ends in order", |bed| {
        bed.lease.guest().expect(NO_ROUTE, LIMIT, &[])?;
        let target = bed.target.take().ok_or("the target does not run")?;
        expect_counters(&target.stop()?, "mckey", &["refused=1"])
    });
    group.build()
}
