//! One engine whose peer is the test: it writes packets by hand and reads the answers as text.
//!
//! PSNs are relative to the start of their direction, so scripts read the same wherever they start.

use rxe_proto::transport::{EngineConfig, QpType, Qpn};
use rxe_proto::wire::{
    BthFields, BthOpcode, DEFAULT_PKEY, Frame, HeaderTemplate, NakCode, Opcode, PacketBuilder, Path, Psn, RocePacket,
    Syndrome, Transport, TxFrames, classify,
};
use rxe_proto::{Duration, Instant};

use super::{Agreed, Node, PORT, path};

/// The peer's queue pair number.
pub const PEER_QPN: u32 = 0x11;

pub struct ScriptedPeer {
    pub node: Node,
    pub now: Instant,
    pub agreed: Agreed,
    /// Of the queue pair, and of every packet that the peer sends.
    pub qp_type: QpType,
    template: HeaderTemplate,
    /// The frames of the last [`ScriptedPeer::transmit`].
    pub frames: Vec<Vec<u8>>,
}

/// The AckReq bit of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AckReq {
    Ack,
    NoAck,
}

impl ScriptedPeer {
    pub fn new() -> ScriptedPeer {
        ScriptedPeer::with(Agreed { sq_psn: Psn::new(0xFF_FFFE), rq_psn: Psn::new(0xFF_FFFD), ..Agreed::default() })
    }

    pub fn with(agreed: Agreed) -> ScriptedPeer {
        ScriptedPeer::with_config(agreed, EngineConfig::default())
    }

    pub fn with_config(agreed: Agreed, config: EngineConfig) -> ScriptedPeer {
        ScriptedPeer::of(QpType::Rc, false, agreed, config)
    }

    /// A queue pair of type `qp_type` in RTS, if `shared` with a shared receive queue of 64 receives (number 0).
    pub fn of(qp_type: QpType, shared: bool, agreed: Agreed, config: EngineConfig) -> ScriptedPeer {
        let mut node = Node::bare(1, config, 256, 1 << 16);
        let srq = shared.then(|| node.create_srq(64, 0));
        node.qpn = node.create_typed_qp(qp_type, srq, 64, agreed.access);
        match qp_type {
            QpType::Ud => node.ready_for_datagrams(&agreed),
            QpType::Rc | QpType::Uc => {
                node.ready_to_receive(2, Qpn::new(PEER_QPN), &agreed);
                node.ready_to_send(&agreed);
            }
        }
        let template = HeaderTemplate::new(&path(2, 1));
        ScriptedPeer { node, now: Instant::from_nanos(1_000), agreed, qp_type, template, frames: Vec::new() }
    }

    /// Another queue pair like the first one, whose peer is `peer_qpn`.
    pub fn second_qp(&mut self, peer_qpn: u32) -> Qpn {
        let first = self.node.qpn;
        self.node.qpn = self.node.create_qp(8, self.agreed.access);
        self.node.ready_to_receive(2, Qpn::new(peer_qpn), &self.agreed);
        self.node.ready_to_send(&self.agreed);
        std::mem::replace(&mut self.node.qpn, first)
    }

    pub fn mtu(&self) -> usize {
        self.agreed.mtu.bytes()
    }

