//! Submission queue entries: 64 bytes, the start of every command capsule.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::opcode::{FABRICS_OPCODE, FabricsType};
use super::sgl::{SGL_LEN, SglDescriptor, SglError};
use super::status::StatusCode;

/// Length of a submission queue entry in bytes.
pub const SQE_LEN: usize = 64;

/// Flags: SGLs are used, metadata in one buffer. Fabrics allows nothing else.
const PSDT_SGL: u8 = 0x40;
const PSDT_MASK: u8 = 0xC0;
const FUSE_MASK: u8 = 0x03;

/// A submission queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sqe {
    opcode: u8,
    flags: u8,
    command_id: U16,
    nsid: U32,
    reserved: [u8; 8],
    metadata: U64,
    sgl: [u8; SGL_LEN],
    cdw: [U32; 6],
}

const _: () = assert!(size_of::<Sqe>() == SQE_LEN);

impl Sqe {
    /// A command without data.
    #[must_use]
    #[inline]
    pub fn new(opcode: u8, command_id: u16) -> Sqe {
        let mut sqe = Sqe::new_zeroed();
        sqe.opcode = opcode;
        sqe.flags = PSDT_SGL;
        sqe.command_id.set(command_id);
        sqe.sgl = SglDescriptor::NO_DATA.to_bytes();
        sqe
    }

    /// A fabrics command without data.
    #[must_use]
    pub fn fabrics(kind: FabricsType, command_id: u16) -> Sqe {
        Sqe::new(FABRICS_OPCODE, command_id).with_nsid(u32::from(kind.code()))
    }

    /// Sets the NSID.
    #[must_use]
    #[inline]
    pub fn with_nsid(mut self, nsid: u32) -> Sqe {
        self.nsid.set(nsid);
        self
    }

    /// Sets the descriptor of the data.
    #[must_use]
    #[inline]
    pub fn with_sgl(mut self, descriptor: SglDescriptor) -> Sqe {
        self.sgl = descriptor.to_bytes();
        self
    }

    /// The same with these command dwords 10 to 15.
    #[must_use]
    #[inline]
    pub fn with_cdws(mut self, cdws: [u32; 6]) -> Sqe {
        self.cdw = cdws.map(U32::new);
        self
    }

    /// The same with this flags byte: PSDT in bits 7:6, fused operation in bits 1:0.
    #[must_use]
    pub fn with_flags(mut self, flags: u8) -> Sqe {
        self.flags = flags;
        self
    }

    /// Splits a capsule into entry and in-capsule data; `None` when it is shorter than an entry.
    #[must_use]
    #[inline]
    pub fn split(capsule: &[u8]) -> Option<(&Sqe, &[u8])> {
        Sqe::ref_from_prefix(capsule).ok()
    }

    /// The opcode byte.
    #[must_use]
    #[inline]
    pub const fn opcode(&self) -> u8 {
        self.opcode
    }

    /// The command id, which the completion repeats unchanged.
    #[must_use]
    #[inline]
    pub fn command_id(&self) -> u16 {
        self.command_id.get()
    }

    /// The namespace.
    #[must_use]
    #[inline]
    pub fn nsid(&self) -> u32 {
        self.nsid.get()
    }

    /// The type byte of a fabrics command.
    #[must_use]
    pub fn fabrics_type(&self) -> u8 {
        self.nsid.get().to_le_bytes()[0]
    }

    /// The descriptor.
    ///
    /// # Errors
    /// [`SglError::Type`].
    #[inline]
    pub fn sgl(&self) -> Result<SglDescriptor, SglError> {
        SglDescriptor::parse(&self.sgl)
    }

    /// Command dwords 10 to 15.
    #[must_use]
    #[inline]
    pub fn cdws(&self) -> [u32; 6] {
        self.cdw.map(U32::get)
    }

    /// Checks that the command uses SGLs and is not fused.
    ///
    /// # Errors
    /// Invalid Field.
    #[inline]
    pub const fn check_flags(&self) -> Result<(), StatusCode> {
        if self.flags & (PSDT_MASK | FUSE_MASK) == PSDT_SGL { Ok(()) } else { Err(StatusCode::InvalidField) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_at_their_offsets() {
        let sqe = Sqe::new(0x02, 0x1234).with_nsid(0xA1B2_C3D4).with_cdws([1, 2, 3, 4, 5, 6]);
        let bytes = sqe.as_bytes();
        assert_eq!(bytes[..8], [0x02, 0x40, 0x34, 0x12, 0xD4, 0xC3, 0xB2, 0xA1]);
        assert_eq!(bytes[24..40], SglDescriptor::NO_DATA.to_bytes());
        assert_eq!((bytes[40], bytes[60]), (1, 6));
        let (parsed, rest) = Sqe::split(bytes).expect("long enough");
        assert_eq!((*parsed, rest), (sqe, &[][..]));
        assert_eq!(Sqe::split(&bytes[..63]), None);
    }

    #[test]
    fn only_unfused_commands_with_sgls_pass() {
        for flags in 0..=u8::MAX {
            let passes = flags >> 6 == 1 && flags & 3 == 0;
            assert_eq!(Sqe::new(0, 0).with_flags(flags).check_flags().is_ok(), passes, "{flags:#04x}");
        }
    }
}
