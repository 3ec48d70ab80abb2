//! Get and Set Features.

use super::admin::{AdminData, Command, Context, Outcome};
use crate::wire::{EventMask, FeatureId, StatusCode};

/// Value of the queue numbers that a host must not ask for.
const RESERVED_QUEUES: u32 = 0xFFFF;
/// Flag of feature 0x81: an identifier of 128 bits.
const EXTENDED_HOST_ID: u32 = 1;
/// Length of the host's identifier in bytes.
const HOST_ID_LEN: u64 = 16;
/// Code of a feature in dword 10; the other bits select a saved or default value, or ask to save it.
const FEATURE_MASK: u32 = 0xFF;

impl Context<'_> {
    pub(super) fn set_feature(&mut self, command: Command<'_>) -> Result<Outcome, StatusCode> {
        command.no_data()?;
        let [feature, value, ..] = command.sqe.cdws();
        match self.feature(feature)? {
            FeatureId::NumberOfQueues => {
                if value & 0xFFFF == RESERVED_QUEUES || value >> 16 == RESERVED_QUEUES {
                    return Err(StatusCode::InvalidField);
                }
                Ok(Outcome::result(self.queues()))
            }
            FeatureId::AsyncEvents => {
                self.controller.events.set_mask(EventMask::from_bits_retain(value));
                Ok(Outcome::result(u64::from(value)))
            }
            FeatureId::KeepAliveTimeout => {
                self.controller.keep_alive.set_timeout(self.now, value);
                Ok(Outcome::result(0))
            }
            FeatureId::WriteCache | FeatureId::HostIdentifier => Err(StatusCode::InvalidField),
        }
    }

    pub(super) fn get_feature(&self, command: Command<'_>) -> Result<Outcome, StatusCode> {
        let [feature, value, ..] = command.sqe.cdws();
        let feature = self.feature(feature)?;
        if feature == FeatureId::HostIdentifier {
            if value & EXTENDED_HOST_ID == 0 {
                return Err(StatusCode::InvalidField);
            }
            let to = command.buffer(HOST_ID_LEN)?;
            return Ok(Outcome::data(AdminData { bytes: self.controller.host_id.to_vec(), to }));
        }
        command.no_data()?;
        Ok(Outcome::result(match feature {
            FeatureId::NumberOfQueues => self.queues(),
            FeatureId::AsyncEvents => u64::from(self.controller.events.mask().bits()),
            FeatureId::KeepAliveTimeout => u64::from(self.controller.keep_alive.timeout_ms()),
            FeatureId::WriteCache => u64::from(self.config.write_cache),
            FeatureId::HostIdentifier => 0,
        }))
    }

    /// The feature of dword 10, if this kind of controller has it.
    fn feature(&self, dword: u32) -> Result<FeatureId, StatusCode> {
        let feature = FeatureId::from_code((dword & FEATURE_MASK) as u8).ok_or(StatusCode::InvalidField)?;
        let of_discovery = matches!(feature, FeatureId::AsyncEvents | FeatureId::KeepAliveTimeout);
        if self.controller.is_discovery() && !of_discovery { Err(StatusCode::InvalidField) } else { Ok(feature) }
    }

    /// The granted queues: as many as there can be, whatever the host asks for. It uses the smaller number.
    fn queues(&self) -> u64 {
        let queues = u64::from(self.config.limits.queues_per_controller.max(1)) - 1;
        queues | queues << 16
    }
}
