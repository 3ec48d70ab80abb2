//! rxe-bench against rxe-target over vhost-user: every test, with every byte compared, and its results. Rates are not checked
//! here.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rxe_testkit::process::{self, Finished, Program};
use serde_json::Value;

use super::operate::{ctl, json};
use super::{Target, lacking};

/// Longer than any run takes.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A run of rxe-bench at the other end of the socket, with these words behind `--`.
pub fn bench(socket: &str, words: &str) -> Command {
    bench_on(&format!("net_virtio_user0,path={socket},queue_size=1024,mac=52:54:00:00:00:31"), "1", words)
}

/// The same on another port, on this lcore.
pub fn bench_on(vdev: &str, lcore: &str, words: &str) -> Command {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-bench"));
    command
        .args(["-l", lcore, "--in-memory", "--no-pci", "--no-telemetry"])
        .arg(format!("--file-prefix=bench{}-{run}", std::process::id()))
        .arg(format!("--vdev={vdev}"))
        .arg("--")
        .args(words.split_whitespace());
    command
}

/// Runs it to its end.
fn run(socket: &str, words: &str) -> Finished {
    process::run(&mut bench(socket, words), LIMIT).unwrap_or_else(|error| panic!("{error}"))
}

pub fn told(done: &Finished) -> String {
    format!("exit code {}\n{}{}", done.code, done.stdout, done.stderr)
}

/// The JSON that a run against the target prints.
pub fn measure(socket: &str, words: &str) -> Value {
    let words = format!("{words} --address 10.77.0.2/24 --peer 10.77.0.1 --out_json -");
    let done = run(socket, &words);
    assert_eq!(done.code, 0, "{words}: {}", told(&done));
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{words}: {error}: {}", told(&done)))
}

/// Checks the fields of one result, of which `messages` were wanted.
fn check(value: &Value, test: &str, (size, qps, messages): (u64, u64, u64)) {
    let number = |name: &str| value[name].as_f64().unwrap_or_else(|| panic!("no number {name} in {value}"));
    assert_eq!((&value["test"], number("size")), (&Value::from(test), size as f64), "{value}");
    assert_eq!((number("qps"), number("mtu")), (qps as f64, 4096.0), "{value}");
    assert!(number("messages") >= messages as f64 && number("seconds") > 0.0, "{value}");
    assert!((number("msg_rate") * number("seconds") / number("messages") - 1.0).abs() < 1e-6, "{value}");
    assert!(value["end"] == "complete" && value["parameters"]["peer"].is_string(), "{value}");
    assert!((number("msg_rate") * size as f64 * 8e-9 - number("bw_gbps")).abs() < 1e-9, "{value}");
    if test.ends_with("-bw") {
        assert!(value.get("lat_us").is_none(), "{value}");
        return;
    }
    let at: Vec<f64> = ["min", "p50", "p99", "p99_9", "p99_99", "max"]
        .iter()
        .map(|name| value["lat_us"][name].as_f64().unwrap_or_else(|| panic!("no {name} in {value}")))
        .collect();
    assert!(at.is_sorted() && at[0] > 0.0, "{value}");
}

