//! Property Get and Set: the controller's registers over fabrics.

use super::opcode::FabricsType;
use super::sqe::Sqe;

/// A register that a fabrics controller has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Register {
    /// CAP, 8 bytes: capabilities.
    Capabilities = 0x00,
    /// VS: version.
    Version = 0x08,
    /// CC: configuration, the only register that can be written.
    Configuration = 0x14,
    /// CSTS: status.
    Status = 0x1C,
}

impl Register {
    /// The register at an offset.
    #[must_use]
    pub const fn from_offset(offset: u32) -> Option<Register> {
        match offset {
            0x00 => Some(Register::Capabilities),
            0x08 => Some(Register::Version),
            0x14 => Some(Register::Configuration),
            0x1C => Some(Register::Status),
            _ => None,
        }
    }

    /// Whether the register has 8 bytes instead of 4.
    #[must_use]
    pub const fn is_wide(self) -> bool {
        matches!(self, Register::Capabilities)
    }
}

/// The fields of a Property Get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PropertyGet {
    /// Size code: 0 is 4 bytes, 1 is 8 bytes, others are reserved.
    pub size: u8,
    /// Offset of the register.
    pub offset: u32,
}

impl PropertyGet {
    /// Reads `register`.
    #[must_use]
    pub const fn new(register: Register) -> PropertyGet {
        PropertyGet { size: register.is_wide() as u8, offset: register as u32 }
    }

    /// Reads the fields.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> PropertyGet {
        let [attributes, offset, ..] = sqe.cdws();
        PropertyGet { size: (attributes & 7) as u8, offset }
    }

    /// The command.
    #[must_use]
    pub fn to_sqe(self, command_id: u16) -> Sqe {
        let cdws = [u32::from(self.size), self.offset, 0, 0, 0, 0];
        Sqe::fabrics(FabricsType::PropertyGet, command_id).with_cdws(cdws)
    }

    /// The register, if there is one of this size at this offset.
    #[must_use]
    pub fn register(self) -> Option<Register> {
        Register::from_offset(self.offset).filter(|register| self.size == u8::from(register.is_wide()))
    }
}

/// The fields of a Property Set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PropertySet {
    /// Size and offset.
    pub target: PropertyGet,
    /// The value; its upper half is unused with 4 bytes.
    pub value: u64,
}

impl PropertySet {
    /// Reads the fields.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> PropertySet {
        let [_, _, low, high, ..] = sqe.cdws();
        PropertySet { target: PropertyGet::parse(sqe), value: u64::from(low) | u64::from(high) << 32 }
    }

    /// The command.
    #[must_use]
    pub fn to_sqe(self, command_id: u16) -> Sqe {
        let PropertyGet { size, offset } = self.target;
        let cdws = [u32::from(size), offset, self.value as u32, (self.value >> 32) as u32, 0, 0];
        Sqe::fabrics(FabricsType::PropertySet, command_id).with_cdws(cdws)
    }
}

/// Supports the NVM command set.
const CAP_NVM_COMMAND_SET: u64 = 1 << 37;
/// Queues are contiguous, as always on fabrics.
const CAP_CONTIGUOUS_QUEUES: u64 = 1 << 16;

/// The CAP register: the fields that vary. Pages of 4 KiB, the NVM command set, no subsystem reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// MQES: most entries of an I/O queue, minus 1.
    pub max_queue_entries: u16,
    /// TO: longest time from CC.EN to CSTS.RDY in units of 500 ms.
    pub timeout: u8,
}

impl Capabilities {
    /// The register.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.max_queue_entries as u64 | CAP_CONTIGUOUS_QUEUES | (self.timeout as u64) << 24 | CAP_NVM_COMMAND_SET
    }

    /// The varying fields of a register.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Capabilities {
        Capabilities { max_queue_entries: bits as u16, timeout: (bits >> 24) as u8 }
    }
}

/// The CC register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Configuration(pub u32);

impl Configuration {
    /// Submission entries of 64 bytes, completion entries of 16, not enabled: what Linux writes first.
    pub const INITIAL: Configuration = Configuration(0x0046_0000);

