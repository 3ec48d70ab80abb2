//! Frames that net_pcap plays from a file, for adapters with the address 192.168.77.1.

use std::fs;
use std::path::PathBuf;

use rxe_dpdk::rxe_proto::wire::MacAddr;

/// The MAC address of the first net_pcap port.
pub const MAC: MacAddr = MacAddr([0x02, 0x70, 0x63, 0x61, 0x70, 0x00]);

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    (!((sum & 0xFFFF) + (sum >> 16)) as u16).to_be_bytes()
}

/// A ping to 192.168.77.1 with `number` in its payload.
pub fn ping(number: u32) -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0, 0, 1, 0, 1];
    icmp.extend(number.to_be_bytes());
    icmp.resize(64, 0x5A);
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum);
    let mut ip = vec![0x45, 0, 0, 84, 0, 0, 0, 0, 64, 1, 0, 0, 192, 168, 77, 9, 192, 168, 77, 1];
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    [&MAC.0[..], &[2, 0, 0, 0, 0, 9], &[8, 0], &ip, &icmp].concat()
}

/// A path of a temporary file, which is removed on drop.
pub struct Temporary(pub PathBuf);

impl Temporary {
    pub fn new(name: &str) -> Temporary {
        Temporary(std::env::temp_dir().join(format!("rxe-{}-{name}", std::process::id())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
