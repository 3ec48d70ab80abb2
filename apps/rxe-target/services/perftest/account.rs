//! The account of perftest's clients on one worker: bytes for their messages, and places in the completion queue.

use std::net::IpAddr;

use rxe_proto::verbs::QpCaps;
use rxe_service::{BudgetId, Charge, Context, Lease, LendError, Refusal, Shares, Standing};

/// Places in the completion queue that clients' queue pairs may have: what a queue can hold.
const PLACES: usize = 1 << 20;
/// Most of them are for one address, if no other one wants them.
const SHARES_OF_PLACES: Shares = Shares { address: 7, network: 7, unproven: 2 };

/// Budgets, once the service has started.
#[derive(Default)]
pub struct Account(Option<Budgets>);

#[derive(Clone, Copy)]
struct Budgets {
    bytes: BudgetId,
    places: BudgetId,
}

const NOT_STARTED: &str = "the service has not started";

impl Account {
    /// Opens the budgets: `bytes` for messages.
    pub fn open(cx: &mut Context<'_>, bytes: usize) -> Account {
        let bytes = cx.open_memory_budget("perftest messages", bytes, Shares::HALF);
        let places = cx.open_budget("perftest completions", PLACES, SHARES_OF_PLACES);
        Account(Some(Budgets { bytes, places }))
    }

    /// Memory of at least `len` bytes for a client.
    ///
    /// # Errors
    /// Why there is none, and what to do.
    pub fn lend(&self, cx: &mut Context<'_>, client: IpAddr, len: usize, standing: Standing) -> Result<Lease, String> {
        let Some(Budgets { bytes, .. }) = self.0 else { return Err(NOT_STARTED.to_owned()) };
        cx.lend(bytes, client, len, standing).map_err(refused)
    }

    /// Places in the completion queue for one queue pair of a client.
    ///
    /// # Errors
    /// Why there are none.
    pub fn charge_qp(
        &self,
        cx: &mut Context<'_>,
        client: IpAddr,
        caps: QpCaps,
        standing: Standing,
    ) -> Result<Charge, String> {
        let Some(Budgets { places, .. }) = self.0 else { return Err(NOT_STARTED.to_owned()) };
        let amount = (caps.max_send_wr + caps.max_recv_wr) as usize;
        let charge = cx.ledger().charge(places, client, amount, standing);
        charge.map_err(|refusal| format!("{refusal} completions: use more lcores"))
    }
}

fn refused(error: LendError) -> String {
    match error {
        LendError::Refused(Refusal::Unproven(_)) => format!("{error}: it may try again"),
        LendError::Refused(_) => {
            format!("{error}: raise budget of [service.perftest], or lower max-message")
        }
        LendError::NoMemory(_) => {
            format!("{error}: give the target more hugepages, or lower max-message of [service.perftest]")
        }
    }
}
