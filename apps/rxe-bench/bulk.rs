//! Additional load on queue pairs of its own, to measure its effect on the test.

use rxe_proto::verbs::{Access, MemoryRegion, ProtectionDomain, QueuePair, Rc, WorkCompletion};
use rxe_service::Context;

use crate::load::{self, Load, RemoteMemory};
use crate::plan::Plan;
use crate::work::Work;

/// Marks its work requests in `wr_id`.
const MARK: u64 = 1 << 63;

/// The additional load and its memory.
pub struct Bulk {
    load: Load,
    _memory: MemoryRegion,
}

impl Bulk {
    /// Starts the load of `plan`, which is [`Plan::beside`] of the test, on `qps`.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub fn start(
        cx: &mut Context<'_>,
        plan: &Plan,
        pd: ProtectionDomain,
        qps: &[(QueuePair<Rc>, RemoteMemory)],
    ) -> Result<Bulk, String> {
        let (Some(verb), Some(&size)) = (plan.test.verb(), plan.sizes.first()) else {
            return Err("the additional load needs a test that sends messages".to_owned());
        };
        let memory = cx.alloc_memory(load::local_memory(plan)).map_err(|error| error.to_string())?;
        let memory = cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE).map_err(|error| error.to_string())?;
        let mut load = Load::new(plan, verb, size, qps, &[], &memory)?;
        load.mark = MARK;
        load.start(cx, u64::MAX).map_err(|error| format!("a message cannot be posted: {error}"))?;
        Ok(Bulk { load, _memory: memory })
    }

    /// Completed messages.
    pub fn done(&self) -> u64 {
        self.load.done
    }

    /// Handles completions of the load and of `work`.
    ///
    /// # Errors
    /// Description of what failed.
    pub fn completed(&mut self, cx: &mut Context<'_>, work: &mut Work, batch: &[WorkCompletion]) -> Result<(), String> {
        for same in batch.chunk_by(|a, b| (a.wr_id ^ b.wr_id) & MARK == 0) {
            match same.first() {
                Some(first) if first.wr_id & MARK != 0 => self.load.completed(cx, same)?,
                _ => work.completed(cx, same)?,
            }
        }
        Ok(())
    }
}
