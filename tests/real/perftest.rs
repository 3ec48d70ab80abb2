//! perftest's clients, as they are, against the service `perftest`.

use crate::Check;
use crate::bed::{BedConfig, TestBed, needs};
use crate::client::{self, Client, Rows};
use crate::station::{Port, StationKey, TARGET_V4};
use crate::suite::{AnyGroup, Group};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(150);
/// The size of ib_write_lat's messages in the configuration of the target at MTU 4200.
const WRITE_LAT: u64 = 65536;

/// Commands that `make test` runs at path MTU 4096: those over IPv6. The rest is for the nightly run, as tests/verbs has such
/// commands without a guest, and group clients-af_packet has a run of every program.
const QUICK: [&str; 2] = ["ib_send_bw --ipv6 -n 100 -c UD -F IPV4", "ib_read_bw --ipv6 -n 100 -F IPV4"];
/// The same over the connection manager: queue pairs of one client on two lcores.
const QUICK_CM: [&str; 2] = ["ib_send_bw -n 50 -b -q 4 -s 4096 -R -F IPV4", "ib_read_bw -n 5 -q 4 -R -F IPV4"];

/// The groups `perftest-4200`, `perftest-cm-4200`, `perftest-1500` and `perftest-cm-1500`.
pub fn groups() -> Vec<AnyGroup> {
    let mut groups = Vec::new();
    for mtu in [4200, 1500] {
        let jumbo = mtu > 1500;
        groups.push(group(&format!("perftest-{mtu}"), mtu, "0", None, clients(mtu), if jumbo { &QUICK } else { &[] }));
        // On two lcores the connections of one client are with either.
        let (lcores, write_lat) = if jumbo { ("0,1", Some(WRITE_LAT)) } else { ("0", None) };
        let quick: &[&str] = if jumbo { &QUICK_CM } else { &[] };
        groups.push(group(&format!("perftest-cm-{mtu}"), mtu, lcores, write_lat, cm_clients(mtu), quick));
    }
    groups
}

