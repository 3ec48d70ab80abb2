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

/// READs about 1,000 times a second while another thread does `work`. Each READ must find `bytes`.
fn read_during(initiator: &mut Initiator, connection: &mut Connection, bytes: &[u8], work: impl FnOnce() + Send) {
    let began = Instant::now();
    let mut reads = 0_u32;
    thread::scope(|scope| {
        let work = scope.spawn(work);
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
    assert!(reads > 100, "{reads} READs show nothing");
}

/// The entry of `list` with this name.
fn named(list: &Value, name: &str) -> Option<Value> {
    list.as_array().unwrap().iter().find(|entry| entry["name"] == name).cloned()
}

fn refuses(target: &Target, words: &str, sentence: &str) {
    refused(rxe_ctl().args(["--file-prefix", &target.prefix]).args(words.split(' ')), sentence);
}

#[test]
fn regions_come_and_go_while_others_are_read() {
    alone("manage::regions_come_and_go_while_others_are_read", "", &[], |initiator, target| {
        let bytes: Vec<u8> = (0..512).map(|at: u32| (at * 7 >> 2) as u8).collect();
        let mut reader = initiator.connect(PORT, "demo", PathMtu::Mtu4096);
        reader.write(initiator, 0, &bytes);
        let shm = format!("/dev/shm/rxe-ports-{}-added", std::process::id());
        read_during(initiator, &mut reader, &bytes, || {
            for round in 0..3 {
                ctl(&target, "region add added=64K");
                ctl(&target, &format!("region add filed=64K,read-only,domain=d,file={shm}"));
                ctl(&target, "region add many=4K*1000,domain=d");
                let regions = json(&target, "region list");
                let names: Vec<&str> =
                    regions.as_array().unwrap().iter().map(|region| region["name"].as_str().unwrap()).collect();
                assert_eq!(names, ["demo", "added", "filed", "many"], "round {round}");
                assert_eq!(named(&regions, "many").unwrap()["count"], 1000);
                assert!(std::fs::exists(&shm).unwrap());
                for name in ["many", "added", "filed"] {
                    ctl(&target, &format!("region remove {name}"));
                }
                assert!(!std::fs::exists(&shm).unwrap(), "the file is the region's");
            }
        });
        assert_eq!(json(&target, "mr").as_array().unwrap().len(), 1);

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

        // Its protection domain goes with the next one. Memory of the same name is fresh.
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
        assert_eq!(crate::counter(&summary, "services", "regions_left"), 0);
    });
}
