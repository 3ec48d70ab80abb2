//! Requests and answers of the management protocol: one of each kind.

use std::collections::BTreeMap;

use rxe_inspect::capture::{CaptureSettings, CaptureStatus};
use rxe_inspect::event::{Event, EventKind};
use rxe_inspect::fault::Fault;
use rxe_inspect::protocol::{Reply, Request};
use rxe_inspect::report::{
    AllowedPeers, Connection, Counter, CounterGroup, Device, LcoreResources, Mr, Page, Port, Qp, Region, RegionDigest,
    Resources, Service,
};
use serde::Serialize;

use crate::Corpus;

/// Length of the pieces in which the bytes arrive, less one.
const PIECE: u8 = 10;

pub fn all() -> Corpus {
    let mut corpus = BTreeMap::new();
    let settings = CaptureSettings {
        qpns: vec![0x11],
        peers: vec!["10.0.0.2".parse().expect("an address")],
        size: Some(64),
        files: Some(3),
        ..CaptureSettings::new("/tmp/rxe.pcapng".into())
    };
    let requests = [
        Request::Device,
        Request::Resources,
        Request::Qps { start: 0 },
        Request::Qp { qpn: 0x11 },
        Request::Mrs { start: 64 },
        Request::Digest { name: "a".to_owned(), offset: 8, length: Some(9) },
        Request::Regions,
        Request::AddRegion { region: "a=1M,read-only".to_owned() },
        Request::RemoveRegion { name: "a".to_owned(), force: true },
        Request::Counters,
        Request::Services,
        Request::StopService { name: "rping".to_owned(), force: false },
        Request::StartService { name: "rping".to_owned() },
        Request::Peers,
        Request::SetPeers { of: "port0".to_owned(), peers: vec!["10.0.0.0/24".to_owned()] },
        Request::Disconnect { qpn: 1 },
        Request::Faults,
        Request::AddFault { rule: [("action".to_owned(), "drop".to_owned())].into() },
        Request::RemoveFault { id: 1 },
        Request::ClearFaults,
        Request::SetLog { level: "debug".to_owned() },
        Request::CaptureStart { settings: settings.clone() },
        Request::CaptureStop,
        Request::CaptureStatus,
        Request::Events,
    ];
    let mut lines = vec![PIECE];
    for request in requests {
        lines.extend(serde_json::to_vec(&request).expect("written"));
        lines.push(b'\n');
    }
    corpus.insert("requests".to_owned(), lines);

    let mut add = |name: &str, reply: Reply| {
        let text = serde_json::to_string(&reply).expect("written");
        corpus.insert(name.to_owned(), format!("\n{text}\n").into_bytes());
    };
    let counters = vec![Counter { name: "rcvd_pkts".to_owned(), value: u64::MAX }];
    let ports = vec![Port { counters: counters.clone(), vlan: Some(7), ..Port::default() }];
    add("device", of(Device { ports, lcores: vec![1, 2], ..Device::default() }));
    add("resources", of([LcoreResources { lcore: 2, resources: Resources { qp: 3, ..Resources::default() } }]));
    add("queue-pairs", of(Page { items: vec![qp()], next: Some(64) }));
    add("queue-pair", of(qp()));
    add("regions", of(Page { items: vec![region()], next: None }));
    add("digest", of(RegionDigest { name: "a".to_owned(), mrlen: 9, offset: 1, length: 8, crc32c: 0x1234_5678 }));
    add("named-regions", of([Region { name: "a".to_owned(), size: 9, ..Region::default() }]));
    let (group, scope) = ("transport".to_owned(), "lcore".to_owned());
    let group = CounterGroup { group, scope, id: 0, counters: counters.clone() };
    add("counters", of([group.clone(), CounterGroup { id: 1, ..group }]));
    let listens = vec!["tcp:7174".to_owned()];
    add("services", of([Service { name: "rping".to_owned(), listens, stopped: true, counters }]));
    add("peers", of([AllowedPeers { of: "port0".to_owned(), peers: vec!["10.0.0.0/24".to_owned()] }]));
    add("faults", of([fault()]));
    let file = settings.file.clone();
    let ended = Some("it was stopped".to_owned());
    add(
        "capture",
        of(CaptureStatus { running: false, settings, file, seconds: 1, frames: 2, bytes: 3, lost: 0, ended }),
    );
    add("nothing", of(()));
    add("number", of(7));
    let kind = EventKind::Link { port: 1, up: false, reason: Some("there is no link".to_owned()) };
    add("event", Reply::Event(Event { time: "2026-01-31T23:59:59.123456Z".to_owned(), kind }));
    add("error", Reply::of(Err::<(), _>("there is no queue pair 0x1".to_owned())));
    corpus
}

fn of(answer: impl Serialize) -> Reply {
    Reply::of(Ok(answer))
}

fn qp() -> Qp {
    let (qp_type, state, waits) = ("RC".to_owned(), "RTS".to_owned(), "nothing".to_owned());
    let connection = Connection { comm_id: 7, state: "established".to_owned(), peer: None, age: 1 };
    Qp {
        lqpn: 0x11,
        rqpn: Some(0x22),
        qp_type,
        state,
        service: Some("rping".to_owned()),
        lcore: 1,
        connection: Some(connection),
        port: Some(1),
        local: Some("10.0.0.1".to_owned()),
        peer: None,
        peer_mac: None,
        udp_src_port: Some(0xC000),
        path_mtu: Some(1024),
        pdn: 1,
        waits_text: waits.clone(),
        waits,
        rq_psn: 1,
        sq_psn: 2,
        unacked_psn: 2,
        outstanding: 0,
        send_queued: 0,
        max_send_wr: 16,
        recv_queued: 3,
        max_recv_wr: 16,
        srq: false,
        rd_outstanding: 0,
        max_rd_atomic: 1,
        retries: 0,
        retries_left: 7,
        retry_cnt: 7,
        rnr_retries_left: 7,
        rnr_retry: 7,
        rtt_ns: Some(20_000),
        timeout_ns: 1_000_000,
        ack_timeout_ns: None,
        access: vec!["remote_write".to_owned()],
        tx_packets: 1,
        rx_packets: 2,
        sends_completed: 3,
        recvs_completed: 4,
        msn: 5,
        cnps_rcvd: 0,
        cnps_sent: 0,
        rate_bps: Some(1_000_000_000),
        window: 128,
    }
}

fn region() -> Mr {
    Mr {
        lcore: None,
        key: 0x1234,
        kind: "region".to_owned(),
        name: Some("a".to_owned()),
        numbered: None,
        iova: 0x1000,
        mrlen: 9,
        pdn: 1,
        access: Vec::new(),
        lost: false,
    }
}

fn fault() -> Fault {
    Fault {
        id: 1,
        direction: "rx".to_owned(),
        action: "drop".to_owned(),
        rule: "rx drop probability=0.01".to_owned(),
        frames: "roce".to_owned(),
        opcode: Some("RC WRITE_ONLY".to_owned()),
        qpn: Some(0x11),
        psn: Some((1, 2)),
        probability: 0.01,
        count: Some(3),
        seed: 4,
        delay_ns: None,
        jitter_ns: None,
        code: None,
        timer: None,
        matched: 1,
        hits: 1,
    }
}
