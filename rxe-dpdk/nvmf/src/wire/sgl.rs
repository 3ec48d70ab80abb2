//! SGL descriptors: where a command's data are.

use super::status::StatusCode;

/// Length of an SGL descriptor in bytes.
pub const SGL_LEN: usize = 16;

/// Type byte: data block, offset in the capsule.
const CAPSULE_OFFSET: u8 = 0x01;
/// Type byte: keyed data block, address.
const KEYED: u8 = 0x40;
/// Type byte: keyed data block, the response invalidates the key.
const KEYED_INVALIDATE: u8 = 0x4F;

/// Memory of the host that RDMA READ and WRITE can reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct HostBuffer {
    /// Virtual address at the host, of any alignment.
    pub addr: u64,
    /// Length in bytes, below 2^24.
    pub len: u32,
    /// Remote key.
    pub rkey: u32,
    /// Whether the response is to be a SEND with invalidate of `rkey`.
    pub invalidate: bool,
}

/// A parsed descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum SglDescriptor {
    /// Host memory. A command without data has one of length 0.
    Keyed(HostBuffer),
    /// Data in the command capsule.
    Capsule {
        /// Offset in bytes from the end of the submission queue entry (ICDOFF is 0).
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
}

/// A descriptor that cannot be used, or not with this command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SglError {
    /// The type is not one of the supported three.
    #[error("SGL descriptor type {0:#04x} is not supported")]
    Type(u8),
    /// In-capsule data with a command that does not send data to the controller.
    #[error("in-capsule data for a command that does not send data to the controller")]
    CapsuleDirection,
    /// The data are not inside the received capsule.
    #[error("in-capsule data of {len} bytes at offset {offset} exceed the capsule")]
    CapsuleOffset {
        /// Offset of the descriptor.
        offset: u64,
        /// Length of the descriptor.
        len: u32,
    },
    /// The length is not that of the command's data.
    #[error("SGL length {0} does not match the command")]
    Length(u32),
}

impl SglError {
    /// The status code of the response.
    #[must_use]
    pub const fn status_code(self) -> StatusCode {
        match self {
            SglError::Type(_) => StatusCode::SglTypeInvalid,
            SglError::CapsuleDirection => StatusCode::InvalidField,
            SglError::CapsuleOffset { .. } => StatusCode::SglOffsetInvalid,
            SglError::Length(_) => StatusCode::DataSglLengthInvalid,
        }
    }
}

impl SglDescriptor {
    /// The descriptor of a command without data.
    pub const NO_DATA: SglDescriptor = SglDescriptor::Keyed(HostBuffer { addr: 0, len: 0, rkey: 0, invalidate: false });

    /// Reads a descriptor.
    ///
    /// # Errors
    /// [`SglError::Type`].
    #[inline]
    pub fn parse(bytes: &[u8; SGL_LEN]) -> Result<SglDescriptor, SglError> {
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, b3, b4, b5, b6, kind] = *bytes;
        let addr = u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        match kind {
            KEYED | KEYED_INVALIDATE => Ok(SglDescriptor::Keyed(HostBuffer {
                addr,
                len: u32::from_le_bytes([l0, l1, l2, 0]),
                rkey: u32::from_le_bytes([b3, b4, b5, b6]),
                invalidate: kind == KEYED_INVALIDATE,
            })),
            CAPSULE_OFFSET => Ok(SglDescriptor::Capsule { offset: addr, len: u32::from_le_bytes([l0, l1, l2, b3]) }),
            other => Err(SglError::Type(other)),
        }
    }

    /// Writes the descriptor. Of a keyed length only the low 24 bits are written.
    #[must_use]
    pub fn to_bytes(self) -> [u8; SGL_LEN] {
        let mut bytes = [0; SGL_LEN];
        match self {
            SglDescriptor::Keyed(HostBuffer { addr, len, rkey, invalidate }) => {
                bytes[..8].copy_from_slice(&addr.to_le_bytes());
                bytes[8..11].copy_from_slice(&len.to_le_bytes()[..3]);
                bytes[11..15].copy_from_slice(&rkey.to_le_bytes());
                bytes[15] = if invalidate { KEYED_INVALIDATE } else { KEYED };
            }
            SglDescriptor::Capsule { offset, len } => {
                bytes[..8].copy_from_slice(&offset.to_le_bytes());
                bytes[8..12].copy_from_slice(&len.to_le_bytes());
                bytes[15] = CAPSULE_OFFSET;
            }
        }
        bytes
    }

    /// The key that the response must invalidate.
    #[must_use]
    #[inline]
    pub const fn invalidate_key(self) -> Option<u32> {
        match self {
            SglDescriptor::Keyed(HostBuffer { invalidate: true, rkey, .. }) => Some(rkey),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_captured_descriptor_reads_as_it_should() {
        // nvmf-rdma.pcap, the admin Connect: 1024 bytes, key 0x24fc.
        let bytes = [0x7C, 0xE0, 0x2E, 0x4A, 0x70, 0x3C, 0xFF, 0, 0, 4, 0, 0xFC, 0x24, 0, 0, 0x4F];
        let expected = HostBuffer { addr: 0x00FF_3C70_4A2E_E07C, len: 1024, rkey: 0x24FC, invalidate: true };
        assert_eq!(SglDescriptor::parse(&bytes), Ok(SglDescriptor::Keyed(expected)));
        assert_eq!(SglDescriptor::Keyed(expected).to_bytes(), bytes);
    }

    #[test]
    fn the_largest_keyed_length_has_24_bits() {
        let mut bytes = SglDescriptor::NO_DATA.to_bytes();
        bytes[8..11].fill(0xFF);
        let Ok(SglDescriptor::Keyed(buffer)) = SglDescriptor::parse(&bytes) else { panic!("keyed") };
        assert_eq!((buffer.len, buffer.rkey), (0x00FF_FFFF, 0));
    }

    proptest! {
        #[test]
        fn every_accepted_descriptor_is_written_again(
            random: [u8; SGL_LEN],
            kind in prop::sample::select(vec![0x01, 0x40, 0x4F]),
        ) {
            let mut bytes = random;
            bytes[15] = kind;
            if kind == CAPSULE_OFFSET {
                bytes[12..15].fill(0); // reserved
            }
            let descriptor = SglDescriptor::parse(&bytes).unwrap();
            prop_assert_eq!(descriptor.to_bytes(), bytes);
            prop_assert_eq!(descriptor.invalidate_key().is_some(), kind == KEYED_INVALIDATE);
        }

        #[test]
        fn other_types_are_refused(random: [u8; SGL_LEN], kind: u8) {
            let mut bytes = random;
            prop_assume!(![0x01, 0x40, 0x4F].contains(&kind));
            bytes[15] = kind;
            let error = SglDescriptor::parse(&bytes).unwrap_err();
            prop_assert_eq!(error, SglError::Type(kind));
            prop_assert_eq!(error.status_code(), StatusCode::SglTypeInvalid);
        }
    }
}
