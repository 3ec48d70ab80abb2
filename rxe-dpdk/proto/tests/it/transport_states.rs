//! The queue pair as a table: every type, every state, every event, and its outcome. The
//! table was produced by running the engine and then read line by line.
//!
//! Before each thing happens, a queue pair in RTR or later has received one SEND; an RC one in RTS or SQD waits for the
//! answers to a SEND (PSN 0, number 1) and a READ (PSN 1, number 2). Two receives are posted from INIT on (101 and
//! 102).

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::harness::scripted_peer::{AckReq, PEER_QPN, ScriptedPeer};
use crate::harness::{Agreed, PORT, QKEY, path};
use rxe_proto::transport::{
    AhId, EngineConfig, PostError, QpError, QpState, QpTransition, QpType, Qpn, RecvWr, RemoteAddr, RtrAttr, RtsAttr,
    SendFlags, SendOp, SendWr, Sge, SrqId,
};
use rxe_proto::wire::{
    BthFields, BthOpcode, DEFAULT_PKEY, DropReason, Frame, HeaderTemplate, NakCode, Opcode, Path, PathMtu, PortId, Psn,
    Syndrome, classify,
};

use AckReq::Ack;
use Opcode::*;

const MTU: usize = 1024;

/// An event: its name, its types of queue pairs, and its function, whose result is in the table as well.
struct Event {
    name: &'static str,
    types: &'static [QpType],
    receives: Receives,
    happen: fn(&mut ScriptedPeer) -> String,
}

/// Receives that the queue pair finds when it needs one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Receives {
    Two,
    None,
    /// A shared queue, which is empty.
    SharedEmpty,
}

const ALL: &[QpType] = &[QpType::Rc, QpType::Uc, QpType::Ud];
const CONNECTED: &[QpType] = &[QpType::Rc, QpType::Uc];
const RC: &[QpType] = &[QpType::Rc];
const UD: &[QpType] = &[QpType::Ud];

fn event(name: &'static str, types: &'static [QpType], happen: fn(&mut ScriptedPeer) -> String) -> Event {
    Event { name, types, receives: Receives::Two, happen }
}

fn refused(error: PostError) -> String {
    match error {
        PostError::State(_) => "refused: not in this state".to_owned(),
        other => format!("refused: {other}"),
    }
}

fn modify(peer: &mut ScriptedPeer, transition: QpTransition) -> String {
    let qpn = peer.node.qpn;
    match peer.node.engine.modify_qp(qpn, transition) {
        Ok(()) => String::new(),
        Err(QpError::Transition { .. }) => "refused: no such way".to_owned(),
        Err(other) => format!("refused: {other}"),
    }
}

fn to_init(qp_type: QpType) -> QpTransition {
    match qp_type {
        QpType::Ud => QpTransition::ToInitDatagram { port: PORT, qkey: QKEY },
        _ => QpTransition::ToInit { access: Agreed::default().access },
    }
}

fn to_rtr(qp_type: QpType) -> QpTransition {
    match qp_type {
        QpType::Ud => QpTransition::ToRtrDatagram { path_mtu: PathMtu::Mtu1024 },
        _ => QpTransition::ToRtr(RtrAttr {
            path: path(1, 2),
            path_mtu: PathMtu::Mtu1024,
            dest_qpn: Qpn::new(PEER_QPN),
            rq_psn: Agreed::default().rq_psn,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
        }),
    }
}

fn to_rts(qp_type: QpType) -> QpTransition {
    let sq_psn = Agreed::default().sq_psn;
    match qp_type {
        QpType::Ud => QpTransition::ToRtsDatagram { sq_psn },
        _ => QpTransition::ToRts(RtsAttr { sq_psn, timeout: 8, retry_cnt: 2, rnr_retry: 1, max_rd_atomic: 4 }),
    }
}

