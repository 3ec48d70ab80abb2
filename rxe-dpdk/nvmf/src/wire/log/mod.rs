//! Log pages: the command's fields, and the pages.

mod discovery;
mod effects;
mod error;
mod smart;

pub use discovery::{
    AddressFamily, DISCOVERY_ENTRY_LEN, DiscoveryEntry, DiscoveryHeader, SubsystemType, discovery_entries,
};
pub use effects::EffectsLog;
pub use error::{ERROR_ENTRY_LEN, ErrorEntry};
pub use smart::SmartLog;

use super::identify::ascii_field;
use super::opcode::AdminOpcode;
use super::sgl::SglDescriptor;
use super::sqe::Sqe;

/// Most entries of the log of changed namespaces.
pub const CHANGED_NAMESPACES: usize = 1024;

/// A log page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LogId {
    /// Error information.
    Error = 0x01,
    /// SMART and health.
    Smart = 0x02,
    /// Firmware slots.
    Firmware = 0x03,
    /// Namespaces that changed since the last read.
    ChangedNamespaces = 0x04,
    /// Supported commands and their effects.
    Effects = 0x05,
    /// Discovery.
    Discovery = 0x70,
}

impl LogId {
    /// The page of a code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<LogId> {
        match code {
            0x01 => Some(LogId::Error),
            0x02 => Some(LogId::Smart),
            0x03 => Some(LogId::Firmware),
            0x04 => Some(LogId::ChangedNamespaces),
            0x05 => Some(LogId::Effects),
            0x70 => Some(LogId::Discovery),
            _ => None,
        }
    }
}

/// The fields of a Get Log Page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogFields {
    /// Code of the page, see [`LogId`].
    pub log: u8,
    /// Namespace.
    pub nsid: u32,
    /// RAE: reading does not enable the next event.
    pub retain_event: bool,
    /// Length in bytes, a multiple of 4 from 4 to 2^34.
    pub len: u64,
    /// Offset in the page, in bytes.
    pub offset: u64,
}

impl LogFields {
    /// Reads `len` bytes at the start of `log`, of the whole controller.
    #[must_use]
    pub const fn new(log: LogId, len: u64) -> LogFields {
        LogFields { log: log as u8, nsid: super::NSID_ALL, retain_event: false, len, offset: 0 }
    }

    /// Reads the fields.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> LogFields {
        let [page, dwords_high, offset_low, offset_high, ..] = sqe.cdws();
        let dwords = u64::from(page >> 16) | u64::from(dwords_high & 0xFFFF) << 16;
        LogFields {
            log: page as u8,
            nsid: sqe.nsid(),
            retain_event: page & 1 << 15 != 0,
            len: (dwords + 1) * 4,
            offset: u64::from(offset_low) | u64::from(offset_high) << 32,
        }
    }

    /// The command, with the descriptor of its data.
    #[must_use]
    pub fn to_sqe(self, command_id: u16, data: SglDescriptor) -> Sqe {
        let dwords = (self.len / 4).wrapping_sub(1) as u32;
        let page = u32::from(self.log) | u32::from(self.retain_event) << 15 | dwords << 16;
        let cdws = [page, dwords >> 16, self.offset as u32, (self.offset >> 32) as u32, 0, 0];
        Sqe::new(AdminOpcode::GetLogPage.code(), command_id).with_nsid(self.nsid).with_sgl(data).with_cdws(cdws)
    }
}

/// Firmware slot information: one slot, in use, with this revision.
#[must_use]
pub fn firmware_log(revision: &str) -> [u8; 512] {
    let mut page = [0; 512];
    page[0] = 1;
    page[8..16].copy_from_slice(&ascii_field::<8>(revision));
    page
}

/// The log of changed namespaces. More than [`CHANGED_NAMESPACES`] become the value that says "too many".
#[must_use]
pub fn changed_namespaces_log(nsids: impl ExactSizeIterator<Item = u32>) -> [u8; 4096] {
    let mut page = [0; 4096];
    if nsids.len() > CHANGED_NAMESPACES {
        page[..4].fill(0xFF);
    } else {
        for (entry, nsid) in page.chunks_exact_mut(4).zip(nsids) {
            entry.copy_from_slice(&nsid.to_le_bytes());
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_are_read_as_written(log: u8, nsid: u32, retain_event: bool, dwords in 1u64..=1 << 32, offset: u64) {
            let fields = LogFields { log, nsid, retain_event, len: dwords * 4, offset };
            prop_assert_eq!(LogFields::parse(&fields.to_sqe(9, SglDescriptor::NO_DATA)), fields);
        }
    }

    #[test]
    fn more_changed_namespaces_than_entries_are_one_value() {
        let page = changed_namespaces_log(0..CHANGED_NAMESPACES as u32 + 1);
        assert_eq!(page[..8], [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0]);
        assert_eq!(changed_namespaces_log([2].into_iter())[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(firmware_log("1.2")[..16], *b"\x01\0\0\0\0\0\0\x001.2     ");
    }
}
