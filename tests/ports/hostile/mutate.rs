//! Frames of the attacker's connections, with fields changed: most of them still have a correct ICRC.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use rxe_dpdk::rxe_proto::wire::mad::RDMA_UDP_QKEY;
use rxe_dpdk::rxe_proto::wire::{
    BTH_LEN, BthFields, BthOpcode, Checksum, DEFAULT_PKEY, Frame, Headers, ICRC_LEN, OPCODES, Opcode, OpcodeInfo, Psn,
    Syndrome, classify, icrc,
};

use super::attacker::{Place, Service, Victim};
use super::rng::Rng;
use crate::initiator::OWN;

/// The longest frame: the port's MTU is 4200.
const MAX_FRAME: usize = 4200;

/// The longest payload that fits with all headers.
const MAX_PAYLOAD: usize = MAX_FRAME - 150;

/// Q_Key of pingpong's datagrams.
const PINGPONG_QKEY: u32 = 0x1111_1111;

/// Ethernet header.
const ETH: usize = 14;

/// Opcode, PSN and payload length of a packet.
struct Next {
    info: &'static OpcodeInfo,
    psn: Psn,
    payload_len: usize,
}

/// Creates frames.
pub struct Mutator {
    pub rng: Rng,
    /// Keys that the attacker cannot know: a frame that has one by chance is not sent.
    pub secret_keys: HashSet<u32>,
    /// The target's queue pair of the initiator's connection. It gets frames too, but not from the initiator's address.
    pub legitimate_qpn: u32,
    /// Regions that may only be READ.
    pub read_only: [Place; 2],
}

impl Mutator {
    /// The next frame, for one of the open `victims`.
    pub fn frame(&self, victims: &mut [Victim]) -> Option<Vec<u8>> {
        let open: Vec<usize> = (0..victims.len()).filter(|&index| victims[index].is_open()).collect();
        if open.is_empty() {
            return None;
        }
        loop {
            let index = self.rng.pick(&open);
            let victim = &mut victims[index];
            let next = self.continuation(victim).unwrap_or_else(|| self.any(victim));
            let mut frame = self.packet(victim, &next)?;
            let mutations = self.rng.pick(&[0, 0, 0, 0, 1, 1, 2, 4]);
            if mutations == 0
                && let Ok(Frame::Roce(packet)) = classify(&frame)
            {
                victim.sent(&packet);
            }
            for _ in 0..mutations {
                self.mutate(&mut frame, victims);
            }
            if self.rng.chance(95) {
                correct_icrc(&mut frame);
            }
            if self.rng.chance(50) {
                correct_ip_checksum(&mut frame);
            }
            if self.may_be_sent(&frame) {
                return Some(frame);
            }
        }
    }

    /// Whether a frame is the attacker's own: it has no key that the attacker cannot know, and is not a packet of the
    /// initiator's connection.
    fn may_be_sent(&self, frame: &[u8]) -> bool {
        let Ok(Frame::Roce(packet)) = classify(frame) else { return true };
        if packet.src_gid() == Ipv4Addr::from(OWN).into() {
            return false;
        }
        let keys = [
            packet.reth().map(|reth| reth.rkey()),
            packet.atomic_eth().map(|atomic| atomic.rkey()),
            packet.invalidate_rkey(),
        ];
        keys.into_iter().flatten().all(|key| !self.secret_keys.contains(&key))
    }

    /// The next packet of a message in progress, if there is one. Sometimes it is left out.
    fn continuation(&self, victim: &Victim) -> Option<Next> {
        if self.rng.chance(30) {
            return None;
        }
        let mtu = victim.mtu.bytes() as u64;
        let answers = self.rng.chance(50);
        let message = if answers { victim.response } else { victim.message }?;
        let is_last = message.left <= mtu;
        let op = match (answers, message.is_write, message.begun, is_last) {
            (true, _, false, false) => Opcode::ReadResponseFirst,
            (true, _, false, true) => Opcode::ReadResponseOnly,
            (true, _, true, false) => Opcode::ReadResponseMiddle,
            (true, _, true, true) => Opcode::ReadResponseLast,
            (false, true, _, false) => Opcode::WriteMiddle,
            (false, true, _, true) => Opcode::WriteLast,
            (false, false, _, false) => Opcode::SendMiddle,
            (false, false, _, true) => Opcode::SendLast,
        };
        let info = BthOpcode { transport: victim.service.transport(), op }.info()?;
        Some(Next { info, psn: message.psn, payload_len: message.left.min(mtu) as usize })
    }

