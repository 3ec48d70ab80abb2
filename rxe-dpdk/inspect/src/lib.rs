//! What a running target tells of itself, and how it is asked.
//!
//! The [`report`]s are plain data that the target fills in and `rxe-ctl` shows, [`capture`] says what is to be captured.
//! [`protocol`] is how the two talk: a line
//! of JSON there, a line of JSON back, on a Unix socket whose [place](socket) follows from the target's `--file-prefix`.
//! Nothing here needs DPDK.

pub mod capture;
pub mod client;
pub mod fault;
pub mod protocol;
pub mod report;
pub mod socket;
