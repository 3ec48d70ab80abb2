//! A few runs of every client program: over net_af_packet, on a wire that loses frames, many at the same time, and for as
//! long as they go without flags.

use crate::Check;
use crate::bed::{BedConfig, TestBed, needs};
use crate::client::{self, Client, RDMA_EXAMPLE, Rows, UCMATOSE, UDADDY, Wants};
use crate::station::{Port, StationKey};
use crate::suite::{AnyGroup, Group, Needs};
use std::time::Duration;

/// For all of many clients together.
const TOGETHER: Duration = Duration::from_secs(400);
/// The share of frames that is lost in each direction. Frames of TCP are not: the kernel would wait for a second.
const LOSS: &str = "rx.drop=0.01,tx.drop=0.01,seed=11";
/// Clients of pingpong, which end without a message, are forgotten after this time.
const PINGPONG_IDLE: Duration = Duration::from_secs(12);

/// The group `clients-af_packet` and, nightly, `clients-lossy`, `clients-64` and `clients-long`.
pub fn groups() -> Vec<AnyGroup> {
    vec![over_af_packet(), lossy(), many(), long_runs()]
}

fn over_af_packet() -> AnyGroup {
    let needs = needs(StationKey::new(Port::AfPacket, 1500));
    let mut group =
        Group::new("clients-af_packet", needs, |env| TestBed::start(env, BedConfig::new(Port::AfPacket, 1500)));
    client::cases(&mut group, connected().into_iter().chain(unconnected()));
    group.case("the target ends well", |bed| ends_well(bed, &[]));
    group.build()
}

fn lossy() -> AnyGroup {
    let needs = Needs { alone: true, ..needs(StationKey::new(Port::Vhost, 4200)) };
    let mut group = Group::new("clients-lossy", needs, |env| {
        let more = ["--fault".to_owned(), LOSS.to_owned()];
        TestBed::start(env, BedConfig::new(Port::Vhost, 4200).arguments(&more))
    });
    group.nightly(true);
    client::cases(&mut group, connected());
    group.case("the target ends well", |bed| ends_well(bed, &["rx_fault: ", "tx_fault: "]));
    group.build()
}

/// Without flags to the end, and all sizes with the counts that a machine which is not emulated would be asked for.
fn long_runs() -> AnyGroup {
    let needs = needs(StationKey::new(Port::Vhost, 4200));
    let mut group = Group::new("clients-long", needs, |env| TestBed::start(env, BedConfig::new(Port::Vhost, 4200)));
    group.nightly(true);
    client::cases(&mut group, long().into_iter().map(Client::long));
    group.case("the target ends well", |bed| ends_well(bed, &[]));
    group.build()
}

/// The target ends with a summary that has these texts.
fn ends_well(bed: &mut TestBed, texts: &[&str]) -> Check {
    let summary = bed.stop_target()?;
    match texts.iter().chain(&["mbufs_leaked=0"]).find(|text| !summary.contains(**text)) {
        None => Ok(()),
        Some(missing) => Err(format!("no {missing:?} in the summary: {summary}")),
    }
}

/// One run or two of each program with connections, which no loss may break.
fn connected() -> Vec<Client> {
    let count = 100;
    let mut clients = vec![Client::pingpong("rc", 4, 4096, count, ""), Client::pingpong("srq", 4, 4096, count, "")];
    for (command, size) in [
        ("ib_send_lat", 2),
        ("ib_send_bw", 65536),
        ("ib_send_bw -b", 65536),
        ("ib_write_lat", 2),
        ("ib_write_bw", 65536),
        ("ib_read_lat", 2),
        ("ib_read_bw", 65536),
        ("ib_atomic_lat", 8),
        ("ib_atomic_bw", 8),
        ("ib_send_lat -z", 2),
        ("ib_write_bw -R", 65536),
    ] {
        clients.push(Client::perftest(&format!("{command} -n {count}"), Rows::One(size, count)));
    }
    for ip in ["IPV4", "IPV6"] {
        clients.push(Client::new(format!("rping -c -a {ip} -C 10 -v -V -S 4096"), Wants::Pings(10)));
    }
    clients.extend([
        Client::new("ucmatose -s IPV4", UCMATOSE),
        Client::new("cmtime -s IPV4 -c 20", Wants::Steps),
        Client::new("rdma_client -s IPV4", Wants::Texts(&["rdma_client: end 0"])),
        Client::new("rdma_xclient -s IPV4", Wants::Texts(&["rdma_xclient: end 0"])),
        Client::new("rdma_example_client -a IPV4 -s textstring", RDMA_EXAMPLE),
        Client::new("rstream -s IPV4 -S 4096 -C 10 -I 10 -T v", Wants::Custom),
        Client::new("riostream -s IPV4 -S 4096 -C 10 -I 10 -T v", Wants::Custom),
    ]);
    clients
}

