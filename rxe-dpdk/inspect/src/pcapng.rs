//! Blocks of a pcapng file, for programs that capture frames.

use std::io::{self, Write};

const SECTION_HEADER: u32 = 0x0A0D_0D0A;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;
const LINKTYPE_ETHERNET: u16 = 1;

/// Options of every block.
const COMMENT: u16 = 1;
/// Options of the section header.
const USER_APPLICATION: u16 = 4;
/// Options of an interface.
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_MAC: u16 = 6;
const IF_TIME_RESOLUTION: u16 = 9;
/// Options of a packet.
const PACKET_FLAGS: u16 = 2;
/// Options of statistics.
const START_TIME: u16 = 2;
const END_TIME: u16 = 3;
const RECEIVED: u16 = 4;
const DROPPED: u16 = 5;

/// Time resolution: 10 to the power of minus this, in seconds.
const NANOSECONDS: u8 = 9;

/// A port.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Device name.
    pub name: String,
    /// The port's number as `rxe-ctl link` prints it.
    pub description: String,
    /// MAC address of the port.
    pub mac: [u8; 6],
}

/// One frame.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Index of its port among the interfaces.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Sent by this port, and not received.
    pub sent: bool,
    /// The recorded bytes.
    pub bytes: &'a [u8],
    /// Bytes on the wire.
    pub len: u32,
    /// Omitted if empty.
    pub comment: &'a str,
}

/// Statistics of one interface.
#[derive(Clone, Copy, Debug)]
pub struct Statistics {
    /// Index of its port among the interfaces.
    pub interface: u32,
    /// Start, in nanoseconds since 1970.
    pub start: u64,
    /// End, in nanoseconds since 1970.
    pub end: u64,
    /// Frames that the file has.
    pub received: u64,
    /// Frames that it lacks, for want of room.
    pub dropped: u64,
}

/// Writes little-endian blocks, each by one call of `write_all`.
#[derive(Debug)]
pub struct BlockWriter<W> {
    to: W,
    /// The block being assembled.
    block: Vec<u8>,
}

impl<W: Write> BlockWriter<W> {
    /// Writes to `to`.
    pub fn new(to: W) -> BlockWriter<W> {
        BlockWriter { to, block: Vec::new() }
    }

