//! The active side: connections that services request.

use rxe_proto::Instant;
use rxe_proto::cm::{ConnId, ConnectReply};
use rxe_proto::transport::{Engine, QpError, QpTransition, Qpn, RtrAttr, RtsAttr};
use rxe_proto::wire::cm::{Rej, RejReason};
use rxe_proto::wire::udp_source_port;

use super::connections::Connection;
use super::{MIN_RNR_TIMER, RNR_RETRY, ServiceHost};
use crate::messages::{EndReason, RtsParams, ToControl};

impl ServiceHost {
    /// The connection manager has sent the REQ.
    pub(super) fn req_sent(&mut self, now: Instant, service: usize, conn: ConnId, qpn: Qpn) {
        self.stats.connections_asked.inc();
        let connection = Connection { service, qpn, connected: false, peer: None, since: now, place: 0 };
        self.connections.insert(conn, connection);
        self.by_qp.insert(qpn, conn);
    }

    /// The connection ends before a REQ was sent.
    pub(super) fn req_not_sent(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        service: usize,
        (conn, qpn): (ConnId, Qpn),
        reason: EndReason,
    ) {
        self.req_sent(now, service, conn, qpn);
        self.disconnected(now, engine, conn, reason);
    }

    /// The peer accepts a connection: takes the queue pair to RTS, then has the RTU sent.
    pub(super) fn rep_received(&mut self, now: Instant, engine: &mut Engine, reply: &ConnectReply, rts: &RtsParams) {
        let conn = reply.conn;
        let Some(connection) = self.connections.get(&conn) else {
            // Its queue pair went to the error state meanwhile, and control is disconnecting it.
            return;
        };
        let (service, qpn) = (connection.service, connection.qpn);
        match bring_up(engine, qpn, reply, rts) {
            Ok(()) => {
                self.call(now, engine, service, |s, cx| s.connect_reply(cx, conn, qpn, reply));
                self.send(ToControl::SendRtu { conn });
            }
            Err(error) => {
                if self.events.admits(now) {
                    tracing::warn!(%qpn, %error, "the queue pair does not take the REP's values");
                }
                let (reason, private_data) = (RejReason::ConsumerDefined, error.to_string().into_bytes());
                self.send(ToControl::SendRej { conn, reason, private_data });
                self.disconnected(now, engine, conn, EndReason::Unacceptable);
            }
        }
    }

    /// The peer refuses a connection; `Disconnected` follows.
    pub(super) fn rej_received(&mut self, now: Instant, engine: &mut Engine, conn: ConnId, rej: &Rej) {
        let Some(connection) = self.connections.get(&conn) else { return };
        let (service, qpn) = (connection.service, connection.qpn);
        self.call(now, engine, service, |s, cx| s.connect_rejected(cx, conn, qpn, rej));
    }
}

/// Takes the queue pair to RTS with the parameters of our REQ and the peer's REP.
fn bring_up(engine: &mut Engine, qpn: Qpn, reply: &ConnectReply, rts: &RtsParams) -> Result<(), QpError> {
    let mut path = rts.path.clone();
    path.udp_src_port = udp_source_port(path.flow_label, qpn.get(), reply.remote_qpn);
    engine.modify_qp(
        qpn,
        QpTransition::ToRtr(RtrAttr {
            path,
            path_mtu: rts.path_mtu,
            dest_qpn: Qpn::new(reply.remote_qpn),
            rq_psn: rts.rq_psn,
            max_dest_rd_atomic: reply.initiator_depth,
            min_rnr_timer: MIN_RNR_TIMER,
        }),
    )?;
    engine.modify_qp(
        qpn,
        QpTransition::ToRts(RtsAttr {
            sq_psn: reply.starting_psn,
            timeout: reply.local_ack_timeout,
            retry_cnt: rts.retry_count,
            rnr_retry: rts.rnr_retry.min(RNR_RETRY),
            max_rd_atomic: reply.responder_resources,
        }),
    )
}
