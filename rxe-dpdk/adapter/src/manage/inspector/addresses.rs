//! Addresses and routes of a running adapter.

use std::collections::HashMap;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use rxe_inspect::event::EventKind;
use rxe_inspect::report::Address;
use rxe_proto::transport::{QpState, Qpn};
use rxe_proto::wire::{Cidr, PortId};
use rxe_service::inspect::{PART, Question};

use super::{InspectError, Inspector};
use crate::addressing::Addressing;
use crate::worker::orders::{AddressingOrder, AddressingRefused, Order, PortChangedOrder};

/// How long peers have to answer when an address is removed under them.
const DISCONNECT_PATIENCE: Duration = Duration::from_millis(1500);
/// Interval between queries for the connections that are left.
const DISCONNECT_INTERVAL: Duration = Duration::from_millis(10);

/// Checks that a port may use addresses that it did not have; the error is a sentence.
pub type AddressCheck = Box<dyn Fn(PortId, &[IpAddr]) -> Result<(), String> + Send + Sync>;

/// Why addresses and routes were not changed. Each message is one sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressError {
    /// A worker does not answer. It has the order and carries it out when it goes on.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// There is no such port.
    #[error("there is no port{port}: the target has {ports} port(s), of which the first is port0")]
    NoSuchPort {
        /// The port number that was given.
        port: u16,
        /// Number of ports.
        ports: usize,
    },
    /// Clients use an address that would be gone.
    #[error(
        "{users} queue pairs and {streams} TCP streams use the address {address}: disconnect them before, or add --force, and \
         they are disconnected"
    )]
    InUse {
        /// The address, or several.
        address: String,
        /// Queue pairs.
        users: usize,
        /// TCP streams.
        streams: usize,
    },
    /// The addresses and routes cannot be used.
    #[error("{0}")]
    Refused(String),
}

impl Inspector {
    /// The addresses of all ports, the link-local ones included.
    ///
    /// # Errors
    /// [`InspectError::Stopped`], [`InspectError::NoAnswer`].
    pub fn addresses(&self) -> Result<Vec<Address>, InspectError> {
        let mut users: HashMap<(PortId, IpAddr), u64> = HashMap::new();
        self.each_path(|_, port, ip| *users.entry((port, ip)).or_default() += 1)?;
        let ports = self.0.local.all();
        let report = |port: PortId, address: Cidr| Address {
            port: port.0.into(),
            address: address.to_string(),
            users: users.get(&(port, address.ip)).copied().unwrap_or_default(),
        };
        Ok(ports.iter().flat_map(|entry| entry.cidrs().map(move |address| report(entry.local.id, address))).collect())
    }

    /// Replaces the addresses and routes of a port; its link-local address stays. Services and peers know when this returns.
    ///
    /// Without `force` an address with clients stays. With `force` they are disconnected before, those that answer within 1.5 s
    /// in the regular way.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn set_addressing(&self, port: PortId, addressing: &Addressing, force: bool) -> Result<(), AddressError> {
        let list = &self.0.local;
        let _change = list.begin_change();
        let no_such_port = || AddressError::NoSuchPort { port: port.0, ports: list.all().len() };
        let mut entry = list.get(port).ok_or_else(no_such_port)?;
        let missing_in = |others: &Addressing, ips: &Addressing| -> Vec<IpAddr> {
            let is_there = |ip: IpAddr| others.addresses.iter().any(|other| other.ip == ip);
            ips.addresses.iter().map(|address| address.ip).filter(|ip| !is_there(*ip)).collect()
        };
        let (added, gone) = (missing_in(&entry.addressing, addressing), missing_in(addressing, &entry.addressing));
        if entry.exclusive && !added.is_empty() {
            (self.0.check_address)(port, &added).map_err(AddressError::Refused)?;
        }
        let in_use = |users, streams| {
            let gone: Vec<String> = gone.iter().map(ToString::to_string).collect();
            AddressError::InUse { address: gone.join(" "), users, streams }
        };
        let users = self.users_of(port, &gone)?;
        if !users.is_empty() && !force {
            return Err(in_use(users.len(), 0));
        }
        self.disconnect_users(port, &gone, users)?;
        let order = |reply| AddressingOrder { port, addressing: addressing.clone(), force, reply };
        let changed = match self.exchange(0, |reply| self.order(0, Order::Addressing(order(reply))))? {
            Ok(changed) => changed,
            Err(AddressingRefused::InUse { streams }) => return Err(in_use(0, streams)),
            Err(refused) => return Err(AddressError::Refused(refused.to_string())),
        };
        let (local, before) = (changed.local.clone(), std::mem::take(&mut entry.addressing.addresses));
        (entry.local, entry.conflicts) = (changed.local, changed.conflicts);
        entry.addressing = addressing.clone();
        list.put(port, entry);
        self.tell(port, &before, &addressing.addresses);
        let order = |reply| PortChangedOrder { local: local.clone(), reply };
        self.exchange_all(|worker, reply| self.order(worker, Order::PortChanged(order(reply))))?;
        // Those that came while the address went.
        for qpn in self.users_of(port, &gone)? {
            self.end(qpn)?;
        }
        Ok(())
    }

    /// Sends the events of a change of addresses.
    fn tell(&self, port: PortId, before: &[Cidr], now: &[Cidr]) {
        let number = u32::from(port.0);
        for gone in before.iter().filter(|address| !now.contains(address)) {
            self.events().publish(|| EventKind::AddressRemoved { port: number, address: gone.to_string() });
        }
        for new in now.iter().filter(|address| !before.contains(address)) {
            self.events().publish(|| EventKind::AddressAdded { port: number, address: new.to_string() });
        }
    }

    /// Disconnects queue pairs, and waits until they are gone.
    fn disconnect_users(&self, port: PortId, ips: &[IpAddr], mut users: Vec<Qpn>) -> Result<(), InspectError> {
        let until = Instant::now() + DISCONNECT_PATIENCE;
        users.iter().try_for_each(|qpn| self.end(*qpn))?;
        while !users.is_empty() && Instant::now() < until {
            thread::sleep(DISCONNECT_INTERVAL);
            users = self.users_of(port, ips)?;
        }
        Ok(())
    }

    /// Ends a queue pair, which may be gone already.
    fn end(&self, qpn: Qpn) -> Result<(), InspectError> {
        match self.disconnect(qpn.get()) {
            Err(InspectError::NoSuchQp(_)) => Ok(()),
            other => other,
        }
    }

    /// The queue pairs that use one of these addresses of a port.
    fn users_of(&self, port: PortId, ips: &[IpAddr]) -> Result<Vec<Qpn>, InspectError> {
        let mut users = Vec::new();
        if !ips.is_empty() {
            self.each_path(|qpn, of, ip| {
                if of == port && ips.contains(&ip) {
                    users.push(qpn);
                }
            })?;
        }
        Ok(users)
    }

    /// Calls `visit` with every queue pair that has a peer, its port and its own address.
    fn each_path(&self, mut visit: impl FnMut(Qpn, PortId, IpAddr)) -> Result<(), InspectError> {
        for worker in 0..self.workers() {
            let mut from = 0;
            loop {
                let part = self.ask(worker, |reply| Question::Qps { from, reply })?;
                for entry in part.items {
                    if let Some(path) = entry.info.path
                        && !matches!(entry.info.state, QpState::Reset | QpState::Error)
                    {
                        visit(entry.info.qpn, path.port, path.src.ip());
                    }
                }
                if !part.more {
                    break;
                }
                from += PART;
            }
        }
        Ok(())
    }
}
