//! `rxe-ctl drain`: the target ends with its last client.

use std::time::Duration;

use rxe_dpdk::rxe_proto::wire::PathMtu;
use rxe_dpdk::rxe_proto::wire::cm::RejReason;
use rxe_testkit::process::{self, Program};

use crate::alone::alone;
use crate::operate::{json, rxe_ctl};

/// The port of the `region` service.
const PORT: u16 = 4792;

#[test]
fn a_drained_target_ends_with_its_last_client() {
    alone("drain::a_drained_target_ends_with_its_last_client", "", &[], |initiator, target| {
        let mut client = initiator.connect(PORT, "demo", PathMtu::Mtu4096);
        client.write(initiator, 0, b"before");
        assert_eq!(json(&target, "devinfo")["draining"], false);

        let mut drain = Program::start(rxe_ctl().args(["--file-prefix", &target.prefix, "drain", "300"])).unwrap();
        target.log_line("rxe-ctl drains the target: no new clients; it ends with the last one, or after 300 s");
        assert_eq!(json(&target, "devinfo")["draining"], true);
        let check =
            process::run(rxe_ctl().args(["--file-prefix", &target.prefix, "link", "--check"]), Duration::from_secs(90));
        let check = check.unwrap();
        assert_eq!((check.code, check.stderr.trim_end()), (1, "rxe-ctl: the target is being drained"));

        let rej = initiator.refused_connect(PORT, "demo").expect("an answer");
        assert_eq!(rej.reason, RejReason::NoResources);
        assert!(rej.private_data.starts_with(b"the target is ending, and takes no new clients"));
        assert_eq!(json(&target, "stat --all")["control"]["drain_refused"], 1);
        assert_eq!(client.read(initiator, 0, 6), b"before", "the client goes on");

        client.disconnect(initiator);
        target.log_line("drained: the last client is gone");
        let drained = drain.finish(Duration::from_secs(90)).unwrap();
        assert_eq!((drained.code, drained.stderr.as_str()), (0, ""));
        assert!(drained.stdout.starts_with("drained after "), "{}", drained.stdout);
        target.stop();
    });
}

#[test]
fn clients_that_are_left_at_the_deadline_are_disconnected() {
    alone("drain::clients_that_are_left_at_the_deadline_are_disconnected", "", &[], |initiator, target| {
        let client = initiator.connect(PORT, "demo", PathMtu::Mtu4096);
        let mut drain = Program::start(rxe_ctl().args(["--file-prefix", &target.prefix, "drain", "1"])).unwrap();
        client.await_disconnect(initiator);
        target.log_line("not drained in time: 1 queue pairs are left and are disconnected");
        let drained = drain.finish(Duration::from_secs(90)).unwrap();
        assert_eq!((drained.code, drained.stderr.as_str()), (0, ""));
        assert!(drained.stdout.contains("1 queue pairs were left and have been disconnected"), "{}", drained.stdout);
        target.stop();
    });
}
