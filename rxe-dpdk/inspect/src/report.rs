//! Reports: the state of a running target as plain data.
//!
//! Names are those of libibverbs' and iproute2's tools where these have one.

use serde::{Deserialize, Serialize};

/// One page of a list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Page<T> {
    /// The entries.
    pub items: Vec<T>,
    /// Start of the next page; `None` after the last.
    pub next: Option<u32>,
}

/// The channel adapter.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Device {
    /// Its name, after the target's `--file-prefix`.
    pub name: String,
    /// The `--file-prefix`.
    pub file_prefix: String,
    /// Its GUID, as in `5054:00ff:fe12:3456`.
    pub node_guid: String,
    /// The version of rxe-target.
    pub fw_ver: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime: u64,
    /// The lcores, by worker number.
    pub lcores: Vec<u32>,
    /// Whether the target refuses new clients and ends with the last one.
    #[serde(default)]
    pub draining: bool,
    /// Limits of the adapter.
    pub limits: Limits,
    /// Ports of the channel adapter.
    pub ports: Vec<Port>,
}

/// Limits, under libibverbs' names.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Queue pairs, on all lcores together.
    pub max_qp: u64,
    /// Outstanding work requests of one queue.
    pub max_qp_wr: u32,
    /// Buffers of one work request.
    pub max_sge: u32,
    /// Completion queues, on all lcores together.
    pub max_cq: u64,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Keys of one lcore.
    pub max_mr: u64,
    /// READs and atomics outstanding on one queue pair, as responder.
    pub max_qp_rd_atom: u8,
    /// READs and atomics that a queue pair may have outstanding as initiator.
    pub max_qp_init_rd_atom: u8,
    /// Shared receive queues, on all lcores together.
    pub max_srq: u64,
    /// Outstanding receives of one shared receive queue.
    pub max_srq_wr: u32,
    /// Address handles, on all lcores together.
    pub max_ah: u64,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs in one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
    /// Whether peers may FLUSH.
    pub flush: bool,
    /// Whether peers may do ATOMIC WRITEs.
    pub atomic_write: bool,
}

/// One port of the channel adapter.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Port {
    /// Number of the port, from 0.
    pub port: u32,
    /// The DPDK device.
    pub netdev: String,
    /// Name of the driver: that of DPDK, or `udp`.
    pub driver: String,
    /// Whether the link is up.
    pub up: bool,
    /// Why it is down.
    #[serde(default)]
    pub reason: Option<String>,
    /// Megabits per second, if the driver knows.
    pub speed_mbps: Option<u32>,
    /// The Ethernet address.
    pub mac: String,
    /// VLAN id; `None` is untagged.
    pub vlan: Option<u16>,
    /// IP MTU.
    pub mtu: u16,
    /// Largest path MTU that this carries.
    pub active_mtu: u32,
    /// Local addresses: the GID table.
    pub addresses: Vec<String>,
    /// Addresses of these that other stations use too.
    #[serde(default)]
    pub conflicts: Vec<AddressConflict>,
    /// Buffers of the port in use: with the driver, in a ring or stage, or held by a fault. Approximate while traffic runs.
    #[serde(default)]
    pub mbufs_in_use: u64,
    /// Buffers of the port.
    #[serde(default)]
    pub mbufs: u64,
    /// Counters of the device.
    pub counters: Vec<Counter>,
}

/// An address of a port that another station uses too.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AddressConflict {
    /// The address.
    pub address: String,
    /// The Ethernet address of the station that used it last.
    pub mac: String,
    /// Number of frames that showed it.
    pub frames: u64,
}

