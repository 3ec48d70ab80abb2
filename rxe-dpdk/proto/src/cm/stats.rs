//! Counters of the connection manager.

crate::counters! {
    /// Counters of one connection manager.
    pub struct CmStats {
        /// REQs received.
        rx_req,
        /// MRAs received.
        rx_mra,
        /// REJs received.
        rx_rej,
        /// REPs received.
        rx_rep,
        /// RTUs received.
        rx_rtu,
        /// DREQs received.
        rx_dreq,
        /// DREPs received.
        rx_drep,
        /// SIDR_REQs received.
        rx_sidr_req,
        /// SIDR_REPs received.
        rx_sidr_rep,
        /// LAPs received, all dropped: there are no alternate paths here.
        rx_lap,
        /// APRs received, all dropped.
        rx_apr,
        /// REQs received again while the service decides.
        rx_req_duplicate,
        /// REQs received again after our REP, which was sent again.
        rx_req_duplicate_answered,
        /// REQs received again for an established or closing connection.
        rx_req_duplicate_late,
        /// RTUs received again or after data had implied them.
        rx_rtu_duplicate,
        /// DREQs received again after the connection was over; answered.
        rx_dreq_duplicate,
        /// DREPs for connections that are over already.
        rx_drep_duplicate,
        /// DREQs for ids not known; answered.
        rx_dreq_unknown,
        /// DREQs for a known connection with another queue pair number; not answered.
        rx_dreq_wrong_qpn,
        /// Other messages for ids not known.
        rx_unknown_id,
        /// Messages that the state of their connection does not allow.
        rx_unexpected,
        /// Messages for a connection that came from another address than its peer's; ignored.
        rx_foreign,
        /// MRAs of a REP that was put off before; ignored.
        rx_mra_again,
        /// MADs that are malformed or of another base version, class version or length.
        rx_malformed,
        /// MADs of other classes, methods or attributes.
        rx_unsupported,
        /// REPs received again, or too late, on the active side.
        rx_rep_duplicate,
        /// REPs received again after our RTU, which was sent again.
        rx_rep_duplicate_answered,
        /// REPs without an outstanding REQ; rejected.
        rx_rep_unknown,
        /// REQs sent, retransmissions included.
        tx_req,
        /// MRAs sent.
        tx_mra,
        /// RTUs sent, those for repeated REPs included.
        tx_rtu,
        /// SIDR_REQs sent, retransmissions included.
        tx_sidr_req,
        /// REPs sent, retransmissions included.
        tx_rep,
        /// REJs sent.
        tx_rej,
        /// DREQs sent, retransmissions included.
        tx_dreq,
        /// DREPs sent.
        tx_drep,
        /// SIDR_REPs sent, retransmissions included.
        tx_sidr_rep,
        /// REQs sent again because a timer ran out.
        tx_req_retry,
        /// SIDR_REQs sent again because a timer ran out.
        tx_sidr_req_retry,
        /// REPs sent again because a timer ran out.
        tx_rep_retry,
        /// DREQs sent again because a timer ran out.
        tx_dreq_retry,
        /// SIDR_REPs sent again because the request came again.
        tx_sidr_rep_retry,
        /// Outgoing MADs dropped because the queue was full.
        tx_queue_full,
        /// REQs rejected: IP addressing header malformed or not for us.
        req_ip_header,
        /// REQs rejected: not a service id of connected services.
        req_service_id,
        /// REQs rejected: transport other than RC and UC.
        req_transport,
        /// REQs rejected: partition key.
        req_pkey,
        /// REQs rejected: partition key of a limited member, on a port that serves full members only.
        req_pkey_limited,
        /// REQs rejected: primary GID not ours or of another IP version.
        req_gid,
        /// REQs rejected: primary local GID other than the source of the packet, or not that of one host.
        req_gid_foreign,
        /// REQs rejected: alternate path.
        req_alternate_path,
        /// REQs rejected: path MTU.
        req_path_mtu,
        /// REQs rejected: as many connections as allowed.
        req_connection_limit,
        /// REQs rejected: as many connections as one address may have.
        req_address_limit,
        /// REQs rejected: as many pending connections as allowed.
        req_pending_limit,
        /// REQs rejected: as many pending connections as one address may have.
        req_peer_limit,
        /// REQs dropped by the user, without an answer.
        req_dropped,
        /// Rejections missing in the log: too many unread.
        refusals_untold,
        /// Pending connections of peers given up for newer ones, because there were as many as allowed.
        pending_evicted,
        /// REQs and SIDR_REQs dropped: too many events unread.
        event_queue_full,
        /// Requests handed to the service.
        requests,
        /// Requests that the service accepted.
        accepted,
        /// REQs and REPs that the user rejected.
        rejected,
        /// REQs and REPs that the user left unanswered.
        unanswered,
        /// Connections requested by the user.
        connects,
        /// REPs of peers handed to the user.
        replies,
        /// REPs that the user confirmed.
        confirmed,
        /// Connection attempts that the user cancelled before the peer had answered.
        abandoned,
        /// Connections established.
        established,
        /// Connections established by data before, or instead of, an RTU.
        implied_rtu,
        /// MRAs that put off a REQ or REP.
        mra_honoured,
        /// REJs of the peer that ended a connection or attempt.
        peer_rejected,
        /// REQs without an answer.
        req_timeout,
        /// REPs without an answer.
        rep_timeout,
        /// DREQs without an answer.
        dreq_timeout,
        /// Connections replaced by a new REQ or REP of the same peer.
        stale,
        /// Connections forgotten before their timewait was over because there were too many.
        timewait_evicted,
        /// SIDR requests of the user.
        resolves,
        /// SIDR requests of the user that a peer answered with a queue pair.
        resolved,
        /// SIDR requests of the user that a peer refused.
        resolve_refused,
        /// SIDR requests of the user without an answer.
        resolve_timeout,
        /// SIDR requests handed to the service.
        sidr_requests,
        /// SIDR requests answered without asking the service: malformed, not for us.
        sidr_refused,
        /// SIDR requests dropped because too many were waiting.
        sidr_limit,
        /// SIDR requests dropped because too many of one address were waiting.
        sidr_peer_limit,
        /// SIDR requests received again before they were answered.
        sidr_duplicate,
    }
}
