//! A host that speaks the connection manager's protocol wrongly: it holds many dialogues at once, under many addresses.

use std::net::{IpAddr, Ipv4Addr};

use rxe_dpdk::host::{Host, HostConfig};
use rxe_dpdk::rxe_proto::Instant;
use rxe_dpdk::rxe_proto::cm::{GSI_UDP_SRC_PORT, MadPath, read_mad, write_mad};
use rxe_dpdk::rxe_proto::transport::Qpn;
use rxe_dpdk::rxe_proto::wire::cm::{
    Answered, Apr, CmMessage, CmTransport, Drep, Dreq, IpAddressing, Lap, Mra, PortSpace, Rej, RejReason, Rep, Req,
    Rtu, ServiceId, SidrRep, SidrReq,
};
use rxe_dpdk::rxe_proto::wire::mad::MAD_LEN;
use rxe_dpdk::rxe_proto::wire::{Cidr, Frame, MacAddr, PathMtu, PortId, Psn, classify};

use super::attacker::{ADDRESSES, MAC, OWN_V6, PEER_V6, address};
use super::rng::Rng;
use crate::initiator::{Neighbour, PEER, Tx};

/// Dialogues at a time.
const MAX_ACTIVE: usize = 200;

/// Steps of a dialogue behind its first message.
const MAX_STEPS: u64 = 6;

/// The largest timeout code in a message, 67 ms. A peer may name hours, and the target then waits as long for the answer to
/// its REP or DREQ, within bounds of its own; a test cannot.
const MAX_TIMEOUT: u8 = 14;

/// One connection, or request for a datagram queue pair.
struct Dialogue {
    source: IpAddr,
    comm_id: u32,
    transaction_id: u64,
    /// The target's communication id and queue pair, once its REP has arrived.
    peer: Option<(u32, u32)>,
    first: [u8; MAD_LEN],
    last: [u8; MAD_LEN],
    steps_left: u64,
}

/// What happened.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    pub messages: u64,
    /// REPs of the target.
    pub replies: u64,
    /// RTUs to them.
    pub confirmed: u64,
    pub rejects: u64,
    pub sidr_replies: u64,
    /// DREQs of the target, half of which are answered.
    pub disconnects: u64,
}

pub struct DialogueHost {
    pub rng: Rng,
    /// Dialogues that are still to begin.
    pub dialogues_left: u64,
    /// Messages that may be sent now.
    pub messages_left: u64,
    host: Host,
    target: MacAddr,
    active: Vec<Dialogue>,
    next_comm_id: u32,
    gsi_psn: Psn,
    /// Messages for which the port had no room.
    unsent: Vec<(IpAddr, [u8; MAD_LEN])>,
    counts: Counts,
}

