//! The commands on DPDK's telemetry socket: summaries, and lists in parts.

use rxe_inspect::report::{Counter, Port, Qp, Resources, sum};

use crate::eal::{Eal, Reading, Readings};
use rxe_adapter::manage::Inspector;

use Reading::{Number, Object, Text};

/// Registers the commands. They report on the adapter that registered last.
pub(crate) fn register(eal: &Eal, inspector: &Inspector) {
    type Answer = fn(&Inspector, &str) -> Readings;
    let commands: [(_, _, Answer); 7] = [
        (c"/rxe/device", c"The channel adapter. No parameters", device),
        (c"/rxe/link", c"The ports. No parameters", link),
        (c"/rxe/resource", c"How many objects there are. No parameters", resource),
        (c"/rxe/stat", c"Counters. Parameters: a group of them (default: transport)", stat),
        (c"/rxe/drops", c"Dropped packets by reason. No parameters", drops),
        (c"/rxe/services", c"Services and where they listen. No parameters", services),
        (c"/rxe/qp", c"Queue pairs, in parts. Parameters: where to start (default: 0), then what was named next", qps),
    ];
    for (command, help, answer) in commands {
        let inspector = inspector.clone();
        if !eal.answer_telemetry(command, help, move |parameters| answer(&inspector, parameters)) {
            tracing::debug!(?command, "DPDK's telemetry refused the command");
        }
    }
}

fn named(name: &str, reading: Reading) -> (String, Reading) {
    (name.to_owned(), reading)
}

fn text(text: impl ToString) -> Reading {
    Text(text.to_string())
}

fn device(inspector: &Inspector, _: &str) -> Readings {
    let device = inspector.device();
    let lcores: Vec<String> = device.lcores.iter().map(ToString::to_string).collect();
    Some(vec![
        named("node_guid", text(device.node_guid)),
        named("phys_port_cnt", Number(device.ports.len() as u64)),
        named("lcores", Text(lcores.join(","))),
        named("uptime", Number(device.uptime)),
        named("max_qp", Number(device.limits.max_qp)),
    ])
}

fn link(inspector: &Inspector, _: &str) -> Readings {
    let port = |port: Port| {
        let readings = vec![
            named("netdev", text(port.netdev)),
            named("state", text(if port.up { "ACTIVE" } else { "DOWN" })),
            named("mac", text(port.mac)),
            named("mtu", Number(port.mtu.into())),
            named("active_mtu", Number(port.active_mtu.into())),
            named("address", text(port.addresses.first().cloned().unwrap_or_default())),
        ];
        (port.port.to_string(), Object(readings))
    };
    Some(inspector.ports().into_iter().map(port).collect())
}

fn resource(inspector: &Inspector, _: &str) -> Readings {
    let mut sums = Resources::default().named();
    for lcore in inspector.resources().ok()? {
        for ((_, sum), (_, count)) in sums.iter_mut().zip(lcore.resources.named()) {
            *sum += count;
        }
    }
    Some(sums.into_iter().map(|(name, count)| named(name, Number(count))).collect())
}

fn stat(inspector: &Inspector, group: &str) -> Readings {
    let group = if group.is_empty() { "transport" } else { group };
    let (_, counters) = sum(&inspector.counters()).into_iter().find(|(name, _)| name == group)?;
    Some(counters.into_iter().map(|Counter { name, value }| (name, Number(value))).collect())
}

fn drops(inspector: &Inspector, _: &str) -> Readings {
    stat(inspector, "drop")
}

fn services(inspector: &Inspector, _: &str) -> Readings {
    Some(inspector.services().into_iter().map(|service| (service.name, Text(service.listens.join(" ")))).collect())
}

fn qps(inspector: &Inspector, start: &str) -> Readings {
    let start = if start.is_empty() { 0 } else { start.parse().ok()? };
    let page = inspector.qps(start).ok()?;
    let mut readings: Vec<(String, Reading)> = page.items.into_iter().map(qp).collect();
    if let Some(next) = page.next {
        readings.push(named("next", Number(next.into())));
    }
    Some(readings)
}

/// Kept short, as up to 64 of them must fit 16 KiB.
fn qp(qp: Qp) -> (String, Reading) {
    let readings = vec![
        named("type", text(qp.qp_type)),
        named("state", text(qp.state)),
        named("service", text(qp.service.unwrap_or_default())),
        named("peer", text(qp.peer.unwrap_or_default())),
        named("rqpn", Number(qp.rqpn.unwrap_or_default().into())),
        named("outstanding", Number(qp.outstanding)),
        named("retries", Number(qp.retries)),
        named("waits", text(qp.waits)),
    ];
    (format!("{:#x}", qp.lqpn), Object(readings))
}
