//! WRITEs of one connection, alone and beside 100,000 hostile frames a second, on one lcore: none of the frames ends a
//! connection, and most are as cheap for the sender as can be.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use rxe_dpdk::rxe_proto::Instant;
use rxe_dpdk::rxe_proto::cm::{GSI_UDP_SRC_PORT, MadPath, write_mad};
use rxe_dpdk::rxe_proto::transport::Qpn;
use rxe_dpdk::rxe_proto::wire::cm::{CmMessage, Dreq, Req, Rtu};
use rxe_dpdk::rxe_proto::wire::mad::{MAD_LEN, RDMA_UDP_QKEY};
use rxe_dpdk::rxe_proto::wire::{
    BthFields, BthOpcode, Checksum, DEFAULT_PKEY, DropReason, HeaderTemplate, MacAddr, Opcode, Path, PathMtu, PortId,
    Psn, TxFrames, TxQueue,
};

use super::attacker::{Attacker, MAC, Service, Victim, address};
use super::rng::Rng;
use super::{accounting, check_log, from_env};
use crate::Target;
use crate::initiator::{Connection, Initiator, Neighbour, OWN, PEER, Tx};

/// Hostile frames per second.
const RATE: u64 = 100_000;

/// Different frames, sent again and again.
const FRAMES: usize = 20_000;

/// Pairs of a phase alone and a phase beside hostile frames; RXE_HOSTILE_PAIRS is another number.
const PAIRS: u64 = 3;

/// Duration of a phase.
const PHASE: Duration = Duration::from_millis(150);

/// The target's Ethernet address and queue pairs, and the sources of frames.
struct Sender<'a> {
    rng: &'a Rng,
    target: MacAddr,
    /// The connection that WRITEs, which the frames must not harm.
    legitimate: u32,
    /// Of the target's service udaddy.
    datagrams: u32,
}

