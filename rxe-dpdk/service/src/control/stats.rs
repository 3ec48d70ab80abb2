//! Counters of the control side.

use rxe_proto::counters;

counters! {
    /// Counters of the control side.
    pub struct ControlStats {
        /// Connection requests that no service claimed.
        connect_unclaimed,
        /// Connection requests, SIDR requests and TCP streams refused because the service does not serve the peer's address.
        peers_refused,
        /// Connection requests, SIDR requests and TCP streams refused because management has stopped the service.
        stopped_refused,
        /// Connection requests, SIDR requests and TCP streams refused because the target is being drained.
        drain_refused,
        /// Connection requests handed to a service.
        connect_offered,
        /// Connection requests for which their service chose a worker that does not exist; the next one in turn got them.
        worker_choice_invalid,
        /// Connection requests dropped because the peer's MAC could not be found.
        connect_unresolved,
        /// Connection requests dropped because too many others wait for a MAC or for the check of an older connection.
        connect_waiting_full,
        /// Connection requests refused because they name a queue pair or id of a connection in use.
        connect_stale_refused,
        /// Connections that services requested.
        connect_asked,
        /// SIDR requests that services made.
        datagram_asked,
        /// SIDR requests of peers handed to a service.
        datagram_offered,
        /// Connections that keep the MAC address of their peer although the neighbour has another one, as the port pins it.
        peer_moves_refused,
        /// Peers that no port has a path to.
        path_unresolved,
        /// Addresses that clients named as their own and that are another station's, or behind a router.
        path_foreign,
        /// Multicast groups that a port's address filter refused.
        group_filter_refused,
        /// TCP streams reset because their client does not read what a service wrote.
        streams_unread,
        /// TCP streams reset at once because the workers are behind with the data of other streams.
        streams_refused,
        /// MADs delayed because the port took no more frames.
        mad_tx_stalls,
    }
}
