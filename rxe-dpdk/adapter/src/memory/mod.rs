//! Memory of regions that is mapped from files, and what keeps the process alive when another process truncates one.

// Mappings and a signal handler need the C library. Each block below says why it is sound.
#![allow(unsafe_code)]

mod fault_guard;
mod file_memory;

pub use fault_guard::files_lost;
pub use file_memory::{FileError, FileMemory};
