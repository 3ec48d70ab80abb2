//! A service of the second worker whose operations complete without a packet: when its worker sleeps, and when the adapter ends.
//!
//! Needs neither root nor hugepages.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rxe_dpdk::eal::Eal;
use rxe_dpdk::runtime::{PortSettings, Runtime, RuntimeConfig, StopHandle, Summary};
use rxe_dpdk::service::{Context, Listen, Outstanding, Service, service_factory};
use rxe_dpdk::worker::IdlePolicy;
use rxe_testkit::child;

/// Nothing here takes longer on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The pause of an idle worker.
const SLEEP: Duration = Duration::from_millis(20);

/// Polls that take minutes if the worker sleeps between them, and less than a second if it does not.
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
            assert!(begin.elapsed() < LIMIT, "{} polls", self.polls.load(SeqCst) - before);
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait_for_sleep(&self) {
        let begin = Instant::now();
        loop {
            let before = self.polls.load(SeqCst);
            thread::sleep(15 * SLEEP);
            if self.polls.load(SeqCst) - before < FEW {
                return;
            }
            assert!(begin.elapsed() < LIMIT, "the worker never sleeps");
        }
    }
}

/// Is polled on the second worker only.
struct Polled(Option<Arc<Shared>>);

impl Service for Polled {
    fn wants_poll(&self) -> bool {
        self.0.is_some()
    }

    fn poll(&mut self, _cx: &mut Context<'_>) -> Outstanding {
        let shared = self.0.as_ref().unwrap();
        shared.polls.fetch_add(1, SeqCst);
        Outstanding(shared.outstanding.load(SeqCst))
    }
}

/// Runs an adapter while `script` runs in another thread, and until it is stopped.
fn run(shared: &Arc<Shared>, script: impl FnOnce(&StopHandle) + Send + 'static) -> Summary {
    let args = "--no-huge -m 256 --no-pci --no-telemetry --no-shconf -l 0,1 --vdev=net_null0,no-rx=1";
    let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
    let config = RuntimeConfig {
        ports: vec![PortSettings { addresses: vec!["10.78.0.1/24".parse().unwrap()], ..PortSettings::default() }],
        idle: IdlePolicy::Sleep(SLEEP),
        ..RuntimeConfig::default()
    };
    let shared = Arc::clone(shared);
    let create = move |worker| Polled((worker == 1).then(|| Arc::clone(&shared)));
    let factory = service_factory("polled", Vec::<Listen>::new(), create);
    let runtime = Runtime::new(Eal::init(&args).unwrap(), config, vec![factory]).unwrap();
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
fn a_worker_sleeps_and_ends_only_while_no_operation_is_outstanding() {
    child::alone(|| {
        let shared = Arc::<Shared>::default();
        shared.outstanding.store(1, SeqCst);
        let of_script = Arc::clone(&shared);
        let summary = run(&shared, move |stop| {
            of_script.wait_for_polls(MANY);
            of_script.outstanding.store(0, SeqCst);
            of_script.wait_for_sleep();
            of_script.outstanding.store(2, SeqCst);
            of_script.wait_for_polls(MANY);
            stop.stop();
            of_script.wait_for_polls(FEW);
            of_script.outstanding.store(0, SeqCst);
        });
        assert_eq!((shared.outstanding.load(SeqCst), summary.counters.get("service", "operations_left")), (0, Some(0)));
    });
}

#[test]
fn the_adapter_ends_although_an_operation_does_not_complete() {
    child::alone(|| {
        let shared = Arc::<Shared>::default();
        shared.outstanding.store(3, SeqCst);
        let of_script = Arc::clone(&shared);
        let summary = run(&shared, move |_| of_script.wait_for_polls(MANY));
        assert_eq!(summary.counters.get("service", "operations_left"), Some(3));
    });
}
