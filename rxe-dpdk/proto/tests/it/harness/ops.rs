//! Operations and checks for tests of the requester.

use std::time::Duration;

use rxe_proto::transport::{QpErrorCause, RemoteAddr, SendOp, WcStatus};

use super::receives::{self, statuses};
use super::scripted_peer::ScriptedPeer;

pub const REMOTE: RemoteAddr = RemoteAddr { addr: 0x10_000, rkey: 0x77 };
pub const SEND: SendOp = SendOp::Send { imm: None };
pub const WRITE: SendOp = SendOp::Write { remote: REMOTE, imm: None };
pub const READ: SendOp = SendOp::Read { remote: REMOTE };
pub const FADD: SendOp = SendOp::FetchAdd { remote: REMOTE, add: 1 };
/// Timeout code 8.
pub const TIMEOUT: Duration = Duration::from_nanos(4096 << 8);

/// Posts `len` bytes from offset 0.
pub fn post(peer: &mut ScriptedPeer, wr_id: u64, op: SendOp, len: usize) {
    let sge = peer.node.sge(0, len);
    peer.node.post_send(wr_id, op, &[sge]);
}

/// Completions: number and status.
pub fn completed(peer: &mut ScriptedPeer) -> Vec<(u64, WcStatus)> {
    statuses(&peer.node.take_completions())
}

pub fn errors(peer: &mut ScriptedPeer) -> Vec<QpErrorCause> {
    receives::errors(&peer.node.take_events())
}
