//! `rxe-bench nvme` against the service nvmf of rxe-target, with every written block checked. Rates are not checked here.

use std::fs;
use std::time::{Duration, Instant};

use rxe_testkit::process::{Finished, Program};
use serde_json::Value;

use crate::{LIMIT, Target, address, folder, program, run, told};

const NQN: &str = "nqn.2026-01.org.example:udp";

/// A target with namespaces of 16 MiB: 1 with blocks of 4096 bytes, 2 with blocks of 512 bytes, 3 read-only.
fn target(name: &str) -> Target {
    let path = folder().join(format!("{name}.toml"));
    let namespace = |more: &str| format!("[[service.nvmf.subsystem.namespace]]\nram = \"16M\"\n{more}\n");
    let config = format!(
        "[[service.nvmf.subsystem]]\nnqn = \"{NQN}\"\n{}{}{}",
        namespace("nsid = 1\nblock-size = 4096"),
        namespace("nsid = 2\nblock-size = 512"),
        namespace("nsid = 3\nblock-size = 4096\nread-only = true"),
    );
    fs::write(&path, config).unwrap();
    Target::start(&format!("--config {}", path.display()))
}

fn number(value: &Value, key: &str) -> f64 {
    value.pointer(key).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number {key} in {value}"))
}

/// Checks what every complete result has.
fn complete(value: &Value, workload: &str) {
    assert_eq!(
        (&value["test"], &value["workload"], &value["end"]),
        (&"nvme".into(), &workload.into(), &"complete".into())
    );
    let (ios, seconds) = (number(value, "/ios"), number(value, "/seconds"));
    assert!(ios > 0.0 && seconds > 0.0 && value["errors"] == Value::Array(Vec::new()), "{value}");
    assert_eq!(ios, number(value, "/reads") + number(value, "/writes"), "{value}");
    assert!((number(value, "/iops") / (ios / seconds) - 1.0).abs() < 1e-9, "{value}");
    let times =
        ["min", "p50", "p90", "p99", "p99_9", "p99_99", "max"].map(|name| number(value, &format!("/lat_us/{name}")));
    assert!(times[0] > 0.0 && times.is_sorted(), "{value}");
}

#[test]
fn rxe_bench_runs_every_workload_on_rxe_target() {
    let target = target("nvme-workloads");
    let measure = |words: &str| target.measure(&format!("nvme --nqn {NQN} -t 0.5 {words}"));
    // In the capsule, and by READs of the target.
    for (words, in_capsule) in [("-o 4K -q 16", true), ("-o 64K -q 4 -P 2", false), ("--namespace 2 -o 512 -q 8", true)]
    {
        let value = measure(&format!("-w randwrite --verify {words}"));
        complete(&value, "randwrite");
        assert_eq!(
            (number(&value, "/reads"), &value["parameters"]["in_capsule"]),
            (0.0, &in_capsule.into()),
            "{value}"
        );
        let blocks = number(&value, "/size") / number(&value, "/parameters/block_size");
        // Those of the warm-up are checked too.
        assert!(number(&value, "/checked_blocks") >= blocks * number(&value, "/writes"), "{value}");
    }
    let value = measure("-w randread -o 8K -q 8 -P 3");
    complete(&value, "randread");
    assert_eq!((number(&value, "/writes"), value.get("checked_blocks")), (0.0, None), "{value}");
    for (workload, more) in [("rw", "-M 70 --verify"), ("randrw", "-M 30"), ("read", "-o 1M -q 2"), ("write", "-o 12K")]
    {
        let value = measure(&format!("-w {workload} {more}"));
        complete(&value, workload);
        if let Some(percent) = more.split_whitespace().nth(1).filter(|_| more.starts_with("-M")) {
            let (share, wanted) =
                (number(&value, "/reads") / number(&value, "/ios") * 100.0, percent.parse::<f64>().unwrap());
            assert!((share - wanted).abs() < 20.0, "{value}");
        }
    }
    // Every controller and queue pair is gone.
    let totals = target.stop();
    assert!(!totals.contains("queue_pairs_left") && !totals.contains("bad_icrc"), "{totals}");
}

fn start(target: &Target, words: &str) -> Program {
    let ends = format!("nvme --udp {} --peer {} --nqn {NQN} --warm-up 0", address(), target.ip);
    Program::start(&mut program("rxe-bench", &format!("{ends} {words}"))).unwrap()
}

