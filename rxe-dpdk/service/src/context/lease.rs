//! Memory that a service lends to a client, charged to the client's account.

use std::net::IpAddr;

use rxe_proto::mem::{AllocError, Memory};

use super::Context;
use crate::ledger::{BudgetId, Charge, Ledger, Refusal, Shares, Standing};
use crate::reserve::Reserve;

/// Memory that a client uses, until [`Context::take_back`].
#[must_use = "memory that is lost stays charged to its client"]
#[derive(Debug)]
pub struct Lease {
    memory: Memory,
    charge: Charge,
}

impl Lease {
    /// The memory: at least as long as the service asked for, and zeroed when it was lent.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The client's address.
    pub fn owner(&self) -> IpAddr {
        self.charge.owner()
    }
}

/// Why a client gets no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LendError {
    /// Its account does not admit it.
    Refused(Refusal),
    /// There is no such memory now.
    NoMemory(AllocError),
}

impl std::fmt::Display for LendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LendError::Refused(refusal) => write!(f, "{refusal} bytes"),
            LendError::NoMemory(error) => error.fmt(f),
        }
    }
}

impl Context<'_> {
    /// Opens a budget of `limit` for this service on this worker.
    pub fn open_budget(&mut self, name: &'static str, limit: usize, shares: Shares) -> BudgetId {
        let service = self.accounting.service;
        self.ledger.open(name, service, limit, shares, None)
    }

    /// The same for bytes that are [lent](Context::lend): a part of what the worker has for clients.
    pub fn open_memory_budget(&mut self, name: &'static str, limit: usize, shares: Shares) -> BudgetId {
        let (service, memory) = (self.accounting.service, self.memory_budget);
        self.ledger.open(name, service, limit, shares, Some(memory))
    }

    /// The account of what is charged to clients on this worker.
    pub fn ledger(&mut self) -> &mut Ledger {
        self.ledger
    }

    /// Whether clients of this service that have not proved their addresses hold most of what they may: the service should end
    /// the oldest of them that is no connection. Those that are connections end without it.
    pub fn is_crowded(&self) -> bool {
        self.ledger.is_crowded(self.accounting.service)
    }

    /// At least `len` zeroed bytes for a client, charged to its address.
    ///
    /// # Errors
    /// Its account does not admit it, or there is no memory. Nothing is charged then.
    pub fn lend(
        &mut self,
        budget: BudgetId,
        client: IpAddr,
        len: usize,
        standing: Standing,
    ) -> Result<Lease, LendError> {
        let charge = self.ledger.charge(budget, client, Reserve::rounded(len), standing).map_err(LendError::Refused)?;
        match self.reserve.take(len, self.allocator) {
            Ok(memory) => Ok(Lease { memory, charge }),
            Err(error) => {
                self.ledger.release(charge);
                Err(LendError::NoMemory(error))
            }
        }
    }

    /// The client has proved its address.
    ///
    /// # Errors
    /// Its address holds its share already: end the client.
    pub fn prove(&mut self, lease: &mut Lease) -> Result<(), Refusal> {
        self.ledger.prove(&mut lease.charge)
    }

    /// Takes memory back from a client. No key may open it any more.
    pub fn take_back(&mut self, lease: Lease) {
        self.ledger.release(lease.charge);
        self.reserve.put(lease.memory);
    }
}
