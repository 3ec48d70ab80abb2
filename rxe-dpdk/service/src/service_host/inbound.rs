//! The passive side: connection requests and SIDR requests of peers.

use rxe_proto::Instant;
use rxe_proto::cm::{AcceptParams, ConnectRequest, SidrReply, SidrRequest};
use rxe_proto::transport::{Engine, QpError, QpTransition, QpType, Qpn, RtrAttr, RtsAttr};
use rxe_proto::wire::cm::{CmTransport, RejReason, SidrRep};
use rxe_proto::wire::{Path, Psn, udp_source_port};

use super::connections::Connection;
use super::{MIN_RNR_TIMER, RNR_RETRY, ServiceHost};
use crate::messages::{EndReason, ToControl};
use crate::service::{Accept, DatagramDecision, Decision};

impl ServiceHost {
    /// A peer requests a connection: the service decides, then the REP or REJ is sent.
    pub(super) fn connect_request(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        service: usize,
        request: &ConnectRequest,
        path: Path,
    ) {
        let conn = request.conn;
        match self.call(now, engine, service, |s, cx| s.connect_request(cx, request)) {
            Decision::Reject { reason, mut private_data } => {
                self.stats.connections_refused.inc();
                private_data.truncate(148);
                self.send(ToControl::SendRej { conn, reason, private_data });
            }
            Decision::Accept(mut accept) => {
                (accept.responder_resources, accept.initiator_depth) =
                    request.negotiate(accept.responder_resources, accept.initiator_depth);
                let (starting_psn, qpn) = (self.psns.psn(), accept.qp.qpn());
                match self.bring_up(engine, request, path, &accept, starting_psn) {
                    Ok(()) => {
                        self.stats.connections_accepted.inc();
                        let connection = Connection {
                            service,
                            qpn,
                            connected: false,
                            peer: Some(request.source.into()),
                            since: now,
                            place: self.next_place,
                        };
                        self.unconfirmed.insert((service, self.next_place), conn);
                        self.next_place += 1;
                        self.connections.insert(conn, connection);
                        self.by_qp.insert(qpn, conn);
                        let private_data = std::mem::take(&mut accept.private_data);
                        let params = AcceptParams {
                            private_data,
                            ..AcceptParams::for_request(
                                request,
                                qpn,
                                starting_psn,
                                accept.responder_resources,
                                accept.initiator_depth,
                            )
                        };
                        self.send(ToControl::SendRep { conn, params });
                        self.relieve(now, engine, service);
                    }
                    Err(error) => {
                        if self.events.admits(now) {
                            let peer = request.source.0;
                            tracing::warn!(%peer, %error, "the queue pair does not take the REQ's values");
                        }
                        self.stats.connections_refused.inc();
                        // The service has accepted, so it expects this call.
                        self.call(now, engine, service, |s, cx| {
                            s.disconnected(cx, conn, qpn, EndReason::Unacceptable);
                        });
                        self.destroy(now, engine, service, qpn);
                        self.send(ToControl::SendRej {
                            conn,
                            reason: match error {
                                QpError::WrongType(_) => RejReason::InvalidTransportType,
                                _ => RejReason::ConsumerDefined,
                            },
                            private_data: error.to_string().into_bytes(),
                        });
                    }
                }
            }
        }
    }

    /// Takes the queue pair to RTS with the parameters of the peer's REQ and our REP. It must be able to receive before the
    /// REP is sent, because data may arrive before, or instead of, the RTU.
    fn bring_up(
        &mut self,
        engine: &mut Engine,
        request: &ConnectRequest,
        mut path: Path,
        accept: &Accept,
        rq_psn: Psn,
    ) -> Result<(), QpError> {
        let qpn = accept.qp.qpn();
        let qp_type = engine.qp_type(qpn).ok_or(QpError::Unknown(qpn))?;
        let wanted = match request.transport {
            CmTransport::Uc => QpType::Uc,
            _ => QpType::Rc,
        };
        if qp_type != wanted {
            return Err(QpError::WrongType(qp_type));
        }
        path.udp_src_port = udp_source_port(request.flow_label, qpn.get(), request.remote_qpn);
        engine.modify_qp(
            qpn,
            QpTransition::ToRtr(RtrAttr {
                path,
                path_mtu: request.path_mtu,
                dest_qpn: Qpn::new(request.remote_qpn),
                rq_psn,
                max_dest_rd_atomic: accept.responder_resources,
                min_rnr_timer: MIN_RNR_TIMER,
            }),
        )?;
        engine.modify_qp(
            qpn,
            QpTransition::ToRts(RtsAttr {
                sq_psn: request.starting_psn,
                timeout: request.local_ack_timeout,
                retry_cnt: request.retry_count,
                rnr_retry: accept.rnr_retry.min(RNR_RETRY),
                max_rd_atomic: accept.initiator_depth,
            }),
        )
    }

    /// A peer sends a SIDR request: the service decides, then the SIDR REP is sent.
    pub(super) fn sidr_request(&mut self, now: Instant, engine: &mut Engine, service: usize, request: &SidrRequest) {
        let mut reply = match self.call(now, engine, service, |s, cx| s.datagram_request(cx, request)) {
            DatagramDecision::Accept { qp, qkey, private_data } => {
                self.stats.datagrams_accepted.inc();
                SidrReply { qkey, private_data, ..SidrReply::valid(qp.qpn()) }
            }
            DatagramDecision::Refuse { status } => {
                self.stats.datagrams_refused.inc();
                SidrReply::refuse(status)
            }
        };
        reply.private_data.truncate(SidrRep::PRIVATE_DATA_LEN);
        self.send(ToControl::SendSidrRep { id: request.id, reply });
    }
}
