//! State that requester and responder of a queue pair share. Neither of them accesses the other or the queue pair.

use std::sync::Arc;

use crate::mem::PdId;
use crate::wire::PortId;

use super::{CqId, Latencies, QpErrorCause, QpType, Qpn, SrqId, WcOpcode, WcStatus, WorkCompletion};

/// Attributes that requester and responder both need.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) qpn: Qpn,
    pub(super) qp_type: QpType,
    pub(super) pd: PdId,
    /// Protection domain of the receives: the shared receive queue's, or `pd`.
    pub(super) recv_pd: PdId,
    pub(super) send_cq: CqId,
    pub(super) recv_cq: CqId,
    pub(super) srq: Option<SrqId>,
    /// Q_Key and port (UD, from INIT on).
    pub(super) qkey: u32,
    pub(super) port: Option<PortId>,
    /// Path MTU in bytes; the largest while there is no path.
    pub(super) mtu: u32,
    pub(super) sq_sig_all: bool,
    /// Where times of operations are counted.
    pub(super) latencies: Arc<Latencies>,
}

impl Common {
    /// The completion of a work request that did not succeed.
    pub(super) fn failed(&self, wr_id: u64, opcode: WcOpcode, status: WcStatus) -> WorkCompletion {
        WorkCompletion {
            wr_id,
            status,
            opcode,
            qpn: self.qpn,
            byte_len: 0,
            imm: None,
            invalidated_rkey: None,
            solicited: false,
            src_qpn: None,
        }
    }
}

/// Why a queue pair must go to error: the failed work request with its status, if there is one, and the cause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    /// Without meaning if there is no status.
    number: u64,
    status: Option<WcStatus>,
    pub(super) cause: QpErrorCause,
}

impl Failure {
    /// The work request of this number failed.
    pub(super) const fn of(number: u64, status: WcStatus, cause: QpErrorCause) -> Failure {
        Failure { number, status: Some(status), cause }
    }

    /// No work request is to blame.
    pub(super) const fn of_none(cause: QpErrorCause) -> Failure {
        Failure { number: 0, status: None, cause }
    }

    /// The failed work request with its status.
    pub(super) fn wqe(&self) -> Option<(u64, WcStatus)> {
        self.status.map(|status| (self.number, status))
    }
}

/// Number of packets for `len` bytes; `mtu` is a power of two.
#[inline]
pub(super) fn packets_of(len: u32, mtu: u32) -> u32 {
    debug_assert!(mtu.is_power_of_two());
    if len <= mtu {
        return 1;
    }
    let whole = len >> mtu.trailing_zeros();
    whole + u32::from(len & (mtu - 1) != 0)
}
