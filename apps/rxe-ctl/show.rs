//! Answers as text, in the shape of the tools that people know.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use rxe_inspect::report::{Counter, Device, LcoreResources, Mr, Port, Qp, Resources, Service};
use rxe_proto::wire::DropReason;
use serde_json::{Map, Value, json};

use crate::table::{Align, Table};

/// The names of rdma_rxe's hw_counters, in its order.
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

/// As `ibv_devices`.
pub fn devices(device: &Device) -> String {
    let guid = device.node_guid.replace(':', "");
    format!(
        "    device          \t   node GUID\n    ------          \t----------------\n    {:<16}\t{guid}\n",
        device.name
    )
}

/// As `ibv_devinfo`.
pub fn devinfo(device: &Device, verbose: bool) -> String {
    let mut text = format!("hca_id:\t{}\n", device.name);
    // Where a column of tabs starts, whatever the key.
    let mut line = |depth: usize, key: &str, value: String| {
        let tabs = (32_usize.saturating_sub(key.len() + 1)).div_ceil(8).max(1);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}{key}:{}{value}", "\t".repeat(depth), "\t".repeat(tabs));
    };
    line(1, "transport", "InfiniBand (0)".to_owned());
    line(1, "fw_ver", device.fw_ver.clone());
    line(1, "node_guid", device.node_guid.clone());
    line(1, "sys_image_guid", device.node_guid.clone());
    line(1, "vendor_id", "0xffffff".to_owned());
    line(1, "vendor_part_id", "0".to_owned());
    line(1, "hw_ver", "0x0".to_owned());
    line(1, "phys_port_cnt", device.ports.len().to_string());
    if verbose {
        let limits = &device.limits;
        for (key, value) in [
            ("max_qp", limits.max_qp),
            ("max_qp_wr", limits.max_qp_wr.into()),
            ("max_sge", limits.max_sge.into()),
            ("max_cq", limits.max_cq),
            ("max_cqe", limits.max_cqe.into()),
            ("max_mr", limits.max_mr),
            ("max_qp_rd_atom", limits.max_qp_rd_atom.into()),
            ("max_qp_init_rd_atom", limits.max_qp_init_rd_atom.into()),
            ("max_srq", limits.max_srq),
            ("max_srq_wr", limits.max_srq_wr.into()),
            ("max_ah", limits.max_ah),
            ("max_mcast_grp", limits.max_mcast_grp.into()),
            ("max_mcast_qp_attach", limits.max_mcast_qp_attach.into()),
            ("max_inline_data", limits.max_inline_data.into()),
        ] {
            line(1, key, value.to_string());
        }
        line(1, "atomic_cap", "ATOMIC_HCA (1)".to_owned());
        line(1, "flush", limits.flush.to_string());
        line(1, "atomic_write", limits.atomic_write.to_string());
    }
    for port in &device.ports {
        line(2, "port", port.port.to_string());
        let state = if port.up { "PORT_ACTIVE (4)" } else { "PORT_DOWN (1)" };
        line(3, "state", state.to_owned());
        line(3, "max_mtu", "4096 (5)".to_owned());
        line(3, "active_mtu", format!("{} ({})", port.active_mtu, mtu_code(port.active_mtu)));
        line(3, "sm_lid", "0".to_owned());
        line(3, "port_lid", "0".to_owned());
        line(3, "port_lmc", "0x00".to_owned());
        line(3, "link_layer", "Ethernet".to_owned());
        if verbose {
            if let Some(mbps) = port.speed_mbps {
                line(3, "active_speed", format!("{} Gbps", f64::from(mbps) / 1000.0));
            }
            for (index, address) in port.addresses.iter().enumerate() {
                line(3, &format!("GID[{index:3}]"), gid(address));
            }
        }
    }
    text
}

/// The code of a path MTU, as verbs number them.
fn mtu_code(bytes: u32) -> u32 {
    bytes.checked_ilog2().map_or(0, |log| log.saturating_sub(7))
}

/// An address as a GID: IPv4 as IPv4-mapped IPv6, as ibv_devinfo writes it.
fn gid(address: &str) -> String {
    match address.parse() {
        Ok(std::net::IpAddr::V4(ip)) => format!("::ffff:{ip}, RoCE v2"),
        _ => format!("{address}, RoCE v2"),
    }
}

