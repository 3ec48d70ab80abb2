//! Packets of a peer, from the choices of an input.

use rxe_proto::wire::{
    BthFields, DEFAULT_PKEY, Frame, HeaderTemplate, Headers, OPCODES, OpcodeInfo, Path, Psn, Syndrome, classify,
};

use super::memory::{Bytes, FOREIGN, SECRET};
use crate::input::Input;
use crate::rebuild::seal;

/// The choices that make a packet.
#[derive(Clone, Copy, Default, Debug)]
pub struct PacketStep {
    /// Index of the destination queue pair.
    pub qp: u8,
    /// The opcode byte, or modulo the known opcodes if it is unknown.
    pub opcode: u8,
    /// Distance from the expected PSN, or for a response from the oldest unacknowledged one.
    pub psn: i8,
    /// A set of [`flag`]s.
    pub flags: u8,
    /// Number of the key that it names.
    pub key: u8,
    /// Distance from 8 bytes before the first byte of the key.
    pub offset: u16,
    /// Length in the RETH.
    pub len: u16,
    /// Length of the payload: 0 for the path MTU, 1 for `len`, else this less 2.
    pub payload: u16,
    /// Syndrome of an AETH.
    pub syndrome: u8,
}

/// Flags of a packet.
pub mod flag {
    /// Acknowledgement requested.
    pub const ACK_REQ: u8 = 1;
    /// Solicited event.
    pub const SOLICITED: u8 = 2;
    /// Marked by a switch.
    pub const MARKED: u8 = 4;
    /// From another address.
    pub const FOREIGN: u8 = 8;
    /// With another P_Key and Q_Key.
    pub const PKEY: u8 = 16;
    /// The length in the RETH is 2^16 times as large.
    pub const HUGE: u8 = 32;
    /// To the multicast group.
    pub const MULTICAST: u8 = 64;
    /// Bytes are changed behind the UDP header, as the following bytes of the input say.
    pub const CHANGED: u8 = 128;
}

/// The known opcode for a byte.
fn opcode(byte: u8) -> &'static OpcodeInfo {
    OPCODES[usize::from(byte)].as_ref().unwrap_or_else(|| {
        let known: Vec<&OpcodeInfo> = OPCODES.iter().flatten().collect();
        known[usize::from(byte) % known.len()]
    })
}

/// The queue pair that a packet goes to.
pub struct Destination {
    pub qpn: u32,
    pub expected: Psn,
    pub unacked: Psn,
    pub mtu: usize,
    pub qkey: u32,
}

impl PacketStep {
    /// The next choices of an input.
    pub fn read(input: &mut Input<'_>) -> PacketStep {
        PacketStep {
            qp: input.u8(),
            opcode: input.u8(),
            psn: input.u8() as i8,
            flags: input.u8(),
            key: input.u8(),
            offset: input.u16(),
            len: input.u16(),
            payload: input.u16(),
            syndrome: input.u8(),
        }
    }

    /// The bytes of an input with these choices.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = vec![self.qp, self.opcode, self.psn as u8, self.flags, self.key];
        bytes.extend([self.offset, self.len, self.payload].into_iter().flat_map(u16::to_be_bytes));
        bytes.push(self.syndrome);
        bytes
    }

    /// The frame along `path`.
    pub fn frame(self, to: &Destination, path: &Path, memory: &Bytes, input: &mut Input<'_>) -> Vec<u8> {
        let info = opcode(self.opcode);
        let start = if info.response { to.unacked } else { to.expected };
        let (rkey, first, len) = memory.key(self.key);
        let va = first.wrapping_add(u64::from(self.offset) % (len as u64 + 16)).wrapping_sub(8);
        let dma_len = u32::from(self.len) << if self.flags & flag::HUGE != 0 { 16 } else { 0 };
        let payload_len = match self.payload {
            _ if !info.payload && self.payload < 0x8000 => 0,
            0 => to.mtu,
            1 => usize::from(self.len).min(to.mtu),
            len => usize::from(len - 2) % 1500,
        };
        let has = |flag: u8| self.flags & flag != 0;
        let fields = BthFields {
            opcode: info.opcode,
            dest_qp: if has(flag::MULTICAST) { 0xFF_FFFF } else { to.qpn },
            psn: Psn::new(start.get().wrapping_add_signed(self.psn.into())),
            solicited: has(flag::SOLICITED),
            ack_req: has(flag::ACK_REQ),
            pkey: if has(flag::PKEY) { 1 } else { DEFAULT_PKEY },
        };
        let traffic_class = if has(flag::MARKED) { 3 } else { 0 };
        let template = HeaderTemplate::new(&Path { traffic_class, ..path.clone() });
        let mut frame = vec![0; template.frame_len(fields.opcode, payload_len)];
        let mut packet = template.build(&mut frame, fields, payload_len);
        let headers = info.headers;
        if headers.contains(Headers::RETH) {
            packet.reth(va, rkey, dma_len);
        }
        if headers.contains(Headers::ATOMIC) {
            packet.atomic_eth(va, rkey, u64::from(self.len), u64::from(self.payload));
        }
        if headers.contains(Headers::AETH) {
            packet.aeth(Syndrome::from_byte(self.syndrome), self.len.into());
        }
        if headers.contains(Headers::ATOMIC_ACK) {
            packet.atomic_ack(va);
        }
        if headers.contains(Headers::DETH) {
            packet.deth(if has(flag::PKEY) { 1 } else { to.qkey }, 0x99);
        }
        if headers.contains(Headers::IMM) {
            packet.imm(rkey);
        }
        if headers.contains(Headers::IETH) {
            packet.ieth(rkey);
        }
        if headers.contains(Headers::FETH) {
            packet.feth(self.syndrome & 3, self.syndrome >> 2 & 3);
        }
        packet.congestion(false, has(flag::MARKED));
        for (i, byte) in packet.payload_mut().iter_mut().enumerate() {
            *byte = (i as u8).wrapping_add(fields.psn.get() as u8) & 0x7F;
        }
        packet.finish();
        if has(flag::CHANGED) {
            change(&mut frame, input);
        }
        frame
    }
}

/// Changes bytes behind the UDP header, not to those values that only protected memory has. The ICRC is corrected unless
/// the next byte is odd.
fn change(frame: &mut [u8], input: &mut Input<'_>) {
    let (ip_at, is_ipv4, at) = match classify(frame) {
        Ok(Frame::Roce(packet)) => (packet.ip_at(), packet.is_ipv4(), packet.ip_at() + packet.ip_header().len() + 8),
        _ => return,
    };
    input.change(&mut frame[at..]);
    declassify(&mut frame[at..]);
    if input.u8() & 1 == 0 {
        seal(&mut frame[ip_at..], is_ipv4);
    }
}

/// Replaces the values that only protected memory has: a peer's packets have neither.
pub fn declassify(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().filter(|byte| matches!(**byte, SECRET | FOREIGN)) {
        *byte = 0;
    }
}
