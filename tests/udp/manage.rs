//! A running target and its operator: the commands of rxe-ctl, and a scrape.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use rxe_testkit::pcapng;
use rxe_testkit::process::Program;

use crate::{LIMIT, Target, address, contains, folder, program};

/// A client that writes without end.
fn client(target: &Target, words: &str) -> Program {
    let words = format!("write-lat -s 64 --udp {} --peer {} --run_infinitely -D 0.2 {words}", address(), target.ip);
    let client = Program::start(&mut program("rxe-bench", &words)).unwrap();
    client.wait_for(LIMIT, |text| (text.lines().count() > 2).then_some(())).unwrap();
    client
}

#[test]
fn every_command_of_rxe_ctl_works() {
    let metrics = folder().join("metrics.sock");
    let target = Target::start(&format!("--region demo=4M --metrics unix:{}", metrics.display()));
    contains(&target.ready, &[&format!("addresses={} ", target.ip), "path_mtu=4096", "lcores=1"]);
    let events = Program::start(&mut program("rxe-ctl", &format!("--file-prefix udp-{} events", target.ip))).unwrap();
    // It has its subscription when the first event comes.
    while events.stdout().is_empty() {
        target.ctl("fault add drop --opcode SEND --count 1");
        target.ctl("fault clear");
    }
    let client = client(&target, "");

    let device = target.json("devinfo");
    let port = &device["ports"][0];
    assert_eq!(
        (&port["driver"], &port["netdev"], &port["up"]),
        (&"udp".into(), &"lo".into(), &true.into()),
        "{device}"
    );
    assert_eq!(port["addresses"][0], target.ip.to_string());
    contains(
        &target.ctl("link --details"),
        &["state ACTIVE", "netdev lo", "driver udp", "path_mtu 4096", "rx_frames "],
    );
    assert_ne!(device["node_guid"], "0200:00ff:fe00:0000", "it does not derive from a MAC address of zeros");

    let qps = target.json("qp");
    assert_eq!(
        (&qps[0]["state"], &qps[0]["service"], &qps[0]["udp_src_port"]),
        (&"RTS".into(), &"region".into(), &4791.into())
    );
    let qpn = qps[0]["lqpn"].as_u64().unwrap();
    contains(&target.ctl(&format!("qp {qpn}")), &["state         RTS"]);
    contains(&target.ctl("connections"), &["established", "region"]);
    assert_eq!(target.json("mr")[0]["name"], "demo");
    assert_eq!(target.json("resource")[0]["qp"], 1);
    let stat = target.json("stat");
    assert!(
        stat["hw_counters"]["rcvd_pkts"].as_u64() > Some(0) && stat["udp"]["rcvd_packets"].as_u64() > Some(0),
        "{stat}"
    );
    contains(&target.ctl("top --once"), &["region"]);
    contains(&target.ctl("services"), &["region", "rping"]);
    contains(&target.ctl("stat latency"), &["turns of lcore 0"]);
    assert!(target.ctl("drops").lines().count() > 0);

    // Regions come and go.
    target.ctl("region add extra=64K");
    assert_eq!(target.json("mr").as_array().unwrap().len(), 2);
    assert_eq!(target.measure("read-bw -s 512 -n 20 --region extra --verify")["end"], "complete");
    target.ctl("region remove extra");
    assert_eq!(target.json("region list").as_array().unwrap().len(), 1);

    // The address belongs to the kernel.
    contains(
        &target.refusal("address add 10.0.0.1/24"),
        &["port0 is a UDP socket, which has one address: start another target with --udp 10.0.0.1"],
    );
    contains(&target.refusal(&format!("address remove {}", target.ip)), &["is the only address of port0"]);
    contains(&target.ctl("address list"), &[&target.ip.to_string()]);
    contains(&target.ctl("config dump"), &[&format!("udp = \"{}\"", target.ip)]);

    // A capture has frames of both directions, with headers.
    let file = folder().join("run/capture.pcapng");
    target.ctl(&format!("capture start {}", file.display()));
    while target.json("capture status")["frames"].as_u64() < Some(20) {}
    target.ctl("capture stop");
    let packets = pcapng::read(&file).packets;
    let sent = packets.iter().filter(|packet| packet.sent).count();
    assert!(packets.len() >= 20 && sent > 0 && sent < packets.len(), "{sent} of {}", packets.len());

    // Packets are lost in both directions, and the client goes on.
    for rule in ["drop", "drop --direction tx", "duplicate --direction tx", "delay 1ms"] {
        target.ctl(&format!("fault add {rule} --probability 0.05"));
    }
    let hits = |target: &Target| -> Vec<u64> {
        target.json("fault list").as_array().unwrap().iter().map(|fault| fault["hits"].as_u64().unwrap()).collect()
    };
    while hits(&target).contains(&0) {}
    let first = target.json("fault list")[0]["id"].as_u64().unwrap();
    target.ctl(&format!("fault remove {first}"));
    assert_eq!(hits(&target).len(), 3);
    target.ctl("fault clear");
    assert!(hits(&target).is_empty());

    let mut scrape = UnixStream::connect(&metrics).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    scrape.read_to_string(&mut text).unwrap();
    contains(
        &text,
        &["rxe_udp_rcvd_packets_total{port=\"0\"} ", "# HELP rxe_udp_rcvd_packets_total RoCE packets received."],
    );

    let seen = |text: &str| (text.contains("connected") && text.contains("fault")).then_some(());
    events.wait_for(LIMIT, seen).unwrap();
    target.ctl(&format!("disconnect {qpn}"));
    drop(client);
    let totals = target.stop();
    contains(&totals, &["\nrx_fault: ", "\ntx_fault: ", "\ncapture: captured="]);
}

#[test]
fn a_target_that_is_drained_ends_when_its_last_client_is_gone() {
    let mut target = Target::start("");
    let client = client(&target, "");
    let mut drain =
        Program::start(&mut program("rxe-ctl", &format!("--file-prefix udp-{} drain 300", target.ip))).unwrap();
    while target.json("devinfo")["draining"] != true {}
    let refused = crate::run("rxe-bench", &format!("write-bw -n 1 --udp {} --peer {}", address(), target.ip));
    assert_ne!(refused.code, 0, "{}", crate::told(&refused));
    client.signal("INT").unwrap();
    let done = target.program.finish(LIMIT).unwrap();
    assert_eq!(done.code, 0, "{}", crate::told(&done));
    assert_eq!(drain.finish(LIMIT).unwrap().code, 0);
}
