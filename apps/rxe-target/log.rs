//! The log: on standard error, in lines for people or in JSON, from a level on that can be changed while the target runs.
//! Lcores log too, so a thread of its own writes it ([`output`]).

use std::io::{self, IsTerminal};

use rxe_dpdk::output;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::config::LogFormat;

/// Changes what is logged.
#[derive(Clone, Debug)]
pub struct LogControl(reload::Handle<LevelFilter, Registry>);

impl LogControl {
    /// Logs from `level` on from now on. False when the log is gone.
    pub fn set(&self, level: LevelFilter) -> bool {
        self.0.reload(level).is_ok()
    }
}

/// Starts the log. To be called before EAL is started.
pub fn start(level: LevelFilter, format: LogFormat) -> LogControl {
    output::start();
    output::print_panics();
    let (filter, control) = reload::Layer::new(level);
    let lines = match format {
        LogFormat::Text => {
            fmt::layer().compact().with_writer(output::stderr).with_ansi(io::stderr().is_terminal()).boxed()
        }
        LogFormat::Json => fmt::layer().json().flatten_event(true).with_writer(output::stderr).boxed(),
    };
    // It fails only where a logger is set already, which then gets the messages.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    LogControl(control)
}
