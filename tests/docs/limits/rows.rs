//! The rows of the table of limits.

/// A bound, or the share of one peer.
pub enum Bound {
    /// The value of a key in conf/target.toml.
    Key(&'static str),
    /// The same of a key in a section, which the text names.
    In(&'static str, &'static str),
    /// What stands behind these words in a file of the source, up to `;` or `,`.
    Source(&'static str, &'static str),
    /// The same, with words in front.
    Of(&'static str, &'static str, &'static str),
    /// Words.
    Words(&'static str),
}

use Bound::{In, Key, Of, Source, Words};

pub struct Row {
    /// What a peer can fill.
    pub table: &'static str,
    pub bound: Bound,
    pub share: Bound,
    /// What happens beyond it.
    pub refusal: &'static str,
    pub counters: &'static [&'static str],
    /// File and function.
    pub tests: &'static [(&'static str, &'static str)],
}

const CM: &str = "rxe-dpdk/proto/src/cm/config.rs";
const GSI: &str = "rxe-dpdk/service/src/control/gsi.rs";
const INBOUND: &str = "rxe-dpdk/service/src/control/inbound.rs";
const STREAMS: &str = "rxe-dpdk/service/src/control/streams.rs";
const RATE: &str = "rxe-dpdk/service/src/control/rate.rs";
const LISTENERS: &str = "rxe-dpdk/src/host/igmp/listeners.rs";
const HOST: &str = "rxe-dpdk/src/host/config.rs";
const ENGINE: &str = "rxe-dpdk/proto/src/transport/config.rs";
const CLIENTS: &str = "rxe-dpdk/inspect/src/server/clients.rs";
const EVENTS: &str = "rxe-dpdk/adapter/src/manage/events.rs";
const NVMF: &str = "rxe-dpdk/nvmf/src/subsystem/limits.rs";
const NVMF_TESTS: &str = "apps/rxe-target/services/nvmf/tests/mod.rs";

pub const ROWS: &[Row] = &[
    Row {
        table: "connections",
        bound: Key("connections"),
        share: Key("connections-per-address"),
        refusal: "REJ 1 (no QP); REJ 3 (no resources) for the address",
        counters: &["req_connection_limit", "req_address_limit"],
        tests: &[("tests/ports/limits.rs", "connections_are_limited_in_all_and_per_address")],
    },
    Row {
        table: "connections not established yet",
        bound: Key("pending"),
        share: Key("pending-per-address"),
        refusal: "the oldest one that its peer has not confirmed is given up; REJ 3 for the address",
        counters: &["pending_evicted", "req_pending_limit", "req_peer_limit"],
        tests: &[("tests/ports/main.rs", "floods_of_requests_neither_stop_nor_keep_others_out")],
    },
    Row {
        table: "ids of connections that have ended",
        bound: Source(CM, "max_closing: "),
        share: Words("none: they stay for 10 s at most"),
        refusal: "the oldest is forgotten early",
        counters: &["timewait_evicted"],
        tests: &[("rxe-dpdk/proto/tests/it/cm_connections.rs", "too_many_closing_connections_are_forgotten_early")],
    },
    Row {
        table: "SIDR requests",
        bound: Source(CM, "max_sidr: "),
        share: Source(CM, "max_sidr_per_peer: "),
        refusal: "an answered one is forgotten; dropped while none is answered, and the peer repeats it",
        counters: &["sidr_limit", "sidr_peer_limit"],
        tests: &[("rxe-dpdk/proto/tests/it/cm_sidr.rs", "one_address_cannot_take_the_whole_table")],
    },
    Row {
        table: "connection and SIDR requests per second",
        bound: Words("16 MADs per turn of the loop"),
        share: Key("requests-per-second"),
        refusal: "dropped, and the peer repeats it",
        counters: &["gsi_rate"],
        tests: &[(
            "rxe-dpdk/service/src/control/tests/gsi.rs",
            "requests_beyond_the_rate_of_their_address_are_dropped",
        )],
    },
    Row {
        table: "addresses whose request rate is remembered",
        bound: Source(RATE, "const MAX_ADDRESSES: usize = "),
        share: Words("one"),
        refusal: "the one that has requested least is forgotten",
        counters: &[],
        tests: &[(RATE, "the_table_of_addresses_is_bounded")],
    },
    Row {
        table: "MADs that wait for their turn",
        bound: Source(GSI, "const MAX_WAITING: usize = "),
        share: Source(GSI, "const MAX_PER_PEER: usize = "),
        refusal: "dropped, and the peer repeats it; a quarter of the places is not for requests",
        counters: &["gsi_budget"],
        tests: &[(GSI, "waiting_places_are_limited_per_address_and_for_requests")],
    },
    Row {
        table: "requests whose MAC address is being resolved",
        bound: Source(INBOUND, "const MAX_WAITING: usize = "),
        share: Source(INBOUND, "const MAX_WAITING_PER_PEER: usize = "),
        refusal: "the oldest one that has waited for 20 ms gives way, and its peer repeats it; none that has an address waits",
        counters: &["connect_waiting_full"],
        tests: &[
            ("rxe-dpdk/service/src/control/tests/gsi.rs", "requests_that_wait_for_a_mac_are_limited_per_address"),
            (
                "rxe-dpdk/service/src/control/tests/gsi.rs",
                "a_request_whose_sender_does_not_answer_gives_way_to_a_later_one",
            ),
        ],
    },
    Row {
        table: "queue pairs of an lcore",
        bound: Key("queue-pairs"),
        share: Words("one per connection; 256 of a pingpong client"),
        refusal: "REJ 1 (no QP)",
        counters: &["refused"],
        tests: &[("tests/ports/limits.rs", "queue_pairs_of_an_lcore_are_limited")],
    },
    Row {
        table: "queue pairs of tests of perftest, without connections",
        bound: Words(
            "those of the lcore, and what its completion queue has room for: 1795 or more; of clients that have not sent yet, a quarter",
        ),
        share: In("service.perftest", "queue-pairs"),
        refusal: "the test is refused",
        counters: &["refused"],
        tests: &[("apps/rxe-target/services/perftest/exchange.rs", "the_queue_pairs_of_an_address_are_limited")],
    },
    Row {
        table: "memory keys of an lcore",
        bound: Source(ENGINE, "max_mr: "),
        share: Words("those of its connections"),
        refusal: "the connection is refused",
        counters: &["refused"],
        tests: &[("rxe-dpdk/proto/tests/it/mem_keys.rs", "a_full_table_takes_no_key_until_one_is_given_back")],
    },
    Row {
        table: "hugepages for clients' buffers",
        bound: Words("the machine's"),
        share: Words("those of its connections"),
        refusal: "the connection is refused",
        counters: &["refused"],
        tests: &[("rxe-dpdk/service/src/reserve.rs", "kept_memory_makes_room_where_there_is_no_other")],
    },
    Row {
        table: "bytes of an lcore for rsockets: connections; mapped buffers and unread bytes, each",
        bound: Words("1G; 256M"),
        share: Words(
            "half; seven eighths of a routed IPv6 /64; a quarter of all that have not confirmed their connections",
        ),
        refusal: "REJ 3; the oldest one that is not confirmed is given up; the client is disconnected; its bytes wait",
        counters: &["refused", "unconfirmed_ended", "buffer_failures", "backlog_full"],
        tests: &[
            (
                "apps/rxe-target/services/rsocket/tests.rs",
                "requests_without_a_confirmation_leave_room_for_clients_and_then_nothing",
            ),
            ("apps/rxe-target/services/rsocket/backlog.rs", "the_store_has_an_end_and_a_share_and_gets_all_back"),
            ("rxe-dpdk/service/src/ledger/tests.rs", "an_address_has_its_share_and_all_have_the_budget"),
        ],
    },
    Row {
        table: "bytes of an lcore for messages of perftest",
        bound: In("service.perftest", "budget"),
        share: Words("half; one client at least is served; a quarter for all that have not answered yet"),
        refusal: "the test is refused",
        counters: &["refused"],
        tests: &[
            ("rxe-dpdk/service/src/ledger/tests.rs", "an_address_has_its_share_and_all_have_the_budget"),
            ("rxe-dpdk/service/src/ledger/tests.rs", "one_object_larger_than_the_budget_serves_one_client_at_a_time"),
            ("apps/rxe-target/services/port18515.rs", "sidr_requests_without_datagrams_leave_room_for_other_clients"),
        ],
    },
    Row {
        table: "bytes of an lcore for messages of pingpongs",
        bound: In("service.pingpong", "budget"),
        share: Words("half; of its last eighth, 16 KiB for each client (8 KiB for each receive)"),
        refusal: "clients that have been idle for 1 s are dropped; the new one gets less, or is refused",
        counters: &["evicted", "refused"],
        tests: &[(
            "apps/rxe-target/services/pingpong/budget.rs",
            "clients_get_less_when_the_budget_runs_short_and_then_nothing",
        )],
    },
    Row {
        table: "clients of udaddy on an lcore, each with an address handle",
        bound: Source("apps/rxe-target/services/udaddy.rs", "const CLIENTS: usize = "),
        share: Words("one per port; a quarter for all that have sent no datagram"),
        refusal: "the oldest one that has sent none is forgotten; SIDR status 3",
        counters: &["evicted", "refused"],
        tests: &[(
            "apps/rxe-target/services/udaddy.rs",
            "addresses_that_ask_and_send_nothing_are_a_share_of_all_clients",
        )],
    },
    Row {
        table: "NVMe queues that have sent no Connect (128 receives of 4160 bytes each at most)",
        bound: Source(NVMF, "    waiting_queues: "),
        share: Source("apps/rxe-target/services/nvmf/shared.rs", "const MAX_WAITING_PER_ADDRESS: usize = "),
        refusal: "REJ 28 with status 6 (no resources); one that sends no Connect for 10 s is disconnected",
        counters: &["refused", "share_refused", "idle_ended"],
        tests: &[
            ("rxe-dpdk/nvmf/tests/it/life.rs", "waiting_queues_are_limited_and_a_key_is_used_once"),
            ("rxe-dpdk/nvmf/tests/it/life.rs", "a_queue_without_connect_is_torn_down"),
            (NVMF_TESTS, "queues_of_one_address_that_send_no_connect_are_limited"),
        ],
    },
    Row {
        table: "NVMe controllers",
        bound: In("service.nvmf", "controllers"),
        share: In("service.nvmf", "controllers-per-host"),
        refusal: "Connect fails with Controller Busy",
        counters: &["refused"],
        tests: &[("rxe-dpdk/nvmf/tests/it/life.rs", "controllers_are_limited_per_host_and_in_all")],
    },
    Row {
        table: "I/O queues of an NVMe controller",
        bound: Source(NVMF, "    queues_per_controller: "),
        share: Words("its controller's"),
        refusal: "REJ 28 with status 3 (invalid queue id)",
        counters: &["refused"],
        tests: &[(NVMF, "each_value_beyond_the_limits_has_its_status")],
    },
    Row {
        table: "outstanding commands of an NVMe queue, and its receives",
        bound: Of("its entries: at most ", NVMF, "    queue_size: "),
        share: Words("its queue's"),
        refusal: "RNR NAK; the controller ends",
        counters: &["no_receive", "malformed"],
        tests: &[("rxe-dpdk/nvmf/src/io/tests.rs", "more_commands_than_entries_and_short_capsules_are_faults")],
    },
    Row {
        table: "bytes of an lcore for data of NVMe commands",
        bound: In("service.nvmf", "staging"),
        share: Words(
            "as much as it leaves free: half, a third beside one other; an eighth more is for Connects and admin commands",
        ),
        refusal: "the command waits, behind those of its host; hosts have turns by bytes",
        counters: &["share_waits"],
        tests: &[
            (NVMF_TESTS, "a_host_that_holds_its_share_of_staging_leaves_the_rest_to_others"),
            (NVMF_TESTS, "two_hosts_with_many_long_writes_leave_a_third_a_third_of_its_rate_and_it_connects_at_once"),
        ],
    },
    Row {
        table: "NVMe commands of an lcore in progress",
        bound: Source("apps/rxe-target/services/nvmf/admission.rs", "pub const PLACES: u32 = "),
        share: Words("as of the bytes"),
        refusal: "as of the bytes",
        counters: &["share_waits"],
        tests: &[(
            "apps/rxe-target/services/nvmf/turns.rs",
            "places_are_shared_as_bytes_are_and_what_was_withdrawn_does_not_come",
        )],
    },
    Row {
        table: "Asynchronous Event Requests of an NVMe controller",
        bound: Source(NVMF, "    event_requests: "),
        share: Words("its controller's"),
        refusal: "the command fails with Asynchronous Event Request Limit Exceeded",
        counters: &[],
        tests: &[(
            "rxe-dpdk/nvmf/tests/it/events.rs",
            "one_more_request_than_the_limit_is_refused_and_a_reset_ends_them",
        )],
    },
    Row {
        table: "errors in the log of an NVMe controller",
        bound: Source(NVMF, "    error_entries: "),
        share: Words("its controller's"),
        refusal: "the oldest is forgotten",
        counters: &[],
        tests: &[("rxe-dpdk/nvmf/src/controller/error_log.rs", "the_newest_errors_are_kept_and_first")],
    },
    Row {
        table: "packet buffers",
        bound: Words("the port's pool, made for all its rings"),
        share: Words("none: a received frame is processed and freed in the same turn"),
        refusal: "the driver drops",
        counters: &["rx_no_mbuf"],
        tests: &[("tests/ports/main.rs", "vhost_and_memif_carry_path_mtu_4096_and_survive_faults")],
    },
    Row {
        table: "messages between lcores",
        bound: Words("what the tables of this list allow: each sends a few"),
        share: Words("as there"),
        refusal: "as there",
        counters: &[],
        tests: &[("tests/ports/main.rs", "floods_of_requests_neither_stop_nor_keep_others_out")],
    },
    Row {
        table: "READs and atomics of a queue pair",
        bound: Source(ENGINE, "max_rd_atomic: "),
        share: Words("as the REP grants: 16 at most"),
        refusal: "NAK \"invalid request\"",
        counters: &["too_many_reads"],
        tests: &[("rxe-dpdk/proto/tests/it/transport_refusals.rs", "read_depth")],
    },
    Row {
        table: "receives",
        bound: Words("as posted"),
        share: Words("its queue pair's; of a shared receive queue one per queue pair, for the message that has begun"),
        refusal: "RNR NAK",
        counters: &["no_receive"],
        tests: &[("rxe-dpdk/proto/tests/it/transport_srq.rs", "an_empty_queue_is_a_receiver_that_is_not_ready")],
    },
    Row {
        table: "last replies of destroyed queue pairs",
        bound: Source("rxe-dpdk/proto/src/transport/engine/destroyed.rs", "const MAX_DESTROYED: usize = "),
        share: Words("one per connection, for half a second"),
        refusal: "the oldest is not sent",
        counters: &["lingering_displaced"],
        tests: &[("rxe-dpdk/proto/tests/it/transport_destroyed.rs", "so_many_linger_and_no_more")],
    },
    Row {
        table: "packets for the port",
        bound: Words("the transmit ring, and two bursts of an lcore"),
        share: Words("16 packets in turn, for each queue pair"),
        refusal: "the state stays and is sent later; ACKs that are not kept are dropped",
        counters: &["tx_stalls", "no_transmit_room"],
        tests: &[("rxe-dpdk/proto/tests/it/transport_destroyed.rs", "a_port_that_refuses_holds_up_no_other_port")],
    },
    Row {
        table: "packets for another lcore",
        bound: Source("rxe-dpdk/src/runtime/ports.rs", "const RING_CAPACITY: usize = "),
        share: Words("none"),
        refusal: "dropped, and the peer repeats it",
        counters: &["handoff_full"],
        tests: &[("rxe-dpdk/tests/it/eal/ports.rs", "dropped_ring_frees_its_packets_and_partial_send_keeps_the_rest")],
    },
    Row {
        table: "neighbours (ARP and neighbour discovery)",
        bound: Source(HOST, "max_neighbours: "),
        share: Words("half for those that do not answer, which replace no neighbour in use, nor many that are known"),
        refusal: "the one unused for longest is replaced",
        counters: &["neighbours_evicted", "neighbours_refused"],
        tests: &[
            ("rxe-dpdk/tests/it/host/arp_nd.rs", "neighbour_table_is_bounded_under_a_flood"),
            ("rxe-dpdk/tests/it/host/arp_nd.rs", "a_neighbour_in_use_survives_a_flood"),
        ],
    },
    Row {
        table: "listeners of multicast groups (IGMP)",
        bound: Source(LISTENERS, "const MAX_LISTENERS: usize = "),
        share: Source(LISTENERS, "const MAX_PER_HOST: usize = "),
        refusal: "the one reported longest ago is replaced; 20 new ones per second",
        counters: &["listeners_limited"],
        tests: &[
            (LISTENERS, "new_listeners_are_limited_and_the_table_is_bounded"),
            (LISTENERS, "one_host_cannot_take_the_whole_table"),
        ],
    },
    Row {
        table: "TCP streams of a port",
        bound: Source(HOST, "max_streams: "),
        share: Words("three times as many as are free: three quarters if it is alone; a quarter of all half open"),
        refusal: "the SYN is dropped; the oldest half-open one gives way",
        counters: &["tcp_source_limited", "tcp_no_room", "tcp_half_open_evicted"],
        tests: &[
            ("rxe-dpdk/tests/it/host/tcp.rs", "syn_flood_takes_half_of_the_slots_and_evicts_the_oldest"),
            ("rxe-dpdk/tests/it/host/tcp.rs", "half_open_streams_of_one_source_are_limited"),
        ],
    },
    Row {
        table: "messages about streams that services have not taken",
        bound: Source(STREAMS, "const MAX_UNTAKEN: usize = "),
        share: Of("", STREAMS, "const MAX_UNTAKEN_OF_STREAM: usize = "),
        refusal: "new streams are reset; a stream is not read",
        counters: &["streams_refused"],
        tests: &[
            ("rxe-dpdk/service/src/control/tests/streams.rs", "new_streams_are_refused_while_workers_are_behind"),
            ("rxe-dpdk/service/src/control/tests/streams.rs", "one_stream_of_small_segments_leaves_room_for_others"),
        ],
    },
    Row {
        table: "bytes for a client that does not read its stream",
        bound: Words("the share of each stream"),
        share: Of("bytes: ", STREAMS, "const MAX_UNSENT: usize = "),
        refusal: "the stream is reset",
        counters: &["streams_unread"],
        tests: &[(
            "rxe-dpdk/service/src/control/tests/streams.rs",
            "a_service_that_writes_more_than_fits_loses_its_stream",
        )],
    },
    Row {
        table: "frames that fault injection holds",
        bound: Words("1024 per port, direction and lcore"),
        share: Words("none"),
        refusal: "the oldest leave early",
        counters: &["released_early"],
        tests: &[("rxe-dpdk/adapter/src/worker/injector/tests.rs", "held_frames_are_bounded_and_keep_their_order")],
    },
    Row {
        table: "clients of the management socket, and of the metrics",
        bound: Source(CLIENTS, "const MAX_CLIENTS: usize = "),
        share: Words("none: processes of the target's user"),
        refusal: "the one that has been idle longest is closed",
        counters: &["replaced", "refused"],
        tests: &[(CLIENTS, "a_full_table_replaces_the_slowest_client_but_none_being_answered")],
    },
    Row {
        table: "clients of `rxe-ctl events`",
        bound: Source(EVENTS, "const MAX_SUBSCRIBERS: usize = "),
        share: Words("none: processes of the target's user"),
        refusal: "the new one is refused",
        counters: &["events_refused"],
        tests: &[(EVENTS, "subscribers_beyond_the_limit_are_refused_and_counted")],
    },
    Row {
        table: "events that wait for one of them",
        bound: Source(EVENTS, "const MAX_QUEUED: usize = "),
        share: Words("as above"),
        refusal: "the new event is lost for that client",
        counters: &["events_lost"],
        tests: &[(EVENTS, "a_slow_subscriber_loses_events_and_learns_how_many")],
    },
    Row {
        table: "lines of the log",
        bound: Source("rxe-dpdk/service/src/event_log.rs", "const LIMIT: u32 = "),
        share: Words("none"),
        refusal: "counted only; per second, lcore and kind of event",
        counters: &[],
        tests: &[("rxe-dpdk/service/src/event_log.rs", "lines_beyond_the_limit_are_withheld_and_counted")],
    },
];
