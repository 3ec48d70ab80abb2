//! What tests of several layers share: packets written again from their parts, a program whose memory can go away, a
//! model of the key table.

pub mod key_model;
pub mod program;
pub mod rebuild;
