//! Counters of an engine.

crate::counters! {
    /// Counters of one engine. The first block has the names of rxe's hw_counters, so that existing tools can
    /// read them. Dropped packets are counted by reason in [`DropCounters`](crate::wire::DropCounters).
    pub struct TransportStats {
        /// Packets written.
        sent_pkts,
        /// Packets received for a queue pair of ours, intact.
        rcvd_pkts,
        /// Requests received again.
        duplicate_request,
        /// Requests beyond the expected PSN: one per gap, as answered by a sequence NAK.
        out_of_seq_request,
        /// RNR NAKs received.
        rcvd_rnr_err,
        /// RNR NAKs sent.
        send_rnr_err,
        /// Sequence NAKs received.
        rcvd_seq_err,
        /// ACKs not sent because a later one of the same burst says the same.
        ack_deferred,
        /// Queue pairs lost because the peer did not answer.
        retry_exceeded_err,
        /// Queue pairs lost because the peer never became ready to receive.
        retry_rnr_exceeded_err,
        /// Times that a requester went back to its first unacknowledged packet.
        completer_retry_err,
        /// Work requests that failed on our own side.
        send_err,
        /// Queue pairs that went to error for any cause but the consumer's wish.
        link_downed,
        /// SENDs completed as requester.
        rdma_sends,
        /// SENDs completed as responder.
        rdma_recvs,
        /// Bytes of frames written, Ethernet header to ICRC.
        sent_bytes,
        /// Bytes of frames received for a queue pair of ours, intact.
        rcvd_bytes,

        /// ACKs written (READ and atomic responses not counted).
        acks_sent,
        /// Sequence NAKs written.
        sequence_naks_sent,
        /// NAKs written that end the connection.
        fatal_naks_sent,
        /// READ response packets written.
        read_responses_sent,
        /// Duplicate READ requests that were answered again.
        read_replays,
        /// Duplicate atomics that were answered again from memory of the first time.
        atomic_replays,
        /// Replays broken off because the memory is no longer registered.
        replays_abandoned,
        /// Request packets written again.
        retransmitted_pkts,
        /// Retries started by the timer.
        timeouts,
        /// Such retries of packets that had arrived: the answer was late.
        spurious_timeouts,
        /// Retries started by a response past an unanswered READ or atomic.
        implied_naks,
        /// Retries started by a missing packet within a READ response.
        read_gaps,
        /// Responses to PSNs that were never sent.
        ghost_responses,
        /// Bare ACKs on a READ or atomic, which cannot complete it.
        bare_acks,
        /// Fatal NAKs received.
        fatal_naks_rcvd,
        /// Completions that found their queue full.
        cq_overflows,
        /// Receives that waited for the peer's retry: requests met an empty receive queue.
        receive_queue_empty,
        /// Turns that ended because the transmit ring was full.
        transmit_stalls,
        /// Turns that ended because the window was closed.
        window_stalls,
        /// Turns that ended because max_rd_atomic READs and atomics were outstanding.
        rd_atomic_stalls,
        /// Turns that ended because congestion control has lowered the rate.
        rate_stalls,
        /// Turns that ended because long messages had enough bytes outstanding while the port sends short ones.
        long_stalls,
        /// Turns that ended at a fence.
        fence_stalls,
        /// Turns that ended because the peer has no receives posted, as its credits say.
        credit_stalls,
        /// Messages sent without a credit, to learn whether there is one now.
        credit_probes,
        /// Turns that ended because a local invalidate waits for all work before it.
        local_stalls,
        /// RNR NAKs for a message that had got one before, after which the wait was made longer.
        rnr_backoffs,
        /// Probes to silent peers whether they are still there.
        keep_alive_probes,
        /// Queue pairs lost because a silent peer answered no probe.
        silent_peers,
        /// Round trips measured.
        rtt_samples,
        /// FLUSHes executed.
        flushes,
        /// ATOMIC WRITEs executed.
        atomic_writes,
        /// Duplicate FLUSHes and ATOMIC WRITEs that were answered again.
        flush_replays,
        /// Packets that a switch marked: congestion experienced.
        ecn_marked,
        /// Congestion notifications written.
        cnps_sent,
        /// Congestion notifications received.
        cnps_rcvd,
        /// UC messages given up after a part of them had come: a packet was missing, refused or out of order. Those of
        /// which nothing came, or not the beginning, are not known.
        uc_messages_lost,
        /// Datagrams delivered to queue pairs, multicast ones once for each.
        datagrams_rcvd,
        /// Datagrams written.
        datagrams_sent,
        /// Multicast datagrams received for a group with queue pairs of ours.
        multicast_rcvd,
        /// Limit events of shared receive queues.
        srq_limit_events,
        /// Queue pairs destroyed while they owed their peers something: it is still sent.
        qps_lingered,
        /// Such ones that were given up, as the port did not take all of it in time.
        lingering_expired,
        /// Such ones that were given up, as too many others wait.
        lingering_displaced,
        /// Numbers of destroyed queue pairs that came back before they had rested as long as they should.
        qpn_rests_cut,
    }
}
