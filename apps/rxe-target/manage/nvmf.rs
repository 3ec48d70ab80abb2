//! Disks, their subsystems and hosts, which `rxe-ctl nvmf` lists and changes while the target runs.
//!
//! A change is made in the shared part of the service, where files are opened and memory is allocated, and then each worker is
//! called, which follows it. What a worker cannot follow is taken back.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rxe_adapter::manage::Inspector;
use rxe_inspect::nvmf::{NvmfController, NvmfHost, NvmfNamespace, NvmfRequest, NvmfScrub, NvmfShare, NvmfSubsystem};
use rxe_inspect::protocol::Reply;
use rxe_nvmf::subsystem::{AllowedHosts, ConfigError};
use rxe_nvmf::wire::Nqn;
use rxe_proto::mem::{AllocError, Allocator, Memory};
use serde_json::Value;

use super::Managed;
use crate::config::Config;
use crate::config::nvmf::{
    Backing, NamespaceConfig, NvmfConfig, SubsystemConfig, namespace_from, size_from, subsystem_from,
};
use crate::services::{NVMF, NVMF_ADMISSION, NvmfShared};

/// Blocks that a request for a scrub compares: 64 MiB or less.
const SCRUB_BLOCKS: u64 = 16 << 10;
/// How long a removal waits for the commands in progress.
const REMOVAL: Duration = Duration::from_secs(3);
/// Interval of looks at a removal.
const LOOK: Duration = Duration::from_millis(5);

/// The reply to a request.
pub fn answer(managed: &Managed, request: NvmfRequest) -> Reply {
    let Some(disks) = managed.disks.get() else {
        return Reply::Error(
            "the target does not run the service nvmf: put a [[service.nvmf.subsystem]] into its configuration file, and \
             restart it"
                .to_owned(),
        );
    };
    let mut config = managed.config.lock();
    let mut change = Change { managed, disks, config: &mut config.nvmf };
    match request {
        NvmfRequest::Subsystems => Reply::of(Ok(change.subsystems())),
        NvmfRequest::AddSubsystem { subsystem } => Reply::of(change.add_subsystem_of(subsystem)),
        NvmfRequest::RemoveSubsystem { subsystem, force } => Reply::of(change.remove_subsystem(&subsystem, force)),
        NvmfRequest::Namespaces => Reply::of(Ok(change.namespaces())),
        NvmfRequest::AddNamespace { subsystem, namespace } => Reply::of(change.add_namespace_of(&subsystem, namespace)),
        NvmfRequest::RemoveNamespace { subsystem, nsid, force } => {
            Reply::of(nqn(&subsystem).and_then(|subsystem| change.remove_namespace(&subsystem, nsid, force)))
        }
        NvmfRequest::RecoverNamespace { subsystem, nsid } => Reply::of(change.recover_namespace(&subsystem, nsid)),
        NvmfRequest::ResizeNamespace { subsystem, nsid, size } => {
            Reply::of(change.resize_namespace(&subsystem, nsid, size.as_deref()))
        }
        NvmfRequest::Hosts => Reply::of(Ok(change.hosts())),
        NvmfRequest::AddHost { subsystem, host } => Reply::of(change.add_host(&subsystem, &host)),
        NvmfRequest::RemoveHost { subsystem, host } => Reply::of(change.remove_host(&subsystem, &host)),
        NvmfRequest::Controllers => Reply::of(Ok(change.controllers())),
        NvmfRequest::Shares => Reply::of(change.shares()),
        NvmfRequest::Scrub { subsystem, nsid, from } => {
            let scrub = change.scrub_of(&subsystem, nsid, from);
            // A scrub takes a while, and changes nothing that the configuration has.
            drop(config);
            Reply::of(scrub.and_then(|scrub| scrub()))
        }
    }
}

