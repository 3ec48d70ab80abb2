//! A reader for classic pcap files: enough for the captures of this repository.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder with the captures, from any crate's tests.
pub fn folder() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join("tests/captures").is_dir());
    root.expect("tests/captures in a folder above").join("tests/captures")
}

/// The frames of a file, in order.
pub fn frames(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let big_endian = match bytes[..4] {
        [0xD4, 0xC3, 0xB2, 0xA1] | [0x4D, 0x3C, 0xB2, 0xA1] => false, // microseconds, nanoseconds
        [0xA1, 0xB2, 0xC3, 0xD4] | [0xA1, 0xB2, 0x3C, 0x4D] => true,
        ref other => panic!("{}: not a pcap file: {other:02x?}", path.display()),
    };
    let word = |at: usize| {
        let word = bytes[at..at + 4].try_into().unwrap();
        if big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
    };
    assert_eq!(word(20) & 0xFFFF, 1, "{}: link type is not Ethernet", path.display());
    let mut frames = Vec::new();
    let mut at = 24;
    while at < bytes.len() {
        let (captured, original) = (word(at + 8) as usize, word(at + 12) as usize);
        assert_eq!(captured, original, "{}: frame {} is cut off", path.display(), frames.len() + 1);
        frames.push(bytes[at + 16..at + 16 + captured].to_vec());
        at += 16 + captured;
    }
    frames
}

/// Every capture by file name, with its frames, sorted by name.
pub fn all() -> Vec<(String, Vec<Vec<u8>>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "pcap"));
    files.sort();
    files.iter().map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), frames(path))).collect()
}