/// As `rdma link`.
pub fn link(device: &Device, details: bool) -> String {
    let mut text = String::new();
    for port in &device.ports {
        let (state, physical) = if port.up { ("ACTIVE", "LINK_UP") } else { ("DOWN", "DISABLED") };
        let Port { port: number, netdev, .. } = port;
        let reason = port.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        let name = &device.name;
        let _ = writeln!(text, "link {name}/{number} state {state} physical_state {physical} netdev {netdev}{reason}");
        if details {
            let speed = port.speed_mbps.map_or_else(String::new, |mbps| format!(" speed {mbps}Mb/s"));
            let vlan = port.vlan.map_or_else(String::new, |vlan| format!(" vlan {vlan}"));
            let _ = writeln!(
                text,
                "    driver {} mac {}{vlan} mtu {} path_mtu {}{speed}\n    addresses {}",
                port.driver,
                port.mac,
                port.mtu,
                port.active_mtu,
                port.addresses.join(" "),
            );
            let counters: Vec<String> = port.counters.iter().map(|c| format!("{} {}", c.name, c.value)).collect();
            let _ = writeln!(text, "    {}", counters.join(" "));
        }
    }
    text
}

/// The ports that are not ACTIVE, in one sentence.
pub fn down(device: &Device) -> String {
    let down = device.ports.iter().filter(|port| !port.up).map(|port| {
        format!("port {} is DOWN: {}", port.port, port.reason.as_deref().unwrap_or("the target does not know why"))
    });
    down.collect::<Vec<_>>().join("; ")
}

/// As `rdma resource`.
pub fn resource(name: &str, lcores: &[LcoreResources], details: bool) -> String {
    let line = |resources: &Resources| {
        let counts: Vec<String> = resources.named().iter().map(|(name, count)| format!("{name} {count}")).collect();
        counts.join(" ")
    };
    let mut all = Resources::default();
    for LcoreResources { resources, .. } in lcores {
        all.pd += resources.pd;
        all.cq += resources.cq;
        all.qp += resources.qp;
        all.cm_id += resources.cm_id;
        all.mr += resources.mr;
        all.ctx += resources.ctx;
        all.srq += resources.srq;
        all.ah += resources.ah;
    }
    let mut text = format!("0: {name}: {}\n", line(&all));
    if details {
        for lcore in lcores {
            let _ = writeln!(text, "    lcore {}: {}", lcore.lcore, line(&lcore.resources));
        }
    }
    text
}

fn hex(number: u32) -> String {
    format!("{number:#x}")
}

/// What is not known is a dash.
fn dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A list of queue pairs.
pub fn qps(qps: &[Qp]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(
        "",
        &[
            ("LQPN", Left),
            ("TYPE", Left),
            ("STATE", Left),
            ("SERVICE", Left),
            ("LCORE", Right),
            ("PEER", Left),
            ("RQPN", Left),
            ("OUTSTANDING", Right),
            ("SENDS", Right),
            ("RECVS", Right),
            ("RETRIES", Right),
            ("WAITS", Left),
        ],
    );
    table.rows.extend(qps.iter().map(|qp| {
        vec![
            hex(qp.lqpn),
            qp.qp_type.clone(),
            qp.state.clone(),
            dash(qp.service.as_ref()),
            qp.lcore.to_string(),
            dash(qp.peer.as_ref()),
            dash(qp.rqpn.map(hex)),
            qp.outstanding.to_string(),
            qp.send_queued.to_string(),
            qp.recv_queued.to_string(),
            qp.retries.to_string(),
            qp.waits.clone(),
        ]
    }));
    table.text()
}

