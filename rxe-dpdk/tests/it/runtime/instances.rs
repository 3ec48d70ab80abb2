//! Instances of a service on two workers, which send each other messages.
//!
//! Needs neither root nor hugepages.

use std::any::Any;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rxe_dpdk::eal::Eal;
use rxe_dpdk::runtime::{PortSettings, Runtime, RuntimeConfig};
use rxe_dpdk::service::{Context, Listen, Service, service_factory};
use rxe_dpdk::worker::IdlePolicy;
use rxe_testkit::child;

/// Nothing here takes longer on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Messages from each worker to each: more than a worker delivers in one turn.
const EACH: u32 = 1000;

/// The number of a message, and whether it is an answer.
struct Message {
    number: u32,
    is_answer: bool,
    _alive: Arc<()>,
}

/// An answer: the worker that got it, the worker that sent it, and its number.
type Answer = (usize, usize, u32);

struct Instance {
    answers: Sender<Answer>,
    alive: Arc<()>,
}

impl Service for Instance {
    fn start(&mut self, cx: &mut Context<'_>) {
        // The other worker may not have started yet.
        for number in 0..EACH {
            for worker in 0..cx.workers() {
                let message = Message { number, is_answer: false, _alive: Arc::clone(&self.alive) };
                cx.send_to_instance(worker, Box::new(message));
            }
        }
    }

    fn instance_message(&mut self, cx: &mut Context<'_>, from: usize, message: Box<dyn Any + Send>) {
        let mut message = message.downcast::<Message>().unwrap();
        if message.is_answer {
            self.answers.send((cx.worker(), from, message.number)).unwrap();
        } else {
            message.is_answer = true;
            cx.send_to_instance(from, message);
        }
    }
}

#[test]
fn instances_on_two_workers_answer_each_other_in_order() {
    child::alone(|| {
        let args = "--no-huge -m 256 --no-pci --no-telemetry --no-shconf -l 0,1 --vdev=net_null0,no-rx=1";
        let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
        let config = RuntimeConfig {
            ports: vec![PortSettings { addresses: vec!["10.78.0.1/24".parse().unwrap()], ..PortSettings::default() }],
            idle: IdlePolicy::Sleep(Duration::from_micros(50)),
            ..RuntimeConfig::default()
        };
        let (reporter, answers) = mpsc::channel();
        let (reporter, alive) = (Mutex::new(reporter), Arc::new(()));
        let of_instances = Arc::clone(&alive);
        let factory = service_factory("instances", Vec::<Listen>::new(), move |_| Instance {
            answers: reporter.lock().unwrap().clone(),
            alive: Arc::clone(&of_instances),
        });
        let runtime = Runtime::new(Eal::init(&args).unwrap(), config, vec![factory]).unwrap();
        let stop = runtime.stop_handle();
        let collector = thread::spawn(move || {
            let all: Vec<Answer> = (0..4 * EACH).map_while(|_| answers.recv_timeout(LIMIT).ok()).collect();
            stop.stop();
            all
        });
        let summary = runtime.run().unwrap();
        let all = collector.join().unwrap();
        for (to, from) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let of_pair = all.iter().filter(|answer| (answer.0, answer.1) == (to, from)).map(|answer| answer.2);
            assert!(of_pair.eq(0..EACH), "answers of worker {from} to worker {to}");
        }
        assert_eq!(summary.counters.get("service", "instance_messages"), Some(u64::from(2 * 4 * EACH)));
        assert_eq!(Arc::strong_count(&alive), 1, "no message and no instance is left");
    });
}