impl DialogueHost {
    pub fn new(target: MacAddr, rng: Rng) -> DialogueHost {
        let mut addresses: Vec<Cidr> = (0..usize::from(ADDRESSES)).map(|index| Cidr::new(address(index), 24)).collect();
        addresses.push(Cidr::new(OWN_V6.into(), 64));
        let config = HostConfig { mac: MAC, addresses, seed: [14; 32], ..HostConfig::default() };
        DialogueHost {
            next_comm_id: rng.next() as u32,
            rng,
            dialogues_left: 0,
            messages_left: 0,
            host: Host::new(&config).unwrap(),
            target,
            active: Vec::new(),
            gsi_psn: Psn::default(),
            unsent: Vec::new(),
            counts: Counts::default(),
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether all dialogues are over, as far as this end is concerned.
    pub fn is_done(&self) -> bool {
        self.dialogues_left == 0 && self.active.is_empty() && self.unsent.is_empty()
    }

    /// An address of ours, one that nobody has, or one to which there is no route.
    fn source(&self) -> IpAddr {
        match self.rng.below(10) {
            0 => Ipv4Addr::new(10, 77, 0, 200 + self.rng.below(50) as u8).into(),
            1 => Ipv4Addr::from(self.rng.next() as u32).into(),
            2 => OWN_V6.into(),
            _ => address(self.rng.next() as usize),
        }
    }

    fn target_ip(source: IpAddr) -> IpAddr {
        if source.is_ipv4() { Ipv4Addr::from(PEER).into() } else { PEER_V6.into() }
    }

    /// Begins a dialogue, mostly with a REQ.
    fn begin(&mut self) {
        let source = self.source();
        self.next_comm_id = self.next_comm_id.wrapping_add(1);
        let (comm_id, transaction_id) = (self.next_comm_id, self.rng.next());
        let steps_left = self.rng.below(MAX_STEPS);
        let mut dialogue = Dialogue {
            source,
            comm_id,
            transaction_id,
            peer: None,
            first: [0; MAD_LEN],
            last: [0; MAD_LEN],
            steps_left,
        };
        let message = match self.rng.below(10) {
            0 => self.sidr_req(&dialogue),
            1 => self.any_message(&dialogue),
            _ => self.req(&dialogue),
        };
        dialogue.first = self.mad(&dialogue, &message);
        dialogue.last = dialogue.first;
        self.unsent.push((source, dialogue.first));
        self.active.push(dialogue);
        self.dialogues_left -= 1;
    }

    fn req(&self, dialogue: &Dialogue) -> CmMessage {
        let rng = &self.rng;
        let (source, target) = (dialogue.source, DialogueHost::target_ip(dialogue.source));
        let ports = [4792, 4792, 7174, 7471, 7471, 20886, 9];
        let mut req = Req {
            local_comm_id: dialogue.comm_id,
            service_id: ServiceId::new(PortSpace::Tcp, rng.pick(&ports)),
            local_ca_guid: 0xBAD + rng.below(3),
            local_qpn: dialogue.comm_id & 0xFF_FFFF,
            responder_resources: rng.pick(&[1, 1, 0, 16, 255]),
            initiator_depth: rng.pick(&[1, 1, 4, 255]),
            remote_response_timeout: rng.below(u64::from(MAX_TIMEOUT)) as u8,
            local_response_timeout: rng.below(u64::from(MAX_TIMEOUT)) as u8,
            starting_psn: Psn::new(rng.next() as u32),
            retry_count: rng.pick(&[2, 5, 7]),
            rnr_retry_count: 7,
            pkey: 0xFFFF,
            path_mtu: PathMtu::Mtu1024.code(),
            max_cm_retries: rng.below(16) as u8,
            ..Req::default()
        };
        (req.primary.local_gid, req.primary.remote_gid) = (source.into(), target.into());
        req.primary.ack_timeout = rng.below(u64::from(MAX_TIMEOUT)) as u8;
        if let Some(addressing) = IpAddressing::new((source, 40_000), target) {
            assert!(req.set_private_data(&addressing, rng.pick(&[&b"demo"[..], b"", b"nothing", &[1, 0, 1, 1]])));
        }
        // One wrong field.
        match rng.below(30) {
            0 => req.transport = rng.pick(&[CmTransport::Uc, CmTransport::Rd, CmTransport::Extended]),
            1 => req.pkey = rng.next() as u16,
            2 => req.path_mtu = rng.below(16) as u8,
            3 => req.primary.local_gid = address(rng.next() as usize).into(),
            4 => req.primary.remote_gid = source.into(),
            5 => req.alternate = req.primary,
            6 => rng.fill(&mut req.private_data),
            7 => req.service_id = ServiceId(rng.next()),
            8 => req.local_qpn = rng.pick(&[0, 1, 0xFF_FFFF]),
            9 => req.local_comm_id = dialogue.comm_id.wrapping_sub(rng.below(4) as u32),
            _ => {}
        }
        CmMessage::Req(req)
    }

    fn sidr_req(&self, dialogue: &Dialogue) -> CmMessage {
        let mut req = SidrReq {
            request_id: dialogue.comm_id,
            pkey: 0xFFFF,
            service_id: ServiceId::new(PortSpace::Udp, self.rng.pick(&[7174, 7174, 9])),
            ..SidrReq::default()
        };
        if let Some(addressing) = IpAddressing::new((dialogue.source, 40_000), DialogueHost::target_ip(dialogue.source))
        {
            let bytes = addressing.to_bytes();
            req.private_data[..bytes.len()].copy_from_slice(&bytes);
        }
        if self.rng.chance(10) {
            self.rng.fill(&mut req.private_data[..40]);
        }
        CmMessage::SidrReq(req)
    }

    /// A message of any kind, mostly with the right communication ids.
    fn any_message(&self, dialogue: &Dialogue) -> CmMessage {
        let rng = &self.rng;
        let other = self.active.get(rng.below(self.active.len().max(1) as u64) as usize).and_then(|other| other.peer);
        let peer = match rng.below(12) {
            0 => other,
            1 => Some((rng.next() as u32, rng.next() as u32 & 0xFF_FFFF)),
            _ => dialogue.peer,
        };
        let (remote_comm_id, remote_qpn) = peer.unwrap_or_default();
        let local_comm_id = dialogue.comm_id;
        let answered = rng.pick(&[Answered::Req, Answered::Rep, Answered::Other, Answered::Reserved]);
        match rng.below(32) {
            0..=3 => self.req(dialogue),
            4..=12 => CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }),
            13..=18 => CmMessage::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn, ..Dreq::default() }),
            19..=20 => CmMessage::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() }),
            21..=23 => {
                let reason = RejReason::from_code(rng.below(34) as u16);
                CmMessage::Rej(Rej { local_comm_id, remote_comm_id, answered, reason, ..Rej::default() })
            }
            24..=26 => {
                let service_timeout = rng.below(u64::from(MAX_TIMEOUT)) as u8;
                CmMessage::Mra(Mra { local_comm_id, remote_comm_id, answered, service_timeout, ..Mra::default() })
            }
            27 => {
                let (local_qpn, local_ca_guid) = (rng.next() as u32 & 0xFF_FFFF, 0xBAD);
                CmMessage::Rep(Rep { local_comm_id, remote_comm_id, local_qpn, local_ca_guid, ..Rep::default() })
            }
            28 => CmMessage::Lap(Lap { local_comm_id, remote_comm_id, remote_qpn, ..Lap::default() }),
            29 => CmMessage::Apr(Apr { local_comm_id, remote_comm_id, ..Apr::default() }),
            30 => self.sidr_req(dialogue),
            _ => CmMessage::SidrRep(SidrRep { request_id: remote_comm_id, qpn: remote_qpn, ..SidrRep::default() }),
        }
    }

    /// Writes a message, sometimes with a few bytes changed.
    fn mad(&self, dialogue: &Dialogue, message: &CmMessage) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        message.emit(dialogue.transaction_id, &mut mad);
        if self.rng.chance(15) {
            for _ in 0..=self.rng.below(4) {
                let end = self.rng.pick(&[24, 100, 256]);
                mad[self.rng.below(end) as usize] ^= 1 << self.rng.below(8);
            }
        }
        cap_timeouts(&mut mad);
        mad
    }

    /// The next message of a dialogue, or its end.
    fn step(&mut self) {
        let mut index = self.rng.below(self.active.len() as u64) as usize;
        if self.active[index].peer.is_none() {
            // More often one that the target has answered.
            index = self.rng.below(self.active.len() as u64) as usize;
        }
        if self.active[index].steps_left == 0 {
            self.active.swap_remove(index);
            return;
        }
        let dialogue = &self.active[index];
        let mad = match self.rng.below(10) {
            0 => dialogue.first,
            1 => dialogue.last,
            _ => self.mad(dialogue, &self.any_message(dialogue)),
        };
        let source = if self.rng.chance(4) { self.source() } else { dialogue.source };
        if dialogue.peer.is_some() && matches!(CmMessage::parse(&mad), Ok((_, CmMessage::Rtu(_)))) {
            self.counts.confirmed += 1;
        }
        self.unsent.push((source, mad));
        let dialogue = &mut self.active[index];
        dialogue.last = mad;
        dialogue.steps_left -= 1;
    }

    fn handle_mad(&mut self, path: &MadPath, mad: &[u8]) {
        let Ok((_, message)) = CmMessage::parse(mad) else { return };
        match message {
            CmMessage::Rep(rep) => {
                self.counts.replies += 1;
                let peer = (rep.local_comm_id, rep.local_qpn);
                if let Some(dialogue) = self.active.iter_mut().find(|d| d.comm_id == rep.remote_comm_id) {
                    dialogue.peer = Some(peer);
                }
            }
            CmMessage::Rej(_) => self.counts.rejects += 1,
            CmMessage::SidrRep(_) => self.counts.sidr_replies += 1,
            CmMessage::Dreq(dreq) => {
                self.counts.disconnects += 1;
                if self.rng.chance(50) {
                    let mut reply = [0; MAD_LEN];
                    let (local_comm_id, remote_comm_id) = (dreq.remote_comm_id, dreq.local_comm_id);
                    CmMessage::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() }).emit(1, &mut reply);
                    self.unsent.push((path.local.ip(), reply));
                }
            }
            _ => {}
        }
    }

    fn send(&mut self, tx: &mut Tx) {
        while let Some((source, mad)) = self.unsent.last() {
            let target = DialogueHost::target_ip(*source);
            let path = MadPath {
                port: PortId(0),
                local_mac: MAC,
                peer_mac: self.target,
                vlan: None,
                local: (*source).into(),
                peer: target.into(),
                traffic_class: 0,
            };
            if !write_mad(tx, &path, GSI_UDP_SRC_PORT, self.gsi_psn, mad) {
                return;
            }
            self.unsent.pop();
            self.gsi_psn = self.gsi_psn.next();
            self.counts.messages += 1;
        }
    }
}

