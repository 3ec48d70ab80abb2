//! Keep-alive of connections.

use crate::time::Instant;
use crate::transport::{KeepAlive, QpError, QpState, QpType, Qpn};

use super::Engine;

impl Engine {
    /// Probes the peer of a reliable connection in RTS while nothing arrives from it; `None` disables that, and so do
    /// error and reset. If the peer does not answer, the queue pair goes to error with
    /// [`QpErrorCause::PeerSilent`](crate::transport::QpErrorCause::PeerSilent).
    ///
    /// # Errors
    /// [`QpError::Unknown`], [`QpError::WrongType`]; [`QpError::Transition`] in another state.
    pub fn set_keep_alive(&mut self, now: Instant, qpn: Qpn, settings: Option<KeepAlive>) -> Result<(), QpError> {
        let qp = self.qps.get_mut(qpn).ok_or(QpError::Unknown(qpn))?;
        if qp.common.qp_type != QpType::Rc {
            return Err(QpError::WrongType(qp.common.qp_type));
        }
        if qp.state != QpState::Rts {
            return Err(QpError::Transition { from: qp.state, to: QpState::Rts });
        }
        qp.requester.set_keep_alive(now, settings, qp.responder.packets_served());
        qp.arm_timer(&mut self.cx);
        Ok(())
    }
}
