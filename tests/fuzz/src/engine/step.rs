//! The steps of a program.

use rxe_proto::Duration;
use rxe_proto::mem::Access;
use rxe_proto::transport::{
    KeepAlive, QpAttrChange, QpState, Qpn, RecvWr, RemoteAddr, RequestRefusal, SendFlags, SendOp, SendWr, Sge, SrqAttr,
    WcStatus,
};
use rxe_proto::wire::{Frame, MacAddr, Path, PathMtu, TxFrames, classify};

use super::env::{Env, QKEY, group, path_from_peer};
use super::packet::{Destination, PacketStep, declassify, flag};
use super::work::{Posted, RECV};
use crate::input::Input;

/// The steps.
pub mod op {
    /// A packet of a peer: [`PacketStep`](super::PacketStep), and with its flag changes.
    pub const PACKET: u8 = 0;
    /// A work request: [`SendStep`](super::SendStep).
    pub const SEND: u8 = 1;
    /// A receive: queue pair, buffers.
    pub const RECV: u8 = 2;
    /// A receive of the shared receive queue: buffers.
    pub const SRQ_RECV: u8 = 3;
    /// Writes frames: how many at most, 0 for all.
    pub const TRANSMIT: u8 = 4;
    /// Lets time pass: tens of microseconds.
    pub const WAIT: u8 = 5;
    /// Changes the state of a queue pair: queue pair, transition.
    pub const MODIFY: u8 = 6;
    /// Takes a queue pair to RTS: queue pair.
    pub const BRING_UP: u8 = 7;
    /// Changes a key: queue pair, what, number, variant.
    pub const KEY: u8 = 8;
    /// Polls the small completion queue: how many at most.
    pub const POLL: u8 = 9;
    /// Destroys a queue pair and creates another one: queue pair.
    pub const RECREATE: u8 = 10;
    /// A setting of a queue pair: queue pair, what, value.
    pub const SET: u8 = 11;
    /// The frame written last comes back: offset from the last, changes.
    pub const REFLECT: u8 = 12;
    /// A request is refused on purpose: how, [`PacketStep`](super::PacketStep).
    pub const REFUSE: u8 = 13;
    /// Number of steps.
    pub const COUNT: u8 = 14;
}

/// The choices that make a work request.
#[derive(Clone, Copy, Default, Debug)]
pub struct SendStep {
    /// Index of the queue pair.
    pub qp: u8,
    /// The operation: SEND, SEND with immediate, SEND with invalidate, WRITE, WRITE with immediate, READ, CAS, FAA, ATOMIC
    /// WRITE, FLUSH, datagram, bind, fast registration, local invalidation.
    pub op: u8,
    /// Flags: signaled, solicited, fence; 128 for inline data.
    pub flags: u8,
    /// The remote key, or the local one of the last three operations.
    pub key: u8,
    /// Distance from the key's first byte.
    pub offset: u16,
}

/// Flag of a work request: its data is inline.
const INLINE: u8 = 128;

impl SendStep {
    /// The next choices of an input.
    pub fn read(input: &mut Input<'_>) -> SendStep {
        SendStep { qp: input.u8(), op: input.u8(), flags: input.u8(), key: input.u8(), offset: input.u16() }
    }

    /// The bytes of an input with these choices, and one buffer: the number of its key and its length.
    pub fn to_bytes(self, buffer: (u8, u16)) -> Vec<u8> {
        let mut bytes = vec![self.qp, self.op, self.flags, self.key];
        bytes.extend(self.offset.to_be_bytes());
        bytes.extend(sge_to_bytes(buffer));
        bytes
    }
}

/// The bytes of one buffer: the number of its key and its length.
pub fn sge_to_bytes((key, len): (u8, u16)) -> Vec<u8> {
    let [high, low] = len.to_be_bytes();
    vec![1, key, 0, 0, high, low]
}