/// Waits for a line of progress, after the first I/O.
pub fn wait_for_progress(bench: &mut Program) {
    let began = Instant::now();
    while !bench.stderr().iter().any(|line| line.contains(" I/Os, ")) {
        assert!(bench.is_running() && began.elapsed() < LIMIT, "no progress: {}", bench.tail());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_run_that_is_stopped_or_loses_its_target_prints_what_it_has_measured() {
    let target = target("nvme-ends");
    // Endless: rows, the result of the whole run, and success.
    let mut bench = start(&target, "--run_infinitely -t 0.1 -w randrw");
    let rows = |text: &str| text.lines().filter(|line| line.split_whitespace().count() == 12).count();
    bench.wait_for(LIMIT, |text| (rows(text) >= 4).then_some(())).unwrap_or_else(|error| panic!("{error}"));
    let done = bench.stop(LIMIT).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(done.code, 0, "{}", told(&done));
    assert_eq!(
        done.stdout.matches(" Length            : until stopped, a row every 0.1 s\n").count(),
        2,
        "{}",
        told(&done)
    );
    assert!(done.stdout.contains(" Retransmitted     : "), "{}", told(&done));
    // A signal before the planned end, and a target that ends.
    let value = |done: Finished, end: &str| {
        assert_eq!(done.code, 1, "{}", told(&done));
        let value: Value =
            serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {}", told(&done)));
        let seconds = number(&value, "/seconds");
        assert!(value["end"] == end && number(&value, "/ios") > 0.0 && seconds > 0.0 && seconds < 3600.0, "{value}");
        assert!(number(&value, "/lat_us/p50") > 0.0 && number(&value, "/parameters/duration") == 3600.0, "{value}");
        // The same sentence for people and programs.
        let error = value["error"].as_str().unwrap_or_else(|| panic!("no error in {value}"));
        assert!(done.stderr.contains(&format!("rxe-bench: {error}\n")), "{}", told(&done));
        error.to_owned()
    };
    let mut bench = start(&target, "-t 3600 --out_json -");
    wait_for_progress(&mut bench);
    bench.signal("INT").unwrap();
    let error = value(bench.finish(LIMIT).unwrap(), "interrupted");
    assert!(error.contains("stopped by a signal before the run was complete"), "{error}");
    let mut bench = start(&target, "-t 3600 --out_json -");
    wait_for_progress(&mut bench);
    target.stop();
    let error = value(bench.finish(LIMIT).unwrap(), "failed");
    assert!(error.contains("the peer disconnected"), "{error}");
}

#[test]
fn failed_commands_are_counted_by_status() {
    let target = target("nvme-errors");
    let words = format!("nvme --udp {} --peer {} --nqn {NQN} --namespace 3 -w write -t 0.2", address(), target.ip);
    let text = run("rxe-bench", &words);
    assert_eq!(text.code, 1, "{}", told(&text));
    assert!(text.stdout.contains(" with status namespace is write protected (0x020)\n"), "{}", told(&text));
    let done = run("rxe-bench", &format!("{words} --out_json -"));
    assert_eq!(done.code, 1, "{}", told(&done));
    let value: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {}", told(&done)));
    assert_eq!(
        (number(&value, "/ios"), &value["end"], &value["errors"][0]["code"]),
        (0.0, &"failed".into(), &0x20.into())
    );
    assert!(number(&value, "/errors/0/count") > 0.0, "{value}");
    assert!(value["error"].as_str().is_some_and(|error| error.contains("commands failed")), "{value}");
}

#[test]
fn what_the_target_refuses_is_named() {
    let target = target("nvme-refusals");
    let ip = target.ip;
    for (words, sentence) in [
        (
            format!("--peer {ip} --nqn nqn.2026-01.org.example:other"),
            format!(
                "{ip}:4420 refuses Connect (connect: invalid parameters (0x182)): it has no subsystem \
                 nqn.2026-01.org.example:other: check --nqn"
            ),
        ),
        (
            format!("--peer {ip} --nqn {NQN} --namespace 9"),
            format!("--namespace 9: {NQN} at {ip}:4420 has no such namespace, it has 1, 2, 3"),
        ),
        (
            format!("--peer {ip} --nqn {NQN} -o 512"),
            "-o 512: the namespace has blocks of 4096 bytes: choose a multiple of that".to_owned(),
        ),
        (format!("--peer {ip} --nqn {NQN} -o 2M"), format!("-o 2097152: {ip}:4420 allows 1048576 bytes of a command")),
        (
            format!("--peer {ip} --nqn {NQN} -q 1000"),
            format!("-q 1000: {ip}:4420 allows 127 outstanding I/Os of a queue: choose a smaller number"),
        ),
        (
            format!("--peer {ip} --nqn {NQN} -P 100 -q 4"),
            format!("-P 100: {ip}:4420 grants 16 I/O queues: choose a smaller number"),
        ),
        (
            format!("--peer {ip} --nqn {NQN} --verify -o 1M -q 17"),
            "--verify: the namespace has room for 16 I/Os of 1048576 bytes, and 17 are outstanding".to_owned(),
        ),
        (format!("--peer {ip}:4421 --nqn {NQN}"), format!("no service listens at {ip}:4421")),
    ] {
        let said = run("rxe-bench", &format!("nvme --udp {} {words}", address()));
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{words}: {}", told(&said));
        assert!(said.stderr.starts_with(&format!("rxe-bench: {sentence}")), "{words}: {}", said.stderr);
        assert_eq!(said.stderr.lines().count(), 1, "{words}: {}", said.stderr);
    }
}
