//! The adapter of a program: on DPDK ports, or on a UDP socket.

use std::fmt::Display;

use rxe_adapter::build::StopHandle;
use rxe_adapter::counters::Telemetry;
use rxe_adapter::manage::{Capture, Inspector};
use rxe_adapter::settings::RuntimeConfig;
use rxe_service::ServiceFactory;

use crate::cli_error::CliError;

/// What carries the packets of an adapter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier<'a> {
    /// DPDK ports, with these arguments for EAL.
    Dpdk(&'a [String]),
    /// A UDP socket, at the only address of the configuration.
    Udp,
}

/// The error of a program that was built without the feature `dpdk`.
#[cfg(not(feature = "dpdk"))]
const NO_DPDK: &str = "this program was built without DPDK: give it an address of the machine with --udp ADDRESS";

/// An adapter, ready to run.
pub struct Adapter(Runtime);

enum Runtime {
    #[cfg(feature = "dpdk")]
    Dpdk(Box<rxe_dpdk::runtime::Runtime>),
    Udp(Box<rxe_udp::host::Runtime>),
}

/// Calls the same method of either runtime.
macro_rules! either {
    ($adapter:expr, $runtime:ident => $call:expr) => {
        match $adapter {
            #[cfg(feature = "dpdk")]
            Runtime::Dpdk($runtime) => $call,
            Runtime::Udp($runtime) => $call,
        }
    };
}

impl Adapter {
    /// Opens the ports, and makes the services.
    ///
    /// # Errors
    /// What is missing or wrong, in one sentence.
    pub fn new(
        carrier: Carrier<'_>,
        config: RuntimeConfig,
        factories: Vec<Box<dyn ServiceFactory>>,
    ) -> Result<Adapter, CliError> {
        match carrier {
            Carrier::Dpdk(eal_args) => on_dpdk(eal_args, config, factories),
            Carrier::Udp => match rxe_udp::host::Runtime::new(config, factories) {
                Ok(runtime) => Ok(Adapter(Runtime::Udp(Box::new(runtime)))),
                Err(error) => Err(CliError::new(error.to_string())),
            },
        }
    }

    /// The line that says that the adapter can serve: `ready`, then `key=value` pairs.
    pub fn ready_line(&self) -> &str {
        either!(&self.0, runtime => runtime.ready_line())
    }

    /// A handle that stops [`run`](Self::run).
    pub fn stop_handle(&self) -> StopHandle {
        either!(&self.0, runtime => runtime.stop_handle())
    }

    /// The counters, readable from any thread while the adapter runs.
    pub fn telemetry(&self) -> Telemetry {
        either!(&self.0, runtime => runtime.telemetry())
    }

    /// A view of the adapter for other threads, while it runs.
    pub fn inspector(&self) -> Inspector {
        either!(&self.0, runtime => runtime.inspector())
    }

    /// Captures of the adapter.
    pub fn capture(&self) -> Capture {
        either!(&self.0, runtime => runtime.capture())
    }

    /// Runs the adapter on the calling thread until it is stopped. Returns its totals as text.
    ///
    /// # Errors
    /// Why it ended before.
    pub fn run(self) -> Result<String, CliError> {
        either!(self.0, runtime => text(runtime.run()))
    }
}

fn text<T: Display, E: Display>(ran: Result<T, E>) -> Result<String, CliError> {
    ran.map(|summary| summary.to_string()).map_err(|error| CliError::failed(error.to_string()))
}

#[cfg(feature = "dpdk")]
fn on_dpdk(
    eal_args: &[String],
    config: RuntimeConfig,
    factories: Vec<Box<dyn ServiceFactory>>,
) -> Result<Adapter, CliError> {
    let wrong = |error: &dyn Display| CliError::new(error.to_string());
    let eal = rxe_dpdk::eal::Eal::init(&crate::lcores::or_one(eal_args)).map_err(|error| wrong(&error))?;
    let runtime = rxe_dpdk::runtime::Runtime::new(eal, config, factories).map_err(|error| wrong(&error))?;
    Ok(Adapter(Runtime::Dpdk(Box::new(runtime))))
}

#[cfg(not(feature = "dpdk"))]
fn on_dpdk(_: &[String], _: RuntimeConfig, _: Vec<Box<dyn ServiceFactory>>) -> Result<Adapter, CliError> {
    Err(CliError::new(NO_DPDK))
}

/// The `--file-prefix` among EAL's arguments, or its default.
///
/// # Errors
/// It is no plain name.
#[cfg(feature = "dpdk")]
pub fn eal_file_prefix(eal_args: &[String]) -> Result<String, CliError> {
    rxe_dpdk::eal::check_file_prefix(eal_args).map_err(|error| CliError::new(error.to_string()))?;
    Ok(rxe_dpdk::eal::file_prefix(eal_args))
}

/// There is none without DPDK.
///
/// # Errors
/// Always.
#[cfg(not(feature = "dpdk"))]
pub fn eal_file_prefix(_: &[String]) -> Result<String, CliError> {
    Err(CliError::new(NO_DPDK))
}
