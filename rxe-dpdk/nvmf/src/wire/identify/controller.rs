//! Identify Controller (CNS 01).

use bitflags::bitflags;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_LEN;
use crate::wire::nqn::NQN_FIELD_LEN;

bitflags! {
    /// ONCS: the optional I/O commands.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct OptionalCommands: u16 {
        /// Compare.
        const COMPARE = 1 << 0;
        /// Dataset Management.
        const DATASET_MANAGEMENT = 1 << 2;
        /// Write Zeroes.
        const WRITE_ZEROES = 1 << 3;
        /// Verify.
        const VERIFY = 1 << 7;
        const _ = !0;
    }
}

bitflags! {
    /// SGLS: the supported descriptors.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct SglSupport: u32 {
        /// SGLs, without requirements for alignment.
        const SUPPORTED = 1 << 0;
        /// Keyed data blocks. Linux refuses a controller without them.
        const KEYED = 1 << 2;
        /// Data blocks in the capsule.
        const CAPSULE_OFFSET = 1 << 20;
        const _ = !0;
    }
}

/// CNTRLTYPE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ControllerType {
    /// I/O controller.
    Io = 1,
    /// Discovery controller.
    Discovery = 2,
}

/// The data of Identify Controller. Fields that are always 0 here are reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyController {
    reserved0: [u8; 4],
    /// SN: serial number, ASCII padded with spaces.
    pub serial: [u8; 20],
    /// MN: model number, ASCII padded with spaces.
    pub model: [u8; 40],
    /// FR: firmware revision, ASCII padded with spaces.
    pub firmware: [u8; 8],
    /// RAB: recommended arbitration burst, log2.
    pub arbitration_burst: u8,
    reserved73: [u8; 3],
    /// CMIC: bit 0 several ports, bit 1 several controllers.
    pub multi_path: u8,
    /// MDTS: most bytes per command, 2^n times 4 KiB; 0 is no limit.
    pub max_transfer: u8,
    /// CNTLID: the id that Connect granted.
    pub controller_id: U16,
    /// VER: as the VS register.
    pub version: U32,
    reserved84: [u8; 8],
    /// OAES: events that the controller can report, see [`EventMask`](crate::wire::EventMask).
    pub events: U32,
    /// CTRATT: bit 0 host identifiers of 128 bits.
    pub attributes: U32,
    reserved100: [u8; 11],
    /// CNTRLTYPE, see [`ControllerType`].
    pub controller_type: u8,
    reserved112: [u8; 146],
    /// ACL: most concurrent Abort commands, minus 1.
    pub abort_limit: u8,
    /// AERL: most held Asynchronous Event Requests, minus 1.
    pub event_request_limit: u8,
    /// FRMW: bit 0 slot 1 is read-only, bits 3:1 number of slots.
    pub firmware_updates: u8,
    /// LPA: bit 1 effects log, bit 2 offsets and long lengths in Get Log Page.
    pub log_attributes: u8,
    /// ELPE: entries of the error log, minus 1.
    pub error_log_entries: u8,
    reserved263: [u8; 57],
    /// KAS: granularity of the keep alive timeout in units of 100 ms.
    pub keep_alive_granularity: U16,
    reserved322: [u8; 190],
    /// SQES: smallest and largest submission entry, log2.
    pub sqe_sizes: u8,
    /// CQES: smallest and largest completion entry, log2.
    pub cqe_sizes: u8,
    /// MAXCMD: most outstanding commands of an I/O queue.
    pub max_commands: U16,
    /// NN: largest NSID.
    pub namespaces: U32,
    /// ONCS, see [`OptionalCommands`].
    pub optional_commands: U16,
    reserved522: [u8; 3],
    /// VWC: bit 0, there is a volatile write cache.
    pub write_cache: u8,
    reserved526: [u8; 10],
    /// SGLS, see [`SglSupport`].
    pub sgl_support: U32,
    /// MNAN: most active namespaces; 0 is as NN.
    pub max_active_namespaces: U32,
    reserved544: [u8; 224],
    /// SUBNQN, padded with NUL.
    pub subsystem_nqn: [u8; NQN_FIELD_LEN],
    reserved1024: [u8; 768],
    /// IOCCSZ: length of an I/O command capsule in units of 16 bytes.
    pub command_capsule: U32,
    /// IORCSZ: length of a response capsule in units of 16 bytes.
    pub response_capsule: U32,
    reserved1800: [u8; 3],
    /// MSDBD: most SGL descriptors in a capsule.
    pub max_descriptors: u8,
    reserved1804: [u8; 244],
    /// Most power in power state 0, in units of 10 mW.
    pub max_power: U16,
    reserved2050: [u8; 2046],
}

const _: () = assert!(size_of::<IdentifyController>() == IDENTIFY_LEN);

impl IdentifyController {
    /// All zero.
    #[must_use]
    pub fn zeroed() -> IdentifyController {
        IdentifyController::new_zeroed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn fields_are_at_their_offsets() {
        let offsets = [
            (offset_of!(IdentifyController, serial), 4),
            (offset_of!(IdentifyController, model), 24),
            (offset_of!(IdentifyController, firmware), 64),
            (offset_of!(IdentifyController, arbitration_burst), 72),
            (offset_of!(IdentifyController, multi_path), 76),
            (offset_of!(IdentifyController, max_transfer), 77),
            (offset_of!(IdentifyController, controller_id), 78),
            (offset_of!(IdentifyController, version), 80),
            (offset_of!(IdentifyController, events), 92),
            (offset_of!(IdentifyController, attributes), 96),
            (offset_of!(IdentifyController, controller_type), 111),
            (offset_of!(IdentifyController, abort_limit), 258),
            (offset_of!(IdentifyController, event_request_limit), 259),
            (offset_of!(IdentifyController, log_attributes), 261),
            (offset_of!(IdentifyController, error_log_entries), 262),
            (offset_of!(IdentifyController, keep_alive_granularity), 320),
            (offset_of!(IdentifyController, sqe_sizes), 512),
            (offset_of!(IdentifyController, max_commands), 514),
            (offset_of!(IdentifyController, namespaces), 516),
            (offset_of!(IdentifyController, optional_commands), 520),
            (offset_of!(IdentifyController, write_cache), 525),
            (offset_of!(IdentifyController, sgl_support), 536),
            (offset_of!(IdentifyController, max_active_namespaces), 540),
            (offset_of!(IdentifyController, subsystem_nqn), 768),
            (offset_of!(IdentifyController, command_capsule), 1792),
            (offset_of!(IdentifyController, response_capsule), 1796),
            (offset_of!(IdentifyController, max_descriptors), 1803),
            (offset_of!(IdentifyController, max_power), 2048),
        ];
        for (actual, expected) in offsets {
            assert_eq!(actual, expected);
        }
    }
}
