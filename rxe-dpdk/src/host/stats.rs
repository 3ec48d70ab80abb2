//! What the host counts. Drops are not here: every dropped frame leaves with its reason.

use rxe_proto::counters;

counters! {
    /// What a host did, in frames unless said otherwise.
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
        /// IGMP messages sent: reports of our IPv4 groups, and leaving them.
        igmp_reports_sent,
        /// IGMP reports of other hosts, where somebody wants to know.
        igmp_reports_heard,
        /// Other hosts that began to listen to a multicast group.
        listeners_joined,
        /// Other hosts that ceased to.
        listeners_left,
        /// Reports that were not believed because too many came at once.
        listeners_limited,
        /// Multicast groups joined for services.
        groups_joined,
        /// Multicast groups left again.
        groups_left,
        /// Neighbours whose MAC became known.
        neighbours_learned,
        /// Neighbours whose MAC changed.
        neighbours_changed,
        /// Changes of a neighbour's MAC ignored because its MAC had changed less than a second before.
        neighbours_locked,
        /// Neighbours that did not answer.
        neighbours_failed,
        /// Neighbours forgotten to make room for others.
        neighbours_evicted,
        /// Neighbours not remembered because the table was full of ones still being looked for.
        neighbours_refused,
        /// Frames in which another station claims an address of ours.
        address_conflicts,
        /// Echo requests answered.
        echo_replies_sent,
        /// "Port unreachable" and "protocol unreachable" messages sent.
        unreachables_sent,
        /// Such messages not sent because there were too many.
        unreachables_limited,
        /// TCP streams that reached the open state.
        tcp_opened,
        /// TCP streams that ended by FIN on both sides.
        tcp_closed,
        /// TCP streams that ended by a reset or because the peer fell silent.
        tcp_reset,
        /// TCP streams that never opened.
        tcp_open_failed,
        /// TCP segments accepted in spite of a wrong checksum, on a port where local kernels leave it unfinished.
        tcp_checksum_unfinished,
        /// TCP segments to a port or stream that does not exist.
        tcp_refused,
        /// TCP connection requests ignored because there are too many streams.
        tcp_no_room,
        /// TCP connection requests ignored because their source has its share of half-open or of all streams.
        tcp_source_limited,
        /// Half-open TCP streams given up early to make room for another connection request.
        tcp_half_open_evicted,
        /// TCP segments whose header makes no sense.
        tcp_malformed,
    }
}
