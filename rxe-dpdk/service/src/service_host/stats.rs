//! Counters of a service host.

use rxe_proto::counters;

counters! {
    /// Counters of the services of one worker.
    pub struct ServiceStats {
        /// Connection requests that services accepted.
        connections_accepted,
        /// Connection requests that services refused.
        connections_refused,
        /// Connections that services requested.
        connections_asked,
        /// Connections given up before their peers confirmed them, to make room for new ones.
        unconfirmed_ended,
        /// Connections established.
        connections_established,
        /// Connections that ended, established or not.
        connections_ended,
        /// SIDR requests of peers that services answered with a queue pair.
        datagrams_accepted,
        /// SIDR requests of peers that services refused.
        datagrams_refused,
        /// Queue pairs that went to the error state.
        qp_errors,
        /// TCP streams opened.
        streams_opened,
        /// TCP streams closed.
        streams_closed,
        /// Work completions handed to services.
        completions,
        /// Work completions discarded because their completion queue belongs to no service.
        completions_unclaimed,
        /// Messages of services' instances to other instances and to themselves, delivered.
        instance_messages,
        /// Queue pairs that services had not destroyed when the adapter stopped.
        queue_pairs_left,
        /// Regions and windows that services still had when the adapter stopped, those kept for later peers included.
        regions_left,
        /// Operations that services had outstanding when the adapter stopped.
        operations_left,
        /// Named regions whose file was cut short by another process.
        regions_lost,
    }
}
