//! Reports workers whose loop does not turn, in a thread of its own.
//!
//! The thread compares each worker's count of turns with that of its last look. Time in which the thread itself did not run
//! (the process or its virtual machine was stopped, a clock jumped) does not count as a stall of a worker.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rxe_service::service_host::CurrentService;

use crate::worker::WorkerStats;
use crate::worker::progress::{Progress, Step};

/// How long a worker's loop may stand still before that is reported.
const LIMIT: Duration = Duration::from_secs(2);
/// Interval between looks.
const INTERVAL: Duration = Duration::from_millis(250);
/// The most that a look adds to the length of a stall. A look that is later than this was delayed by something that most
/// likely delayed the workers too.
const MOST: Duration = Duration::from_millis(500);

/// A worker to watch.
pub struct WatchedWorker {
    /// Its number in the log: DPDK's lcore id.
    pub lcore: u32,
    /// Its counters, of which the watchdog writes those of stalls.
    pub stats: Arc<WorkerStats>,
    /// The step that it has entered last.
    pub progress: Arc<Progress>,
    /// The service that it calls.
    pub service: Arc<CurrentService>,
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches `workers`. `services` are the names of the services, by number. The thread calls `begin` first.
    pub fn start(workers: Vec<WatchedWorker>, services: Vec<&'static str>, begin: fn()) -> Watchdog {
        let (stop, stopped) = mpsc::channel();
        let watch = move || {
            begin();
            let mut workers: Vec<_> = workers.into_iter().map(|worker| (worker, Heartbeat::default())).collect();
            let mut last = Instant::now();
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let now = Instant::now();
                let passed = now.saturating_duration_since(last);
                last = now;
                for (worker, heartbeat) in &mut workers {
                    worker.look(passed, heartbeat, &services);
                }
            }
        };
        match thread::Builder::new().name("rxe-watchdog".to_owned()).spawn(watch) {
            Ok(thread) => Watchdog { stop: Some(stop), thread: Some(thread) },
            Err(error) => {
                tracing::warn!("stalled workers are not reported, as the system gives no thread: {error}");
                Watchdog { stop: None, thread: None }
            }
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was reported already.
            let _ = thread.join();
        }
    }
}