/// Bounds the timeouts that a message names; see [`MAX_TIMEOUT`].
fn cap_timeouts(mad: &mut [u8; MAD_LEN]) {
    let Ok((header, message)) = CmMessage::parse(mad) else { return };
    let message = match message {
        CmMessage::Req(mut req) => {
            for timeout in [
                &mut req.remote_response_timeout,
                &mut req.local_response_timeout,
                &mut req.primary.ack_timeout,
                &mut req.alternate.ack_timeout,
            ] {
                *timeout = (*timeout).min(MAX_TIMEOUT);
            }
            CmMessage::Req(req)
        }
        CmMessage::Mra(mra) => CmMessage::Mra(Mra { service_timeout: mra.service_timeout.min(MAX_TIMEOUT), ..mra }),
        _ => return,
    };
    message.emit_with(&header, mad);
}

impl Neighbour for DialogueHost {
    fn receive(&mut self, now: Instant, frame: &[u8], tx: &mut Tx) {
        if frame.first_chunk().is_none_or(|dst| *dst != MAC.0 && dst[0] & 1 == 0) {
            return;
        }
        match classify(frame) {
            Ok(Frame::Roce(packet)) if packet.dest_qp() == Qpn::GSI.get() => {
                if let Ok((path, mad)) = read_mad(PortId(0), &packet)
                    && packet.dst_mac() == MAC
                {
                    self.handle_mad(&path, mad);
                }
            }
            Ok(Frame::Host) => {
                let _dropped = self.host.handle_frame(now, frame, tx);
            }
            _ => {}
        }
    }

    fn poll(&mut self, now: Instant, tx: &mut Tx) {
        self.host.poll(now, tx);
        while self.messages_left > 0 && self.unsent.is_empty() {
            if self.dialogues_left > 0 && self.active.len() < MAX_ACTIVE {
                self.begin();
            } else if !self.active.is_empty() {
                self.step();
            } else {
                break;
            }
            self.messages_left -= 1;
            self.send(tx);
        }
        self.send(tx);
    }
}