/// Numbers of objects, on one lcore or on all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Resources {
    /// Protection domains.
    pub pd: u64,
    /// Completion queues.
    pub cq: u64,
    /// Queue pairs.
    pub qp: u64,
    /// Connections and listeners.
    pub cm_id: u64,
    /// Memory regions and windows.
    pub mr: u64,
    /// Service instances.
    pub ctx: u64,
    /// Shared receive queues.
    pub srq: u64,
    /// Address handles.
    pub ah: u64,
    /// Connections of the connection manager in any state, those whose ids are kept after their end included. These and the
    /// following tables but the last belong to the control side, on the first lcore.
    #[serde(default)]
    pub conn: u64,
    /// SIDR requests: those of peers, answered ones included, and our own.
    #[serde(default)]
    pub sidr: u64,
    /// TCP streams in any state, TIME-WAIT included.
    #[serde(default)]
    pub tcp: u64,
    /// Neighbours in any state.
    #[serde(default)]
    pub neigh: u64,
    /// Queue pairs with an armed timer.
    #[serde(default)]
    pub timer: u64,
}

impl std::ops::AddAssign for Resources {
    fn add_assign(&mut self, other: Resources) {
        let Resources { pd, cq, qp, cm_id, mr, ctx, srq, ah, conn, sidr, tcp, neigh, timer } = other;
        self.pd += pd;
        self.cq += cq;
        self.qp += qp;
        self.cm_id += cm_id;
        self.mr += mr;
        self.ctx += ctx;
        self.srq += srq;
        self.ah += ah;
        self.conn += conn;
        self.sidr += sidr;
        self.tcp += tcp;
        self.neigh += neigh;
        self.timer += timer;
    }
}

impl Resources {
    /// The names with the counts: those of `rdma resource` in its order, then our own.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 13] {
        let Resources { pd, cq, qp, cm_id, mr, ctx, srq, ah, conn, sidr, tcp, neigh, timer } = *self;
        [
            ("pd", pd),
            ("cq", cq),
            ("qp", qp),
            ("cm_id", cm_id),
            ("mr", mr),
            ("ctx", ctx),
            ("srq", srq),
            ("ah", ah),
            ("conn", conn),
            ("sidr", sidr),
            ("tcp", tcp),
            ("neigh", neigh),
            ("timer", timer),
        ]
    }
}

/// The objects of one lcore.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LcoreResources {
    /// The lcore.
    pub lcore: u32,
    /// Numbers of objects.
    #[serde(flatten)]
    pub resources: Resources,
}

