//! `echo` and `reflect` in a program that was built without DPDK.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rxe::{CliError, cli_error};

use crate::plan::Plan;
use crate::progress::Progress;
use crate::session::Ended;

/// There is no port to reflect frames on.
pub fn reflect(
    _: &[String],
    _: &Arc<AtomicBool>,
    _: impl FnOnce(&str) -> Result<(), CliError>,
) -> Result<String, CliError> {
    cli_error!("reflect needs a DPDK port, and this rxe-bench was built without DPDK")
}

/// There is no port to send frames on.
pub fn echo(_: &Plan, _: &Arc<AtomicBool>, _: &Progress) -> Result<Ended, CliError> {
    cli_error!("echo needs a DPDK port, and this rxe-bench was built without DPDK")
}
