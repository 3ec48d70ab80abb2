//! Replays a capture from the other end: our connection manager connects, confirms, rejects and disconnects when the
//! recorded initiator did, and receives what the recorded server sent. Its messages are compared with the recorded
//! initiator's.

use std::collections::BTreeMap;
use std::fmt::Write;

use rxe_proto::cm::{Cm, CmConfig, ConnId, ConnState, ConnectParams, MadPath, ResolveParams, SidrId};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::PathMtu;
use rxe_proto::wire::cm::{Answered, CmMessage, Req, SidrReq};

use super::replay::{Outcome, Recorded, Sent, mads};
use super::{Addresses, mad_of};

struct Replay {
    cm: Cm,
    local: Addresses,
    /// Our connection for each recorded initiator's communication id, and back.
    ours: BTreeMap<u32, ConnId>,
    recorded: BTreeMap<u32, u32>,
    /// Our request id for each recorded one, and back.
    our_request: BTreeMap<u32, u32>,
    recorded_request: BTreeMap<u32, u32>,
    questions: BTreeMap<u32, SidrId>,
    /// The recorded message that made ours send its next REQ or SIDR_REQ.
    asking: u32,
    outcome: Outcome,
}

/// Replays `name` with our connection manager in the initiator's place.
pub fn replay(name: &str) -> Outcome {
    let recorded = mads(name);
    let is_question = |r: &&Recorded| matches!(r.message, CmMessage::Req(_) | CmMessage::SidrReq(_));
    let first = recorded.iter().find(is_question).unwrap();
    let (server, client) = (first.path.local, first.path.peer);
    // Datagram questions carry no GUID.
    let guid = recorded.iter().find_map(|r| match &r.message {
        CmMessage::Req(req) => Some(req.local_ca_guid),
        _ => None,
    });
    let mut replay = Replay {
        cm: Cm::new(CmConfig::new(guid.unwrap_or(1), [9; 32])),
        local: Addresses(vec![client], PathMtu::Mtu4096),
        ours: BTreeMap::new(),
        recorded: BTreeMap::new(),
        our_request: BTreeMap::new(),
        recorded_request: BTreeMap::new(),
        questions: BTreeMap::new(),
        asking: 0,
        outcome: Outcome::default(),
    };
    for r in &recorded {
        while let Some(due) = replay.cm.next_timeout().filter(|&due| due <= r.at) {
            replay.cm.handle_timeout(due);
            replay.drain();
        }
        if r.path.local == server {
            replay.initiator_said(r)
        } else {
            replay.server_said(r)
        }
        replay.drain();
    }
    replay.outcome.left = replay.cm.len();
    replay.outcome
}

/// The parameters that the initiator of `req` must have set. Values that rdma_cm chooses itself keep our defaults.
fn wish(path: &MadPath, req: &Req) -> ConnectParams {
    let ports = (req.ip_addressing().src_port, req.service_id.port());
    let path_mtu = PathMtu::from_code(req.path_mtu).unwrap();
    ConnectParams {
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        flow_control: req.flow_control,
        srq: req.srq,
        private_data: req.ulp_data().to_vec(),
        ..ConnectParams::new(mirrored(path), ports, Qpn::new(req.local_qpn), req.starting_psn, path_mtu)
    }
}

fn question(path: &MadPath, req: &SidrReq) -> ResolveParams {
    let ports = (req.ip_addressing().src_port, req.service_id.port());
    ResolveParams { private_data: req.ulp_data().to_vec(), ..ResolveParams::new(mirrored(path), ports) }
}

/// The way as the other end sees it.
fn mirrored(path: &MadPath) -> MadPath {
    MadPath { local_mac: path.peer_mac, peer_mac: path.local_mac, local: path.peer, peer: path.local, ..path.clone() }
}

