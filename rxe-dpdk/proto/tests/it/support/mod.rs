//! What tests of several layers share: packets written again from their parts, a program whose memory can go away.

pub mod program;
pub mod rebuild;
