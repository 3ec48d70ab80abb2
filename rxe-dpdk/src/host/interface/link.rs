//! The Ethernet header with its optional VLAN tag: removed on receive, written on transmit.

use rxe_proto::wire::net::{ETH_LEN, EthHeader, Header, VLAN_LEN, VlanTag, ethertype};
use rxe_proto::wire::{DropReason, MacAddr, PortId, TxQueue};

/// A received frame without its header.
#[derive(Clone, Copy)]
pub(in crate::host) struct EthFrame<'a> {
    pub(in crate::host) src: MacAddr,
    pub(in crate::host) dst: MacAddr,
    pub(in crate::host) ethertype: u16,
    /// The bytes behind the Ethertype, padding included.
    pub(in crate::host) payload: &'a [u8],
}

/// Our end of the link.
#[derive(Clone, Copy)]
pub(in crate::host) struct Link {
    pub(in crate::host) port: PortId,
    pub(in crate::host) mac: MacAddr,
    /// Tag control information of the frames we send; its VLAN id is the one we accept.
    pub(in crate::host) vlan: Option<u16>,
}

/// The VLAN id of a tag control information.
fn vlan_id(tci: u16) -> u16 {
    tci & 0x0FFF
}

impl Link {
    /// Removes the header of `frame` and checks the VLAN. The MAC addresses are for the caller to check.
    pub(in crate::host) fn receive<'a>(&self, frame: &'a [u8]) -> Result<EthFrame<'a>, DropReason> {
        let (eth, rest) = EthHeader::split(frame).ok_or(DropReason::FrameTooShort)?;
        let (ethertype, vlan, payload) = match eth.ethertype.get() {
            ethertype::VLAN => {
                let (tag, rest) = VlanTag::split(rest).ok_or(DropReason::VlanMalformed)?;
                if tag.ethertype.get() == ethertype::VLAN {
                    return Err(DropReason::VlanMalformed);
                }
                (tag.ethertype.get(), vlan_id(tag.tci.get()), rest)
            }
            untagged => (untagged, 0, rest),
        };
        // A tag with id 0 carries a priority only: the frame belongs to no VLAN.
        if vlan != self.vlan.map_or(0, vlan_id) {
            return Err(DropReason::VlanMismatch);
        }
        Ok(EthFrame { src: eth.src, dst: eth.dst, ethertype, payload })
    }

    /// Room for a frame that carries `len` bytes to `dst`, its header written; `None` when the port takes no more.
    pub(in crate::host) fn push<'t>(
        &self,
        tx: &'t mut impl TxQueue,
        dst: MacAddr,
        ethertype: u16,
        len: usize,
    ) -> Option<&'t mut [u8]> {
        let header_len = ETH_LEN + if self.vlan.is_some() { VLAN_LEN } else { 0 };
        let frame = tx.push(self.port, header_len + len)?;
        let first = if self.vlan.is_some() { ethertype::VLAN } else { ethertype };
        let rest = EthHeader { dst, src: self.mac, ethertype: first.into() }.put(frame)?;
        match self.vlan {
            Some(tci) => VlanTag { tci: tci.into(), ethertype: ethertype.into() }.put(rest),
            None => Some(rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use rxe_proto::wire::TxFrames;
    use rxe_proto::wire::net::ethertype::ARP;

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
    fn received_header_is_the_one_sent() {
        for vlan in [None, Some(0x6064)] {
            let bytes = frame(vlan);
            assert_eq!(bytes.len(), if vlan.is_some() { 20 } else { 16 });
            let eth = link(vlan).receive(&bytes).unwrap_or_else(|e| panic!("{e:?}"));
            assert_eq!((eth.src, eth.dst, eth.ethertype, eth.payload), (PEER, US, ARP, &[7, 8][..]));
        }
    }

    #[test]
    fn frames_of_other_vlans_are_dropped() {
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
