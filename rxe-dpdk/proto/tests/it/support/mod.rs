//! The captures in `tests/captures`, and packets written again from their parts.

pub mod pcap;
pub mod rebuild;