impl WatchedWorker {
    fn look(&self, passed: Duration, heartbeat: &mut Heartbeat, services: &[&'static str]) {
        let (turns, step) = (self.stats.turns.get(), self.progress.step());
        let lcore = self.lcore;
        let beat = heartbeat.look(passed, turns, step != Step::Outside);
        let cpu_time = || self.progress.thread().and_then(CpuTime::of);
        match beat {
            Beat::Turns => heartbeat.cpu_time = None,
            Beat::Stands => heartbeat.cpu_time = heartbeat.cpu_time.or_else(cpu_time),
            Beat::Stalls(time) => {
                self.stats.stalls.inc();
                self.stats.stalled_ms.add(millis(time));
                let service = self.service.get().and_then(|service| services.get(service));
                let service = service.map(|name| format!(", a call of the service {name}")).unwrap_or_default();
                let (step, seconds) = (step.name(), time.as_secs_f64());
                let thread =
                    heartbeat.cpu_time.zip(cpu_time()).map(|(before, now)| now.since(before)).unwrap_or_default();
                tracing::warn!(
                    "the worker on lcore {lcore} stalls: its loop has not turned for {seconds:.1} s; \
                     the last step that it entered is `{step}`{service}{thread}"
                );
            }
            Beat::StillStalls(time) => self.stats.stalled_ms.add(millis(time)),
            Beat::GoesOn(time) => {
                heartbeat.cpu_time = None;
                tracing::info!("the worker on lcore {lcore} goes on after {:.1} s", time.as_secs_f64());
            }
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The scheduler's counters of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CpuTime {
    ran: Duration,
    /// For a CPU.
    waited: Duration,
}

impl CpuTime {
    /// `None` where the system does not count that.
    fn of(thread: u32) -> Option<CpuTime> {
        CpuTime::parse(&fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?)
    }

    fn parse(schedstat: &str) -> Option<CpuTime> {
        let mut nanos = schedstat.split_whitespace().map(|number| number.parse().map(Duration::from_nanos));
        Some(CpuTime { ran: nanos.next()?.ok()?, waited: nanos.next()?.ok()? })
    }

    fn since(self, before: CpuTime) -> String {
        let seconds = |now: Duration, before: Duration| now.saturating_sub(before).as_secs_f64();
        let (ran, waited) = (seconds(self.ran, before.ran), seconds(self.waited, before.waited));
        format!("; its thread has run for {ran:.1} s of that and waited for a CPU for {waited:.1} s")
    }
}

/// The turns of one worker, as seen at each look.
#[derive(Debug, Default)]
struct Heartbeat {
    turns: u64,
    /// For how long that number has not changed.
    still: Duration,
    reported: bool,
    /// That of the worker's thread at the first look that found the loop still.
    cpu_time: Option<CpuTime>,
}

/// A look's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Beat {
    /// The loop turns.
    Turns,
    /// It has stood still, not for long yet.
    Stands,
    /// It has stood still for this long, which reaches the limit.
    Stalls(Duration),
    /// It stands still for this much longer.
    StillStalls(Duration),
    /// It turns again, after having stood still for this long.
    GoesOn(Duration),
}

impl Heartbeat {
    /// `passed` is the time since the last look; `runs` is whether the worker is in its loop.
    fn look(&mut self, passed: Duration, turns: u64, runs: bool) -> Beat {
        if turns != self.turns || !runs {
            let stood = std::mem::take(&mut self.still);
            self.turns = turns;
            return if std::mem::take(&mut self.reported) { Beat::GoesOn(stood) } else { Beat::Turns };
        }
        let more = passed.min(MOST);
        self.still += more;
        if self.reported {
            Beat::StillStalls(more)
        } else if self.still >= LIMIT {
            self.reported = true;
            Beat::Stalls(self.still)
        } else {
            Beat::Stands
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Reports of checks that find these numbers of turns, each after this time.
    fn looks(script: &[(Duration, u64)]) -> Vec<Beat> {
        let mut heartbeat = Heartbeat::default();
        let beats = script.iter().map(|&(passed, turns)| heartbeat.look(passed, turns, true));
        beats.filter(|beat| !matches!(beat, Beat::Turns | Beat::Stands)).collect()
    }

    #[test]
    fn a_stall_is_reported_once_and_so_is_its_end() {
        let mut script = vec![(INTERVAL, 1), (INTERVAL, 5)];
        script.extend([(INTERVAL, 5); 10]);
        script.extend([(INTERVAL, 6), (INTERVAL, 7)]);
        let expected = [
            Beat::Stalls(2 * SECOND),
            Beat::StillStalls(INTERVAL),
            Beat::StillStalls(INTERVAL),
            Beat::GoesOn(2 * SECOND + 2 * INTERVAL),
        ];
        assert_eq!(looks(&script), expected);
    }

    #[test]
    fn the_system_counts_the_time_of_a_thread() {
        let own = fs::read_link("/proc/thread-self").unwrap();
        let own = own.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let before = CpuTime::of(own).expect("a kernel with schedstat");
        while CpuTime::of(own).unwrap().ran < before.ran + Duration::from_millis(2) {}
        assert_eq!(CpuTime::of(u32::MAX), None);
        let times = [1_940_000_000, 60_000_000].map(Duration::from_nanos);
        let now = CpuTime { ran: before.ran + times[0], waited: before.waited + times[1] };
        assert_eq!(now.since(before), "; its thread has run for 1.9 s of that and waited for a CPU for 0.1 s");
        assert_eq!(CpuTime::parse("12 x 3\n"), None);
        let parsed = CpuTime { ran: Duration::from_nanos(12), waited: Duration::from_nanos(7) };
        assert_eq!(CpuTime::parse("12 7 3\n"), Some(parsed));
    }

    #[test]
    fn each_stall_is_reported() {
        let mut script = Vec::new();
        for turns in 1..=3 {
            script.extend([(INTERVAL, turns); 9]);
        }
        script.push((INTERVAL, 4));
        let stall = [Beat::Stalls(2 * SECOND), Beat::GoesOn(2 * SECOND)];
        assert_eq!(looks(&script), [stall, stall, stall].concat());
    }

    #[test]
    fn short_stalls_are_not_reported() {
        let mut script = Vec::new();
        for turns in 1..50 {
            // The look that sees the change and seven more: 1.75 s.
            script.extend([(INTERVAL, turns); 8]);
        }
        assert_eq!(looks(&script), []);
    }

    /// SIGSTOP, a suspended machine or a clock that jumps: the look is late, and the worker has not turned meanwhile.
    #[test]
    fn a_late_look_reports_nothing() {
        for late in [3 * SECOND, 3600 * SECOND, Duration::MAX] {
            assert_eq!(looks(&[(INTERVAL, 1), (late, 1), (INTERVAL, 2), (late, 2), (INTERVAL, 2), (INTERVAL, 3)]), []);
        }
    }

    #[test]
    fn a_stall_is_reported_although_every_look_is_late() {
        let script = [(SECOND, 1), (SECOND, 1), (SECOND, 1), (SECOND, 1), (SECOND, 1), (SECOND, 2)];
        assert_eq!(looks(&script), [Beat::Stalls(2 * SECOND), Beat::GoesOn(2 * SECOND)]);
    }

    #[test]
    fn a_worker_outside_its_loop_does_not_stall() {
        let mut heartbeat = Heartbeat::default();
        for _ in 0..20 {
            assert_eq!(heartbeat.look(INTERVAL, 0, false), Beat::Turns);
        }
        // It starts, stalls in its first turn, and ends.
        let beats: Vec<Beat> = (0..8).map(|_| heartbeat.look(INTERVAL, 0, true)).collect();
        assert_eq!(beats.last(), Some(&Beat::Stalls(2 * SECOND)));
        assert_eq!(heartbeat.look(INTERVAL, 0, false), Beat::GoesOn(2 * SECOND));
        assert_eq!(heartbeat.look(INTERVAL, 0, false), Beat::Turns);
    }
}