/// A queue pair in a state, nothing unread. `None` when the state cannot be reached.
fn in_state(qp_type: QpType, state: QpState, receives: Receives) -> Option<ScriptedPeer> {
    let shared = receives == Receives::SharedEmpty;
    let mut peer = ScriptedPeer::of(qp_type, shared, Agreed::default(), EngineConfig::default());
    let qpn = peer.node.qpn;
    assert_eq!(peer.node.engine.create_ah(peer.node.pd, &path(1, 2)), Ok(AhId(0)));
    modify(&mut peer, QpTransition::ToReset);
    let way: &[fn(QpType) -> QpTransition] = match state {
        QpState::Reset => &[],
        QpState::Init => &[to_init],
        QpState::Rtr => &[to_init, to_rtr],
        QpState::Rts => &[to_init, to_rtr, to_rts],
        QpState::Sqd => &[to_init, to_rtr, to_rts, |_| QpTransition::ToSqd],
        QpState::Sqe if qp_type == QpType::Rc => return None,
        QpState::Sqe => &[to_init, to_rtr, to_rts],
        QpState::Error => &[to_init, to_rtr, to_rts, |_| QpTransition::ToError],
    };
    for transition in way {
        let transition = transition(qp_type);
        let target = transition.target();
        assert_eq!(modify(&mut peer, transition), "");
        if target == QpState::Rtr {
            let sges = [peer.node.sge(0x8000, 4096)];
            let wr = RecvWr { wr_id: 100, sges: &sges };
            match shared {
                true => peer.node.engine.post_srq_recv(SrqId(0), &wr),
                false => peer.node.engine.post_recv(qpn, &wr),
            }
            .unwrap();
            send(&mut peer, 0);
            peer.transmit();
        }
        if target == QpState::Rts && qp_type == QpType::Rc {
            peer.node.post_send(1, SendOp::Send { imm: None }, &[peer.node.sge(0, 1)]);
            peer.node.post_send(2, SendOp::Read { remote: RemoteAddr::default() }, &[peer.node.sge(0, 8)]);
            peer.transmit();
        }
    }
    if receives == Receives::Two && state != QpState::Reset {
        for wr_id in [101, 102] {
            peer.node.post_recv(wr_id, &[peer.node.sge(0x8000, 4096)]);
        }
    }
    if state == QpState::Sqe {
        post(&mut peer, 3, Sge { addr: 0, length: 1, lkey: 4711 });
        peer.transmit();
    }
    let _read = (peer.node.take_completions(), peer.node.take_events());
    assert_eq!(peer.node.engine.query_qp(qpn).unwrap().state, state);
    Some(peer)
}

fn post(peer: &mut ScriptedPeer, wr_id: u64, sge: Sge) -> String {
    let op = operation(peer);
    let qpn = peer.node.qpn;
    let wr = SendWr { wr_id, op, sges: &[sge], flags: SendFlags::SIGNALED };
    peer.node.engine.post_send(qpn, &wr).err().map_or(String::new(), refused)
}

/// An operation of a queue pair of this type.
fn operation(peer: &ScriptedPeer) -> SendOp {
    match peer.qp_type {
        QpType::Ud => SendOp::Datagram { ah: AhId(0), qpn: Qpn::new(PEER_QPN), qkey: QKEY, imm: None },
        _ => SendOp::Send { imm: None },
    }
}

/// The peer sends a message of one packet.
fn send(peer: &mut ScriptedPeer, psn: i32) -> String {
    match peer.qp_type {
        QpType::Ud => datagram(peer, QKEY, Qpn::default(), b"x"),
        _ => peer.request(SendOnly, psn, Ack, b"x"),
    }
    String::new()
}

/// The peer sends a datagram, to the queue pair if no other destination is given.
fn datagram(peer: &mut ScriptedPeer, qkey: u32, dest: Qpn, payload: &[u8]) {
    let frame = datagram_frame(peer, qkey, dest, payload);
    peer.inject(&frame);
}

fn datagram_frame(peer: &ScriptedPeer, qkey: u32, dest: Qpn, payload: &[u8]) -> Vec<u8> {
    let group = rxe_proto::wire::Gid::from(std::net::Ipv4Addr::new(239, 0, 0, 1));
    let (dest, path) = match dest {
        Qpn::MULTICAST => (dest, Path { dst: group, ..path(2, 1) }),
        _ => (peer.node.qpn, path(2, 1)),
    };
    let template = HeaderTemplate::new(&path);
    let fields = BthFields {
        opcode: BthOpcode::ud(SendOnly),
        dest_qp: dest.get(),
        psn: Psn::new(0),
        solicited: false,
        ack_req: false,
        pkey: DEFAULT_PKEY,
    };
    let mut frame = vec![0; template.frame_len(fields.opcode, payload.len())];
    let mut packet = template.build(&mut frame, fields, payload.len());
    packet.deth(qkey, PEER_QPN);
    packet.payload_mut().copy_from_slice(payload);
    packet.finish();
    frame
}