/// The programs without significant flags, then flag by flag. Counts are small where an emulated guest would take
/// long: it moves some 30 MiB a second.
fn clients(mtu: u32) -> Vec<Client> {
    let datagram = if mtu > 1500 { 4096 } else { 1024 };
    let mut clients = vec![
        Client::perftest("ib_send_lat -n 1000", Rows::One(2, 1000)),
        Client::perftest("ib_send_lat -n 1000 -c UC", Rows::One(2, 1000)),
        Client::perftest("ib_send_lat -n 1000 -c UD", Rows::One(2, 1000)),
        Client::perftest("ib_send_lat -n 5 -a", Rows::All(8 << 20, 5)),
        Client::perftest("ib_send_lat -n 50 -s 65536", Rows::One(65536, 50)),
        Client::perftest("ib_send_lat -n 100 -e", Rows::One(2, 100)),
        Client::perftest("ib_send_lat -D 2", Rows::Timed(2)),
        Client::perftest("ib_send_lat -n 100 -c UC -s 10000", Rows::One(10000, 100)),
        Client::perftest(&format!("ib_send_lat -n 100 -c UD -s {datagram}"), Rows::One(datagram, 100)),
        Client::perftest("ib_send_bw -n 1000", Rows::One(65536, 1000)),
        Client::perftest("ib_send_bw -n 200 -b", Rows::One(65536, 200)),
        Client::perftest("ib_send_bw -n 5 -q 4", Rows::One(65536, 20)),
        Client::perftest("ib_send_bw -n 5 -a", Rows::All(8 << 20, 5)),
        Client::perftest("ib_send_bw -n 200 -c UC", Rows::One(65536, 200)),
        Client::perftest("ib_send_bw -n 1000 -c UD", Rows::One(datagram, 1000)),
        Client::perftest("ib_send_bw -n 5 -s 1", Rows::One(1, 5)),
        Client::perftest("ib_send_bw -n 5 -s 8388608", Rows::One(8 << 20, 5)),
        Client::perftest("ib_send_bw -n 100 -s 1000 -q 4", Rows::One(1000, 400)),
        Client::perftest("ib_send_bw -n 100 -s 1000 -q 4 -b", Rows::One(1000, 400)),
        Client::perftest("ib_send_bw -n 10 -s 1000 -q 64", Rows::One(1000, 640)),
        Client::perftest("ib_send_bw -n 100 -m 256 -s 5000", Rows::One(5000, 100)),
        Client::perftest("ib_write_bw -n 200 -b", Rows::One(65536, 200)),
        Client::perftest("ib_write_bw -n 5 -q 4", Rows::One(65536, 20)),
        Client::perftest("ib_write_bw -n 5 -a", Rows::All(8 << 20, 5)),
        Client::perftest("ib_write_bw -n 200 -c UC", Rows::One(65536, 200)),
        Client::perftest("ib_write_bw -n 100 -s 64 -b", Rows::One(64, 100)),
        Client::perftest("ib_write_bw -n 100 -s 4096 -q 4", Rows::One(4096, 400)),
        Client::perftest("ib_write_bw -D 2 -s 1024", Rows::Timed(1024)),
        Client::perftest("ib_read_bw", Rows::One(65536, 1000)),
        Client::perftest("ib_read_bw -n 200 -b", Rows::One(65536, 200)),
        Client::perftest("ib_read_bw -n 5 -q 4", Rows::One(65536, 20)),
        Client::perftest("ib_read_bw -n 5 -a", Rows::All(8 << 20, 5)),
        Client::perftest("ib_read_bw -n 100 -b -s 3000", Rows::One(3000, 100)),
        Client::perftest("ib_read_bw -n 100 -s 4096 -q 4 -o 4", Rows::One(4096, 400)),
        Client::perftest("ib_read_bw -n 50 -s 4096 -o 1", Rows::One(4096, 50)),
        Client::perftest("ib_atomic_bw", Rows::One(8, 1000)),
        Client::perftest("ib_atomic_bw -b", Rows::One(8, 1000)),
        Client::perftest("ib_atomic_bw -n 5 -q 4", Rows::One(8, 20)),
        Client::perftest("ib_atomic_bw -A CMP_AND_SWAP", Rows::One(8, 1000)),
        Client::perftest("ib_atomic_bw -n 200 -A CMP_AND_SWAP -q 2", Rows::One(8, 400)),
        Client::perftest("ib_write_lat -s 2", Rows::One(2, 1000)),
        Client::perftest("ib_write_lat -n 300 -s 4096", Rows::One(4096, 300)),
        Client::perftest("ib_write_lat -n 100 -s 33 -c UC", Rows::One(33, 100)),
        Client::perftest("ib_read_lat", Rows::One(2, 1000)),
        Client::perftest("ib_atomic_lat", Rows::One(8, 1000)),
        Client::perftest("ib_atomic_lat -n 200 -A CMP_AND_SWAP", Rows::One(8, 200)),
        // IPv6 GIDs, exchanged over IPv4: perftest has no other way.
        Client::perftest("ib_send_lat --ipv6 -n 100", Rows::One(2, 100)),
        Client::perftest("ib_send_bw --ipv6 -n 100", Rows::One(65536, 100)),
        Client::perftest("ib_send_bw --ipv6 -n 100 -c UD", Rows::One(datagram, 100)),
        Client::perftest("ib_write_bw --ipv6 -n 100", Rows::One(65536, 100)),
        Client::perftest("ib_read_bw --ipv6 -n 100", Rows::One(65536, 100)),
        Client::perftest("ib_atomic_bw --ipv6 -n 100", Rows::One(8, 100)),
    ];
    // The longest ones once each.
    if mtu <= 1500 {
        clients.extend([
            Client::perftest("ib_send_bw -D 2", Rows::Timed(65536)),
            Client::perftest("ib_write_bw -n 1000", Rows::One(65536, 1000)),
            Client::perftest("ib_send_bw -n 5 -a -b", Rows::All(8 << 20, 5)),
            Client::perftest("ib_write_lat -n 5 -a", Rows::All(8 << 20, 5)),
        ]);
    } else {
        clients.extend([
            Client::perftest("ib_send_bw -D 5", Rows::Timed(65536)),
            Client::perftest("ib_write_bw", Rows::One(65536, 5000)),
            Client::perftest("ib_write_bw -n 5 -a -b", Rows::All(8 << 20, 5)),
            Client::perftest("ib_read_lat -n 5 -a", Rows::All(8 << 20, 5)),
            Client::perftest("ib_send_bw -n 100 -m 2048", Rows::One(65536, 100)),
            // Longer than the silence after which the service takes a client for ib_write_lat.
            Client::perftest("ib_send_lat -D 6 -c UD", Rows::Timed(2)),
            Client::perftest("ib_write_bw -D 6 -c UC", Rows::Timed(65536)),
            Client::perftest("ib_write_bw -n 100 -m 1024 -s 10001", Rows::One(10001, 100)),
        ]);
    }
    clients
}