impl Env {
    /// Executes a step.
    pub fn step(&mut self, op: u8, input: &mut Input<'_>) {
        match op {
            op::PACKET => {
                let step = PacketStep::read(input);
                let frame = self.frame(step, input);
                self.receive(&frame, None);
            }
            op::REFUSE => {
                let refusal = [
                    RequestRefusal::NotReady { timer: 1 },
                    RequestRefusal::PsnSequence,
                    RequestRefusal::InvalidRequest,
                    RequestRefusal::RemoteAccess,
                    RequestRefusal::RemoteOperational,
                ][input.below(5)];
                let step = PacketStep::read(input);
                let frame = self.frame(step, input);
                self.receive(&frame, Some(refusal));
            }
            op::SEND => self.send(input),
            op::RECV => self.recv(input),
            op::SRQ_RECV => self.srq_recv(input),
            op::TRANSMIT => {
                let room = usize::from(input.u8());
                self.transmit((room > 0).then_some(room));
            }
            op::WAIT => self.advance(Duration::from_micros(10 * u64::from(input.u16()))),
            op::MODIFY => {
                let (index, number) = (self.index(input.u8()), input.u8());
                self.modify(index, number.into());
            }
            op::BRING_UP => {
                let index = self.index(input.u8());
                self.bring_up(index);
            }
            op::KEY => {
                let qpn = self.slots[self.index(input.u8())].qpn;
                self.bytes.command(self.engine.keys_mut(), qpn.get(), input);
            }
            op::POLL => {
                let most = usize::from(input.u8());
                self.poll(1, most);
            }
            op::RECREATE => self.recreate(input.u8()),
            op::SET => self.set(input),
            _ => self.reflect(input),
        }
    }

    pub fn index(&self, number: u8) -> usize {
        usize::from(number) % self.slots.len()
    }

    fn frame(&self, step: PacketStep, input: &mut Input<'_>) -> Vec<u8> {
        let slot = &self.slots[self.index(step.qp)];
        let info = self.engine.query_qp(slot.qpn).expect("a queue pair");
        let to = Destination {
            qpn: slot.qpn.get(),
            expected: info.expected_psn,
            unacked: info.unacked_psn,
            mtu: info.path_mtu.unwrap_or(self.setup.mtu()).bytes(),
            qkey: QKEY,
        };
        let mut path = path_from_peer(self.setup, step.flags & flag::FOREIGN != 0);
        if step.flags & flag::MULTICAST != 0 {
            path = Path { dst: group(self.setup), dst_mac: MacAddr([1, 0, 0x5E, 7, 7, 7]), ..path };
        }
        step.frame(&to, &path, &self.bytes, input)
    }

