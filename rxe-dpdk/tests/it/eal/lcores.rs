//! Jobs on lcores. The thread that starts EAL becomes the main lcore.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rxe_dpdk::eal::{Eal, EalError, Job, MbufRing, Mempool, RxBurst};
use rxe_testkit::child;

use crate::cpu;

#[test]
fn jobs_run_on_their_lcores_and_panics_are_reported() {
    child::alone(run_jobs);
}

fn run_jobs() {
    let cpu = cpu::first_allowed();
    // Two lcores on one processor, so that this runs anywhere.
    let lcores = format!("--lcores=3@{cpu},5@{cpu}");
    let args = [&lcores, "--no-huge", "-m", "64", "--no-pci", "--no-telemetry", "--no-shconf"];
    let eal = Eal::init(&args.map(str::to_owned)).unwrap();
    assert_eq!(eal.lcores(), [3, 5]);
    assert_eq!((Eal::main_lcore(), Eal::current_lcore()), (3, Some(3)));

    jobs_borrow_and_exchange_packets(&eal);
    a_panic_is_reported_after_all_have_ended(&eal);
    invalid_lcores_are_refused_before_any_job_runs(&eal);

    // An Mbuf keeps its memory alive after all other objects are dropped.
    let pool = Mempool::create(&eal, "last", 63, 256, 0, -1).unwrap();
    let mut mbuf = pool.alloc().unwrap();
    drop((pool, eal));
    mbuf.resize(10);
    mbuf.data_mut().fill(1);
    drop(mbuf);
    assert!(matches!(Eal::init(&[]), Err(EalError::AlreadyInitialised)));
}

fn jobs_borrow_and_exchange_packets(eal: &Eal) {
    const COUNT: usize = 1000;
    let pool = Mempool::create(eal, "workers", 255, 256, 16, -1).unwrap();
    let MbufRing { mut senders, mut receiver } = MbufRing::new(eal, 64, 1).unwrap();
    let received = AtomicUsize::new(0);
    let sender = &mut senders[0];
    let jobs: Vec<Job<'_>> = vec![
        (
            3,
            Box::new(|| {
                assert_eq!(Eal::current_lcore(), Some(3));
                let mut batch = RxBurst::new();
                let mut made = 0;
                while made < COUNT || !batch.is_empty() {
                    while made < COUNT && !batch.is_full() {
                        let Some(mbuf) = pool.alloc() else { break };
                        batch.push(mbuf).unwrap();
                        made += 1;
                    }
                    sender.send(&mut batch);
                    std::thread::yield_now();
                }
            }),
        ),
        (
            5,
            Box::new(|| {
                assert_eq!(Eal::current_lcore(), Some(5));
                let mut burst = RxBurst::new();
                let deadline = Instant::now() + Duration::from_secs(60);
                while received.load(Ordering::Relaxed) < COUNT && Instant::now() < deadline {
                    received.fetch_add(receiver.receive(&mut burst), Ordering::Relaxed);
                    std::thread::yield_now();
                }
            }),
        ),
    ];
    eal.run_workers(jobs).unwrap();
    assert_eq!(received.into_inner(), COUNT);
    // Also with the per-lcore caches.
    assert_eq!(pool.in_use(), 0);
}

fn a_panic_is_reported_after_all_have_ended(eal: &Eal) {
    struct StopOnDrop<'a>(&'a AtomicBool);
    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    for bad in [3, 5] {
        let stop = AtomicBool::new(false);
        let ended = AtomicUsize::new(0);
        let job = |lcore: u32| -> Job<'_> {
            let (stop, ended) = (&stop, &ended);
            let body = move || {
                let _stop = StopOnDrop(stop);
                assert!(lcore != bad, "panic on lcore {bad}");
                while !stop.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                ended.fetch_add(1, Ordering::Relaxed);
            };
            (lcore, Box::new(body))
        };
        match eal.run_workers(vec![job(3), job(5)]) {
            Err(EalError::WorkerPanicked { lcore, message }) => {
                assert_eq!((lcore, message), (bad, format!("panic on lcore {bad}")));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(ended.into_inner(), 1);
    }
}

fn invalid_lcores_are_refused_before_any_job_runs(eal: &Eal) {
    let ran = AtomicBool::new(false);
    for lcores in [[3, 4], [5, 5], [3, 100_000]] {
        let job = |lcore| -> Job<'_> { (lcore, Box::new(|| ran.store(true, Ordering::Relaxed))) };
        let error = eal.run_workers(lcores.map(job).into()).unwrap_err();
        assert!(matches!(error, EalError::Lcore { .. }), "{error}");
    }
    assert!(!ran.into_inner());
}
