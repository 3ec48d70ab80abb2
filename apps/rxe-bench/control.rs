//! The control connection of perftest's parameter exchange: each message has one answer.

use rxe_proto::cm::ConnId;
use rxe_proto::verbs::{
    Access, MemoryRegion, Payload, ProtectionDomain, QpCaps, QueuePair, Rc, RecvWr, Sge, WcOpcode, WorkCompletion,
    WorkRequest,
};
use rxe_service::Context;

use crate::perftest::LONGEST_MESSAGE;

const CAPS: QpCaps = QpCaps {
    max_send_wr: 4,
    max_recv_wr: 2,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: LONGEST_MESSAGE as u32,
};

/// The connection.
pub struct Control {
    /// Ours.
    pub qp: QueuePair<Rc>,
    /// Known from the peer's REP on.
    pub conn: Option<ConnId>,
    pd: ProtectionDomain,
    /// Receive buffer.
    memory: MemoryRegion,
}

fn open(cx: &mut Context<'_>, pd: ProtectionDomain) -> Result<QueuePair<Rc>, String> {
    let attr = cx.qp_attr().with_caps(CAPS);
    cx.device().create_qp_in_init(pd, attr, Access::empty()).map_err(|error| error.to_string())
}

impl Control {
    /// Creates a queue pair to connect.
    ///
    /// # Errors
    /// Why it cannot be created.
    pub fn open(cx: &mut Context<'_>, pd: ProtectionDomain) -> Result<Control, String> {
        let memory = cx.alloc_memory(LONGEST_MESSAGE).map_err(|error| error.to_string())?;
        let memory = cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE).map_err(|error| error.to_string())?;
        let qp = open(cx, pd)?;
        Ok(Control { qp, conn: None, pd, memory })
    }

    /// Creates another queue pair after a failed connection.
    ///
    /// # Errors
    /// Why it cannot be created.
    pub fn reopen(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        (self.qp, self.conn) = (open(cx, self.pd)?, None);
        Ok(())
    }

    /// Posts a receive and sends a message.
    ///
    /// # Errors
    /// Why it cannot be sent.
    pub fn say(&self, cx: &mut Context<'_>, message: &[u8]) -> Result<(), String> {
        let sge = Sge { addr: self.memory.addr(), length: LONGEST_MESSAGE as u32, lkey: self.memory.lkey() };
        let mut dev = cx.device();
        dev.post_recv(self.qp, RecvWr { wr_id: 0, sges: &[sge] }).map_err(|error| error.to_string())?;
        let wr = WorkRequest::send(Payload::Inline(message)).signaled();
        dev.post_send(self.qp, wr).map_err(|error| error.to_string())
    }

    /// The answer, if `wc` completes a receive.
    pub fn heard(&self, wc: &WorkCompletion) -> Option<Vec<u8>> {
        if wc.opcode != WcOpcode::Recv {
            return None;
        }
        let mut answer = vec![0; wc.byte_len as usize];
        self.memory.memory().read(0, &mut answer).ok()?;
        Some(answer)
    }
}
