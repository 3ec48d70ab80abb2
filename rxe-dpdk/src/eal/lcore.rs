//! Running code on lcores.

use std::any::Any;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use super::error::EalError;
use super::init::Eal;

/// An lcore and what to run on it.
pub type Job<'s> = (u32, Box<dyn FnOnce() + Send + 's>);

impl Eal {
    /// The lcore of the thread that started EAL.
    pub fn main_lcore() -> u32 {
        // SAFETY: reads EAL's configuration, which is zero before EAL starts.
        unsafe { dpdk_sys::rte_get_main_lcore() }
    }

    /// The lcore that the calling thread is; `None` on a thread that EAL did not start.
    pub fn current_lcore() -> Option<u32> {
        // SAFETY: reads a thread-local number.
        let lcore = unsafe { dpdk_sys::rxe_lcore_id() };
        (lcore != dpdk_sys::RXE_LCORE_ID_ANY).then_some(lcore)
    }

    /// Every lcore that EAL was given, the main one first.
    pub fn lcores(&self) -> Vec<u32> {
        let mut lcores = vec![Eal::main_lcore()];
        let mut previous = u32::MAX;
        loop {
            // SAFETY: EAL is initialised. u32::MAX is DPDK's own way to say "from the start"; the main one is skipped
            // and the walk does not wrap, so it ends.
            let lcore = unsafe { dpdk_sys::rte_get_next_lcore(previous, 1, 0) };
            // DPDK answers RTE_MAX_LCORE at the end.
            if lcore >= MAX_LCORE {
                return lcores;
            }
            lcores.push(lcore);
            previous = lcore;
        }
    }

    /// The NUMA node of an lcore.
    pub fn lcore_socket(&self, lcore: u32) -> i32 {
        // SAFETY: EAL is initialised; DPDK checks nothing, so a number out of range is not passed on.
        if lcore < MAX_LCORE { unsafe { dpdk_sys::rte_lcore_to_socket_id(lcore) as i32 } } else { 0 }
    }

    /// Runs each job on its lcore, the main lcore's on the calling thread, and returns when all have ended.
    ///
    /// A job that panics does not stop the others: let it hold something whose `drop` tells them to end.
    ///
    /// # Errors
    ///
    /// [`EalError::NotMainLcore`] unless called by the thread that started EAL; [`EalError::Lcore`] for an lcore that
    /// does not exist, is named twice or is busy (nothing has run then); [`EalError::WorkerPanicked`] after all have
    /// ended.
    pub fn run_workers(&self, jobs: Vec<Job<'_>>) -> Result<(), EalError> {
        let main = Eal::main_lcore();
        if Eal::current_lcore() != Some(main) {
            return Err(EalError::NotMainLcore);
        }
        self.check_lcores(&jobs, main)?;

        let mut runs: Vec<Run<'_>> = jobs.into_iter().map(|(lcore, job)| Run::new(lcore, job)).collect();
        let lcores: Vec<u32> = runs.iter().map(|run| run.lcore).collect();
        let mut launched = Vec::with_capacity(lcores.len());
        let mut refused = None;
        // While workers run, the elements are reached through this pointer only, each by its own worker.
        let base = runs.as_mut_ptr();
        for (i, &lcore) in lcores.iter().enumerate().filter(|(_, lcore)| **lcore != main) {
            // SAFETY: in bounds. The element outlives the worker, which is waited for below on every path; nobody
            // else touches it meanwhile.
            let ret = unsafe { dpdk_sys::rte_eal_remote_launch(Some(enter), base.add(i).cast(), lcore) };
            if ret == 0 {
                launched.push(lcore);
            } else {
                // Checked above, so this is another thread using the lcores behind our back. The other jobs run all
                // the same: they may wait for each other, and cannot be called back.
                refused = Some(EalError::Lcore { lcore, problem: "is busy" });
            }
        }
        if let Some(i) = lcores.iter().position(|lcore| *lcore == main) {
            // SAFETY: in bounds; no worker was given the main lcore's element. Panics are caught inside.
            unsafe { enter(base.add(i).cast()) };
        }
        for lcore in launched {
            // SAFETY: waits for a worker launched above; it synchronises with the worker's end.
            unsafe { dpdk_sys::rte_eal_wait_lcore(lcore) };
        }

        let panicked = runs.into_iter().find_map(|run| run.panic.map(|message| (run.lcore, message)));
        match (panicked, refused) {
            (Some((lcore, message)), _) => Err(EalError::WorkerPanicked { lcore, message }),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(()),
        }
    }

    fn check_lcores(&self, jobs: &[Job<'_>], main: u32) -> Result<(), EalError> {
        let known = self.lcores();
        let mut seen = BTreeSet::new();
        for &(lcore, _) in jobs {
            if !known.contains(&lcore) {
                return Err(EalError::Lcore { lcore, problem: "was not given to EAL with -l" });
            }
            if !seen.insert(lcore) {
                return Err(EalError::Lcore { lcore, problem: "was given two jobs" });
            }
            // SAFETY: a known lcore.
            let state = unsafe { dpdk_sys::rte_eal_get_lcore_state(lcore) };
            if lcore != main && state != dpdk_sys::rte_lcore_state_t_WAIT {
                return Err(EalError::Lcore { lcore, problem: "is busy" });
            }
        }
        Ok(())
    }
}

/// DPDK numbers lcores below RTE_MAX_LCORE.
const MAX_LCORE: u32 = dpdk_sys::RXE_MAX_LCORE;

/// One job on its way.
struct Run<'s> {
    lcore: u32,
    job: Option<Box<dyn FnOnce() + Send + 's>>,
    panic: Option<String>,
}

impl<'s> Run<'s> {
    fn new(lcore: u32, job: Box<dyn FnOnce() + Send + 's>) -> Run<'s> {
        Run { lcore, job: Some(job), panic: None }
    }
}

/// Entry point of a worker's thread, called by DPDK. No panic leaves it: C knows no unwinding.
///
/// # Safety
///
/// `arg` points to a `Run` that nobody else touches until this returns.
unsafe extern "C" fn enter(arg: *mut c_void) -> c_int {
    let run = arg.cast::<Run<'_>>();
    // SAFETY: the caller's contract. Not held as a reference across the job, only for the take.
    let job = unsafe { (*run).job.take() };
    let Some(job) = job else {
        return 0;
    };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(job)) {
        // SAFETY: the caller's contract; the old value is None.
        unsafe { ptr::addr_of_mut!((*run).panic).write(Some(message(payload.as_ref()))) };
    }
    0
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
