//! Counters of a host. Dropped frames are counted by the caller, by reason.

use rxe_proto::counters;

counters! {
    /// Counters of a host, in frames unless stated otherwise.
    pub struct HostStats {
        /// ARP requests answered.
        arp_replies_sent,
        /// ARP requests sent to find a neighbour's MAC.
        arp_requests_sent,
        /// Neighbour solicitations answered.
        nd_advertisements_sent,
        /// Neighbour solicitations sent to find a neighbour's MAC.
        nd_solicitations_sent,
        /// Announcements of our own addresses (ARP and neighbour advertisements).
        announcements_sent,
        /// Multicast listener reports sent.
        mld_reports_sent,
        /// IGMP messages sent: reports and leave messages of our IPv4 groups.
        igmp_reports_sent,
        /// IGMP reports of other hosts received while a service watches listeners.
        igmp_reports_heard,
        /// Other hosts that began to listen to a multicast group.
        listeners_joined,
        /// Other hosts that ceased to listen to a multicast group.
        listeners_left,
        /// Reports of new listeners ignored by the rate limit.
        listeners_limited,
        /// Multicast groups joined for services.
        groups_joined,
        /// Multicast groups left for services.
        groups_left,
        /// Neighbours whose MAC address became known.
        neighbours_learned,
        /// Neighbours whose MAC address changed.
        neighbours_changed,
        /// Changes of a neighbour's MAC address ignored because it had changed less than a second before.
        neighbours_locked,
        /// Neighbours that did not answer.
        neighbours_failed,
        /// Neighbours evicted to make room for others.
        neighbours_evicted,
        /// Neighbours not added because the table was full of ones still being resolved.
        neighbours_refused,
        /// Connection requests (CM, SIDR, TCP) of peers to which there is no route.
        no_route,
        /// Probes sent to find out whether another station uses an address of ours.
        address_probes_sent,
        /// Probes of other stations for an address of ours, answered.
        address_probes_answered,
        /// Frames that show that another station uses an address of ours.
        address_conflicts,
        /// Announcements sent at once because another station uses an address of ours.
        address_defences,
        /// Echo requests answered.
        echo_replies_sent,
        /// "Port unreachable" and "protocol unreachable" messages sent.
        unreachables_sent,
        /// Unreachable messages suppressed by the rate limit.
        unreachables_limited,
        /// TCP streams that reached the open state.
        tcp_opened,
        /// TCP streams that ended by FIN on both sides.
        tcp_closed,
        /// TCP streams that ended by a reset or because the peer did not answer.
        tcp_reset,
        /// TCP streams that never opened.
        tcp_open_failed,
        /// TCP segments accepted with a wrong checksum, on a port where a local kernel leaves it to offload hardware.
        tcp_checksum_unfinished,
        /// TCP segments to a port or stream that does not exist.
        tcp_refused,
        /// TCP connection requests ignored because the stream table is full.
        tcp_no_room,
        /// TCP connection requests ignored because their source has its maximum share of half-open or of all streams.
        tcp_source_limited,
        /// Half-open TCP streams evicted to make room for another connection request.
        tcp_half_open_evicted,
        /// TCP resets within the window that were ignored, as they are not at the next expected sequence number (RFC 5961).
        tcp_resets_ignored,
        /// TCP segments with a malformed header.
        tcp_malformed,
    }
}