    /// Buffers: how many, and for each key, offset and length.
    fn sges(&self, input: &mut Input<'_>) -> Vec<Sge> {
        let count = input.u8() % 4;
        let sge = |input: &mut Input<'_>| {
            let (lkey, addr, len) = self.bytes.key(input.u8());
            let (offset, length) = (input.u16() % (len as u16 + 8), input.u16() % (len as u16 + 8));
            Sge { addr: addr.wrapping_add(offset.into()), length: length.into(), lkey }
        };
        (0..count).map(|_| sge(input)).collect()
    }

    fn send(&mut self, input: &mut Input<'_>) {
        let step = SendStep::read(input);
        let index = self.index(step.qp);
        let (rkey, addr, len) = self.bytes.key(step.key);
        let remote = RemoteAddr { addr: addr.wrapping_add(u64::from(step.offset) % (len as u64 + 8)), rkey };
        let sges = self.sges(input);
        let variant = usize::from(step.offset);
        let imm = Some(rkey);
        let op = match step.op % 14 {
            0 => SendOp::Send { imm: None },
            1 => SendOp::Send { imm },
            2 => SendOp::SendInvalidate { rkey },
            3 => SendOp::Write { remote, imm: None },
            4 => SendOp::Write { remote, imm },
            5 => SendOp::Read { remote },
            6 => SendOp::CompareSwap { remote, compare: 0, swap: 1 },
            7 => SendOp::FetchAdd { remote, add: 1 },
            8 => SendOp::AtomicWrite { remote },
            9 => SendOp::Flush {
                remote,
                length: u32::from(step.offset),
                whole_region: step.offset & 1 != 0,
                persistent: step.offset & 2 != 0,
            },
            10 => SendOp::Datagram { ah: self.ah, qpn: Qpn::new(0x99), qkey: QKEY, imm },
            11 => {
                let (key, bind) = self.bytes.bind(usize::from(step.key), variant);
                self.bytes.may_bind(self.slots[index].qpn.get());
                SendOp::BindWindow { key, key_byte: None, bind }
            }
            12 => {
                let (key, addr, access) = self.bytes.fast(variant);
                SendOp::FastRegister { key, addr, access }
            }
            _ if step.offset & 7 == 7 => SendOp::Invalid { status: WcStatus::LocQpOpErr },
            _ => SendOp::LocalInvalidate { key: rkey },
        };
        let mut flags = SendFlags::from_bits_truncate(step.flags);
        if self.setup.has(super::Setup::SIGNAL_ALL) {
            flags |= SendFlags::SIGNALED;
        }
        self.next_wr_id += 1;
        let wr_id = self.next_wr_id;
        let qpn = self.slots[index].qpn;
        let state = self.state(index);
        let outcome = if step.flags & INLINE != 0 {
            let data = [0x5A; 40];
            let wr = SendWr { wr_id, op, sges: &[], flags };
            self.engine.post_send_inline(qpn, &wr, &data[..variant % data.len()])
        } else {
            self.engine.post_send(qpn, &SendWr { wr_id, op, sges: &sges, flags })
        };
        if outcome.is_ok() {
            // A work request posted in error completes, signaled or not.
            flags.set(SendFlags::SIGNALED, flags.contains(SendFlags::SIGNALED) || !state.sends());
            let sges = if step.flags & INLINE != 0 { &[][..] } else { &sges };
            self.slots[index].work.sends.push_back(Posted::send(wr_id, op, sges, flags));
        }
    }

    fn recv(&mut self, input: &mut Input<'_>) {
        let index = self.index(input.u8());
        let sges = self.sges(input);
        self.next_wr_id += 1;
        let wr = RecvWr { wr_id: self.next_wr_id | RECV, sges: &sges };
        if self.engine.post_recv(self.slots[index].qpn, &wr).is_ok() {
            self.slots[index].work.recvs.push_back(Posted::recv(&wr));
        }
    }

    fn srq_recv(&mut self, input: &mut Input<'_>) {
        let sges = self.sges(input);
        self.next_wr_id += 1;
        let wr = RecvWr { wr_id: self.next_wr_id | RECV, sges: &sges };
        if self.engine.post_srq_recv(self.srq, &wr).is_ok() {
            self.shared.push(Posted::recv(&wr));
        }
    }

    pub fn state(&self, index: usize) -> QpState {
        self.engine.query_qp(self.slots[index].qpn).expect("a queue pair").state
    }

    pub fn modify(&mut self, index: usize, number: usize) {
        let transition = self.transition(index, number);
        let (from, to) = (self.state(index), transition.target());
        let outcome = self.engine.modify_qp(self.slots[index].qpn, transition);
        assert!(outcome.is_err() || from.may_become(to), "{from} became {to}");
        assert_eq!(self.state(index), if outcome.is_ok() { to } else { from }, "{outcome:?}");
        match (outcome, from, to) {
            (Ok(()), _, QpState::Reset) => self.forget(index),
            // On unreliable services a failed send queue may be resumed.
            (Ok(()), QpState::Sqe, QpState::Rts) => self.slots[index].work.resume(),
            _ => {}
        }
    }

    /// The work of a queue pair is forgotten; completions that exist already have been polled, or are in the small queue.
    fn forget(&mut self, index: usize) {
        self.poll(1, usize::MAX);
        let slot = &mut self.slots[index];
        slot.work.reset();
        slot.write = None;
        // The receive in use is forgotten, too.
        self.taken += 1;
    }

    fn recreate(&mut self, number: u8) {
        let index = self.index(number);
        self.forget(index);
        self.engine.destroy_qp(self.now, self.slots[index].qpn).expect("a queue pair");
        let kind = self.slots[index].kind;
        self.slots[index] = self.create(kind);
        self.bring_up(index);
    }

    fn set(&mut self, input: &mut Input<'_>) {
        let (index, what, value) = (self.index(input.u8()), input.u8(), input.u8());
        let qpn = self.slots[index].qpn;
        match what % 9 {
            0 => {
                let settings =
                    KeepAlive { idle: Duration::from_millis(5), interval: Duration::from_millis(1), probes: 2 };
                let _wrong_state = self.engine.set_keep_alive(self.now, qpn, (value & 1 == 0).then_some(settings));
            }
            1 => {
                let _not_datagram = self.engine.attach_multicast(qpn, group(self.setup));
            }
            2 => {
                let _not_attached = self.engine.detach_multicast(qpn, group(self.setup));
            }
            3 => {
                let number = u32::from(value % 20);
                let attr = if value < 160 { SrqAttr::limit(number) } else { SrqAttr::size(number) };
                let _out_of_range = self.engine.modify_srq(self.srq, attr);
            }
            4 => {
                let cq = self.cqs[usize::from(value & 1)];
                self.engine.request_notify(cq, value & 2 != 0).expect("a completion queue");
            }
            5 if value & 0x80 != 0 => {
                let _not_allowed = self.engine.modify_attributes(self.now, qpn, &attr_change(value));
            }
            5 => self.engine.established(qpn),
            6 => {
                let _no_path = self.engine.set_path(qpn, MacAddr([2, 0, 0, 0, 1, value]));
            }
            7 => {
                let _no_path = self.engine.detect_peer_type(qpn, QKEY, PathMtu::Mtu256);
            }
            _ => self.engine.abort_qp(qpn).expect("a queue pair"),
        }
    }

    /// A frame of ours comes back, as from a peer with the same numbers: addresses reversed and to the queue pair that
    /// wrote it.
    fn reflect(&mut self, input: &mut Input<'_>) {
        let (back, number) = (usize::from(input.u8()), input.u8());
        let frames = self.transmit(None);
        let Some(frame) = frames.len().checked_sub(1 + back % frames.len().max(1)).map(|at| &frames[at]) else {
            return;
        };
        let Ok(Frame::Roce(packet)) = classify(frame) else { return };
        let path = path_from_peer(self.setup, false);
        let mut reflected = crate::rebuild::rebuild_along(&packet, &path, self.slots[self.index(number)].qpn.get());
        let payload = packet.icrc_range().start - packet.payload().len()..packet.icrc_range().start;
        // Our own requests may send protected bytes, and a peer may write such to memory that another one reads: that is no leak.
        declassify(&mut reflected[payload.clone()]);
        crate::rebuild::seal(&mut reflected[packet.ip_at()..], packet.is_ipv4());
        if input.u8() & 1 != 0 {
            input.change(&mut reflected[payload.start..]);
        }
        self.receive(&reflected, None);
    }

    /// Writes frames, and checks them. Returns them.
    pub fn transmit(&mut self, room: Option<usize>) -> Vec<Vec<u8>> {
        let mut tx = TxFrames { room, ..TxFrames::default() };
        let written = self.engine.transmit(self.now, &mut tx);
        assert_eq!(written, tx.frames.len());
        let frames: Vec<Vec<u8>> = tx.frames.into_iter().map(|(_, frame)| frame).collect();
        for frame in &frames {
            self.check_transmitted(frame);
        }
        frames
    }
}

/// A change of one attribute, by the low bits of `value`; the bits above are its value.
fn attr_change(value: u8) -> QpAttrChange {
    let (which, code) = (value & 7, value >> 3 & 15);
    let (none, code) = (QpAttrChange::default(), Some(code));
    match which {
        0 => QpAttrChange { access: Some(Access::empty()), ..none },
        1 => QpAttrChange { qkey: Some(QKEY), ..none },
        2 => QpAttrChange { timeout: code, ..none },
        3 => QpAttrChange { retry_cnt: code, ..none },
        4 => QpAttrChange { rnr_retry: code, min_rnr_timer: code, ..none },
        5 => QpAttrChange { max_rd_atomic: code, ..none },
        6 => QpAttrChange { max_dest_rd_atomic: code, ..none },
        _ => QpAttrChange { pkey_index: code.map(u16::from), ..none },
    }
}