    /// EN.
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// Sets EN.
    #[must_use]
    pub const fn enabled(self) -> Configuration {
        Configuration(self.0 | 1)
    }

    /// The same with a normal shutdown notified (SHN 1).
    #[must_use]
    pub const fn shutdown(self) -> Configuration {
        Configuration(self.0 & !0xC000 | 0x4000)
    }

    /// MPS: page size, 2^(12 + value).
    #[must_use]
    pub const fn page_size(self) -> u32 {
        self.0 >> 7 & 0xF
    }

    /// AMS: arbitration.
    #[must_use]
    pub const fn arbitration(self) -> u32 {
        self.0 >> 11 & 7
    }

    /// SHN: whether a shutdown is notified.
    #[must_use]
    pub const fn is_shutdown(self) -> bool {
        self.0 & 0xC000 != 0
    }

    /// IOSQES: log2 of the length of a submission entry.
    #[must_use]
    pub const fn sqe_size(self) -> u32 {
        self.0 >> 16 & 0xF
    }

    /// IOCQES: log2 of the length of a completion entry.
    #[must_use]
    pub const fn cqe_size(self) -> u32 {
        self.0 >> 20 & 0xF
    }
}

/// SHST of the CSTS register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum ShutdownStatus {
    /// No shutdown was notified.
    #[default]
    Normal = 0,
    /// Shutdown is in progress.
    Occurring = 1,
    /// Shutdown is complete.
    Complete = 2,
}

/// The CSTS register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatusRegister {
    /// RDY: the controller accepts commands.
    pub ready: bool,
    /// CFS: the controller failed, or was configured with unsupported values.
    pub fatal: bool,
    /// SHST.
    pub shutdown: ShutdownStatus,
}

impl StatusRegister {
    /// The register.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.ready as u32 | (self.fatal as u32) << 1 | (self.shutdown as u32) << 2
    }

    /// Reads a register.
    #[must_use]
    pub const fn from_bits(bits: u32) -> StatusRegister {
        let shutdown = match bits >> 2 & 3 {
            0 => ShutdownStatus::Normal,
            2 => ShutdownStatus::Complete,
            _ => ShutdownStatus::Occurring,
        };
        StatusRegister { ready: bits & 1 != 0, fatal: bits & 2 != 0, shutdown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_need_their_own_size() {
        for (register, size) in
            [(Register::Capabilities, 1), (Register::Version, 0), (Register::Configuration, 0), (Register::Status, 0)]
        {
            assert_eq!(PropertyGet::new(register).register(), Some(register));
            assert_eq!(PropertyGet { size: 1 - size, offset: register as u32 }.register(), None);
        }
        assert_eq!(PropertyGet { size: 0, offset: 0x20 }.register(), None);
    }

    #[test]
    fn commands_are_read_as_written() {
        let set = PropertySet { target: PropertyGet::new(Register::Configuration), value: 0x0046_0061_0000_0001 };
        assert_eq!(PropertySet::parse(&set.to_sqe(5)), set);
        let get = PropertyGet::new(Register::Capabilities);
        assert_eq!(PropertyGet::parse(&get.to_sqe(6)), get);
    }

    #[test]
    fn captured_registers_read_as_they_should() {
        let capabilities = Capabilities { max_queue_entries: 127, timeout: 15 };
        assert_eq!(capabilities.bits(), 0x0000_0020_0F01_007F);
        assert_eq!(Capabilities::from_bits(0x0000_0820_0F00_007F), capabilities, "nvmf-rdma.pcap");
        let configuration = Configuration(0x0046_4061);
        assert!(configuration.is_enabled() && configuration.is_shutdown());
        assert_eq!((configuration.sqe_size(), configuration.cqe_size(), configuration.page_size()), (6, 4, 0));
        assert_eq!(Configuration(0x0046_0061).shutdown(), configuration);
        let status = StatusRegister { shutdown: ShutdownStatus::Complete, ..StatusRegister::default() };
        assert_eq!((status.bits(), StatusRegister::from_bits(8)), (8, status));
    }
}
