//! The data that rsockets exchange: connection data, descriptions of buffers, and immediate data. docs/protocol-notes.md
//! has the layouts.

use rxe_proto::verbs::RemoteAddr;

/// Length of the connection data.
pub const CONN_DATA: usize = 40;
/// Length of the description of a buffer.
pub const BUFFER: usize = 16;
/// Entries of a list of buffers.
pub const ENTRIES: u32 = 2;

/// Values below the three bits of the kind.
const VALUE: u32 = (1 << 29) - 1;
const CREDITS: u32 = 0x8000_0000;
const IOMAP: u32 = 0xC000_0000;
const CONTROL: u32 = 0xE000_0000;

/// Message in the immediate data of a WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// The length in bytes of the stream's next part, which was written.
    Data(u32),
    /// The receiver of this may send messages up to this number; with 16 bytes written, into a new buffer too.
    Credits(u16),
    /// This entry of the receiver's table of mapped buffers was written.
    Iomap(u32),
    /// The sender is done, both ways.
    Disconnect,
    /// The sender is still there.
    Keepalive,
    /// The sender sends no more.
    Shutdown,
}

impl Message {
    /// The message in `imm`; `None` if it has no meaning.
    pub fn parse(imm: u32) -> Option<Message> {
        let value = imm & VALUE;
        match (imm & !VALUE, value) {
            (0, _) => Some(Message::Data(value)),
            // Numbers of messages have 16 bits.
            (CREDITS, _) => Some(Message::Credits(value as u16)),
            (IOMAP, _) => Some(Message::Iomap(value)),
            (CONTROL, 0) => Some(Message::Disconnect),
            (CONTROL, 1) => Some(Message::Keepalive),
            (CONTROL, 2) => Some(Message::Shutdown),
            _ => None,
        }
    }

    /// The immediate data that says so. Values have at most 29 bits.
    pub fn imm(self) -> u32 {
        match self {
            Message::Data(length) => length & VALUE,
            Message::Credits(number) => CREDITS | u32::from(number),
            Message::Iomap(index) => IOMAP | (index & VALUE),
            Message::Disconnect => CONTROL,
            Message::Keepalive => CONTROL | 1,
            Message::Shutdown => CONTROL | 2,
        }
    }
}

fn be32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn be64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A buffer that may be written: entry of the list of buffers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Buffer {
    /// Address of the next byte.
    pub at: RemoteAddr,
    /// Number of bytes that may be written there.
    pub length: u32,
}

impl Buffer {
    /// An entry of our own list, as the peer wrote it: little-endian, as we have asked for.
    pub fn parse(entry: &[u8; BUFFER]) -> Buffer {
        let [addr @ .., k0, k1, k2, k3, l0, l1, l2, l3] = *entry;
        Buffer {
            at: RemoteAddr { addr: u64::from_le_bytes(addr), rkey: u32::from_le_bytes([k0, k1, k2, k3]) },
            length: u32::from_le_bytes([l0, l1, l2, l3]),
        }
    }

    /// The entry for a peer's list, in the peer's byte order.
    pub fn write(&self, big_endian: bool) -> [u8; BUFFER] {
        let mut entry = [0; BUFFER];
        let (addr, rest) = entry.split_at_mut(8);
        let (key, length) = rest.split_at_mut(4);
        if big_endian {
            addr.copy_from_slice(&self.at.addr.to_be_bytes());
            key.copy_from_slice(&self.at.rkey.to_be_bytes());
            length.copy_from_slice(&self.length.to_be_bytes());
        } else {
            addr.copy_from_slice(&self.at.addr.to_le_bytes());
            key.copy_from_slice(&self.at.rkey.to_le_bytes());
            length.copy_from_slice(&self.length.to_le_bytes());
        }
        entry
    }
}

/// The connection data of one side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnData {
    /// Its list of buffers is to be written in big-endian order.
    pub big_endian: bool,
    /// It knows mapped buffers.
    pub iomap: bool,
    /// Initial number of messages that it accepts.
    pub credits: u16,
    /// Entries of its table of mapped buffers, which lies behind its list of buffers.
    pub iomap_entries: u8,
    /// Address and key of the list of buffers.
    pub list: RemoteAddr,
    /// Entries of the list.
    pub entries: u32,
    /// The first entry of that list.
    pub buffer: Buffer,
}

