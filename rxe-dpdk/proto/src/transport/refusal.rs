//! Requests refused for fault injection: what the peer gets.

use crate::wire::NakCode;

/// How a request is refused without a reason of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RequestRefusal {
    /// As if no receive were posted: the peer is to come again.
    NotReady {
        /// The RNR timer code, 0 to 31; see [`rnr_timer`](crate::wire::rnr_timer).
        timer: u8,
    },
    /// As if the request before it were lost: the peer is to send it again.
    PsnSequence,
    /// As an invalid request. The queue pair goes to error, as it does in the following.
    InvalidRequest,
    /// As one that may not reach the memory it names.
    RemoteAccess,
    /// As one that cannot be carried out for a reason of our own.
    RemoteOperational,
}

impl RequestRefusal {
    /// What the peer is told by a NAK; `None` where it is told by an RNR NAK.
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
