//! Multicast groups: which queue pairs get a copy of a datagram to a group.

use std::collections::BTreeMap;

use crate::wire::{Gid, PortId};

use super::Qpn;

/// Why a queue pair could not be attached to a multicast group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MulticastError {
    /// There is no such queue pair here.
    #[error("no such queue pair: {0}")]
    Unknown(Qpn),
    /// Only datagram queue pairs can be attached.
    #[error("not a datagram queue pair")]
    NotDatagram,
    /// The queue pair is in RESET and has no port yet.
    #[error("the queue pair has no port yet")]
    NoPort,
    /// The address is not a multicast address.
    #[error("not a multicast address")]
    NotMulticast,
    /// The engine joins no more groups.
    #[error("no more multicast groups: the limit is {0}")]
    TooManyGroups(u32),
    /// The group has as many queue pairs as it can.
    #[error("no more queue pairs in this multicast group: the limit is {0}")]
    TooManyQueuePairs(u32),
    /// The queue pair is not attached to the group.
    #[error("the queue pair is not attached to the group")]
    NotAttached,
}

/// The groups of one engine.
#[derive(Debug, Default)]
pub(super) struct MulticastTable {
    groups: BTreeMap<(PortId, Gid), Vec<Qpn>>,
}

impl MulticastTable {
    /// Adds `qpn` to a group; no change if it is in already.
    pub(super) fn attach(
        &mut self,
        port: PortId,
        group: Gid,
        qpn: Qpn,
        max_groups: u32,
        max_qps: u32,
    ) -> Result<(), MulticastError> {
        if !self.groups.contains_key(&(port, group)) && self.groups.len() >= max_groups as usize {
            return Err(MulticastError::TooManyGroups(max_groups));
        }
        let members = self.groups.entry((port, group)).or_default();
        if members.contains(&qpn) {
            return Ok(());
        }
        if members.len() >= max_qps as usize {
            return Err(MulticastError::TooManyQueuePairs(max_qps));
        }
        members.push(qpn);
        Ok(())
    }

    pub(super) fn detach(&mut self, port: PortId, group: Gid, qpn: Qpn) -> Result<(), MulticastError> {
        let members = self.groups.get_mut(&(port, group)).ok_or(MulticastError::NotAttached)?;
        let at = members.iter().position(|&member| member == qpn).ok_or(MulticastError::NotAttached)?;
        members.remove(at);
        // compliance.md [UD-MULTICAST-ATTACH]: Only datagram queue pairs with a port can be attached, to multicast
        // addresses only.
        if members.is_empty() {
            self.groups.remove(&(port, group));
        }
        Ok(())
    }

    /// Removes a destroyed queue pair from all groups.
    pub(super) fn remove(&mut self, qpn: Qpn) {
        self.groups.retain(|_, members| {
            members.retain(|&member| member != qpn);
            !members.is_empty()
        });
    }

    /// The queue pairs of a group.
    #[inline]
    pub(super) fn members(&self, port: PortId, group: Gid) -> &[Qpn] {
        self.groups.get(&(port, group)).map_or(&[], Vec::as_slice)
    }

    /// Every group.
    pub(super) fn groups(&self) -> impl Iterator<Item = (PortId, Gid)> + '_ {
        self.groups.keys().copied()
    }
}
