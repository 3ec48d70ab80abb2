//! Work completions.

use std::fmt;

use crate::transport::{WcStatus, WorkCompletion};

use super::AnyQueuePair;

macro_rules! statuses {
    ($($status:ident: $constant:literal, $name:literal;)*) => {
        /// Methods of the verbs API.
        impl WcStatus {
            /// Every status.
            pub const ALL: &'static [WcStatus] = &[$(WcStatus::$status,)*];

            /// The text that `ibv_wc_status_str` returns, as printed by libibverbs 44.0, so that users can search for
            /// it.
            pub const fn name(self) -> &'static str {
                match self { $(WcStatus::$status => $name,)* }
            }

            /// The name of the constant in libibverbs' `ibv_wc_status`.
            pub const fn constant(self) -> &'static str {
                match self { $(WcStatus::$status => $constant,)* }
            }
        }
    };
}

statuses! {
    Success: "IBV_WC_SUCCESS", "success";
    LocLenErr: "IBV_WC_LOC_LEN_ERR", "local length error";
    LocQpOpErr: "IBV_WC_LOC_QP_OP_ERR", "local QP operation error";
    LocProtErr: "IBV_WC_LOC_PROT_ERR", "local protection error";
    WrFlushErr: "IBV_WC_WR_FLUSH_ERR", "Work Request Flushed Error";
    MwBindErr: "IBV_WC_MW_BIND_ERR", "memory management operation error";
    BadRespErr: "IBV_WC_BAD_RESP_ERR", "bad response error";
    LocAccessErr: "IBV_WC_LOC_ACCESS_ERR", "local access error";
    RemInvReqErr: "IBV_WC_REM_INV_REQ_ERR", "remote invalid request error";
    RemAccessErr: "IBV_WC_REM_ACCESS_ERR", "remote access error";
    RemOpErr: "IBV_WC_REM_OP_ERR", "remote operation error";
    RetryExcErr: "IBV_WC_RETRY_EXC_ERR", "transport retry counter exceeded";
    RnrRetryExcErr: "IBV_WC_RNR_RETRY_EXC_ERR", "RNR retry counter exceeded";
    FatalErr: "IBV_WC_FATAL_ERR", "fatal error";
    GeneralErr: "IBV_WC_GENERAL_ERR", "general error";
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Lets `?` propagate a failed completion; see [`WorkCompletion::success`].
impl std::error::Error for WcStatus {}

/// Methods of the verbs API.
impl WorkCompletion {
    /// The queue pair that it is of.
    #[inline]
    pub const fn qp(&self) -> AnyQueuePair {
        AnyQueuePair::of(self.qpn)
    }

    /// The completion itself when the work request succeeded.
    ///
    /// # Errors
    /// The status otherwise.
    #[inline]
    pub fn success(self) -> Result<WorkCompletion, WcStatus> {
        match self.status {
            WcStatus::Success => Ok(self),
            status => Err(status),
        }
    }
}
