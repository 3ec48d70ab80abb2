//! The management protocol of a running target, and its reports, as plain data.
//!
//! The target fills in [`report`]s, which `rxe-ctl` prints; [`capture`] has the settings of a capture, [`pcapng`] the blocks of
//! its file, [`fault`] the fault rules, [`event`] the events, [`nvmf`] the requests about disks, and [`reload`] what a reload did. The [`protocol`] is one line of
//! JSON per request and one per answer, on a Unix socket whose [path](socket) derives from the target's `--file-prefix`; [`client`]
//! and [`server`] are its two ends. Nothing here needs DPDK.

pub mod capture;
pub mod client;
pub mod event;
pub mod fault;
pub mod latency;
pub mod nvmf;
pub mod pcapng;
pub mod protocol;
pub mod reload;
pub mod report;
pub mod server;
pub mod socket;
