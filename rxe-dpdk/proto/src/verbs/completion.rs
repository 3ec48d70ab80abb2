//! Completion queues and work completions.

use std::fmt;

use crate::transport::{CqError, WcStatus, WorkCompletion};

use super::{CompletionQueue, Device};

impl Device<'_> {
    /// Makes a completion queue for `depth` completions (`ibv_create_cq`).
    ///
    /// Make it as deep as all work requests that may complete to it: a queue pair that finds it full goes to ERROR.
    ///
    /// # Errors
    /// [`CqError::TooMany`], [`CqError::Depth`].
    #[inline]
    pub fn create_cq(&mut self, depth: usize) -> Result<CompletionQueue, CqError> {
        self.engine.create_cq(depth).map(CompletionQueue)
    }

    /// Changes the depth of a completion queue (`ibv_resize_cq`).
    ///
    /// # Errors
    /// [`CqError::Occupied`] when more completions wait than `depth`; [`CqError::Depth`], [`CqError::Unknown`].
    #[inline]
    pub fn resize_cq(&mut self, cq: CompletionQueue, depth: usize) -> Result<(), CqError> {
        self.engine.resize_cq(cq.0, depth)
    }

    /// Removes a completion queue, with the completions in it (`ibv_destroy_cq`).
    ///
    /// # Errors
    /// [`CqError::InUse`] while queue pairs complete to it, [`CqError::Unknown`].
    #[inline]
    pub fn destroy_cq(&mut self, cq: CompletionQueue) -> Result<(), CqError> {
        self.engine.destroy_cq(cq.0)
    }

    /// Moves up to `max` completions, the oldest first, to the end of `out` (`ibv_poll_cq`). Returns how many: 0 also
    /// for a queue that is not there. Allocates only when `out` has no room.
    #[inline]
    pub fn poll_cq(&mut self, cq: CompletionQueue, out: &mut Vec<WorkCompletion>, max: usize) -> usize {
        self.engine.poll_cq(cq.0, out, max)
    }

    /// Takes the oldest completion (`ibv_poll_cq` with one entry).
    #[inline]
    pub fn poll_cq_one(&mut self, cq: CompletionQueue) -> Option<WorkCompletion> {
        self.engine.poll_cq_one(cq.0)
    }

    /// A completion queue that holds completions; another one with each call, if there are several. For owners of many
    /// queues; libibverbs has no such call.
    #[inline]
    pub fn poll_ready(&mut self) -> Option<CompletionQueue> {
        self.engine.poll_ready().map(CompletionQueue)
    }

    /// Asks for word of the next completion in a queue, once (`ibv_req_notify_cq`):
    /// [`get_cq_event`](Self::get_cq_event) names the queue then. With `solicited_only`, only receives whose sender asked for it, and failures, count.
    ///
    /// Completions that are in the queue already give no word. So ask first, then poll the queue empty, then wait.
    ///
    /// # Errors
    /// [`CqError::Unknown`].
    #[inline]
    pub fn req_notify_cq(&mut self, cq: CompletionQueue, solicited_only: bool) -> Result<(), CqError> {
        self.engine.request_notify(cq.0, solicited_only)
    }

    /// Takes the oldest word of a completion (`ibv_get_cq_event`, which waits for one where this returns `None`). There
    /// is nothing to acknowledge.
    #[inline]
    pub fn get_cq_event(&mut self) -> Option<CompletionQueue> {
        self.engine.poll_cq_event().map(CompletionQueue)
    }
}

macro_rules! statuses {
    ($($status:ident: $constant:literal, $name:literal;)*) => {
        /// What the verbs add.
        impl WcStatus {
            /// Every status.
            pub const ALL: &'static [WcStatus] = &[$(WcStatus::$status,)*];

            /// In words, for users: those that `ibv_wc_status_str` returns, as printed by libibverbs 44.0, so that
            /// messages can be searched for.
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

/// So that a failed completion can be passed on with `?`; see [`WorkCompletion::success`].
impl std::error::Error for WcStatus {}

/// What the verbs add.
impl WorkCompletion {
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
