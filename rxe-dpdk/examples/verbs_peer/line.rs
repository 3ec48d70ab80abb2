//! Lines of the protocol: a word, then fields `name=value`; and the bytes of messages.

use std::collections::HashMap;
use std::str::FromStr;

use rxe_dpdk::rxe_proto::verbs::{Memory, MemoryRegion, Sge};

/// One line, taken apart.
pub struct Line<'a> {
    /// The command.
    pub word: &'a str,
    fields: HashMap<&'a str, &'a str>,
}

impl<'a> Line<'a> {
    /// Takes a line apart. Words without `=` after the first one are ignored.
    pub fn parse(line: &'a str) -> Line<'a> {
        let mut words = line.split_ascii_whitespace();
        let word = words.next().unwrap_or("");
        Line { word, fields: words.filter_map(|word| word.split_once('=')).collect() }
    }

    /// A field's text.
    pub fn text(&self, name: &str) -> Result<&'a str, String> {
        self.fields.get(name).copied().ok_or_else(|| format!("{} wants {name}=", self.word))
    }

    /// A field's number.
    pub fn number<T: FromStr>(&self, name: &str) -> Result<T, String> {
        let text = self.text(name)?;
        text.parse().map_err(|_| format!("{name}={text} is no number that fits"))
    }

    /// A field's number, if the field is there.
    pub fn optional<T: FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        if self.fields.contains_key(name) { self.number(name).map(Some) } else { Ok(None) }
    }

    /// Whether the field is there and is not 0.
    pub fn flag(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|&value| value != "0")
    }

    /// The field `sge`: pieces of a buffer of `len` bytes, `offset:length` with commas between.
    pub fn pieces(&self, len: usize) -> Result<Vec<Piece>, String> {
        let text = self.text("sge")?;
        let piece = |part: &str| {
            let (offset, length) = part.split_once(':')?;
            let piece = Piece { offset: offset.parse().ok()?, length: length.parse().ok()? };
            (piece.offset.checked_add(piece.length)? <= len).then_some(piece)
        };
        let parts = text.split(',').filter(|part| !part.is_empty());
        parts.map(|part| piece(part).ok_or_else(|| format!("{part} is no piece of the buffer"))).collect()
    }

    /// The field `gid`: 32 hexadecimal digits.
    pub fn gid(&self) -> Result<[u8; 16], String> {
        let text = self.text("gid")?;
        let number = if text.len() == 32 { u128::from_str_radix(text, 16).ok() } else { None };
        number.map(u128::to_be_bytes).ok_or_else(|| format!("gid={text} is no GID"))
    }
}

/// Part of a buffer.
#[derive(Clone, Copy)]
pub struct Piece {
    /// Offset in the buffer, in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub length: usize,
}

impl Piece {
    /// The piece as a work request names it.
    pub fn sge(self, region: &MemoryRegion) -> Sge {
        // A piece lies in a buffer of 1 MiB.
        Sge { addr: region.addr() + self.offset as u64, length: self.length as u32, lkey: region.lkey() }
    }
}

/// The pseudo-random bytes of a message (xorshift64*), the same for the same seed at both ends.
pub fn pattern(seed: u64) -> impl FnMut() -> u8 {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
    move || {
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        (x.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 56) as u8
    }
}

/// The bytes of a piece.
pub fn read(memory: &Memory, piece: Piece) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; piece.length];
    memory.read(piece.offset, &mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
