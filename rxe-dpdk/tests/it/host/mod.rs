//! The IP host of a port, without DPDK: against itself, recorded hosts and random frames.

mod addresses;
mod arp_nd;
mod conflict;
mod fuzz;
mod groups;
mod icmp;
mod net;
mod resolve;
mod tcp;
