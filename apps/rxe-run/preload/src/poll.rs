//! Polls of completion queues: what the wrappers of [`rxe_uverbs::polling`] do.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicUsize, Ordering};

use rxe_uverbs::polling::{POLL_CQ, START_POLL, THREAD_CPU, Wrappers, set_wrappers};

type PollCq = unsafe extern "C-unwind" fn(*mut c_void, c_int, *mut c_void) -> c_int;
type StartPoll = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int;

/// Empty polls of a thread after which it yields whatever its CPU is: the library's thread may wait for another one, which has a thread
/// that polls too.
const EVERY: u32 = 64;

thread_local! {
    static EMPTY: Cell<u32> = const { Cell::new(0) };
}

/// Lets programs poll by these wrappers.
pub fn start() {
    set_wrappers(Wrappers { poll_cq: poll_cq as PollCq as usize, start_poll: start_poll as StartPoll as usize, store });
}

fn store(at: u64, function: usize) {
    // SAFETY: `rxe_uverbs::polling` has found a pointer to a function at this address, in a structure of libibverbs that lives while the
    // program uses the queue pair. Other threads read it as a whole, as it is aligned.
    unsafe { AtomicUsize::from_ptr(at as *mut usize) }.store(function, Ordering::Release);
}

/// # Safety
/// As of `ibv_context_ops.poll_cq`.
unsafe extern "C-unwind" fn poll_cq(cq: *mut c_void, count: c_int, completions: *mut c_void) -> c_int {
    // SAFETY: it is the pointer that this function has replaced, and the arguments are the caller's.
    let polled = unsafe { transmute::<usize, PollCq>(POLL_CQ.load(Ordering::Relaxed))(cq, count, completions) };
    if polled == 0 {
        poll_was_empty();
    }
    polled
}

/// # Safety
/// As of `ibv_cq_ex.start_poll`.
unsafe extern "C-unwind" fn start_poll(cq: *mut c_void, attributes: *mut c_void) -> c_int {
    // SAFETY: it is the pointer that this function has replaced, and the arguments are the caller's.
    let error = unsafe { transmute::<usize, StartPoll>(START_POLL.load(Ordering::Relaxed))(cq, attributes) };
    if error == libc::ENOENT {
        poll_was_empty();
    }
    error
}

/// Yields the CPU if the library's thread, which has run on it last, sleeps or waits for it.
fn poll_was_empty() {
    // At the end of a thread there is no count any more.
    let empty = EMPTY.try_with(|empty| empty.replace(empty.get().wrapping_add(1))).unwrap_or(0);
    // SAFETY: neither function has arguments, nor any effect on memory.
    unsafe {
        if libc::sched_getcpu().cast_unsigned() == THREAD_CPU.load(Ordering::Relaxed) || empty.is_multiple_of(EVERY) {
            libc::sched_yield();
        }
    }
}
