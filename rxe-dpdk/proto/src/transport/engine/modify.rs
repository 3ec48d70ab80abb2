//! Set-up: changing the state and the attributes of queue pairs.

use crate::time::Instant;
use crate::transport::context::Context;
use crate::transport::qp::Qp;
use crate::transport::{QpAttrChange, QpError, QpTransition, QpType, Qpn};

use super::Engine;

impl Engine {
    /// Changes the state of a queue pair.
    ///
    /// # Errors
    /// [`QpError::Transition`] when the state diagram has no such transition, [`QpError::Limit`] for an attribute out
    /// of range, [`QpError::WrongType`] for a transition of another transport service, [`QpError::Unknown`]. The queue
    /// pair is unchanged then.
    pub fn modify_qp(&mut self, qpn: Qpn, transition: QpTransition) -> Result<(), QpError> {
        self.modify_qp_with(self.cx.now, qpn, transition, &QpAttrChange::default())
    }

    /// Changes the state of a queue pair, and attributes that the transition does not bring but allows.
    ///
    /// # Errors
    /// [`QpError::Attribute`], and as for [`modify_qp`](Self::modify_qp). The queue pair is unchanged then.
    pub fn modify_qp_with(
        &mut self,
        now: Instant,
        qpn: Qpn,
        transition: QpTransition,
        change: &QpAttrChange,
    ) -> Result<(), QpError> {
        self.change_qp(qpn, |qp, cx| qp.modify(cx, now, transition, change))
    }

    /// Changes attributes of a queue pair in INIT, RTS or SQD, which stays in its state.
    ///
    /// # Errors
    /// [`QpError::Attribute`] for one that cannot be changed in this state, [`QpError::Limit`] for one out of range,
    /// [`QpError::Transition`] in other states, and in another state than `cur_state`; [`QpError::Unknown`]. The queue
    /// pair is unchanged then.
    pub fn modify_attributes(&mut self, now: Instant, qpn: Qpn, change: &QpAttrChange) -> Result<(), QpError> {
        self.change_qp(qpn, |qp, cx| qp.modify_attributes(cx, now, change))
    }

    fn change_qp(
        &mut self,
        qpn: Qpn,
        change: impl FnOnce(&mut Qp, &mut Context) -> Result<(), QpError>,
    ) -> Result<(), QpError> {
        let qp = self.qps.get_mut(qpn).ok_or(QpError::Unknown(qpn))?;
        let port = qp.common.port;
        change(qp, &mut self.cx)?;
        // The groups of a datagram queue pair are those of its port.
        // compliance.md [UD-MULTICAST-ATTACH]: Only datagram queue pairs with a port can be attached, to multicast
        // addresses only.
        if qp.common.port != port && qp.common.qp_type == QpType::Ud {
            self.groups.remove(qpn);
        }
        Ok(())
    }
}
