//! Answers to [`Question`]s.

use rxe_proto::Instant;
use rxe_proto::transport::{Engine, QpInfo};

use super::ServiceHost;
use crate::inspect::{ConnectionEntry, Counts, PART, Part, QpEntry, Question};
use crate::messages::ToControl;

impl ServiceHost {
    /// Answers. Whoever asked may have given up, which is no loss.
    #[cold]
    pub(super) fn inspect(&mut self, now: Instant, engine: &mut Engine, question: Question) {
        match question {
            Question::Qps { from, reply } => {
                let items = engine.qps_in(from..from.saturating_add(PART));
                let items = items.map(|info| self.entry(now, info)).collect();
                let _ = reply.try_send(Part { items, more: from.saturating_add(PART) < engine.qp_slots() });
            }
            Question::Qp { qpn, reply } => {
                let _ = reply.try_send(engine.query_qp(qpn).map(|info| Box::new(self.entry(now, info))));
            }
            Question::Keys { from, reply } => {
                let keys = engine.keys();
                let items = keys.list(from..from.saturating_add(PART)).collect();
                let _ = reply.try_send(Part { items, more: from.saturating_add(PART) < keys.slots() });
            }
            Question::Counts { reply } => {
                let _ = reply.try_send(Counts {
                    pd: engine.keys().pd_count(),
                    cq: engine.cq_count(),
                    qp: engine.qp_count(),
                    connections: self.connection_count(),
                    keys: engine.keys().len(),
                    services: self.service_count(),
                    srq: engine.srq_count(),
                    ah: engine.ah_count(),
                    timers: engine.timer_count(),
                });
            }
            Question::ControlCounts { reply } => self.send(ToControl::Counts { reply }),
            Question::Disconnect { qpn, reply } => {
                let known = match self.connection_of(qpn) {
                    Some((conn, _)) => {
                        self.send(ToControl::Disconnect { conn });
                        true
                    }
                    // The service hears of it as of any error.
                    None => engine.abort_qp(qpn).is_ok(),
                };
                let _ = reply.try_send(known);
            }
        }
    }

    fn entry(&self, now: Instant, info: QpInfo) -> QpEntry {
        let connection = self.connection_of(info.qpn).map(|(conn, connection)| ConnectionEntry {
            conn,
            established: connection.connected,
            peer: connection.peer,
            age: now.saturating_since(connection.since),
        });
        QpEntry { service: self.service_of(info.qpn), connection, info }
    }
}
