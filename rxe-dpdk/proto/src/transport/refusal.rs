//! Fault injection: how a request is refused.

use crate::wire::NakCode;

/// How a request is refused (fault injection).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RequestRefusal {
    /// RNR NAK, as if no receive were posted: the peer retries after the timer.
    NotReady {
        /// The RNR timer code, 0 to 31; see [`rnr_timer`](crate::wire::rnr_timer).
        timer: u8,
    },
    /// Sequence NAK, as if the request before it were lost: the peer retransmits at once.
    PsnSequence,
    /// NAK invalid request. The queue pair goes to error, as it does for the following ones.
    InvalidRequest,
    /// NAK remote access error.
    RemoteAccess,
    /// NAK remote operational error.
    RemoteOperational,
}

impl RequestRefusal {
    /// The NAK code; `None` for an RNR NAK.
    pub const fn nak_code(self) -> Option<NakCode> {
        match self {
            RequestRefusal::NotReady { .. } => None,
            RequestRefusal::PsnSequence => Some(NakCode::PsnSequence),
            RequestRefusal::InvalidRequest => Some(NakCode::InvalidRequest),
            RequestRefusal::RemoteAccess => Some(NakCode::RemoteAccess),
            RequestRefusal::RemoteOperational => Some(NakCode::RemoteOperational),
        }
    }
}
