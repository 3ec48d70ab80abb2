//! ECN marking, as a congested switch does it.

use zerocopy::FromBytes;

use super::net::{Ipv4Header, Ipv6Header};

/// "Congestion experienced", as the ECN bits of an IP header.
const CE: u8 = 3;

/// Sets "congestion experienced" in the IP packet whose header begins at `ip_at`. The ICRC does not cover the changed
/// bits. False, and no change, when there is no IP header, or one with options.
pub fn mark_congestion(frame: &mut [u8], ip_at: usize) -> bool {
    let Some(packet) = frame.get_mut(ip_at..) else { return false };
    match packet.first() {
        Some(0x45) => {
            let Ok((ip, _)) = Ipv4Header::mut_from_prefix(packet) else { return false };
            ip.tos |= CE;
            ip.fill_checksum();
            true
        }
        Some(byte) if byte >> 4 == 6 => {
            let Ok((ip, _)) = Ipv6Header::mut_from_prefix(packet) else { return false };
            ip.version_class_flow.set(ip.version_class_flow.get() | u32::from(CE) << 20);
            true
        }
        _ => false,
    }
}