/// All about one queue pair.
pub fn qp(qp: &Qp) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{key:<14}{value}");
    };
    line("lqpn", hex(qp.lqpn));
    line("type", qp.qp_type.clone());
    line("state", qp.state.clone());
    line("waits", format!("{}: {}", qp.waits, qp.waits_text));
    line("service", dash(qp.service.as_ref()));
    line("lcore", qp.lcore.to_string());
    line("pdn", qp.pdn.to_string());
    if let Some(connection) = &qp.connection {
        let peer = connection.peer.as_ref().map_or_else(String::new, |peer| format!(" with {peer}"));
        line(
            "connection",
            format!("{}{peer}, comm_id {:#010x}, {} s", connection.state, connection.comm_id, connection.age),
        );
    }
    if let (Some(local), Some(peer)) = (&qp.local, &qp.peer) {
        let port = dash(qp.port);
        line(
            "path",
            format!(
                "{local} > {peer} ({}), port {port}, UDP port {}",
                dash(qp.peer_mac.as_ref()),
                dash(qp.udp_src_port)
            ),
        );
        line("rqpn", dash(qp.rqpn.map(hex)));
        line("path_mtu", dash(qp.path_mtu));
    }
    line("rq-psn", qp.rq_psn.to_string());
    line("sq-psn", format!("{}, the oldest without an answer is {}", qp.sq_psn, qp.unacked_psn));
    let reads = format!("{} of {} READs and atomics", qp.rd_outstanding, qp.max_rd_atomic);
    line("outstanding", format!("{} packets, {reads}", qp.outstanding));
    line("send queue", format!("{} of {}, {} completed", qp.send_queued, qp.max_send_wr, qp.sends_completed));
    let shared = if qp.srq { ", more in a shared receive queue" } else { "" };
    line(
        "receive queue",
        format!("{} of {}, {} completed{shared}", qp.recv_queued, qp.max_recv_wr, qp.recvs_completed),
    );
    line("msn", qp.msn.to_string());
    let rnr = if qp.rnr_retry == 7 {
        "without end".to_owned()
    } else {
        format!("{} of {}", qp.rnr_retries_left, qp.rnr_retry)
    };
    line("retries", format!("{} so far; left: {} of {}, for RNR {rnr}", qp.retries, qp.retries_left, qp.retry_cnt));
    line("round trip", qp.rtt_ns.map_or_else(|| "not measured".to_owned(), time));
    let ack = qp.ack_timeout_ns.map_or_else(|| "none".to_owned(), time);
    line("timeouts", format!("retransmission {}, ACK {ack}", time(qp.timeout_ns)));
    line("access", if qp.access.is_empty() { "none".to_owned() } else { qp.access.join(" ") });
    line("cnps", format!("{} received, {} sent", qp.cnps_rcvd, qp.cnps_sent));
    text
}

fn time(nanos: u64) -> String {
    format!("{:?}", Duration::from_nanos(nanos))
}

/// Memory regions and windows.
pub fn mrs(mrs: &[Mr]) -> String {
    use Align::{Left, Right};
    let columns = [
        ("KEY", Left),
        ("KIND", Left),
        ("NAME", Left),
        ("LCORE", Right),
        ("PDN", Right),
        ("IOVA", Left),
        ("MRLEN", Right),
        ("ACCESS", Left),
    ];
    let mut table = Table::new("", &columns);
    // There may be a hundred thousand numbered regions: those of one name share a row.
    let mut counts = HashMap::<&str, usize>::new();
    mrs.iter().filter_map(|mr| mr.numbered.as_deref()).for_each(|name| *counts.entry(name).or_default() += 1);
    table.rows.extend(mrs.iter().filter_map(|mr| {
        let count = match &mr.numbered {
            Some(name) => Some(counts.remove(name.as_str())?),
            None => None,
        };
        Some(vec![
            count.map_or_else(|| format!("{:#010x}", mr.key), |count| format!("{count} keys")),
            mr.kind.clone(),
            dash(mr.numbered.as_ref().or(mr.name.as_ref())),
            mr.lcore.map_or_else(|| "all".to_owned(), |lcore| lcore.to_string()),
            mr.pdn.to_string(),
            if count.is_some() { "-".to_owned() } else { format!("{:#x}", mr.iova) },
            mr.mrlen.to_string(),
            if mr.lost { "lost".to_owned() } else { mr.access.join(",") },
        ])
    }));
    table.text()
}

/// Connections: the queue pairs that have one.
pub fn connections(qps: &[Qp]) -> String {
    use Align::{Left, Right};
    let columns = [
        ("COMM_ID", Left),
        ("STATE", Left),
        ("SERVICE", Left),
        ("PEER", Left),
        ("LQPN", Left),
        ("RQPN", Left),
        ("AGE", Right),
    ];
    let mut table = Table::new("", &columns);
    table.rows.extend(qps.iter().filter_map(|qp| {
        let connection = qp.connection.as_ref()?;
        Some(vec![
            format!("{:#010x}", connection.comm_id),
            connection.state.clone(),
            dash(qp.service.as_ref()),
            dash(connection.peer.as_ref().or(qp.peer.as_ref())),
            hex(qp.lqpn),
            dash(qp.rqpn.map(hex)),
            format!("{}s", connection.age),
        ])
    }));
    table.text()
}