/// What a reload has changed, and what it could not.
#[derive(Default)]
pub struct Changes {
    /// Each change, and why it was refused.
    pub done: Vec<(String, Result<(), String>)>,
    /// Changes that need a restart, as text.
    pub needs_restart: Vec<String>,
}

/// Makes subsystems, namespaces and hosts those of `wanted`.
pub fn apply(managed: &Managed, config: &mut Config, wanted: &NvmfConfig) -> Changes {
    let mut changes = Changes::default();
    let Some(disks) = managed.disks.get() else { return changes };
    let mut change = Change { managed, disks, config: &mut config.nvmf };
    let find = |config: &NvmfConfig, nqn: &Nqn| config.subsystems.iter().find(|other| other.nqn == *nqn).cloned();
    for SubsystemConfig { nqn, .. } in change.config.subsystems.clone() {
        if find(wanted, &nqn).is_none() {
            let done = change.remove_subsystem(nqn.as_str(), false);
            changes.done.push((format!("remove the subsystem {nqn}"), done));
        }
    }
    for subsystem in &wanted.subsystems {
        let nqn = &subsystem.nqn;
        let Some(old) = find(change.config, nqn) else {
            changes.done.push((format!("add the subsystem {nqn}"), change.add_subsystem(subsystem.clone())));
            continue;
        };
        if (&old.serial, &old.model) != (&subsystem.serial, &subsystem.model) {
            changes.needs_restart.push(format!("serial and model of the subsystem {nqn}"));
        }
        if old.hosts != subsystem.hosts {
            let done = change.set_hosts(nqn, subsystem.hosts.clone());
            changes.done.push((format!("set the hosts of the subsystem {nqn}"), done));
        }
        for NamespaceConfig { nsid, .. } in &old.namespaces {
            if subsystem.namespaces.iter().all(|namespace| namespace.nsid != *nsid) {
                let done = change.remove_namespace(nqn, *nsid, false);
                changes.done.push((format!("remove namespace {nsid} of {nqn}"), done));
            }
        }
        for namespace in &subsystem.namespaces {
            let nsid = namespace.nsid;
            match old.namespaces.iter().find(|other| other.nsid == nsid) {
                None => {
                    let done = change.add_namespace(nqn, namespace.clone());
                    changes.done.push((format!("add namespace {nsid} of {nqn}"), done));
                }
                Some(old) if old != namespace => {
                    changes.needs_restart.push(format!("namespace {nsid} of {nqn}: its storage stays as it is"));
                }
                Some(_) => {}
            }
        }
    }
    changes
}

/// Memory of the running adapter.
struct TargetMemory<'a>(&'a Inspector);

impl Allocator for TargetMemory<'_> {
    fn allocate(&self, len: usize) -> Result<Memory, AllocError> {
        self.0.allocate(len).map_err(|problem| {
            tracing::warn!("nvmf: {len} bytes: {problem}");
            AllocError { len }
        })
    }
}

/// A request, with what it changes.
struct Change<'a> {
    managed: &'a Managed,
    disks: Arc<NvmfShared>,
    config: &'a mut NvmfConfig,
}

