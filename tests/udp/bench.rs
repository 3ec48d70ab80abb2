//! Every test of rxe-bench that sends messages, with every byte compared, and its results. Rates are not checked here.

use serde_json::Value;

use crate::Target;

/// Checks the fields of one result, of which `messages` were wanted.
fn check(value: &Value, test: &str, (size, qps, messages): (u64, u64, u64)) {
    let number = |name: &str| value[name].as_f64().unwrap_or_else(|| panic!("no number {name} in {value}"));
    assert_eq!((&value["test"], number("size")), (&Value::from(test), size as f64), "{value}");
    assert_eq!((number("qps"), number("mtu")), (qps as f64, 4096.0), "{value}");
    assert!(number("messages") >= messages as f64 && number("seconds") > 0.0, "{value}");
    assert_eq!(value["end"], "complete", "{value}");
}

#[test]
fn rxe_bench_measures_and_verifies_rxe_target() {
    let target = Target::start("");
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
        let value = target.measure(&format!("{test} {size_option} -q {qps} -n {messages} --verify"));
        check(&value, test, (size, qps, qps * messages));
    }
    // The same memory by perftest's exchange.
    for test in ["write-bw", "read-bw", "atomic-lat"] {
        let size_option = if test == "atomic-lat" { "" } else { "-s 8" };
        let value = target.measure(&format!("{test} {size_option} -q 2 -n 50 --protocol perftest --verify"));
        check(&value, test, (8, 2, 100));
    }
    // At full rate: payloads are not compared, and several messages share one completion.
    for (words, test, of) in [
        ("write-bw -s 65536 -q 8 -n 200", "write-bw", (65_536, 8, 1600)),
        ("read-bw -s 65536 -q 2 -n 200", "read-bw", (65_536, 2, 400)),
        ("send-bw -s 64 -n 301 -b", "send-bw", (64, 1, 602)),
        ("write-lat -s 64 -n 100 --bulk read", "write-lat", (64, 1, 100)),
        ("connect-rate -q 4 -n 10", "connect-rate", (0, 4, 40)),
    ] {
        check(&target.measure(words), test, of);
    }
    let totals = target.stop();
    // Nothing of the clients is left, and every packet was understood.
    assert!(!totals.contains("queue_pairs_left") && !totals.contains("bad_icrc"), "{totals}");
    assert!(totals.contains("port0: rx_frames=") && totals.contains("\nudp: rcvd_packets="), "{totals}");
}

/// An answer may come although the acknowledgement of what it answers is lost.
#[test]
fn messages_that_are_answered_before_they_are_acknowledged_keep_their_place() {
    let target = Target::start("");
    target.ctl("fault add drop --direction tx --opcode ACKNOWLEDGE --probability 0.3");
    for (words, test, of) in [
        ("send-lat -s 64 -n 300", "send-lat", (64, 1, 300)),
        ("send-bw -s 64 -q 2 -n 301 -b", "send-bw", (64, 2, 1204)),
    ] {
        check(&target.measure(words), test, of);
    }
    target.stop();
}
