//! Idle policies: how a worker without work waits.

use std::num::NonZeroU64;
use std::thread;

use rustix::thread::set_current_timer_slack;
use rxe_proto::{Duration, Instant};
use rxe_service::Outstanding;

/// How an idle worker waits for the next packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdlePolicy {
    /// Polls without a pause: lowest latency, one core at 100 %.
    Spin,
    /// Issues CPU pause hints between polls: slightly higher latency, more throughput for a hyperthread sibling.
    Pause,
    /// Sleeps this long between polls, once it has been idle for as long: adds latency after a pause in traffic, and frees the
    /// core. While operations of services are outstanding, the worker does not sleep and waits as with [`Pause`](Self::Pause).
    Sleep(Duration),
}

/// Empty polls in a row before a worker under [`IdlePolicy::Pause`] counts as idle.
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
    /// Start of the first empty poll in a row.
    idle_since: Instant,
    /// The thread has [`TIMER_SLACK`].
    has_timer_slack: bool,
}

impl Idler {
    /// A worker that has not been idle yet.
    pub fn new(policy: IdlePolicy) -> Idler {
        Idler { policy, empty: 0, idle_since: Instant::ZERO, has_timer_slack: false }
    }

    /// Called once per turn of the loop, which began at `now`; `busy` says whether it found work. With `outstanding` operations,
    /// which complete without a packet, the worker does not sleep.
    pub fn turn(&mut self, now: Instant, busy: bool, outstanding: Outstanding) {
        if busy {
            self.empty = 0;
            return;
        }
        if self.empty == 0 {
            self.idle_since = now;
        }
        self.empty = self.empty.saturating_add(1);
        match self.policy {
            IdlePolicy::Spin => {}
            IdlePolicy::Sleep(time) if outstanding.is_none() => {
                if now.saturating_since(self.idle_since) >= time {
                    self.sleep(time);
                }
            }
            IdlePolicy::Pause | IdlePolicy::Sleep(_) => {
                if self.empty >= PATIENCE {
                    (0..PAUSES).for_each(|_| std::hint::spin_loop());
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
    use rustix::thread::current_timer_slack;

    use super::*;

    #[test]
    fn sleeps_of_an_idle_worker_are_as_short_as_asked_for() {
        let idle = |policy| {
            thread::spawn(move || {
                let mut idler = Idler::new(policy);
                (0..=1000).for_each(|turn| idler.turn(Instant::from_nanos(turn), false, Outstanding::NONE));
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
    fn a_worker_sleeps_when_it_was_idle_for_as_long_and_no_operation_is_outstanding() {
        let time = Duration::from_millis(20);
        let mut idler = Idler::new(IdlePolicy::Sleep(time));
        let start = Instant::from_nanos(7);
        let mut slept = |after: Duration, busy, outstanding| {
            let begin = std::time::Instant::now();
            idler.turn(start + after, busy, outstanding);
            begin.elapsed() >= time
        };
        assert!(!slept(time * 3, false, Outstanding::NONE), "idle from now on");
        assert!(!slept(time * 7 / 2, false, Outstanding::NONE));
        assert!(slept(time * 4, false, Outstanding::NONE));
        assert!(slept(time * 5, false, Outstanding::NONE));
        assert!(!slept(time * 6, false, Outstanding(1)));
        assert!(!slept(time * 7, true, Outstanding::NONE));
        assert!(!slept(time * 8, false, Outstanding::NONE), "idle from now on");
        assert!(slept(time * 9, false, Outstanding::NONE));
    }
}