    /// The writer below.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.to
    }

    /// Writes the section header. Returns its size in bytes, as the other methods do.
    ///
    /// # Errors
    /// As of `write_all`; the same holds for the other methods.
    pub fn section(&mut self, application: &str, comment: &str) -> io::Result<u64> {
        self.begin(SECTION_HEADER);
        self.put(&BYTE_ORDER_MAGIC.to_le_bytes());
        self.put(&1_u16.to_le_bytes()); // version 1.0
        self.put(&0_u16.to_le_bytes());
        self.put(&u64::MAX.to_le_bytes()); // section length unknown
        self.option(USER_APPLICATION, application.as_bytes());
        self.comment(comment);
        self.end()
    }

    /// Writes the next interface; the first one has index 0.
    ///
    /// # Errors
    /// As of [`section`](BlockWriter::section).
    pub fn interface(&mut self, interface: &Interface, snaplen: u32) -> io::Result<u64> {
        self.begin(INTERFACE_DESCRIPTION);
        self.put(&LINKTYPE_ETHERNET.to_le_bytes());
        self.put(&0_u16.to_le_bytes());
        self.put(&snaplen.to_le_bytes());
        self.option(IF_NAME, interface.name.as_bytes());
        self.option(IF_DESCRIPTION, interface.description.as_bytes());
        self.option(IF_MAC, &interface.mac);
        self.option(IF_TIME_RESOLUTION, &[NANOSECONDS]);
        self.end()
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// As of [`section`](BlockWriter::section).
    pub fn packet(&mut self, packet: &Packet<'_>) -> io::Result<u64> {
        self.begin(ENHANCED_PACKET);
        self.put(&packet.interface.to_le_bytes());
        self.put(&time(packet.time));
        self.put(&(packet.bytes.len() as u32).to_le_bytes());
        self.put(&packet.len.to_le_bytes());
        self.put(packet.bytes);
        self.pad();
        let flags: u32 = if packet.sent { 2 } else { 1 };
        self.option(PACKET_FLAGS, &flags.to_le_bytes());
        self.comment(packet.comment);
        self.end()
    }

    /// Writes the statistics of an interface, usually at the end.
    ///
    /// # Errors
    /// As of [`section`](BlockWriter::section).
    pub fn statistics(&mut self, statistics: &Statistics) -> io::Result<u64> {
        self.begin(INTERFACE_STATISTICS);
        self.put(&statistics.interface.to_le_bytes());
        self.put(&time(statistics.end));
        self.option(START_TIME, &time(statistics.start));
        self.option(END_TIME, &time(statistics.end));
        self.option(RECEIVED, &statistics.received.to_le_bytes());
        self.option(DROPPED, &statistics.dropped.to_le_bytes());
        self.end()
    }

    fn begin(&mut self, kind: u32) {
        self.block.clear();
        self.put(&kind.to_le_bytes());
        self.put(&[0; 4]);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
    }

    fn pad(&mut self) {
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn comment(&mut self, text: &str) {
        if !text.is_empty() {
            self.option(COMMENT, text.as_bytes());
        }
    }

    /// Appends an option; a value that is too long is truncated.
    fn option(&mut self, code: u16, value: &[u8]) {
        let value = &value[..value.len().min(usize::from(u16::MAX))];
        self.put(&code.to_le_bytes());
        self.put(&(value.len() as u16).to_le_bytes());
        self.put(value);
        self.pad();
    }

    /// Every block written here has options, and so an end of options.
    fn end(&mut self) -> io::Result<u64> {
        self.put(&[0; 4]);
        let len = self.block.len() + 4;
        self.put(&(len as u32).to_le_bytes());
        self.block[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        self.to.write_all(&self.block)?;
        Ok(len as u64)
    }
}

/// A time stamp: the upper half first.
fn time(nanos: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&((nanos >> 32) as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&(nanos as u32).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut BlockWriter<Vec<u8>>) -> io::Result<u64>) -> Vec<u8> {
        let mut writer = BlockWriter::new(Vec::new());
        let len = write(&mut writer).unwrap();
        assert_eq!(writer.to.len() as u64, len);
        assert_eq!(len % 4, 0);
        writer.to
    }

    #[test]
    fn blocks_are_laid_out_as_the_format_says() {
        let section = written(|writer| writer.section("a", ""));
        let mut expected = vec![0x0A, 0x0D, 0x0D, 0x0A, 40, 0, 0, 0, 0x4D, 0x3C, 0x2B, 0x1A, 1, 0, 0, 0];
        expected.extend([0xFF; 8]);
        expected.extend([4, 0, 1, 0, b'a', 0, 0, 0, 0, 0, 0, 0, 40, 0, 0, 0]);
        assert_eq!(section, expected);

        let packet =
            Packet { interface: 1, time: 0x0102_0304_0506_0708, sent: true, bytes: &[9; 5], len: 64, comment: "why" };
        let packet = written(|writer| writer.packet(&packet));
        let mut expected = vec![6, 0, 0, 0, 60, 0, 0, 0, 1, 0, 0, 0, 4, 3, 2, 1, 8, 7, 6, 5, 5, 0, 0, 0, 64, 0, 0, 0];
        expected.extend([9, 9, 9, 9, 9, 0, 0, 0]);
        expected.extend([2, 0, 4, 0, 2, 0, 0, 0, 1, 0, 3, 0, b'w', b'h', b'y', 0, 0, 0, 0, 0, 60, 0, 0, 0]);
        assert_eq!(packet, expected);

        let statistics = Statistics { interface: 0, start: 1 << 32, end: 2, received: 7, dropped: 3 };
        let statistics = written(|writer| writer.statistics(&statistics));
        assert_eq!(statistics[..20], [5, 0, 0, 0, 76, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(statistics[20..32], [2, 0, 8, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(statistics[44..56], [4, 0, 8, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn an_option_is_never_longer_than_its_length_says() {
        let long = "x".repeat(70_000);
        let section = written(|writer| writer.section("", &long));
        assert_eq!(section[28..32], [1, 0, 0xFF, 0xFF]);
        assert_eq!(section.len(), 28 + 4 + 65_536 + 4 + 4);
    }
}
