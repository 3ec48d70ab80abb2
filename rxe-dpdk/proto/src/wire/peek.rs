//! Peeking at the BTH of an unchecked frame, for prefetching.

/// Fields of an unchecked frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BthPeek {
    /// Destination queue pair number.
    pub dest_qp: u32,
    /// Whether the opcode is that of a response.
    pub response: bool,
    /// The remote key of a request.
    pub rkey: Option<u32>,
}

const ETHERNET: usize = 14;
const UDP: usize = 8;
const BTH: usize = 12;

/// Reads the BTH of an untagged frame without IP options. Nothing is checked: use the result only as a hint.
#[inline]
pub fn peek_bth(frame: &[u8]) -> Option<BthPeek> {
    let ip = match frame.get(12..14)? {
        [0x08, 0x00] => 20,
        [0x86, 0xDD] => 40,
        _ => return None,
    };
    let at = ETHERNET + ip + UDP;
    let bth: &[u8; BTH] = frame.get(at..at + BTH)?.try_into().ok()?;
    let rkey = match bth[0] {
        // WRITEs that begin a message, READs and atomics: address, then key.
        0x06 | 0x0A | 0x0B | 0x0C | 0x13 | 0x14 => {
            frame.get(at + BTH + 8..at + BTH + 12)?.try_into().ok().map(u32::from_be_bytes)
        }
        _ => None,
    };
    let dest_qp = u32::from_be_bytes([0, bth[5], bth[6], bth[7]]);
    Some(BthPeek { dest_qp, response: matches!(bth[0], 0x0D..=0x12), rkey })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with these bytes behind the UDP header.
    fn frame(ether_type: [u8; 2], ip: usize, behind: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET + ip + UDP];
        frame[12..14].copy_from_slice(&ether_type);
        frame.extend_from_slice(behind);
        frame
    }

    #[test]
    fn queue_pair_and_key_are_read_at_their_offsets() {
        let mut write = [0; BTH + 16];
        write[0] = 0x0A;
        write[5..8].copy_from_slice(&[0x12, 0x34, 0x56]);
        write[20..24].copy_from_slice(&[0xAA, 0xBB, 0xCC, 0xDD]);
        let expected = BthPeek { dest_qp: 0x12_3456, response: false, rkey: Some(0xAABB_CCDD) };
        assert_eq!(peek_bth(&frame([0x08, 0x00], 20, &write)), Some(expected));
        assert_eq!(peek_bth(&frame([0x86, 0xDD], 40, &write)), Some(expected));
        write[0] = 0x11;
        let ack = BthPeek { dest_qp: 0x12_3456, response: true, rkey: None };
        assert_eq!(peek_bth(&frame([0x08, 0x00], 20, &write[..BTH + 4])), Some(ack));
    }

    #[test]
    fn frames_without_a_plain_bth_give_none() {
        assert_eq!(peek_bth(&[]), None);
        assert_eq!(peek_bth(&frame([0x81, 0x00], 20, &[0; 40])), None, "tagged");
        assert_eq!(peek_bth(&frame([0x08, 0x00], 20, &[0; BTH - 1])), None, "too short");
        assert_eq!(peek_bth(&frame([0x08, 0x00], 20, &[0x0A; BTH])), None, "a WRITE without a key");
    }
}
