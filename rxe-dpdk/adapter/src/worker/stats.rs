//! Counters of a worker's loop.

use crossbeam_utils::CachePadded;
use rxe_proto::counters;
use rxe_sync::Histogram;

counters! {
    /// Counters of one worker's loop.
    pub struct WorkerStats {
        /// Turns of the loop.
        turns,
        /// Turns that found nothing to do.
        idle_turns,
        /// Receive bursts that brought frames.
        rx_bursts,
        /// Frames received from ports.
        rx_frames,
        /// Bytes received from ports.
        rx_bytes,
        /// Frames received here and enqueued for the worker that owns their queue pair.
        handoff_out,
        /// Frames that other workers received and enqueued for this one.
        handoff_in,
        /// Copies of multicast frames enqueued for other workers with members of the group.
        multicast_copies,
        /// Such copies not enqueued: no buffer, or no room in the ring.
        multicast_copies_lost,
        /// Frames handed to the host stack.
        host_frames,
        /// Packets handed to the connection manager.
        gsi_packets,
        /// Packets handed to the queue pairs.
        qp_packets,
        /// Frames dropped before any of these; counted by reason too.
        dropped_frames,
        /// Frames staged for transmission.
        tx_frames,
        /// Frames of other workers put on a transmit queue of this one.
        tx_forwarded,
        /// Turns that ended with frames that a port had refused (back-pressure).
        tx_stalls,
        /// Frames not sent because the interface of their port is gone.
        tx_port_gone,
        /// Times that the loop did not turn for 2 s; counted by the watchdog.
        stalls,
        /// Milliseconds of such stalls.
        stalled_ms,
    }
}

/// How long the turns of one worker's loop that found something to do took, in nanoseconds: to the start of the next turn.
pub type TurnTimes = CachePadded<Histogram>;
