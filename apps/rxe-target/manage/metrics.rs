//! Metrics for Prometheus.
//!
//! The number of time series depends on ports, lcores, services and names of counters, never on the number of peers.

use std::time::{SystemTime, UNIX_EPOCH};

use rxe_dpdk::counters::describe;
use rxe_inspect::report::{CounterGroup, Device, Qp};

use super::clients::{self, MANAGEMENT};
use super::exposition::{Exposition, Kind};
use super::{Managed, answers, events};
use crate::services::describe_counter;

/// All metrics as text.
pub fn text(managed: &Managed) -> Result<String, String> {
    let mut exposition = Exposition::default();
    let device = managed.device();
    about(&mut exposition, &device);
    for group in managed.counters() {
        counters(&mut exposition, &device, &group);
    }
    for service in answers::services(managed) {
        for counter in &service.counters {
            let name = format!("rxe_service_{}_total", counter.name);
            let help = describe_counter(&counter.name).unwrap_or_default();
            exposition.add(&name, Kind::Counter, help, &[("service", &service.name)], counter.value);
        }
    }
    for lcore in managed.inspector.resources().map_err(|error| error.to_string())? {
        for (name, count) in lcore.resources.named() {
            let labels = [("type", name), ("lcore", &lcore.lcore.to_string())];
            exposition.add("rxe_resources", Kind::Gauge, "Objects there are, by type.", &labels, count);
        }
    }
    let mut start = Some(0);
    while let Some(from) = start {
        let page = managed.inspector.qps(from).map_err(|error| error.to_string())?;
        page.items.iter().for_each(|qp| queue_pair(&mut exposition, qp));
        start = page.next;
    }
    Ok(exposition.text())
}

fn about(exposition: &mut Exposition, device: &Device) {
    let labels = [("version", &*device.fw_ver), ("device", &device.name)];
    exposition.add("rxe_info", Kind::Gauge, "1, with the version and the device as labels.", &labels, 1);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let started = now.saturating_sub(device.uptime);
    exposition.add("rxe_start_time_seconds", Kind::Gauge, "When the target was started.", &[], started);
    for port in &device.ports {
        let number = port.port.to_string();
        let labels = [("port", &*number), ("netdev", &port.netdev)];
        exposition.add("rxe_port_up", Kind::Gauge, "Whether the link is up.", &labels, u64::from(port.up));
        exposition.add("rxe_port_mtu_bytes", Kind::Gauge, "IP MTU.", &labels, u64::from(port.mtu));
        let (mbufs, in_use) = (port.mbufs, port.mbufs_in_use);
        exposition.add("rxe_port_mbufs", Kind::Gauge, "Buffers of the port.", &labels, mbufs);
        exposition.add("rxe_port_mbufs_in_use", Kind::Gauge, "Buffers of the port in use.", &labels, in_use);
        if let Some(mbps) = port.speed_mbps {
            let bits = u64::from(mbps) * 1_000_000;
            exposition.add("rxe_port_speed_bits_per_second", Kind::Gauge, "Speed of the link.", &labels, bits);
        }
    }
}

fn counters(exposition: &mut Exposition, device: &Device, group: &CounterGroup) {
    // The counters of the control side belong to the lcore that it runs on.
    let id = if group.scope == "target" { device.lcores.first().copied().unwrap_or_default() } else { group.id };
    let id = id.to_string();
    let of = if group.scope == "port" { ("port", &*id) } else { ("lcore", &*id) };
    for counter in &group.counters {
        let help = match &*group.group {
            MANAGEMENT => clients::describe(&counter.name).or_else(|| events::describe(&counter.name)),
            other => describe(other, &counter.name),
        };
        let help = help.unwrap_or_default();
        let mut add = |name: String, help: &str, labels: &[(&str, &str)]| {
            exposition.add(&name, Kind::Counter, help, labels, counter.value);
        };
        let plain = |group: &str| format!("rxe_{group}_{}_total", counter.name);
        match &*group.group {
            "drop" => {
                let labels = [("reason", &*counter.name), of];
                add("rxe_drops_total".to_owned(), "Packets dropped, by reason.", &labels);
            }
            "rx_fault" => add(plain("fault"), help, &[("direction", "rx"), of]),
            "tx_fault" => add(plain("fault"), help, &[("direction", "tx"), of]),
            // Sums over all services of an lcore; each service's own counters carry its name.
            "service" => add(plain("worker"), help, &[of]),
            "control" | "cm" | "output" | MANAGEMENT => add(plain(&group.group), help, &[]),
            other => add(plain(other), help, &[of]),
        }
    }
}

fn queue_pair(exposition: &mut Exposition, qp: &Qp) {
    let service = qp.service.as_deref().unwrap_or("none");
    let labels = [("service", service), ("type", &*qp.qp_type), ("state", &qp.state)];
    exposition.add("rxe_queue_pairs", Kind::Gauge, "Queue pairs, by service, type and state.", &labels, 1);
    let help = "Queue pairs, by what they wait for.";
    exposition.add("rxe_queue_pairs_waiting", Kind::Gauge, help, &[("waits", &qp.waits)], 1);
    if let Some(connection) = &qp.connection {
        let labels = [("service", service), ("state", &connection.state)];
        exposition.add("rxe_connections", Kind::Gauge, "Connections, by service and state.", &labels, 1);
    }
}
