//! Idle policies: how a worker without work waits.

use std::thread;

use rxe_proto::Duration;

/// How an idle worker waits for the next packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdlePolicy {
    /// Polls without a pause: lowest latency, one core at 100 %.
    Spin,
    /// Issues CPU pause hints between polls: slightly higher latency, more throughput for a hyperthread sibling.
    Pause,
    /// Sleeps this long between polls once idle: adds latency after a pause in traffic, and frees the core.
    Sleep(Duration),
}

/// Empty polls in a row before a worker counts as idle.
const PATIENCE: u32 = 256;

/// CPU pause hints per empty poll under [`IdlePolicy::Pause`].
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

    /// Called once per turn of the loop; `busy` says whether the turn found work.
    pub fn turn(&mut self, busy: bool) {
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
            IdlePolicy::Pause => {
                for _ in 0..PAUSES {
                    std::hint::spin_loop();
                }
            }
            IdlePolicy::Sleep(time) => thread::sleep(time),
        }
    }
}
