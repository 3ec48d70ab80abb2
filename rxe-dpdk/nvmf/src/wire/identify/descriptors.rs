//! Lists of Identify: active namespaces (CNS 02), and the identifiers of a namespace (CNS 03).

use super::IDENTIFY_LEN;

/// Bytes of a descriptor before its identifier.
const HEADER_LEN: usize = 4;

/// The first NSIDs above `after`, ascending, padded with zeroes. `nsids` must be ascending.
#[must_use]
pub fn active_list(nsids: impl Iterator<Item = u32>, after: u32) -> [u8; IDENTIFY_LEN] {
    let mut list = [0; IDENTIFY_LEN];
    for (entry, nsid) in list.chunks_exact_mut(4).zip(nsids.filter(|&nsid| nsid > after)) {
        entry.copy_from_slice(&nsid.to_le_bytes());
    }
    list
}

/// The NSIDs of a list of active namespaces, up to the first zero.
pub fn parse_active_list(list: &[u8]) -> impl Iterator<Item = u32> {
    list.as_chunks::<4>().0.iter().map(|&entry| u32::from_le_bytes(entry)).take_while(|&nsid| nsid != 0)
}

/// An identifier of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamespaceDescriptor {
    /// Type 1: IEEE extended unique identifier.
    Eui64([u8; 8]),
    /// Type 2: namespace globally unique identifier.
    Nguid([u8; 16]),
    /// Type 3: UUID.
    Uuid([u8; 16]),
    /// Type 4: command set; 0 is the NVM command set.
    CommandSet(u8),
}

/// A list of identifiers under construction.
pub struct DescriptorList {
    bytes: [u8; IDENTIFY_LEN],
    end: usize,
}

impl Default for DescriptorList {
    fn default() -> DescriptorList {
        DescriptorList { bytes: [0; IDENTIFY_LEN], end: 0 }
    }
}

impl DescriptorList {
    /// Appends an identifier; the list has room for one of each type.
    #[must_use]
    pub fn with(mut self, descriptor: NamespaceDescriptor) -> DescriptorList {
        let (kind, id): (u8, &[u8]) = match &descriptor {
            NamespaceDescriptor::Eui64(id) => (1, id),
            NamespaceDescriptor::Nguid(id) => (2, id),
            NamespaceDescriptor::Uuid(id) => (3, id),
            NamespaceDescriptor::CommandSet(id) => (4, std::slice::from_ref(id)),
        };
        if let Some(entry) = self.bytes.get_mut(self.end..self.end + HEADER_LEN + id.len()) {
            entry[..2].copy_from_slice(&[kind, id.len() as u8]);
            entry[HEADER_LEN..].copy_from_slice(id);
            self.end += entry.len();
        }
        self
    }

    /// The data of the command.
    #[must_use]
    pub fn into_bytes(self) -> [u8; IDENTIFY_LEN] {
        self.bytes
    }
}

/// The identifiers of a list. Unknown types are skipped, and a length that does not fit ends the list.
#[must_use]
pub fn parse_descriptors(mut list: &[u8]) -> Vec<NamespaceDescriptor> {
    let mut descriptors = Vec::new();
    while let [kind, len, _, _, rest @ ..] = list
        && *len != 0
        && let Some((id, rest)) = rest.split_at_checked(usize::from(*len))
    {
        descriptors.extend(match (kind, id) {
            (1, id) => id.try_into().ok().map(NamespaceDescriptor::Eui64),
            (2, id) => id.try_into().ok().map(NamespaceDescriptor::Nguid),
            (3, id) => id.try_into().ok().map(NamespaceDescriptor::Uuid),
            (4, &[id]) => Some(NamespaceDescriptor::CommandSet(id)),
            _ => None,
        });
        list = rest;
    }
    descriptors
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_active_list_starts_above_the_given_nsid() {
        let list = active_list([1, 2, 7].into_iter(), 1);
        assert_eq!(list[..12], [2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(parse_active_list(&list).collect::<Vec<_>>(), [2, 7]);
        let full = active_list(1..=2000, 0);
        assert_eq!(parse_active_list(&full).count(), 1024);
    }

    #[test]
    fn identifiers_are_read_as_written() {
        let descriptors = [
            NamespaceDescriptor::Eui64([1; 8]),
            NamespaceDescriptor::Nguid([2; 16]),
            NamespaceDescriptor::Uuid([3; 16]),
            NamespaceDescriptor::CommandSet(0),
        ];
        let list = descriptors.into_iter().fold(DescriptorList::default(), DescriptorList::with).into_bytes();
        assert_eq!(list[..5], [1, 8, 0, 0, 1]);
        assert_eq!(parse_descriptors(&list), descriptors);
        assert_eq!(parse_descriptors(&DescriptorList::default().into_bytes()), []);
    }

    proptest! {
        #[test]
        fn any_list_of_identifiers_is_read_to_an_end(list in prop::collection::vec(any::<u8>(), 0..256)) {
            prop_assert!(parse_descriptors(&list).len() <= list.len() / 5);
        }
    }
}
