//! Waiting for packets and other threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{frame, open, path, receive, send};

#[test]
fn a_wait_ends_when_a_packet_arrives() {
    let (mut a, mut b) = (open(), open());
    let sent = frame(&path(a.address(), b.address()), 1, b"news");
    let sender = thread::spawn({
        let sent = sent.clone();
        move || send(&mut a, [&sent])
    });
    b.wait(None).unwrap();
    assert_eq!(receive(&mut b, 1), [sent]);
    sender.join().unwrap();
}

#[test]
fn a_wait_ends_when_its_time_has_passed() {
    let mut port = open();
    let begin = Instant::now();
    port.wait(Some(Duration::from_micros(1500))).unwrap();
    assert!(begin.elapsed() >= Duration::from_micros(1500));
    port.wait(Some(Duration::ZERO)).unwrap();
}

#[test]
fn no_work_of_another_thread_is_slept_through() {
    const THREADS: u32 = 3;
    const EACH: u32 = 2000;
    let mut port = open();
    let work = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (work, waker) = (Arc::clone(&work), port.waker());
            thread::spawn(move || {
                for _ in 0..EACH {
                    work.fetch_add(1, Ordering::Relaxed);
                    waker.wake();
                }
            })
        })
        .collect();
    // A wait without a timeout: a lost call would never end it.
    while work.load(Ordering::Relaxed) < THREADS * EACH {
        port.wait(None).unwrap();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_call_before_the_wait_ends_it_once() {
    let mut port = open();
    let waker = port.waker();
    waker.wake();
    waker.clone().wake();
    port.wait(None).unwrap();
    let begin = Instant::now();
    port.wait(Some(Duration::from_millis(2))).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(2));
    waker.wake();
    port.wait(None).unwrap();
}
