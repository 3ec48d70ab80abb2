//! The Ethernet header with its optional VLAN tag, off on receive and on at transmit.

use rxe_proto::wire::{DropReason, MacAddr, PortId, TxQueue};

/// EtherType of IPv4.
pub(super) const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub(super) const ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub(super) const IPV6: u16 = 0x86DD;
/// EtherType of an 802.1Q tag.
const VLAN: u16 = 0x8100;

/// Bytes of the two addresses.
const ADDRESSES: usize = 12;

/// A received frame without its header.
#[derive(Clone, Copy)]
pub(super) struct Ethernet<'a> {
    pub(super) src: MacAddr,
    pub(super) dst: MacAddr,
    pub(super) ethertype: u16,
    /// What follows the EtherType, padding included.
    pub(super) payload: &'a [u8],
}

/// Our end of the link.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) port: PortId,
    pub(super) mac: MacAddr,
    /// Tag control information that we send and whose VLAN id we accept.
    pub(super) vlan: Option<u16>,
}

impl Link {
    /// Takes the header off `frame` and checks the VLAN; whether the addresses concern us is the caller's question.
    pub(super) fn receive<'a>(&self, frame: &'a [u8]) -> Result<Ethernet<'a>, DropReason> {
        let (dst, rest) = frame.split_first_chunk::<6>().ok_or(DropReason::FrameTooShort)?;
        let (src, rest) = rest.split_first_chunk::<6>().ok_or(DropReason::FrameTooShort)?;
        let (ethertype, rest) = rest.split_first_chunk::<2>().ok_or(DropReason::FrameTooShort)?;
        let (ethertype, vlan, payload) = match u16::from_be_bytes(*ethertype) {
            VLAN => {
                let (tci, rest) = rest.split_first_chunk::<2>().ok_or(DropReason::VlanMalformed)?;
                let (inner, rest) = rest.split_first_chunk::<2>().ok_or(DropReason::VlanMalformed)?;
                if *inner == VLAN.to_be_bytes() {
                    return Err(DropReason::VlanMalformed);
                }
                (u16::from_be_bytes(*inner), u16::from_be_bytes(*tci) & 0x0FFF, rest)
            }
            untagged => (untagged, 0, rest),
        };
        // A tag with id 0 carries a priority only: the frame belongs to no VLAN.
        if vlan != self.vlan.map_or(0, |tci| tci & 0x0FFF) {
            return Err(DropReason::VlanMismatch);
        }
        Ok(Ethernet { src: MacAddr(*src), dst: MacAddr(*dst), ethertype, payload })
    }

    /// Room for a frame that carries `len` bytes to `dst`, its header written; `None` when the port takes no more.
    pub(super) fn push<'t>(
        &self,
        tx: &'t mut impl TxQueue,
        dst: MacAddr,
        ethertype: u16,
        len: usize,
    ) -> Option<&'t mut [u8]> {
        let header = ADDRESSES + if self.vlan.is_some() { 6 } else { 2 };
        let (header, payload) = tx.push(self.port, header + len)?.split_at_mut(header);
        header[..6].copy_from_slice(&dst.0);
        header[6..ADDRESSES].copy_from_slice(&self.mac.0);
        let kind = &mut header[ADDRESSES..];
        if let Some(tci) = self.vlan {
            kind[..2].copy_from_slice(&VLAN.to_be_bytes());
            kind[2..4].copy_from_slice(&tci.to_be_bytes());
            kind[4..].copy_from_slice(&ethertype.to_be_bytes());
        } else {
            kind.copy_from_slice(&ethertype.to_be_bytes());
        }
        Some(payload)
    }
}

#[cfg(test)]
mod tests {
    use rxe_proto::wire::TxFrames;

    use super::*;

    const US: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn link(vlan: Option<u16>) -> Link {
        Link { port: PortId(3), mac: US, vlan }
    }

    fn frame(vlan: Option<u16>) -> Vec<u8> {
        let mut tx = TxFrames::default();
        let sender = Link { port: PortId(3), mac: PEER, vlan };
        sender.push(&mut tx, US, ARP, 2).expect("room").copy_from_slice(&[7, 8]);
        tx.frames.remove(0).1
    }

    #[test]
    fn what_goes_on_comes_off() {
        for vlan in [None, Some(0x6064)] {
            let bytes = frame(vlan);
            assert_eq!(bytes.len(), if vlan.is_some() { 20 } else { 16 });
            let eth = link(vlan).receive(&bytes).unwrap_or_else(|e| panic!("{e:?}"));
            assert_eq!((eth.src, eth.dst, eth.ethertype, eth.payload), (PEER, US, ARP, &[7, 8][..]));
        }
    }

    #[test]
    fn other_vlans_stay_out() {
        let drop = |ours, theirs| link(ours).receive(&frame(theirs)).err();
        assert_eq!(drop(Some(100), Some(0xE064)), None, "the priority does not matter");
        assert_eq!(drop(Some(100), Some(101)), Some(DropReason::VlanMismatch));
        assert_eq!(drop(Some(100), None), Some(DropReason::VlanMismatch));
        assert_eq!(drop(None, Some(100)), Some(DropReason::VlanMismatch));
        assert_eq!(drop(None, Some(0xE000)), None, "priority-tagged");
    }

    #[test]
    fn short_frames_have_a_reason() {
        let bytes = frame(Some(100));
        for len in 0..14 {
            assert_eq!(link(Some(100)).receive(&bytes[..len]).err(), Some(DropReason::FrameTooShort));
        }
        for len in 14..18 {
            assert_eq!(link(Some(100)).receive(&bytes[..len]).err(), Some(DropReason::VlanMalformed));
        }
        let mut twice = bytes.clone();
        twice.splice(12..12, [0x81, 0, 0, 100]);
        assert_eq!(link(Some(100)).receive(&twice).err(), Some(DropReason::VlanMalformed));
    }
}
