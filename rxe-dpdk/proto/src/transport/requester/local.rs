//! Local work requests: binding memory windows, fast registration, local invalidation, and those that only fail.
//!
//! They have an entry in the queue but no PSN: each is executed once, when the cursor first reaches it, and completes
//! after everything before it. IBTA: "Memory Windows", "Fast Register Physical MR", "Invalidate operations".

use crate::transport::common::{Common, Failure};
use crate::transport::context::Context;
use crate::transport::{QpErrorCause, SendOp, WcStatus};

use super::packet::Sent;
use super::{Requester, SendWqe};

impl Requester {
    /// Executes the local operation at the cursor, unless it has to wait.
    pub(super) fn local_operation(&mut self, wqe: &SendWqe, common: &Common, cx: &mut Context, draining: bool) -> Sent {
        let number = self.cursor_wqe;
        // compliance.md [REQ-LOCAL-ONCE]: Bind, fast registration and local invalidation take no PSN, are executed once
        // whatever is retried, and complete in queue order.
        if number < self.local_done {
            // Executed before a retry.
            self.cursor_wqe += 1;
            return Sent::Local;
        }
        // SQD: nothing new is begun.
        if draining {
            return Sent::Blocked;
        }
        // compliance.md [RC-REQ-FENCE]: A fenced work request waits for all READs and atomics before it.
        if wqe.is_fenced() && self.reads.outstanding() > 0 {
            cx.stats.fence_stalls.inc();
            return Sent::Blocked;
        }
        let is_oldest = self.sq.head() == number;
        let (pd, qpn) = (common.pd, common.qpn.get());
        let outcome = match wqe.op {
            SendOp::BindWindow { key, key_byte, bind } => {
                let bound = cx.keys.bind_window_as(key, key_byte, pd, qpn, &bind);
                bound.map(|_| ()).map_err(|_| WcStatus::MwBindErr)
            }
            SendOp::FastRegister { key, addr, access } => {
                cx.keys.fast_register(key, pd, addr, access).map_err(|_| WcStatus::LocQpOpErr)
            }
            // Earlier requests may need the key for a retransmission.
            // compliance.md [REQ-LOCAL-INVALIDATE]: A local invalidation waits for all work requests before it.
            SendOp::LocalInvalidate { .. } if !is_oldest => {
                cx.stats.local_stalls.inc();
                return Sent::Blocked;
            }
            SendOp::LocalInvalidate { key } => cx.keys.invalidate_local(key, pd).map_err(|_| WcStatus::LocQpOpErr),
            SendOp::Invalid { status } if status != WcStatus::Success => Err(status),
            _ => Err(WcStatus::LocQpOpErr),
        };
        match outcome {
            Ok(()) => {
                self.cursor_wqe += 1;
                self.local_done = self.cursor_wqe;
                match if is_oldest { self.complete(common, cx) } else { Ok(()) } {
                    Ok(()) => Sent::Local,
                    Err(failure) => Sent::Failed(failure),
                }
            }
            // It fails only when it is the oldest, so that earlier requests can complete; until then it is retried.
            // compliance.md [REQ-LOCAL-FAIL]: A local operation fails only when it is the oldest, after earlier work
            // requests have completed.
            Err(_) if !is_oldest => Sent::Blocked,
            Err(status) => Sent::Failed(Failure::of(number, status, QpErrorCause::LocalOperation)),
        }
    }
}