#[test]
fn rxe_bench_measures_and_verifies_rxe_target() {
    if let Some(why) = lacking() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
        eprintln!("SKIPPED: {why}");
        return;
    }
    let id = std::process::id();
    let socket = std::env::temp_dir().join(format!("rxe-ports-{id}-bench.sock")).display().to_string();
    let many = format!("/dev/shm/rxe-ports-{id}b-many");
    let options = ["--region", &format!("many=4K*{REGIONS},file={many}")];
    let target = Target::start(&format!("{id}b"), &format!("net_vhost0,iface={socket},queues=1"), "0", "", &options);
    for (test, size, qps, messages) in [
        ("write-bw", 100, 3, 100),
        ("write-bw", 9000, 2, 40),
        ("read-bw", 5000, 3, 50),
        ("atomic-bw", 8, 4, 100),
        ("send-bw", 1000, 2, 50),
        ("write-lat", 64, 1, 50),
        ("read-lat", 64, 2, 50),
        ("atomic-lat", 8, 1, 50),
        ("send-lat", 70, 1, 50),
    ] {
        let size_option = if size == 8 { String::new() } else { format!("-s {size}") };
        let value = measure(&socket, &format!("{test} {size_option} -q {qps} -n {messages} --verify"));
        check(&value, test, (size, qps, qps * messages));
    }
    // The same memory by perftest's exchange.
    for test in ["write-bw", "read-bw", "atomic-lat"] {
        let size_option = if test == "atomic-lat" { "" } else { "-s 8" };
        let value = measure(&socket, &format!("{test} {size_option} -q 2 -n 50 --protocol perftest --verify"));
        check(&value, test, (8, 2, 100));
        assert_eq!(value["messages"], 100, "perftest's ends count: not one more");
    }
    // At full rate: payloads are not compared, and several messages share one completion.
    for (words, test, of) in [
        ("write-bw -s 64 -q 8 -n 1000", "write-bw", (64, 8, 8000)),
        ("read-bw -s 4096 -q 2 -D 0.1", "read-bw", (4096, 2, 1)),
        ("send-bw -s 64 -q 2 -n 301", "send-bw", (64, 2, 602)),
        ("send-bw -s 64 -n 301 -b", "send-bw", (64, 1, 602)),
        ("write-bw -s 5000 -b -n 100 -t 7", "write-bw", (5000, 1, 100)),
        ("write-lat -s 64 -D 0.1 --bulk read", "write-lat", (64, 1, 1)),
        ("connect-rate -q 4 -n 10", "connect-rate", (0, 4, 40)),
    ] {
        check(&measure(&socket, words), test, of);
    }
    let beside = measure(&socket, "read-lat -s 64 -n 300 --bulk write --bulk-qp 3 --bulk-size 20000");
    check(&beside, "read-lat", (64, 1, 300));
    assert!(beside["bulk_gbps"].as_f64().is_some_and(|gbps| gbps > 0.0), "{beside}");
    let all = measure(&socket, "write-bw -a -n 20 --warm-up 0");
    let all = all.as_array().expect("an array");
    // Up to the region's 4 MiB.
    assert_eq!(all.len(), 22);
    for (value, power) in all.iter().zip(1..) {
        check(value, "write-bw", (1 << power, 1, 20));
    }
    // One size after another on the same queue pair, each with receives of its own.
    let all = measure(&socket, "send-lat -a -n 5 --warm-up 0");
    for (value, power) in all.as_array().expect("an array").iter().zip(1..) {
        check(value, "send-lat", (1 << power, 1, 5));
    }
    numbered(&socket, &target, Path::new(&many));
    mistakes(&socket);
    target.stop();
    let _ = std::fs::remove_file(&socket);
    reflected(&format!("{socket}.echo"));
}

/// Number of numbered regions.
const REGIONS: usize = 1000;