/// The programs that a loss leaves waiting, or does not affect.
fn unconnected() -> Vec<Client> {
    vec![
        Client::pingpong("uc", 4, 1000, 200, ""),
        Client::pingpong("ud", 4, 1000, 200, ""),
        Client::perftest("ib_send_bw -c UD -n 200", Rows::One(1024, 200)),
        Client::perftest("ib_send_lat -c UC -n 200", Rows::One(2, 200)),
        Client::new("udaddy -s IPV4", UDADDY),
    ]
}

/// 64 sessions of nine kinds at the same time, after which nothing of them is left.
fn many() -> AnyGroup {
    let needs = Needs { alone: true, ..needs(StationKey::new(Port::Vhost, 4200)) };
    let mut group = Group::new("clients-64", needs, |env| {
        // None of them is ib_write_lat, and in so busy a guest others may be silent for as long.
        let text = "[service.perftest]\nwrite-lat-after = \"60s\"\n";
        TestBed::start(env, BedConfig::new(Port::Vhost, 4200).arguments(&env.config_file("sessions.toml", text)?))
    });
    group.nightly(true);
    group.case("64 sessions of mixed kinds at once", |bed| {
        let clients: Vec<Client> = (0..64).map(session).collect();
        client::at_once(bed, &clients, TOGETHER)
    });
    group.case("the target has given everything back", |bed| {
        std::thread::sleep(PINGPONG_IDLE);
        let summary = bed.stop_target()?;
        // Counters that are zero are not printed.
        let left = ["queue_pairs_left", "regions_left"].iter().any(|counter| summary.contains(counter));
        if left || !summary.contains("mbufs_leaked=0") { Err(summary) } else { Ok(()) }
    });
    group.build()
}

/// One of many sessions.
fn session(number: usize) -> Client {
    let messages = Rows::One;
    match number % 9 {
        0 => Client::pingpong("rc", 4, 4096, 20, " -e"),
        1 => Client::pingpong("srq", 4, 1024, 20, " -q 4 -r 20 -e"),
        2 => Client::pingpong("ud", 4, 1024, 20, " -e"),
        3 => Client::perftest("ib_send_lat -n 20 -e", messages(2, 20)),
        4 => Client::perftest("ib_send_bw -n 20 -e -s 16384", messages(16384, 20)),
        5 => Client::perftest("ib_write_bw -n 20 -s 16384", messages(16384, 20)),
        6 => Client::perftest("ib_read_bw -n 20 -e -s 16384", messages(16384, 20)),
        7 => Client::perftest("ib_atomic_lat -n 20 -e", messages(8, 20)),
        _ => Client::perftest("ib_send_bw -n 20 -e -s 1024 -z", messages(1024, 20)),
    }
}

/// The clients of `clients-long`.
fn long() -> Vec<Client> {
    let all = |command: &str, count| Client::perftest(command, Rows::All(8 << 20, count));
    // The latency of four sizes, then the bandwidth.
    const STREAM: &[&str] = &["64_lat", "4k_lat", "64k_lat", "1m_lat", "64_bw", "4k_bw", "64k_bw", "1m_bw"];
    vec![
        all("ib_send_lat -n 20 -a", 20),
        all("ib_send_lat -n 20 -a -R", 20),
        all("ib_send_bw -n 100 -a", 100),
        all("ib_send_bw -n 100 -a -b", 100),
        all("ib_write_bw -n 100 -a", 100),
        all("ib_write_lat -n 20 -a", 20),
        all("ib_read_bw -n 100 -a", 100),
        all("ib_read_lat -n 20 -a", 20),
        // With 512 receives each, the completion queue would be longer than rxe has them.
        // Messages of one packet: where packets get lost, a requester of Linux 6.1 can start a message of several again in its middle.
        Client::perftest("ib_send_bw -n 1000 -q 64 -r 256 -s 4096", Rows::One(4096, 64_000)),
        Client::perftest("ib_write_bw -b", Rows::One(65536, 5000)),
        Client::perftest("ib_write_bw -q 4", Rows::One(65536, 20_000)),
        Client::perftest("ib_read_bw -q 4", Rows::One(65536, 4000)),
        Client::perftest("ib_atomic_bw -q 4", Rows::One(8, 4000)),
        Client::new("rstream -s IPV4", Wants::Texts(STREAM)),
        Client::new("riostream -s IPV4", Wants::Texts(STREAM)),
    ]
}