/// The same over the connection manager: `-z` for the exchange of parameters, `-R` for the test's connections too.
fn cm_clients(mtu: u32) -> Vec<Client> {
    let datagram = if mtu > 1500 { 4096 } else { 1024 };
    // The size of ib_write_lat that the target expects.
    let write_lat = if mtu > 1500 { WRITE_LAT } else { 2 };
    let mut clients = Vec::new();
    for way in ["-z", "-R"] {
        for (command, rows) in [
            ("ib_send_lat -n 200", Rows::One(2, 200)),
            ("ib_send_lat -n 200 -c UD", Rows::One(2, 200)),
            ("ib_send_lat -n 20 -s 16", Rows::One(16, 20)),
            ("ib_send_lat -n 20 -s 20000", Rows::One(20000, 20)),
            ("ib_send_bw -n 200", Rows::One(65536, 200)),
            ("ib_send_bw -n 200 -b", Rows::One(65536, 200)),
            ("ib_send_bw -n 5 -q 4", Rows::One(65536, 20)),
            ("ib_send_bw -n 50 -b -q 4 -s 4096", Rows::One(4096, 200)),
            ("ib_send_bw -D 2", Rows::Timed(65536)),
            ("ib_send_bw -n 200 -c UD", Rows::One(datagram, 200)),
            ("ib_send_bw -n 50 -c UD -b", Rows::One(datagram, 50)),
            ("ib_write_bw -n 200", Rows::One(65536, 200)),
            ("ib_write_bw -n 200 -b", Rows::One(65536, 200)),
            ("ib_write_bw -n 5 -q 4", Rows::One(65536, 20)),
            ("ib_write_bw -n 100 -b -q 2 -s 1000", Rows::One(1000, 200)),
            ("ib_read_bw -n 200", Rows::One(65536, 200)),
            ("ib_read_bw -n 200 -b", Rows::One(65536, 200)),
            ("ib_read_bw -n 5 -q 4", Rows::One(65536, 20)),
            ("ib_read_lat -n 200", Rows::One(2, 200)),
            ("ib_atomic_bw", Rows::One(8, 1000)),
            ("ib_atomic_bw -b", Rows::One(8, 1000)),
            ("ib_atomic_bw -n 5 -q 4", Rows::One(8, 20)),
            ("ib_atomic_bw -A CMP_AND_SWAP", Rows::One(8, 1000)),
            ("ib_atomic_lat -n 200", Rows::One(8, 200)),
            ("ib_atomic_lat -n 100 -A CMP_AND_SWAP", Rows::One(8, 100)),
        ] {
            clients.push(Client::perftest(&format!("{command} {way}"), rows));
        }
        let command = format!("ib_write_lat -s {write_lat} -n 20 {way}");
        clients.push(Client::perftest(&command, Rows::One(write_lat, 20)));
    }
    // All sizes, the longest of all, each way once.
    let way = if mtu > 1500 { "-R" } else { "-z" };
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
        clients.push(Client::perftest(&format!("{program} -n 5 -a {way}"), Rows::All(8 << 20, 5)));
    }
    if mtu <= 1500 {
        // The client's retry counts are for its own side: the service sends answers that this client has no receives for.
        for count in [0, 1] {
            let command = format!("ib_send_bw -D 3 -R --retry_count={count}");
            clients.push(Client::perftest(&command, Rows::Timed(65536)));
        }
    }
    // The client refuses UC with -R itself.
    clients.push(Client::perftest("ib_send_lat -n 50 -c UC -z", Rows::One(2, 50)));
    clients.push(Client::perftest("ib_write_bw -n 50 -c UC -z", Rows::One(65536, 50)));
    if mtu > 1500 {
        // The size in the target's configuration.
        clients.push(Client::perftest(&format!("ib_write_lat -n 20 -s {WRITE_LAT}"), Rows::One(WRITE_LAT, 20)));
        clients.push(Client::perftest(&format!("ib_write_lat -n 20 -s {WRITE_LAT} -c UC"), Rows::One(WRITE_LAT, 20)));
    }
    clients
}