    /// A packet with any opcode, often one that the target expects.
    fn any(&self, victim: &Victim) -> Next {
        let info = self.opcode(victim);
        let (op, mtu) = (info.opcode.op, victim.mtu.bytes() as u64);
        let usual = self.rng.chance(60);
        let payload_len = match op {
            _ if !info.payload => self.rng.pick(&[0, 0, 0, 0, 4, 16]),
            Opcode::AtomicWrite => self.rng.pick(&[8, 8, 8, 4, 16]),
            _ if matches!(victim.service, Service::Rping | Service::Message) && self.rng.chance(70) => 16,
            Opcode::SendFirst | Opcode::SendMiddle | Opcode::WriteFirst | Opcode::WriteMiddle if usual => mtu,
            _ => self.rng.pick(&[0, 1, 3, 4, 64, mtu / 2 + 1, mtu, self.rng.below(mtu + 1), mtu + 4]),
        };
        Next { info, psn: self.psn(victim, info), payload_len: (payload_len as usize).min(MAX_PAYLOAD) }
    }

    /// Writes a packet of a connection.
    fn packet(&self, victim: &Victim, next: &Next) -> Option<Vec<u8>> {
        let Next { info, psn, payload_len } = *next;
        let (va, key, dma_len) = self.remote(victim, info, payload_len as u64);
        let template = victim.template()?;
        let mut frame = vec![0; template.frame_len(info.opcode, payload_len)];
        let fields = BthFields {
            opcode: info.opcode,
            dest_qp: victim.peer_qpn,
            psn,
            solicited: self.rng.chance(20),
            ack_req: self.rng.chance(50),
            pkey: DEFAULT_PKEY,
        };
        let mut packet = template.build(&mut frame, fields, payload_len);
        if info.headers.contains(Headers::DETH) {
            let qkey = self.rng.pick(&[RDMA_UDP_QKEY, RDMA_UDP_QKEY, PINGPONG_QKEY, key]);
            packet.deth(qkey, self.rng.next() as u32 & 0xFF_FFFF);
        }
        if info.headers.contains(Headers::FETH) {
            packet.feth(self.rng.below(4) as u8, self.rng.below(16) as u8);
        }
        if info.headers.contains(Headers::RETH) {
            packet.reth(va, key, dma_len);
        }
        if info.headers.contains(Headers::ATOMIC) {
            packet.atomic_eth(va, key, self.rng.next(), self.rng.below(2));
        }
        if info.headers.contains(Headers::AETH) {
            let rare = self.rng.pick(&[0x00, 0x20, 0x60, 0x61, 0x62, self.rng.next() as u8]);
            let syndrome = if self.rng.chance(70) { 0x1F } else { rare };
            packet.aeth(Syndrome::from_byte(syndrome), self.rng.below(8) as u32);
        }
        if info.headers.contains(Headers::ATOMIC_ACK) {
            packet.atomic_ack(va);
        }
        if info.headers.contains(Headers::IMM) {
            packet.imm(dma_len);
        }
        if info.headers.contains(Headers::IETH) {
            packet.ieth(key);
        }
        self.rng.fill(packet.payload_mut());
        if victim.service == Service::Rping && self.rng.chance(70) {
            // Address, key and length of memory for the target to READ or WRITE.
            let (place, length) = ([0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 7], self.rng.below(9000) as u32);
            let advert = place.into_iter().chain(length.to_be_bytes());
            packet.payload_mut().iter_mut().zip(advert).for_each(|(to, from)| *to = from);
        }
        packet.finish();
        Some(frame)
    }

