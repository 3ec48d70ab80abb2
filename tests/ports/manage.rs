//! A target that is changed while a client READs: the client notices nothing.

use std::thread;
use std::time::{Duration, Instant};

use rxe_dpdk::rxe_proto::transport::WcStatus;
use rxe_dpdk::rxe_proto::wire::PathMtu;
use rxe_dpdk::rxe_proto::wire::cm::RejReason;
use serde_json::Value;

use crate::Target;
use crate::alone::alone;
use crate::initiator::{Connection, Initiator};
use crate::operate::{contains, ctl, json, refused, rxe_ctl};

/// The port of the `region` service.
const PORT: u16 = 4792;
/// Interval of READs.
const INTERVAL: Duration = Duration::from_millis(1);

/// READs about 1,000 times a second while another thread repeats `work` for a second, three times at least. Each READ must
/// find `bytes`.
pub fn read_during(
    initiator: &mut Initiator,
    connection: &mut Connection,
    bytes: &[u8],
    mut work: impl FnMut() + Send,
) {
    let began = Instant::now();
    let mut reads = 0_u32;
    thread::scope(|scope| {
        let work = scope.spawn(move || {
            let mut rounds = 0;
            while rounds < 3 || began.elapsed() < Duration::from_secs(1) {
                work();
                rounds += 1;
            }
        });
        while !work.is_finished() {
            assert_eq!(connection.read(initiator, 0, bytes.len()), bytes);
            reads += 1;
            let next = began + INTERVAL * reads;
            initiator.turn_for(next.saturating_duration_since(Instant::now()));
        }
        work.join().unwrap();
    });
    let rate = f64::from(reads) / began.elapsed().as_secs_f64();
    eprintln!("{reads} READs, {rate:.0} a second, none failed");
    assert!(reads > 500, "{reads} READs show nothing");
}

/// The entry of `list` with this name.
pub fn named(list: &Value, name: &str) -> Option<Value> {
    list.as_array().unwrap().iter().find(|entry| entry["name"] == name).cloned()
}

pub fn refuses(target: &Target, words: &str, sentence: &str) {
    refused(rxe_ctl().args(["--file-prefix", &target.prefix]).args(words.split(' ')), sentence);
}

#[test]
fn regions_come_and_go_while_others_are_read() {
    alone("manage::regions_come_and_go_while_others_are_read", "", &[], |initiator, target| {
        let bytes: Vec<u8> = (0..512).map(|at: u32| (at * 7 / 4) as u8).collect();
        let mut reader = initiator.connect(PORT, "demo", PathMtu::Mtu4096);
        reader.write(initiator, 0, &bytes);
        let keys = || json(&target, "mr").as_array().unwrap().len();
        let before = keys();
        let shm = format!("/dev/shm/rxe-ports-{}-added", std::process::id());
        read_during(initiator, &mut reader, &bytes, || {
            ctl(&target, "region add added=64K");
            ctl(&target, &format!("region add filed=64K,read-only,domain=d,file={shm}"));
            ctl(&target, "region add many=4K*1000,domain=d");
            let regions = json(&target, "region list");
            let names: Vec<&str> =
                regions.as_array().unwrap().iter().map(|region| region["name"].as_str().unwrap()).collect();
            assert_eq!(names, ["demo", "added", "filed", "many"]);
            assert_eq!(named(&regions, "many").unwrap()["count"], 1000);
            assert!(std::fs::exists(&shm).unwrap());
            for name in ["many", "added", "filed"] {
                ctl(&target, &format!("region remove {name}"));
            }
            assert!(!std::fs::exists(&shm).unwrap(), "the file is the region's");
        });
        assert_eq!(keys(), before);

        // A region that was added is like one of the start.
        ctl(&target, "region add late=64K");
        let mut late = initiator.connect(PORT, "late", PathMtu::Mtu4096);
        assert_eq!(late.region_len(), 64 << 10);
        late.write(initiator, 100, b"late");
        assert_eq!(late.read(initiator, 100, 4), b"late");
        let resources = || json(&target, "resource")[0]["pd"].clone();
        let before = resources();
        let listed = named(&json(&target, "region list"), "late").unwrap();
        assert_eq!((&listed["users"], &listed["size"]), (&1.into(), &65_536.into()));
        contains(&ctl(&target, "region list"), &["late     1    65536    1  -\n"]);
        contains(&ctl(&target, "mr"), &["late"]);

        // In use, it stays; by force it goes, and its client's next request is refused.
        refuses(&target, "region remove late", "1 queue pairs can reach the region 'late'");
        assert_eq!(late.read(initiator, 100, 4), b"late");
        ctl(&target, "region remove late --force");
        assert_eq!(late.refused_read(initiator, 100, 4), WcStatus::RemAccessErr);
        late.await_disconnect(initiator);
        let rej = initiator.refused_connect(PORT, "late").expect("an answer");
        assert_eq!(rej.reason, RejReason::ConsumerDefined);
        assert!(rej.private_data.starts_with(b"unknown region 'late'; known: demo\0"));
        assert!(named(&json(&target, "region list"), "late").is_none());

        // Its protection domain is destroyed with that of the next region. Memory of the same name is new.
        ctl(&target, "region add late=64K");
        let mut late = initiator.connect(PORT, "late", PathMtu::Mtu4096);
        assert_eq!(late.read(initiator, 100, 4), [0; 4]);
        late.disconnect(initiator);
        initiator.wait_for(|| named(&json(&target, "region list"), "late").unwrap()["users"] == 0);
        ctl(&target, "region remove late");
        assert_eq!(resources().as_u64(), before.as_u64().map(|before| before - 1));

        for (words, sentence) in [
            ("region add demo=1M", "the region 'demo' is given twice"),
            ("region add x=1Q", "'1Q' is not a size"),
            ("region add x=1M,file=here", "the file 'here' of the region 'x' is named by a relative path"),
            ("region add x=1K*70000", "at most 65536 numbered regions can be added to a running target"),
            ("region add x=1M,file=/nonexistent/x", "the region 'x' cannot be added: /nonexistent/x: cannot "),
            ("region add x=900G", "the region 'x' cannot be added: no DPDK memory for "),
            ("region remove y", "there is no region 'y': rxe-ctl region list shows the regions"),
        ] {
            refuses(&target, words, sentence);
        }
        assert_eq!(json(&target, "region list").as_array().unwrap().len(), 1);
        assert_eq!(reader.read(initiator, 0, bytes.len()), bytes);
        reader.disconnect(initiator);
        let summary = target.stop();
        assert_eq!(crate::counter(&summary, "service", "regions_left"), 0);
    });
}

