use super::*;
use std::path::Path;

use rxe_adapter::worker::{FaultRule, FaultScope};
use rxe_proto::transport::CongestionControl;

const KNOWN: [&str; 13] = [
    "rping",
    "rdma-server",
    "ucmatose",
    "cmtime",
    "udaddy",
    "rdma-example",
    "region",
    "rsocket",
    "rc-example",
    "mckey",
    "pingpong",
    "perftest",
    "nvmf",
];

fn resolve(text: &str) -> Result<Config, String> {
    let settings = file::parse(Path::new("t.toml"), text).map_err(|error| error.to_string())?;
    Config::resolve(settings, &KNOWN).map_err(|error| error.to_string())
}

fn wrong(text: &str) -> String {
    resolve(text).expect_err(text)
}

#[test]
fn by_default_all_services_run_that_need_no_setting() {
    let config = resolve("[[port]]\naddresses = [\"10.0.0.1/24\"]\n").expect("a configuration");
    assert_eq!(config.services, KNOWN[..KNOWN.len() - 1]);
    assert_eq!(config.regions, [RegionSpec::plain("default", 1 << 20)]);
    assert_eq!((config.region_port, config.idle, config.log), (4792, Idle::Pause, LevelFilter::INFO));
    assert_eq!((config.traffic_class, config.pcp), (None, 0));
    assert_eq!((config.faults, config.capture, config.pingpong), (Vec::new(), None, PingpongConfig::default()));
    let some = resolve("services = [\"rdma-server\", \"rping\"]\n[[port]]\naddresses = [\"10.0.0.1/24\"]\n");
    let some = some.expect("a configuration");
    assert_eq!(some.services, ["rping", "rdma-server"]);
    assert!(some.regions.is_empty());
}

#[test]
fn invalid_settings_are_refused_with_their_place() {
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
            "t.toml, line 1, key 'services': there is no service 'rpinf': the services are rping, rdma-server, ucmatose, cmtime, udaddy, rdma-example, region, rsocket, rc-example, mckey, pingpong, perftest, nvmf",
        ),
        (
            &format!("services = []\n{PORT}"),
            "the list of services is empty: leave 'services' out for all of rping, rdma-server, ucmatose, cmtime, udaddy, rdma-example, region, rsocket, rc-example, mckey, pingpong, perftest, nvmf",
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
            &format!("{PORT}[[region]]\nname = \"a\"\nsize = 64\ncount = 10\n[[region]]\nname = \"a9\"\nsize = 2\n"),
            "t.toml, line 8, key 'name': the region 'a9' is given twice: give each region its own name",
        ),
        (
            &format!("{PORT}[[region]]\nname = \"a\"\nsize = 64\ncount = 0\n"),
            "t.toml, line 6, key 'count': '0' is not a number of regions: it goes from 1 to 1000000",
        ),
        (
            &format!("{PORT}[[region]]\nname = \"a\"\nsize = 64\ncount = 2\nwatch = true\n"),
            "t.toml, line 4, key 'name': the numbered regions 'a' cannot be watched: leave watch out, or their count",
        ),
        (
            &format!("{PORT}[fault]\nrx = {{ delayed = 0.5 }}\n"),
            "t.toml, line 3, key 'fault': 'delayed' of rx needs a time: add 'delay' or 'jitter'",
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
fn the_files_in_conf_are_valid() {
    for (name, text) in [
        ("target.toml", include_str!("../../../conf/target.toml")),
        ("af-packet.toml", include_str!("../../../conf/examples/af-packet.toml")),
        ("vhost-user.toml", include_str!("../../../conf/examples/vhost-user.toml")),
        ("virtio-user.toml", include_str!("../../../conf/examples/virtio-user.toml")),
        ("pci.toml", include_str!("../../../conf/examples/pci.toml")),
        ("udp.toml", include_str!("../../../conf/examples/udp.toml")),
        ("nvmf.toml", include_str!("../../../conf/examples/nvmf.toml")),
    ] {
        if let Err(error) = resolve(text) {
            panic!("{name}: {error}");
        }
    }
}

#[test]
fn the_transport_section_configures_the_engine() {
    const PORT: &str = "[[port]]\naddresses = [\"10.0.0.1/24\"]\n";
    let offers = |text: &str| {
        let engine = resolve(&format!("{PORT}{text}")).expect("a configuration").engine;
        let keep_alive = engine.keep_alive.map(|keep| (keep.idle.as_secs(), keep.interval.as_millis(), keep.probes));
        (engine.flush, engine.atomic_write, engine.credits, engine.cnp_interval.as_micros(), keep_alive)
    };
    assert_eq!(offers(""), (false, false, true, 50, Some((30, 5000, 6))));
    assert_eq!(
        offers(
            "[transport]\nflush = true\natomic-write = true\ncredits = false\ncnp-interval = \"1ms\"\nkeep-alive = 3\n"
        ),
        (true, true, false, 1000, Some((3, 500, 6)))
    );
    assert_eq!(offers("[transport]\nkeep-alive = 0\n").4, None);
    let control =
        |value: &str| resolve(&format!("{PORT}[transport]\ncongestion = \"{value}\"\n")).map(|c| c.engine.congestion);
    assert_eq!(control("off").expect("a configuration"), CongestionControl::Off);
    assert!(matches!(control("delay:80us"), Ok(CongestionControl::Delay(_))));
    assert!(wrong(&format!("{PORT}[transport]\ncongestion = \"on\"\n")).contains("delay:TIME"));
    let sending = |text: &str| {
        let engine = resolve(&format!("{PORT}[transport]\n{text}")).expect("a configuration").engine;
        (engine.short_messages_first, engine.early_retransmission)
    };
    assert_eq!(sending(""), (true, true));
    assert_eq!(sending("short-messages-first = false\n"), (false, true));
    assert_eq!(sending("early-retransmission = false\n"), (true, false));
    assert!(wrong(&format!("{PORT}[transport]\nflsh = true\n")).contains("flsh"));
}

const DOCUMENTED: &str = include_str!("../../../conf/target.toml");

/// target.toml with every line in use.
fn all_in_use() -> String {
    DOCUMENTED.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line).to_owned() + "\n").collect()
}

