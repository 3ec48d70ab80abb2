//! The account of one worker: what its clients hold of each resource, and how much of it one of them may hold.
//!
//! A resource has a budget: bytes of memory, queue pairs, address handles. A service opens its budgets when it starts. What a
//! client takes is charged where it is taken, and the [`Charge`] is released where the object is given back. There is no other
//! count of it. Three shares of a budget, in eighths, bound who may hold how much:
//!
//! * one address: `address`;
//! * all addresses of a routed IPv6 /64, which one host can use at will: `network`. A prefix of our own has no such share;
//! * all addresses together that have not proved to exist: `unproven`. These are not charged to the share of the address: who
//!   forges it would use up the share of its owner.
//!
//! An address or network that holds nothing gets its first object whatever its share, so that a budget smaller than one object
//! still serves one client at a time.
//!
//! A budget may be a part of another one, which is charged too. The tables have an entry for each address that holds something,
//! so they are never longer than the list of the objects themselves.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use crate::local_port::LocalPort;

/// A budget of a [`Ledger`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BudgetId(usize);

/// Shares of a budget, in eighths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shares {
    /// Of one address.
    pub address: u8,
    /// Of all addresses of a routed IPv6 /64.
    pub network: u8,
    /// Of all addresses that have not proved to exist.
    pub unproven: u8,
}

impl Shares {
    /// Half for an address, seven eighths for a network, a quarter for what is not proved.
    pub const HALF: Shares = Shares { address: 4, network: 7, unproven: 2 };
}

/// Whether a client has proved to receive what is sent to its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It has answered: an RTU, a packet in sequence, a TCP handshake.
    Proven,
    /// Its address may be forged.
    Unproven,
}

/// Why a charge is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The whole budget, this large, is used.
    Budget(usize),
    /// Clients of its address hold their share, this large.
    Address(usize),
    /// Clients of its IPv6 /64 hold their share, this large.
    Network(usize),
    /// Clients that have not proved their addresses hold their share, this large.
    Unproven(usize),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Budget(limit) => write!(f, "clients use all of {limit}"),
            Refusal::Address(share) => write!(f, "clients of its address use their share of {share}"),
            Refusal::Network(share) => write!(f, "clients of its IPv6 /64 use their share of {share}"),
            Refusal::Unproven(share) => write!(f, "clients that have not answered yet use their share of {share}"),
        }
    }
}

/// What a client holds of a budget. It is given back by [`Ledger::release`].
#[must_use = "a charge that is lost is never given back"]
#[derive(Debug)]
pub struct Charge {
    budget: BudgetId,
    owner: IpAddr,
    amount: usize,
    standing: Standing,
}

impl Charge {
    /// The client's address.
    pub fn owner(&self) -> IpAddr {
        self.owner
    }

    /// How much it holds.
    pub fn amount(&self) -> usize {
        self.amount
    }
}

/// What one address holds of a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holding {
    /// Name of the budget.
    pub budget: &'static str,
    /// The address.
    pub owner: IpAddr,
    /// How much.
    pub amount: usize,
}

/// The first 64 bits of an IPv6 address.
type Network = u64;

fn network_of(ip: IpAddr) -> Option<Network> {
    match ip {
        // The upper half.
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_none() => Some((ip.to_bits() >> 64) as u64),
        _ => None,
    }
}

/// This part of a limit.
fn part(limit: usize, eighths: u8) -> usize {
    // At most 255 times the limit, divided by 8.
    usize::try_from(limit as u128 * u128::from(eighths) / 8).unwrap_or(usize::MAX)
}

/// Amounts by key; a key without an amount has no entry.
#[derive(Debug)]
struct Amounts<K>(HashMap<K, usize>);

impl<K: Copy + Eq + std::hash::Hash> Amounts<K> {
    fn new() -> Amounts<K> {
        Amounts(HashMap::new())
    }

    fn of(&self, key: K) -> usize {
        self.0.get(&key).copied().unwrap_or(0)
    }

    fn add(&mut self, key: K, amount: usize) {
        if amount > 0 {
            *self.0.entry(key).or_default() += amount;
        }
    }

    fn subtract(&mut self, key: K, amount: usize) {
        if let Some(held) = self.0.get_mut(&key) {
            *held = held.saturating_sub(amount);
            if *held == 0 {
                self.0.remove(&key);
            }
        }
    }
}

