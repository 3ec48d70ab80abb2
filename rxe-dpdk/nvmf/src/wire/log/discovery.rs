//! The discovery log (page 70).

use std::net::IpAddr;

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::{DYNAMIC_CONTROLLER, NQN_FIELD_LEN, Nqn};

/// Length of an entry, and of the header, in bytes.
pub const DISCOVERY_ENTRY_LEN: usize = 1024;

/// TRTYPE: RDMA.
const TRANSPORT_RDMA: u8 = 1;
/// TREQ: SQ flow control can be off.
const FLOW_CONTROL_OPTIONAL: u8 = 1 << 2;
/// TSAS: reliable connected queue pairs, unspecified provider, RDMA connection manager.
const TSAS: [u8; 3] = [1, 1, 1];

/// The header of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryHeader {
    generation: U64,
    records: U64,
    record_format: U16,
    reserved: [u8; 1006],
}

const _: () = assert!(size_of::<DiscoveryHeader>() == DISCOVERY_ENTRY_LEN);

impl DiscoveryHeader {
    /// The header of a log with `records` entries.
    #[must_use]
    pub fn new(generation: u64, records: u64) -> DiscoveryHeader {
        let mut header = DiscoveryHeader::new_zeroed();
        header.generation.set(generation);
        header.records.set(records);
        header
    }

    /// GENCTR: changes with every change of the log.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// NUMREC.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records.get()
    }
}

/// ADRFAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AddressFamily {
    /// IPv4.
    Ipv4 = 1,
    /// IPv6.
    Ipv6 = 2,
}

/// SUBTYPE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SubsystemType {
    /// Another discovery subsystem.
    Referral = 1,
    /// A subsystem with namespaces.
    Nvm = 2,
    /// The discovery subsystem that returned the log.
    CurrentDiscovery = 3,
}

/// An entry of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryEntry {
    transport: u8,
    family: u8,
    kind: u8,
    requirements: u8,
    port_id: U16,
    controller_id: U16,
    admin_queue: U16,
    flags: U16,
    reserved12: [u8; 20],
    service: [u8; 32],
    reserved64: [u8; 192],
    subsystem_nqn: [u8; NQN_FIELD_LEN],
    address: [u8; 256],
    tsas: [u8; 3],
    reserved771: [u8; 253],
}

const _: () = assert!(size_of::<DiscoveryEntry>() == DISCOVERY_ENTRY_LEN);

impl DiscoveryEntry {
    /// A subsystem at an address. `port_id` numbers the addresses of a target; `admin_queue` is the largest admin queue.
    #[must_use]
    pub fn new(kind: SubsystemType, nqn: &Nqn, address: IpAddr, port: u16, port_id: u16, admin_queue: u16) -> Self {
        let mut entry = DiscoveryEntry::new_zeroed();
        entry.transport = TRANSPORT_RDMA;
        entry.family = match address {
            IpAddr::V4(_) => AddressFamily::Ipv4 as u8,
            IpAddr::V6(_) => AddressFamily::Ipv6 as u8,
        };
        entry.kind = kind as u8;
        entry.requirements = FLOW_CONTROL_OPTIONAL;
        entry.port_id.set(port_id);
        entry.controller_id.set(DYNAMIC_CONTROLLER);
        entry.admin_queue.set(admin_queue);
        copy_text(&mut entry.service, &port.to_string());
        entry.subsystem_nqn = nqn.to_field();
        copy_text(&mut entry.address, &address.to_string());
        entry.tsas = TSAS;
        entry
    }

    /// SUBTYPE, a value of [`SubsystemType`].
    #[must_use]
    pub const fn kind(&self) -> u8 {
        self.kind
    }

    /// The subsystem's name, if it is valid.
    #[must_use]
    pub fn subsystem_nqn(&self) -> Option<Nqn> {
        Nqn::from_field(&self.subsystem_nqn).ok()
    }

    /// The address, if it is one.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        text(&self.address)?.parse().ok()
    }

    /// The port, if it is a number.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        text(&self.service)?.parse().ok()
    }
}

/// Copies `text` to the start of a field; what does not fit is cut off.
fn copy_text(field: &mut [u8], text: &str) {
    for (byte, source) in field.iter_mut().zip(text.bytes()) {
        *byte = source;
    }
}

/// Text up to the first NUL, without spaces at the end.
fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).ok().map(str::trim_end)
}

/// The complete entries of a log, behind its header.
pub fn discovery_entries(log: &[u8]) -> impl Iterator<Item = &DiscoveryEntry> {
    log.as_chunks::<DISCOVERY_ENTRY_LEN>()
        .0
        .iter()
        .skip(1)
        .map(|entry| -> &DiscoveryEntry { zerocopy::transmute_ref!(entry) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_written() {
        let nqn = Nqn::discovery();
        let address = "192.168.77.1".parse().unwrap();
        let entry = DiscoveryEntry::new(SubsystemType::CurrentDiscovery, &nqn, address, 4420, 1, 32);
        let bytes = entry.as_bytes();
        // nvmf-rdma-discover.pcap.
        assert_eq!(bytes[..12], [1, 1, 3, 4, 1, 0, 0xFF, 0xFF, 0x20, 0, 0, 0]);
        assert_eq!(
            (&bytes[32..37], &bytes[512..525], &bytes[768..772]),
            (&b"4420\0"[..], &b"192.168.77.1\0"[..], &[1, 1, 1, 0][..])
        );
        assert_eq!((entry.subsystem_nqn(), entry.address(), entry.port()), (Some(nqn), Some(address), Some(4420)));
        let mut log = DiscoveryHeader::new(7, 1).as_bytes().to_vec();
        log.extend(bytes);
        log.extend([0; 100]);
        let header = DiscoveryHeader::ref_from_prefix(&log).unwrap().0;
        assert_eq!((header.generation(), header.records()), (7, 1));
        assert_eq!(discovery_entries(&log).collect::<Vec<_>>(), [&entry]);
    }
}
