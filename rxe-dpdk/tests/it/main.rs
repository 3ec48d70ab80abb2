//! Integration tests of rxe-dpdk: EAL and ports, the host stack, and whole adapters.
//!
//! A process has one EAL, so each test that starts EAL runs in a child process: see `rxe_testkit::child`.

mod cpu;
mod eal;
// The test bed of two engines that rxe-proto's own tests use.
#[allow(dead_code, reason = "a part of it is used here")]
#[path = "../../proto/tests/it/harness/mod.rs"]
mod harness;
mod host;
mod lost_files;
mod runtime;
