//! The connection and the memory of one queue: receives for responses, and entries of commands whose data follow in the capsule.

use rxe::CliError;
use rxe_nvmf::wire::private_data::QueueRequest;
use rxe_nvmf::wire::{CQE_LEN, Cqe, SQE_LEN, Sqe};
use rxe_proto::cm::ConnId;
use rxe_proto::verbs::{
    Access, MemoryRegion, Payload, PostError, ProtectionDomain, QpCaps, QueuePair, Rc, RecvWr, Sge, WorkRequest,
};
use rxe_service::{Connect, Context};
use zerocopy::{FromBytes, IntoBytes};

use super::plan::NvmePlan;
use crate::session::{RESPONSE_TIMEOUT, broken, max_cm_retries};

/// Distance of two entries in the memory.
const ENTRY: usize = 64;
/// READs of the data of writes that the target may have outstanding.
const TARGET_READS: u8 = 128;
/// Commands in the send queue for each outstanding one: a response can arrive before the ACK of its command, and each ACK is for all
/// commands before it.
const UNACKED: u32 = 4;
/// Bit of `wr_id` of a receive.
const RECEIVE: u64 = 1 << 63;
/// Slot of a command of the session.
pub const SESSION_SLOT: u16 = u16::MAX;

/// A completed work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkId {
    /// The queue.
    pub qid: u16,
    /// A receive, or a sent command.
    pub is_receive: bool,
    /// Number of the receive, or slot of the command.
    pub slot: u16,
}

impl WorkId {
    /// From the number of a work request.
    #[inline]
    pub fn parse(wr_id: u64) -> WorkId {
        WorkId { qid: (wr_id >> 16) as u16, is_receive: wr_id & RECEIVE != 0, slot: wr_id as u16 }
    }

    #[inline]
    fn number(self) -> u64 {
        u64::from(self.qid) << 16 | u64::from(self.slot) | if self.is_receive { RECEIVE } else { 0 }
    }
}

/// A queue's connection.
pub struct Wires {
    request: QueueRequest,
    qp: QueuePair<Rc>,
    /// When the peer has accepted.
    pub conn: Option<ConnId>,
    /// The receives, then the entries of commands.
    memory: MemoryRegion,
}

impl Wires {
    /// Requests the connection of a queue with `commands` outstanding commands.
    ///
    /// # Errors
    /// The queue pair cannot be made.
    pub fn connect(
        cx: &mut Context<'_>,
        plan: &NvmePlan,
        pd: ProtectionDomain,
        request: QueueRequest,
    ) -> Result<Wires, CliError> {
        let len = 2 * usize::from(request.host_receives) * ENTRY;
        let memory = cx.alloc_memory(len).map_err(broken)?;
        let memory = cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE).map_err(broken)?;
        let receives = u32::from(request.host_receives);
        let caps = QpCaps {
            max_send_wr: UNACKED * receives,
            max_recv_wr: receives,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: SQE_LEN as u32,
        };
        let attr = cx.qp_attr().with_caps(caps);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let qp = cx.device().create_qp_in_init(pd, attr, access).map_err(broken)?;
        let wires = Wires { request, qp, conn: None, memory };
        (0..request.host_receives).try_for_each(|slot| wires.post_receive(cx, slot)).map_err(broken)?;
        cx.connect(Connect {
            responder_resources: TARGET_READS,
            path_mtu: plan.path_mtu,
            response_timeout: RESPONSE_TIMEOUT,
            // One queue after the other.
            max_cm_retries: max_cm_retries(plan.udp, 1),
            private_data: request.to_bytes().to_vec(),
            ..Connect::new(plan.peer, qp)
        });
        Ok(wires)
    }

    /// Requests the connection again after a temporary rejection.
    ///
    /// # Errors
    /// The queue pair cannot be made.
    pub fn reconnect(self, cx: &mut Context<'_>, plan: &NvmePlan, pd: ProtectionDomain) -> Result<Wires, CliError> {
        // No windows are bound to it, and its queue pair is destroyed.
        let _ = cx.device().dereg_mr(&self.memory);
        Wires::connect(cx, plan, pd, self.request)
    }

    /// The queue pair.
    pub fn qp(&self) -> QueuePair<Rc> {
        self.qp
    }

    /// The queue's number.
    pub fn qid(&self) -> u16 {
        self.request.qid
    }

    fn post_receive(&self, cx: &mut Context<'_>, slot: u16) -> Result<(), PostError> {
        let sge = self.entry(usize::from(slot), CQE_LEN);
        let id = WorkId { qid: self.qid(), is_receive: true, slot };
        cx.device().post_recv(self.qp, RecvWr { wr_id: id.number(), sges: &[sge] })
    }

    /// Takes the response of a completed receive of `len` bytes, and posts the receive again.
    ///
    /// # Errors
    /// The response is invalid, or the receive cannot be posted.
    #[inline]
    pub fn take_response(&self, cx: &mut Context<'_>, slot: u16, len: u32) -> Result<Cqe, CliError> {
        let mut bytes = [0; CQE_LEN];
        if len as usize != CQE_LEN {
            return Err(broken(format!("the target has sent a response of {len} bytes in place of {CQE_LEN}")));
        }
        self.memory.memory().read(usize::from(slot) * ENTRY, &mut bytes).map_err(broken)?;
        self.post_receive(cx, slot).map_err(broken)?;
        Cqe::read_from_bytes(&bytes).map_err(|error| broken(error.to_string()))
    }

    /// Sends a command without data in the capsule. Its completion is the response.
    ///
    /// # Errors
    /// Why it cannot be posted.
    #[inline]
    pub fn send(&self, cx: &mut Context<'_>, slot: u16, sqe: &Sqe) -> Result<(), PostError> {
        let id = WorkId { qid: self.qid(), is_receive: false, slot };
        cx.device().post_send(self.qp, WorkRequest::send(Payload::Inline(sqe.as_bytes())).wr_id(id.number()))
    }

    /// Sends a command whose data in the capsule are `data`. They must not change until the work request has completed.
    ///
    /// # Errors
    /// Why it cannot be posted.
    #[inline]
    pub fn send_with_data(&self, cx: &mut Context<'_>, slot: u16, sqe: &Sqe, data: Sge) -> Result<(), CliError> {
        // The session has one such command at a time, before there are others.
        let entry = if slot == SESSION_SLOT { 0 } else { slot };
        let nth = usize::from(self.request.host_receives) + usize::from(entry);
        self.memory.memory().write(nth * ENTRY, sqe.as_bytes()).map_err(broken)?;
        let id = WorkId { qid: self.qid(), is_receive: false, slot };
        let sges = [self.entry(nth, SQE_LEN), data];
        cx.device().post_send(self.qp, WorkRequest::send(&sges).wr_id(id.number()).signaled()).map_err(broken)
    }

    #[inline]
    fn entry(&self, nth: usize, len: usize) -> Sge {
        Sge { addr: self.memory.addr() + (nth * ENTRY) as u64, length: len as u32, lkey: self.memory.lkey() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_work_requests_name_queue_and_slot() {
        for id in [
            WorkId { qid: 0, is_receive: true, slot: 31 },
            WorkId { qid: 128, is_receive: false, slot: SESSION_SLOT },
            WorkId { qid: u16::MAX, is_receive: true, slot: 0 },
        ] {
            assert_eq!(WorkId::parse(id.number()), id);
        }
    }
}
