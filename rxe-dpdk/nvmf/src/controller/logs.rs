//! Get Log Page.

use zerocopy::IntoBytes;

use super::admin::{AdminData, Command, Context, Outcome};
use crate::wire::identify::OptionalCommands;
use crate::wire::log::{
    DiscoveryEntry, DiscoveryHeader, EffectsLog, LogFields, LogId, SmartLog, SubsystemType, changed_namespaces_log,
    firmware_log,
};
use crate::wire::{AdminOpcode, AsyncEvent, IoOpcode, NSID_ALL, Nqn, StatusCode};

impl Context<'_> {
    pub(super) fn get_log(&mut self, command: Command<'_>) -> Result<Outcome, StatusCode> {
        let fields = LogFields::parse(command.sqe);
        let log = self.supported_log(fields.log)?;
        let to = command.buffer(fields.len)?;
        if to.len > self.config.limits.max_transfer() || !fields.offset.is_multiple_of(4) {
            return Err(StatusCode::InvalidField);
        }
        let page = match log {
            LogId::Error => self.controller.errors.page(),
            LogId::Smart => self.smart(fields.nsid)?.as_bytes().to_vec(),
            LogId::Firmware => firmware_log(&self.config.firmware).to_vec(),
            LogId::ChangedNamespaces => {
                changed_namespaces_log(self.controller.changed_namespaces.iter().copied()).to_vec()
            }
            LogId::Effects => self.effects(),
            LogId::Discovery => self.discovery(),
        };
        let offset = usize::try_from(fields.offset).map_err(|_| StatusCode::InvalidField)?;
        let rest = page.get(offset..).ok_or(StatusCode::InvalidField)?;
        let mut bytes = vec![0; to.len as usize];
        let len = rest.len().min(bytes.len());
        bytes[..len].copy_from_slice(&rest[..len]);
        if !fields.retain_event {
            self.log_read(log);
        }
        Ok(Outcome::data(AdminData { bytes, to }))
    }

    /// The page of a code, if this kind of controller has it.
    fn supported_log(&self, code: u8) -> Result<LogId, StatusCode> {
        let log = LogId::from_code(code).ok_or(StatusCode::InvalidLogPage)?;
        let of_discovery = log == LogId::Discovery;
        if of_discovery == self.controller.is_discovery() { Ok(log) } else { Err(StatusCode::InvalidLogPage) }
    }

    /// The host read a log without retaining its event.
    fn log_read(&mut self, log: LogId) {
        match log {
            LogId::ChangedNamespaces => {
                self.controller.changed_namespaces.clear();
                self.controller.events.log_read(AsyncEvent::NamespaceChanged);
            }
            LogId::Discovery => self.controller.events.log_read(AsyncEvent::DiscoveryChanged),
            LogId::Smart => self.controller.events.log_read(AsyncEvent::ReliabilityDegraded),
            LogId::Error | LogId::Firmware | LogId::Effects => {}
        }
    }

    /// There is one log for the whole controller, none per namespace.
    fn smart(&self, nsid: u32) -> Result<SmartLog, StatusCode> {
        if nsid != NSID_ALL && nsid != 0 {
            return Err(StatusCode::InvalidField);
        }
        let state = self.subsystems.get(&self.controller.subsystem);
        let counts = state.map(|state| state.counts).unwrap_or_default();
        let mut namespaces = state.into_iter().flat_map(|state| &state.config.namespaces);
        let log = match (
            namespaces.clone().any(|namespace| namespace.failed),
            namespaces.all(|namespace| namespace.failed),
        ) {
            (false, _) => SmartLog::healthy(),
            (true, false) => SmartLog::healthy().degraded(),
            (true, true) => SmartLog::healthy().degraded().read_only(),
        };
        Ok(log
            .with_traffic((counts.bytes_read, counts.reads), (counts.bytes_written, counts.writes))
            .with_errors(counts.media_errors, self.controller.errors.count()))
    }

    fn effects(&self) -> Vec<u8> {
        let optional = self.config.commands;
        let io = IoOpcode::ALL.iter().copied().filter(|opcode| match opcode {
            IoOpcode::Flush | IoOpcode::Write | IoOpcode::Read => true,
            IoOpcode::Compare => optional.contains(OptionalCommands::COMPARE),
            IoOpcode::WriteZeroes => optional.contains(OptionalCommands::WRITE_ZEROES),
            IoOpcode::DatasetManagement => optional.contains(OptionalCommands::DATASET_MANAGEMENT),
            IoOpcode::Verify => optional.contains(OptionalCommands::VERIFY),
        });
        EffectsLog::new(AdminOpcode::ALL.iter().copied(), io).into_bytes().to_vec()
    }

    /// The discovery subsystem and the subsystems that the host may use, at each portal.
    fn discovery(&self) -> Vec<u8> {
        let host = &self.controller.host;
        let mut names = vec![(SubsystemType::CurrentDiscovery, Nqn::discovery())];
        let allowed = self.subsystems.values().filter(|state| state.config.hosts.contains(host));
        names.extend(allowed.map(|state| (SubsystemType::Nvm, state.config.nqn.clone())));
        let records = (names.len() * self.config.portals.len()) as u64;
        let mut log = DiscoveryHeader::new(self.generation, records).as_bytes().to_vec();
        for (port_id, portal) in (1..).zip(&self.config.portals) {
            for (kind, nqn) in &names {
                let queue = self.config.limits.admin_queue_size;
                let entry = DiscoveryEntry::new(*kind, nqn, portal.address, portal.port, port_id, queue);
                log.extend(entry.as_bytes());
            }
        }
        log
    }
}
