//! Multicast groups: which ones the program wants, and which ones the port is a member of.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::rdma_cm::Action;

/// The groups of an adapter. A program is in a group by rdma_cm, or by a queue pair that it attaches.
#[derive(Default, Debug)]
pub struct Groups {
    by_rdma_cm: BTreeSet<IpAddr>,
    /// By rdma_cm and attached queue pairs.
    own: BTreeSet<IpAddr>,
    /// Of other processes that share the address.
    of_guests: BTreeSet<IpAddr>,
    wanted: BTreeSet<IpAddr>,
    joined: BTreeSet<IpAddr>,
}

impl Groups {
    /// The program joins or leaves a group by rdma_cm. [`update`](Self::update) follows.
    pub fn change(&mut self, action: Action) {
        match action {
            Action::JoinGroup(group) => self.by_rdma_cm.insert(group),
            Action::LeaveGroup(group) => self.by_rdma_cm.remove(&group),
        };
    }

    /// Finds out what is wanted, with the groups of all attached queue pairs.
    pub fn update(&mut self, attached: impl Iterator<Item = IpAddr>) {
        self.own = self.by_rdma_cm.iter().copied().chain(attached).collect();
        self.wanted = &self.own | &self.of_guests;
    }

    /// Other processes that share the address want these groups.
    pub fn set_of_guests(&mut self, groups: BTreeSet<IpAddr>) {
        self.of_guests = groups;
        self.wanted = &self.own | &self.of_guests;
    }

    /// The groups that the port is to be a member of.
    pub fn wanted(&self) -> &BTreeSet<IpAddr> {
        &self.wanted
    }

    /// The port is a member of these groups, as far as it can be.
    pub fn set_joined(&mut self, groups: BTreeSet<IpAddr>) {
        self.joined = groups;
    }

    /// Whether the port is a member of all groups that are wanted, and of no others.
    pub fn are_joined(&self) -> bool {
        self.wanted == self.joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_wanted_while_one_of_its_two_users_is_in_it() {
        let mut groups = Groups::default();
        let [a, b] = [IpAddr::from([239, 0, 0, 1]), IpAddr::from([239, 0, 0, 2])];
        groups.change(Action::JoinGroup(a));
        groups.update([a, b].into_iter());
        assert!(!groups.are_joined());
        assert_eq!(*groups.wanted(), BTreeSet::from([a, b]));
        groups.set_joined(groups.wanted().clone());
        assert!(groups.are_joined());
        groups.update([].into_iter());
        assert_eq!(*groups.wanted(), BTreeSet::from([a]));
        assert!(!groups.are_joined());
        groups.change(Action::LeaveGroup(a));
        groups.update([].into_iter());
        groups.set_joined(BTreeSet::new());
        assert!(groups.are_joined());
        groups.set_of_guests(BTreeSet::from([b]));
        groups.update([].into_iter());
        assert_eq!(*groups.wanted(), BTreeSet::from([b]));
    }
}
