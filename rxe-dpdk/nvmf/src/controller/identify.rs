//! Identify.

use zerocopy::IntoBytes;

use super::admin::{AdminData, Command, Context, Outcome};
use super::keep_alive::GRANULARITY_MS;
use crate::subsystem::{MAX_NSID, Namespace, derived_serial};
use crate::wire::identify::{
    Cns, ControllerType, DescriptorList, IDENTIFY_LEN, IdentifyController, IdentifyFields, IdentifyNamespace,
    NamespaceDescriptor, SglSupport, active_list, ascii_field,
};
use crate::wire::{CQE_LEN, EventMask, NSID_ALL, Nqn, SQE_LEN, StatusCode, VERSION_1_3};

/// CMIC and NMIC: several ports, several controllers. Lets a host connect more than once.
const MULTI_PATH: u8 = 0b11;
/// CTRATT: host identifiers of 128 bits.
const HOST_ID_128: u32 = 1;
/// ACL: concurrent Abort commands, minus 1.
const ABORT_LIMIT: u8 = 3;
/// FRMW: one slot, read-only.
const FIRMWARE_SLOTS: u8 = 0b11;
/// LPA: effects log.
const EFFECTS_LOG: u8 = 1 << 1;
/// LPA: offsets and long lengths.
const EXTENDED_LOG_DATA: u8 = 1 << 2;
/// SQES and CQES: exactly 64 and 16 bytes.
const ENTRY_SIZES: (u8, u8) = (0x66, 0x44);
/// NSFEAT: preferred sizes are valid.
const PREFERRED_SIZES: u8 = 1 << 4;
/// DLFEAT: deallocated blocks read as zeroes, and Write Zeroes may deallocate.
const READS_ZEROES: u8 = 1 | 1 << 3;
/// Preferred granularity of writes and deallocations in bytes.
const PAGE: u32 = 4096;
/// Power state 0: 25 W in units of 10 mW.
const MAX_POWER: u16 = 2500;
/// Model number of the discovery subsystem.
const DISCOVERY_MODEL: &str = "rxe-target discovery";