#[derive(Debug)]
struct Budget {
    name: &'static str,
    /// The number of the service.
    service: usize,
    within: Option<BudgetId>,
    limit: usize,
    shares: Shares,
    used: usize,
    unproven: usize,
    by_address: Amounts<IpAddr>,
    by_network: Amounts<Network>,
    refused: u64,
}

/// Refuses what would exceed `share`, unless nothing is held of it.
fn check(held: usize, amount: usize, share: usize, refusal: fn(usize) -> Refusal) -> Result<(), Refusal> {
    if held > 0 && held.saturating_add(amount) > share { Err(refusal(share)) } else { Ok(()) }
}

impl Budget {
    /// Whether a client that has proved its address may hold `amount` more.
    fn admits_proven(&self, owner: IpAddr, network: Option<Network>, amount: usize) -> Result<(), Refusal> {
        check(self.by_address.of(owner), amount, part(self.limit, self.shares.address), Refusal::Address)?;
        let Some(network) = network else { return Ok(()) };
        check(self.by_network.of(network), amount, part(self.limit, self.shares.network), Refusal::Network)
    }

    fn admits(
        &self,
        owner: IpAddr,
        network: Option<Network>,
        amount: usize,
        standing: Standing,
    ) -> Result<(), Refusal> {
        check(self.used, amount, self.limit, Refusal::Budget)?;
        // Also a client that is not charged to its share yet has to fit it: it would be ended when it answers.
        self.admits_proven(owner, network, amount)?;
        match standing {
            Standing::Proven => Ok(()),
            Standing::Unproven => {
                check(self.unproven, amount, part(self.limit, self.shares.unproven), Refusal::Unproven)
            }
        }
    }

    fn hold(&mut self, owner: IpAddr, network: Option<Network>, amount: usize, standing: Standing) {
        match standing {
            Standing::Proven => {
                self.by_address.add(owner, amount);
                if let Some(network) = network {
                    self.by_network.add(network, amount);
                }
            }
            Standing::Unproven => self.unproven += amount,
        }
    }

    fn let_go(&mut self, owner: IpAddr, network: Option<Network>, amount: usize, standing: Standing) {
        match standing {
            Standing::Proven => {
                self.by_address.subtract(owner, amount);
                if let Some(network) = network {
                    self.by_network.subtract(network, amount);
                }
            }
            Standing::Unproven => self.unproven = self.unproven.saturating_sub(amount),
        }
    }
}

/// The account of one worker; see the [module](self).
#[derive(Debug, Default)]
pub struct Ledger {
    budgets: Vec<Budget>,
    /// The IPv6 prefixes of the ports' own addresses.
    own_networks: Vec<Network>,
}

impl Ledger {
    /// Without budgets, on these ports.
    pub fn new(ports: &[LocalPort]) -> Ledger {
        let own = ports.iter().flat_map(|port| &port.addresses).filter_map(|ip| network_of(*ip));
        Ledger { budgets: Vec::new(), own_networks: own.collect() }
    }

    /// A port has other addresses. What is held stays charged to the networks of before, so these only grow.
    pub fn port_changed(&mut self, port: &LocalPort) {
        for network in port.addresses.iter().filter_map(|ip| network_of(*ip)) {
            if !self.own_networks.contains(&network) && self.budgets.iter().all(|b| b.by_network.of(network) == 0) {
                self.own_networks.push(network);
            }
        }
    }

    /// Opens a budget of `limit` for a service, as a part of `within` if there is one.
    pub fn open(
        &mut self,
        name: &'static str,
        service: usize,
        limit: usize,
        shares: Shares,
        within: Option<BudgetId>,
    ) -> BudgetId {
        self.budgets.push(Budget {
            name,
            service,
            within,
            limit,
            shares,
            used: 0,
            unproven: 0,
            by_address: Amounts::new(),
            by_network: Amounts::new(),
            refused: 0,
        });
        BudgetId(self.budgets.len() - 1)
    }

    /// The network of an address that has a share of its own: it is behind a router.
    fn routed_network(&self, ip: IpAddr) -> Option<Network> {
        network_of(ip).filter(|network| !self.own_networks.contains(network))
    }

    /// A budget and those that it is a part of.
    fn chain(&self, budget: BudgetId) -> impl Iterator<Item = usize> + use<> {
        let within = self.budgets.get(budget.0).and_then(|b| b.within);
        [Some(budget), within].into_iter().flatten().map(|id| id.0)
    }

