//! A queue pair of a host: receives, responses, and the order in which they go out.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use rxe_nvmf::controller::{ControllerId, FenceId, IoCounts};
use rxe_nvmf::io::IoQueue;
use rxe_nvmf::wire::Response;
use rxe_proto::cm::ConnId;
use rxe_proto::verbs::{Payload, PostError, QpCaps, QueuePair, Rc, RemoteAddr, Sge, WorkRequest};
use rxe_service::Context;
use zerocopy::IntoBytes;

use super::admission::Piece;
use super::hosts::HostNumber;
use super::namespaces::SubsystemView;
use super::receives::Receives;

/// Number of the work requests that send a response.
const WR_RESPONSE: u64 = u64::MAX;
/// Length of a response.
const RESPONSE_LEN: u32 = rxe_nvmf::wire::CQE_LEN as u32;

/// The kind of a queue, with its controller.
pub enum Role {
    /// Nothing yet: its first command is a Connect.
    New,
    /// The admin queue of a controller.
    Admin {
        /// The controller.
        controller: ControllerId,
        /// Asynchronous Event Requests: command id and receive.
        held: Vec<(u16, u16)>,
    },
    /// An I/O queue.
    Io {
        /// The controller.
        controller: ControllerId,
        /// Checks commands and counts entries.
        queue: IoQueue,
        /// Its commands, for the controllers.
        fence: FenceId,
        /// The namespaces.
        view: Arc<SubsystemView>,
        /// Since the last report.
        counts: IoCounts,
    },
}

/// A work request, or two, for the send queue.
pub enum Outgoing {
    /// RDMA READ of a command's data.
    Fetch {
        /// The command.
        command: usize,
        /// Staging, which the queue has until the READ is complete or the queue pair is gone.
        piece: Piece,
        /// The part of the staging that is to be written.
        to: Sge,
        /// The host's memory.
        from: RemoteAddr,
    },
    /// The end of a command: data, if it has some, and the response.
    Respond {
        /// The command's receive, which is posted again before.
        slot: u16,
        /// RDMA WRITE of the data.
        data: Option<(Sge, RemoteAddr)>,
        /// The response.
        response: Response,
        /// Staging that is free when the response is acknowledged.
        piece: Option<Piece>,
    },
}

/// Responses that are not acknowledged: the last one is signaled, with which those before it complete.
#[derive(Default)]
struct Sent {
    work_requests: u32,
    responses: u64,
    piece: Option<Piece>,
}

/// A work request of the send queue, or several, that the host has acknowledged.
pub enum Acknowledged {
    /// The data of a command are in this piece.
    Fetched(usize, Piece),
    /// Responses, whose staging is free, if they had some.
    Responses(Option<Piece>),
}

/// A queue of a host.
pub struct Queue {
    /// The connection that carries the queue.
    pub conn: ConnId,
    /// The address of the host.
    pub client: SocketAddr,
    /// The host, for the admission of its commands.
    pub host: HostNumber,
    /// The kind of the queue, which Connect determines.
    pub role: Role,
    /// It is being disconnected: what still completes is ignored, and nothing more is submitted for it.
    pub ending: bool,
    qp: QueuePair<Rc>,
    receives: Receives,
    /// The commands in progress, by receive.
    commands: Vec<Option<usize>>,
    sent: VecDeque<Sent>,
    /// The READs that are not complete, in the order in which they were posted. Nothing else has their staging, so it cannot be
    /// freed before the queue pair has written it.
    fetching: VecDeque<(usize, Piece)>,
    /// The responses since the last one that is signaled.
    unsignaled: Sent,
    /// What waits for room in the send queue, in order.
    backlog: VecDeque<Outgoing>,
    used: u32,
    /// Responses of [`push`](Self::push).
    responses: u64,
    /// Those of them that the host has acknowledged.
    acknowledged: u64,
}

/// Distance of two signaled responses: so short that there are some in a send queue that is full.
fn signal_interval(receives: u16) -> u64 {
    u64::from(receives / 2).clamp(1, 8)
}

/// Work requests of the send queue for a number of receives: READ, WRITE and response of each command, and as many responses that
/// are not acknowledged although the host has reused the entries.
const fn send_queue(receives: u16) -> u32 {
    4 * receives as u32
}

impl Queue {
    /// The sizes of the queue pair.
    pub const fn caps(receives: u16) -> QpCaps {
        QpCaps {
            max_send_wr: send_queue(receives),
            max_recv_wr: receives as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: RESPONSE_LEN,
        }
    }

    /// A queue whose receives are to be posted.
    pub fn new(conn: ConnId, client: SocketAddr, host: HostNumber, qp: QueuePair<Rc>, receives: Receives) -> Queue {
        let commands = vec![None; usize::from(receives.count())];
        Queue {
            conn,
            client,
            host,
            role: Role::New,
            ending: false,
            qp,
            receives,
            commands,
            sent: VecDeque::new(),
            fetching: VecDeque::new(),
            unsignaled: Sent::default(),
            backlog: VecDeque::new(),
            used: 0,
            responses: 0,
            acknowledged: 0,
        }
    }

    /// Posts all receives.
    pub fn post_receives(&self, cx: &mut Context<'_>) -> Result<(), PostError> {
        (0..self.receives.count()).try_for_each(|slot| self.receives.post(cx, self.qp, slot))
    }