/// A queue pair.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Qp {
    /// Queue pair number.
    pub lqpn: u32,
    /// The peer's, once it is known.
    pub rqpn: Option<u32>,
    /// RC, UC or UD.
    #[serde(rename = "type")]
    pub qp_type: String,
    /// RESET, INIT, RTR, RTS, SQD, SQE or ERROR.
    pub state: String,
    /// The service that created it.
    pub service: Option<String>,
    /// The lcore that owns it.
    pub lcore: u32,
    /// The connection manager's state, for a queue pair with a connection.
    pub connection: Option<Connection>,
    /// The number of the port that it sends on.
    pub port: Option<u32>,
    /// Local address.
    pub local: Option<String>,
    /// The peer's address.
    pub peer: Option<String>,
    /// The Ethernet address of the peer or of the router to it.
    pub peer_mac: Option<String>,
    /// UDP source port of its packets.
    pub udp_src_port: Option<u16>,
    /// Path MTU, in bytes.
    pub path_mtu: Option<u32>,
    /// Protection domain.
    pub pdn: u32,
    /// Name of what it waits for; see [`waits_text`](Self::waits_text).
    pub waits: String,
    /// The reason for waiting, as a sentence.
    pub waits_text: String,
    /// The PSN expected next from the peer.
    pub rq_psn: u32,
    /// The PSN of the next packet of new work.
    pub sq_psn: u32,
    /// The oldest unacknowledged PSN.
    pub unacked_psn: u32,
    /// Unacknowledged packets.
    pub outstanding: u64,
    /// Work requests in the send queue; the limit is `max_send_wr`.
    pub send_queued: u32,
    /// See [`send_queued`](Self::send_queued).
    pub max_send_wr: u32,
    /// Posted receives; the limit is `max_recv_wr`.
    pub recv_queued: u32,
    /// See [`recv_queued`](Self::recv_queued).
    pub max_recv_wr: u32,
    /// Whether receives come from a shared receive queue.
    pub srq: bool,
    /// Outstanding READs and atomics; the limit is `max_rd_atomic`.
    pub rd_outstanding: u32,
    /// See [`rd_outstanding`](Self::rd_outstanding).
    pub max_rd_atomic: u32,
    /// Number of retransmissions.
    pub retries: u64,
    /// Transport retries left, of `retry_cnt`.
    pub retries_left: u8,
    /// See [`retries_left`](Self::retries_left).
    pub retry_cnt: u8,
    /// RNR retries left, of `rnr_retry`; 7 is unlimited.
    pub rnr_retries_left: u8,
    /// See [`rnr_retries_left`](Self::rnr_retries_left).
    pub rnr_retry: u8,
    /// Measured round trip in nanoseconds.
    pub rtt_ns: Option<u64>,
    /// Retransmission timeout in nanoseconds.
    pub timeout_ns: u64,
    /// ACK timeout in nanoseconds; `None` is unlimited.
    pub ack_timeout_ns: Option<u64>,
    /// Remote access rights.
    pub access: Vec<String>,
    /// Packets sent and acknowledged; only differences are meaningful.
    pub tx_packets: u64,
    /// Packets of the peer executed; only differences are meaningful.
    pub rx_packets: u64,
    /// Work requests completed.
    pub sends_completed: u64,
    /// Receives completed, modulo 2^32.
    pub recvs_completed: u32,
    /// Messages completed for the peer, modulo 2^24.
    pub msn: u32,
    /// Congestion notifications received.
    pub cnps_rcvd: u64,
    /// Congestion notifications sent.
    pub cnps_sent: u64,
    /// Bits per second that congestion control allows; `None` is no limit.
    pub rate_bps: Option<u64>,
    /// Packets that may be sent before the oldest is acknowledged.
    pub window: u32,
}

/// A connection of the connection manager.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// Local communication id.
    pub comm_id: u32,
    /// `connecting` or `established`.
    pub state: String,
    /// The peer's address and port, if known.
    pub peer: Option<String>,
    /// Age in seconds, from the request on.
    pub age: u64,
}

impl Connection {
    /// The states of a connection.
    pub const STATES: [&'static str; 2] = ["connecting", "established"];
}

/// A memory region or window.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mr {
    /// The lcore whose queue pairs may use it; `None` for named regions, which all lcores share.
    pub lcore: Option<u32>,
    /// The key, local and remote.
    pub key: u32,
    /// Kind of key.
    pub kind: String,
    /// Region name.
    pub name: Option<String>,
    /// For one of many numbered regions, `NAME*`, the name of all of them together.
    pub numbered: Option<String>,
    /// The address of the first byte.
    pub iova: u64,
    /// Length in bytes.
    pub mrlen: u64,
    /// Protection domain.
    pub pdn: u32,
    /// Access rights.
    pub access: Vec<String>,
    /// Whether part of its memory is lost, as when its file was truncated; then every access fails.
    #[serde(default)]
    pub lost: bool,
}

/// An address of a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Address {
    /// The port's number.
    pub port: u32,
    /// The address with the prefix length of its network.
    pub address: String,
    /// Number of connected queue pairs that use it.
    pub users: u64,
}

/// A named region, or numbered ones.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Region {
    /// The name that clients ask for; of numbered regions what comes before the number.
    pub name: String,
    /// Length in bytes, of each.
    pub size: u64,
    /// Number of numbered regions; `None` for a single one.
    pub count: Option<u32>,
    /// Whether the target prints its text whenever its first byte changes.
    pub watch: bool,
    /// Whether peers may only READ it.
    pub read_only: bool,
    /// The name of its protection domain; `None` for one of its own.
    pub domain: Option<String>,
    /// The file with its bytes.
    pub file: Option<String>,
    /// The networks of its allowed peers; empty for everyone.
    pub peers: Vec<String>,
    /// Number of queue pairs in its protection domain.
    pub users: u64,
    /// Whether part of its memory is lost.
    pub lost: bool,
}