    /// Charges `amount` to a client.
    ///
    /// # Errors
    /// Which bound it would exceed. Nothing is charged then.
    pub fn charge(
        &mut self,
        budget: BudgetId,
        owner: IpAddr,
        amount: usize,
        standing: Standing,
    ) -> Result<Charge, Refusal> {
        let network = self.routed_network(owner);
        for index in self.chain(budget) {
            if let Err(refusal) = self.budgets[index].admits(owner, network, amount, standing) {
                self.budgets[budget.0].refused += 1;
                return Err(refusal);
            }
        }
        for index in self.chain(budget) {
            let budget = &mut self.budgets[index];
            budget.used += amount;
            budget.hold(owner, network, amount, standing);
        }
        Ok(Charge { budget, owner, amount, standing })
    }

    /// The client has proved its address: what it holds is charged to that.
    ///
    /// # Errors
    /// Its address or network holds its share: the client is to be ended. The charge stays as it is.
    pub fn prove(&mut self, charge: &mut Charge) -> Result<(), Refusal> {
        if charge.standing == Standing::Proven {
            return Ok(());
        }
        let Charge { budget, owner, amount, .. } = *charge;
        let network = self.routed_network(owner);
        for index in self.chain(budget) {
            if let Err(refusal) = self.budgets[index].admits_proven(owner, network, amount) {
                self.budgets[budget.0].refused += 1;
                return Err(refusal);
            }
        }
        for index in self.chain(budget) {
            let budget = &mut self.budgets[index];
            budget.let_go(owner, network, amount, Standing::Unproven);
            budget.hold(owner, network, amount, Standing::Proven);
        }
        charge.standing = Standing::Proven;
        Ok(())
    }

    /// The client has given back what it held.
    pub fn release(&mut self, charge: Charge) {
        let Charge { budget, owner, amount, standing } = charge;
        let network = self.routed_network(owner);
        for index in self.chain(budget) {
            let budget = &mut self.budgets[index];
            budget.used = budget.used.saturating_sub(amount);
            budget.let_go(owner, network, amount, standing);
        }
    }

    /// What an address holds of a budget.
    pub fn held_by(&self, budget: BudgetId, owner: IpAddr) -> usize {
        self.budgets.get(budget.0).map_or(0, |budget| budget.by_address.of(owner))
    }

    /// How much more `owner` may hold of a budget at once.
    pub fn room(&self, budget: BudgetId, owner: IpAddr) -> usize {
        let network = self.routed_network(owner);
        let left = self.chain(budget).map(|index| {
            let budget = &self.budgets[index];
            let left = budget.limit.saturating_sub(budget.used);
            let share = part(budget.limit, budget.shares.address).saturating_sub(budget.by_address.of(owner));
            let network = network.map_or(usize::MAX, |network| {
                part(budget.limit, budget.shares.network).saturating_sub(budget.by_network.of(network))
            });
            left.min(share).min(network)
        });
        left.min().unwrap_or(0)
    }

    /// What all clients hold of a budget.
    pub fn used(&self, budget: BudgetId) -> usize {
        self.budgets.get(budget.0).map_or(0, |budget| budget.used)
    }

    /// Whether three quarters of what a service grants clients without a proof are taken: the oldest of them is to be ended, so
    /// that a new one finds room.
    pub fn is_crowded(&self, service: usize) -> bool {
        let of_service = (0..self.budgets.len()).filter(|&index| self.budgets[index].service == service);
        of_service.flat_map(|index| self.chain(BudgetId(index))).any(|index| {
            let budget = &self.budgets[index];
            budget.unproven > 0 && budget.unproven >= part(budget.limit, budget.shares.unproven) / 4 * 3
        })
    }

    /// What clients hold, and of each budget how often it refused.
    pub fn holdings(&self) -> (Vec<Holding>, Vec<(&'static str, u64)>) {
        let holdings = self.budgets.iter().flat_map(|budget| {
            let of = |(&owner, &amount)| Holding { budget: budget.name, owner, amount };
            budget.by_address.0.iter().map(of)
        });
        (holdings.collect(), self.budgets.iter().map(|budget| (budget.name, budget.refused)).collect())
    }
}

#[cfg(test)]
mod tests;
