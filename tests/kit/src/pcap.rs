//! Classic pcap files: the recorded captures in tests/captures, and files for net_pcap to play.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};

/// The folder of the recorded captures.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("captures")
}

/// The frames of a file, in order. Each must be complete.
pub fn frames(path: &Path) -> Vec<Vec<u8>> {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut reader = PcapReader::new(file).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(reader.header().datalink, DataLink::ETHERNET, "{}", path.display());
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let number = frames.len() + 1;
        let packet = packet.unwrap_or_else(|error| panic!("{}: frame {number}: {error}", path.display()));
        assert_eq!(packet.data.len(), packet.orig_len as usize, "{}: frame {number} is cut off", path.display());
        frames.push(packet.data.into_owned());
    }
    frames
}

/// The frames of the recorded capture `name`.
pub fn recorded(name: &str) -> Vec<Vec<u8>> {
    frames(&folder().join(name))
}

/// Every recorded capture by file name, with its frames, sorted by name.
pub fn all() -> Vec<(String, Vec<Vec<u8>>)> {
    let entries = fs::read_dir(folder()).unwrap_or_else(|error| panic!("{}: {error}", folder().display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry of the folder").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "pcap"));
    files.sort();
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    files.iter().map(|path| (name(path), frames(path))).collect()
}

/// Writes `frames` to a file.
pub fn write(path: &Path, frames: impl IntoIterator<Item = Vec<u8>>) {
    let file = File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut writer = PcapWriter::new(BufWriter::new(file)).expect("a header written");
    for frame in frames {
        let packet = PcapPacket::new(Duration::ZERO, frame.len() as u32, &frame);
        writer.write_packet(&packet).expect("a frame written");
    }
    // Flushed with the check that a drop omits.
    writer.into_writer().into_inner().expect("the file flushed");
}
