//! Random programs between two engines over a bad link: both ends post at the same time, on up to three connections,
//! and what each transport promises holds in the end. See `programs/check.rs` for the promises.
//!
//! `RXE_PROGRAMS` sets how many programs run in all, `RXE_SEED` repeats a run.

use rxe_proto::transport::QpType;

const KINDS: u32 = 4;

#[test]
fn reliable_connections() {
    crate::programs::run(
        "RC",
        KINDS,
        &[QpType::Rc],
        &[
            "timeouts",
            "duplicate_request",
            "out_of_seq_request",
            "send_rnr_err",
            "read_replays",
            "atomic_replays",
            "flush_replays",
            "implied_naks",
            "read_gaps",
            "transmit_stalls",
            "window_stalls",
            "rd_atomic_stalls",
            "fence_stalls",
            "ack_deferred",
            "long_stalls",
            "rate_stalls",
            "spurious_timeouts",
        ],
    );
}

#[test]
fn unreliable_connections() {
    crate::programs::run("UC", KINDS, &[QpType::Uc], &["uc_messages_lost", "rdma_recvs", "receive_queue_empty"]);
}

#[test]
fn datagrams() {
    crate::programs::run("UD", KINDS, &[QpType::Ud], &["datagrams_rcvd", "receive_queue_empty"]);
}

#[test]
fn all_types_side_by_side() {
    const TYPES: &[QpType] = &[QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud];
    crate::programs::run("mixed", KINDS, TYPES, &["timeouts", "send_rnr_err", "uc_messages_lost", "datagrams_rcvd"]);
}
