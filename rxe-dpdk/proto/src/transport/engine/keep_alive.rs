//! Queue pairs whose peers are looked after.

use crate::time::Instant;
use crate::transport::{KeepAlive, QpError, QpState, QpType, Qpn};

use super::Engine;

impl Engine {
    /// Asks the peer of a reliable connection in RTS from time to time whether it is still there, when nothing comes from
    /// it; `None` ends that, and so do error and reset. A peer that does not answer takes the queue pair to error, with
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