/// Counters: those of rdma_rxe first, then the rest of ours, group by group.
pub fn stat(sums: &[(String, Vec<Counter>)], all: bool) -> String {
    let mut text = String::from("hw_counters\n");
    let transport = sums.iter().find(|(name, _)| name == "transport").map_or(&[][..], |(_, counters)| counters);
    let mut lines = |counters: &mut dyn Iterator<Item = &Counter>| {
        let mut any = false;
        for counter in counters {
            any = true;
            // Writing to a string does not fail.
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

/// The same for programs: every counter, zero or not.
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

/// What a reason to drop means, in a sentence.
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

/// The same for programs.
pub fn drops_json(drops: &[Counter]) -> Value {
    let entry = |counter: &Counter| json!({"reason": counter.name, "packets": counter.value, "meaning": meaning(&counter.name)});
    drops.iter().map(entry).collect()
}

/// The services.
pub fn services(services: &[Service]) -> String {
    let mut table = Table::new("", &[("SERVICE", Align::Left), ("LISTENS", Align::Left), ("COUNTERS", Align::Left)]);
    table.rows.extend(services.iter().map(|service| {
        let counted: Vec<String> =
            service.counters.iter().filter(|c| c.value > 0).map(|c| format!("{}={}", c.name, c.value)).collect();
        vec![service.name.clone(), service.listens.join(" "), counted.join(" ")]
    }));
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_regions_share_a_row() {
        let mr = |key: u32, name: Option<&str>, numbered: Option<&str>| Mr {
            lcore: name.is_none().then_some(0),
            key,
            kind: "region".to_owned(),
            name: name.map(str::to_owned),
            numbered: numbered.map(str::to_owned),
            iova: 0x1000 * u64::from(key),
            mrlen: 4096,
            pdn: 1,
            access: vec!["remote_read".to_owned()],
            lost: key == 8,
        };
        let many = |n: u32| mr(n, Some(&format!("many{n}")), Some("many*"));
        let one = mr(0xAB, Some("scratch"), None);
        let text = mrs(&[many(2), one, many(1), mr(7, None, None), many(3), mr(8, None, None)]);
        let words: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["3", "keys", "region", "many*", "all", "1", "-", "4096", "remote_read"]);
        assert_eq!(words[1], ["0x000000ab", "region", "scratch", "all", "1", "0xab000", "4096", "remote_read"]);
        assert_eq!(words[2], ["0x00000007", "region", "-", "0", "1", "0x7000", "4096", "remote_read"]);
        assert_eq!(words[3], ["0x00000008", "region", "-", "0", "1", "0x8000", "4096", "lost"]);
        assert_eq!(words.len(), 4, "{text}");
    }

    #[test]
    fn devinfo_looks_like_ibv_devinfo() {
        let port = Port {
            port: 1,
            up: true,
            active_mtu: 1024,
            addresses: vec!["10.0.0.1".to_owned(), "fe80::1".to_owned()],
            ..Port::default()
        };
        let device = Device {
            name: "rxe_rte".to_owned(),
            node_guid: "5054:00ff:fe12:3456".to_owned(),
            fw_ver: "0.1.0".to_owned(),
            ports: vec![port],
            ..Device::default()
        };
        let text = devinfo(&device, false);
        assert!(
            text.starts_with("hca_id:\trxe_rte\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t0.1.0\n"),
            "{text}"
        );
        assert!(text.contains("\n\tnode_guid:\t\t\t5054:00ff:fe12:3456\n"), "{text}");
        assert!(text.contains("\n\t\t\tstate:\t\t\t\tPORT_ACTIVE (4)\n"), "{text}");
        assert!(text.contains("active_mtu:\t\t\t1024 (3)\n") && !text.contains("GID"), "{text}");
        let text = devinfo(&device, true);
        assert!(text.contains("GID[  0]:\t\t\t::ffff:10.0.0.1, RoCE v2\n"), "{text}");
        assert!(devices(&device).ends_with("\n    rxe_rte         \t505400fffe123456\n"));
        assert_eq!(link(&device, false), "link rxe_rte/1 state ACTIVE physical_state LINK_UP netdev \n");
    }

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