impl Sender<'_> {
    fn template(&self, source: impl Into<IpAddr>) -> HeaderTemplate {
        HeaderTemplate::new(&Path {
            src_mac: MAC,
            dst_mac: self.target,
            src: source.into().into(),
            dst: Ipv4Addr::from(PEER).into(),
            ..Path::default()
        })
    }

    /// A request with a payload of 64 bytes.
    fn request(&self, template: &HeaderTemplate, fields: BthFields, key: u32) -> Vec<u8> {
        let mut frame = vec![0; template.frame_len(fields.opcode, 64)];
        let mut packet = template.build(&mut frame, fields, 64);
        match fields.opcode.op {
            Opcode::WriteOnly => packet.reth(self.rng.next(), key, 64),
            _ if fields.opcode.info().is_some_and(|info| info.name.starts_with("UD")) => packet.deth(key, 0x77),
            _ => &mut packet,
        };
        packet.finish();
        frame
    }

    fn fields(&self, opcode: BthOpcode, dest_qp: u32) -> BthFields {
        let psn = Psn::new(self.rng.next() as u32);
        BthFields { opcode, dest_qp, psn, solicited: false, ack_req: true, pkey: DEFAULT_PKEY }
    }

    /// One of the frames.
    fn frame(&self, victims: &[Victim]) -> Vec<u8> {
        let rng = self.rng;
        let (write, send) = (BthOpcode::rc(Opcode::WriteOnly), BthOpcode::rc(Opcode::SendOnly));
        let (own, stranger) = (self.template(OWN), self.template(address(rng.next() as usize)));
        let key = rng.next() as u32;
        match rng.below(20) {
            // Of a queue pair that does not exist, with any opcode.
            0..=2 => self.request(&stranger, self.fields(rng.pick(&[write, send]), rng.next() as u32 & 0xF_FFFF), key),
            3 => {
                let mut frame = self.request(&stranger, self.fields(send, rng.next() as u32 & 0xF_FFFF), key);
                frame[42] = rng.next() as u8;
                frame
            }
            // Of the connection, damaged.
            4..=5 => {
                let mut frame = self.request(&own, self.fields(write, self.legitimate), key);
                let last = frame.len() - 1 - rng.below(64) as usize;
                frame[last] ^= 1 << rng.below(8);
                frame
            }
            // Of the connection, in another partition.
            6 => {
                let fields = BthFields { pkey: 0x1234, ..self.fields(write, self.legitimate) };
                self.request(&own, fields, key)
            }
            // Of the connection, from another host.
            7..=8 => self.request(&stranger, self.fields(write, self.legitimate), key),
            // Before the expected PSN, or behind it: a duplicate, or a gap.
            9..=12 => {
                let victim = &victims[rng.below(victims.len() as u64) as usize];
                let distance = 1 + rng.below(1000) as u32;
                let away = if rng.chance(70) { distance.wrapping_neg() } else { distance };
                let psn = Psn::new(victim.psn.get().wrapping_add(away));
                let fields = BthFields { psn, ..self.fields(write, victim.peer_qpn) };
                self.request(victim.template().expect("an open connection"), fields, victim.place.rkey)
            }
            // A datagram with another Q_Key.
            13 => self.request(&stranger, self.fields(BthOpcode::ud(Opcode::SendOnly), self.datagrams), !RDMA_UDP_QKEY),
            14..=15 => self.mad(),
            16 => self.arp(),
            17 => self.icmp(),
            _ => self.tcp(),
        }
    }

    /// A message of the connection manager for a connection that does not exist, or a REQ that asks for nothing.
    fn mad(&self) -> Vec<u8> {
        let rng = self.rng;
        let (local_comm_id, remote_comm_id) = (rng.next() as u32, rng.next() as u32);
        let message = match rng.below(3) {
            0 => CmMessage::Req(Req { local_comm_id, ..Req::default() }),
            1 => CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }),
            _ => CmMessage::Dreq(Dreq { local_comm_id, remote_comm_id, ..Dreq::default() }),
        };
        let mut mad = [0; MAD_LEN];
        message.emit(rng.next(), &mut mad);
        let path = MadPath {
            port: PortId(0),
            local_mac: MAC,
            peer_mac: self.target,
            vlan: None,
            local: address(rng.next() as usize).into(),
            peer: Ipv4Addr::from(PEER).into(),
            traffic_class: 0,
        };
        let mut tx = TxFrames::default();
        assert!(write_mad(&mut tx, &path, GSI_UDP_SRC_PORT, Psn::new(rng.next() as u32), &mad));
        tx.frames.remove(0).1
    }

    fn ethernet(&self, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = [&self.target.0[..], &MAC.0, &ethertype.to_be_bytes(), payload].concat();
        frame.resize(frame.len().max(60), 0);
        frame
    }

    /// An ARP request of a host that is not ours, with one byte changed in front of its addresses.
    fn arp(&self) -> Vec<u8> {
        let sender = [10, 77, 0, 200 + self.rng.below(50) as u8];
        let mut arp = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &MAC.0, &sender, &[0; 6], &PEER].concat();
        arp[self.rng.below(8) as usize] ^= 1 << self.rng.below(8);
        self.ethernet(0x0806, &arp)
    }

    fn ipv4(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let IpAddr::V4(source) = address(self.rng.next() as usize) else { unreachable!("IPv4 addresses") };
        let length = (20 + payload.len() as u16).to_be_bytes();
        let mut ip = [&[0x45, 0][..], &length, &[0, 1, 0, 0, 64, protocol, 0, 0], &source.octets(), &PEER].concat();
        let sum = Checksum::default().with(&ip).finish();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        self.ethernet(0x0800, &[&ip, payload].concat())
    }

    /// An echo request, half of them with a wrong checksum.
    fn icmp(&self) -> Vec<u8> {
        let mut icmp = [8, 0, 0, 0, 0, 1, 0, 1, 1, 2, 3, 4];
        let sum = Checksum::default().with(&icmp).finish() ^ self.rng.below(2) as u16;
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        self.ipv4(1, &icmp)
    }

    /// A TCP segment with random ports and flags: the checksum is right only by chance.
    fn tcp(&self) -> Vec<u8> {
        let mut tcp = [0; 20];
        self.rng.fill(&mut tcp);
        tcp[12] = 0x50;
        self.ipv4(6, &tcp)
    }
}

/// Sends the frames at a constant rate, and answers ARP as the attacker does.
struct ConstantRate {
    attacker: Attacker,
    frames: Vec<Vec<u8>>,
    next: usize,
    /// Start of the phase, `None` while nothing is sent, and frames sent since.
    since: Option<Instant>,
    starts: bool,
    sent: u64,
    total: u64,
}

impl Neighbour for ConstantRate {
    fn receive(&mut self, now: Instant, frame: &[u8], tx: &mut Tx) {
        self.attacker.receive(now, frame, tx);
    }

