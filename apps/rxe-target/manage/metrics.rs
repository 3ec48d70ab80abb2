//! Metrics for Prometheus.
//!
//! The number of time series depends on ports, lcores, services, namespaces and names of counters, never on the number of peers. Each exists
//! from the start, with the value 0.

use std::time::{SystemTime, UNIX_EPOCH};

use rxe_adapter::manage::Inspector;
use rxe_inspect::latency::{Latency, NamespaceTimes, OperationTimes, TurnTimes};
use rxe_inspect::report::{Connection, CounterGroup, Device, Qp};
use rxe_proto::transport::{QpState, QpType, Wait};

use super::client_stats::{self, MANAGEMENT};
use super::exposition::{Exposition, Kind};
use super::{Managed, events};
use crate::services::{MetricsRegistry, describe_counter, service_counter_names};

/// All metrics as text.
pub fn text(managed: &Managed) -> Result<String, String> {
    let mut exposition = Exposition::default();
    let device = managed.device();
    about(&mut exposition, &device);
    for group in managed.counters() {
        counters(&mut exposition, &managed.inspector, &device, &group);
    }
    latency(&mut exposition, &managed.latency());
    let services: Vec<String> = managed.inspector.services().into_iter().map(|service| service.name).collect();
    service_counters(&mut exposition, &managed.registry, &services);
    for lcore in managed.inspector.resources().map_err(|error| error.to_string())? {
        for (name, count) in lcore.resources.named() {
            let labels = [("type", name), ("lcore", &lcore.lcore.to_string())];
            exposition.add("rxe_resources", Kind::Gauge, "Objects there are, by type.", &labels, count);
        }
    }
    no_queue_pairs(&mut exposition, &services);
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
        let bits = u64::from(port.speed_mbps.unwrap_or_default()) * 1_000_000;
        let help = "Speed of the link, 0 if the driver does not know it.";
        exposition.add("rxe_port_speed_bits_per_second", Kind::Gauge, help, &labels, bits);
    }
}

fn counters(exposition: &mut Exposition, inspector: &Inspector, device: &Device, group: &CounterGroup) {
    // The counters of the control side belong to the lcore that it runs on.
    let id = if group.scope == "target" { device.lcores.first().copied().unwrap_or_default() } else { group.id };
    let id = id.to_string();
    let of = if group.scope == "port" { ("port", &*id) } else { ("lcore", &*id) };
    for counter in &group.counters {
        let help = match &*group.group {
            MANAGEMENT => client_stats::describe(&counter.name).or_else(|| events::describe(&counter.name)),
            other => inspector.describe(other, &counter.name),
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

/// The counters of every service, and of others that are counted with them, such as silent clients of a shared port. Series of a
/// service that counts nothing by itself are zero.
fn service_counters(exposition: &mut Exposition, registry: &MetricsRegistry, services: &[String]) {
    let mut add = |service: &str, counter: &str, value| {
        let help = describe_counter(counter).unwrap_or_default();
        exposition.add(&format!("rxe_service_{counter}_total"), Kind::Counter, help, &[("service", service)], value);
    };
    for service in services {
        service_counter_names().for_each(|counter| add(service, counter, 0));
    }
    for (service, counters) in registry.sums() {
        counters.into_iter().for_each(|(counter, value)| add(service, counter, value));
    }
}

fn latency(exposition: &mut Exposition, latency: &Latency) {
    for TurnTimes { lcore, times } in &latency.turns {
        let help = "Times of turns of a worker's loop that found something to do.";
        exposition.add_histogram("rxe_worker_turn_seconds", help, &[("lcore", &lcore.to_string())], times);
    }
    for OperationTimes { service, role, operation, times } in &latency.operations {
        let help = "Times of operations that span turns, of peers (responder) and of the service (requester).";
        let labels = [("service", service.as_str()), ("role", role.as_str()), ("operation", operation.as_str())];
        exposition.add_histogram("rxe_operation_seconds", help, &labels, times);
    }
    for NamespaceTimes { subsystem, nsid, command, times } in &latency.namespaces {
        let help = "Times of NVMe commands, from their arrival to their response.";
        let labels = [("subsystem", subsystem.as_str()), ("nsid", &nsid.to_string()), ("command", command.as_str())];
        exposition.add_histogram("rxe_nvmf_command_seconds", help, &labels, times);
    }
}

/// The service of queue pairs that belong to none.
const NO_SERVICE: &str = "none";
const QUEUE_PAIRS: (&str, &str) = ("rxe_queue_pairs", "Queue pairs, by service, type and state.");
const WAITING: (&str, &str) = ("rxe_queue_pairs_waiting", "Queue pairs, by what they wait for.");
const CONNECTIONS: (&str, &str) = ("rxe_connections", "Connections, by service and state.");

/// Every series of queue pairs and connections, so that none is missing while there are no such objects.
fn no_queue_pairs(exposition: &mut Exposition, services: &[String]) {
    for service in services.iter().map(String::as_str).chain([NO_SERVICE]) {
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
            for state in QpState::ALL {
                let (qp_type, state) = (qp_type.to_string(), state.to_string());
                let labels = [("service", service), ("type", qp_type.as_str()), ("state", state.as_str())];
                exposition.add(QUEUE_PAIRS.0, Kind::Gauge, QUEUE_PAIRS.1, &labels, 0);
            }
        }
        for state in Connection::STATES {
            exposition.add(CONNECTIONS.0, Kind::Gauge, CONNECTIONS.1, &[("service", service), ("state", state)], 0);
        }
    }
    for wait in Wait::ALL {
        exposition.add(WAITING.0, Kind::Gauge, WAITING.1, &[("waits", wait.name())], 0);
    }
}

fn queue_pair(exposition: &mut Exposition, qp: &Qp) {
    let service = qp.service.as_deref().unwrap_or(NO_SERVICE);
    let labels = [("service", service), ("type", &*qp.qp_type), ("state", &qp.state)];
    exposition.add(QUEUE_PAIRS.0, Kind::Gauge, QUEUE_PAIRS.1, &labels, 1);
    exposition.add(WAITING.0, Kind::Gauge, WAITING.1, &[("waits", &qp.waits)], 1);
    if let Some(connection) = &qp.connection {
        let labels = [("service", service), ("state", &connection.state)];
        exposition.add(CONNECTIONS.0, Kind::Gauge, CONNECTIONS.1, &labels, 1);
    }
}
