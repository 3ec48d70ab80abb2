//! Raw bindings to libdpdk: what bindgen makes of `csrc/shim.h`, and nothing else.
//!
//! Functions named `rte_*` are DPDK's own. Functions named `rxe_*` come from a small C shim over what DPDK keeps
//! `static inline`; `struct rxe_mbuf` is the first cache line of `struct rte_mbuf` under names that do not change
//! between releases. Everything here is unsafe in the way that the DPDK documentation says.

#![no_std]
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, dead_code)]
#![allow(unsafe_op_in_unsafe_fn, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