    fn poll(&mut self, now: Instant, tx: &mut Tx) {
        self.attacker.poll(now, tx);
        if std::mem::take(&mut self.starts) {
            (self.since, self.sent) = (Some(now), 0);
        }
        let Some(since) = self.since else { return };
        let due = now.saturating_since(since).as_nanos() as u64 * RATE / 1_000_000_000;
        while self.sent < due {
            let frame = &self.frames[self.next];
            let Some(room) = tx.push(PortId(0), frame.len()) else { return };
            room.copy_from_slice(frame);
            self.next = (self.next + 1) % self.frames.len();
            (self.sent, self.total) = (self.sent + 1, self.total + 1);
        }
    }
}

/// WRITEs per second in a phase, and hostile frames per second.
fn phase(
    initiator: &mut Initiator,
    connection: &mut Connection,
    traffic: &RefCell<ConstantRate>,
    hostile: bool,
) -> (f64, f64) {
    traffic.borrow_mut().starts = hostile;
    let rate = connection.write_for(initiator, PHASE);
    let mut traffic = traffic.borrow_mut();
    let sent = if hostile { traffic.sent as f64 / PHASE.as_secs_f64() } else { 0.0 };
    traffic.since = None;
    (rate, sent)
}

/// The least rate of WRITEs that is accepted, as a part of the rate alone; without it rates are not compared.
pub fn least_ratio() -> Option<f64> {
    let least = std::env::var("RXE_HOSTILE_RATIO").ok()?;
    Some(least.parse().expect("RXE_HOSTILE_RATIO is a number"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub fn let_writes_pass(initiator: &mut Initiator, target: Target) {
    let pairs = from_env("RXE_HOSTILE_PAIRS", PAIRS);
    let rng = Rng::seeded();
    let mac: MacAddr = target.mac.parse().unwrap();
    let mut connection = initiator.connect(4792, "demo", PathMtu::Mtu4096);
    let datagrams = initiator.resolve_datagram(7174);
    let victims = (0..4).map(|index| Victim::new(Service::Region("demo"), address(index), PathMtu::Mtu1024)).collect();
    let attacker = Attacker::new(mac, victims);
    let traffic = ConstantRate { attacker, frames: Vec::new(), next: 0, since: None, starts: false, sent: 0, total: 0 };
    let traffic = Rc::new(RefCell::new(traffic));
    initiator.neighbour = Some(traffic.clone());
    initiator.wait_for(|| traffic.borrow().attacker.is_connected());
    let sender = Sender { rng: &rng, target: mac, legitimate: connection.peer_qpn(), datagrams: Qpn::get(datagrams) };
    let frames = (0..FRAMES).map(|_| sender.frame(&traffic.borrow().attacker.victims)).collect();
    traffic.borrow_mut().frames = frames;

    let (mut alone, mut beside, mut ratios, mut rates) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        // Either phase is the first one in half of the pairs.
        let first = phase(initiator, &mut connection, &traffic, pair % 2 == 0);
        let second = phase(initiator, &mut connection, &traffic, pair % 2 == 1);
        let (with, without) = if pair % 2 == 0 { (first, second) } else { (second, first) };
        ratios.push(with.0 / without.0);
        rates.push(with.1);
        alone.push(without.0);
        beside.push(with.0);
    }
    let (ratio, rate) = (median(ratios), median(rates));
    println!(
        "{:.0} WRITEs of 4096 bytes a second alone, {:.0} beside {rate:.0} hostile frames a second: ratio {ratio:.2} \
         (medians of {pairs} pairs)",
        median(alone),
        median(beside),
    );
    if let Some(least) = least_ratio() {
        assert!(rate > 0.9 * RATE as f64, "{rate} hostile frames a second");
        assert!(ratio >= least, "{ratio}");
    }
    assert!(traffic.borrow().attacker.is_connected(), "no frame ends a connection");
    assert_eq!(traffic.borrow().attacker.opened, 4);
    assert!(traffic.borrow().total > 0);
    initiator.neighbour = None;
    connection.write(initiator, 0, b"after all");
    assert_eq!(connection.read(initiator, 0, 9), b"after all");
    connection.disconnect(initiator);
    check_log(&target);
    use DropReason::*;
    let reasons = [QpnUnknown, IcrcMismatch, PkeyMismatch, QpWrongAddress, QkeyMismatch, CmUnknownId, HostChecksum];
    accounting(initiator, target, &reasons);
}
