//! Queue pairs and their connections.

use std::fmt::Write;
use std::time::Duration;

use rxe_inspect::report::Qp;

use super::{dash, hex};
use crate::table::{Align, Table};

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

/// One queue pair in detail.
pub fn qp(qp: &Qp) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        // Writing to a string cannot fail.
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
    line("sq-psn", format!("{}, the oldest unacknowledged is {}", qp.sq_psn, qp.unacked_psn));
    let reads = format!("{} of {} READs and atomics", qp.rd_outstanding, qp.max_rd_atomic);
    line("outstanding", format!("{} packets, {reads}", qp.outstanding));
    line("send queue", format!("{} of {}, {} completed", qp.send_queued, qp.max_send_wr, qp.sends_completed));
    let shared = if qp.srq { ", more in a shared receive queue" } else { "" };
    line(
        "receive queue",
        format!("{} of {}, {} completed{shared}", qp.recv_queued, qp.max_recv_wr, qp.recvs_completed),
    );
    line("msn", qp.msn.to_string());
    let rnr =
        if qp.rnr_retry == 7 { "unlimited".to_owned() } else { format!("{} of {}", qp.rnr_retries_left, qp.rnr_retry) };
    line("retries", format!("{} so far; left: {} of {}, for RNR {rnr}", qp.retries, qp.retries_left, qp.retry_cnt));
    line("round trip", qp.rtt_ns.map_or_else(|| "not measured".to_owned(), time));
    let ack = qp.ack_timeout_ns.map_or_else(|| "none".to_owned(), time);
    line("timeouts", format!("retransmission {}, ACK {ack}", time(qp.timeout_ns)));
    line("access", if qp.access.is_empty() { "none".to_owned() } else { qp.access.join(" ") });
    line("cnps", format!("{} received, {} sent", qp.cnps_rcvd, qp.cnps_sent));
    let rate = qp.rate_bps.map_or_else(|| "not limited".to_owned(), |bits| format!("{:.3} Gb/s", bits as f64 / 1e9));
    line("rate", format!("{rate}; window {} packets", qp.window));
    text
}

fn time(nanos: u64) -> String {
    format!("{:?}", Duration::from_nanos(nanos))
}

/// The connections of those queue pairs that have one.
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
