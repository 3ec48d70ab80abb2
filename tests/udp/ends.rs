//! The end of a target: with clients, and without.

use rxe_testkit::process::Program;

use crate::{LIMIT, Target, address, contains, program};

#[test]
fn a_target_that_is_stopped_disconnects_its_clients_and_prints_its_counters() {
    let target = Target::start("");
    let words = format!("write-lat --udp {} --peer {} --run_infinitely", address(), target.ip);
    let mut client = Program::start(&mut program("rxe-bench", &words)).unwrap();
    client.wait_for(LIMIT, |text| (text.lines().count() > 2).then_some(())).unwrap();
    let totals = target.stop();
    contains(&totals, &["port0: rx_frames=", "\nworker: turns=", "\ncm: ", "\nudp: "]);
    let end = client.finish(LIMIT).unwrap();
    assert_eq!(end.code, 1, "{}", end.stderr);
    contains(&end.stderr, &["the peer disconnected"]);
}

/// An idle target sleeps: it turns its loop ten times a second to look at limits that have no timer.
#[test]
fn an_idle_target_sleeps() {
    let target = Target::start("");
    let turns = |target: &Target| target.json("stat worker --delta 1")["worker"]["turns"].as_u64().unwrap();
    // The requests themselves wake it, and a busy machine makes the interval longer.
    assert!(turns(&target) < 1000, "{}", turns(&target));
}
