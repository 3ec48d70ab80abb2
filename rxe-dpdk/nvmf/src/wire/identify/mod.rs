//! Identify: the command's fields and the 4096 bytes of its data.

mod controller;
mod descriptors;
mod namespace;

pub use controller::{ControllerType, IdentifyController, OptionalCommands, SglSupport};
pub use descriptors::{DescriptorList, NamespaceDescriptor, active_list, parse_active_list, parse_descriptors};
pub use namespace::IdentifyNamespace;

use super::opcode::AdminOpcode;
use super::sgl::SglDescriptor;
use super::sqe::Sqe;

/// Length of Identify's data in bytes.
pub const IDENTIFY_LEN: usize = 4096;

/// The structure that an Identify asks for (CNS).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Cns {
    /// A namespace.
    Namespace = 0x00,
    /// The controller.
    Controller = 0x01,
    /// NSIDs of the active namespaces.
    ActiveNamespaces = 0x02,
    /// Identifiers of a namespace.
    Descriptors = 0x03,
    /// The controller, as to a command set.
    CommandSetController = 0x06,
}

impl Cns {
    /// The structure of a code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Cns> {
        match code {
            0x00 => Some(Cns::Namespace),
            0x01 => Some(Cns::Controller),
            0x02 => Some(Cns::ActiveNamespaces),
            0x03 => Some(Cns::Descriptors),
            0x06 => Some(Cns::CommandSetController),
            _ => None,
        }
    }
}

/// The fields of an Identify.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdentifyFields {
    /// Code of the structure, see [`Cns`].
    pub cns: u8,
    /// Namespace.
    pub nsid: u32,
    /// Command set identifier; 0 is the NVM command set.
    pub command_set: u8,
}

impl IdentifyFields {
    /// Asks for `cns` of namespace `nsid`.
    #[must_use]
    pub const fn new(cns: Cns, nsid: u32) -> IdentifyFields {
        IdentifyFields { cns: cns as u8, nsid, command_set: 0 }
    }

    /// Reads the fields.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> IdentifyFields {
        let [cns, _, _, _, command_set, _] = sqe.cdws();
        IdentifyFields { cns: cns as u8, nsid: sqe.nsid(), command_set: (command_set >> 24) as u8 }
    }

    /// The command, with the descriptor of its data.
    #[must_use]
    pub fn to_sqe(self, command_id: u16, data: SglDescriptor) -> Sqe {
        let cdws = [u32::from(self.cns), 0, 0, 0, u32::from(self.command_set) << 24, 0];
        Sqe::new(AdminOpcode::Identify.code(), command_id).with_nsid(self.nsid).with_sgl(data).with_cdws(cdws)
    }
}

/// Writes `text` into a field of ASCII characters: padded with spaces, cut off at the end, other characters as '?'.
pub(crate) fn ascii_field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (byte, character) in field.iter_mut().zip(text.chars()) {
        *byte = if matches!(character, ' '..='~') { character as u8 } else { b'?' };
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_written() {
        let fields = IdentifyFields { cns: 6, nsid: 3, command_set: 2 };
        assert_eq!(IdentifyFields::parse(&fields.to_sqe(1, SglDescriptor::NO_DATA)), fields);
        for code in 0..=u8::MAX {
            assert!(Cns::from_code(code).is_none_or(|cns| cns as u8 == code));
        }
    }

    #[test]
    fn text_is_printable_and_padded() {
        assert_eq!(ascii_field::<8>("ab\u{e9}\n"), *b"ab??    ");
        assert_eq!(ascii_field::<2>("abc"), *b"ab");
    }
}