/// A message of one packet that the peer sends, as a frame.
fn message(peer: &ScriptedPeer) -> Vec<u8> {
    match peer.qp_type {
        QpType::Ud => datagram_frame(peer, QKEY, Qpn::default(), b"x"),
        _ => peer.frame(SendOnly, peer.agreed.rq_psn.add(1), Ack, b"x", |_| {}),
    }
}

/// Time passes until the engine writes something, or changes its state.
fn time_passes(peer: &mut ScriptedPeer) -> String {
    let state = peer.node.state();
    for _ in 0..64 {
        let Some(at) = peer.node.engine.next_timeout() else { return "no timer".to_owned() };
        peer.advance(at.saturating_since(peer.now));
        if peer.node.engine.wants_transmit() || peer.node.state() != state {
            return String::new();
        }
    }
    panic!("wakes up and does nothing");
}

/// As a packet of RC, whatever the type.
fn reliably(peer: &mut ScriptedPeer, script: fn(&mut ScriptedPeer)) -> String {
    let qp_type = std::mem::replace(&mut peer.qp_type, QpType::Rc);
    script(peer);
    peer.qp_type = qp_type;
    String::new()
}

fn events() -> Vec<Event> {
    let no_receive = |name, receives| Event { name, types: ALL, receives, happen: |peer| send(peer, 1) };
    let mut events = vec![
        event("to INIT", ALL, |peer| modify(peer, to_init(peer.qp_type))),
        event("to RTR", ALL, |peer| modify(peer, to_rtr(peer.qp_type))),
        event("to RTS", ALL, |peer| modify(peer, to_rts(peer.qp_type))),
        event("resume", ALL, |peer| modify(peer, QpTransition::Resume)),
        event("to SQD", ALL, |peer| modify(peer, QpTransition::ToSqd)),
        event("to ERROR", ALL, |peer| modify(peer, QpTransition::ToError)),
        event("to RESET", ALL, |peer| modify(peer, QpTransition::ToReset)),
        event("to INIT of another type", ALL, |peer| {
            let other = if peer.qp_type == QpType::Ud { QpType::Rc } else { QpType::Ud };
            modify(peer, to_init(other))
        }),
        event("destroy", ALL, |peer| {
            let qpn = peer.node.qpn;
            peer.node.engine.destroy_qp(peer.now, qpn).unwrap();
            String::new()
        }),
        event("post send", ALL, |peer| post(peer, 9, peer.node.sge(0, 5))),
        event("post send inline", ALL, |peer| {
            let qpn = peer.node.qpn;
            let wr = SendWr { wr_id: 9, op: operation(peer), sges: &[], flags: SendFlags::SIGNALED };
            peer.node.engine.post_send_inline(qpn, &wr, b"inline").err().map_or(String::new(), refused)
        }),
        event("post READ", ALL, |peer| {
            let op = SendOp::Read { remote: RemoteAddr::default() };
            let (qpn, sges) = (peer.node.qpn, [peer.node.sge(0, 8)]);
            let wr = SendWr { wr_id: 9, op, sges: &sges, flags: SendFlags::SIGNALED };
            peer.node.engine.post_send(qpn, &wr).err().map_or(String::new(), refused)
        }),
        event("post bad lkey", ALL, |peer| post(peer, 9, Sge { addr: 0, length: 1, lkey: 4711 })),
        event("post receive", ALL, |peer| {
            let qpn = peer.node.qpn;
            peer.node.engine.post_recv(qpn, &RecvWr { wr_id: 109, sges: &[] }).err().map_or(String::new(), refused)
        }),
        event("message", ALL, |peer| send(peer, 1)),
        no_receive("message, no receive", Receives::None),
        no_receive("message, SRQ empty", Receives::SharedEmpty),
        event("message, damaged", ALL, |peer| {
            let mut frame = message(peer);
            let last = frame.len() - 6;
            frame[last] ^= 1;
            peer.inject(&frame);
            String::new()
        }),
        event("message, other port", ALL, |peer| {
            let frame = message(peer);
            let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!() };
            peer.node.engine.receive(peer.now, PortId(1), &packet);
            String::new()
        }),
        event("message, other type", ALL, |peer| {
            match peer.qp_type {
                QpType::Ud => return reliably(peer, |peer| peer.request(SendOnly, 1, Ack, b"x")),
                _ => datagram(peer, QKEY, Qpn::default(), b"x"),
            }
            String::new()
        }),
    ];
    events.extend(requests());
    events.extend(datagrams());
    events.extend(responses());
    events
}