impl Change<'_> {
    fn subsystems(&self) -> Vec<NvmfSubsystem> {
        let mut controllers: BTreeMap<Nqn, u64> = BTreeMap::new();
        self.disks.target().controllers().for_each(|one| *controllers.entry(one.subsystem).or_default() += 1);
        let report = |subsystem: &SubsystemConfig| NvmfSubsystem {
            nqn: subsystem.nqn.to_string(),
            serial: subsystem.serial.clone(),
            model: subsystem.model.clone(),
            any_host: subsystem.hosts == AllowedHosts::Any,
            namespaces: subsystem.namespaces.len() as u64,
            controllers: controllers.get(&subsystem.nqn).copied().unwrap_or_default(),
        };
        self.config.subsystems.iter().map(report).collect()
    }

    fn add_subsystem_of(&mut self, keys: BTreeMap<String, Value>) -> Result<(), String> {
        self.add_subsystem(subsystem_from(keys).map_err(text)?)
    }

    fn add_subsystem(&mut self, subsystem: SubsystemConfig) -> Result<(), String> {
        let nqn = subsystem.nqn.clone();
        self.disks.add_subsystem(&subsystem, &TargetMemory(&self.managed.inspector)).map_err(text)?;
        if let Err(why) = self.tell(&nqn) {
            // It was added above.
            let _ = self.disks.remove_subsystem(&nqn);
            self.finish_removal(&nqn);
            return Err(why);
        }
        tracing::info!("nvmf: the subsystem {nqn} was added");
        self.config.subsystems.push(subsystem);
        Ok(())
    }

    fn remove_subsystem(&mut self, subsystem: &str, force: bool) -> Result<(), String> {
        let nqn = nqn(subsystem)?;
        self.subsystem(&nqn)?;
        self.check_unused(&nqn, force, "its disks")?;
        self.disks.remove_subsystem(&nqn).map_err(text)?;
        self.finish_removal(&nqn);
        tracing::info!("nvmf: the subsystem {nqn} was removed");
        self.config.subsystems.retain(|other| other.nqn != nqn);
        Ok(())
    }

    /// Hosts that use a subsystem prevent the removal of `what`, unless it is forced.
    fn check_unused(&self, nqn: &Nqn, force: bool, what: &str) -> Result<(), String> {
        let users = self.disks.target().controllers().filter(|one| one.subsystem == *nqn).count();
        if users == 0 || force {
            return Ok(());
        }
        Err(format!(
            "hosts use the subsystem {nqn} with {users} controllers: disconnect them before, or add --force, and they lose {what}"
        ))
    }

    fn namespaces(&self) -> Vec<NvmfNamespace> {
        let target = self.disks.target();
        let mut all = Vec::new();
        for subsystem in target.subsystems() {
            let configs = self.config.subsystems.iter().find(|other| other.nqn == subsystem.nqn);
            for config in configs.into_iter().flat_map(|configs| &configs.namespaces) {
                let Some(namespace) = subsystem.namespace(config.nsid) else { continue };
                all.push(NvmfNamespace {
                    subsystem: subsystem.nqn.to_string(),
                    nsid: namespace.nsid,
                    size: namespace.blocks << namespace.block_size.shift(),
                    block_size: config.block_size.bytes(),
                    file: match &config.backing {
                        Backing::Ram { .. } => None,
                        Backing::File { path, .. } => Some(path.display().to_string()),
                    },
                    read_only: namespace.is_write_protected(),
                    checksums: config.checksums,
                    uuid: namespace.uuid.to_string(),
                });
            }
        }
        all
    }

    fn add_namespace_of(&mut self, subsystem: &str, keys: BTreeMap<String, Value>) -> Result<u32, String> {
        let nqn = nqn(subsystem)?;
        let namespace = namespace_from(self.subsystem(&nqn)?, keys).map_err(text)?;
        let nsid = namespace.nsid;
        self.add_namespace(&nqn, namespace).map(|()| nsid)
    }

    fn add_namespace(&mut self, nqn: &Nqn, namespace: NamespaceConfig) -> Result<(), String> {
        let nsid = namespace.nsid;
        self.disks.add_namespace(nqn, &namespace, &TargetMemory(&self.managed.inspector)).map_err(text)?;
        if let Err(why) = self.tell(nqn) {
            // It was added above.
            let _ = self.disks.remove_namespace(nqn, nsid);
            self.finish_removal(nqn);
            return Err(why);
        }
        tracing::info!("nvmf: namespace {nsid} of {nqn} was added");
        let namespaces = &mut self.subsystem(nqn)?.namespaces;
        namespaces.push(namespace);
        namespaces.sort_by_key(|namespace| namespace.nsid);
        Ok(())
    }

    fn remove_namespace(&mut self, nqn: &Nqn, nsid: u32, force: bool) -> Result<(), String> {
        self.namespace(nqn, nsid)?;
        self.check_unused(nqn, force, "the disk")?;
        self.disks.remove_namespace(nqn, nsid).map_err(text)?;
        self.finish_removal(nqn);
        tracing::info!("nvmf: namespace {nsid} of {nqn} was removed");
        self.subsystem(nqn)?.namespaces.retain(|namespace| namespace.nsid != nsid);
        Ok(())
    }

    fn resize_namespace(&mut self, subsystem: &str, nsid: u32, size: Option<&str>) -> Result<u64, String> {
        let nqn = nqn(subsystem)?;
        let size = size.map(size_from).transpose().map_err(text)?;
        if let (Some(size), Backing::File { path, .. }) = (size, &self.namespace(&nqn, nsid)?.backing) {
            extend(path, size)?;
        }
        let size = self.disks.grow(&nqn, nsid).map_err(text)?;
        self.tell(&nqn)?;
        tracing::info!("nvmf: namespace {nsid} of {nqn} has {size} bytes now");
        Ok(size)
    }

    fn recover_namespace(&mut self, subsystem: &str, nsid: u32) -> Result<(), String> {
        let nqn = nqn(subsystem)?;
        self.disks.recover(&nqn, nsid).map_err(text)?;
        self.tell(&nqn)?;
        tracing::warn!("nvmf: namespace {nsid} of {nqn} was recovered: hosts can write to it again");
        Ok(())
    }

    fn hosts(&self) -> Vec<NvmfHost> {
        let mut all = Vec::new();
        for subsystem in &self.config.subsystems {
            if let AllowedHosts::Only(hosts) = &subsystem.hosts {
                let report = |host: &Nqn| NvmfHost { subsystem: subsystem.nqn.to_string(), host: host.to_string() };
                all.extend(hosts.iter().map(report));
            }
        }
        all
    }

    fn add_host(&mut self, subsystem: &str, host: &str) -> Result<(), String> {
        let (nqn, host) = (nqn(subsystem)?, nqn(host)?);
        let AllowedHosts::Only(mut hosts) = self.subsystem(&nqn)?.hosts.clone() else {
            return Err(format!(
                "the subsystem {nqn} serves every host: to restrict it, give it 'hosts' in the configuration file, and reload"
            ));
        };
        if !hosts.insert(host.clone()) {
            return Err(format!("the subsystem {nqn} has the host {host} already"));
        }
        self.set_hosts(&nqn, AllowedHosts::Only(hosts))
    }

    fn remove_host(&mut self, subsystem: &str, host: &str) -> Result<(), String> {
        let (nqn, host) = (nqn(subsystem)?, nqn(host)?);
        let none =
            format!("the subsystem {nqn} has no host {host} in its list: rxe-ctl nvmf host list shows the hosts");
        let AllowedHosts::Only(mut hosts) = self.subsystem(&nqn)?.hosts.clone() else { return Err(none) };
        if !hosts.remove(&host) {
            return Err(none);
        }
        if hosts.is_empty() {
            return Err(format!(
                "{host} is the only host of the subsystem {nqn}, which without a list would serve every host: add another host \
                 before, or remove the subsystem"
            ));
        }
        self.set_hosts(&nqn, AllowedHosts::Only(hosts))
    }

    fn set_hosts(&mut self, nqn: &Nqn, hosts: AllowedHosts) -> Result<(), String> {
        self.disks.set_hosts(nqn, hosts.clone()).map_err(text)?;
        self.subsystem(nqn)?.hosts = hosts;
        self.tell(nqn)
    }

    fn controllers(&self) -> Vec<NvmfController> {
        let controllers: Vec<_> = self.disks.target().controllers().collect();
        let report = |one: rxe_nvmf::controller::ControllerInfo| {
            // The lower half of a key is the number of the queue pair.
            let queue_pairs: Vec<u32> = [one.admin].into_iter().chain(one.io_queues).map(|key| key.0 as u32).collect();
            let admin = queue_pairs.first().and_then(|qpn| self.managed.inspector.qp(*qpn).ok());
            NvmfController {
                id: one.id.get(),
                host: one.host.to_string(),
                subsystem: one.subsystem.to_string(),
                address: admin.and_then(|qp| qp.peer),
                queue_pairs,
                ready: one.ready,
            }
        };
        controllers.into_iter().map(report).collect()
    }

    fn shares(&self) -> Result<Vec<NvmfShare>, String> {
        let answers = self.managed.inspector.manage_service(NVMF, NVMF_ADMISSION).map_err(text)?;
        let parts = answers.iter().map(|answer| serde_json::from_str::<Vec<NvmfShare>>(answer).map_err(text));
        Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// The work of a scrub, which needs the configuration no longer.
    fn scrub_of(
        &mut self,
        subsystem: &str,
        nsid: u32,
        from: u64,
    ) -> Result<impl FnOnce() -> Result<NvmfScrub, String> + use<>, String> {
        let nqn = nqn(subsystem)?;
        if !self.namespace(&nqn, nsid)?.checksums {
            return Err(format!(
                "namespace {nsid} of {nqn} has no checksums to compare with: add it with 'checksums = true'"
            ));
        }
        let disks = Arc::clone(&self.disks);
        Ok(move || {
            let (report, next) = disks.scrub(&nqn, nsid, from, SCRUB_BLOCKS).map_err(text)?;
            let next = (!report.done).then_some(next);
            Ok(NvmfScrub { checked: report.checked, mismatches: report.mismatches, rebuilt: report.rebuilt, next })
        })
    }

    fn subsystem(&mut self, nqn: &Nqn) -> Result<&mut SubsystemConfig, String> {
        let found = self.config.subsystems.iter_mut().find(|subsystem| subsystem.nqn == *nqn);
        found.ok_or_else(|| text(ConfigError::UnknownSubsystem(nqn.clone())))
    }

    fn namespace(&mut self, nqn: &Nqn, nsid: u32) -> Result<&NamespaceConfig, String> {
        let namespaces = &self.subsystem(nqn)?.namespaces;
        let found = namespaces.iter().find(|namespace| namespace.nsid == nsid);
        found.ok_or_else(|| text(ConfigError::UnknownNamespace(nqn.clone(), nsid)))
    }

    /// Makes the workers follow a change of a subsystem.
    fn tell(&self, nqn: &Nqn) -> Result<(), String> {
        self.managed.inspector.manage_service(NVMF, nqn.as_str()).map(|_| ()).map_err(text)
    }

    /// Makes the workers follow a removal, and waits until they have closed the disks. A disk with commands that take longer is
    /// closed when they are complete.
    fn finish_removal(&self, nqn: &Nqn) {
        if let Err(why) = self.tell(nqn) {
            tracing::warn!("nvmf: after a removal from {nqn}: {why}");
        }
        let end = Instant::now() + REMOVAL;
        while self.disks.reap() > 0 {
            if Instant::now() >= end {
                return self.disks.reap_later();
            }
            thread::sleep(LOOK);
        }
    }
}

/// Extends a regular file. Devices have the size that they have.
fn extend(path: &Path, size: u64) -> Result<(), String> {
    let problem =
        |error: std::io::Error| format!("{}: it cannot be extended: {}", path.display(), super::sentence(&error));
    let metadata = std::fs::metadata(path).map_err(problem)?;
    if !metadata.is_file() || metadata.len() >= size {
        return Ok(());
    }
    OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(size)).map_err(problem)
}

fn nqn(text: &str) -> Result<Nqn, String> {
    text.parse().map_err(|error| format!("'{}' is no name of a subsystem or host: {error}", text.escape_debug()))
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
