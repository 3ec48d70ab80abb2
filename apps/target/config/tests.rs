use super::*;
use std::path::Path;

const KNOWN: [&str; 10] = [
    "rping",
    "rdma-server",
    "ucmatose",
    "cmtime",
    "udaddy",
    "rdma-example",
    "region",
    "rsocket",
    "pingpong",
    "perftest",
];

fn resolve(text: &str) -> Result<Config, String> {
    let settings = file::parse(Path::new("t.toml"), text).map_err(|mistake| mistake.to_string())?;
    Config::resolve(settings, &KNOWN).map_err(|mistake| mistake.to_string())
}

fn wrong(text: &str) -> String {
    resolve(text).expect_err(text)
}

#[test]
fn defaults_serve_everything() {
    let config = resolve("[[port]]\naddresses = [\"10.0.0.1/24\"]\n").expect("a configuration");
    assert_eq!(config.services, KNOWN);
    assert_eq!(config.regions, [RegionSpec { name: "default".into(), size: 1 << 20, file: None }]);
    assert_eq!((config.region_port, config.idle, config.log), (4792, Idle::Pause, LevelFilter::INFO));
    assert_eq!((config.traffic_class, config.pcp), (None, 0));
    assert_eq!((config.faults, config.pingpong), (None, PingpongConfig::default()));
    let some = resolve("services = [\"rdma-server\", \"rping\"]\n[[port]]\naddresses = [\"10.0.0.1/24\"]\n");
    let some = some.expect("a configuration");
    assert_eq!(some.services, ["rping", "rdma-server"]);
    assert!(some.regions.is_empty());
}

#[test]
fn what_cannot_work_is_refused_with_its_place() {
    const PORT: &str = "[[port]]\naddresses = [\"10.0.0.1/24\", \"fd00::1/64\"]\n";
    for (text, sentence) in [
        ("", "the target has no address: give it one with --address IP/PREFIX, as 10.0.0.1/24"),
        ("[[port]]\nmtu = 1500\n", "port 0 has no address: give it one with --address port0:IP/PREFIX"),
        (
            "[[port]]\naddresses = [\"10.0.0.1/24\",\n\"10.0.0.1/8\"]\n",
            "the address 10.0.0.1 is given twice, by t.toml, line 2, key 'addresses' and t.toml, line 3, key 'addresses': leave one of them out",
        ),
        (
            "[[port]]\naddresses = [\"10.0.0.1/24\", \"10.0.0.1/8\"]\n",
            "the address 10.0.0.1 is given twice, by t.toml, line 2, key 'addresses': leave one of them out",
        ),
        (
            &format!("{PORT}gateways = [\"10.0.1.1\"]\n"),
            "t.toml, line 3, key 'gateways': the router 10.0.1.1 is in no network of port 0: check it against the prefixes of the addresses",
        ),
        (
            &format!("{PORT}gateways = [\"10.0.0.1\"]\n"),
            "t.toml, line 3, key 'gateways': the router 10.0.0.1 is the target's own address: name another machine",
        ),
        (
            &format!("{PORT}gateways = [\"10.0.0.2\", \"10.0.0.3\"]\n"),
            "t.toml, line 3, key 'gateways': port 0 has the gateway 10.0.0.2 already: use routes to name more routers",
        ),
        (
            &format!("{PORT}routes = [{{ to = \"10.1.0.0/16\", via = \"10.1.0.1\" }}]\n"),
            "t.toml, line 3, key 'routes': the router 10.1.0.1 is in no network of port 0: check it against the prefixes of the addresses",
        ),
        (
            &format!("pcp = 3\n{PORT}"),
            "t.toml, line 1, key 'pcp': a VLAN priority needs a VLAN: add --vlan ID, or leave the priority out",
        ),
        (
            &format!("services = [\"rpinf\"]\n{PORT}"),
            "t.toml, line 1, key 'services': there is no service 'rpinf': the services are rping, rdma-server, ucmatose, cmtime, udaddy, rdma-example, region, rsocket, pingpong, perftest",
        ),
        (
            &format!("services = []\n{PORT}"),
            "the list of services is empty: leave 'services' out for all of rping, rdma-server, ucmatose, cmtime, udaddy, rdma-example, region, rsocket, pingpong, perftest",
        ),
        (
            &format!("{PORT}[[region]]\nname = \"a\"\nsize = 1\n[[region]]\nname = \"a\"\nsize = 2\n"),
            "t.toml, line 7, key 'name': the region 'a' is given twice: give each region its own name",
        ),
        (
            &format!(
                "{PORT}[[region]]\nname = \"a\"\nsize = 1\nfile = \"/f\"\n[[region]]\nname = \"b\"\nsize = 2\nfile = \"/f\"\n"
            ),
            "t.toml, line 8, key 'name': the regions 'a' and 'b' have the same file: give each its own",
        ),
        (
            &format!("{PORT}[fault]\nrx = {{ delayed = 0.5 }}\n"),
            "t.toml, line 3, key 'fault': 'delayed' of rx says how many frames are late, but not by how much: add 'delay' or 'jitter'",
        ),
        (
            &format!("{PORT}[eal]\nargs = [\"-l\", \"0\", \"--\"]\n"),
            "'--' is among the EAL arguments: leave it out of [eal] args, it belongs on command lines only",
        ),
    ] {
        assert_eq!(wrong(text), sentence);
    }
}

#[test]
fn link_local_routers_need_no_network() {
    let text = "[[port]]\naddresses = [\"10.0.0.1/24\"]\ngateways = [\"fe80::1\", \"10.0.0.254\"]\n";
    assert_eq!(resolve(text).map(|config| config.ports[0].gateways.len()), Ok(2));
}

#[test]
fn the_files_in_conf_are_right() {
    for (name, text) in [
        ("target.toml", include_str!("../../../conf/target.toml")),
        ("af-packet.toml", include_str!("../../../conf/examples/af-packet.toml")),
        ("vhost-user.toml", include_str!("../../../conf/examples/vhost-user.toml")),
        ("virtio-user.toml", include_str!("../../../conf/examples/virtio-user.toml")),
        ("pci.toml", include_str!("../../../conf/examples/pci.toml")),
    ] {
        if let Err(mistake) = resolve(text) {
            panic!("{name}: {mistake}");
        }
    }
}

#[test]
fn the_documented_file_shows_every_key_with_its_default() {
    // Every commented-out `# key = value` line of target.toml must be valid too.
    let text = include_str!("../../../conf/target.toml");
    let all: String = text.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line).to_owned() + "\n").collect();
    if let Err(mistake) = resolve(&all) {
        panic!("{mistake}");
    }
}

#[test]
fn the_transport_offers_what_the_file_says() {
    const PORT: &str = "[[port]]\naddresses = [\"10.0.0.1/24\"]\n";
    let offers = |text: &str| {
        let engine = resolve(&format!("{PORT}{text}")).expect("a configuration").engine;
        (engine.flush, engine.atomic_write, engine.credits, engine.cnp_interval.as_micros())
    };
    assert_eq!(offers(""), (false, false, true, 50));
    assert_eq!(
        offers("[transport]\nflush = true\natomic-write = true\ncredits = false\ncnp-interval = \"1ms\"\n"),
        (true, true, false, 1000)
    );
    assert!(wrong(&format!("{PORT}[transport]\nflsh = true\n")).contains("flsh"));
}
