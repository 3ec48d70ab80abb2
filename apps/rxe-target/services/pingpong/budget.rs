//! Memory of all clients of one worker: a budget, of which the clients of one address have at most half.
//!
//! No client names the length of its messages. So each gets what the setting `memory` says while that leaves an eighth of its share.
//! Later ones get less, and the last eighth is for clients with receives of the clients' default length, so that many fit.

use std::net::IpAddr;

use rxe_service::{BudgetId, Ledger};

/// The least length of a receive: one message of the clients' default length, 4096 bytes, and a GRH, with room to spare.
const LEAST: usize = 8192;
/// This part of an address's share is for clients with receives of the least length.
const RESERVE: usize = 8;
/// Where less than a client wants is left beside that, it gets this part of it.
const PART: usize = 4;

/// A budget of the ledger.
#[derive(Clone, Copy)]
pub struct Budget {
    /// Its size in bytes.
    pub total: usize,
    /// What clients hold of it.
    pub id: BudgetId,
}

impl Budget {
    /// Bytes for the `receives` receives of `client`, up to `wanted`.
    pub fn offer(&self, ledger: &Ledger, client: IpAddr, wanted: usize, receives: usize) -> Result<usize, String> {
        let left = self.total.saturating_sub(ledger.used(self.id));
        let share = ledger.room(self.id, client);
        let least = receives * LEAST;
        let total = self.total;
        if least > left {
            return Err(format!("all {total} bytes for messages are used: raise budget of [service.pingpong]"));
        }
        if least > share {
            return Err(format!(
                "clients of its address use half of the {total} bytes for messages: raise budget of [service.pingpong]"
            ));
        }
        let beside = left.min(share).saturating_sub(self.total / 2 / RESERVE);
        Ok(if wanted <= beside { wanted } else { (beside / PART).max(least) })
    }
}

/// The length of a receive, of which `slots` share `bytes`: a multiple of 64, so that copies begin at cache lines.
pub fn slot_of(bytes: usize, slots: usize) -> usize {
    (bytes / slots) & !63
}

/// Allocates memory for `slots` receives that share `bytes`, or half of that and so on where there is less. Returns the length
/// of each, too.
pub fn slots_in<T, E>(
    bytes: usize,
    slots: usize,
    mut allocate: impl FnMut(usize) -> Result<T, E>,
) -> Result<(T, usize), E> {
    let mut slot = slot_of(bytes, slots);
    loop {
        let error = match allocate(slots * slot) {
            Ok(memory) => return Ok((memory, slot)),
            Err(error) => error,
        };
        slot = slot_of(slots * slot / 2, slots);
        if slot < LEAST {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use rxe_proto::mem::{AllocError, Memory};
    use rxe_service::{Charge, Shares, Standing};

    use super::*;

    const MIB: usize = 1 << 20;

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    /// Clients of an address that want `wanted` bytes for `receives` receives each, until one is refused: their bytes, and
    /// the refusal.
    fn fill(bed: &mut Bed, n: u8, wanted: usize, receives: usize) -> (Vec<Charge>, String) {
        let mut granted = Vec::new();
        loop {
            match bed.offer(n, wanted, receives) {
                Ok(bytes) => granted.push(bed.take(n, bytes)),
                Err(why) => return (granted, why),
            }
        }
    }

    struct Bed {
        ledger: Ledger,
        budget: Budget,
    }

    impl Bed {
        fn new(total: usize) -> Bed {
            let mut ledger = Ledger::new(&[]);
            let id = ledger.open("pingpong", 0, total, Shares::HALF, None);
            Bed { ledger, budget: Budget { total, id } }
        }

        fn offer(&self, n: u8, wanted: usize, receives: usize) -> Result<usize, String> {
            self.budget.offer(&self.ledger, address(n), wanted, receives)
        }

        fn take(&mut self, n: u8, bytes: usize) -> Charge {
            self.ledger.charge(self.budget.id, address(n), bytes, Standing::Proven).expect("it was offered")
        }
    }

    #[test]
    fn clients_get_less_when_the_budget_runs_short_and_then_nothing() {
        let mut bed = Bed::new(256 * MIB);
        let (granted, why) = fill(&mut bed, 1, 4 * MIB, 2);
        let bytes: Vec<usize> = granted.iter().map(Charge::amount).collect();
        assert_eq!(bytes[..28], [4 * MIB; 28], "while 16 MiB of its share stay free");
        assert_eq!(bytes[28..], [2 * LEAST; 1024], "these 16 MiB");
        assert_eq!(
            why,
            "clients of its address use half of the 268435456 bytes for messages: raise budget of [service.pingpong]"
        );
        let (mut others, _) = fill(&mut bed, 2, 4 * MIB, 2);
        let why = bed.offer(3, 4 * MIB, 2).expect_err("both have all of it");
        assert_eq!(why, "all 268435456 bytes for messages are used: raise budget of [service.pingpong]");
        bed.ledger.release(others.swap_remove(0));
        assert_eq!(bed.offer(3, 4 * MIB, 2), Ok(2 * LEAST));
        granted.into_iter().chain(others).for_each(|charge| bed.ledger.release(charge));
        assert_eq!(bed.ledger.used(bed.budget.id), 0, "all of it is free again");
    }

    #[test]
    fn large_clients_fit_beside_others() {
        let mut bed = Bed::new(256 * MIB);
        // 16 queue pairs of ibv_srq_pingpong, by default, with messages of 1 MiB.
        let mut held = Vec::new();
        for _ in 0..6 {
            assert_eq!(bed.offer(1, 18 * MIB, 18), Ok(18 * MIB));
            held.push(bed.take(1, 18 * MIB));
        }
        assert_eq!(bed.offer(1, 18 * MIB, 18), Ok(MIB), "20 of 128 MiB are left");
        held.push(bed.take(1, 2 * MIB));
        assert_eq!(bed.offer(1, 18 * MIB, 18), Ok(MIB / 2));
        assert_eq!(held.len(), 7);
    }

    #[test]
    fn where_less_memory_is_free_receives_are_shorter() {
        let with =
            |free: usize| move |len: usize| if len <= free { Ok(Memory::heap(len)) } else { Err(AllocError { len }) };
        let length = |bytes, slots, free| slots_in(bytes, slots, with(free)).map(|(memory, slot)| (memory.len(), slot));
        assert_eq!(length(4 * MIB, 2, 4 * MIB), Ok((4 * MIB, 2 * MIB)));
        assert_eq!(length(4 * MIB, 2, 3 * MIB), Ok((2 * MIB, MIB)));
        assert_eq!(length(4 * MIB, 2, 2 * LEAST), Ok((2 * LEAST, LEAST)));
        assert_eq!(length(4 * MIB, 2, 2 * LEAST - 1), Err(AllocError { len: 2 * LEAST }));
        assert_eq!(length(100_000, 3, MIB), Ok((3 * 33_280, 33_280)), "a multiple of 64");
    }
}
