//! Clients on net_virtio_user that are killed: one that never comes back, and one that is started again at once.

use std::process::Command;
use std::time::{Duration, Instant};

use rxe_dpdk::eal::{Eal, Port, PortConfig, PortQueues};
use rxe_dpdk::rxe_proto::wire::PathMtu;
use rxe_testkit::process::Program;
use rxe_testkit::recovery::{PEER_RESTART, POWER_CUT, recovered};

use super::PORT;
use crate::initiator::Initiator;
use crate::operate::{contains, json};
use crate::veth::{PATIENCE, eventually};
use crate::{MTU, Target, lacking};

const NAME: &str = "faults::peer::clients_that_are_killed_lose_nothing_and_hold_nothing";

/// Set in a client's process: its number, the vhost socket, and the target's MAC address.
const CLIENT: &str = "RXE_PORTS_CLIENT";

/// The bytes that client `number` writes.
fn bytes(number: u8) -> Vec<u8> {
    crate::pattern(100_000, number)
}

/// A client, until it is killed. It finds the bytes of the client before.
fn client(settings: &str) {
    let mut settings = settings.split(' ');
    let [number, socket, mac] = [(); 3].map(|()| settings.next().unwrap());
    let number: u8 = number.parse().unwrap();
    let prefix = format!("{}c", std::process::id());
    let args = ["-l", "1", "--in-memory", "--no-pci", "--no-telemetry", "--file-prefix", &prefix];
    let vdev = format!("--vdev=net_virtio_user0,path={socket},queue_size=1024,mac=52:54:00:00:00:21");
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).chain([vdev]).collect();
    let eal = Eal::init(&args).unwrap();
    let info = eal.ports().into_iter().find(|info| info.name == "net_virtio_user0").unwrap();
    let mut port = Port::configure(&eal, info.id, &PortConfig { mtu: MTU, ..PortConfig::default() }).unwrap();
    let began = Instant::now();
    let PortQueues { mut rx, mut tx } = port.start().unwrap();
    let link = (rx.remove(0), tx.remove(0));
    let mut initiator = Initiator::new(&eal, &port, link, mac.parse().unwrap());
    // As after a reboot: other communication ids, and the same queue pair number.
    initiator.number_ids(number);
    let mut connection = loop {
        // No answer, on a busy machine.
        if let Ok(connection) = initiator.try_connect(PORT, "demo", PathMtu::Mtu4096) {
            break connection;
        }
    };
    if number > 0 {
        let before = bytes(number - 1);
        assert!(connection.read(&mut initiator, 0, before.len()) == before, "the bytes of the client before");
    }
    println!("recovered {}", began.elapsed().as_millis());
    connection.write(&mut initiator, 0, &bytes(number));
    println!("written");
    loop {
        initiator.turn();
    }
}

/// Starts client `number`, and waits until it has written. Returns it, and how long it took to connect and read.
fn start(number: u8, socket: &str, mac: &str) -> (Program, Duration) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", NAME, "--nocapture"]).env(CLIENT, format!("{number} {socket} {mac}"));
    let client = Program::start(&mut command).unwrap();
    client.wait_for_line("written", 4 * PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    let lines = client.stdout();
    let millis = lines.iter().find_map(|line| line.strip_prefix("recovered ")).expect("the time");
    (client, Duration::from_millis(millis.parse().unwrap()))
}

/// The numbers of the target's queue pairs.
fn qps(target: &Target) -> Vec<u64> {
    json(target, "qp").as_array().unwrap().iter().map(|qp| qp["lqpn"].as_u64().unwrap()).collect()
}

#[test]
fn clients_that_are_killed_lose_nothing_and_hold_nothing() {
    if let Ok(settings) = std::env::var(CLIENT) {
        return client(&settings);
    }
    if let Some(why) = lacking() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
        eprintln!("SKIPPED: {why}");
        return;
    }
    let id = std::process::id();
    let socket = std::env::temp_dir().join(format!("rxe-ports-{id}-killed.sock")).display().to_string();
    let vdev = format!("net_vhost0,iface={socket},queues=1");
    let target = Target::start(&format!("{id}k"), &vdev, "0", "keep-alive = 1\n", &[]);

    let (client, _) = start(0, &socket, &target.mac);
    assert_eq!(qps(&target).len(), 1);
    client.signal("KILL").unwrap();
    let killed = Instant::now();
    eventually("no queue pair", || qps(&target).is_empty());
    recovered(&POWER_CUT, killed.elapsed());
    drop(client);
    contains(&target.log_line("peer_silent"), &["WARN", "region", "answered none of the probes"]);

    let (client, _) = start(1, &socket, &target.mac);
    let old = qps(&target);
    client.signal("KILL").unwrap();
    let (again, took) = start(2, &socket, &target.mac);
    recovered(&PEER_RESTART, took);
    contains(&target.log_line("the peer has lost it and requested a new one"), &["INFO", "disconnected", "region"]);
    eventually("one queue pair, and another one", || qps(&target).len() == 1 && qps(&target) != old);
    eventually("the entries of the connections of killed clients", || json(&target, "resource")[0]["conn"] == 1);
    drop((client, again));

    target.stop();
    let _ = std::fs::remove_file(socket);
}
