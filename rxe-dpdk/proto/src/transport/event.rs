//! Asynchronous events of an engine.

use std::fmt;

use super::{CqId, Qpn, SrqId};

/// An asynchronous event of a queue pair, shared receive queue or completion queue (`ibv_async_event`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncEvent {
    /// The first valid request arrived before [`Engine::established`](super::Engine::established) was called: the peer
    /// considers the connection established, even if its RTU was lost (`IBV_EVENT_COMM_EST`).
    CommunicationEstablished {
        /// Our queue pair.
        qpn: Qpn,
    },
    /// The queue pair went to the error state, not at the consumer's request. [`QpErrorCause::event_type`] tells which of
    /// the events of libibverbs that is, if any.
    QpError {
        /// Our queue pair.
        qpn: Qpn,
        /// Why.
        cause: QpErrorCause,
    },
    /// In SQD, everything outstanding has completed (`IBV_EVENT_SQ_DRAINED`).
    SendQueueDrained {
        /// Our queue pair.
        qpn: Qpn,
    },
    /// A shared receive queue holds fewer receives than its limit. The limit is disarmed
    /// (`IBV_EVENT_SRQ_LIMIT_REACHED`).
    SrqLimitReached {
        /// The shared receive queue.
        srq: SrqId,
    },
    /// A queue pair with a shared receive queue is in error and will take no more receives from it
    /// (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    LastWqeReached {
        /// Our queue pair.
        qpn: Qpn,
    },
    /// A completion queue was full and lost a completion (`IBV_EVENT_CQ_ERR`). Raised once, and again only after the
    /// queue was resized. A queue pair that could not complete successful work goes to error as well.
    CqError {
        /// The completion queue.
        cq: CqId,
    },
}

/// The events of libibverbs for a queue pair that went to error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpEventType {
    /// The queue pair failed, and no work request shows it (`IBV_EVENT_QP_FATAL`).
    Fatal,
    /// The peer sent an invalid request (`IBV_EVENT_QP_REQ_ERR`).
    RequestError,
    /// The peer may not access the memory that it asked for (`IBV_EVENT_QP_ACCESS_ERR`).
    AccessError,
}

macro_rules! causes {
    ($($(#[doc = $doc:literal])* $variant:ident => $name:literal,)*) => {
        /// Why a queue pair went to the error state.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum QpErrorCause { $($(#[doc = $doc])* $variant,)* }

        impl QpErrorCause {
            /// Every cause.
            pub const ALL: &'static [QpErrorCause] = &[$(QpErrorCause::$variant,)*];

            /// The name users see.
            pub const fn name(self) -> &'static str {
                match self { $(QpErrorCause::$variant => $name,)* }
            }

            /// Description, one sentence.
            pub const fn describe(self) -> &'static str {
                match self { $(QpErrorCause::$variant => concat!($($doc),*).trim_ascii(),)* }
            }
        }
    };
}

impl QpErrorCause {
    /// The event of libibverbs that reports it; `None` when the completion of a work request does.
    pub const fn event_type(self) -> Option<QpEventType> {
        use QpErrorCause::*;
        // compliance.md [QP-EVENT-TYPE]: An error that no completion shows is an invalid request of the peer, an access
        // violation of the peer, or a fatal error.
        Some(match self {
            OpcodeSequence | OpcodeUnsupported | AccessFlags | Length | ReadDepth | Misaligned | Injected => {
                QpEventType::RequestError
            }
            RemoteKey => QpEventType::AccessError,
            CqOverflow | PeerSilent | Administrative => QpEventType::Fatal,
            ReceiveTooSmall | ReceiveKey | Invalidate | LocalKey | LocalOperation | RetryExceeded
            | RnrRetryExceeded | PeerInvalidRequest | PeerAccess | PeerOperational | BadResponse => return None,
        })
    }
}

causes! {
    /// As responder: a packet that may not follow the one before it (NAK invalid request).
    OpcodeSequence => "opcode_sequence",
    /// As responder: an operation we know but do not offer (NAK invalid request).
    OpcodeUnsupported => "opcode_unsupported",
    /// As responder: the queue pair does not grant the peer this kind of access (NAK invalid request).
    AccessFlags => "access_flags",
    /// As responder: packet, pad or message length against the rules (NAK invalid request).
    Length => "length",
    /// As responder: a SEND longer than the receive work request (NAK invalid request).
    ReceiveTooSmall => "receive_too_small",
    /// As responder: more READs and atomics outstanding than agreed (NAK invalid request).
    ReadDepth => "read_depth",
    /// As responder: an atomic on an address not aligned to 8 bytes (NAK invalid request).
    Misaligned => "misaligned",
    /// As responder: the peer's key, range or rights are not good (NAK remote access error).
    RemoteKey => "remote_key",
    /// As responder: a key of our own receive work request is not good (NAK remote operational error).
    ReceiveKey => "receive_key",
    /// As responder: the key that the peer asked to invalidate cannot be invalidated.
    Invalidate => "invalidate",
    /// A completion queue was full.
    CqOverflow => "cq_overflow",
    /// As requester: a key of our own send work request is not good.
    LocalKey => "local_key",
    /// As requester: a memory window or fast-registration MR of our own could not be bound, registered or invalidated.
    LocalOperation => "local_operation",
    /// As requester: no answer after all retries.
    RetryExceeded => "retry_exceeded",
    /// As requester: the receiver was still not ready after all retries.
    RnrRetryExceeded => "rnr_retry_exceeded",
    /// As requester: the peer said nothing for long, and answered none of the probes whether it is still there.
    PeerSilent => "peer_silent",
    /// As requester: the peer said invalid request.
    PeerInvalidRequest => "peer_invalid_request",
    /// As requester: the peer said remote access error.
    PeerAccess => "peer_access",
    /// As requester: the peer said remote operational error, or something we do not know.
    PeerOperational => "peer_operational",
    /// As requester: a response that does not fit the request.
    BadResponse => "bad_response",
    /// An administrator ended it.
    Administrative => "administrative",
    /// As responder: a fault made on purpose refused a request.
    Injected => "injected",
}

impl fmt::Display for QpErrorCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
