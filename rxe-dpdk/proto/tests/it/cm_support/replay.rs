//! Replays a capture: the recorded initiator's MADs go into our connection manager, which accepts, rejects and
//! disconnects when the recorded server did. Its messages are compared with the recorded server's.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use rxe_proto::cm::{AcceptParams, Cm, CmConfig, CmEvent, ConnId, MadPath, SidrId, SidrReply, read_mad};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::{CmMessage, Rej};
use rxe_proto::wire::mad::MadHeader;
use rxe_proto::wire::{Frame, Gid, PathMtu, PortId, classify};
use rxe_proto::{Duration, Instant};

use super::{Addresses, SERVER_GUID, mad_of};

/// One recorded MAD, seen from the machine that it was sent to.
pub struct Recorded {
    pub at: Instant,
    pub path: MadPath,
    pub header: MadHeader,
    pub message: CmMessage,
    /// The whole frame.
    pub frame: Vec<u8>,
}

pub fn capture_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures")
}

/// The connection manager's MADs in a capture of this repository.
pub fn mads(name: &str) -> Vec<Recorded> {
    let bytes = std::fs::read(capture_dir().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut mads = Vec::new();
    for (at, frame) in pcap_frames(&bytes) {
        let Ok(Frame::Roce(packet)) = classify(&frame) else { continue };
        let Ok((path, mad)) = read_mad(PortId(0), &packet) else { continue };
        assert!(packet.icrc_ok(), "{name}: ICRC");
        let (header, message) = CmMessage::parse(mad).unwrap();
        mads.push(Recorded { at, path, header, message, frame: frame.clone() });
    }
    mads
}

/// Time and bytes of every packet in a pcap file, with microseconds or nanoseconds.
fn pcap_frames(file: &[u8]) -> Vec<(Instant, Vec<u8>)> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let unit = match word(0) {
        0xA1B2_C3D4 => 1000,
        0xA1B2_3C4D => 1,
        other => panic!("pcap magic {other:#x}"),
    };
    let (mut at, mut frames, mut first) = (24, Vec::new(), None);
    while at < file.len() {
        let time = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)) * unit;
        let len = word(at + 8) as usize;
        let start = *first.get_or_insert(time);
        frames.push((Instant::from_nanos(1_000_000_000 + time - start), file[at + 16..at + 16 + len].to_vec()));
        at += 16 + len;
    }
    frames
}

/// A message of the server, ours or the recorded one, with what must differ made equal: the server's communication id
/// is replaced by the number of the connection, its GUID and its own transaction ids by zero.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    pub transaction_id: u64,
    pub message: CmMessage,
}

/// Result of a replay.
#[derive(Default)]
pub struct Outcome {
    pub ours: Vec<Sent>,
    pub theirs: Vec<Sent>,
    pub events: Vec<CmEvent>,
    /// All of it as text, in order.
    pub trace: String,
    /// Connections remembered at the end of the recording.
    pub left: usize,
}

impl Outcome {
    /// Every message once, in order of first appearance.
    pub fn distinct(sent: &[Sent]) -> Vec<Sent> {
        let mut out: Vec<Sent> = Vec::new();
        for message in sent {
            if !out.contains(message) {
                out.push(message.clone());
            }
        }
        out
    }
}

struct Replay {
    cm: Cm,
    local: Addresses,
    server: Gid,
    /// The recorded server's communication id to ours, for each initiator's id.
    ours_by_client: BTreeMap<u32, ConnId>,
    client_by_theirs: BTreeMap<u32, u32>,
    sidr_by_request: BTreeMap<u32, SidrId>,
    /// The request id of the SIDR_REQ fed last; the event does not have it.
    last_sidr: u32,
    outcome: Outcome,
}

pub fn replay(name: &str) -> Outcome {
    let recorded = mads(name);
    let first = recorded.iter().find(|r| matches!(r.message, CmMessage::Req(_) | CmMessage::SidrReq(_))).unwrap();
    let server = first.path.local;
    let mut replay = Replay {
        cm: Cm::new(CmConfig::new(SERVER_GUID, [9; 32])),
        local: Addresses(vec![server], PathMtu::Mtu4096),
        server,
        ours_by_client: BTreeMap::new(),
        client_by_theirs: BTreeMap::new(),
        sidr_by_request: BTreeMap::new(),
        last_sidr: 0,
        outcome: Outcome::default(),
    };
    for r in &recorded {
        replay.run_until(r.at);
        if r.path.local == server {
            replay.client_said(r)
        } else {
            replay.server_said(r)
        }
        replay.drain(r.at);
    }
    replay.outcome.left = replay.cm.len();
    replay.outcome
}

impl Replay {
    fn run_until(&mut self, at: Instant) {
        while let Some(due) = self.cm.next_timeout().filter(|&due| due <= at) {
            self.cm.handle_timeout(due);
            self.drain(due);
        }
    }

    fn line(&mut self, at: Instant, who: &str, what: impl std::fmt::Display) {
        let since = at.saturating_since(Instant::from_nanos(1_000_000_000));
        // Tenths of a second: enough to see what a timer did.
        let tenths = (since + Duration::from_millis(50)).as_millis() / 100;
        writeln!(self.outcome.trace, "{:4}.{} {who:8} {what}", tenths / 10, tenths % 10).unwrap();
    }

