//! A second kind of load beside the test, on queue pairs of its own: what it does to the first is the test.

use rxe_dpdk::service::Context;
use rxe_proto::verbs::{Access, MemoryRegion, ProtectionDomain, QueuePair, Rc, WorkCompletion};

use crate::load::{self, Load, RemoteMemory};
use crate::plan::Plan;
use crate::work::Work;

/// Marks its work requests.
const MARK: u64 = 1 << 63;

/// The load, and what it lies in.
pub struct Bulk {
    load: Load,
    size: u32,
    /// Messages done when it began to count.
    before: u64,
    _memory: MemoryRegion,
}

impl Bulk {
    /// Starts what `plan` says, [`Plan::beside`] of the test's, on `qps`.
    ///
    /// # Errors
    /// In words, why not.
    pub fn start(
        cx: &mut Context<'_>,
        plan: &Plan,
        pd: ProtectionDomain,
        qps: &[(QueuePair<Rc>, RemoteMemory)],
    ) -> Result<Bulk, String> {
        let (Some(verb), Some(&size)) = (plan.test.verb(), plan.sizes.first()) else {
            return Err("a load beside the test has messages".to_owned());
        };
        let memory = cx.alloc_memory(load::local_memory(plan)).map_err(|error| error.to_string())?;
        let memory = cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE).map_err(|error| error.to_string())?;
        let mut load = Load::new(plan, verb, size, qps, &[], &memory)?;
        load.mark = MARK;
        load.start(cx, u64::MAX).map_err(|error| format!("a message cannot be posted: {error}"))?;
        Ok(Bulk { load, size, before: 0, _memory: memory })
    }

    /// From now on it counts.
    pub fn measure(&mut self) {
        self.before = self.load.done;
    }

    /// What has come in `seconds` of counting, in Gb/s.
    pub fn gbps(&self, seconds: f64) -> f64 {
        (self.load.done - self.before) as f64 * f64::from(self.size) * 8e-9 / seconds
    }

    /// Takes note of what has completed, of its own and of `work`, and goes on.
    ///
    /// # Errors
    /// In words, what went wrong.
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