fn requests() -> Vec<Event> {
    vec![
        event("SEND of two packets", CONNECTED, |peer| {
            peer.request(SendFirst, 1, AckReq::NoAck, &[1; MTU]);
            peer.request(SendLast, 2, Ack, b"x");
            String::new()
        }),
        event("SEND in the middle of a SEND", CONNECTED, |peer| {
            peer.request(SendFirst, 1, AckReq::NoAck, &[1; MTU]);
            send(peer, 2)
        }),
        event("SEND_LAST alone", CONNECTED, |peer| {
            peer.request(SendLast, 1, Ack, b"x");
            String::new()
        }),
        event("SEND too long", CONNECTED, |peer| {
            peer.request(SendOnly, 1, Ack, &[1; MTU + 4]);
            String::new()
        }),
        event("SEND again", CONNECTED, |peer| send(peer, 0)),
        event("SEND beyond a gap", CONNECTED, |peer| send(peer, 3)),
        event("SEND, marked (ECN)", CONNECTED, |peer| {
            peer.mark_congestion(true);
            send(peer, 1)
        }),
        event("WRITE", CONNECTED, |peer| {
            peer.rdma(WriteOnly, 1, Ack, 0, 1, b"w");
            String::new()
        }),
        event("WRITE, bad rkey", CONNECTED, |peer| {
            peer.rdma_raw(WriteOnly, 1, Ack, 0, 4711, 1, b"w");
            String::new()
        }),
        event("READ", RC, |peer| {
            peer.rdma(ReadRequest, 1, Ack, 0, 8, b"");
            String::new()
        }),
        event("READ, bad rkey", RC, |peer| {
            peer.rdma_raw(ReadRequest, 1, Ack, 0, 4711, 8, b"");
            String::new()
        }),
        event("READ again, unknown", RC, |peer| {
            peer.rdma(ReadRequest, 0, Ack, 0, 8, b"");
            String::new()
        }),
        event("five READs of four", RC, |peer| {
            for psn in 1..6 {
                peer.rdma(ReadRequest, psn, Ack, 0, 8, b"");
            }
            String::new()
        }),
        event("FETCH_ADD", RC, |peer| {
            peer.atomic(FetchAdd, 1, 8, 1, 0);
            String::new()
        }),
        event("FETCH_ADD, misaligned", RC, |peer| {
            peer.atomic(FetchAdd, 1, 9, 1, 0);
            String::new()
        }),
        event("ATOMIC_WRITE, not offered", RC, |peer| {
            peer.rdma(AtomicWrite, 1, Ack, 0, 8, &[1; 8]);
            String::new()
        }),
    ]
}

fn datagrams() -> Vec<Event> {
    vec![
        event("datagram, wrong Q_Key", UD, |peer| {
            datagram(peer, QKEY + 1, Qpn::default(), b"x");
            String::new()
        }),
        event("datagram beyond the MTU", UD, |peer| {
            datagram(peer, QKEY, Qpn::default(), &[1; MTU + 4]);
            String::new()
        }),
        event("datagram to no group of ours", UD, |peer| {
            datagram(peer, QKEY, Qpn::MULTICAST, b"x");
            String::new()
        }),
    ]
}

