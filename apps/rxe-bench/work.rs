//! Messages of the initiator: for measuring, or with verification.

use hdrhistogram::Histogram;
use rxe_proto::verbs::{MemoryRegion, QueuePair, Rc, WorkCompletion};
use rxe_service::Context;

use crate::load::{Load, RemoteMemory};
use crate::measurement::latencies;
use crate::plan::{Plan, Verb};
use crate::verify::Verify;

/// The messages of a run.
#[derive(Debug)]
pub enum Work {
    Load(Box<Load>),
    Verify(Box<Verify>),
}

impl Work {
    /// Prepares messages of `size` bytes on `qps`, each with the remote memory of its connection, or in all `regions` if there
    /// are any. `local` is local memory in the protection domain of the queue pairs.
    ///
    /// # Errors
    /// Why the messages cannot be posted.
    pub fn new(
        cx: &mut Context<'_>,
        plan: &Plan,
        verb: Verb,
        size: u32,
        qps: Vec<(QueuePair<Rc>, RemoteMemory)>,
        regions: &[RemoteMemory],
        local: &MemoryRegion,
    ) -> Result<Work, String> {
        if plan.verify {
            return Ok(Work::Verify(Box::new(Verify::new(cx, plan, verb, size, qps, regions, local.pd().into())?)));
        }
        Ok(Work::Load(Box::new(Load::new(plan, verb, size, &qps, regions, local)?)))
    }

    /// Posts the first messages, up to `messages` on each of `qps` queue pairs.
    ///
    /// # Errors
    /// Why a message cannot be posted.
    pub fn start(&mut self, cx: &mut Context<'_>, messages: u64, qps: u32) -> Result<(), String> {
        match self {
            Work::Load(load) => {
                load.start(cx, messages).map_err(|error| format!("a message cannot be posted: {error}"))
            }
            Work::Verify(verify) => verify.start(cx, messages.saturating_mul(u64::from(qps))),
        }
    }

    /// Handles completions, and posts further messages.
    ///
    /// # Errors
    /// Description of what failed.
    #[inline]
    pub fn completed(&mut self, cx: &mut Context<'_>, batch: &[WorkCompletion]) -> Result<(), String> {
        match self {
            Work::Load(load) => load.completed(cx, batch),
            Work::Verify(verify) => verify.completed(cx, batch),
        }
    }

    /// Completed messages.
    #[inline]
    pub fn done(&self) -> u64 {
        match self {
            Work::Load(load) => load.done,
            Work::Verify(verify) => verify.done,
        }
    }

    /// Outstanding messages.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        match self {
            Work::Load(load) => load.in_flight,
            Work::Verify(verify) => verify.in_flight,
        }
    }

    /// Starts no further messages.
    pub fn stop(&mut self) {
        match self {
            Work::Load(load) => load.stop(),
            Work::Verify(verify) => verify.stop(),
        }
    }

    /// Starts to record latencies.
    pub fn measure_latency(&mut self) {
        *self.latency() = latencies();
    }

    /// The latencies in nanoseconds, if they are recorded.
    pub fn latency(&mut self) -> &mut Option<Histogram<u64>> {
        match self {
            Work::Load(load) => &mut load.latency,
            Work::Verify(verify) => &mut verify.latency,
        }
    }

    /// Releases local memory.
    pub fn close(&self, cx: &mut Context<'_>) {
        if let Work::Verify(verify) = self {
            verify.close(cx);
        }
    }
}