/// Commands that the default settings refuse, and the target's log.
const REFUSED: [(&str, &str); 5] = [
    ("ib_write_bw -n 5 -s 16777216", "raise max-message of [service.perftest]"),
    ("ib_send_bw -n 5 -s 16777216", "raise max-message of [service.perftest]"),
    ("ib_write_lat -n 5 -s 5000", "set write-lat-size of [service.perftest] to its -s"),
    ("ib_write_bw -n 5 --reversed", "the target begins no test: without --reversed, ib_read_bw"),
    ("ib_write_lat -n 5 --reversed", "use it without --reversed"),
];

/// A client that the target refuses: its log says why. The client may wait for ever.
fn refused(bed: &mut TestBed, command: &str, refusal: &str) -> Check {
    let before = bed.log().len();
    let done = bed.guest().run(&format!("timeout 30 {command} -F {TARGET_V4}"), LIMIT)?;
    if done.code == 0 {
        return Err(format!("{command} succeeded: {}", done.text));
    }
    let log = bed.log().split_off(before);
    let lines = log.iter().filter(|line| line.contains("WARN") && line.contains(refusal)).count();
    if lines == 1 { Ok(()) } else { Err(format!("{lines} lines have {refusal:?}: {}", log.join("\n"))) }
}

/// `write_lat` is the size of ib_write_lat's messages in the target's configuration.
fn group(
    name: &str,
    mtu: u32,
    lcores: &'static str,
    write_lat: Option<u64>,
    clients: Vec<Client>,
    quick: &[&str],
) -> AnyGroup {
    let file = format!("{name}.toml");
    let mut group = Group::new(name, needs(StationKey::new(Port::Vhost, mtu)), move |env| {
        let mut config = BedConfig { lcores, ..BedConfig::new(Port::Vhost, mtu) };
        if let Some(size) = write_lat {
            let text = format!("[service.perftest]\nwrite-lat-size = {size}\n");
            config = config.arguments(&env.config_file(&file, &text)?);
        }
        TestBed::start(env, config)
    });
    client::cases_quick(&mut group, clients, quick);
    group.nightly(quick.is_empty());
    // Some of these clients wait until they are stopped, so one group has them.
    let beyond = name == "perftest-1500";
    if beyond {
        group.case("more than 256 queue pairs, and ib_write_lat of more than 4096 bytes", |bed| {
            // The client's own queues hold 32767 entries.
            Client::perftest("ib_send_bw -n 5 -s 1000 -q 300 -t 16 -r 16", Rows::One(1000, 1500)).run(bed)?;
            Client::perftest("ib_write_lat -n 20 -s 65536", Rows::One(65536, 20)).run(bed)
        });
        for (command, refusal) in REFUSED {
            group.case(format!("{command} is refused with what to do"), move |bed| refused(bed, command, refusal));
        }
    }
    group.case("a client is killed: the next one works", |bed| {
        client::kill_at_work(bed, &format!("ib_send_bw -F -n 100000000 {TARGET_V4}"))?;
        Client::perftest("ib_send_lat -n 20", Rows::One(2, 20)).run(bed)
    });
    group.case("a client that sends garbage is counted, and the target still runs", move |bed| {
        bed.guest().run(&format!("printf '6.06 or so, I think' | nc -w 2 {TARGET_V4} 18515"), LIMIT)?;
        let summary = bed.stop_target()?;
        let line = summary.lines().find(|line| line.starts_with("service perftest:"));
        let line = line.ok_or_else(|| format!("no line of the service in the summary: {summary}"))?;
        let refused =
            if beyond { line.contains(&format!(" refused={} ", REFUSED.len())) } else { !line.contains(" refused=") };
        let clean = refused && !line.contains(" post_failures=") && line.contains(" malformed=1");
        if clean { Ok(()) } else { Err(line.to_owned()) }
    });
    group.build()
}