impl ConnData {
    /// The connection data in the private data of a REQ; `None` when it is none.
    pub fn parse(private_data: &[u8]) -> Option<ConnData> {
        let data = private_data.get(..CONN_DATA)?;
        let (&[1, flags, c0, c1, _, _, _, iomap_entries], rest) = data.split_first_chunk::<8>()? else { return None };
        let field = |at: usize, length: usize| rest.get(at..at + length);
        Some(ConnData {
            big_endian: flags & 1 != 0,
            iomap: flags & 2 != 0,
            credits: u16::from_be_bytes([c0, c1]),
            iomap_entries,
            list: RemoteAddr { addr: be64(field(0, 8)?), rkey: be32(field(8, 4)?) },
            entries: be32(field(12, 4)?),
            buffer: Buffer {
                at: RemoteAddr { addr: be64(field(16, 8)?), rkey: be32(field(24, 4)?) },
                length: be32(field(28, 4)?),
            },
        })
    }

    /// The private data of a REP.
    pub fn write(&self) -> Vec<u8> {
        let mut data = Vec::with_capacity(CONN_DATA);
        data.extend_from_slice(&[1, u8::from(self.big_endian) | u8::from(self.iomap) << 1]);
        data.extend_from_slice(&self.credits.to_be_bytes());
        data.extend_from_slice(&[0, 0, 0, self.iomap_entries]);
        data.extend_from_slice(&self.list.addr.to_be_bytes());
        data.extend_from_slice(&self.list.rkey.to_be_bytes());
        data.extend_from_slice(&self.entries.to_be_bytes());
        data.extend_from_slice(&self.buffer.write(true));
        data
    }

    /// Address of entry `index` of the peer's list.
    pub fn entry(&self, index: u32) -> RemoteAddr {
        let offset = u64::from(index % ENTRIES) * BUFFER as u64;
        RemoteAddr { addr: self.list.addr.wrapping_add(offset), rkey: self.list.rkey }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: ConnData = ConnData {
        big_endian: false,
        iomap: true,
        credits: 384,
        iomap_entries: 0,
        list: RemoteAddr { addr: 0x55CA_60F6_8000, rkey: 0x1234 },
        entries: 2,
        buffer: Buffer { at: RemoteAddr { addr: 0x7F00_1234_5000, rkey: 0xABCD }, length: 0x8_0000 },
    };

    #[test]
    fn connection_data_goes_both_ways() {
        let mut wire = SEEN.write();
        let head = [1, 2, 0x01, 0x80, 0, 0, 0, 0, 0, 0, 0x55, 0xCA, 0x60, 0xF6, 0x80, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 2];
        assert_eq!(wire[..24], head);
        assert_eq!(wire[24..], [0, 0, 0x7F, 0, 0x12, 0x34, 0x50, 0, 0, 0, 0xAB, 0xCD, 0, 8, 0, 0]);
        wire.resize(56, 0);
        assert_eq!(ConnData::parse(&wire), Some(SEEN));
        assert_eq!(ConnData::parse(&wire[..39]), None);
        wire[0] = 2;
        assert_eq!(ConnData::parse(&wire), None);
    }

    #[test]
    fn entries_are_in_their_owners_order() {
        let buffer = SEEN.buffer;
        assert_eq!(Buffer::parse(&buffer.write(false)), buffer);
        let mut swapped = buffer.write(true);
        swapped[..8].reverse();
        swapped[8..12].reverse();
        swapped[12..].reverse();
        assert_eq!(Buffer::parse(&swapped), buffer);
        assert_eq!((SEEN.entry(1).addr, SEEN.entry(2)), (SEEN.list.addr + 16, SEEN.list));
    }

    #[test]
    fn immediate_data_is_as_seen() {
        for (imm, message) in [
            (0x0000_0010, Message::Data(16)),
            (0x8000_0180, Message::Credits(384)),
            (0xC000_0000, Message::Iomap(0)),
            (0xE000_0000, Message::Disconnect),
            (0xE000_0001, Message::Keepalive),
            (0xE000_0002, Message::Shutdown),
        ] {
            assert_eq!((Message::parse(imm), message.imm()), (Some(message), imm));
        }
        for imm in [0x2000_0000, 0x4000_0010, 0x6000_0000, 0xA000_0000, 0xE000_0003] {
            assert_eq!(Message::parse(imm), None);
        }
    }

    #[test]
    fn mutated_connection_data_is_written_again() {
        rxe_testkit::mutate::check_mutations("rsocket-data", &[&SEEN.write()], 8_000, |input| {
            if let Some(data) = ConnData::parse(input) {
                assert_eq!(ConnData::parse(&data.write()), Some(data));
                assert!(
                    data.entry(data.entries).addr.wrapping_sub(data.list.addr) < u64::from(ENTRIES) * BUFFER as u64
                );
            }
            for imm in input.chunks_exact(4).map(be32) {
                if let Some(message) = Message::parse(imm) {
                    assert_eq!(Message::parse(message.imm()), Some(message));
                }
            }
        });
    }
}
