//! What the tests of the requester post and look at.

use std::time::Duration;

use rxe_proto::transport::{QpErrorCause, RemoteAddr, SendOp, WcStatus};

use super::receives::{self, statuses};
use super::solo::Solo;

pub const REMOTE: RemoteAddr = RemoteAddr { addr: 0x10_000, rkey: 0x77 };
pub const SEND: SendOp = SendOp::Send { imm: None };
pub const WRITE: SendOp = SendOp::Write { remote: REMOTE, imm: None };
pub const READ: SendOp = SendOp::Read { remote: REMOTE };
pub const FADD: SendOp = SendOp::FetchAdd { remote: REMOTE, add: 1 };
/// Timeout code 8.
pub const TIMEOUT: Duration = Duration::from_nanos(4096 << 8);

/// Posts `len` bytes from offset 0.
pub fn post(solo: &mut Solo, wr_id: u64, op: SendOp, len: usize) {
    let sge = solo.node.sge(0, len);
    solo.node.post_send(wr_id, op, &[sge]);
}

/// What has completed: number and status.
pub fn completed(solo: &mut Solo) -> Vec<(u64, WcStatus)> {
    statuses(&solo.node.take_completions())
}

pub fn errors(solo: &mut Solo) -> Vec<QpErrorCause> {
    receives::errors(&solo.node.take_events())
}
