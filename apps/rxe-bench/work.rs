//! What the initiator has under way: messages as fast as they go, or messages that are looked at.

use hdrhistogram::Histogram;
use rxe_dpdk::service::Context;
use rxe_proto::verbs::{MemoryRegion, QueuePair, Rc, WorkCompletion};

use crate::load::{LONGEST, Load, RemoteMemory};
use crate::plan::{Plan, Verb};
use crate::verify::Verify;

/// Either of the two.
#[derive(Debug)]
pub enum Work {
    Load(Box<Load>),
    Verify(Box<Verify>),
}

impl Work {
    /// Nothing under way yet, for messages of `size` bytes on `qps`, each with the memory that the peer told, or over all
    /// `regions` where there are any. `local` is ours, in the protection domain of the queue pairs.
    ///
    /// # Errors
    /// In words, why the messages cannot be tested.
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

    /// Posts the first messages; `messages` for each of `qps` queue pairs in all.
    ///
    /// # Errors
    /// In words, why not.
    pub fn start(&mut self, cx: &mut Context<'_>, messages: u64, qps: u32) -> Result<(), String> {
        match self {
            Work::Load(load) => {
                load.start(cx, messages).map_err(|error| format!("a message cannot be posted: {error}"))
            }
            Work::Verify(verify) => verify.start(cx, messages.saturating_mul(u64::from(qps))),
        }
    }

    /// Takes note of what has completed, and goes on.
    ///
    /// # Errors
    /// In words, what went wrong.
    #[inline]
    pub fn completed(&mut self, cx: &mut Context<'_>, batch: &[WorkCompletion]) -> Result<(), String> {
        match self {
            Work::Load(load) => load.completed(cx, batch),
            Work::Verify(verify) => verify.completed(cx, batch),
        }
    }

    /// Messages completed.
    #[inline]
    pub fn done(&self) -> u64 {
        match self {
            Work::Load(load) => load.done,
            Work::Verify(verify) => verify.done,
        }
    }

    /// Messages under way.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        match self {
            Work::Load(load) => load.in_flight,
            Work::Verify(verify) => verify.in_flight,
        }
    }

    /// Nothing new is begun any more.
    pub fn stop(&mut self) {
        match self {
            Work::Load(load) => load.stop(),
            Work::Verify(verify) => verify.stop(),
        }
    }

    /// From now on it is measured what each message takes.
    pub fn measure_latency(&mut self) {
        *self.latency() = Histogram::new_with_bounds(1, LONGEST, 3).ok();
    }

    /// What was measured.
    pub fn take_latency(&mut self) -> Option<Histogram<u64>> {
        self.latency().take()
    }

    fn latency(&mut self) -> &mut Option<Histogram<u64>> {
        match self {
            Work::Load(load) => &mut load.latency,
            Work::Verify(verify) => &mut verify.latency,
        }
    }

    /// Gives back what it has.
    pub fn close(&self, cx: &mut Context<'_>) {
        if let Work::Verify(verify) = self {
            verify.close(cx);
        }
    }
}
