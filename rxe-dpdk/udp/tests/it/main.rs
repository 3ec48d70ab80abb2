//! Ports against each other and against plain sockets, on addresses of the loopback interface or in a network namespace.

mod support;

mod bursts;
mod engines;
mod groups;
mod identification;
mod ipv6;
mod opening;
mod operations;
mod pressure;
mod waiting;
mod wire;