/// The keys that a place of the file takes: the reader names them when it is given another one.
fn keys(text: &str) -> Vec<String> {
    let sentence = wrong(text);
    let Some((_, expected)) = sentence.split_once("unknown field 'no-such-key', expected ") else {
        panic!("{sentence}");
    };
    expected.split('\'').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_key_is_documented() {
    // The part of the file that begins with each [header], and the part in front of all of them.
    let all = all_in_use();
    let mut parts: Vec<(&str, String)> = vec![("", String::new())];
    let mut part = 0;
    for line in all.lines() {
        if line.starts_with('[') {
            // Tables of which there may be several share out the keys.
            part = parts.iter().position(|(header, _)| *header == line).unwrap_or(parts.len());
            if part == parts.len() {
                parts.push((line, String::new()));
            }
        }
        parts[part].1.extend([line, "\n"]);
    }
    let headers: Vec<&str> = parts.iter().map(|(header, _)| header.trim_matches(['[', ']'])).collect();
    let mut seen = 0;
    for (header, part) in &parts {
        // A table of a list in a list needs the outer one.
        let outer = parts.iter().find(|(outer, _)| {
            outer.starts_with("[[") && header.starts_with(&format!("{}.", outer.trim_end_matches(']')))
        });
        let outer = outer.map_or("", |(outer, _)| outer);
        for key in keys(&format!("{outer}\n{header}\nno-such-key = 1\n")) {
            let path = format!("{}.{key}", header.trim_matches(['[', ']']));
            let path = path.trim_start_matches('.');
            let section = headers.iter().any(|h| *h == path || h.starts_with(&format!("{path}.")));
            let line = part.lines().any(|line| line.starts_with(&format!("{key} = ")));
            // Described once, for all services.
            let of_all = key == "peers" && header.starts_with("[service.") && *header != "[service.region]";
            assert!(section || line || of_all, "'{path}' is not in conf/target.toml");
            seen += 1;
        }
    }
    // Inline tables: the words are in the section's text.
    for (header, table) in [("[[port]]", "routes = [{ no-such-key = 1 }]"), ("[fault]", "rx = { no-such-key = 1 }")] {
        let (_, part) = parts.iter().find(|(name, _)| *name == header).expect(header);
        for key in keys(&format!("{header}\n{table}\n")) {
            assert!(part.contains(&key), "'{key}' of {table} is not in conf/target.toml");
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen} keys");
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    // Keys that exclude others: a port on a UDP socket has no other ones, and a namespace has one kind of storage.
    let excluded = |line: &&str| ["udp = ", "ram = ", "block = "].iter().any(|key| line.starts_with(key));
    let all: String = all_in_use().lines().filter(|line| !excluded(line)).map(|line| format!("{line}\n")).collect();
    let documented = resolve(&all).expect("a configuration");
    let default = resolve("[[port]]\naddresses = [\"10.0.0.1/24\"]\n").expect("a configuration");
    assert_eq!(documented.services, KNOWN);
    // nvmf has no disk.
    assert_eq!(default.services, KNOWN[..KNOWN.len() - 1]);
    assert_eq!(documented.region_port, default.region_port);
    assert_eq!((documented.log, documented.idle), (default.log, default.idle));
    assert_eq!((documented.traffic_class, documented.pcp), (default.traffic_class, default.pcp));
    assert_eq!((documented.perftest, documented.pingpong), (default.perftest, default.pingpong));
    let nvmf = |config: &NvmfConfig| (config.port, config.staging);
    assert_eq!(nvmf(&documented.nvmf), nvmf(&default.nvmf));
    let [disk] = &documented.nvmf.subsystems[..] else { panic!("one subsystem") };
    let [namespace] = &disk.namespaces[..] else { panic!("one namespace") };
    assert_eq!((disk.model.as_str(), namespace.nsid, namespace.block_size.bytes()), ("rxe-target", 1, 4096));
    assert_eq!((namespace.read_only, namespace.checksums), (false, false));
    // No limit is the default.
    let limits = Limits { requests_per_second: None, ..documented.limits };
    assert_eq!((documented.engine, limits), (default.engine, default.limits));
    let usual = |fault: &FaultRule| (fault.seed, fault.matches.scope) == (0, FaultScope::Roce);
    assert!(documented.faults.len() > 5 && documented.faults.iter().all(usual));
}

#[test]
fn limits_outside_their_range_are_refused() {
    const PORT: &str = "[[port]]\naddresses = [\"10.0.0.1/24\"]\n";
    let config =
        resolve(&format!("{PORT}[limits]\nconnections = 10\nqueue-pairs = 20\npending = 4\npending-per-address = 2\n"))
            .expect("a configuration");
    assert_eq!((config.limits.connections, config.engine.max_qp), (10, 20));
    assert_eq!(config.limits.connections_per_address, 9, "some are left for others");
    let given = resolve(&format!("{PORT}[limits]\nconnections-per-address = 3\n")).expect("a configuration");
    assert_eq!((given.limits.connections, given.limits.connections_per_address), (16_384, 3));
    assert_eq!((config.limits.pending, config.limits.pending_per_address), (4, 2));
    for (line, sentence) in [
        ("connections = 0", "t.toml, line 4, key 'connections': '0' is not a limit: it goes from 1 to 65536"),
        ("queue-pairs = 65535", "t.toml, line 4, key 'queue-pairs': '65535' is not a limit: it goes from 1 to 65534"),
    ] {
        assert_eq!(wrong(&format!("{PORT}[limits]\n{line}\n")), sentence);
    }
}

#[test]
fn the_capture_option_sets_the_file_and_the_section_the_filters() {
    const PORT: &str = "[[port]]\naddresses = [\"10.0.0.1/24\"]\n";
    let with_flag = |text: &str| {
        let mut settings = file::parse(Path::new("t.toml"), &format!("{text}{PORT}")).expect("settings");
        let value = "/a/flag.pcapng".parse::<CaptureFile>().expect("a file");
        settings.capture_file = Some(Sourced { value, origin: Origin::Flag("--capture") });
        Config::resolve(settings, &KNOWN).map(|config| config.capture).map_err(|error| error.to_string())
    };
    let both = with_flag("[capture]\nfile = \"/a/file.pcapng\"\nsnaplen = 128\n").expect("right").expect("one");
    assert_eq!((both.file, both.snaplen), ("/a/flag.pcapng".into(), 128));
    let flag = with_flag("").expect("right").expect("one");
    assert_eq!(flag, rxe_inspect::capture::CaptureSettings::new("/a/flag.pcapng".into()));
    let none = resolve(&format!("[capture]\nsnaplen = 128\n{PORT}")).expect("right");
    assert_eq!(none.capture, None, "neither names a file");
    let config = resolve(&format!("[capture]\nfile = \"/a/file.pcapng\"\n{PORT}")).expect("right");
    assert!(config.to_string().ends_with(", captures to /a/file.pcapng"), "{config}");
    for (text, part) in [
        ("file = \"a.pcapng\"", "the capture file a.pcapng needs an absolute path"),
        ("file = \"/a\"\nfiles = 3", "give the size of a file too"),
        ("peers = [\"x\"]", "key 'peers': 'x' is not an IP address"),
        ("size = \"big\"", "key 'size': 'big' is not a whole number"),
        ("qpns = [1]", "unknown field 'qpns'"),
    ] {
        let sentence = wrong(&format!("[capture]\n{text}\n{PORT}"));
        assert!(sentence.contains(part) && sentence.starts_with("t.toml, line "), "{sentence}");
    }
}

#[test]
fn a_mutated_file_is_a_configuration_or_refused_in_one_sentence() {
    const PORT: &str = "[[port]]\naddresses = [\"10.0.0.1/24\", \"fd00::1/64\"]\n";
    // The documented sections behind a port, and whole files.
    let all = all_in_use();
    let mut inputs: Vec<String> = all.split("\n[").map(|part| format!("{PORT}[{part}\n")).collect();
    inputs[0] = all.split("\n[").next().unwrap_or_default().to_owned() + "\n" + PORT;
    inputs.extend([include_str!("../../../conf/examples/pci.toml").to_owned(), "# \u{e9} = \u{1f980}\n".to_owned()]);
    // Strings whose values have several lines.
    let values =
        ["services = [VALUE]\n", "[eal]\nargs = [VALUE]\n", "[[region]]\nname = VALUE\nsize = 1\nfile = VALUE\n"];
    let values = values.into_iter().chain(["[capture]\nfile = VALUE\n", "[fault]\nrx = { VALUE = 1 }\n"]);
    inputs.extend(values.map(|text| format!("{}{PORT}", text.replace("VALUE", r#""a\nb""#))));
    let inputs: Vec<&[u8]> = inputs.iter().map(String::as_bytes).collect();
    let accepted = std::cell::Cell::new(0);
    rxe_testkit::mutate::check_mutations("config", &inputs, 4_000, |input| {
        let text = String::from_utf8_lossy(input);
        match resolve(&text) {
            Ok(config) => {
                assert!(!config.to_string().contains('\n'), "{config}");
                accepted.set(accepted.get() + 1);
            }
            Err(sentence) => assert!(!sentence.is_empty() && !sentence.contains('\n'), "{sentence}"),
        }
    });
    assert!(accepted.get() > 100, "only {} files were accepted", accepted.get());
}

#[test]
fn a_port_on_a_udp_socket_has_an_address_and_a_name_and_nothing_else() {
    const UDP: &str = "[[port]]\nudp = \"127.0.0.2\"\n";
    let config = resolve(&format!("{UDP}peers = [\"127.0.0.0/8\"]\n")).expect("a configuration");
    assert_eq!(config.ports[0].addresses, ["127.0.0.2/32".parse().expect("a CIDR")]);
    assert!(config.ports[0].udp && config.ports[0].restrictions.peers.is_some());
    assert_eq!(config.carrier(), Carrier::Udp);
    assert_eq!(config.file_prefix, Some(FilePrefix("udp-127.0.0.2".to_owned())));
    let six = resolve("[[port]]\nudp = \"fd00::2\"\n").expect("a configuration").file_prefix;
    assert_eq!(six, Some(FilePrefix("udp-fd00--2".to_owned())));
    for (more, sentence) in [
        (
            "addresses = [\"10.0.0.1/24\"]\n",
            "t.toml, line 2, key 'udp' and t.toml, line 3, key 'addresses': a target on a UDP socket has no addresses of its own: \
             leave one of them out",
        ),
        (
            "mtu = 1500\n",
            "t.toml, line 2, key 'udp' and t.toml, line 3, key 'mtu': a target on a UDP socket has no MTU of its own: leave one of \
             them out",
        ),
        (
            "pin-mac = true\n",
            "t.toml, line 2, key 'udp': a UDP socket does not show MAC addresses: leave 'pin-mac' out",
        ),
        (
            "[eal]\nargs = [\"-l\", \"0\"]\n",
            "t.toml, line 2, key 'udp': a UDP socket needs no DPDK: leave EAL's arguments out (-l 0)",
        ),
    ] {
        assert_eq!(wrong(&format!("{UDP}{more}")), sentence);
    }
}
