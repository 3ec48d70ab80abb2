//! Captures in pcapng format as an adapter writes them, read with the crate pcap-file: a reader that shares no code or
//! author with our writer.

use std::fs::File;
use std::path::Path;

use pcap_file::DataLink;
use pcap_file::Endianness;
use pcap_file::pcapng::PcapNgReader;
use pcap_file::pcapng::blocks::Block;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;

/// One frame of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Whether the adapter sent it; else it received it.
    pub sent: bool,
    /// The bytes kept in the file.
    pub bytes: Vec<u8>,
    /// Length of the whole frame.
    pub len: usize,
    /// The comment, empty when there is none.
    pub comment: String,
}

/// A whole file.
#[derive(Debug, Default)]
pub struct Capture {
    /// All frames, in the order of the file.
    pub packets: Vec<Packet>,
    /// Frames received by all interfaces, and those missed, as the statistics at the end of the file say; `None` when
    /// there are none.
    pub counted: Option<(u64, u64)>,
    /// Names of the interfaces.
    pub interfaces: Vec<String>,
}

/// Reads a file of one section with Ethernet interfaces.
pub fn read(path: &Path) -> Capture {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut reader = PcapNgReader::new(file).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(reader.section().endianness, Endianness::Little, "{}", path.display());
    let mut capture = Capture::default();
    while let Some(block) = reader.next_block() {
        match block.unwrap_or_else(|error| panic!("{}: {error}", path.display())) {
            Block::InterfaceDescription(interface) => capture.interfaces.push(name(&interface)),
            Block::EnhancedPacket(block) => {
                assert!((block.interface_id as usize) < capture.interfaces.len(), "an interface described before");
                capture.packets.push(packet(&block));
            }
            Block::InterfaceStatistics(statistics) => {
                let (mut frames, mut missed) = capture.counted.unwrap_or_default();
                for option in &statistics.options {
                    match option {
                        InterfaceStatisticsOption::IsbIfRecv(count) => frames += count,
                        InterfaceStatisticsOption::IsbIfDrop(count) => missed += count,
                        _ => {}
                    }
                }
                capture.counted = Some((frames, missed));
            }
            other => panic!("{}: unexpected block {other:?}", path.display()),
        }
    }
    capture
}

/// The name of an interface, whose link type and time resolution must be what our captures have.
fn name(interface: &InterfaceDescriptionBlock<'_>) -> String {
    assert_eq!(interface.linktype, DataLink::ETHERNET);
    // Ten to the power of minus nine seconds.
    assert!(interface.options.contains(&InterfaceDescriptionOption::IfTsResol(9)), "{interface:?}");
    let name = interface.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfName(name) => Some(name.clone().into_owned()),
        _ => None,
    });
    name.expect("an interface has a name")
}

fn packet(block: &EnhancedPacketBlock<'_>) -> Packet {
    let (mut flags, mut comment) = (0, String::new());
    for option in &block.options {
        match option {
            EnhancedPacketOption::Flags(bits) => flags = *bits,
            EnhancedPacketOption::Comment(text) => comment = text.clone().into_owned(),
            _ => {}
        }
    }
    // The low two bits are the direction: 1 inbound, 2 outbound.
    assert!(flags == 1 || flags == 2, "{block:?}");
    Packet {
        time: block.timestamp.as_nanos() as u64,
        sent: flags == 2,
        bytes: block.data.to_vec(),
        len: block.original_len as usize,
        comment,
    }
}
