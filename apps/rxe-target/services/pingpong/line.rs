//! The line that both ends of a pingpong exchange, 52 bytes:
//!
//! ```text
//! LLLL:QQQQQQ:PPPPPP:GGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGG\0
//! ```
//!
//! LID, queue pair number, first PSN and GID in hexadecimal digits. Source: docs/protocol-notes.md.

use rxe_proto::verbs::Qpn;
use rxe_proto::wire::{Gid, Psn};

/// Length of a line with its zero byte.
pub const LINE: usize = 52;
/// Number of lines of ibv_srq_pingpong, used or not.
pub const MANY: usize = 256;
/// Written by clients when they have read our answer.
pub const DONE: &[u8] = b"done\0";

/// The values in a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Line {
    /// The queue pair; 0 in lines without one.
    pub qpn: Qpn,
    /// The first PSN that it sends.
    pub psn: Psn,
    /// GID of the sender's port.
    pub gid: Gid,
}

/// Parses `digits` hexadecimal digits and the byte `end` behind them; returns the value and the rest.
fn field(text: &[u8], digits: usize, end: u8) -> Option<(u128, &[u8])> {
    let (number, rest) = text.split_at_checked(digits)?;
    let (&stop, rest) = rest.split_first()?;
    let digits = number.iter().map(|b| char::from(*b).to_digit(16).map(u128::from));
    let value = digits.into_iter().try_fold(0, |value, digit| Some(value << 4 | digit?))?;
    (stop == end).then_some((value, rest))
}

impl Line {
    /// Reads a line.
    pub fn parse(text: &[u8; LINE]) -> Option<Line> {
        let (_lid, rest) = field(text, 4, b':')?;
        let (qpn, rest) = field(rest, 6, b':')?;
        let (psn, rest) = field(rest, 6, b':')?;
        let (gid, _) = field(rest, 32, 0)?;
        // Six digits are 24 bits.
        Some(Line { qpn: Qpn::new(qpn as u32), psn: Psn::new(psn as u32), gid: Gid(gid.to_be_bytes()) })
    }

    /// Writes the line.
    pub fn write(&self) -> [u8; LINE] {
        let gid = u128::from_be_bytes(self.gid.0);
        let text = format!("0000:{:06x}:{:06x}:{gid:032x}\0", self.qpn.get(), self.psn.get());
        let mut line = [0; LINE];
        for (to, from) in line.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        line
    }

    /// Whether the line has a queue pair number.
    pub fn is_used(&self) -> bool {
        self.qpn.get() != 0
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// As ibv_rc_pingpong was seen to write it.
    const SEEN: &[u8; LINE] = b"0000:000011:6b93be:00000000000000000000ffffc0a83701\0";

    #[test]
    fn a_line_is_read_and_written() {
        let line = Line::parse(SEEN).expect("a line");
        let gid = Gid::from(Ipv4Addr::new(192, 168, 55, 1));
        assert_eq!(line, Line { qpn: Qpn::new(0x11), psn: Psn::new(0x6B_93BE), gid });
        assert_eq!(&line.write(), SEEN);
        assert_eq!(&Line::default().write()[..], b"0000:000000:000000:00000000000000000000000000000000\0");
        assert!(line.is_used() && !Line::default().is_used());
        let largest = Line { qpn: Qpn::new(0xFF_FFFF), psn: Psn::new(0xFF_FFFF), gid: Gid([0xFF; 16]) };
        assert_eq!(Line::parse(&largest.write()), Some(largest));
    }

    #[test]
    fn nonsense_is_no_line() {
        for at in 0..LINE {
            let mut text = *SEEN;
            text[at] = b'x';
            assert_eq!(Line::parse(&text), None, "byte {at}");
        }
    }
}
