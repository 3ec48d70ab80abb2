//! The hosts of a worker, by the names that they give themselves.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use rxe_nvmf::wire::Nqn;

/// A host on a worker, while it has queues there. A number is not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostNumber(u64);

#[cfg(test)]
impl HostNumber {
    /// A number for tests.
    pub fn of(number: u64) -> HostNumber {
        HostNumber(number)
    }
}

/// What tells hosts apart.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum HostName {
    /// Its address, as long as it has not sent a Connect.
    Address(IpAddr),
    /// Its NQN and host id.
    Named(Nqn, [u8; 16]),
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostName::Address(address) => address.fmt(f),
            HostName::Named(nqn, _) => nqn.fmt(f),
        }
    }
}

/// The hosts, with the number of queues of each.
#[derive(Default)]
pub struct Hosts {
    by_name: HashMap<HostName, (HostNumber, usize)>,
    next: u64,
}

impl Hosts {
    /// A queue of a host comes.
    pub fn join(&mut self, name: HostName) -> HostNumber {
        let next = &mut self.next;
        let (number, queues) = self.by_name.entry(name).or_insert_with(|| {
            *next += 1;
            (HostNumber(*next), 0)
        });
        *queues += 1;
        *number
    }

    /// A queue of a host goes.
    pub fn leave(&mut self, number: HostNumber) {
        self.by_name.retain(|_, (other, queues)| {
            if *other == number {
                *queues -= 1;
            }
            *queues > 0
        });
    }

    /// The name of a host; `None` if it has no queues any more.
    pub fn name(&self, number: HostNumber) -> Option<&HostName> {
        self.by_name.iter().find(|(_, (other, _))| *other == number).map(|(name, _)| name)
    }

    /// Whether no host has queues.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}
