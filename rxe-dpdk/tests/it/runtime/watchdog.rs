//! The watchdog: a worker that a service holds is named in the log, with its step, and counted; another worker is not.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rxe_dpdk::counters::Telemetry;
use rxe_dpdk::eal::Eal;
use rxe_dpdk::runtime::{PortSettings, Runtime, RuntimeConfig};
use rxe_dpdk::service::{Context, Listen, Service, ServiceFactory};
use rxe_dpdk::worker::IdlePolicy;
use rxe_testkit::child;
use rxe_testkit::recovery::{WORKER_STALLED, recovered};

/// Nothing here takes longer on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The log.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines of the log about workers.
fn lines() -> Vec<String> {
    let log = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
    log.lines().filter(|line| line.contains("the worker on lcore")).map(str::to_owned).collect()
}

/// Waits until `condition` holds. Returns whether it does.
fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !condition() {
        if began.elapsed() > LIMIT {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Holds the second worker in a timer's callback until that is counted.
struct Holding(Arc<OnceLock<Telemetry>>);

impl ServiceFactory for Holding {
    fn name(&self) -> &'static str {
        "holding"
    }

    fn listen(&self) -> Vec<Listen> {
        Vec::new()
    }

    fn create(&self, worker: usize) -> Box<dyn Service> {
        Box::new(Holding(if worker == 1 { Arc::clone(&self.0) } else { Arc::default() }))
    }
}

impl Service for Holding {
    fn start(&mut self, cx: &mut Context<'_>) {
        if self.0.get().is_some() {
            cx.set_timer(Duration::from_millis(1), 0);
        }
    }

    fn timer(&mut self, _cx: &mut Context<'_>, _token: u64) {
        let telemetry = self.0.get().unwrap();
        assert!(eventually(|| telemetry.workers[1].worker.stalls.get() == 1));
    }
}

#[test]
fn a_stalled_worker_is_named_with_its_step_and_counted() {
    child::alone(|| {
        tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).init();
        let args = "--no-huge -m 256 --no-pci --no-telemetry --no-shconf -l 0,1 --vdev=net_null0,no-rx=1";
        let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
        let config = RuntimeConfig {
            ports: vec![PortSettings { addresses: vec!["10.78.0.1/24".parse().unwrap()], ..PortSettings::default() }],
            idle: IdlePolicy::Sleep(Duration::from_micros(50)),
            ..RuntimeConfig::default()
        };
        let known = Arc::new(OnceLock::new());
        let services: Vec<Box<dyn ServiceFactory>> = vec![Box::new(Holding(Arc::clone(&known)))];
        let runtime = Runtime::new(Eal::init(&args).unwrap(), config, services).unwrap();
        known.set(runtime.telemetry()).unwrap();
        let stop = runtime.stop_handle();
        let waiting = thread::spawn(move || {
            // The first line releases the worker.
            let both = eventually(|| !lines().is_empty());
            let released = Instant::now();
            let both = both && eventually(|| lines().len() >= 2);
            stop.stop();
            both.then(|| released.elapsed())
        });
        let summary = runtime.run().unwrap();
        let lines = lines();
        let took = waiting.join().unwrap();
        assert!(took.is_some() && lines.len() == 2, "{lines:?}");
        recovered(&WORKER_STALLED, took.unwrap());
        let stall = "WARN rxe_adapter::worker::watchdog: the worker on lcore 1 stalls: its loop has not turned for 2.";
        let step = "the last step that it entered is `services`, a call of the service holding";
        let thread = "; its thread has run for 0.";
        assert!(lines[0].contains(stall) && lines[0].contains(&format!("{step}{thread}")), "{lines:?}");
        let end = "INFO rxe_adapter::worker::watchdog: the worker on lcore 1 goes on after 2.";
        assert!(lines[1].contains(end), "{lines:?}");
        assert_eq!(summary.counters.get("worker", "stalls"), Some(1));
        let stalled = summary.counters.get("worker", "stalled_ms").unwrap();
        assert!((2000..60_000).contains(&stalled), "{stalled}");
    });
}
