//! Buffers that two rsockets map: each WRITEs into the other's, past the stream, and polls its own for data.
//!
//! riostream's client WRITEs its buffer some times, the last time with the next even marker in the last byte, and waits
//! until its own last byte is the odd marker behind it. No message tells that a WRITE came.

use super::data::{BUFFER, Buffer};

/// Length of an entry of the table of mapped buffers.
pub const ENTRY: usize = 8 + BUFFER;
/// The longest buffer that a client may map.
pub const MAX_LENGTH: u32 = 64 << 20;
/// The last byte of a new buffer: no client's marker.
pub const NOTHING_YET: u8 = 0xFF;

/// An entry of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Offset of the first byte, as programs see it.
    pub offset: u64,
    /// The buffer.
    pub buffer: Buffer,
}

impl Entry {
    /// An entry of our own table, as the peer wrote it: little-endian, as we have asked for.
    pub fn parse(entry: &[u8; ENTRY]) -> Entry {
        let [o0, o1, o2, o3, o4, o5, o6, o7, buffer @ ..] = entry;
        Entry { offset: u64::from_le_bytes([*o0, *o1, *o2, *o3, *o4, *o5, *o6, *o7]), buffer: Buffer::parse(buffer) }
    }

    /// The entry for a peer's table, in the peer's byte order.
    pub fn write(&self, big_endian: bool) -> [u8; ENTRY] {
        let mut entry = [0; ENTRY];
        let (offset, buffer) = entry.split_at_mut(8);
        offset.copy_from_slice(&if big_endian { self.offset.to_be_bytes() } else { self.offset.to_le_bytes() });
        buffer.copy_from_slice(&self.buffer.write(big_endian));
        entry
    }
}

/// Which end owns a mapped buffer now.
#[derive(Default, Debug)]
pub struct Markers {
    /// The marker that says that the client is done.
    next: u8,
}

impl Markers {
    /// The last byte is `last`: the marker to send back, if the client is done.
    pub fn seen(&mut self, last: u8) -> Option<u8> {
        if last != self.next {
            return None;
        }
        self.next = last.wrapping_add(2);
        Some(last.wrapping_add(1))
    }
}

#[cfg(test)]
mod tests {
    use rxe_proto::verbs::RemoteAddr;

    use super::*;

    #[test]
    fn entries_are_in_their_owners_order() {
        let buffer = Buffer { at: RemoteAddr { addr: 0x7F00_1234_5000, rkey: 0xABCD }, length: 4096 };
        let entry = Entry { offset: 0x1_0000, buffer };
        assert_eq!(Entry::parse(&entry.write(false)), entry);
        let little = [0, 0, 1, 0, 0, 0, 0, 0, 0, 0x50, 0x34, 0x12, 0, 0x7F, 0, 0, 0xCD, 0xAB, 0, 0, 0, 0x10, 0, 0];
        assert_eq!(entry.write(false), little);
        assert_eq!(entry.write(true)[..8], [0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(entry.write(true)[16..], [0, 0, 0xAB, 0xCD, 0, 0, 0x10, 0]);
    }

    #[test]
    fn markers_take_turns_and_wrap() {
        let mut markers = Markers::default();
        assert_eq!(markers.seen(NOTHING_YET), None);
        let mut last = NOTHING_YET;
        for round in 0..300u32 {
            let marker = (2 * round % 256) as u8;
            assert_eq!(markers.seen(last), None, "the client is not done");
            assert_eq!(markers.seen(marker), Some(marker + 1));
            last = marker + 1;
        }
    }
}