    /// Any opcode, more often one of the connection's transport service, and of those one that the service expects.
    fn opcode(&self, victim: &Victim) -> &'static OpcodeInfo {
        let expected: &[Opcode] = match victim.service {
            Service::Region(_) => &[Opcode::WriteOnly, Opcode::ReadRequest, Opcode::FetchAdd, Opcode::WriteFirst],
            Service::Rping => &[Opcode::SendOnly, Opcode::SendOnly, Opcode::ReadResponseOnly, Opcode::Acknowledge],
            _ => &[Opcode::SendOnly],
        };
        let transport = victim.service.transport();
        if self.rng.chance(40) {
            let opcode = BthOpcode { transport, op: self.rng.pick(expected) };
            return opcode.info().unwrap();
        }
        let any = self.rng.chance(20);
        loop {
            let byte = self.rng.below(256) as usize;
            if let Some(info) = OPCODES[byte].as_ref().filter(|info| any || info.opcode.transport == transport) {
                return info;
            }
        }
    }

    /// The PSN of a packet, mostly the one that the target expects.
    fn psn(&self, victim: &Victim, info: &OpcodeInfo) -> Psn {
        let base = if info.response { victim.requested } else { victim.psn };
        let distance = match self.rng.below(20) {
            0 => self.rng.next() as u32,
            1..=3 => (self.rng.below(9) as u32).wrapping_sub(4),
            _ => 0,
        };
        Psn::new(base.get().wrapping_add(distance))
    }

    /// Address, key and length for RETH and atomic headers: inside the region, across its ends, in regions beside it, and
    /// in a region that may only be READ.
    fn remote(&self, victim: &Victim, info: &OpcodeInfo, payload_len: u64) -> (u64, u32, u32) {
        let place = if self.rng.chance(15) { self.rng.pick(&self.read_only) } else { victim.place };
        let Place { addr, len, rkey } = place;
        let length = match info.opcode.op {
            Opcode::WriteFirst => payload_len + self.rng.below(2 * u64::from(victim.mtu.bytes() as u32)),
            Opcode::ReadRequest | Opcode::Flush => self.rng.below(len + 2),
            _ => payload_len,
        };
        let length = if self.rng.chance(90) { length } else { self.rng.pick(&[0, length + 1, self.rng.next()]) };
        let near = self.rng.below(128).wrapping_sub(64);
        let offset = match self.rng.below(10) {
            0 => len.wrapping_add(near),
            1 => len.wrapping_sub(length),
            2 => near,
            3 => self.rng.below(32 * 4096).wrapping_sub(16 * 4096),
            4 => self.rng.next(),
            _ => self.rng.below(len + 1) & !7,
        };
        let key = match self.rng.below(20) {
            0 => self.rng.next() as u32,
            1 => rkey ^ 1 << self.rng.below(32),
            _ => rkey,
        };
        (addr.wrapping_add(offset), key, length as u32)
    }

    /// Changes one field, or the length.
    fn mutate(&self, frame: &mut Vec<u8>, victims: &[Victim]) {
        let is_ipv4 = frame.get(12..14) == Some(&[8, 0]);
        let ip_len = if is_ipv4 { 20 } else { 40 };
        let bth = ETH + ip_len + 8;
        let random = self.rng.next();
        let change = |frame: &mut [u8], at: usize| {
            if let Some(byte) = frame.get_mut(at) {
                *byte = if random & 0x100 == 0 { random as u8 } else { *byte ^ 1 << (random & 7) };
            }
        };
        match self.rng.below(16) {
            0 => change(frame, self.rng.below(ETH as u64) as usize),
            1 => change(frame, ETH + self.rng.below(ip_len as u64) as usize),
            2 => change(frame, ETH + ip_len + self.rng.below(8) as usize),
            3..=5 => change(frame, bth + self.rng.below(12) as usize),
            6..=8 => change(frame, bth + 12 + self.rng.below(28) as usize),
            9 => {
                let at = self.rng.below(frame.len() as u64);
                change(frame, at as usize);
            }
            10 => {
                let tag = [
                    0x81,
                    0,
                    (random >> 16) as u8 & self.rng.pick(&[0, 0xFF]),
                    random as u8 & self.rng.pick(&[0, 0xFF]),
                ];
                let at = frame.len().min(12);
                frame.splice(at..at, tag);
            }
            11 => frame.truncate(self.rng.below(frame.len() as u64) as usize + 1),
            // Padding behind the packet, as Ethernet may add it.
            12 => frame.resize((frame.len() + self.rng.below(64) as usize).min(MAX_FRAME), 0x5A),
            // More or fewer bytes in the packet.
            13 => {
                let len = (frame.len() as u64 + self.rng.below(64)).saturating_sub(self.rng.below(64)) as usize;
                frame.resize(len.clamp(bth + BTH_LEN + ICRC_LEN, MAX_FRAME), 0xA5);
                let udp_len = (frame.len() - ETH - ip_len) as u16;
                if let Some(udp) = frame.get_mut(ETH + ip_len + 4..ETH + ip_len + 6) {
                    udp.copy_from_slice(&udp_len.to_be_bytes());
                }
                let (at, ip) = if is_ipv4 { (ETH + 2, udp_len + 20) } else { (ETH + 4, udp_len) };
                frame[at..at + 2].copy_from_slice(&ip.to_be_bytes());
            }
            _ => {
                let other = victims[self.rng.below(victims.len() as u64) as usize].peer_qpn;
                let qpn =
                    self.rng.pick(&[other, other, self.legitimate_qpn, 0, 1, 0xFF_FFFF, random as u32 & 0xF_FFFF]);
                if let Some(field) = frame.get_mut(bth + 5..bth + 8) {
                    field.copy_from_slice(&qpn.to_be_bytes()[1..]);
                }
            }
        }
    }
}

/// Corrects the ICRC of a frame that is still a RoCE packet.
fn correct_icrc(frame: &mut [u8]) {
    let Ok(Frame::Roce(packet)) = classify(frame) else { return };
    let (ip_at, at, is_ipv4) = (packet.ip_at(), packet.icrc_range(), packet.is_ipv4());
    let sum = icrc(&frame[ip_at..at.start], is_ipv4);
    frame[at].copy_from_slice(&sum.to_le_bytes());
}

/// Corrects the checksum of an untagged IPv4 header, so that packets of other protocols reach their handlers.
fn correct_ip_checksum(frame: &mut [u8]) {
    if frame.len() < ETH + 20 || frame[12..15] != [8, 0, 0x45] {
        return;
    }
    frame[ETH + 10..ETH + 12].fill(0);
    let sum = Checksum::default().with(&frame[ETH..ETH + 20]).finish();
    frame[ETH + 10..ETH + 12].copy_from_slice(&sum.to_be_bytes());
}
