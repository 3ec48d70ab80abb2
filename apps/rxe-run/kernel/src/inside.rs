//! Whether a thread is in the library, and not in the program; threads that always are.
//!
//! Calls that the library makes itself, or that a signal handler of the program makes while the library holds its locks, must not
//! enter it again.

use std::cell::Cell;
use std::io;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in the library. At the end of a thread it is not known any more: no.
#[must_use]
pub fn is_inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(false)
}

/// The thread is in the library from now on, or no longer. Returns what it was before.
pub fn set_inside(inside: bool) -> bool {
    INSIDE.try_with(|flag| flag.replace(inside)).unwrap_or(false)
}

/// Starts a thread that gets no signal: the program's are for its own threads.
///
/// # Errors
/// There are no more threads.
pub fn spawn_without_signals(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    without_signals(|| {
        Builder::new().name(name.to_owned()).spawn(|| {
            set_inside(true);
            body();
        })
    })?
}

/// Calls `start`. Threads that it starts get no signal, as they inherit the mask.
///
/// # Errors
/// Those of pthread_sigmask, which are defects.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> io::Result<T> {
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
    let result = start();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_flag() {
        assert!(!set_inside(true) && is_inside());
        std::thread::scope(|scope| scope.spawn(|| assert!(!is_inside())).join().unwrap());
        assert!(set_inside(false) && !is_inside());
    }
}
