//! A service whose operations complete without a packet: when the worker sleeps, and when the adapter ends.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rxe_adapter::build::StopHandle;
use rxe_adapter::settings::{PortSettings, RuntimeConfig};
use rxe_adapter::worker::IdlePolicy;
use rxe_service::{Context, Listen, Outstanding, Service, service_factory};
use rxe_udp::host::{Runtime, Summary};

use crate::support::{PATIENCE, fresh_address};

/// Polls that take hours if the worker sleeps between them, and less than a second if it does not.
const MANY: u64 = 20_000;

/// More polls than a sleeping worker makes in 300 ms, or one that ends at once before it ends.
const FEW: u64 = 100;

/// Shared by the service and the test.
#[derive(Default)]
struct Shared {
    polls: AtomicU64,
    outstanding: AtomicUsize,
}

impl Shared {
    fn wait_for_polls(&self, count: u64) {
        let (begin, before) = (Instant::now(), self.polls.load(SeqCst));
        while self.polls.load(SeqCst) < before + count {
            assert!(begin.elapsed() < PATIENCE, "{} polls", self.polls.load(SeqCst) - before);
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait_for_sleep(&self) {
        let begin = Instant::now();
        loop {
            let before = self.polls.load(SeqCst);
            thread::sleep(Duration::from_millis(300));
            if self.polls.load(SeqCst) - before < FEW {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "the worker never sleeps");
        }
    }
}

struct Polled(Arc<Shared>);

impl Service for Polled {
    fn wants_poll(&self) -> bool {
        true
    }

    fn poll(&mut self, _cx: &mut Context<'_>) -> Outstanding {
        self.0.polls.fetch_add(1, SeqCst);
        Outstanding(self.0.outstanding.load(SeqCst))
    }
}

/// Runs an adapter while `script` runs in another thread, and until it is stopped.
fn run(shared: &Arc<Shared>, script: impl FnOnce(&StopHandle) + Send + 'static) -> Summary {
    let address = format!("{}/8", fresh_address()).parse().unwrap();
    let config = RuntimeConfig {
        ports: vec![PortSettings { addresses: vec![address], ..PortSettings::default() }],
        idle: IdlePolicy::Pause,
        ..RuntimeConfig::default()
    };
    let shared = Arc::clone(shared);
    let factory = service_factory("polled", Vec::<Listen>::new(), move |_| Polled(Arc::clone(&shared)));
    let runtime = Runtime::new(config, vec![factory]).unwrap();
    let stop = runtime.stop_handle();
    let driver = thread::spawn(move || {
        let result = panic::catch_unwind(AssertUnwindSafe(|| script(&stop)));
        stop.stop();
        result
    });
    let summary = runtime.run().unwrap();
    if let Err(failure) = driver.join().unwrap() {
        panic::resume_unwind(failure);
    }
    summary
}

#[test]
fn the_worker_sleeps_only_while_no_operation_is_outstanding() {
    let shared = Arc::<Shared>::default();
    shared.outstanding.store(1, SeqCst);
    let of_script = Arc::clone(&shared);
    let summary = run(&shared, move |_| {
        of_script.wait_for_polls(MANY);
        of_script.outstanding.store(0, SeqCst);
        of_script.wait_for_sleep();
        of_script.outstanding.store(2, SeqCst);
        of_script.wait_for_polls(MANY);
        of_script.outstanding.store(0, SeqCst);
    });
    assert_eq!(summary.counters.get("service", "operations_left"), Some(0));
    let count = |name| summary.counters.get("worker", name).unwrap();
    assert!(count("idle_turns") > MANY, "waiting is no work: {summary}");
}

#[test]
fn the_adapter_ends_when_its_operations_have_completed() {
    let shared = Arc::<Shared>::default();
    shared.outstanding.store(1, SeqCst);
    let of_script = Arc::clone(&shared);
    let summary = run(&shared, move |stop| {
        of_script.wait_for_polls(MANY);
        stop.stop();
        of_script.wait_for_polls(FEW);
        of_script.outstanding.store(0, SeqCst);
    });
    assert_eq!((shared.outstanding.load(SeqCst), summary.counters.get("service", "operations_left")), (0, Some(0)));
}

#[test]
fn the_adapter_ends_although_an_operation_does_not_complete() {
    let shared = Arc::<Shared>::default();
    shared.outstanding.store(3, SeqCst);
    let of_script = Arc::clone(&shared);
    let begin = Instant::now();
    let summary = run(&shared, move |_| of_script.wait_for_polls(MANY));
    assert!(begin.elapsed() < PATIENCE);
    assert_eq!(summary.counters.get("service", "operations_left"), Some(3));
}
