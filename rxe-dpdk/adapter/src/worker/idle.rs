//! Idle policies: how a worker without work waits.

use std::thread;

use rxe_proto::Duration;
use rxe_service::Outstanding;

/// How an idle worker waits for the next packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdlePolicy {
    /// Polls without a pause: lowest latency, one core at 100 %.
    Spin,
    /// Issues CPU pause hints between polls: slightly higher latency, more throughput for a hyperthread sibling.
    Pause,
    /// Sleeps this long between polls once idle: adds latency after a pause in traffic, and frees the core. While operations of
    /// services are outstanding, the worker does not sleep and waits as with [`Pause`](Self::Pause).
    Sleep(Duration),
}

/// Empty polls in a row before a worker counts as idle.
const PATIENCE: u32 = 256;

/// CPU pause hints per empty poll under [`IdlePolicy::Pause`], and under [`IdlePolicy::Sleep`] where a sleep would be too long.
const PAUSES: u32 = 32;

/// Counts empty polls and applies the policy.
#[derive(Debug)]
pub struct Idler {
    policy: IdlePolicy,
    empty: u32,
}

impl Idler {
    /// A worker that has not been idle yet.
    pub fn new(policy: IdlePolicy) -> Idler {
        Idler { policy, empty: 0 }
    }

    /// Called once per turn of the loop; `busy` says whether the turn found work. With `outstanding` operations, which complete
    /// without a packet, the worker does not sleep.
    pub fn turn(&mut self, busy: bool, outstanding: Outstanding) {
        if busy {
            self.empty = 0;
            return;
        }
        self.empty = self.empty.saturating_add(1);
        if self.empty < PATIENCE {
            return;
        }
        match self.policy {
            IdlePolicy::Spin => {}
            IdlePolicy::Sleep(time) if outstanding.is_none() => thread::sleep(time),
            IdlePolicy::Pause | IdlePolicy::Sleep(_) => {
                for _ in 0..PAUSES {
                    std::hint::spin_loop();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_worker_without_work_sleeps_unless_operations_are_outstanding() {
        let time = Duration::from_millis(20);
        let mut idler = Idler::new(IdlePolicy::Sleep(time));
        let mut took = |turns, busy, outstanding| {
            let begin = Instant::now();
            (0..turns).for_each(|_| idler.turn(busy, outstanding));
            begin.elapsed()
        };
        // These would sleep for 20 s and more.
        let awake = took(PATIENCE + 1000, false, Outstanding(1));
        assert!(awake < time * 1000, "{awake:?}");
        let asleep = took(3, false, Outstanding::NONE);
        assert!(asleep >= time * 3, "{asleep:?}");
        took(1, true, Outstanding::NONE);
        let begun = took(PATIENCE - 1, false, Outstanding::NONE);
        assert!(begun < time * (PATIENCE - 1), "{begun:?}");
    }
}
