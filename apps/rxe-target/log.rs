//! The log on standard error, as text or JSON, with a level that can be changed while the target runs. Lcores log too, so a
//! separate thread writes it ([`output`]).

use std::io::{self, IsTerminal};

use rxe_adapter::output;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::config::LogFormat;

/// Changes the log level.
#[derive(Clone, Debug)]
pub struct LogControl(reload::Handle<LevelFilter, Registry>);

impl LogControl {
    /// Sets the level. False if the log has been closed.
    pub fn set(&self, level: LevelFilter) -> bool {
        self.0.reload(level).is_ok()
    }
}

/// Starts the log. Call it before EAL is started.
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
    // This fails only if a logger is set already; then that one receives the messages.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    LogControl(control)
}
