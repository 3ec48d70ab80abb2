//! SIGHUP, which reloads the configuration file.

use nix::sys::signal::{SigSet, Signal};
use rxe::{CliError, cli_error};

/// SIGHUP, blocked in all threads: it waits until [`wait`](HangUp::wait) takes it, and does not end the program.
pub struct HangUp(SigSet);

impl HangUp {
    /// Blocks the signal in this thread, and in those that it starts from now on.
    ///
    /// # Errors
    /// The signal cannot be blocked.
    pub fn block() -> Result<HangUp, CliError> {
        let signals = SigSet::from(Signal::SIGHUP);
        match signals.thread_block() {
            Ok(()) => Ok(HangUp(signals)),
            Err(error) => cli_error!("SIGHUP cannot be blocked: {error}"),
        }
    }

    /// Waits for the next one. False if that is not possible.
    pub fn wait(&self) -> bool {
        self.0.wait().is_ok()
    }
}
