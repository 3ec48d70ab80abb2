//! Changes of the configuration while hosts are connected.

use super::event::{Event, TeardownReason};
use super::state::{Controller, SubsystemState};
use super::{ControllerId, Portal, QueueKey, Target};
use crate::subsystem::{AllowedHosts, ConfigError, Namespace, NamespaceView, Subsystem};
use crate::wire::{AsyncEvent, Nqn, Status};

impl Target {
    /// The subsystems in the order of their names.
    pub fn subsystems(&self) -> impl Iterator<Item = &Subsystem> {
        self.subsystems.values().map(|state| &state.config)
    }

    /// What workers need of the namespaces of a subsystem, in ascending order of the NSID; empty if there is no such
    /// subsystem.
    #[must_use]
    pub fn namespace_views(&self, subsystem: &Nqn) -> Vec<NamespaceView> {
        self.subsystems.get(subsystem).map(|state| state.config.views()).unwrap_or_default()
    }

    /// Replaces the addresses in the discovery log.
    pub fn set_portals(&mut self, portals: Vec<Portal>) {
        if self.config.portals != portals {
            self.config.portals = portals;
            self.discovery_changed();
        }
    }

    /// Adds a subsystem.
    ///
    /// # Errors
    /// It is not valid, or its name or an identifier of a namespace is in use.
    pub fn add_subsystem(&mut self, subsystem: Subsystem) -> Result<(), ConfigError> {
        subsystem.validate()?;
        if self.subsystems.contains_key(&subsystem.nqn) {
            return Err(ConfigError::DuplicateSubsystem(subsystem.nqn));
        }
        for namespace in &subsystem.namespaces {
            self.check_unique(&subsystem, namespace)?;
        }
        let state = SubsystemState { config: subsystem, counts: Default::default() };
        self.subsystems.insert(state.config.nqn.clone(), state);
        self.discovery_changed();
        Ok(())
    }

    /// Removes a subsystem; its controllers are torn down.
    ///
    /// # Errors
    /// [`ConfigError::UnknownSubsystem`].
    pub fn remove_subsystem(&mut self, nqn: &Nqn) -> Result<(), ConfigError> {
        self.subsystems.remove(nqn).ok_or_else(|| ConfigError::UnknownSubsystem(nqn.clone()))?;
        self.tear_down_all(TeardownReason::SubsystemRemoved, |controller| controller.subsystem == *nqn);
        self.discovery_changed();
        Ok(())
    }

    /// Adds a namespace; its hosts are notified.
    ///
    /// # Errors
    /// There is no such subsystem, or the namespace is not valid, or its NSID or an identifier is in use.
    pub fn add_namespace(&mut self, nqn: &Nqn, namespace: Namespace) -> Result<(), ConfigError> {
        let subsystem = self.subsystem(nqn)?;
        let nsid = namespace.nsid;
        let mut changed = subsystem.clone();
        changed.namespaces.push(namespace.clone());
        changed.validate()?;
        self.check_unique(&changed, &namespace)?;
        self.subsystem_mut(nqn)?.namespaces.push(namespace);
        self.namespace_changed(nqn, nsid);
        Ok(())
    }

    /// Removes a namespace; its hosts are notified.
    ///
    /// # Errors
    /// There is no such subsystem or namespace.
    pub fn remove_namespace(&mut self, nqn: &Nqn, nsid: u32) -> Result<(), ConfigError> {
        let namespaces = &mut self.subsystem_mut(nqn)?.namespaces;
        let at = namespaces.iter().position(|namespace| namespace.nsid == nsid);
        namespaces.remove(at.ok_or_else(|| ConfigError::UnknownNamespace(nqn.clone(), nsid))?);
        self.namespace_changed(nqn, nsid);
        Ok(())
    }

    /// Changes the size of a namespace in blocks; its hosts are notified. The embedder grows the backend before, and
    /// shrinks it after the workers have the new size.
    ///
    /// # Errors
    /// There is no such subsystem or namespace, or the size is not valid.
    pub fn resize_namespace(&mut self, nqn: &Nqn, nsid: u32, blocks: u64) -> Result<(), ConfigError> {
        let subsystem = self.subsystem_mut(nqn)?;
        let namespace = subsystem.namespaces.iter_mut().find(|namespace| namespace.nsid == nsid);
        let namespace = namespace.ok_or_else(|| ConfigError::UnknownNamespace(nqn.clone(), nsid))?;
        namespace.check_size(blocks)?;
        if namespace.blocks != blocks {
            namespace.blocks = blocks;
            self.namespace_changed(nqn, nsid);
        }
        Ok(())
    }