    /// The initiator's messages name the recorded server's ids: put ours in their place.
    fn client_said(&mut self, r: &Recorded) {
        let mut message = r.message.clone();
        let translate = |id: &mut u32| {
            if let Some(ours) = self.client_by_theirs.get(id).and_then(|client| self.ours_by_client.get(client)) {
                *id = ours.comm_id();
            }
        };
        match &mut message {
            CmMessage::Rtu(m) => translate(&mut m.remote_comm_id),
            CmMessage::Mra(m) => translate(&mut m.remote_comm_id),
            CmMessage::Rej(m) => translate(&mut m.remote_comm_id),
            CmMessage::Dreq(m) => translate(&mut m.remote_comm_id),
            CmMessage::Drep(m) => translate(&mut m.remote_comm_id),
            _ => {}
        }
        if let CmMessage::SidrReq(req) = &message {
            self.last_sidr = req.request_id;
        }
        let result = self.cm.handle_mad(r.at, &r.path, &mad_of(&message, r.header.transaction_id), &self.local);
        let shown = show(&r.message);
        match result {
            Ok(()) => self.line(r.at, "client", shown),
            Err(reason) => self.line(r.at, "client", format!("{shown} -- {reason}")),
        }
    }

    /// The recorded server did something: do the same.
    fn server_said(&mut self, r: &Recorded) {
        let (theirs, client) = r.message.comm_ids();
        match &r.message {
            CmMessage::Rep(rep) => {
                self.client_by_theirs.insert(theirs, client);
                if let Some(&conn) = self.ours_by_client.get(&client) {
                    let params = AcceptParams {
                        qpn: Qpn::new(rep.local_qpn),
                        starting_psn: rep.starting_psn,
                        responder_resources: rep.responder_resources,
                        initiator_depth: rep.initiator_depth,
                        rnr_retry_count: rep.rnr_retry_count,
                        flow_control: rep.flow_control,
                        srq: rep.srq,
                        private_data: rep.private_data.to_vec(),
                    };
                    // A retransmission: ours has timers of its own.
                    let _again = self.cm.accept(r.at, conn, params);
                }
            }
            CmMessage::Rej(rej) => {
                if let Some(&conn) = self.ours_by_client.get(&client) {
                    let _gone = self.cm.reject(conn, rej.reason, rej.ari(), &rej.private_data);
                }
            }
            CmMessage::Dreq(_) => {
                if let Some(&conn) = self.ours_by_client.get(&client) {
                    let _gone = self.cm.disconnect(r.at, conn);
                }
            }
            CmMessage::SidrRep(rep) => {
                if let Some(&id) = self.sidr_by_request.get(&rep.request_id) {
                    let reply = SidrReply {
                        status: rep.status,
                        qpn: Qpn::new(rep.qpn),
                        qkey: rep.qkey,
                        private_data: rep.private_data.to_vec(),
                    };
                    self.cm.reply_sidr(r.at, id, reply).unwrap();
                }
            }
            _ => {}
        }
        let shown = show(&r.message);
        self.line(r.at, "recorded", shown);
        let sent = normalise(r.header.transaction_id, &r.message);
        self.outcome.theirs.push(sent);
    }

    fn drain(&mut self, now: Instant) {
        while let Some(event) = self.cm.poll_event() {
            match &event {
                CmEvent::ConnectRequest(request) => {
                    assert_eq!(request.dest.0, self.server.ip());
                    self.ours_by_client.insert(request.remote_comm_id, request.conn);
                    self.line(now, "event", format!("ConnectRequest {}", request.service_id));
                }
                CmEvent::SidrRequest(request) => {
                    let id = request.id;
                    self.line(now, "event", format!("SidrRequest {}", request.service_id));
                    self.sidr_by_request.insert(self.last_sidr, id);
                }
                CmEvent::Established { .. } => self.line(now, "event", "Established"),
                CmEvent::Disconnected { reason, .. } => self.line(now, "event", format!("Disconnected {reason:?}")),
                CmEvent::ConnectFailed { reason, .. } => self.line(now, "event", format!("ConnectFailed {reason:?}")),
                other => panic!("{other:?} is an event of the active side"),
            }
            self.outcome.events.push(event);
        }
        while let Some(transmit) = self.cm.poll_transmit() {
            let (header, message) = CmMessage::parse(&*transmit.mad).unwrap();
            let shown = show(&message);
            self.line(now, "ours", shown);
            let sent = normalise(header.transaction_id, &message);
            self.outcome.ours.push(sent);
        }
    }
}

fn show(message: &CmMessage) -> String {
    let detail = match message {
        CmMessage::Rej(Rej { reason, answered, ari_len, .. }) => format!(" {reason:?} of {answered:?}, ari {ari_len}"),
        CmMessage::Rep(rep) => format!(" resources {} depth {}", rep.responder_resources, rep.initiator_depth),
        CmMessage::SidrRep(rep) => format!(" {:?}", rep.status),
        CmMessage::Mra(mra) => format!(" of {:?}, {}", mra.answered, mra.service_timeout),
        _ => String::new(),
    };
    format!("{}{detail}", message.name())
}

fn normalise(transaction_id: u64, message: &CmMessage) -> Sent {
    let mut message = message.clone();
    let mut transaction_id = transaction_id;
    // The connection is identified by the initiator's id, which is the same on both sides.
    match &mut message {
        CmMessage::Rep(m) => (m.local_comm_id, m.local_ca_guid) = (0, 0),
        CmMessage::Rtu(m) => m.local_comm_id = 0,
        CmMessage::Drep(m) => m.local_comm_id = 0,
        CmMessage::Dreq(m) => {
            m.local_comm_id = 0;
            transaction_id = 0;
        }
        _ => {}
    }
    Sent { transaction_id, message }
}
