//! Packets written again from their parts.

pub mod rebuild;
