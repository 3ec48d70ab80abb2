//! rxe-bench prints what it has measured, however the run ends: after a signal, and when the target is gone.

use std::time::{Duration, Instant};

use rxe_testkit::process::{Finished, Program};
use serde_json::Value;

use super::bench::{LIMIT, bench, told};
use super::{Target, lacking};

/// Both ends of a run that lasts until something ends it.
const ENDS: &str = "--address 10.77.0.2/24 --peer 10.77.0.1";

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Waits for a line of progress on standard error, after the first message. Runs without a warm-up have measured it.
fn wait_for_progress(program: &mut Program) {
    let began = Instant::now();
    while !program.stderr().iter().any(|line| line.contains(" messages, ")) {
        assert!(program.is_running() && began.elapsed() < LIMIT, "no progress: {}", program.tail());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that something was measured for a shorter time than planned, and how it ended.
fn ended(done: &Finished, code: i32, end: &str) -> Value {
    assert_eq!(done.code, code, "{}", told(done));
    assert!(!done.stdout.contains('\u{1b}') && !done.stderr.contains('\u{1b}'), "no terminal: {}", told(done));
    let value = json(&done.stdout);
    assert_eq!(value["end"], end, "{value}");
    let seconds = value["seconds"].as_f64().unwrap();
    assert!(value["messages"].as_u64() > Some(0) && seconds > 0.0 && seconds < 3600.0, "{value}");
    assert!(value["msg_rate_peak"].as_f64() >= value["msg_rate"].as_f64(), "{value}");
    // The same sentence for people and programs.
    let error = value["error"].as_str().unwrap_or_else(|| panic!("no error in {value}"));
    assert!(done.stderr.contains(&format!("rxe-bench: {error}\n")), "{}", told(done));
    value
}

/// Rows of the table: first column and all others.
fn rows(text: &str) -> Vec<Vec<String>> {
    let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    text.lines().map(columns).filter(|row| row.first().is_some_and(|first| first == "64") && row.len() == 5).collect()
}

#[test]
fn rxe_bench_prints_what_it_has_measured_however_it_ends() {
    if let Some(why) = lacking() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
        eprintln!("SKIPPED: {why}");
        return;
    }
    let id = std::process::id();
    let temporary = std::env::temp_dir();
    let socket = temporary.join(format!("rxe-ports-{id}-ends.sock")).display().to_string();
    let target = Target::start(&format!("{id}e"), &format!("net_vhost0,iface={socket},queues=1"), "0", "", &[]);
    let start = |words: &str| Program::start(&mut bench(&socket, &format!("{words} {ENDS}"))).unwrap();

    // Endless: rows, the result of the whole run, and success.
    let file = temporary.join(format!("rxe-ports-{id}-ends.json"));
    let words = format!("write-bw -s 64 -q 2 -t 16 --run_infinitely -D 0.2 --warm-up 0 --out_json {}", file.display());
    let mut program = start(&words);
    program.wait_for(LIMIT, |text| (rows(text).len() >= 2).then_some(())).unwrap_or_else(|error| panic!("{error}"));
    let done = program.stop(LIMIT).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(done.code, 0, "{}", told(&done));
    let rows = rows(&done.stdout);
    let messages: Vec<u64> = rows.iter().map(|row| row[1].parse().unwrap()).collect();
    let (all, intervals) = messages.split_last().unwrap();
    assert!(*all > 0 && *all >= intervals.iter().sum(), "{}", told(&done));
    for line in [" Peer              : 10.77.0.1:4792", " TX depth          : 16", " Path MTU          : 4096 bytes"] {
        assert_eq!(done.stdout.matches(line).count(), 2, "before the rows and the whole: {line}: {}", told(&done));
    }
    assert!(done.stdout.contains(" Retransmitted     : "), "{}", told(&done));
    let value = json(&std::fs::read_to_string(&file).unwrap());
    let _ = std::fs::remove_file(&file);
    assert_eq!((&value["end"], value["messages"].as_u64()), (&"interrupted".into(), Some(*all)), "{value}");
    assert_eq!(value["parameters"]["peer"], "10.77.0.1:4792", "{value}");
    assert!(value["retransmissions"]["packets"].is_u64() && value.get("error").is_none(), "{value}");

    // A signal 2 of 10 seconds after the start: the result is of these 2 seconds.
    let began = Instant::now();
    let mut program = start("write-lat -s 64 -D 10 --warm-up 0 --out_json -");
    wait_for_progress(&mut program);
    let cut = Duration::from_secs(2);
    std::thread::sleep(cut);
    program.signal("INT").unwrap_or_else(|error| panic!("{error}"));
    let value = ended(&program.finish(LIMIT).unwrap_or_else(|error| panic!("{error}")), 1, "interrupted");
    let seconds = value["seconds"].as_f64().unwrap();
    assert!((cut.as_secs_f64()..began.elapsed().as_secs_f64()).contains(&seconds), "{value}");
    assert_eq!(value["parameters"]["duration"], 10.0, "{value}");
    assert!(value["lat_us"]["stdev"].is_f64(), "{value}");

    // The target ends.
    let mut program = start("write-bw -s 64 -D 3600 --warm-up 0 --out_json -");
    wait_for_progress(&mut program);
    target.stop();
    ended(&program.finish(LIMIT).unwrap_or_else(|error| panic!("{error}")), 1, "failed");
    let _ = std::fs::remove_file(&socket);
}