fn responses() -> Vec<Event> {
    vec![
        event("CNP", ALL, |peer| {
            peer.notify_congestion();
            String::new()
        }),
        event("ACK", ALL, |peer| reliably(peer, |peer| peer.ack(0))),
        event("ACK of nothing sent", ALL, |peer| reliably(peer, |peer| peer.ack(2))),
        event("ACK of long ago", ALL, |peer| reliably(peer, |peer| peer.ack(-1))),
        event("ACK on the READ", RC, |peer| reliably(peer, |peer| peer.ack(1))),
        event("READ response", RC, |peer| reliably(peer, |peer| peer.read_response(ReadResponseOnly, 1, &[1; 8]))),
        event("READ response, wrong length", RC, |peer| {
            reliably(peer, |peer| peer.read_response(ReadResponseOnly, 1, &[1; 7]))
        }),
        event("READ response to the SEND", RC, |peer| {
            reliably(peer, |peer| peer.read_response(ReadResponseOnly, 0, &[1; 8]))
        }),
        event("atomic response to the READ", RC, |peer| reliably(peer, |peer| peer.atomic_response(1, 5))),
        event("NAK sequence", RC, |peer| reliably(peer, |peer| peer.nak(0, NakCode::PsnSequence))),
        event("NAK invalid request", RC, |peer| reliably(peer, |peer| peer.nak(0, NakCode::InvalidRequest))),
        event("NAK access, to the READ", RC, |peer| reliably(peer, |peer| peer.nak(1, NakCode::RemoteAccess))),
        event("NAK operational", RC, |peer| reliably(peer, |peer| peer.nak(0, NakCode::RemoteOperational))),
        event("RNR NAK", RC, |peer| {
            reliably(peer, |peer| peer.answer(0, Syndrome::Rnr { timer: 1 }));
            assert!(peer.transmit().is_empty(), "nothing is sent during the wait");
            time_passes(peer)
        }),
        event("RNR NAK twice", RC, |peer| {
            for _ in 0..2 {
                reliably(peer, |peer| peer.answer(0, Syndrome::Rnr { timer: 1 }));
                time_passes(peer);
                peer.transmit();
            }
            String::new()
        }),
        event("timeout", ALL, time_passes),
        event("all timeouts", ALL, |peer| {
            for _ in 0..8 {
                time_passes(peer);
                if peer.node.state() == QpState::Error {
                    break;
                }
                peer.transmit();
            }
            String::new()
        }),
    ]
}

fn drops(peer: &ScriptedPeer) -> BTreeMap<&'static str, u64> {
    peer.node.engine.drops().iter().map(|(reason, n): (DropReason, u64)| (reason.name(), n)).collect()
}

/// Outcome of an event: the new state, if it is another one, what is sent, completions, asynchronous events, and why
/// packets were dropped. `None` when there is no way to the state.
fn outcome(qp_type: QpType, state: QpState, event: &Event) -> Option<String> {
    let mut peer = in_state(qp_type, state, event.receives)?;
    let before = drops(&peer);
    let qpn = peer.node.qpn;
    let mut effects = vec![(event.happen)(&mut peer)];
    effects.extend(peer.transmit().into_iter().map(|line| format!("send {line}")));
    for wc in peer.node.take_completions() {
        effects.push(format!("complete {} {:?}", wc.wr_id, wc.status));
    }
    for event in peer.node.take_events() {
        let event = format!("event {event:?}");
        effects.push(event.replace(&format!(" {{ qpn: {qpn} }}"), "").replace(&format!("qpn: {qpn}, "), ""));
    }
    for (reason, n) in drops(&peer) {
        match n - before[reason] {
            0 => {}
            1 => effects.push(format!("drop {reason}")),
            n => effects.push(format!("drop {n} {reason}")),
        }
    }
    effects.retain(|effect| !effect.is_empty());
    let after = peer.node.engine.query_qp(qpn).map_or("gone".to_owned(), |info| info.state.to_string());
    if after != state.to_string() {
        effects.insert(0, format!("-> {after}"));
    }
    Some(if effects.is_empty() { "nothing".to_owned() } else { effects.join(", ") })
}

/// States with the same outcome of an event share a row.
fn table(qp_type: QpType) -> String {
    let mut text = String::new();
    for event in events().iter().filter(|event| event.types.contains(&qp_type)) {
        let mut outcomes: Vec<(String, String)> = Vec::new();
        for state in QpState::ALL {
            let Some(outcome) = outcome(qp_type, state, event) else { continue };
            match outcomes.iter_mut().find(|(_, seen)| *seen == outcome) {
                Some((states, _)) => *states += &format!(" {state}"),
                None => outcomes.push((state.to_string(), outcome)),
            }
        }
        writeln!(text, "{}", event.name).unwrap();
        for (states, outcome) in outcomes {
            writeln!(text, "    {states:33} {outcome}").unwrap();
        }
    }
    text
}

// [QP-STATE-SERVE] [QP-STATE-WAYS]
#[test]
fn reliable_connection() {
    insta::assert_snapshot!(table(QpType::Rc));
}

// [QP-STATE-WAYS]
#[test]
fn unreliable_connection() {
    insta::assert_snapshot!(table(QpType::Uc));
}

#[test]
fn datagram_queue_pair() {
    insta::assert_snapshot!(table(QpType::Ud));
}
