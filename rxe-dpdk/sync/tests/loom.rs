//! Every interleaving of a few threads, by loom: `RUSTFLAGS="--cfg loom" cargo test -p rxe-sync --release --test loom`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::model;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use rxe_sync::{Arrivals, Counter, HitCount, Latest, LostCount, LostFlag, UseCount, WakeFlag};

#[test]
fn a_counter_never_goes_back_and_loses_nothing() {
    model(|| {
        let counter = Arc::new(Counter::default());
        let writer = Arc::clone(&counter);
        let writing = thread::spawn(move || {
            writer.add(2);
            writer.inc();
        });
        let first = counter.get();
        let second = counter.get();
        assert!([0, 2, 3].contains(&first) && first <= second);
        writing.join().unwrap();
        assert_eq!(counter.get(), 3);
    });
}

/// What users do to the resource happens before it is replaced, and the replacement before what later users do.
#[test]
fn a_closed_resource_has_no_user() {
    model(|| {
        let count = Arc::new(UseCount::default());
        let resource = Arc::new(UnsafeCell::new(()));
        let users: Vec<_> = (0..2)
            .map(|_| {
                let (count, resource) = (Arc::clone(&count), Arc::clone(&resource));
                thread::spawn(move || {
                    if count.enter() {
                        // Loom reports a write at the same time, or one that this read does not see.
                        resource.with(|_| {});
                        count.leave();
                    }
                })
            })
            .collect();
        if count.close() {
            assert!(count.is_closed() && !count.enter() && !count.close());
            resource.with_mut(|_| {});
            count.open();
        }
        for user in users {
            user.join().unwrap();
        }
        assert!(count.close());
    });
}

#[test]
fn a_limited_rule_hits_no_more_than_allowed_and_than_it_matched() {
    model(|| {
        let count = Arc::new(HitCount::default());
        let matched = [(); 2].map(|()| Arc::new(Counter::default()));
        let workers: Vec<_> = matched
            .iter()
            .map(|matched| {
                let (count, matched) = (Arc::clone(&count), Arc::clone(matched));
                thread::spawn(move || {
                    matched.inc();
                    u64::from(count.claim(Some(1)))
                })
            })
            .collect();
        let sum = || matched.iter().map(|matched| matched.get()).sum::<u64>();
        let hits = count.get();
        assert!(hits <= sum() && hits <= 1);
        let claimed: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert_eq!((claimed, count.get(), sum(), count.is_used_up(Some(1))), (1, 1, 2, true));
    });
}

/// The bytes of the mapping are an atomic here: an access that meets the replaced ones sees the flag.
#[test]
fn an_access_to_replaced_bytes_sees_the_loss() {
    model(|| {
        let flag = Arc::new(LostFlag::new());
        let bytes = Arc::new(AtomicU64::new(7));
        let (marking, replaced) = (Arc::clone(&flag), Arc::clone(&bytes));
        let handler = thread::spawn(move || {
            assert!(marking.set());
            // mmap orders what the thread did before.
            replaced.store(0, Ordering::Release);
        });
        if bytes.load(Ordering::Relaxed) == 0 {
            assert!(flag.is_set());
        }
        handler.join().unwrap();
        assert!(flag.is_set() && !flag.set());
    });
}

#[test]
fn a_counted_loss_is_marked() {
    model(|| {
        let (flag, count) = (Arc::new(LostFlag::new()), Arc::new(LostCount::new()));
        let (marking, counting) = (Arc::clone(&flag), Arc::clone(&count));
        let handler = thread::spawn(move || {
            if marking.set() {
                counting.add();
            }
        });
        if count.get() == 1 {
            assert!(flag.is_set());
        }
        handler.join().unwrap();
        assert_eq!(count.get(), 1);
    });
}

#[test]
fn the_work_of_all_that_have_arrived_is_visible() {
    model(|| {
        let arrivals = Arc::new(Arrivals::default());
        let work: Vec<_> = (0..2).map(|_| Arc::new(UnsafeCell::new(()))).collect();
        let workers: Vec<_> = work
            .iter()
            .map(|own| {
                let (arrivals, own) = (Arc::clone(&arrivals), Arc::clone(own));
                thread::spawn(move || {
                    own.with_mut(|_| {});
                    arrivals.arrive();
                })
            })
            .collect();
        if arrivals.are(2) {
            // Loom reports a read of work that is not visible.
            work.iter().for_each(|one| one.with(|_| {}));
        }
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

#[test]
fn a_value_is_that_of_its_number_or_a_later_one() {
    model(|| {
        let latest = Arc::new(Latest::default());
        let writer = Arc::clone(&latest);
        let writing = thread::spawn(move || {
            writer.set(10);
            writer.set(20);
        });
        if let Some((number, value)) = latest.get() {
            assert!(value == 10 * number || value == 20, "{number}: {value}");
        }
        writing.join().unwrap();
        assert_eq!(latest.get(), Some((2, 20)));
    });
}

/// The event is a counter here, as that of an event descriptor.
#[test]
fn work_is_seen_or_its_event_is_pending() {
    model(|| {
        let (flag, event) = (Arc::new(WakeFlag::default()), Arc::new(AtomicU64::new(0)));
        let work: Vec<_> = (0..2).map(|_| Arc::new(AtomicU64::new(0))).collect();
        let wakers: Vec<_> = work
            .iter()
            .map(|own| {
                let (flag, event, own) = (Arc::clone(&flag), Arc::clone(&event), Arc::clone(own));
                thread::spawn(move || {
                    own.store(1, Ordering::Relaxed);
                    if flag.raise() {
                        event.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        event.swap(0, Ordering::Relaxed);
        flag.lower();
        let seen = work.iter().all(|one| one.load(Ordering::Relaxed) == 1);
        for waker in wakers {
            waker.join().unwrap();
        }
        assert!(seen || event.load(Ordering::Relaxed) > 0);
    });
}
