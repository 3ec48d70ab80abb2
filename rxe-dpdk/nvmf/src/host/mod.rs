//! The host's side, for load generators and tests: a [`Session`] connects to a subsystem, an [`IoCommands`] per I/O queue
//! builds commands and checks completions. It follows the sequence of Linux.

mod actions;
mod commands;
mod session;
mod step;

pub use commands::{Completed, CompletionError, IoCommand, IoCommands};
pub use session::{Action, ControllerInfo, HostConfig, NamespaceInfo, Session, SessionError};
