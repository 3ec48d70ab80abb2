//! Idle policies: how a worker without work waits.

use std::num::NonZeroU64;
use std::thread;

use rustix::thread::set_current_timer_slack;
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

/// How much longer than asked for a sleep may last, in nanoseconds. Linux allows 50 us by default, as much as the usual
/// [`IdlePolicy::Sleep`].
const TIMER_SLACK: Option<NonZeroU64> = NonZeroU64::new(1000);

/// Counts empty polls and applies the policy.
#[derive(Debug)]
pub struct Idler {
    policy: IdlePolicy,
    empty: u32,
    /// The thread has [`TIMER_SLACK`].
    has_timer_slack: bool,
}

impl Idler {
    /// A worker that has not been idle yet.
    pub fn new(policy: IdlePolicy) -> Idler {
        Idler { policy, empty: 0, has_timer_slack: false }
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
            IdlePolicy::Sleep(time) if outstanding.is_none() => self.sleep(time),
            IdlePolicy::Pause | IdlePolicy::Sleep(_) => {
                for _ in 0..PAUSES {
                    std::hint::spin_loop();
                }
            }
        }
    }

    fn sleep(&mut self, time: Duration) {
        if !self.has_timer_slack {
            self.has_timer_slack = true;
            // Without it sleeps last longer.
            let _ = set_current_timer_slack(TIMER_SLACK);
        }
        thread::sleep(time);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rustix::thread::current_timer_slack;

    use super::*;

    #[test]
    fn sleeps_of_an_idle_worker_are_as_short_as_asked_for() {
        let idle = |policy| {
            thread::spawn(move || {
                let mut idler = Idler::new(policy);
                (0..=PATIENCE).for_each(|_| idler.turn(false, Outstanding::NONE));
                current_timer_slack().ok()
            })
            .join()
            .unwrap()
        };
        let before = current_timer_slack().ok();
        assert_eq!(idle(IdlePolicy::Sleep(Duration::from_micros(1))), Some(1000));
        assert_eq!(idle(IdlePolicy::Pause), before);
    }

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
