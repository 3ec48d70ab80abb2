//! librdmacm's small programs, as they are, against the services of their names.

use crate::bed::{BedConfig, TestBed, expect_counters, needs};
use crate::client::{self, Client, UCMATOSE, UDADDY, Wants};
use crate::guest::Job;
use crate::station::{Port, StationKey, TARGET_V4};
use crate::suite::{AnyGroup, Fixture, Group};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Commands that `make test` runs: one of each program over IPv6. The rest is for the nightly run, as tests/verbs has such
/// commands without a guest, and group clients-af_packet has a run of every program.
const QUICK: [&str; 3] = ["ucmatose -s IPV6 -c 4", "udaddy -s IPV6 -c 3", "cmtime -s IPV6 -c 100"];

/// A bed with a client that connects as ucmatose does and sends nothing: the service waits 15 s for it, the cases do not.
struct WithSilent {
    bed: TestBed,
    silent: Option<Job>,
}

impl Fixture for WithSilent {
    fn context(&self) -> String {
        self.bed.context()
    }

    fn settings(&self) -> &str {
        self.bed.settings()
    }
}

/// The groups `rdmacm-4200` and `rdmacm-1500`.
pub fn groups() -> Vec<AnyGroup> {
    [4200, 1500].map(group).into()
}

fn group(mtu: u32) -> AnyGroup {
    let needs = needs(StationKey::new(Port::Vhost, mtu));
    let mut group = Group::new(format!("rdmacm-{mtu}"), needs, move |env| {
        let bed = TestBed::start(env, BedConfig::new(Port::Vhost, mtu))?;
        let silent = bed.guest().start(&format!("silent_client {TARGET_V4} 7471 50"), LIMIT)?;
        Ok(WithSilent { bed, silent: Some(silent) })
    });
    let quick: &[&str] = if mtu > 1500 { &QUICK } else { &[] };
    let mut rows = |clients: Vec<Client>| {
        for client in clients {
            group.nightly(!quick.contains(&client.command()));
            client.case_in(&mut group, |with| &mut with.bed);
        }
    };
    rows(ucmatose());
    rows(cmtime());
    rows(udaddy(mtu));
    group.nightly(quick.is_empty());
    group.case("a ucmatose is killed, the next one works", |with| {
        // It sends enough messages to be running still when it is killed.
        client::kill_at_work(&with.bed, &format!("ucmatose -s {TARGET_V4} -C 16000 -S 1"))?;
        with.bed.count("ucmatose", 1, 0);
        Client::new("ucmatose -s IPV4", UCMATOSE).counts("ucmatose", 1, 1).run_counted(&mut with.bed)
    });
    group.case("a client that connects as ucmatose and sends nothing is disconnected", |with| {
        let silent = with.silent.take().ok_or("no silent client")?;
        silent.wait()?.expect(0, &["connected", "given up"])?;
        with.bed.count("ucmatose", 1, 0);
        Ok(())
    });
    group.case("the target still runs and counts", |with| {
        let summary = with.bed.stop_target()?;
        let ucmatose = [with.bed.counted("ucmatose"), vec!["idle_ended=1".to_owned()]].concat();
        expect_counters(&summary, "ucmatose", &ucmatose)?;
        expect_counters(&summary, "udaddy", &with.bed.counted("udaddy"))?;
        expect_counters(&summary, "cmtime", &with.bed.counted("cmtime"))
    });
    group.build()
}

fn ucmatose() -> Vec<Client> {
    let mut clients = Vec::new();
    for ip in ["IPV4", "IPV6"] {
        // Messages in one packet and in several, one, many; several connections.
        let flags = [
            ("", 1),
            (" -C 3 -S 33", 1),
            (" -C 1 -S 1", 1),
            (" -C 3 -S 33333", 1),
            (" -C 100 -S 2000", 1),
            (" -c 4", 4),
        ];
        for (flags, connections) in flags {
            let client = Client::new(format!("ucmatose -s {ip}{flags}"), UCMATOSE);
            clients.push(client.counts("ucmatose", connections, connections));
        }
        let none = Client::new(format!("ucmatose -s {ip} -C 0"), Wants::Texts(&["return status 0"]));
        clients.push(none.counts("ucmatose", 1, 1));
    }
    clients
}

fn udaddy(mtu: u32) -> Vec<Client> {
    let largest = if mtu > 1500 { 4096 } else { 1024 };
    let mut clients = Vec::new();
    for ip in ["IPV4", "IPV6"] {
        let flags = [
            (String::new(), 1, 10),
            (" -C 1 -S 1".to_owned(), 1, 1),
            (format!(" -C 100 -S {largest}"), 1, 100),
            (" -c 3".to_owned(), 3, 30),
        ];
        for (flags, connections, exchanges) in flags {
            let client = Client::new(format!("udaddy -s {ip}{flags}"), UDADDY);
            clients.push(client.counts("udaddy", connections, exchanges));
        }
    }
    clients
}

fn cmtime() -> Vec<Client> {
    let clients = ["IPV4", "IPV6"].into_iter().flat_map(|ip| [1, 100, 1000].map(|count| (ip, count)));
    let client =
        |(ip, count)| Client::new(format!("cmtime -s {ip} -c {count}"), Wants::Steps).counts("cmtime", count, count);
    clients.map(client).collect()
}
