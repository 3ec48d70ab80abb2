//! Posted work requests: each completes at most once, in the order of its queue.

use std::collections::VecDeque;

use rxe_proto::transport::{Qpn, RecvWr, SendFlags, SendOp, Sge, WcOpcode, WcStatus, WorkCompletion};

/// A posted work request.
#[derive(Clone, Debug)]
pub struct Posted {
    pub wr_id: u64,
    pub sges: Vec<Sge>,
    /// Of a send queue: the operation, and whether it completes on success.
    pub op: Option<(SendOp, bool)>,
}

impl Posted {
    pub fn recv(wr: &RecvWr<'_>) -> Posted {
        Posted { wr_id: wr.wr_id, sges: wr.sges.to_vec(), op: None }
    }

    pub fn send(wr_id: u64, op: SendOp, sges: &[Sge], flags: SendFlags) -> Posted {
        Posted { wr_id, sges: sges.to_vec(), op: Some((op, flags.contains(SendFlags::SIGNALED))) }
    }

    fn len(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }

    /// Whether a response writes its buffers.
    pub fn returns_data(&self) -> bool {
        let returns =
            |op: SendOp| matches!(op.wc_opcode(), WcOpcode::RdmaRead | WcOpcode::CompSwap | WcOpcode::FetchAdd);
        self.op.is_some_and(|(op, _)| returns(op))
    }
}

/// The work of one queue pair.
#[derive(Default, Debug)]
pub struct Work {
    pub sends: VecDeque<Posted>,
    pub recvs: VecDeque<Posted>,
    /// A completion with an error has come since the last reset.
    send_failed: bool,
    /// Packets of READ and atomic responses received, less those that completed work requests needed.
    responses: usize,
}

/// The bit of the work request numbers of receives.
pub const RECV: u64 = 1 << 63;

impl Work {
    /// Everything posted is forgotten, as by a transition to RESET.
    pub fn reset(&mut self) {
        *self = Work::default();
    }

    /// The send queue works again after a failure.
    pub fn resume(&mut self) {
        self.send_failed = false;
    }

    /// Whether everything has completed after a transition to ERROR. `queued`: the send queue was not empty before. Work
    /// requests that are not signaled may have succeeded before without a completion.
    pub fn flushed(&self, queued: bool) -> bool {
        let silent = self.sends.iter().all(|posted| posted.op.is_some_and(|(_, signaled)| !signaled));
        self.recvs.is_empty() && silent && (self.sends.is_empty() || !queued)
    }

    /// A packet of a READ or atomic response has come.
    pub fn responded(&mut self) {
        self.responses += 1;
    }

    /// A completion of the send queue. `lossy`: completions before it may be missing. `mtu`: bytes of a response packet.
    pub fn sent(&mut self, wc: &WorkCompletion, lossy: bool, mtu: usize) {
        let success = wc.status == WcStatus::Success;
        loop {
            let posted = self.sends.pop_front().unwrap_or_else(|| panic!("completed, but not outstanding: {wc:?}"));
            let (op, signaled) = posted.op.expect("a send");
            if posted.wr_id == wc.wr_id {
                assert!(!success || signaled || lossy, "not signaled: {wc:?}");
                assert!(!success || wc.opcode == op.wc_opcode(), "{op:?}: {wc:?}");
                let returned = if posted.returns_data() { posted.len() } else { 0 };
                assert!(!success || u64::from(wc.byte_len) == returned, "{op:?}: {wc:?}");
                if success && posted.returns_data() {
                    let needed = (returned as usize).div_ceil(mtu).max(1);
                    let left = self.responses.checked_sub(needed);
                    self.responses = left.unwrap_or_else(|| panic!("without {needed} responses: {wc:?}"));
                }
                break;
            }
            assert!(lossy || !signaled && !self.send_failed, "{} has not completed before {wc:?}", posted.wr_id);
        }
        assert!(lossy || !success || !self.send_failed, "success after a failure: {wc:?}");
        self.send_failed |= !success;
    }

    /// A completion of the own receive queue.
    pub fn received(&mut self, wc: &WorkCompletion, lossy: bool) {
        loop {
            let posted = self.recvs.pop_front().unwrap_or_else(|| panic!("completed, but not outstanding: {wc:?}"));
            if posted.wr_id == wc.wr_id {
                return check_receive(&posted, wc);
            }
            assert!(lossy, "receive {} has not completed before {wc:?}", posted.wr_id);
        }
    }
}

/// Receives of a shared receive queue complete in any order.
pub fn received_shared(posted: &mut Vec<Posted>, wc: &WorkCompletion) {
    let at = posted.iter().position(|posted| posted.wr_id == wc.wr_id);
    let at = at.unwrap_or_else(|| panic!("completed, but not outstanding: {wc:?}"));
    check_receive(&posted.remove(at), wc);
}

fn check_receive(posted: &Posted, wc: &WorkCompletion) {
    if wc.status == WcStatus::Success {
        match wc.opcode {
            WcOpcode::Recv => assert!(u64::from(wc.byte_len) <= posted.len(), "longer than the receive: {wc:?}"),
            WcOpcode::RecvRdmaWithImm => assert!(wc.imm.is_some(), "{wc:?}"),
            _ => panic!("not the opcode of a receive: {wc:?}"),
        }
    } else {
        assert_ne!(wc.qpn, Qpn::default());
    }
}
