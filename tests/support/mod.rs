//! What the real-kernel tests and `make bench` share: guests, and child processes.

#![allow(dead_code, reason = "each of them uses its part")]

pub mod guest;
pub mod image;
pub mod perftest;
pub mod process;