#[test]
fn services_stop_and_peers_change_while_others_are_read() {
    let name = "manage::services_stop_and_peers_change_while_others_are_read";
    alone(name, "", &[], |initiator, target| {
        let bytes = [7; 256];
        let mut reader = initiator.connect(PORT, "demo", PathMtu::Mtu4096);
        reader.write(initiator, 0, &bytes);
        read_during(initiator, &mut reader, &bytes, || {
            // The reader's own service goes on with the clients that it has, whoever they are.
            for words in [
                "service stop region",
                "service start region",
                "service stop rping --force",
                "service start rping",
                "peers set service:region 10.99.0.0/16",
                "peers set region:demo 10.99.0.0/16 fd00::/8",
                "peers set port0 10.77.0.0/16",
                "peers set port0",
            ] {
                ctl(&target, words);
            }
        });
        let stopped = |service: &str| named(&json(&target, "service list"), service).unwrap()["stopped"].clone();
        let refusal = |initiator: &mut Initiator| {
            let rej = initiator.refused_connect(PORT, "demo").expect("an answer");
            assert_eq!(rej.reason, RejReason::ConsumerDefined);
            let end = rej.private_data.iter().position(|byte| *byte == 0).unwrap_or(rej.private_data.len());
            String::from_utf8(rej.private_data[..end].to_vec()).unwrap()
        };

        // The lists that are left.
        let of = |name: &str| {
            let lists = json(&target, "peers list");
            let list = lists.as_array().unwrap().iter().find(|list| list["of"] == name).unwrap().clone();
            list["peers"].clone()
        };
        assert_eq!(of("port0"), serde_json::json!([]));
        assert_eq!(of("region:demo"), serde_json::json!(["10.99.0.0/16", "fd00::/8"]));
        contains(&ctl(&target, "region list"), &["peers=10.99.0.0/16|fd00::/8,file="]);
        assert_eq!(refusal(initiator), "this service does not serve your address");
        ctl(&target, "peers set service:region");
        assert_eq!(refusal(initiator), "the region 'demo' does not serve your address");
        ctl(&target, "peers set region:demo 10.77.0.2");

        // A service that was stopped.
        ctl(&target, "service stop region");
        assert_eq!((stopped("region"), stopped("rping")), (true.into(), false.into()));
        assert_eq!(refusal(initiator), "this service is stopped");
        ctl(&target, "service start region");
        let _second = initiator.connect(PORT, "demo", PathMtu::Mtu4096);
        ctl(&target, "service stop pingpong");
        assert_eq!(stopped("perftest"), true, "they share a port");

        // A port's list is for connections too: no packet of ours is served until it is changed again.
        let dropped = || json(&target, "stat --all")["drop"]["peer_not_allowed"].as_u64().unwrap();
        ctl(&target, "peers set port0 10.77.0.66");
        let read = reader.post_read(initiator, 0, 8);
        initiator.turn_until(|| dropped() > 0);
        ctl(&target, "peers set port0 10.77.0.0/24");
        assert_eq!(read.finish(initiator), (WcStatus::Success, vec![7; 8]), "its repetition is served");

        for (words, sentence) in [
            (
                "service stop dance",
                "the target does not run the service 'dance': rxe-ctl service list shows the services",
            ),
            (
                "peers set rping 10.0.0.0/8",
                "'rping' has no list of peers: write port0 (or another number), service:NAME",
            ),
            ("peers set port7", "there is no port7: the target has 1 port(s), of which the first is port0"),
            ("peers set region:x", "there is no region 'x': rxe-ctl region list shows the regions"),
            ("peers set port0 10.0.0/24", "'10.0.0/24' is not a network"),
        ] {
            refuses(&target, words, sentence);
        }

        // The clients of a service that is stopped by force are disconnected.
        ctl(&target, "service stop region --force");
        for _ in 0..2 {
            initiator.await_any_disconnect();
        }
        target.stop();
    });
}
