//! Whether a thread is in the library, and not in the program; threads that always are.
//!
//! Calls that the library makes itself, or that a signal handler of the program makes while the library holds its locks, must not
//! enter it again.

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

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

/// The CPUs of this process when the library was loaded.
static CPUS: OnceLock<CpuSet> = OnceLock::new();

/// Notes the CPUs that this process may use. Later the program may pin its threads, and a thread of ours must not share the CPU of the one
/// that starts it.
pub fn note_cpus() {
    if let Ok(cpus) = sched_getaffinity(None) {
        CPUS.get_or_init(|| cpus);
    }
}

/// Starts a thread that gets no signal, and may use all CPUs of the process: the program's signals and CPUs are for its own threads.
///
/// # Errors
/// There are no more threads.
pub fn spawn_without_signals(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    without_signals(|| {
        Builder::new().name(name.to_owned()).spawn(|| {
            set_inside(true);
            if let Some(cpus) = CPUS.get() {
                // They may have been taken from the process since.
                let _ = sched_setaffinity(None, cpus);
            }
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
