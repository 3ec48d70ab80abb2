//! Faults of everything around the real binary, and of itself: what goes on, what is lost, and how long the recovery takes.
//! Each test reports to the table in docs/security.md.

mod buffers;
mod peer;
mod veth;

/// The port of the `region` service.
const PORT: u16 = 4792;
