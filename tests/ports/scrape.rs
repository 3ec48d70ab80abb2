//! The metrics of a running target, parsed by Prometheus' own parser: values, names in the dashboard and on the page.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::operate::{PYTHON, run};

const PARSE: &str = "
import json, sys, urllib.request
from prometheus_client.parser import text_string_to_metric_families
with urllib.request.urlopen(sys.argv[1], timeout=10) as reply:
    assert reply.headers['Content-Type'].startswith('text/plain; version=0.0.4'), reply.headers
    text = reply.read().decode()
families = list(text_string_to_metric_families(text))
for family in families:
    assert family.documentation, family.name
    assert family.type in ('counter', 'gauge', 'histogram'), family
print(json.dumps([[s.name, s.labels, s.value] for f in families for s in f.samples]))
";

/// The metrics, as Prometheus' own parser understands them.
pub fn scrape(address: &str, packets: f64) {
    let said = run(Command::new(PYTHON).args(["-c", PARSE, &format!("http://{address}/metrics")]));
    assert_eq!(said.code, 0, "{}", said.stderr);
    let samples: Vec<(String, Value, f64)> = serde_json::from_str(&said.stdout).unwrap();
    let value = |name: &str, label: &str, of: &str| {
        let sample = samples.iter().find(|(n, labels, _)| n == name && (label.is_empty() || labels[label] == of));
        sample.unwrap_or_else(|| panic!("no {name} {label}={of}")).2
    };
    let one = |name: &str, labels: Value| {
        let sample = samples.iter().find(|(n, of, _)| n == name && *of == labels);
        sample.unwrap_or_else(|| panic!("no {name} {labels}")).2
    };
    assert_eq!(value("rxe_transport_rcvd_pkts_total", "lcore", "0"), packets);
    assert_eq!(one("rxe_connections", json!({"service": "region", "state": "established"})), 1.0);
    assert_eq!(one("rxe_queue_pairs", json!({"service": "region", "type": "RC", "state": "RTS"})), 1.0);
    // Each series exists before there is anything to count.
    assert_eq!(one("rxe_connections", json!({"service": "rping", "state": "connecting"})), 0.0);
    assert_eq!(one("rxe_queue_pairs", json!({"service": "none", "type": "UD", "state": "ERROR"})), 0.0);
    assert_eq!(value("rxe_queue_pairs_waiting", "waits", "peer_receive"), 0.0);
    assert_eq!(one("rxe_service_refused_total", json!({"service": "mckey"})), 0.0);
    // The WRITE of 256 packets took several turns.
    let operations = |service: &str, role: &str, operation: &str| {
        let labels = json!({"service": service, "role": role, "operation": operation});
        let of = |part: &str| one(&format!("rxe_operation_seconds_{part}"), labels.clone());
        (of("count"), of("sum"))
    };
    let (writes, seconds) = operations("region", "responder", "write");
    assert!(writes >= 1.0 && seconds > 0.0 && seconds < 60.0, "{writes} in {seconds} s");
    assert_eq!(operations("pingpong", "requester", "flush"), (0.0, 0.0));
    let below = |bound: &str| one("rxe_worker_turn_seconds_bucket", json!({"lcore": "0", "le": bound}));
    assert!(below("0.000000256") <= below("4.294967296") && below("4.294967296") <= below("+Inf"));
    assert_eq!(below("+Inf"), one("rxe_worker_turn_seconds_count", json!({"lcore": "0"})));
    assert!(below("+Inf") > 0.0);
    assert_eq!(value("rxe_queue_pairs_waiting", "waits", "nothing"), 1.0);
    assert_eq!(value("rxe_resources", "type", "qp"), 1.0);
    assert_eq!(value("rxe_resources", "type", "conn"), 1.0);
    assert!(value("rxe_port_mbufs_in_use", "port", "0") < value("rxe_port_mbufs", "port", "0"));
    assert_eq!(value("rxe_service_connections_total", "service", "region"), 1.0);
    assert_eq!(value("rxe_drops_total", "reason", "icrc_mismatch"), 0.0);
    assert_eq!(value("rxe_port_up", "netdev", "net_memif0"), 1.0);
    assert!(value("rxe_port_rx_frames_total", "port", "0") >= packets);
    assert_eq!(value("rxe_info", "", ""), 1.0);
    dashboard(&samples);
    documented(&samples);
}

/// The metric that a target without disks, as this one, does not have.
const OF_DISKS: &str = "rxe_nvmf_command_seconds";

/// The page on operating names every metric that there is but for counters, whose names follow from `rxe-ctl stat`, and no other.
fn documented(samples: &[(String, Value, f64)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operating.md");
    let page = std::fs::read_to_string(path).unwrap();
    let named: Vec<&str> = page.split('`').filter(|word| word.starts_with("rxe_") && !word.contains("NAME")).collect();
    let family = |name: &str| {
        let mut parts = ["_bucket", "_sum", "_count"].into_iter().filter_map(|part| name.strip_suffix(part));
        parts.find(|family| family.ends_with("_seconds")).unwrap_or(name).to_owned()
    };
    let families: BTreeSet<String> = samples.iter().map(|(name, ..)| family(name)).collect();
    for family in families.iter().filter(|family| !family.ends_with("_total")) {
        assert!(named.contains(&family.as_str()), "docs/operating.md lacks {family}");
    }
    for name in named.into_iter().filter(|name| *name != OF_DISKS) {
        assert!(families.contains(name), "docs/operating.md names {name}, which does not exist");
    }
}

/// Every metric that the dashboard shows is one that there is.
fn dashboard(samples: &[(String, Value, f64)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let expressions = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut names = Vec::new();
    for expression in expressions {
        let words = expression["expr"].as_str().unwrap().split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        names.extend(words.filter(|word| word.starts_with("rxe_")).map(str::to_owned));
    }
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(samples.iter().any(|(sample, ..)| *sample == name), "the dashboard shows {name}, which does not exist");
    }
}
