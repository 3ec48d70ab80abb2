//! Multicast groups: members on our workers, and listeners on other hosts.

use rxe_proto::Instant;
use rxe_proto::wire::{Gid, PortId};

use super::Control;
use super::ip_host::IpHost;
use crate::messages::{GroupListener, ToWorker};
use crate::multicast::WorkerSet;
use crate::service::Listen;

impl<H: IpHost> Control<H> {
    /// A worker has its first member of a group, or lost its last one.
    pub(super) fn member_changed(&mut self, now: Instant, worker: usize, port: PortId, group: Gid, joined: bool) {
        let members = self.groups.get(port, group);
        let members = if joined { members.with(worker) } else { members.without(worker) };
        // While stopping, every group was left already.
        if self.stopping.is_none() {
            self.set_members(now, port, group, members);
        }
    }

    /// Leaves every group on the network.
    pub(super) fn leave_groups(&mut self, now: Instant) {
        let groups: Vec<(PortId, Gid)> = self.groups.groups().collect();
        for (port, group) in groups {
            self.set_members(now, port, group, WorkerSet::EMPTY);
        }
    }

    /// Sets which workers have members of a group. With the first one the port joins the group, with the last one gone it
    /// leaves. Every worker gets the new set, to dispatch the group's frames by.
    fn set_members(&mut self, now: Instant, port: PortId, group: Gid, workers: WorkerSet) {
        self.groups.set(port, group, workers);
        if let Some(own) = self.ports.get_mut(usize::from(port.0)) {
            let changed = if workers == WorkerSet::EMPTY {
                own.host.leave_group(now, group.ip())
            } else {
                own.host.join_group(now, group.ip())
            };
            if let Err(error) = changed {
                self.stats.group_filter_refused.inc();
                tracing::warn!(%group, "the port may not receive the multicast group: {error}");
            }
        }
        for worker in 0..self.mailbox.workers.len() {
            self.send(worker, ToWorker::GroupMembers { port, group, workers });
        }
    }

    /// Reports another host's change of membership to the services that listen for that, and admit the host when it joins.
    pub(super) fn report_listener(&mut self, now: Instant, listener: GroupListener) {
        let worker = listener.spread() % self.mailbox.workers.len();
        for index in 0..self.listens.len() {
            let (service, ref listen) = self.listens[index];
            if matches!(listen, Listen::GroupListeners)
                && (!listener.joined || self.refuses(now, service, listener.host.into()).is_none())
            {
                self.send(worker, ToWorker::GroupListener { service, listener });
            }
        }
    }
}