    /// Notes that a flush of a namespace failed, or that it was recovered: its hosts are notified that it is read-only, or is so
    /// no more, and of the first also as a health event. Returns whether that is new.
    ///
    /// # Errors
    /// There is no such subsystem or namespace.
    pub fn set_failed(&mut self, nqn: &Nqn, nsid: u32, failed: bool) -> Result<bool, ConfigError> {
        let subsystem = self.subsystem_mut(nqn)?;
        let namespace = subsystem.namespaces.iter_mut().find(|namespace| namespace.nsid == nsid);
        let namespace = namespace.ok_or_else(|| ConfigError::UnknownNamespace(nqn.clone(), nsid))?;
        let is_new = std::mem::replace(&mut namespace.failed, failed) != failed;
        if is_new {
            self.namespace_changed(nqn, nsid);
        }
        if is_new && failed {
            for controller in self.controllers.values_mut().filter(|controller| controller.subsystem == *nqn) {
                self.events.extend(raise(controller, AsyncEvent::ReliabilityDegraded));
            }
        }
        Ok(is_new)
    }

    /// Allows a host to use a subsystem that only listed hosts may use; no change if every host may.
    ///
    /// # Errors
    /// [`ConfigError::UnknownSubsystem`].
    pub fn add_host(&mut self, nqn: &Nqn, host: Nqn) -> Result<(), ConfigError> {
        if let AllowedHosts::Only(hosts) = &mut self.subsystem_mut(nqn)?.hosts
            && hosts.insert(host)
        {
            self.discovery_changed();
        }
        Ok(())
    }

    /// Removes a host from the list of a subsystem; its controllers are torn down. No change if every host may use it.
    ///
    /// # Errors
    /// [`ConfigError::UnknownSubsystem`].
    pub fn remove_host(&mut self, nqn: &Nqn, host: &Nqn) -> Result<(), ConfigError> {
        if let AllowedHosts::Only(hosts) = &mut self.subsystem_mut(nqn)?.hosts
            && hosts.remove(host)
        {
            self.tear_down_all(TeardownReason::HostRemoved, |controller| {
                controller.subsystem == *nqn && controller.host == *host
            });
            self.discovery_changed();
        }
        Ok(())
    }

    /// Replaces the hosts that may use a subsystem; controllers of other hosts are torn down.
    ///
    /// # Errors
    /// [`ConfigError::UnknownSubsystem`].
    pub fn set_hosts(&mut self, nqn: &Nqn, hosts: AllowedHosts) -> Result<(), ConfigError> {
        let subsystem = self.subsystem_mut(nqn)?;
        if subsystem.hosts != hosts {
            subsystem.hosts = hosts.clone();
            self.tear_down_all(TeardownReason::HostRemoved, |controller| {
                controller.subsystem == *nqn && !hosts.contains(&controller.host)
            });
            self.discovery_changed();
        }
        Ok(())
    }

    fn subsystem(&self, nqn: &Nqn) -> Result<&Subsystem, ConfigError> {
        let state = self.subsystems.get(nqn).ok_or_else(|| ConfigError::UnknownSubsystem(nqn.clone()))?;
        Ok(&state.config)
    }

    fn subsystem_mut(&mut self, nqn: &Nqn) -> Result<&mut Subsystem, ConfigError> {
        let state = self.subsystems.get_mut(nqn).ok_or_else(|| ConfigError::UnknownSubsystem(nqn.clone()))?;
        Ok(&mut state.config)
    }

    /// Checks a namespace of `subsystem` against those of all other subsystems.
    fn check_unique(&self, subsystem: &Subsystem, namespace: &Namespace) -> Result<(), ConfigError> {
        for other in self.subsystems().filter(|other| other.nqn != subsystem.nqn) {
            for existing in &other.namespaces {
                subsystem.check_pair(namespace, &other.nqn, existing)?;
            }
        }
        Ok(())
    }

    fn tear_down_all(&mut self, reason: TeardownReason, select: impl Fn(&Controller) -> bool) {
        let selected = self.controllers.values().filter(|controller| select(controller));
        let ids: Vec<ControllerId> = selected.map(|controller| controller.id).collect();
        for id in ids {
            self.tear_down(id, reason);
        }
    }

    fn namespace_changed(&mut self, nqn: &Nqn, nsid: u32) {
        let controllers = self.controllers.values().filter(|controller| controller.subsystem == *nqn);
        let queues: Vec<QueueKey> = controllers.flat_map(|controller| controller.io_queues.values().copied()).collect();
        self.events.push_back(Event::NamespacesChanged { subsystem: nqn.clone(), queues });
        for controller in self.controllers.values_mut().filter(|controller| controller.subsystem == *nqn) {
            if controller.registers.is_ready() {
                controller.changed_namespaces.insert(nsid);
                self.events.extend(raise(controller, AsyncEvent::NamespaceChanged));
            }
        }
    }

    /// The discovery log of some host changed.
    fn discovery_changed(&mut self) {
        self.generation += 1;
        for controller in self.controllers.values_mut().filter(|controller| controller.is_discovery()) {
            self.events.extend(raise(controller, AsyncEvent::DiscoveryChanged));
        }
    }
}

/// Reports an event to a host that enabled it.
fn raise(controller: &mut Controller, event: AsyncEvent) -> Option<Event> {
    let command_id = controller.events.raise(event)?;
    let response = controller.admin.respond(command_id, Status::SUCCESS, event.result(), None);
    Some(Event::Respond { queue: controller.admin.key, response })
}
