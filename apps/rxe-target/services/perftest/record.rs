//! The description of a queue pair that perftest's ends exchange: as text over TCP, as a struct over a queue pair (`-z`,
//! `-R`). Source: docs/protocol-notes.md.

use rxe_proto::verbs::Qpn;
use rxe_proto::wire::{Gid, Psn};

/// Length as text:
/// `LLLL:OOOO:QQQQQQ:PPPPPP:RRRRRRRR:VVVVVVVVVVVVVVVV:gg:gg:(16 bytes):SSSSSSSS:` and a zero byte.
pub const TEXT: usize = 108;
/// Length as a struct.
pub const BINARY: usize = 56;

/// One end's queue pair and memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// Maximum number of outstanding READs and atomics.
    pub out_reads: u32,
    /// The queue pair.
    pub qpn: Qpn,
    /// The first PSN that it sends.
    pub psn: Psn,
    /// Key of the memory.
    pub rkey: u32,
    /// Address at which the peer's operations begin.
    pub vaddr: u64,
    /// Address of the queue pair.
    pub gid: Gid,
}

/// Parses `digits` hexadecimal digits and the `:` behind them; returns the value and the rest.
fn field(text: &[u8], digits: usize) -> Option<(u64, &[u8])> {
    let (number, rest) = text.split_at_checked(digits)?;
    let rest = rest.strip_prefix(b":")?;
    let digits = number.iter().map(|b| char::from(*b).to_digit(16).map(u64::from));
    let value = digits.into_iter().try_fold(0, |value, digit| Some(value << 4 | digit?))?;
    Some((value, rest))
}

impl Record {
    /// Reads the text.
    pub fn parse(text: &[u8; TEXT]) -> Option<Record> {
        let (_lid, rest) = field(text, 4)?;
        let (out_reads, rest) = field(rest, 4)?;
        let (qpn, rest) = field(rest, 6)?;
        let (psn, rest) = field(rest, 6)?;
        let (rkey, rest) = field(rest, 8)?;
        let (vaddr, mut rest) = field(rest, 16)?;
        let mut gid = Gid::default();
        for byte in &mut gid.0 {
            let (value, behind) = field(rest, 2)?;
            // Two digits are 8 bits. The digits of the other fields fit their types, too.
            *byte = value as u8;
            rest = behind;
        }
        let (_srqn, rest) = field(rest, 8)?;
        let record = Record {
            out_reads: out_reads as u32,
            qpn: Qpn::new(qpn as u32),
            psn: Psn::new(psn as u32),
            rkey: rkey as u32,
            vaddr,
            gid,
        };
        (rest == b"\0").then_some(record)
    }

    /// Writes the text.
    pub fn write(&self) -> Vec<u8> {
        let gid: String = self.gid.0.iter().map(|byte| format!("{byte:02x}:")).collect();
        let Record { out_reads, qpn, psn, rkey, vaddr, .. } = self;
        let (qpn, psn) = (qpn.get(), psn.get());
        // The first number has four digits.
        let out_reads = out_reads & 0xFFFF;
        format!("0000:{out_reads:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{vaddr:016x}:{gid}00000000:\0").into_bytes()
    }

    /// Reads the struct.
    pub fn parse_binary(bytes: &[u8; BINARY]) -> Record {
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
        let mut gid = Gid::default();
        gid.0.copy_from_slice(&bytes[32..48]);
        Record {
            out_reads: word(4),
            qpn: Qpn::new(word(8)),
            psn: Psn::new(word(12)),
            rkey: word(16),
            vaddr: u64::from(word(24)) << 32 | u64::from(word(28)),
            gid,
        }
    }

    /// Writes the struct.
    pub fn write_binary(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BINARY);
        for word in [0, self.out_reads, self.qpn.get(), self.psn.get(), self.rkey, 0] {
            bytes.extend_from_slice(&word.to_be_bytes());
        }
        bytes.extend_from_slice(&self.vaddr.to_be_bytes());
        bytes.extend_from_slice(&self.gid.0);
        bytes.resize(BINARY, 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// As ib_read_bw was seen to write it (a `0001` and other numbers for the other tests).
    const SEEN: &[u8; TEXT] = b"0000:0080:000011:1289ef:000017a3:000055ca60f68000:\
        00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:37:01:00000000:\0";

    fn seen() -> Record {
        Record {
            out_reads: 128,
            qpn: Qpn::new(0x11),
            psn: Psn::new(0x12_89EF),
            rkey: 0x17A3,
            vaddr: 0x55CA_60F6_8000,
            gid: Gid::from(Ipv4Addr::new(192, 168, 55, 1)),
        }
    }

    #[test]
    fn the_text_is_read_and_written() {
        assert_eq!(Record::parse(SEEN), Some(seen()));
        assert_eq!(seen().write(), SEEN);
        assert_eq!(Record::default().write().len(), TEXT);
        for at in 0..TEXT {
            let mut text = *SEEN;
            text[at] = b'x';
            assert_eq!(Record::parse(&text), None, "byte {at}");
        }
    }

    #[test]
    fn the_struct_is_read_and_written() {
        let bytes: [u8; BINARY] = seen().write_binary().try_into().expect("the length");
        assert_eq!(
            bytes[..24],
            [0, 0, 0, 0, 0, 0, 0, 128, 0, 0, 0, 0x11, 0, 0x12, 0x89, 0xEF, 0, 0, 0x17, 0xA3, 0, 0, 0, 0]
        );
        assert_eq!(bytes[24..36], [0, 0, 0x55, 0xCA, 0x60, 0xF6, 0x80, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[36..], [0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 192, 168, 55, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Record::parse_binary(&bytes), seen());
        // The four bytes behind the key are padding with whatever was there.
        let mut bytes = bytes;
        bytes[20..24].fill(0xA5);
        assert_eq!(Record::parse_binary(&bytes), seen());
    }
}
