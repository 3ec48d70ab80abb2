//! Parts of the real-kernel tests and of `make bench`: guests, and the output of programs that run there.

#![allow(dead_code, reason = "each of them uses its part")]

pub mod client_output;
pub mod guest;
pub mod image;
pub mod perftest;
