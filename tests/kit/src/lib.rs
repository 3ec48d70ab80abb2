//! Code that the tests of several crates share. Only tests depend on it, and it depends on none of our crates.
//!
//! * [`mutate`] changes inputs for parsers that must survive any bytes,
//! * [`pcap`] reads the recorded captures in tests/captures and writes files for net_pcap to play,
//! * [`pcapng`] reads the captures that an adapter writes,
//! * [`child`] runs a test in a process of its own, and in a network namespace of its own,
//! * [`readme`] finds the commands that README.md shows,
//! * [`process`] starts the programs under test, and has their output,
//! * [`retry`] runs again what failed for a reason of its own,
//! * [`rng`] has random numbers from a seed,
//! * [`temp`] creates folders that are removed after the test,
//! * [`recovery`] is the table of faults and of the time that the recovery from them takes.
//!
//! Helpers panic instead of returning errors, as a test can do nothing about them; `process` and `readme` return them for
//! tests/real, which reports errors itself.

pub mod child;
pub mod mutate;
pub mod pcap;
pub mod pcapng;
pub mod process;
pub mod readme;
pub mod recovery;
pub mod retry;
pub mod rng;
pub mod temp;
