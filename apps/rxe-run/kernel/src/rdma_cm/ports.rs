//! Which ids have which ports.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use rand_core::Rng;
use rxe_proto::wire::cm::PortSpace;

use super::address::{self, is_any};
use super::id::{Id, State};
use super::table::Table;
use crate::local::Local;

/// Ports that an id gets if it does not ask for one: Linux's default range.
const EPHEMERAL: RangeInclusive<u16> = 32768..=60999;

/// The claim to a port, which lasts until it is dropped; `None` where no other process can have the address.
pub type ClaimResult = Result<Option<OwnedFd>, Errno>;

/// A port in a port space.
type Key = (u16, u16);

/// The ids of each port, the oldest first.
#[derive(Debug)]
pub struct Ports {
    owners: BTreeMap<Key, Vec<u32>>,
    /// Ports that no other process at the address can have while this one has them.
    claimed: BTreeMap<Key, OwnedFd>,
    ephemeral: RangeInclusive<u16>,
    /// The last ephemeral port, which is not assigned twice in a row.
    last: u16,
}

impl Default for Ports {
    fn default() -> Ports {
        Ports::new(EPHEMERAL)
    }
}

/// Result of a search for a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listener {
    /// The listener for the address.
    Found(u32),
    /// The port has listeners for other addresses only.
    OtherAddress,
    None,
}

impl Ports {
    /// Ports without owners, with a range of ephemeral ones.
    pub fn new(ephemeral: RangeInclusive<u16>) -> Ports {
        Ports { owners: BTreeMap::new(), claimed: BTreeMap::new(), ephemeral, last: 0 }
    }

    /// Gives an id the port of its source address, or an ephemeral port for port 0, and returns the port.
    ///
    /// # Errors
    /// `EADDRINUSE` or `EADDRNOTAVAIL`.
    pub fn assign(&mut self, ids: &Table<Id>, local: &Local, handle: u32, rng: &mut impl Rng) -> Result<u16, Errno> {
        let id = ids.get(handle).ok_or(Errno::ENOENT)?;
        let port = match address::port(id.source) {
            0 => self.free_port(ids, local, (handle, id), rng)?,
            port => {
                self.check(ids, local, handle, id.reuse_address)?;
                port
            }
        };
        self.owners.entry((id.space as u16, port)).or_default().push(handle);
        Ok(port)
    }

    /// Whether no port is in use.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Takes the port from an id.
    pub fn release(&mut self, id: &Id, handle: u32) {
        let key = (id.space as u16, address::port(id.source));
        if let Some(owners) = self.owners.get_mut(&key) {
            owners.retain(|&owner| owner != handle);
            if owners.is_empty() {
                self.owners.remove(&key);
                self.claimed.remove(&key);
            }
        }
    }

    /// Takes the port of an id for this process alone, of those that share the address.
    ///
    /// # Errors
    /// `EADDRINUSE`: another one has it.
    pub fn claim(&mut self, id: &Id, claim: &dyn Fn(PortSpace, u16) -> ClaimResult) -> Result<(), Errno> {
        let key = (id.space as u16, address::port(id.source));
        if !self.claimed.contains_key(&key)
            && let Some(claim) = claim(id.space, key.1)?
        {
            self.claimed.insert(key, claim);
        }
        Ok(())
    }

    /// Whether an id may have the port of its source address beside those that have it already. With `reuse`, ids that allow it
    /// share an address.
    ///
    /// # Errors
    /// `EADDRINUSE` for the same address, `EADDRNOTAVAIL` if one of them has all addresses.
    pub fn check(&self, ids: &Table<Id>, local: &Local, handle: u32, reuse: bool) -> Result<(), Errno> {
        let id = ids.get(handle).ok_or(Errno::ENOENT)?;
        for other in self.others(ids, (handle, id), address::port(id.source)) {
            if reuse && other.reuse_address {
                continue;
            }
            let (Some(address), Some(taken)) = (id.source, other.source) else { continue };
            if id.family_only && other.family_only && address.is_ipv4() != taken.is_ipv4() {
                continue;
            }
            if is_any(local, address.ip()) || is_any(local, taken.ip()) {
                return Err(Errno::EADDRNOTAVAIL);
            }
            if address.ip() == taken.ip() {
                return Err(Errno::EADDRINUSE);
            }
        }
        Ok(())
    }

    /// Whether an id listens on a port.
    pub fn is_listening(&self, ids: &Table<Id>, space: PortSpace, port: u16) -> bool {
        let owners = self.owners.get(&(space as u16, port)).map_or(&[][..], Vec::as_slice);
        owners.iter().any(|&owner| ids.get(owner).is_some_and(|id| id.state == State::Listening))
    }

    /// The id that takes requests to an address. If there are several, the one that got the port last.
    pub fn listener(&self, ids: &Table<Id>, local: &Local, space: PortSpace, dest: (IpAddr, u16)) -> Listener {
        let (ip, port) = dest;
        let owners = self.owners.get(&(space as u16, port)).map_or(&[][..], Vec::as_slice);
        let mut found = Listener::None;
        for &handle in owners.iter().rev() {
            let Some(id) = ids.get(handle).filter(|id| id.state == State::Listening) else { continue };
            let Some(source) = id.source else { continue };
            let any = is_any(local, source.ip());
            if (any && (!id.family_only || source.is_ipv4() == ip.is_ipv4())) || source.ip() == ip {
                return Listener::Found(handle);
            }
            found = Listener::OtherAddress;
        }
        found
    }

    /// An unused ephemeral port; if there is none, one with which the pair of addresses and ports is unique.
    fn free_port(&mut self, ids: &Table<Id>, local: &Local, id: (u32, &Id), rng: &mut impl Rng) -> Result<u16, Errno> {
        let (low, high) = (*self.ephemeral.start(), *self.ephemeral.end());
        let count = u32::from(high - low) + 1;
        let first = rng.next_u32() % count;
        let candidates = || (0..count).map(|n| low + ((first + n) % count) as u16).filter(|&port| port != self.last);
        let space = id.1.space as u16;
        let unused = candidates().find(|&port| !self.owners.contains_key(&(space, port)));
        let port = unused.or_else(|| candidates().find(|&port| self.is_unique(ids, local, id, port)));
        self.last = port.ok_or(Errno::EADDRNOTAVAIL)?;
        Ok(self.last)
    }

    /// Whether the pair of addresses and ports that an id would have with a port is its own.
    fn is_unique(&self, ids: &Table<Id>, local: &Local, (handle, id): (u32, &Id), port: u16) -> bool {
        let any = |address: Option<SocketAddr>| address.is_none_or(|address| is_any(local, address.ip()));
        let differ =
            |a: Option<SocketAddr>, b: Option<SocketAddr>| !any(a) && !any(b) && a.map(|a| a.ip()) != b.map(|b| b.ip());
        self.others(ids, (handle, id), port).all(|other| {
            let (ours, theirs) = (address::port(id.dest), address::port(other.dest));
            (ours != 0 && theirs != 0 && ours != theirs)
                || differ(id.source, other.source)
                || differ(id.dest, other.dest)
        })
    }

    /// The other ids with a port.
    fn others<'a>(
        &'a self,
        ids: &'a Table<Id>,
        (handle, id): (u32, &Id),
        port: u16,
    ) -> impl Iterator<Item = &'a Id> + use<'a> {
        let owners = self.owners.get(&(id.space as u16, port)).map_or(&[][..], Vec::as_slice);
        owners.iter().filter(move |&&owner| owner != handle).filter_map(|&owner| ids.get(owner))
    }
}
