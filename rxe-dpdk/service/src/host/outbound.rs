//! Connections that a service of this worker asked for, and datagram queue pairs of either side.

use rxe_proto::Instant;
use rxe_proto::cm::{ConnId, ConnectReply, SidrReply, SidrRequest};
use rxe_proto::transport::{Engine, QpError, QpTransition, Qpn, RtrAttr, RtsAttr};
use rxe_proto::wire::cm::{Rej, RejReason, SidrRep};
use rxe_proto::wire::udp_source_port;

use super::{Connection, MIN_RNR_TIMER, ServiceHost};
use crate::messages::{EndReason, Terms, ToControl};
use crate::service::DatagramDecision;

impl ServiceHost {
    /// The REQ is on its way: from now on the connection is one of ours.
    pub(super) fn asked(&mut self, now: Instant, service: usize, conn: ConnId, qpn: Qpn) {
        self.stats.connections_asked.inc();
        self.connections.insert(conn, Connection { service, qpn, connected: false, peer: None, since: now });
        self.by_qp.insert(qpn, conn);
    }

    /// The connection could not be asked for.
    pub(super) fn not_asked(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        service: usize,
        (conn, qpn): (ConnId, Qpn),
        reason: EndReason,
    ) {
        self.asked(now, service, conn, qpn);
        self.disconnected(now, engine, conn, reason);
    }

    /// The peer grants a connection: the queue pair comes up, then the RTU leaves.
    pub(super) fn granted(&mut self, now: Instant, engine: &mut Engine, reply: &ConnectReply, terms: &Terms) {
        let conn = reply.conn;
        let Some(connection) = self.connections.get(&conn) else {
            // Its queue pair died meanwhile, and control has been told to disconnect.
            return;
        };
        let (service, qpn) = (connection.service, connection.qpn);
        match finish(engine, (qpn, self.objects.rnr_retry(qpn)), reply, terms) {
            Ok(()) => {
                self.call(now, engine, service, |s, cx| s.connect_reply(cx, conn, qpn, reply));
                self.tell(ToControl::Confirm { conn });
            }
            Err(error) => {
                if self.events.admits(now) {
                    tracing::warn!(%qpn, %error, "the queue pair does not take the REP's values");
                }
                let (reason, private_data) = (RejReason::ConsumerDefined, error.to_string().into_bytes());
                self.tell(ToControl::Reject { conn, reason, private_data });
                self.disconnected(now, engine, conn, EndReason::Unacceptable);
            }
        }
    }

    /// The peer refuses a connection, which ends right after this.
    pub(super) fn rejected(&mut self, now: Instant, engine: &mut Engine, conn: ConnId, rej: &Rej) {
        let Some(connection) = self.connections.get(&conn) else { return };
        let (service, qpn) = (connection.service, connection.qpn);
        self.call(now, engine, service, |s, cx| s.connect_rejected(cx, conn, qpn, rej));
    }

    /// A peer asks for a datagram queue pair.
    pub(super) fn datagram_request(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        service: usize,
        request: &SidrRequest,
    ) {
        let mut reply = match self.call(now, engine, service, |s, cx| s.datagram_request(cx, request)) {
            DatagramDecision::Accept { qp, qkey, private_data } => {
                self.stats.datagrams_accepted.inc();
                SidrReply { qkey, private_data, ..SidrReply::valid(qp) }
            }
            DatagramDecision::Refuse { status } => {
                self.stats.datagrams_refused.inc();
                SidrReply::refuse(status)
            }
        };
        reply.private_data.truncate(SidrRep::PRIVATE_DATA_LEN);
        self.tell(ToControl::ReplyDatagram { id: request.id, reply });
    }
}

/// Takes the queue pair to RTS with what our REQ and the peer's REP agree on.
fn finish(
    engine: &mut Engine,
    (qpn, rnr_retry): (Qpn, u8),
    reply: &ConnectReply,
    terms: &Terms,
) -> Result<(), QpError> {
    let mut path = terms.path.clone();
    path.udp_src_port = udp_source_port(path.flow_label, qpn.get(), reply.remote_qpn);
    engine.modify_qp(
        qpn,
        QpTransition::ToRtr(RtrAttr {
            path,
            path_mtu: terms.path_mtu,
            dest_qpn: Qpn::new(reply.remote_qpn),
            rq_psn: terms.rq_psn,
            max_dest_rd_atomic: reply.initiator_depth,
            min_rnr_timer: MIN_RNR_TIMER,
        }),
    )?;
    engine.modify_qp(
        qpn,
        QpTransition::ToRts(RtsAttr {
            sq_psn: reply.starting_psn,
            timeout: reply.local_ack_timeout,
            retry_cnt: terms.retry_count,
            rnr_retry,
            max_rd_atomic: reply.responder_resources,
        }),
    )
}
