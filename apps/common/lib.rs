//! Code that the programs in `apps/` share: the adapter, command lines, their errors, signals, manual pages, digests and the
//! choice of an lcore.
//!
//! Without the feature `dpdk`, for which no libdpdk is needed, adapters have UDP sockets only.

pub mod adapter;
mod cli_error;
pub mod command_line;
pub mod digest;
#[cfg(feature = "dpdk")]
pub mod lcores;
pub mod manual_pages;
pub mod signals;
mod suggested;

pub use cli_error::CliError;
pub use suggested::Suggested;

/// Version of the programs and of the DPDK that they are built on, as the build script found them.
pub const VERSION: &str = match option_env!("RXE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
