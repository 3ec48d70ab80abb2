//! Namespaces through the interface that a worker uses.

mod block;
mod checksums;
mod disk;
mod faults;
mod model;
mod support;
mod workers;
