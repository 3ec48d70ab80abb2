//! Requests of a service to peers.

use std::net::{IpAddr, SocketAddr};

use rxe_proto::verbs::QpType;
use rxe_proto::wire::cm::CmTransport;

use super::Context;
use crate::messages::{Connect, ReplyTo, ToControl};

impl Context<'_> {
    /// Requests a connection to a peer. Its local port and address are those of the route to the peer. When the peer
    /// accepts, the runtime takes the queue pair to RTS, then
    /// [`Service::connect_reply`](crate::service::Service::connect_reply) and
    /// [`Service::connected`](crate::service::Service::connected) are called; in all other cases
    /// [`Service::disconnected`](crate::service::Service::disconnected) gives the reason. Until one of them is called the
    /// queue pair is the runtime's: do not destroy it.
    pub fn connect(&mut self, mut connect: Connect) {
        connect.transport = match self.engine.qp_type(connect.qp.qpn()) {
            Some(QpType::Uc) => CmTransport::Uc,
            _ => CmTransport::Rc,
        };
        let rq_psn = self.psns.psn();
        self.tell(ToControl::Connect { reply_to: self.reply_to(0), connect: Box::new(connect), rq_psn });
    }

    /// Asks a peer which of its datagram queue pairs serves `remote`'s port in the UDP port space, with at most 180
    /// bytes of private data. [`Service::datagram_resolved`](crate::service::Service::datagram_resolved) brings the
    /// answer under `token`.
    pub fn resolve_datagram(&mut self, remote: SocketAddr, token: u64, private_data: Vec<u8>) {
        self.tell(ToControl::ResolveDatagram { reply_to: self.reply_to(token), remote, private_data });
    }

    /// Finds the path to a peer: port, MAC, local address. [`Service::path_resolved`](crate::service::Service::path_resolved)
    /// brings the answer under `token`, after some seconds if no host has the address.
    pub fn resolve_path(&mut self, remote: IpAddr, token: u64) {
        self.tell(ToControl::ResolvePath { reply_to: self.reply_to(token), remote, client: None });
    }

    /// As [`resolve_path`](Context::resolve_path), for a client that has connected from `client` and names `remote` as its
    /// own address: there is no path unless both are the same, or known as addresses of one machine (neighbours of ours with
    /// one MAC; on a UDP socket, this machine). So a client cannot
    /// direct packets to another host.
    pub fn resolve_path_of(&mut self, client: IpAddr, remote: IpAddr, token: u64) {
        self.tell(ToControl::ResolvePath { reply_to: self.reply_to(token), remote, client: Some(client) });
    }

    fn reply_to(&self, token: u64) -> ReplyTo {
        ReplyTo { worker: self.worker(), service: self.accounting.service, token }
    }
}
