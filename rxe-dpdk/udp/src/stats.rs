//! Counters of a port.

use rxe_proto::counters;

counters! {
    /// Counters of one port. Written by the thread that drives the port, readable from any thread.
    pub struct UdpStats {
        /// RoCE packets received.
        rcvd_packets,
        /// Bytes of UDP payload received.
        rcvd_bytes,
        /// Bursts received: calls of recvmmsg that returned datagrams.
        rcvd_bursts,
        /// Datagrams that the kernel delivered, each with one packet or, from another socket, several.
        rcvd_datagrams,
        /// Datagrams dropped because they were empty, or longer than any RoCE packet.
        rcvd_bad_length,
        /// Datagrams dropped because the kernel did not report their properties completely.
        rcvd_incomplete,
        /// Datagrams that the kernel dropped because the socket's receive buffer was full. Known when a later one arrives.
        rcvd_overflowed,
        /// Calls of recvmmsg that failed.
        receive_errors,
        /// Packets received whose IPv4 identification is not 0 and was computed from the ICRC.
        identification_recovered,
        /// RoCE packets that the kernel accepted.
        sent_packets,
        /// Bytes of UDP payload that the kernel accepted.
        sent_bytes,
        /// Bursts sent: calls of sendmmsg that accepted datagrams.
        sent_bursts,
        /// Datagrams that the kernel accepted, each with one packet or, to another socket, several.
        sent_datagrams,
        /// Datagrams of several packets that the kernel refused: the packets left alone.
        segmentation_refused,
        /// Times the kernel accepted fewer datagrams than offered because the socket's transmit buffer was full.
        transmit_stalls,
        /// Packets not staged because the stage was full.
        stage_full,
        /// Packets not staged because they are longer than any RoCE packet: an error of the caller.
        oversize,
        /// Staged packets dropped because they are not RoCEv2 packets from this port's address: an error of the caller.
        foreign,
        /// Packets dropped because there is no route to their destination from the port's address, or an interface is down.
        send_unreachable,
        /// Packets dropped because they are longer than the MTU of their path.
        send_too_big,
        /// Packets dropped because their destination refuses datagrams.
        send_refused,
        /// Packets dropped because a firewall or another policy of this machine does not allow them.
        send_denied,
        /// Packets dropped because the kernel had no memory for them, or the queue of the interface was full.
        send_no_buffers,
        /// Packets dropped for another error of sendmmsg.
        send_failed,
    }
}
