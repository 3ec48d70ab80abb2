//! A client on the other end of a veth pair, whose target loses its interface, is stopped, and is killed.

use std::time::{Duration, Instant};

use rxe_dpdk::eal::{Eal, Port, PortConfig, PortQueues};
use rxe_dpdk::rxe_proto::transport::WcStatus;
use rxe_dpdk::rxe_proto::wire::PathMtu;
use rxe_testkit::child::ip;
use rxe_testkit::process::Streams;
use rxe_testkit::recovery::{Fault, INTERFACE_DOWN, PROCESS_STOPPED, TARGET_KILLED, recovered};

use super::PORT;
use crate::initiator::{Connection, Initiator};
use crate::output::with_pair;
use crate::veth::{PATIENCE, VethTarget, eventually};
use crate::{MTU, pattern};

/// Bytes of the region.
const LEN: usize = 64 << 10;

/// The client's end of the pair is a port of this process.
fn with_client(target: &str, body: impl FnOnce(&mut Initiator)) {
    // The kernel must not answer for the client.
    ip("addr flush dev rxb");
    let id = std::process::id();
    let args = format!(
        "-l 1 --in-memory --no-pci --no-telemetry --file-prefix {id}w \
         --vdev=net_af_packet0,iface=rxb,blocksz=65536,framesz=8192,framecnt=256"
    );
    let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
    let eal = Eal::init(&args).unwrap();
    let info = eal.ports().remove(0);
    let mut port = Port::configure(&eal, info.id, &PortConfig { mtu: MTU, ..PortConfig::default() }).unwrap();
    let PortQueues { mut rx, mut tx } = port.start().unwrap();
    let link = (rx.remove(0), tx.remove(0));
    let mut initiator = Initiator::new(&eal, &port, link, target.parse().unwrap());
    // 1.07 s, eight times.
    initiator.ack_timeout = 18;
    body(&mut initiator);
}

/// A WRITE of the whole region during a fault, which lasts for a time and then ends.
fn write_during(
    initiator: &mut Initiator,
    connection: &mut Connection,
    (fault, seed): (&Fault, u8),
    time: Duration,
    end: impl FnOnce(),
) {
    let bytes = pattern(LEN, seed);
    let write = connection.post_write(initiator, 0, &bytes);
    initiator.turn_for(time);
    end();
    let ended = Instant::now();
    assert_eq!(write.finish(initiator).0, WcStatus::Success, "{}", fault.name);
    recovered(fault, ended.elapsed());
    assert!(connection.read(initiator, 0, LEN) == bytes, "{}", fault.name);
}

#[test]
fn faults_of_the_interface_and_of_the_target_lose_no_byte() {
    with_pair(|| {
        let options = ["--mtu", "4200"];
        let start = || VethTarget::start("x", Streams::default(), &options);
        let target = start();
        target.prints("ready ");
        let mac = target.port().mac;
        with_client(&mac, |initiator| {
            let mut connection = initiator.connect(PORT, "demo", PathMtu::Mtu4096);

            let down = "port 0 (net_af_packet0) is DOWN: interface rxa is down";
            ip("link set rxa down");
            write_during(initiator, &mut connection, (&INTERFACE_DOWN, 1), Duration::from_secs(1), || {
                ip("link set rxa up");
            });
            eventually("the reports of the link", || {
                let log = target.program.stderr();
                let up = log.iter().skip_while(|line| !line.contains(down)).any(|line| line.contains("is ACTIVE"));
                up && target.port().up
            });

            target.program.signal("STOP").unwrap();
            write_during(initiator, &mut connection, (&PROCESS_STOPPED, 2), Duration::from_secs(4), || {
                target.program.signal("CONT").unwrap();
            });
            // Several looks of the watchdog.
            initiator.turn_for(Duration::from_secs(1));
            assert_eq!(target.counter("worker", "stalls"), 0);
            assert!(!target.program.stderr().iter().any(|line| line.contains("stalls")), "{}", target.program.tail());

            killed(initiator, connection, target, start);
        });
    });
}

/// The target is killed and started again. Its client does not wait until it is ready.
fn killed(initiator: &mut Initiator, old: Connection, mut target: VethTarget, start: impl Fn() -> VethTarget) {
    target.program.signal("KILL").unwrap();
    let killed = Instant::now();
    target.program.wait(PATIENCE).unwrap().expect("its end");
    let mut again = start();
    let mut connection = loop {
        match initiator.try_connect(PORT, "demo", PathMtu::Mtu4096) {
            Ok(connection) => break connection,
            Err(rej) => assert!(killed.elapsed() < 4 * PATIENCE, "{rej:?}: {}", again.program.tail()),
        }
    };
    assert!(connection.read(initiator, 0, LEN) == pattern(LEN, 2), "the bytes from before");
    recovered(&TARGET_KILLED, killed.elapsed());
    // The new process knows nothing of the connection to the old one, and answers its end all the same.
    old.disconnect(initiator);
    connection.write(initiator, 0, b"after");
    connection.disconnect(initiator);
    assert_eq!(again.terminate().code(), Some(0));
    again.prints("mbufs_leaked=0");
}
