//! Guards of the C boundary: neither a panic nor the cancellation of a thread may unwind through it.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::errno::Errno;
use rxe_uverbs::inside::set_inside;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Runs `body` with the cancellation of this thread disabled, and marks the thread as inside of the library. A panic is `EIO`. On success `errno` is as before.
pub fn guarded<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let errno = Errno::last_raw();
    let mut cancellation = 0;
    // SAFETY: the pointer is to a local variable. The state is always valid, so the call cannot fail.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancellation) };
    let was_inside = set_inside(true);
    // A panic can only leave the adapter half changed, and its locks are poisoned then.
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno::EIO));
    set_inside(was_inside);
    // SAFETY: as above; the state is the one from before.
    unsafe { pthread_setcancelstate(cancellation, &raw mut cancellation) };
    if result.is_ok() {
        Errno::set_raw(errno);
    }
    result
}
