//! Hosts against a target: recorded, random, hostile, and the crate's own.

mod capture;
mod discovery;
mod edges;
mod events;
mod life;
mod pair;
mod random;
mod replay;
mod replay_differences;
mod rig;
