//! Congestion control between rxe-bench and rxe-target over vhost-user: a fault marks frames as a switch would.

use serde_json::Value;

use super::bench::measure;
use super::operate::{ctl, json};
use super::{Target, lacking};

/// Gb/s of a run.
fn gigabits(value: &Value) -> f64 {
    value["bw_gbps"].as_f64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn both_ends_send_less_while_frames_are_marked() {
    if let Some(why) = lacking() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
        eprintln!("SKIPPED: {why}");
        return;
    }
    let id = std::process::id();
    let socket = std::env::temp_dir().join(format!("rxe-ports-{id}-cnp.sock")).display().to_string();
    let target = Target::start(&format!("{id}cnp"), &format!("net_vhost0,iface={socket},queues=1"), "0", "", &[]);
    let counter = |name: &str| json(&target, "stat")["transport"][name].as_u64().unwrap();
    // WRITEs: the target sends notifications, rxe-bench follows them. READs: the other way round.
    for (test, mark) in
        [("write-bw", "--direction rx --opcode WRITE"), ("read-bw", "--direction tx --opcode READ_RESPONSE")]
    {
        let words = format!("{test} -s 65536 -q 2 -D 0.3");
        let free = gigabits(&measure(&socket, &words));
        ctl(&target, &format!("fault add ecn {mark}"));
        let marked = gigabits(&measure(&socket, &words));
        ctl(&target, "fault clear");
        assert!(marked > 0.0 && marked < free / 2.0, "{test}: {marked} Gb/s with marks, {free} without");
    }
    assert!(counter("cnps_sent") > 0 && counter("cnps_rcvd") > 0 && counter("rate_stalls") > 0);
    assert!(target.stop().iter().any(|line| line.contains("rate_stalls=")));
}