/// Messages over many regions, each with a key of its own, arrive in all of them.
fn numbered(socket: &str, target: &Target, file: &Path) {
    // The number of regions with bytes of messages; all are empty again afterwards.
    let written = || {
        let regions = std::fs::read(file).unwrap();
        assert_eq!(regions.len(), REGIONS * 4096);
        let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![0; regions.len()], 0).unwrap();
        regions.chunks(4096).filter(|region| region.iter().any(|byte| *byte != 0)).count()
    };
    assert_eq!(written(), 0);
    let over = |words: &str, count: usize| measure(socket, &format!("{words} --region many --regions {count}"));
    // Few places that go round many regions, more places than regions, and atomics, whose sums are per region.
    check(&over("write-bw -s 100 -q 2 -t 16 -n 5000 --verify", REGIONS), "write-bw", (100, 2, 10_000));
    assert_eq!(written(), REGIONS);
    check(&over("read-bw -s 1000 -q 16 -n 500 --verify", REGIONS), "read-bw", (1000, 16, 8000));
    assert_eq!(written(), REGIONS);
    check(&over("atomic-bw -q 4 -t 4 -n 3000 --verify", 77), "atomic-bw", (8, 4, 12_000));
    assert_eq!(written(), 77);
    // Round robin: as many regions as `--regions` names, and all of them.
    check(&over("write-bw -s 64 -q 8 -n 1000 --warm-up 0", 999), "write-bw", (64, 8, 8000));
    assert_eq!(written(), 999);
    check(&over("write-lat -s 64 -n 10 --warm-up 0", 1), "write-lat", (64, 1, 10));
    assert_eq!(written(), 1);
    // One of them is a region like others.
    check(&measure(socket, "write-bw -s 64 -n 10 --warm-up 0 --region many999"), "write-bw", (64, 1, 10));
    assert_eq!(written(), 1);
    // Their directory is there to be read, not to be written.
    let words = "write-bw -s 64 -n 10 --region many* --address 10.77.0.2/24 --peer 10.77.0.1";
    let refused = run(socket, words);
    assert!(refused.code != 0 && told(&refused).contains("denies access to its memory"), "{}", told(&refused));
    // The operator sees each of them as JSON, and a summary in the table.
    let mrs = json(target, "mr");
    let mrs = mrs.as_array().unwrap();
    let named = |name: &str| mrs.iter().filter(|mr| mr["name"] == name && mr["mrlen"] == 4096).count();
    assert!((0..REGIONS).all(|number| named(&format!("many{number}")) == 1), "{mrs:?}");
    let table = ctl(target, "mr");
    assert!(table.contains(&format!("{REGIONS} keys")) && table.lines().count() < 10, "{table}");
}

/// Wrong arguments are refused with one sentence and exit code 2.
fn mistakes(socket: &str) {
    for (words, sentence) in [
        ("write-bw --address 10.77.0.2/24", "--peer is missing: give the address of the target as --peer IP"),
        (
            "write-bw --address 10.77.0.2/24 --peer 10.77.0.1 --region none",
            "refuses: unknown region 'none'; known: demo, many0 to many999",
        ),
        (
            "write-bw --address 10.77.0.2/24 --peer 10.77.0.1 --region demo --regions 2",
            "refuses: unknown region 'demo*'; known: demo, many0",
        ),
        (
            "write-bw --address 10.77.0.2/24 --peer 10.77.0.1 --region many --regions 1001",
            "--regions 1001: the target has 1000 numbered regions of this name: choose a smaller number",
        ),
        (
            "write-bw --address 10.77.0.2/24 --peer 10.77.0.1 --region many --regions 2 -s 8K",
            "the target's region has 4096 bytes, which is too small",
        ),
        ("write-bw --address 10.77.0.2/24 --peer 10.77.0.1:9", "no service listens at 10.77.0.1:9"),
        (
            "write-bw --address 10.77.0.2/24 --peer 10.77.0.1 -s 5M",
            "the target's region has 4194304 bytes, which is too small",
        ),
    ] {
        let output = run(socket, words);
        let text = &output.stderr;
        assert_eq!(output.code, 2, "{words}: {}", told(&output));
        assert!(text.contains(sentence) && text.lines().count() == 1, "{words}: {}", told(&output));
        assert!(output.stdout.is_empty(), "{words}: {}", told(&output));
    }
}

/// `echo` to `reflect`.
fn reflected(socket: &str) {
    let mut reflector = Command::new(env!("CARGO_BIN_EXE_rxe-bench"));
    reflector
        .args(["-l", "0", "--in-memory", "--no-pci", "--no-telemetry"])
        .arg(format!("--file-prefix=reflect{}", std::process::id()))
        .arg(format!("--vdev=net_vhost0,iface={socket},queues=1"))
        .args(["--", "reflect"]);
    let mut reflector = Program::start(&mut reflector).unwrap();
    while !Path::new(socket).exists() {
        assert!(reflector.is_running(), "the reflector ended: {}", reflector.tail());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for (size, options) in [(64, ""), (4096, ""), (64, "-t 1")] {
        let value = measure(socket, &format!("echo -s {size} -n 2000 {options}"));
        check(&value, "echo", (size, 1, 2000));
        assert!(value["lost"].is_u64(), "{value}");
    }
    let done = reflector.stop(LIMIT).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(done.code, 0, "{}", told(&done));
    let _ = std::fs::remove_file(socket);
}
