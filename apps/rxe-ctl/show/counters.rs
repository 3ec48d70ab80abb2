//! Counters, dropped packets and services.

use std::fmt::Write;

use rxe_inspect::report::{Counter, Service};
use rxe_proto::wire::DropReason;
use serde_json::{Map, Value, json};

use crate::table::{Align, Table};

/// rdma_rxe's hw_counters, in its order.
const HW_COUNTERS: [&str; 17] = [
    "sent_pkts",
    "rcvd_pkts",
    "duplicate_request",
    "out_of_seq_request",
    "rcvd_rnr_err",
    "send_rnr_err",
    "rcvd_seq_err",
    "ack_deferred",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "completer_retry_err",
    "send_err",
    "link_downed",
    "rdma_sends",
    "rdma_recvs",
    "sent_bytes",
    "rcvd_bytes",
];

/// Counters: rdma_rxe's first, then the others by group.
pub fn stat(sums: &[(String, Vec<Counter>)], all: bool) -> String {
    let transport = sums.iter().find(|(name, _)| name == "transport").map_or(&[][..], |(_, counters)| counters);
    let mut text = if transport.is_empty() { String::new() } else { String::from("hw_counters\n") };
    let mut lines = |counters: &mut dyn Iterator<Item = &Counter>| {
        let mut any = false;
        for counter in counters {
            any = true;
            // Writing to a string cannot fail.
            let _ = writeln!(text, "    {:<28}{}", counter.name, counter.value);
        }
        any
    };
    lines(&mut HW_COUNTERS.iter().filter_map(|name| transport.iter().find(|counter| counter.name == *name)));
    for (group, counters) in sums {
        let is_hw = |counter: &&Counter| group == "transport" && HW_COUNTERS.contains(&&*counter.name);
        let shown: Vec<&Counter> =
            counters.iter().filter(|counter| !is_hw(counter) && (all || counter.value > 0)).collect();
        if !shown.is_empty() {
            text += &format!("{group}\n");
            for counter in shown {
                let _ = writeln!(text, "    {:<28}{}", counter.name, counter.value);
            }
        }
    }
    text
}

/// All counters as JSON, zero or not.
pub fn counters_json(sums: &[(String, Vec<Counter>)]) -> Value {
    let object = |counters: &[Counter], keep: &dyn Fn(&str) -> bool| {
        let kept = counters.iter().filter(|counter| keep(&counter.name));
        Value::Object(kept.map(|counter| (counter.name.clone(), json!(counter.value))).collect())
    };
    let mut groups = Map::new();
    for (group, counters) in sums {
        if group == "transport" {
            groups.insert("hw_counters".to_owned(), object(counters, &|name| HW_COUNTERS.contains(&name)));
            groups.insert(group.clone(), object(counters, &|name| !HW_COUNTERS.contains(&name)));
        } else {
            groups.insert(group.clone(), object(counters, &|_| true));
        }
    }
    Value::Object(groups)
}

/// Description of a drop reason.
fn meaning(name: &str) -> &'static str {
    DropReason::ALL.iter().find(|reason| reason.name() == name).map_or("", |reason| reason.describe())
}

/// Dropped packets, the most frequent reason first.
pub fn drops(drops: &[Counter], all: bool) -> String {
    let mut drops: Vec<&Counter> = drops.iter().filter(|counter| all || counter.value > 0).collect();
    if drops.is_empty() {
        return "nothing was dropped\n".to_owned();
    }
    drops.sort_by_key(|counter| std::cmp::Reverse(counter.value));
    let mut table = Table::new("", &[("REASON", Align::Left), ("PACKETS", Align::Right), ("MEANING", Align::Left)]);
    table.rows.extend(drops.iter().map(|c| vec![c.name.clone(), c.value.to_string(), meaning(&c.name).to_owned()]));
    table.text()
}

/// Dropped packets as JSON.
pub fn drops_json(drops: &[Counter]) -> Value {
    let entry = |counter: &Counter| json!({"reason": counter.name, "packets": counter.value, "meaning": meaning(&counter.name)});
    drops.iter().map(entry).collect()
}

/// The services, their listeners and their counters above zero.
pub fn services(services: &[Service]) -> String {
    let mut table = Table::new("", &[("SERVICE", Align::Left), ("LISTENS", Align::Left), ("COUNTERS", Align::Left)]);
    table.rows.extend(services.iter().map(|service| {
        let counted: Vec<String> =
            service.counters.iter().filter(|c| c.value > 0).map(|c| format!("{}={}", c.name, c.value)).collect();
        let listens = if service.stopped { "stopped".to_owned() } else { service.listens.join(" ") };
        vec![service.name.clone(), listens, counted.join(" ")]
    }));
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_show_rxes_names_first_and_hide_zeros() {
        let counter = |name: &str, value| Counter { name: name.to_owned(), value };
        let transport =
            vec![counter("rcvd_pkts", 3), counter("sent_pkts", 0), counter("timeouts", 2), counter("flushes", 0)];
        let sums = [("transport".to_owned(), transport), ("cm".to_owned(), vec![counter("rx_req", 0)])];
        assert_eq!(
            stat(&sums, false),
            "hw_counters\n    sent_pkts                   0\n    rcvd_pkts                   3\n\
             transport\n    timeouts                    2\n"
        );
        assert!(
            stat(&sums, true).ends_with("    flushes                     0\ncm\n    rx_req                      0\n")
        );
        let json = counters_json(&sums);
        assert_eq!((&json["hw_counters"]["rcvd_pkts"], &json["transport"]["timeouts"]), (&json!(3), &json!(2)));
        let text = drops(&[counter("icrc_mismatch", 1), counter("qpn_unknown", 5), counter("foreign_mac", 0)], false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("qpn_unknown          5  No such queue pair."), "{text}");
        assert!(lines[2].starts_with("icrc_mismatch") && lines.len() == 3, "{text}");
        assert_eq!(drops(&[counter("foreign_mac", 0)], false), "nothing was dropped\n");
    }
}
