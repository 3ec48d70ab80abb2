//! The registers of a controller: CAP, VS, CC, CSTS.

use crate::subsystem::Limits;
use crate::wire::{
    Capabilities, Configuration, PropertyGet, PropertySet, Register, ShutdownStatus, StatusCode, StatusRegister,
    VERSION_1_3,
};

/// log2 of the length of a submission queue entry.
const SQE_SIZE: u32 = 6;
/// log2 of the length of a completion queue entry.
const CQE_SIZE: u32 = 4;
/// Longest time from CC.EN to CSTS.RDY, in units of 500 ms. It takes none.
const READY_TIMEOUT: u8 = 15;

/// Which queues a controller has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueSet {
    AdminOnly,
    AdminAndIo,
}

/// The registers of one controller.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Registers {
    configuration: Configuration,
    status: StatusRegister,
}

/// Change of state by a write of CC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transition {
    None,
    Enabled,
    /// CC.EN was cleared: a controller reset.
    Disabled,
    /// A shutdown was notified.
    Shutdown,
}

impl Registers {
    /// CSTS.RDY.
    pub(super) const fn is_ready(&self) -> bool {
        self.status.ready
    }

    /// Whether the host notified a shutdown.
    pub(super) const fn is_shut_down(&self) -> bool {
        matches!(self.status.shutdown, ShutdownStatus::Complete)
    }

    /// Executes a Property Get.
    pub(super) fn get(&self, command: PropertyGet, limits: &Limits) -> Result<u64, StatusCode> {
        match command.register().ok_or(StatusCode::InvalidField)? {
            Register::Capabilities => {
                let max_queue_entries = limits.queue_size.saturating_sub(1);
                Ok(Capabilities { max_queue_entries, timeout: READY_TIMEOUT }.bits())
            }
            Register::Version => Ok(u64::from(VERSION_1_3)),
            Register::Configuration => Ok(u64::from(self.configuration.0)),
            Register::Status => Ok(u64::from(self.status.bits())),
        }
    }

    /// Executes a Property Set.
    pub(super) fn set(&mut self, command: PropertySet, queues: QueueSet) -> Result<Transition, StatusCode> {
        match command.target.register() {
            Some(Register::Configuration) => Ok(self.configure(Configuration(command.value as u32), queues)),
            _ => Err(StatusCode::InvalidField),
        }
    }

    fn configure(&mut self, new: Configuration, queues: QueueSet) -> Transition {
        let old = std::mem::replace(&mut self.configuration, new);
        let mut transition = Transition::None;
        if new.is_enabled() && !old.is_enabled() {
            if supported(new, queues) {
                self.status.ready = true;
                transition = Transition::Enabled;
            } else {
                self.status.fatal = true;
            }
        } else if !new.is_enabled() && old.is_enabled() {
            self.status = StatusRegister { shutdown: self.status.shutdown, ..StatusRegister::default() };
            transition = Transition::Disabled;
        }
        if new.is_shutdown() && !old.is_shutdown() {
            self.status.ready = false;
            self.status.shutdown = ShutdownStatus::Complete;
            // A reset does more than a shutdown.
            if transition != Transition::Disabled {
                transition = Transition::Shutdown;
            }
        } else if !new.is_shutdown() && old.is_shutdown() {
            self.status.shutdown = ShutdownStatus::Normal;
        }
        transition
    }
}

/// Whether a controller can be enabled with these values. Entry sizes matter only with I/O queues.
fn supported(configuration: Configuration, queues: QueueSet) -> bool {
    let sizes = configuration.sqe_size() == SQE_SIZE && configuration.cqe_size() == CQE_SIZE;
    configuration.page_size() == 0 && configuration.arbitration() == 0 && (sizes || queues == QueueSet::AdminOnly)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(registers: &mut Registers, value: u32) -> Transition {
        let command = PropertySet { target: PropertyGet::new(Register::Configuration), value: u64::from(value) };
        registers.set(command, QueueSet::AdminAndIo).unwrap()
    }

    fn status(registers: &Registers) -> u64 {
        registers.get(PropertyGet::new(Register::Status), &Limits::default()).unwrap()
    }

    #[test]
    fn the_sequence_of_linux_leads_to_ready_and_to_shutdown_complete() {
        let mut registers = Registers::default();
        assert_eq!(write(&mut registers, 0x0046_0060), Transition::None);
        assert_eq!((write(&mut registers, 0x0046_0061), status(&registers)), (Transition::Enabled, 1));
        assert_eq!((write(&mut registers, 0x0046_4061), status(&registers)), (Transition::Shutdown, 8));
        assert!(registers.is_shut_down() && !registers.is_ready());
    }

    #[test]
    fn clearing_enable_clears_ready_and_an_earlier_failure() {
        let mut registers = Registers::default();
        write(&mut registers, 0x0046_0061);
        assert_eq!((write(&mut registers, 0x0046_0060), status(&registers)), (Transition::Disabled, 0));
        assert_eq!((write(&mut registers, 0x0045_0061), status(&registers)), (Transition::None, 2));
        write(&mut registers, 0x0046_0060);
        assert_eq!((write(&mut registers, 0x0046_0061), status(&registers)), (Transition::Enabled, 1));
    }

    #[test]
    fn unsupported_values_end_in_a_fatal_status() {
        for value in [0x0036_0061, 0x0045_0061, 0x0046_0081, 0x0046_0861] {
            let mut registers = Registers::default();
            assert_eq!((write(&mut registers, value), status(&registers)), (Transition::None, 2), "{value:#x}");
        }
        let mut discovery = Registers::default();
        let command = PropertySet { target: PropertyGet::new(Register::Configuration), value: 1 };
        assert_eq!(discovery.set(command, QueueSet::AdminOnly), Ok(Transition::Enabled));
    }

    #[test]
    fn other_registers_cannot_be_written_and_unknown_ones_not_read() {
        let mut registers = Registers::default();
        for target in [
            PropertyGet::new(Register::Capabilities),
            PropertyGet::new(Register::Status),
            PropertyGet { size: 1, offset: 0x14 },
            PropertyGet { size: 0, offset: 0x20 },
        ] {
            let result = registers.set(PropertySet { target, value: 1 }, QueueSet::AdminAndIo);
            assert_eq!(result, Err(StatusCode::InvalidField), "{target:?}");
        }
        for offset in [0x04, 0x20, u32::MAX] {
            let result = registers.get(PropertyGet { size: 0, offset }, &Limits::default());
            assert_eq!(result, Err(StatusCode::InvalidField));
        }
    }
}
