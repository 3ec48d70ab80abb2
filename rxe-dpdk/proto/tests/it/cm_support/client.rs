//! An initiator much like Linux, for tests that lose packets.

use rxe_proto::wire::cm::{CmMessage, Rej, RejReason, Rep};
use rxe_proto::{Duration, Instant};

use super::{drep, dreq, req, rtu};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientState {
    ReqSent,
    Established,
    DreqSent,
    /// Over, after having been established.
    Closed,
    Rejected(RejReason),
    Unreachable,
}

/// One connection of an initiator. Answers every message as the kernel does.
pub struct Client {
    pub comm_id: u32,
    pub qpn: u32,
    pub state: ClientState,
    pub rep: Option<Rep>,
    deadline: Option<Instant>,
    sends_left: u8,
}

impl Client {
    const RESEND: Duration = Duration::from_millis(6144);

    pub fn connect(now: Instant, comm_id: u32, qpn: u32, out: &mut Vec<CmMessage>) -> Client {
        let state = ClientState::ReqSent;
        let deadline = Some(now + Self::RESEND);
        let client = Client { comm_id, qpn, state, rep: None, deadline, sends_left: 15 };
        out.push(client.req());
        client
    }

    fn req(&self) -> CmMessage {
        let mut req = req(self.comm_id);
        req.local_qpn = self.qpn;
        CmMessage::Req(req)
    }

    fn server(&self) -> (u32, u32) {
        self.rep.as_ref().map_or((0, 0), |rep| (rep.local_comm_id, rep.local_qpn))
    }

    pub fn disconnect(&mut self, now: Instant, out: &mut Vec<CmMessage>) {
        assert_eq!(self.state, ClientState::Established);
        self.state = ClientState::DreqSent;
        self.sends_left = 15;
        self.deadline = Some(now + Self::RESEND);
        let (id, qpn) = self.server();
        out.push(dreq(self.comm_id, id, qpn));
    }

    pub fn handle(&mut self, message: &CmMessage, out: &mut Vec<CmMessage>) {
        match (message, self.state) {
            (CmMessage::Rep(rep), ClientState::ReqSent) => {
                self.rep = Some(rep.clone());
                self.state = ClientState::Established;
                self.deadline = None;
                out.push(rtu(self.comm_id, rep.local_comm_id));
            }
            (CmMessage::Rep(rep), ClientState::Established) if rep.local_comm_id == self.server().0 => {
                out.push(rtu(self.comm_id, rep.local_comm_id));
            }
            (CmMessage::Rej(Rej { reason, .. }), ClientState::ReqSent) => {
                self.state = ClientState::Rejected(*reason);
                self.deadline = None;
            }
            (CmMessage::Dreq(message), _) => {
                out.push(drep(self.comm_id, message.local_comm_id));
                if message.local_comm_id == self.server().0 && message.remote_qpn == self.qpn {
                    self.state = ClientState::Closed;
                    self.deadline = None;
                }
            }
            (CmMessage::Drep(message), ClientState::DreqSent) if message.local_comm_id == self.server().0 => {
                self.state = ClientState::Closed;
                self.deadline = None;
            }
            _ => {}
        }
    }

    pub fn next_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    pub fn handle_timeout(&mut self, now: Instant, out: &mut Vec<CmMessage>) {
        if self.deadline.is_none_or(|at| at > now) {
            return;
        }
        self.deadline = Some(now + Self::RESEND);
        match self.state {
            ClientState::ReqSent | ClientState::DreqSent if self.sends_left == 0 => {
                let unanswered = self.state == ClientState::DreqSent;
                self.state = if unanswered { ClientState::Closed } else { ClientState::Unreachable };
                self.deadline = None;
            }
            ClientState::ReqSent => {
                self.sends_left -= 1;
                out.push(self.req());
            }
            ClientState::DreqSent => {
                self.sends_left -= 1;
                let (id, qpn) = self.server();
                out.push(dreq(self.comm_id, id, qpn));
            }
            _ => self.deadline = None,
        }
    }
}
