//! Reports of what workers answer.

use std::time::Duration;

use rxe_inspect::report::{Connection, Mr, Qp};
use rxe_proto::mem::{Access, KeyInfo};
use rxe_proto::wire::cm::PortSpace;

use rxe_service::inspect::QpEntry;

use super::key_names::KeyName;

/// A GUID as libibverbs' tools print it.
pub(super) fn guid(bytes: [u8; 8]) -> String {
    let words: Vec<String> =
        bytes.chunks(2).map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    words.join(":")
}

/// A port space as `rdma resource show cm_id` prints it, in lower case.
pub(super) fn port_space(space: PortSpace) -> String {
    format!("{space:?}").to_lowercase()
}

pub(super) fn qp(entry: &QpEntry, lcore: u32) -> Qp {
    let info = &entry.info;
    let (path, sends) = (info.path.as_ref(), &info.sends);
    Qp {
        lqpn: info.qpn.get(),
        rqpn: info.dest_qpn.map(|qpn| qpn.get()),
        qp_type: info.qp_type.to_string(),
        state: info.state.to_string(),
        service: entry.service.map(str::to_owned),
        lcore,
        connection: entry.connection.as_ref().map(|connection| Connection {
            comm_id: connection.conn.comm_id(),
            state: Connection::STATES[usize::from(connection.established)].to_owned(),
            peer: connection.peer.map(|peer| peer.to_string()),
            age: connection.age.as_secs(),
        }),
        port: path.map(|path| u32::from(path.port.0)),
        local: path.map(|path| path.src.ip().to_string()),
        peer: path.map(|path| path.dst.ip().to_string()),
        peer_mac: path.map(|path| path.dst_mac.to_string()),
        udp_src_port: path.map(|path| path.udp_src_port),
        path_mtu: info.path_mtu.map(|mtu| mtu.bytes() as u32),
        pdn: info.pd.get(),
        waits: info.waits.name().to_owned(),
        waits_text: info.waits.describe().to_owned(),
        rq_psn: info.expected_psn.get(),
        sq_psn: info.next_psn.get(),
        unacked_psn: info.unacked_psn.get(),
        outstanding: sends.unacked,
        send_queued: info.send_queued,
        max_send_wr: info.caps.max_send_wr,
        recv_queued: info.recv_queued,
        max_recv_wr: info.caps.max_recv_wr,
        srq: info.srq.is_some(),
        rd_outstanding: sends.rd_outstanding,
        max_rd_atomic: sends.max_rd_atomic,
        retries: sends.retries,
        retries_left: sends.retries_left,
        retry_cnt: sends.retry_cnt,
        rnr_retries_left: sends.rnr_retries_left,
        rnr_retry: sends.rnr_retry,
        rtt_ns: info.rtt.map(nanos),
        timeout_ns: nanos(sends.timeout),
        ack_timeout_ns: sends.ack_timeout.map(nanos),
        access: access(info.access),
        tx_packets: sends.packets,
        rx_packets: info.packets_served,
        sends_completed: sends.completed,
        recvs_completed: info.recvs_completed,
        msn: info.msn,
        cnps_rcvd: info.cnps.0,
        cnps_sent: info.cnps.1,
        rate_bps: info.rate,
        window: info.window,
    }
}

pub(super) fn mr(info: &KeyInfo, lcore: u32, name: Option<KeyName>) -> Mr {
    Mr {
        lcore: name.is_none().then_some(lcore),
        key: info.key,
        kind: info.kind.name().to_owned(),
        numbered: name.as_ref().and_then(|name| name.numbered.clone()),
        name: name.map(|name| name.name),
        iova: info.addr,
        mrlen: info.len,
        pdn: info.pd.get(),
        access: access(info.access),
        lost: info.lost,
    }
}

/// Access rights, by their names in lower case.
fn access(access: Access) -> Vec<String> {
    access.iter_names().map(|(name, _)| name.to_lowercase()).collect()
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_libibverbs_and_iproute2() {
        assert_eq!(guid([0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x56]), "5054:00ff:fe12:3456");
        assert_eq!((port_space(PortSpace::Tcp), port_space(PortSpace::Udp)), ("tcp".to_owned(), "udp".to_owned()));
        assert_eq!(access(Access::REMOTE_READ | Access::LOCAL_WRITE), ["local_write", "remote_read"]);
    }
}