impl Context<'_> {
    pub(super) fn identify(&mut self, command: Command<'_>) -> Result<Outcome, StatusCode> {
        let to = command.buffer(IDENTIFY_LEN as u64)?;
        let IdentifyFields { cns, nsid, command_set } = IdentifyFields::parse(command.sqe);
        let cns = Cns::from_code(cns).ok_or(StatusCode::InvalidField)?;
        if self.controller.is_discovery() && cns != Cns::Controller {
            return Err(StatusCode::InvalidField);
        }
        let bytes = match cns {
            Cns::Controller => self.identify_controller().as_bytes().to_vec(),
            Cns::Namespace => self.identify_namespace(nsid)?.as_bytes().to_vec(),
            Cns::ActiveNamespaces => self.active_namespaces(nsid)?.to_vec(),
            Cns::Descriptors => self.descriptors(nsid)?.to_vec(),
            // All limits are 0: those of the controller apply.
            Cns::CommandSetController if command_set == 0 => vec![0; IDENTIFY_LEN],
            Cns::CommandSetController => return Err(StatusCode::InvalidField),
        };
        Ok(Outcome::data(AdminData { bytes, to }))
    }

    fn identify_controller(&self) -> IdentifyController {
        let limits = &self.config.limits;
        let mut data = IdentifyController::zeroed();
        data.firmware = ascii_field(&self.config.firmware);
        data.max_transfer = limits.max_transfer_shift.min(11);
        data.controller_id.set(self.controller.id.get());
        data.version.set(VERSION_1_3);
        data.attributes.set(HOST_ID_128);
        data.event_request_limit = limits.event_requests.clamp(1, 256).wrapping_sub(1) as u8;
        data.keep_alive_granularity.set((GRANULARITY_MS / 100) as u16);
        data.max_commands.set(limits.queue_size);
        data.sgl_support.set(self.sgl_support().bits());
        data.subsystem_nqn = self.controller.subsystem.to_field();
        data.response_capsule.set((CQE_LEN / 16) as u32);
        data.max_descriptors = 1;
        match self.subsystems.get(&self.controller.subsystem) {
            Some(state) => {
                data.serial = ascii_field(&state.config.serial);
                data.model = ascii_field(&state.config.model);
                data.controller_type = ControllerType::Io as u8;
                data.multi_path = MULTI_PATH;
                data.events.set(EventMask::NAMESPACE.bits());
                data.abort_limit = ABORT_LIMIT;
                data.log_attributes = EFFECTS_LOG | EXTENDED_LOG_DATA;
                data.error_log_entries = limits.error_entries.clamp(1, 256).wrapping_sub(1) as u8;
                data.firmware_updates = FIRMWARE_SLOTS;
                (data.sqe_sizes, data.cqe_sizes) = ENTRY_SIZES;
                data.namespaces.set(MAX_NSID);
                data.max_active_namespaces.set(MAX_NSID);
                data.optional_commands.set(self.config.commands.bits());
                data.write_cache = u8::from(self.config.write_cache);
                data.command_capsule.set((limits.capsule_len(1) / 16) as u32);
                data.max_power.set(MAX_POWER);
            }
            None => {
                data.serial = ascii_field(&derived_serial(&Nqn::discovery()));
                data.model = ascii_field(DISCOVERY_MODEL);
                data.controller_type = ControllerType::Discovery as u8;
                data.events.set(EventMask::DISCOVERY.bits());
                data.log_attributes = EXTENDED_LOG_DATA;
                data.command_capsule.set((SQE_LEN / 16) as u32);
            }
        }
        data
    }

    fn sgl_support(&self) -> SglSupport {
        let mut support = SglSupport::SUPPORTED | SglSupport::KEYED;
        if self.config.limits.capsule_data > 0 && !self.controller.is_discovery() {
            support |= SglSupport::CAPSULE_OFFSET;
        }
        support
    }

    fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        self.subsystems.get(&self.controller.subsystem)?.config.namespace(nsid)
    }

    /// A namespace that does not exist is all zero; NSID 0 and all ones name none.
    fn identify_namespace(&self, nsid: u32) -> Result<IdentifyNamespace, StatusCode> {
        if nsid == 0 || nsid == NSID_ALL {
            return Err(StatusCode::InvalidNamespace);
        }
        let mut data = IdentifyNamespace::zeroed();
        let Some(namespace) = self.namespace(nsid) else { return Ok(data) };
        for field in [&mut data.size, &mut data.capacity, &mut data.utilization] {
            field.set(namespace.blocks);
        }
        data.features = PREFERRED_SIZES;
        data.sharing = MULTI_PATH & 1;
        data.deallocate_features = if namespace.releases_blocks { READS_ZEROES } else { 0 };
        let granularity = (PAGE >> namespace.block_size.shift()) as u16 - 1;
        for field in [
            &mut data.write_granularity,
            &mut data.write_alignment,
            &mut data.deallocate_granularity,
            &mut data.deallocate_alignment,
            &mut data.optimal_write,
        ] {
            field.set(granularity);
        }
        data.attributes = u8::from(namespace.is_write_protected());
        data.nguid = namespace.nguid;
        data.eui64 = namespace.eui64.unwrap_or_default();
        data.lba_format.set(u32::from(namespace.block_size.shift()) << 16);
        Ok(data)
    }

    fn active_namespaces(&self, after: u32) -> Result<[u8; IDENTIFY_LEN], StatusCode> {
        // No NSID is above these two.
        if after >= NSID_ALL - 1 {
            return Err(StatusCode::InvalidNamespace);
        }
        let views = self.subsystems.get(&self.controller.subsystem).map(|state| state.config.views());
        Ok(active_list(views.iter().flatten().map(|view| view.nsid), after))
    }

    fn descriptors(&self, nsid: u32) -> Result<[u8; IDENTIFY_LEN], StatusCode> {
        let namespace = self.namespace(nsid).ok_or(StatusCode::InvalidNamespace)?;
        let mut list = DescriptorList::default();
        if let Some(eui64) = namespace.eui64 {
            list = list.with(NamespaceDescriptor::Eui64(eui64));
        }
        list = list.with(NamespaceDescriptor::Nguid(namespace.nguid));
        Ok(list.with(NamespaceDescriptor::Uuid(namespace.uuid.into_bytes())).into_bytes())
    }
}
