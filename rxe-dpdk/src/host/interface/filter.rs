//! The multicast frames that the interface accepts.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use rxe_proto::wire::MacAddr;
use rxe_proto::wire::net::ethertype;

use super::link::EthFrame;
use crate::host::multicast::ALL_HOSTS;
use rxe_adapter::multicast::{IPV4_GROUP_OUI, group_macs, multicast_mac_v4};

/// The groups that services joined, and the MAC addresses that follow from them.
pub(in crate::host) struct GroupFilter {
    /// MAC addresses of the groups that our own addresses need.
    own: Vec<MacAddr>,
    joined: BTreeSet<IpAddr>,
    /// Where listeners report to, once reports are watched.
    watched: Option<Vec<MacAddr>>,
    macs: Vec<MacAddr>,
}

impl GroupFilter {
    /// A filter that accepts `own`.
    pub(super) fn new(own: Vec<MacAddr>) -> GroupFilter {
        let mut filter = GroupFilter { own, joined: BTreeSet::new(), watched: None, macs: Vec::new() };
        filter.update();
        filter
    }

    /// Replaces the MAC addresses of the groups that our own addresses need.
    pub(super) fn set_own(&mut self, own: Vec<MacAddr>) {
        self.own = own;
        self.update();
    }

    /// All MAC addresses that the port must accept, sorted.
    pub(super) fn macs(&self) -> &[MacAddr] {
        &self.macs
    }

    /// Whether a frame to a group passes.
    pub(super) fn accepts(&self, eth: &EthFrame<'_>) -> bool {
        // Reports of IGMP versions 1 and 2 go to the group that they are about, which may be any.
        let report =
            self.watched.is_some() && eth.ethertype == ethertype::IPV4 && eth.dst.0.starts_with(&IPV4_GROUP_OUI);
        report || self.macs.contains(&eth.dst)
    }

    pub(super) fn contains(&self, group: IpAddr) -> bool {
        self.joined.contains(&group)
    }

    /// Returns whether the group is new.
    pub(super) fn join(&mut self, group: IpAddr) -> bool {
        let new = group.is_multicast() && self.joined.insert(group);
        self.update();
        new
    }

    /// Returns whether the group was joined.
    pub(super) fn leave(&mut self, group: IpAddr) -> bool {
        let known = self.joined.remove(&group);
        self.update();
        known
    }

    /// Accepts reports about IPv4 groups from now on, also those sent to `groups`.
    pub(super) fn watch_reports(&mut self, groups: &[Ipv4Addr]) {
        self.watched = Some(groups.iter().map(|group| multicast_mac_v4(*group)).collect());
        self.update();
    }

    fn update(&mut self) {
        self.macs.clone_from(&self.own);
        self.macs.extend(self.joined.iter().copied().flat_map(group_macs));
        // General queries go there.
        if self.joined.iter().any(IpAddr::is_ipv4) {
            self.macs.push(multicast_mac_v4(ALL_HOSTS));
        }
        self.macs.extend(self.watched.iter().flatten());
        self.macs.sort_by_key(|mac| mac.0);
        self.macs.dedup();
    }
}