impl Replay {
    /// The recorded initiator did something: do the same.
    fn initiator_said(&mut self, r: &Recorded) {
        let (client, _) = r.message.comm_ids();
        let conn = self.ours.get(&client).copied();
        let state = conn.and_then(|conn| self.cm.connection(conn)).map(|info| info.state);
        writeln!(self.outcome.trace, "recorded {}", r.message).unwrap();
        match (&r.message, conn) {
            (CmMessage::Req(req), None) => {
                self.asking = client;
                let conn = self.cm.connect(r.at, wish(&r.path, req)).unwrap();
                self.ours.insert(client, conn);
                self.recorded.insert(conn.comm_id(), client);
            }
            (CmMessage::SidrReq(req), _) if !self.questions.contains_key(&req.request_id) => {
                self.asking = req.request_id;
                let id = self.cm.resolve_datagram(r.at, question(&r.path, req)).unwrap();
                self.questions.insert(req.request_id, id);
            }
            (CmMessage::Rtu(rtu), Some(conn)) if state == Some(ConnState::RepReceived) => {
                self.cm.confirm(conn, &rtu.private_data).unwrap();
            }
            (CmMessage::Rej(rej), Some(conn)) if rej.answered == Answered::Rep => {
                self.cm.reject(conn, rej.reason, rej.ari(), &rej.private_data).unwrap();
            }
            // Killed while it waited.
            (CmMessage::Rej(_), Some(conn)) => self.cm.disconnect(r.at, conn).unwrap(),
            // Both ends at once: ours has answered and is done, the recorded one's program had the same idea later.
            (CmMessage::Dreq(_), Some(_)) if state == Some(ConnState::Timewait) && !self.has_disconnected(client) => {
                return;
            }
            (CmMessage::Dreq(_), Some(conn)) => self.cm.disconnect(r.at, conn).unwrap(),
            // Repetitions and answers: ours makes its own.
            _ => {}
        }
        self.outcome.theirs.push(normalised(r.header.transaction_id, r.message.clone()));
    }

    /// Whether ours has sent a DREQ where the recorded initiator had the communication id `client`.
    fn has_disconnected(&self, client: u32) -> bool {
        let is_dreq = |sent: &Sent| matches!(&sent.message, CmMessage::Dreq(dreq) if dreq.local_comm_id == client);
        self.outcome.ours.iter().any(is_dreq)
    }

    /// The recorded server names the recorded initiator's ids: put ours in their place.
    fn server_said(&mut self, r: &Recorded) {
        let mut message = r.message.clone();
        let ours = |id: &mut u32| {
            if let Some(conn) = self.ours.get(id) {
                *id = conn.comm_id();
            }
        };
        match &mut message {
            CmMessage::Rep(m) => ours(&mut m.remote_comm_id),
            CmMessage::Rej(m) => ours(&mut m.remote_comm_id),
            CmMessage::Mra(m) => ours(&mut m.remote_comm_id),
            CmMessage::Dreq(m) => ours(&mut m.remote_comm_id),
            CmMessage::Drep(m) => ours(&mut m.remote_comm_id),
            CmMessage::SidrRep(m) => m.request_id = self.our_request[&m.request_id],
            other => panic!("{other}"),
        }
        let result = self.cm.handle_mad(r.at, &r.path, &mad_of(&message, r.header.transaction_id), &self.local);
        writeln!(self.outcome.trace, "server   {} {result:?}", r.message).unwrap();
    }

    fn drain(&mut self) {
        while let Some(event) = self.cm.poll_event() {
            writeln!(self.outcome.trace, "event    {event:?}").unwrap();
            self.outcome.events.push(event);
        }
        while let Some(transmit) = self.cm.poll_transmit() {
            let (header, mut message) = CmMessage::parse(&*transmit.mad).unwrap();
            let (asking, recorded) = (self.asking, &mut self.recorded);
            let mut theirs = |id: &mut u32| *id = *recorded.entry(*id).or_insert(asking);
            match &mut message {
                CmMessage::Req(m) => theirs(&mut m.local_comm_id),
                CmMessage::Rtu(m) => theirs(&mut m.local_comm_id),
                CmMessage::Rej(m) => theirs(&mut m.local_comm_id),
                CmMessage::Mra(m) => theirs(&mut m.local_comm_id),
                CmMessage::Dreq(m) => theirs(&mut m.local_comm_id),
                CmMessage::Drep(m) => theirs(&mut m.local_comm_id),
                CmMessage::SidrReq(m) => {
                    let recorded = *self.recorded_request.entry(m.request_id).or_insert(asking);
                    self.our_request.insert(recorded, m.request_id);
                    m.request_id = recorded;
                }
                other => panic!("{other}"),
            }
            writeln!(self.outcome.trace, "ours     {message}").unwrap();
            self.outcome.ours.push(normalised(header.transaction_id, message));
        }
    }
}

/// The transaction ids of exchanges that the initiator began are its own; only the server's are echoed. How long an MRA
/// asks for is a choice.
fn normalised(transaction_id: u64, mut message: CmMessage) -> Sent {
    if let CmMessage::Mra(mra) = &mut message {
        mra.service_timeout = 0;
    }
    let echoes = matches!(message, CmMessage::Drep(_));
    Sent { transaction_id: if echoes { transaction_id } else { 0 }, message }
}