    /// The receives.
    pub fn receives(&self) -> &Receives {
        &self.receives
    }

    /// The command in progress of a receive.
    pub fn command_mut(&mut self, slot: u16) -> Option<&mut Option<usize>> {
        self.commands.get_mut(usize::from(slot))
    }

    /// Sends, or keeps what must wait for room.
    pub fn push(&mut self, cx: &mut Context<'_>, outgoing: Outgoing) -> Result<(), PostError> {
        self.responses += u64::from(matches!(outgoing, Outgoing::Respond { .. }));
        if self.backlog.is_empty() && self.has_room(&outgoing) {
            return self.post(cx, outgoing);
        }
        self.backlog.push_back(outgoing);
        Ok(())
    }

    /// Sends what has room.
    fn drain(&mut self, cx: &mut Context<'_>) -> Result<(), PostError> {
        while self.backlog.front().is_some_and(|outgoing| self.has_room(outgoing)) {
            if let Some(outgoing) = self.backlog.pop_front() {
                self.post(cx, outgoing)?;
            }
        }
        Ok(())
    }

    fn has_room(&self, outgoing: &Outgoing) -> bool {
        self.used + work_requests(outgoing) <= send_queue(self.receives.count())
    }

    fn post(&mut self, cx: &mut Context<'_>, outgoing: Outgoing) -> Result<(), PostError> {
        let needed = work_requests(&outgoing);
        match outgoing {
            Outgoing::Fetch { command, piece, to, from } => {
                self.fetching.push_back((command, piece));
                cx.device().post_send(self.qp, WorkRequest::read(&[to], from).wr_id(command as u64).signaled())?;
            }
            Outgoing::Respond { slot, data, response, piece } => {
                let is_signaled = self.note_response(needed, piece);
                // A host that has the response may use the entry at once.
                self.receives.post(cx, self.qp, slot)?;
                if let Some((from, to)) = data {
                    cx.device().post_send(self.qp, WorkRequest::write(&[from], to))?;
                }
                let bytes = response.cqe.as_bytes();
                let send = match response.invalidate {
                    Some(rkey) => WorkRequest::send_with_inv(Payload::Inline(bytes), rkey),
                    None => WorkRequest::send(Payload::Inline(bytes)),
                };
                let send = send.wr_id(WR_RESPONSE);
                cx.device().post_send(self.qp, if is_signaled { send.signaled() } else { send })?;
            }
        }
        self.used += needed;
        Ok(())
    }

    /// Counts a response. Returns whether it is to be signaled: if staging waits for it, or the last such one is long ago.
    fn note_response(&mut self, work_requests: u32, piece: Option<Piece>) -> bool {
        self.unsignaled.work_requests += work_requests;
        self.unsignaled.responses += 1;
        let is_signaled = piece.is_some() || self.unsignaled.responses >= signal_interval(self.receives.count());
        if is_signaled {
            let sent = std::mem::take(&mut self.unsignaled);
            self.sent.push_back(Sent { piece, ..sent });
        }
        is_signaled
    }

    /// Takes the unsignaled responses as acknowledged, if the whole send queue is.
    pub fn take_unsignaled(&mut self, cx: &mut Context<'_>) {
        if self.sent.is_empty() && cx.device().engine().send_queued(self.qp.qpn()) == Some(0) {
            let Sent { work_requests, responses, .. } = std::mem::take(&mut self.unsignaled);
            self.used -= work_requests;
            self.acknowledged += responses;
        }
    }

    /// A work request of the send queue has completed.
    pub fn sent(&mut self, cx: &mut Context<'_>, wr_id: u64) -> Result<Acknowledged, PostError> {
        let acknowledged = if wr_id == WR_RESPONSE {
            let Sent { work_requests, responses, piece } = self.sent.pop_front().unwrap_or_default();
            self.used -= work_requests;
            self.acknowledged += responses;
            Acknowledged::Responses(piece)
        } else {
            self.used -= 1;
            match self.fetching.pop_front() {
                Some((command, piece)) => Acknowledged::Fetched(command, piece),
                // Not reached: a READ has staging.
                None => Acknowledged::Responses(None),
            }
        };
        self.drain(cx)?;
        Ok(acknowledged)
    }

    /// Takes the commands in progress, of a queue that ends.
    pub fn take_commands(&mut self) -> Vec<usize> {
        self.commands.iter_mut().filter_map(Option::take).collect()
    }

    /// Number of responses that it has been given.
    pub fn responses(&self) -> u64 {
        self.responses
    }

    /// Number of responses that the host has acknowledged, in the order in which they were given.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Gives back everything: receives and staging. The queue pair is gone, so that nothing writes or reads them any more.
    pub fn close(self) -> (Receives, impl Iterator<Item = Piece>) {
        let waiting = self.backlog.into_iter().filter_map(|outgoing| match outgoing {
            Outgoing::Respond { piece, .. } => piece,
            Outgoing::Fetch { piece, .. } => Some(piece),
        });
        let fetching = self.fetching.into_iter().map(|(_, piece)| piece);
        (self.receives, self.sent.into_iter().filter_map(|sent| sent.piece).chain(fetching).chain(waiting))
    }
}

fn work_requests(outgoing: &Outgoing) -> u32 {
    match outgoing {
        Outgoing::Fetch { .. } | Outgoing::Respond { data: None, .. } => 1,
        Outgoing::Respond { data: Some(_), .. } => 2,
    }
}