    /// A frame from the peer, as the engine should see it.
    pub fn frame(
        &self,
        op: Opcode,
        psn: Psn,
        ack_req: AckReq,
        payload: &[u8],
        headers: impl FnOnce(&mut PacketBuilder<'_>),
    ) -> Vec<u8> {
        let fields = BthFields {
            opcode: BthOpcode { transport: self.qp_type.transport(), op },
            dest_qp: self.node.qpn.get(),
            psn,
            solicited: false,
            ack_req: ack_req == AckReq::Ack,
            pkey: DEFAULT_PKEY,
        };
        let mut frame = vec![0; self.template.frame_len(fields.opcode, payload.len())];
        let mut packet = self.template.build(&mut frame, fields, payload.len());
        headers(&mut packet);
        packet.payload_mut().copy_from_slice(payload);
        packet.finish();
        frame
    }

    pub fn inject(&mut self, frame: &[u8]) {
        let Ok(Frame::Roce(packet)) = classify(frame) else { panic!("not a RoCE frame") };
        self.node.engine.receive(self.now, PORT, &packet);
    }

    /// Whether a switch marks what the peer sends from now on.
    pub fn mark_congestion(&mut self, on: bool) {
        let traffic_class = if on { 3 } else { 0 };
        self.template = HeaderTemplate::new(&Path { traffic_class, ..path(2, 1) });
    }

    /// The peer sends a congestion notification.
    pub fn notify_congestion(&mut self) {
        let fields = BthFields {
            opcode: BthOpcode::CNP,
            dest_qp: self.node.qpn.get(),
            psn: Psn::new(0),
            solicited: false,
            ack_req: false,
            pkey: DEFAULT_PKEY,
        };
        let mut frame = vec![0; self.template.frame_len(fields.opcode, 0)];
        let mut packet = self.template.build(&mut frame, fields, 0);
        packet.congestion(false, true);
        packet.finish();
        self.inject(&frame);
    }

    fn request_psn(&self, psn: i32) -> Psn {
        Psn::new((self.agreed.rq_psn.get() as i32 + psn) as u32)
    }

    fn response_psn(&self, psn: i32) -> Psn {
        Psn::new((self.agreed.sq_psn.get() as i32 + psn) as u32)
    }

    /// The peer sends a request without extension headers.
    pub fn request(&mut self, op: Opcode, psn: i32, ack_req: AckReq, payload: &[u8]) {
        let frame = self.frame(op, self.request_psn(psn), ack_req, payload, |_| {});
        self.inject(&frame);
    }

    /// The peer sends a WRITE packet with RETH, or a READ request; `offset` counts from the start of the region.
    pub fn rdma(&mut self, op: Opcode, psn: i32, ack_req: AckReq, offset: usize, len: usize, payload: &[u8]) {
        let (va, rkey) = (self.node.region.addr() + offset as u64, self.node.region.rkey());
        self.rdma_raw(op, psn, ack_req, va, rkey, len as u32, payload);
    }

    #[allow(clippy::too_many_arguments)]
    pub fn rdma_raw(&mut self, op: Opcode, psn: i32, ack_req: AckReq, va: u64, rkey: u32, len: u32, payload: &[u8]) {
        let frame = self.frame(op, self.request_psn(psn), ack_req, payload, |packet| {
            packet.reth(va, rkey, len);
        });
        self.inject(&frame);
    }

    /// The peer sends an atomic on the 8 bytes at `offset` of the region.
    pub fn atomic(&mut self, op: Opcode, psn: i32, offset: usize, swap_or_add: u64, compare: u64) {
        let (va, rkey) = (self.node.region.addr() + offset as u64, self.node.region.rkey());
        let frame = self.frame(op, self.request_psn(psn), AckReq::Ack, &[], |packet| {
            packet.atomic_eth(va, rkey, swap_or_add, compare);
        });
        self.inject(&frame);
    }

    /// The peer answers with an ACK or NAK.
    pub fn answer(&mut self, psn: i32, syndrome: Syndrome) {
        let frame = self.frame(Opcode::Acknowledge, self.response_psn(psn), AckReq::NoAck, &[], |packet| {
            packet.aeth(syndrome, 0);
        });
        self.inject(&frame);
    }

    pub fn ack(&mut self, psn: i32) {
        self.answer(psn, Syndrome::ACK);
    }

    pub fn nak(&mut self, psn: i32, code: NakCode) {
        self.answer(psn, Syndrome::Nak(code));
    }

    /// The peer sends a READ response.
    pub fn read_response(&mut self, op: Opcode, psn: i32, payload: &[u8]) {
        let frame = self.frame(op, self.response_psn(psn), AckReq::NoAck, payload, |packet| {
            if op != Opcode::ReadResponseMiddle {
                packet.aeth(Syndrome::ACK, 0);
            }
        });
        self.inject(&frame);
    }

    pub fn atomic_response(&mut self, psn: i32, original: u64) {
        let frame = self.frame(Opcode::AtomicAcknowledge, self.response_psn(psn), AckReq::NoAck, &[], |packet| {
            packet.aeth(Syndrome::ACK, 0).atomic_ack(original);
        });
        self.inject(&frame);
    }

    /// Lets the engine transmit everything and checks each frame; returns them as text.
    pub fn transmit(&mut self) -> Vec<String> {
        self.transmit_at_most(None)
    }

    pub fn transmit_at_most(&mut self, room: Option<usize>) -> Vec<String> {
        let mut tx = TxFrames { room, ..TxFrames::default() };
        while self.node.engine.transmit(self.now, &mut tx) > 0 {}
        self.node.collect();
        self.frames = tx.frames.into_iter().map(|(_, frame)| frame).collect();
        self.frames.iter().map(|frame| self.describe(frame)).collect()
    }

    /// Checks that the engine writes exactly this.
    #[track_caller]
    pub fn expect<const N: usize>(&mut self, lines: [&str; N]) {
        assert_eq!(self.transmit(), lines);
    }

    fn describe(&self, frame: &[u8]) -> String {
        let Ok(Frame::Roce(packet)) = classify(frame) else { panic!("not a RoCE frame") };
        assert!(packet.icrc_ok());
        assert_eq!(packet.dest_qp(), PEER_QPN);
        describe(&packet, &self.agreed)
    }

    /// Time passes; every deadline on the way is handled when it comes.
    pub fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.node.engine.next_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.node.engine.handle_timeout(self.now);
        }
        self.now = end;
        self.node.collect();
    }
}

/// A packet from the engine in one line: name, PSN, and what matters.
pub fn describe(packet: &RocePacket<'_>, agreed: &Agreed) -> String {
    let response = packet.info().response;
    let start = if response { agreed.rq_psn } else { agreed.sq_psn };
    let psn = packet.psn().diff(start);
    if packet.transport() == Transport::Cnp {
        return "CNP".to_owned();
    }
    let name = packet.info().name.trim_start_matches("RC ");
    let mut line = match packet.aeth().map(|aeth| aeth.syndrome()) {
        Some(Syndrome::Ack { .. }) if packet.opcode() == Opcode::Acknowledge => format!("ACK {psn}"),
        Some(Syndrome::Rnr { timer }) => format!("RNR_NAK {psn} timer {timer}"),
        Some(Syndrome::Nak(code)) => format!("NAK {psn} {code:?}"),
        _ => format!("{name} {psn}"),
    };
    if let Some(aeth) = packet.aeth() {
        line += &format!(" msn {}", aeth.msn());
    }
    if let Some(reth) = packet.reth() {
        line += &format!(" va {:#x} len {}", reth.va(), reth.dma_len());
    }
    if let Some(value) = packet.atomic_ack() {
        line += &format!(" value {value}");
    }
    if let Some(imm) = packet.imm() {
        line += &format!(" imm {imm}");
    }
    if let Some(rkey) = packet.invalidate_rkey() {
        line += &format!(" inv {rkey:#x}");
    }
    if !packet.payload().is_empty() {
        line += &format!(" {} bytes", packet.payload().len());
    }
    if packet.solicited() {
        line += " solicited";
    }
    if packet.ack_req() {
        line += " ack_req";
    }
    line
}
