//! A reader for pcapng files as a capture writes them, by the format's own description.

use std::fs;
use std::path::Path;

/// One frame of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Nanoseconds since 1970.
    pub time: u64,
    pub sent: bool,
    /// What is in the file of it, and how long it was.
    pub bytes: Vec<u8>,
    pub len: usize,
    pub comment: String,
}

/// A whole file.
#[derive(Debug, Default)]
pub struct Capture {
    pub packets: Vec<Packet>,
    /// Frames of all interfaces, and those that were missed, as the end of the file says; `None` when there is no end.
    pub counted: Option<(u64, u64)>,
    /// Names of the interfaces.
    pub interfaces: Vec<String>,
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// Options by their codes.
fn options(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut options = Vec::new();
    while !bytes.is_empty() {
        let [code, len] = [0, 2].map(|at| u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        if code == 0 {
            assert_eq!(bytes.len(), 4, "nothing behind the last option");
            break;
        }
        let len = usize::from(len);
        options.push((code, bytes[4..4 + len].to_vec()));
        bytes = &bytes[4 + len.next_multiple_of(4)..];
    }
    options
}

fn option(options: &[(u16, Vec<u8>)], code: u16) -> &[u8] {
    options.iter().find(|(of, _)| *of == code).map_or(&[], |(_, value)| value)
}

/// Reads a file.
pub fn read(path: &Path) -> Capture {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut capture = Capture::default();
    let mut at = 0;
    while at < bytes.len() {
        let len = word(&bytes, at + 4);
        assert_eq!(word(&bytes, at + len - 4), len, "both ends of a block");
        let body = &bytes[at + 8..at + len - 4];
        match word(&bytes, at) {
            0x0A0D_0D0A => assert_eq!((at, word(body, 0)), (0, 0x1A2B_3C4D), "one section, in little endian"),
            1 => {
                let options = options(&body[8..]);
                assert_eq!((body[0], option(&options, 9)), (1, &[9][..]), "Ethernet, in nanoseconds");
                capture.interfaces.push(String::from_utf8(option(&options, 2).to_vec()).unwrap());
            }
            6 => {
                let kept = word(body, 12);
                let options = options(&body[20 + kept.next_multiple_of(4)..]);
                let direction = option(&options, 2)[0];
                assert!(direction == 1 || direction == 2);
                assert!(word(body, 0) < capture.interfaces.len());
                capture.packets.push(Packet {
                    time: (word(body, 4) as u64) << 32 | word(body, 8) as u64,
                    sent: direction == 2,
                    bytes: body[20..20 + kept].to_vec(),
                    len: word(body, 16),
                    comment: String::from_utf8(option(&options, 1).to_vec()).unwrap(),
                });
            }
            5 => {
                let options = options(&body[12..]);
                let count = |code| u64::from_le_bytes(option(&options, code).try_into().unwrap());
                let (frames, missed) = capture.counted.unwrap_or_default();
                capture.counted = Some((frames + count(4), missed + count(5)));
            }
            other => panic!("a block of type {other}"),
        }
        at += len;
    }
    capture
}
