//! `librxe_verbs.so`: makes an adapter of ours the only RDMA device of a program that is started with it in `LD_PRELOAD`.
//!
//! It defines those functions of libc by which libibverbs, its providers and librdmacm reach the kernel, and passes every
//! call that is not about our device to the next library. Children of the program have it too, so it does nothing before
//! the first call that is.
//!
//! | module | subject |
//! |---|---|
//! | `paths` | which paths are ours, and where their files are |
//! | `open`, `walks`, `status`, `calls`, `numbers`, `netlink` | the functions that programs call instead of libc's |
//! | `real` | the functions of the next library |
//! | `process`, `fork_marker` | what this process has of ours, from its first use to the end or a fork |
//! | `files`, `waits` | open devices: commands, waits for events, ends |
//! | `fork_init` | `ibv_fork_init` does nothing |
//! | `poll` | empty polls give the CPU to the library's thread |
//! | `guard` | no panic and no cancellation passes through Rust code |
//! | `log` | lines on standard error |
//!
//! Static programs, programs that call the kernel without libc, such as those of Go, and programs that run with the rights
//! of another user do not load it.

// This crate is a boundary to C: its functions get pointers of C programs, and it calls functions by their address.
#![allow(unsafe_code)]

#[cfg(not(test))]
mod adapter;
#[cfg(test)]
#[path = "fake_adapter.rs"]
mod adapter;
mod calls;
mod files;
mod fork_init;
mod fork_marker;
mod guard;
mod log;
mod netlink;
mod numbers;
mod open;
mod paths;
mod poll;
mod process;
mod real;
mod status;
#[cfg(test)]
mod tests;
mod waits;
mod walks;