/// The CRC-32C (Castagnoli) of a part of a named region.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionDigest {
    /// Name of the region.
    pub name: String,
    /// Length of the region in bytes.
    pub mrlen: u64,
    /// First byte of the part, counted from the start of the region.
    pub offset: u64,
    /// Length of the part in bytes.
    pub length: u64,
    /// The CRC-32C of the part.
    pub crc32c: u32,
}

/// A counter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Counter {
    /// Name of the counter.
    pub name: String,
    /// Current value.
    pub value: u64,
}

/// The counters of one layer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CounterGroup {
    /// The layer, as in the summary at exit: `worker`, `transport`, `drop`, ...
    pub group: String,
    /// `lcore`, `port`, or `target`.
    pub scope: String,
    /// Number of the lcore or port.
    pub id: u32,
    /// The counters.
    pub counters: Vec<Counter>,
}

impl CounterGroup {
    /// The value of a counter.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.counters.iter().find(|counter| counter.name == name).map(|counter| counter.value)
    }
}

/// Sums of groups with the same name, in the order of their first appearance.
#[must_use]
pub fn sum(groups: &[CounterGroup]) -> Vec<(String, Vec<Counter>)> {
    let mut sums: Vec<(String, Vec<Counter>)> = Vec::new();
    for CounterGroup { group, counters, .. } in groups {
        let Some((_, sum)) = sums.iter_mut().find(|(name, _)| name == group) else {
            sums.push((group.clone(), counters.clone()));
            continue;
        };
        for Counter { name, value } in counters {
            match sum.iter_mut().find(|counter| counter.name == *name) {
                Some(counter) => counter.value = counter.value.wrapping_add(*value),
                None => sum.push(Counter { name: name.clone(), value: *value }),
            }
        }
    }
    sums
}

/// The allowed peers of a port, service or region.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AllowedPeers {
    /// `port0`, `service:NAME` or `region:NAME`.
    pub of: String,
    /// Networks; empty for everyone.
    pub peers: Vec<String>,
}

/// A service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Service {
    /// Name of the service.
    pub name: String,
    /// Where it listens: the connection manager's port spaces, as `tcp:7174` and `udp:7174`, or `stream:18515` for TCP
    /// streams.
    pub listens: Vec<String>,
    /// Whether it refuses new clients, as management has stopped it.
    #[serde(default)]
    pub stopped: bool,
    /// Counters of the service.
    pub counters: Vec<Counter>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_add_up_by_name() {
        let group = |group: &str, id, values: &[(&str, u64)]| CounterGroup {
            group: group.to_owned(),
            scope: "lcore".to_owned(),
            id,
            counters: values.iter().map(|(name, value)| Counter { name: (*name).to_owned(), value: *value }).collect(),
        };
        let groups = [group("a", 0, &[("x", 1), ("y", 2)]), group("b", 0, &[("x", 5)]), group("a", 1, &[("y", 10)])];
        let sums = sum(&groups);
        assert_eq!(sums.len(), 2);
        assert_eq!(sums[0].1.iter().map(|c| (c.name.as_str(), c.value)).collect::<Vec<_>>(), [("x", 1), ("y", 12)]);
        assert_eq!(groups[0].get("y"), Some(2));
        assert_eq!(groups[0].get("z"), None);
        // As the counters themselves, modulo 2^64.
        let sums = sum(&[group("a", 0, &[("x", u64::MAX)]), group("a", 1, &[("x", 3)])]);
        assert_eq!(sums[0].1[0].value, 2);
    }
}
